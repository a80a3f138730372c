"""A site's membership in one masked study: what it checks before it joins, answers, and takes its self-mask off.

Who is protected: this site's answers, from the house and at most t colluding sites. At what price: two
exchanges per question, one stored vector per question, and that a lost participant halts the study until it is
back. Assumptions: those of masks.py; the caller sends nothing before the transaction it called from is on disk;
and `content` is everything that changes what a site computes, the same bytes for every site (a house that
could tell each site something else could have all but one answer nothing). Reference: Bonawitz et al. 2017,
CCS, section 6, figure 4; docs/methods.md, section 0.7.

What a site checks of the others. Of all: that they are pinned (manifest.py). Of its neighbours, with whom it shares
masks: the signatures of their keys, and the tags by which they committed to their answers. Of the rest only that the
keys, and later the hashes, which it checked stand in one list of all, of which it knows the root. That is enough:

- Keys. The root of the list of keys is in the label, and the label in every stream and tag. Two honest neighbours who
  were shown different lists, in whatever entry, share no stream and take no tag from each other. Honest sites are
  connected through honest neighbours (manifest.py): so either all have one list, or nobody can add anything up.
- Answers. A house can make up the hash of a site that is no neighbour, and have a seed revealed before that site has
  answered. It gains nothing: what it opened still holds the streams that the site shares with its honest neighbours,
  theirs with their own, and so on to every honest site; there is no sum before each of these has answered this question
  under this label, for which each was charged, and revealed its own seed. A seed that comes to no sum tells nothing,
  and was charged all the same; so it was when the house did not ask the last site to open. Nor are there two sums: a
  site opens one vector for one root, the first that it was shown, and an answer that it masked anew before that was
  never opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from concilium.errors import MaskError
from concilium.ledger.mask_store import MaskedAnswer, SqliteMaskStore
from concilium.privacy import randomness
from concilium.privacy.identity import Identity, statement
from concilium.privacy.manifest import KEY_BYTES, Manifest, accept
from concilium.privacy.masks import (
    SEED_BYTES,
    MaskedVector,
    PairKey,
    Ring,
    Seed,
    Shown,
    Standing,
    add_masks,
    commit,
    derive_pair_key,
    hash_seed,
    hash_transcript,
    hash_vector,
    is_from,
    make_label,
)
from concilium.privacy.study_keys import (
    Roll,
    StudyKey,
    Witness,
    agree,
    find_root,
    hash_leaf,
    sign_study_key,
    verify_study_keys,
)


def _hash_content(content: bytes) -> bytes:
    """What a site keeps of a question, to know it again."""
    return hashlib.sha256(statement("concilium/content@1", content)).digest()


def _hash_key(key: bytes) -> bytes:
    """What a membership keeps of its private key, to know it again."""
    return hashlib.sha256(statement("concilium/own-key@1", key)).digest()


class Membership:
    """`Membership(manifest, "cleveland", identity, peers, store)`: joins the study, or MaskError says why not.

    Then: show `key` to the house, `meet` its neighbours, and for each question `mask`, later `reveal`; at
    the end `forget`. A site that was restarted joins again and goes on where it was.
    """

    def __init__(
        self,
        manifest: Manifest,
        name: str,
        identity: Identity,
        peers: Mapping[str, str],
        store: SqliteMaskStore,
        *,
        colluders: int = 1,
        witness: Witness | None = None,
        standing: Callable[[], Standing] = Standing,
        shown: Callable[[str], bytes] = lambda name: b"",
    ) -> None:
        accept(manifest, name, identity.public, peers, colluders=colluders)
        self.manifest = manifest
        self.name = name
        self._store = store
        self._study = manifest.study_id
        self.neighbours = manifest.graph.neighbours(name)
        self._own = b""
        self.key: StudyKey = sign_study_key(identity, self._study, name, self._join(), witness)
        self._roll = b""
        self._hashed = (b"", b"")
        self._standing, self._shown = standing, shown
        self._held: Mapping[str, bytes] = {}
        self._shared: dict[str, bytes] = {}
        self._pairs: tuple[bytes, dict[str, PairKey]] = (b"", {})

    def meet(
        self, roll: Roll, compare: Callable[[Sequence[StudyKey]], Mapping[str, bytes]] | None = None
    ) -> None:
        """Check the keys of all neighbours, and that they and ours are in the list of all; agree on a secret with each
        of them. `compare` is given the keys that were checked, and says which entry each neighbour remembers of our
        ledger; where it raises, nobody was met."""
        private, study = X25519PrivateKey.from_private_bytes(self._read_key()), self.manifest.study
        keys = verify_study_keys(self.manifest, roll.keys, (self.name, *self.neighbours))
        if keys[self.name] != self.key.key:
            raise MaskError(
                f"the key shown for {self.name} in study {study!r} is not the one it uses; "
                "gather the keys of all participants anew"
            )
        if self._find_root(keys, roll.proof) != roll.root:
            raise MaskError(
                f"the keys shown to {self.name} in study {study!r} are not those in the list of all participants' keys"
            )
        self._held = {} if compare is None else compare(roll.keys)
        self._shared = {name: agree(private, name, keys[name]) for name in self.neighbours}
        self._roll = roll.root

    def recall(self, content: bytes, *, comparable: bool = False) -> MaskedVector | None:
        """The stored answer to this question, or None where it is yet to be computed; MaskError where it
        must not be. Asked first, it saves computing statistics and drawing noise that would not be used.

        `comparable` answers (private: noisy and charged each time) may be opened for several sets of participants.
        """
        with self._store.reading():
            answer = self._find(content, comparable)
        return None if answer is None else self._message(answer)

    def measure(self, content: bytes) -> int | None:
        """How many bytes the stored answer to this question has, None where there is none. Whether it may be opened is
        looked at when it is."""
        with self._store.reading():
            self._read_key()
            return self._store.measure(self._study, _hash_content(content))

    def mask(self, content: bytes, vector: Ring, *, comparable: bool = False) -> MaskedVector:
        """The answer under its masks, stored before it is returned; for a question that was answered before,
        the stored answer, whatever `vector` is now.

        A number beyond the manifest's `largest` is refused, unless it is `comparable`: noise may be of any size, and a
        refusal would tell.
        """
        return self._message(self.keep(content, vector, comparable=comparable))

    def keep(self, content: bytes, vector: Ring, *, comparable: bool = False) -> MaskedAnswer:
        """Mask and store an answer, and send nothing."""
        with self._store.transaction():
            answer = self._find(content, comparable)
            if answer is None:
                label, seed = self.label(content), randomness.draw_bytes(SEED_BYTES)
                answer = MaskedAnswer(
                    study=self._study,
                    content=_hash_content(content),
                    label=label,
                    participants=self.manifest.circle,
                    names=self.manifest.names,
                    seed=seed,
                    vector=add_masks(
                        self.name, self._check_form(vector, comparable), self._pair_keys(label), seed
                    ),
                )
                self._store.keep(answer)
        return answer

    def label(self, content: bytes) -> bytes:
        """What a mask for this question is good for."""
        return make_label(self._study, content, self._roll)

    def reveal(
        self,
        content: bytes,
        shown: Shown,
        *,
        charge_on_disk: bool,
        comparable: bool = False,
    ) -> Seed:
        """The seed of this site's self-mask, once all participants have committed to their vectors.

        `charge_on_disk` is the caller's word that the charge is in the ledger, or is written by the very
        transaction this is called in. Asked again for the same commitments it gives the same seed.
        """
        if not charge_on_disk:
            raise MaskError(f"{self.name} reveals nothing before the charge for it is on disk")
        with self._store.transaction():
            answer = self._find(content, comparable)
            if answer is None:
                raise MaskError(f"{self.name} has not answered this question yet; ask it first")
            transcript = self._check_commitments(answer, shown)
            return Seed(self.name, answer.label, self._store.open(answer, transcript))

    def forget(self) -> None:
        """End the study here: its key, seeds and vectors are deleted, and it cannot be joined again."""
        with self._store.transaction():
            self._store.end(self._study)
        self._roll, self._shared, self._pairs = b"", {}, (b"", {})

    def _join(self) -> X25519PrivateKey:
        """The site's private key for the study, drawn when it joins; it is held by the store alone."""
        with self._store.transaction():
            if self._store.has_ended(self._study):
                self._refuse_ended()
            key = self._store.study_key(self._study)
            if key is None:
                key = randomness.draw_bytes(KEY_BYTES)
                self._store.enroll(self._study, key)
            self._own = _hash_key(key)
            return X25519PrivateKey.from_private_bytes(key)

    def _read_key(self) -> bytes:
        """The private key that the site joined with. Where it is gone, so is what was opened with it: nothing may be
        made under its labels again, though this membership still has its secrets."""
        key = self._store.study_key(self._study)
        if key is None or _hash_key(key) != self._own:
            self._refuse_ended()
        return key

    def _refuse_ended(self) -> NoReturn:
        raise MaskError(
            f"study {self.manifest.study!r} has ended at {self.name} and its key is deleted; start a new one"
        )

    def _find(self, content: bytes, comparable: bool) -> MaskedAnswer | None:
        self._read_key()
        if not self._roll:
            raise MaskError(
                f"{self.name} has not met the other participants of study {self.manifest.study!r} yet"
            )
        digest = _hash_content(content)
        if not comparable:
            self._store.check_participants(digest, self.manifest.circle, self.manifest.names)
        return self._store.find_answer(self._study, digest, self.label(content))

    def _check_form(self, vector: Ring, comparable: bool) -> Ring:
        if vector.dtype != np.uint64 or vector.ndim != 1:
            raise MaskError(
                f"a vector to be masked must be one row of uint64; got {vector.ndim}-d {vector.dtype}"
            )
        numbers, largest = vector.view(np.int64), self.manifest.largest
        if (
            vector.size
            and not comparable
            and not -largest <= int(numbers.min()) <= int(numbers.max()) <= largest
        ):
            raise MaskError(
                f"a number of {self.name} is larger than study {self.manifest.study!r} allows ({largest} in "
                "the ring), so that the sum could wrap round; use fewer fixed-point bits or smaller numbers"
            )
        return vector

    def _message(self, answer: MaskedAnswer) -> MaskedVector:
        seed_hash, digest = self._hashes(answer)
        pairs = self._pair_keys(answer.label)
        held = {peer: self._held.get(peer, b"") + self._shown(peer) for peer in pairs}
        commitment = commit(self.name, digest, pairs, self._standing(), held)
        return MaskedVector(answer.label, answer.vector, seed_hash, commitment)

    def _hashes(self, answer: MaskedAnswer) -> tuple[bytes, bytes]:
        """Of the seed, and of the vector with that; the last are remembered, since who answers soon opens."""
        seed_hash = hash_seed(answer.label, self.name, answer.seed)
        latest, digest = self._hashed
        if latest != seed_hash:
            digest = hash_vector(answer.label, self.name, seed_hash, answer.vector)
            self._hashed = seed_hash, digest
        return seed_hash, digest

    def _pair_keys(self, label: bytes) -> dict[str, PairKey]:
        latest, pairs = self._pairs
        if latest != label:
            pairs = {
                peer: derive_pair_key(secret, self._study, label, self.name, peer)
                for peer, secret in self._shared.items()
            }
            self._pairs = (label, pairs)
        return pairs

    def _check_commitments(self, answer: MaskedAnswer, shown: Shown) -> bytes:
        """The hash of what all participants committed to: MaskError unless the neighbours' are there, genuine, and
        part of it, as is our own."""
        by_name = {commitment.name: commitment for commitment in shown.commitments}
        absent = [name for name in (self.name, *self.neighbours) if name not in by_name]
        if absent:
            raise MaskError(
                f"{self.name} reveals nothing: no answer of {' and '.join(absent)} is shown; wait, or stop"
            )
        if len(shown.commitments) != 1 + len(self.neighbours):
            raise MaskError(
                f"{self.name} reveals nothing: more answers are shown than those of the sites it shares masks with"
            )
        if by_name[self.name].digest != self._hashes(answer)[1]:
            raise MaskError(
                f"{self.name} reveals nothing: the answer shown as its own is not the one it sent"
            )
        for peer, key in self._pair_keys(answer.label).items():
            if not is_from(by_name[peer], peer, self.name, key):
                raise MaskError(
                    f"{self.name} reveals nothing: what is shown as the answer of {peer} was not sent by it "
                    "for this question and set of participants"
                )
        digests = {name: commitment.digest for name, commitment in by_name.items()}
        if self._find_root(digests, shown.proof) != shown.root:
            raise MaskError(
                f"{self.name} reveals nothing: what is shown is not part of the list of all participants' answers"
            )
        return hash_transcript(answer.label, shown.root)

    def _find_root(self, entries: Mapping[str, bytes], proof: Sequence[bytes]) -> bytes:
        """The root of the list of all participants in which these have these entries."""
        places = self.manifest.graph.locate(entries)
        leaves = {place: hash_leaf(name, entries[name]) for place, name in places.items()}
        return find_root(leaves, len(self.manifest.names), proof)
