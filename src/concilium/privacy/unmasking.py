"""The house's side of a masked round: check what every site sent, take the self-masks off, read the one
sum.

Who is protected: nobody here; the house holds no secret, and this file only makes sure that a wrong sum is
never taken for a right one and that the site at fault is named. At what price: one hash per vector and one
stream per site. Assumption: a site that enters a false number cannot be told from an honest one. Reference:
Bonawitz et al. 2017, CCS, figure 4, the server's rounds 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from concilium.errors import MaskError
from concilium.privacy.manifest import Manifest, without_dropouts
from concilium.privacy.masks import (
    SEED_BYTES,
    WIRE,
    Commitment,
    Masked,
    Ring,
    Seed,
    hash_seed,
    hash_vector,
    make_label,
    stream,
)

M = TypeVar("M")


@dataclass(frozen=True)
class MaskedRound:
    """One attempt of one question, as the house holds it together.

    `keys` come from `verify_study_keys`. `commitments` first, to be shown to every site; `unmask` once all
    seeds are there. After any site has revealed its seed the attempt cannot be replaced by another one.
    """

    manifest: Manifest
    keys: Mapping[str, bytes]
    content: bytes
    attempt: int = 1
    without: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(participant.name for participant in without_dropouts(self.manifest, self.without))

    @property
    def label(self) -> bytes:
        keys = {name: self.keys[name] for name in self.names}
        return make_label(self.manifest.study_id, self.content, keys, self.attempt)

    def commitments(self, answers: Iterable[Masked]) -> tuple[Commitment, ...]:
        """What to show to every site (`masks.address` leaves out what is for others): MaskError names a site
        whose answer is missing or misplaced."""
        return tuple(answer.commitment for answer in self._check_answers(answers).values())

    def unmask(self, answers: Iterable[Masked], seeds: Iterable[Seed]) -> Ring:
        """The sum over all participants modulo 2^64: MaskError names the site with which it cannot be had."""
        checked = self._check_answers(answers)
        revealed = self._one_of_each({seed.name: seed for seed in seeds}, "revealed its seed")
        label = self.label
        total = np.zeros(len(next(iter(checked.values())).vector) // WIRE.itemsize, dtype=np.uint64)
        for name, answer in checked.items():
            seed = revealed[name]
            genuine = len(seed.seed) == SEED_BYTES and hash_seed(label, name, seed.seed) == answer.seed_hash
            if seed.label != label or not genuine:
                raise MaskError(
                    f"the seed of {name} does not belong to the answer it sent; ask {name} to reveal again"
                )
            total += np.frombuffer(answer.vector, dtype=WIRE)
            total -= stream(seed.seed, len(total))
        return total

    def _check_answers(self, answers: Iterable[Masked]) -> dict[str, Masked]:
        checked = self._one_of_each({answer.commitment.name: answer for answer in answers}, "answered")
        label = self.label
        lengths: dict[int, str] = {}
        for name, answer in checked.items():
            if answer.label != label:
                raise MaskError(
                    f"{name} answered another question, attempt or set of participants than it was asked"
                )
            if hash_vector(label, name, answer.seed_hash, answer.vector) != answer.commitment.digest:
                raise MaskError(
                    f"the answer of {name} does not match its hash; it was damaged on the way: ask again"
                )
            lengths.setdefault(len(answer.vector), name)
        if len(lengths) > 1 or next(iter(lengths)) % WIRE.itemsize:
            said = " and ".join(f"{size // WIRE.itemsize} numbers ({name})" for size, name in lengths.items())
            raise MaskError(f"the answers to this question differ in length: {said}; they cannot be added up")
        return checked

    def _one_of_each(self, found: Mapping[str, M], what: str) -> dict[str, M]:
        names = self.names
        missing = [name for name in names if name not in found]
        if missing:
            raise MaskError(
                f"{', '.join(missing)} has not {what}: wait until it is back and ask it again, or stop"
            )
        stranger = [name for name in found if name not in names]
        if stranger:
            raise MaskError(f"{stranger[0][:100]!r} has {what} but takes no part in this round")
        return {name: found[name] for name in names}
