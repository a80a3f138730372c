"""Sums of reals at nearly the precision of a float, whatever their size: each travels as two whole numbers.

A sum of squares over a million patients and a sum of residuals near zero stand in one answer; a regression that equals
the pooled one to eight digits needs both. The first word counts steps of 2^12, the second the rest in steps of 2^-40.
Sums over sites add up word by word, so that they are the same to the last bit flat, through regions and under masks.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, Summed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COARSE, PLACES = 12, 40
LARGEST = 1 << (COARSE + PLACES - 1)
BOUND = 2.0**60


@contextmanager
def hold_overflow() -> Iterator[None]:
    """For what ends in `write_wide`, which holds at the bound what overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield


def write_wide(reals: NDArray[np.float64] | Sequence[float]) -> NDArray[np.int64]:
    """Reals as pairs of words, [2, number]; what is beyond the bound, or no number, is held at it."""
    held = np.clip(np.asarray(reals, dtype=np.float64), -BOUND, BOUND)
    held[np.isnan(held)] = BOUND
    coarse = np.rint(np.ldexp(held, -COARSE))
    fine = np.rint(np.ldexp(held - np.ldexp(coarse, COARSE), PLACES))
    return np.stack([coarse, fine]).astype(np.int64)


def read_wide(words: NDArray[np.int64]) -> NDArray[np.float64]:
    """What pairs of words, added up over sites, stand for; HouseError where a sum was held at the bound."""
    coarse, fine = words.astype(np.float64)
    reals: NDArray[np.float64] = np.ldexp(coarse, COARSE) + np.ldexp(fine, -PLACES)
    if np.any(np.abs(reals) >= BOUND / 2):
        raise HouseError(
            "a sum over patients is too large to be sent exactly: a value is enormous, or infinite, somewhere; measure "
            "it in a larger unit, or have the hospital's map take such values for missing"
        )
    return reals


def refuse_floored(cohort: Cohort) -> None:
    """MessageError where a site leaves small counts out: sums over its patients would give them away."""
    if cohort.floored:
        raise MessageError(
            "this site leaves small counts out of what it tells exactly, and sums of a regression cannot do that: ask "
            "masked"
        )


class WideSum(Summed, frozen=True, kw_only=True):
    """A question that is answered with reals in pairs of words."""

    releases: ClassVar[frozenset[str]] = PLAIN

    @property
    def count(self) -> int:
        """How many reals there are."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return (2, self.count)

    @property
    def binary_places(self) -> int:
        return PLACES

    @property
    def largest(self) -> int:
        return LARGEST
