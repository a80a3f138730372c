"""A council of sites in one process, with the house as a plain relay: what the mask tests play with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Manifest, Participant, compose
from concilium.privacy.mask_store import MemoryMaskStore
from concilium.privacy.masks import Commitment, Masked, Seed, address
from concilium.privacy.opening import MaskStore
from concilium.privacy.seat import Seat
from concilium.privacy.study_keys import StudyKey, verify_study_keys
from concilium.privacy.unmasking import MaskedRound

NAMES = ("ashford", "brook", "cedar", "dale", "elm", "fern", "glen", "heath", "isle", "juniper")
Vector = NDArray[np.uint64]
S = TypeVar("S", bound=msgspec.Struct)


def words(*numbers: int) -> Vector:
    """Signed numbers as words of the ring."""
    return np.array(numbers, dtype=np.int64).view(np.uint64)


@dataclass
class Hospitals:
    """Identities that have compared fingerprints, and what each keeps on disk."""

    names: tuple[str, ...]
    consenting: frozenset[str] = frozenset()
    identities: dict[str, Identity] = field(default_factory=dict)
    stores: dict[str, MaskStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.identities.setdefault(name, Identity.create())
            self.stores.setdefault(name, MemoryMaskStore())

    @property
    def peers(self) -> dict[str, str]:
        return {name: identity.fingerprint for name, identity in self.identities.items()}

    def participant(self, name: str) -> Participant:
        return Participant(name, self.identities[name].public, name in self.consenting)

    def compose(self, names: Sequence[str] | None = None, colluders: int = 1) -> Manifest:
        chosen = self.names if names is None else names
        return compose("burn mortality", [self.participant(name) for name in chosen], colluders=colluders)

    def sit(self, manifest: Manifest, name: str) -> Seat:
        consents = name in self.consenting
        identity, store = self.identities[name], self.stores[name]
        return Seat(manifest, name, identity, self.peers, store, reveal_on_dropout=consents)

    def gather(self, manifest: Manifest | None = None) -> Council:
        """Everyone takes a seat and meets everyone."""
        agreed = self.compose() if manifest is None else manifest
        seats = {name: self.sit(agreed, name) for name in agreed.names}
        keys = [seat.key for seat in seats.values()]
        for seat in seats.values():
            seat.meet(keys)
        return Council(agreed, seats, keys)


@dataclass
class Council:
    manifest: Manifest
    seats: dict[str, Seat]
    keys: list[StudyKey]

    def mask(
        self, content: bytes, vectors: Mapping[str, Vector], attempt: int = 1, without: tuple[str, ...] = ()
    ) -> dict[str, Masked]:
        return {
            name: seat.mask(content, attempt, vectors[name], without=without)
            for name, seat in self.seats.items()
            if name not in without
        }

    def reveal(
        self,
        content: bytes,
        commitments: Sequence[Commitment],
        attempt: int = 1,
        without: tuple[str, ...] = (),
    ) -> list[Seed]:
        return [
            seat.reveal(content, attempt, address(commitments, name), charge_on_disk=True, without=without)
            for name, seat in self.seats.items()
            if name not in without
        ]

    def round(self, content: bytes, attempt: int = 1, without: tuple[str, ...] = ()) -> MaskedRound:
        return MaskedRound(
            self.manifest, verify_study_keys(self.manifest, self.keys), content, attempt, without
        )

    def add_up(
        self, content: bytes, vectors: Mapping[str, Vector], attempt: int = 1, without: tuple[str, ...] = ()
    ) -> Vector:
        """An honest round from question to sum."""
        asked = self.round(content, attempt, without)
        answers = self.mask(content, vectors, attempt, without)
        commitments = asked.commitments(answers.values())
        return asked.unmask(answers.values(), self.reveal(content, commitments, attempt, without))


def hospitals(count: int = 4, consenting: Sequence[str] = ()) -> Hospitals:
    return Hospitals(NAMES[:count], frozenset(consenting))


def some_vectors(names: Sequence[str], count: int = 3) -> dict[str, Vector]:
    return {name: words(*range(10 * place, 10 * place + count)) for place, name in enumerate(names, 1)}


def changed(struct: S, **fields: object) -> S:
    """A copy with some fields changed: how the house lies."""
    return msgspec.structs.replace(struct, **fields)
