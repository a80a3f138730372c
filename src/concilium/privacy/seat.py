"""A site's seat in one masked study: what it checks before it joins, answers, and takes its self-mask off.

Who is protected: this site's answers, from the house and at most t colluding sites. At what price: two
exchanges per question, one stored vector per question, and that a lost participant halts the study.
Assumptions: those of masks.py; the caller sends nothing before the transaction it called from is on disk;
and `content` is everything that changes what a site computes, the same bytes for every site (a house that
could tell each site something else could have all but one answer nothing). Reference: Bonawitz et al. 2017,
CCS, section 6, figure 4; METHODS.md, section 0, "Masks".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from concilium.errors import MaskError
from concilium.privacy import randomness
from concilium.privacy.identity import Identity, statement
from concilium.privacy.manifest import KEY_BYTES, Manifest, accept, without_dropouts
from concilium.privacy.masks import (
    SEED_BYTES,
    WIRE,
    Commitment,
    Masked,
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
from concilium.privacy.opening import Attempt, MaskStore, check_participants, find_attempt, open_attempt
from concilium.privacy.study_keys import StudyKey, agree, sign_study_key, verify_study_keys

MAX_ATTEMPT = 2**31


@dataclass(frozen=True)
class _Round:
    """One attempt of one question among certain participants."""

    content: bytes
    number: int
    label: bytes
    participants: bytes
    names: tuple[str, ...]


class Seat:
    """`Seat(manifest, "cleveland", identity, peers, store)`: joins the study, or MaskError says why not.

    Then: show `key` to the house, `meet` the others' keys, and for each question `mask`, later `reveal`; at
    the end `forget`. A site that was restarted takes the same seat again and goes on where it was.
    """

    def __init__(
        self,
        manifest: Manifest,
        name: str,
        identity: Identity,
        peers: Mapping[str, str],
        store: MaskStore,
        *,
        colluders: int = 1,
        reveal_on_dropout: bool = False,
    ) -> None:
        accept(
            manifest, name, identity.public, peers, colluders=colluders, reveal_on_dropout=reveal_on_dropout
        )
        self.manifest = manifest
        self.name = name
        self._store = store
        self._study = manifest.study_id
        self._private: X25519PrivateKey | None = self._take_key()
        self.key: StudyKey = sign_study_key(identity, self._study, name, self._private)
        self._keys: dict[str, bytes] = {}
        self._shared: dict[str, bytes] = {}
        self._pairs: tuple[bytes, dict[str, PairKey]] = (b"", {})

    def meet(self, keys: Iterable[StudyKey]) -> None:
        """Check the keys of all participants and agree on a secret with each."""
        private = self._require_key()
        verified = verify_study_keys(self.manifest, keys)
        if verified[self.name] != self.key.key:
            raise MaskError(
                f"the key shown for {self.name} in study {self.manifest.study!r} is not the one it uses; "
                "gather the keys of all participants anew"
            )
        self._shared = {
            name: agree(private, name, key) for name, key in verified.items() if name != self.name
        }
        self._keys = verified

    def recall(
        self, content: bytes, attempt: int, *, without: Iterable[str] = (), comparable: bool = False
    ) -> Masked | None:
        """The stored answer to this attempt, or None where it is yet to be computed; MaskError where it
        must not be. Asked first, it saves computing statistics and drawing noise that would not be used.

        `comparable` answers (private: noisy and charged each time) may be opened for several sets of participants.
        """
        asked = self._round(content, attempt, without)
        with self._store.transaction():
            stored = self._find(asked, comparable)
        return None if stored is None else self._message(asked, stored)

    def measure(self, content: bytes, attempt: int, *, comparable: bool = False) -> int | None:
        """How many numbers the stored answer to this attempt holds; None where there is none."""
        asked = self._round(content, attempt, ())
        with self._store.transaction():
            stored = self._find(asked, comparable)
        return None if stored is None else len(stored.vector) // WIRE.itemsize

    def mask(
        self,
        content: bytes,
        attempt: int,
        vector: Ring,
        *,
        without: Iterable[str] = (),
        comparable: bool = False,
    ) -> Masked:
        """The answer under its masks, stored before it is returned; for an attempt that was answered
        before, the stored answer, whatever `vector` is now.

        `without` names lost participants that agreed beforehand that the others go on. A number beyond the
        manifest's `largest` is refused; under `private` the caller clips first, as a refusal would tell.
        """
        asked = self._round(content, attempt, without)
        with self._store.transaction():
            stored = self._find(asked, comparable)
            if stored is None:
                stored = self._answer(asked, self._within_ring(vector))
                self._store.keep(stored)
        return self._message(asked, stored)

    def reveal(
        self,
        content: bytes,
        attempt: int,
        commitments: Iterable[Commitment],
        *,
        charge_on_disk: bool,
        without: Iterable[str] = (),
        comparable: bool = False,
    ) -> Seed:
        """The seed of this site's self-mask, once all participants have committed to their vectors.

        `charge_on_disk` is the caller's word that the charge is in the ledger, or is written by the very
        transaction this is called in. Asked again for the same commitments it gives the same seed.
        """
        if not charge_on_disk:
            raise MaskError(f"{self.name} reveals nothing before the charge for it is on disk")
        asked = self._round(content, attempt, without)
        with self._store.transaction():
            stored = self._find(asked, comparable)
            if stored is None:
                raise MaskError(
                    f"{self.name} has not answered attempt {attempt} of this question; ask that first"
                )
            transcript = self._check_commitments(asked, stored, list(commitments))
            return Seed(self.name, asked.label, open_attempt(self._store, stored, transcript))

    def forget(self) -> None:
        """End the study here: its key, seeds and vectors are deleted, and it cannot be joined again."""
        with self._store.transaction():
            self._store.end(self._study)
        self._private = None
        self._keys, self._shared, self._pairs = {}, {}, (b"", {})

    def _take_key(self) -> X25519PrivateKey:
        with self._store.transaction():
            if self._store.has_ended(self._study):
                raise self._ended()
            stored = self._store.study_key(self._study)
            if stored is not None:
                return X25519PrivateKey.from_private_bytes(stored)
            private = X25519PrivateKey.from_private_bytes(randomness.draw_bytes(KEY_BYTES))
            self._store.enroll(self._study, private.private_bytes_raw())
            return private

    def _require_key(self) -> X25519PrivateKey:
        if self._private is None:
            raise self._ended()
        return self._private

    def _ended(self) -> MaskError:
        return MaskError(
            f"study {self.manifest.study!r} has ended at {self.name} and its key is deleted; start a new one"
        )

    def _round(self, content: bytes, attempt: int, without: Iterable[str]) -> _Round:
        self._require_key()
        if not self._keys:
            raise MaskError(
                f"{self.name} has not met the other participants of study {self.manifest.study!r} yet"
            )
        if not 1 <= attempt <= MAX_ATTEMPT:
            raise MaskError(f"an attempt's number must be between 1 and {MAX_ATTEMPT}; got {attempt}")
        staying = without_dropouts(self.manifest, without)
        names = tuple(participant.name for participant in staying)
        if self.name not in names:
            raise MaskError(f"{self.name} cannot answer a question that goes on without it")
        identities = [part for site in staying for part in (site.name.encode(), site.identity)]
        return _Round(
            content=hashlib.sha256(statement("concilium/content@1", content)).digest(),
            number=attempt,
            label=make_label(self._study, content, {name: self._keys[name] for name in names}, attempt),
            participants=hashlib.sha256(statement("concilium/participants@1", *identities)).digest(),
            names=names,
        )

    def _find(self, asked: _Round, comparable: bool) -> Attempt | None:
        if self._store.has_ended(self._study):
            raise self._ended()
        if not comparable:
            check_participants(self._store, asked.content, asked.participants, asked.names)
        return find_attempt(self._store, self._study, asked.content, asked.number, asked.label)

    def _within_ring(self, vector: Ring) -> Ring:
        if vector.dtype != np.uint64 or vector.ndim != 1:
            raise MaskError(
                f"a vector to be masked must be one row of uint64; got {vector.ndim}-d {vector.dtype}"
            )
        signed, largest = vector.view(np.int64), self.manifest.largest
        if vector.size and not -largest <= int(signed.min()) <= int(signed.max()) <= largest:
            raise MaskError(
                f"a number of {self.name} is larger than study {self.manifest.study!r} allows ({largest} in "
                "the ring), so that the sum could wrap round; use fewer fixed-point bits or smaller numbers"
            )
        return vector

    def _answer(self, asked: _Round, vector: Ring) -> Attempt:
        seed = randomness.draw_bytes(SEED_BYTES)
        return Attempt(
            study=self._study,
            content=asked.content,
            number=asked.number,
            label=asked.label,
            participants=asked.participants,
            names=asked.names,
            seed=seed,
            vector=add_masks(self.name, vector, self._pair_keys(asked), seed),
        )

    def _message(self, asked: _Round, stored: Attempt) -> Masked:
        seed_hash, digest = self._hashes(stored)
        return Masked(
            asked.label, stored.vector, seed_hash, commit(self.name, digest, self._pair_keys(asked))
        )

    def _hashes(self, stored: Attempt) -> tuple[bytes, bytes]:
        seed_hash = hash_seed(stored.label, self.name, stored.seed)
        return seed_hash, hash_vector(stored.label, self.name, seed_hash, stored.vector)

    def _pair_keys(self, asked: _Round) -> dict[str, PairKey]:
        label, pairs = self._pairs
        if label != asked.label:
            pairs = {
                peer: derive_pair_key(self._shared[peer], self._study, asked.label, self.name, peer)
                for peer in asked.names
                if peer != self.name
            }
            self._pairs = (asked.label, pairs)
        return pairs

    def _check_commitments(self, asked: _Round, stored: Attempt, commitments: list[Commitment]) -> bytes:
        """The hash of what all participants committed to: MaskError unless all are there and genuine."""
        shown = {commitment.name: commitment for commitment in commitments}
        missing = [name for name in asked.names if name not in shown]
        if missing:
            raise MaskError(
                f"{self.name} reveals nothing: no answer of {' and '.join(missing)} is shown; wait, or stop"
            )
        if len(commitments) != len(asked.names):
            raise MaskError(
                f"{self.name} reveals nothing: more answers are shown than there are participants"
            )
        if shown[self.name].digest != self._hashes(stored)[1]:
            raise MaskError(
                f"{self.name} reveals nothing: the answer shown as its own is not the one it sent"
            )
        for peer, key in self._pair_keys(asked).items():
            if not is_from(shown[peer], peer, self.name, key):
                raise MaskError(
                    f"{self.name} reveals nothing: what is shown as the answer of {peer} was not sent by it "
                    "for this question, attempt and set of participants"
                )
        return hash_transcript(asked.label, [shown[name] for name in asked.names])
