"""The house's side of a masked round: check what every site sent, take the self-masks off, read the one
sum.

Who is protected: nobody here; the house holds no secret, and this file only makes sure that a wrong sum is
never taken for a right one and that the site at fault is named. At what price: one hash per vector and one
stream per site. Assumption: a site that enters a false number cannot be told from an honest one. Reference:
Bonawitz et al. 2017, CCS, figure 4, the server's rounds 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from concilium.errors import MaskError
from concilium.privacy.hash_tree import HashTree, hash_leaf
from concilium.privacy.manifest import Manifest
from concilium.privacy.masks import (
    SEED_BYTES,
    WIRE,
    Commitment,
    MaskedVector,
    Ring,
    Seed,
    Shown,
    hash_seed,
    hash_vector,
    make_label,
    stream,
)

M = TypeVar("M")


@dataclass(frozen=True)
class MaskedRound:
    """One question to all participants, as the house holds it together.

    `roll` is the root of the list of all keys. `commitments` first, `show` to every site its part of them; `unmask`
    once all seeds are there.
    """

    manifest: Manifest
    roll: bytes
    content: bytes
    _checked: dict[str, MaskedVector] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def label(self) -> bytes:
        return make_label(self.manifest.study_id, self.content, self.roll)

    def commitments(self, answers: Iterable[MaskedVector]) -> tuple[Commitment, ...]:
        """What all have committed to: MaskError names a site whose answer is missing or misplaced."""
        return tuple(answer.commitment for answer in self._check_answers(answers).values())

    def show(self, commitments: Iterable[Commitment]) -> dict[str, Shown]:
        """What each site needs to be shown of them: its neighbours' hashes with the tags made for it alone."""
        graph, by_name = self.manifest.graph, {one.name: one for one in commitments}
        tree = HashTree([hash_leaf(name, by_name[name].digest) for name in graph.order])
        shown = {}
        for reader in self.manifest.names:
            near = (reader, *graph.neighbours(reader))
            parts = [by_name[name].for_reader(reader) for name in near]
            shown[reader] = Shown(tuple(parts), tree.root, tuple(tree.prove(graph.locate(near))))
        return shown

    def unmask(self, answers: Iterable[MaskedVector], seeds: Iterable[Seed]) -> Ring:
        """The sum over all participants modulo 2^64: MaskError names the site with which it cannot be had."""
        by_name = self._check_answers(answers)
        seeds_by_name = self._one_of_each({seed.name: seed for seed in seeds}, "revealed its seed")
        label = self.label
        total = np.zeros(len(next(iter(by_name.values())).vector) // WIRE.itemsize, dtype=np.uint64)
        for name, answer in by_name.items():
            seed = seeds_by_name[name]
            genuine = len(seed.seed) == SEED_BYTES and hash_seed(label, name, seed.seed) == answer.seed_hash
            if seed.label != label or not genuine:
                raise MaskError(
                    f"the seed of {name} does not belong to the answer it sent; ask {name} to reveal again"
                )
            total += np.frombuffer(answer.vector, dtype=WIRE)
            total -= stream(seed.seed, len(total))
        return total

    def _check_answers(self, answers: Iterable[MaskedVector]) -> dict[str, MaskedVector]:
        by_name = self._one_of_each({answer.commitment.name: answer for answer in answers}, "answered")
        label = self.label
        lengths: dict[int, str] = {}
        for name, answer in by_name.items():
            if answer.label != label:
                raise MaskError(f"{name} answered another question or set of participants than it was asked")
            if self._checked.get(name) is not answer:  # looked at when it came, and now again to be added up
                if hash_vector(label, name, answer.seed_hash, answer.vector) != answer.commitment.digest:
                    raise MaskError(
                        f"the answer of {name} does not match its hash; it was damaged on the way: ask again"
                    )
                self._checked[name] = answer
            lengths.setdefault(len(answer.vector), name)
        if len(lengths) > 1 or next(iter(lengths)) % WIRE.itemsize:
            text = " and ".join(f"{size // WIRE.itemsize} numbers ({name})" for size, name in lengths.items())
            raise MaskError(f"the answers to this question differ in length: {text}; they cannot be added up")
        return by_name

    def _one_of_each(self, messages: Mapping[str, M], what: str) -> dict[str, M]:
        names = self.manifest.names
        absent = [name for name in names if name not in messages]
        if absent:
            raise MaskError(
                f"{', '.join(absent)} has not {what}: wait until it is back and ask it again, or stop"
            )
        strangers = [name for name in messages if name not in self.manifest.identities]
        if strangers:
            raise MaskError(f"{strangers[0][:100]!r} has {what} but takes no part in this round")
        return {name: messages[name] for name in names}
