"""A circle of sites in one process, with the house as a plain relay: what the mask tests play with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.ledger.mask_store import SqliteMaskStore
from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Manifest, Participant, compose
from concilium.privacy.masks import MaskedRound, MaskedVector, Seed, Shown, _Commitment
from concilium.privacy.study_keys import HashTree, Roll, StudyKey, hash_leaf
from concilium.protocol.membership import Membership

NAMES = ("ashford", "brook", "cedar", "dale", "elm", "fern", "glen", "heath", "isle", "juniper")
Vector = NDArray[np.uint64]
S = TypeVar("S", bound=msgspec.Struct)


def words(*numbers: int) -> Vector:
    """Signed numbers as words of the ring."""
    return np.array(numbers, dtype=np.int64).view(np.uint64)


def new_store() -> SqliteMaskStore:
    """A store in memory."""
    return SqliteMaskStore(sqlite3.connect(":memory:"))


@dataclass
class Hospitals:
    """Identities that have compared fingerprints, and what each keeps on disk."""

    names: tuple[str, ...]
    identities: dict[str, Identity] = field(default_factory=dict)
    stores: dict[str, SqliteMaskStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.identities.setdefault(name, Identity.create())
            self.stores.setdefault(name, new_store())

    @property
    def peers(self) -> dict[str, str]:
        return {name: identity.fingerprint for name, identity in self.identities.items()}

    def participant(self, name: str) -> Participant:
        return Participant(name, self.identities[name].public)

    def compose(self, names: Sequence[str] | None = None, colluders: int = 1) -> Manifest:
        chosen = self.names if names is None else names
        return compose("burn mortality", [self.participant(name) for name in chosen], colluders=colluders)

    def join(self, manifest: Manifest, name: str) -> Membership:
        return Membership(manifest, name, self.identities[name], self.peers, self.stores[name])

    def gather(self, manifest: Manifest | None = None) -> Circle:
        """Everyone joins and meets everyone."""
        agreed = self.compose() if manifest is None else manifest
        members = {name: self.join(agreed, name) for name in agreed.names}
        keys = [member.key for member in members.values()]
        for member in members.values():
            meet(member, keys)
        return Circle(agreed, members, keys)


@dataclass
class Circle:
    manifest: Manifest
    members: dict[str, Membership]
    keys: list[StudyKey]

    def mask(self, content: bytes, vectors: Mapping[str, Vector]) -> dict[str, MaskedVector]:
        return {name: member.mask(content, vectors[name]) for name, member in self.members.items()}

    def reveal(self, content: bytes, commitments: Sequence[_Commitment]) -> list[Seed]:
        return [
            member.reveal(content, show(member, commitments), charge_on_disk=True)
            for member in self.members.values()
        ]

    def round(self, content: bytes) -> MaskedRound:
        return MaskedRound(
            self.manifest, roll_for(next(iter(self.members.values())), self.keys).root, content
        )

    def add_up(self, content: bytes, vectors: Mapping[str, Vector]) -> Vector:
        """An honest round from question to sum."""
        asked = self.round(content)
        answers = self.mask(content, vectors)
        commitments = asked.commitments(answers.values())
        return asked.unmask(answers.values(), self.reveal(content, commitments))


def roll_for(member: Membership, keys: Iterable[StudyKey]) -> Roll:
    """What a site is shown of these keys, whether or not they are those of all participants."""
    keys, graph = list(keys), member.manifest.graph
    leaves = {key.name: hash_leaf(key.name, key.key) for key in keys}
    tree = HashTree([leaves.get(name, bytes(32)) for name in graph.order])
    near = (member.name, *member.neighbours)
    shown = [key for key in keys if key.name in near or key.name not in graph.places]
    return Roll(tuple(shown), tree.root, tuple(tree.prove(graph.locate(near))))


def meet(member: Membership, keys: Iterable[StudyKey]) -> None:
    member.meet(roll_for(member, keys))


def show(member: Membership, commitments: Iterable[_Commitment]) -> Shown:
    """What a site is shown of these commitments, whether or not they are those of all participants."""
    commitments, graph = list(commitments), member.manifest.graph
    leaves = {one.name: hash_leaf(one.name, one.digest) for one in commitments}
    tree = HashTree([leaves.get(name, bytes(32)) for name in graph.order])
    near = (member.name, *member.neighbours)
    shown = [
        one.for_reader(member.name) for one in commitments if one.name in near or one.name not in graph.places
    ]
    return Shown(tuple(shown), tree.root, tuple(tree.prove(graph.locate(near))))


def hospitals(count: int = 4) -> Hospitals:
    return Hospitals(NAMES[:count])


def some_vectors(names: Sequence[str], count: int = 3) -> dict[str, Vector]:
    return {name: words(*range(10 * place, 10 * place + count)) for place, name in enumerate(names, 1)}


def changed(struct: S, **fields: object) -> S:
    """A copy with some fields changed: how the house lies."""
    return msgspec.structs.replace(struct, **fields)
