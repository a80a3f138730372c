"""A site's membership in one masked study: what it checks before it joins, answers, and takes its self-mask off.

Who is protected: this site's answers, from the house and at most t colluding sites. At what price: two
exchanges per question, one stored vector per question, and that a lost participant halts the study until it is
back. Assumptions: those of masks.py; the caller sends nothing before the transaction it called from is on disk;
and `content` is everything that changes what a site computes, the same bytes for every site (a house that
could tell each site something else could have all but one answer nothing). Reference: Bonawitz et al. 2017,
CCS, section 6, figure 4; docs/methods.md, section 0.7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from concilium.errors import MaskError
from concilium.privacy import randomness
from concilium.privacy.identity import Identity, statement
from concilium.privacy.manifest import KEY_BYTES, Manifest, accept
from concilium.privacy.mask_store import MaskedAnswer, SqliteMaskStore
from concilium.privacy.masks import (
    SEED_BYTES,
    Commitment,
    MaskedVector,
    PairKey,
    Ring,
    Seed,
    add_masks,
    commit,
    derive_pair_key,
    hash_seed,
    hash_transcript,
    hash_vector,
    is_from,
    make_label,
)
from concilium.privacy.study_keys import StudyKey, Witness, agree, sign_study_key, verify_study_keys


def hash_content(content: bytes) -> bytes:
    """What a site keeps of a question, to know it again."""
    return hashlib.sha256(statement("concilium/content@1", content)).digest()


def hash_key(key: bytes) -> bytes:
    """What a membership keeps of its private key, to know it again."""
    return hashlib.sha256(statement("concilium/own-key@1", key)).digest()


class Membership:
    """`Membership(manifest, "cleveland", identity, peers, store)`: joins the study, or MaskError says why not.

    Then: show `key` to the house, `meet` the others' keys, and for each question `mask`, later `reveal`; at
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
    ) -> None:
        accept(manifest, name, identity.public, peers, colluders=colluders)
        self.manifest = manifest
        self.name = name
        self._store = store
        self._study = manifest.study_id
        identities = [part for site in manifest.participants for part in (site.name.encode(), site.identity)]
        self._participants = hashlib.sha256(statement("concilium/participants@1", *identities)).digest()
        self._own = b""
        self.key: StudyKey = sign_study_key(identity, self._study, name, self._join(), witness)
        self._keys: dict[str, bytes] = {}
        self._shared: dict[str, bytes] = {}
        self._pairs: tuple[bytes, dict[str, PairKey]] = (b"", {})

    def meet(self, keys: Iterable[StudyKey]) -> None:
        """Check the keys of all participants and agree on a secret with each."""
        private = X25519PrivateKey.from_private_bytes(self._read_key())
        public_keys = verify_study_keys(self.manifest, keys)
        if public_keys[self.name] != self.key.key:
            raise MaskError(
                f"the key shown for {self.name} in study {self.manifest.study!r} is not the one it uses; "
                "gather the keys of all participants anew"
            )
        self._shared = {
            name: agree(private, name, key) for name, key in public_keys.items() if name != self.name
        }
        self._keys = public_keys

    def recall(self, content: bytes, *, comparable: bool = False) -> MaskedVector | None:
        """The stored answer to this question, or None where it is yet to be computed; MaskError where it
        must not be. Asked first, it saves computing statistics and drawing noise that would not be used.

        `comparable` answers (private: noisy and charged each time) may be opened for several sets of participants.
        """
        with self._store.transaction():
            answer = self._find(content, comparable)
        return None if answer is None else self._message(answer)

    def mask(self, content: bytes, vector: Ring, *, comparable: bool = False) -> MaskedVector:
        """The answer under its masks, stored before it is returned; for a question that was answered before,
        the stored answer, whatever `vector` is now.

        A number beyond the manifest's `largest` is refused; under `private` the caller clips first, as a refusal
        would tell.
        """
        with self._store.transaction():
            answer = self._find(content, comparable)
            if answer is None:
                label, seed = self._label(content), randomness.draw_bytes(SEED_BYTES)
                answer = MaskedAnswer(
                    study=self._study,
                    content=hash_content(content),
                    label=label,
                    participants=self._participants,
                    names=self.manifest.names,
                    seed=seed,
                    vector=add_masks(self.name, self._within_ring(vector), self._pair_keys(label), seed),
                )
                self._store.keep(answer)
        return self._message(answer)

    def reveal(
        self,
        content: bytes,
        commitments: Iterable[Commitment],
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
            transcript = self._check_commitments(answer, list(commitments))
            return Seed(self.name, answer.label, self._store.open(answer, transcript))

    def forget(self) -> None:
        """End the study here: its key, seeds and vectors are deleted, and it cannot be joined again."""
        with self._store.transaction():
            self._store.end(self._study)
        self._keys, self._shared, self._pairs = {}, {}, (b"", {})

    def _join(self) -> X25519PrivateKey:
        """The site's private key for the study, drawn when it joins; it is held by the store alone."""
        with self._store.transaction():
            if self._store.has_ended(self._study):
                self._refuse_ended()
            key = self._store.study_key(self._study)
            if key is None:
                key = randomness.draw_bytes(KEY_BYTES)
                self._store.enroll(self._study, key)
            self._own = hash_key(key)
            return X25519PrivateKey.from_private_bytes(key)

    def _read_key(self) -> bytes:
        """The private key that the site joined with. Where it is gone, so is what was opened with it: nothing may be
        made under its labels again, though this membership still has its secrets."""
        key = self._store.study_key(self._study)
        if key is None or hash_key(key) != self._own:
            self._refuse_ended()
        return key

    def _refuse_ended(self) -> NoReturn:
        raise MaskError(
            f"study {self.manifest.study!r} has ended at {self.name} and its key is deleted; start a new one"
        )

    def _label(self, content: bytes) -> bytes:
        return make_label(self._study, content, self._keys)

    def _find(self, content: bytes, comparable: bool) -> MaskedAnswer | None:
        self._read_key()
        if not self._keys:
            raise MaskError(
                f"{self.name} has not met the other participants of study {self.manifest.study!r} yet"
            )
        digest = hash_content(content)
        if not comparable:
            self._store.check_participants(digest, self._participants, self.manifest.names)
        return self._store.find_answer(self._study, digest, self._label(content))

    def _within_ring(self, vector: Ring) -> Ring:
        if vector.dtype != np.uint64 or vector.ndim != 1:
            raise MaskError(
                f"a vector to be masked must be one row of uint64; got {vector.ndim}-d {vector.dtype}"
            )
        numbers, largest = vector.view(np.int64), self.manifest.largest
        if vector.size and not -largest <= int(numbers.min()) <= int(numbers.max()) <= largest:
            raise MaskError(
                f"a number of {self.name} is larger than study {self.manifest.study!r} allows ({largest} in "
                "the ring), so that the sum could wrap round; use fewer fixed-point bits or smaller numbers"
            )
        return vector

    def _message(self, answer: MaskedAnswer) -> MaskedVector:
        seed_hash, digest = self._hashes(answer)
        commitment = commit(self.name, digest, self._pair_keys(answer.label))
        return MaskedVector(answer.label, answer.vector, seed_hash, commitment)

    def _hashes(self, answer: MaskedAnswer) -> tuple[bytes, bytes]:
        seed_hash = hash_seed(answer.label, self.name, answer.seed)
        return seed_hash, hash_vector(answer.label, self.name, seed_hash, answer.vector)

    def _pair_keys(self, label: bytes) -> dict[str, PairKey]:
        latest, pairs = self._pairs
        if latest != label:
            pairs = {
                peer: derive_pair_key(secret, self._study, label, self.name, peer)
                for peer, secret in self._shared.items()
            }
            self._pairs = (label, pairs)
        return pairs

    def _check_commitments(self, answer: MaskedAnswer, commitments: list[Commitment]) -> bytes:
        """The hash of what all participants committed to: MaskError unless all are there and genuine."""
        names = self.manifest.names
        by_name = {commitment.name: commitment for commitment in commitments}
        absent = [name for name in names if name not in by_name]
        if absent:
            raise MaskError(
                f"{self.name} reveals nothing: no answer of {' and '.join(absent)} is shown; wait, or stop"
            )
        if len(commitments) != len(names):
            raise MaskError(
                f"{self.name} reveals nothing: more answers are shown than there are participants"
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
        return hash_transcript(answer.label, [by_name[name] for name in names])
