"""The public grid of numbers and days (docs/methods.md, section 2.2).

It is the same for everybody, so that no hospital has to tell a range: zero, both signs, every decade from 1e-6 to 1e9,
and three significant digits in each. Days lie between the first and the middle of every month from 1900 to 2099; their
decades are years. A question names cells of it instead of sending their edges.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from datetime import date
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError

LOWEST, HIGHEST = -6, 9
DECADES = tuple(
    sorted(
        [0.0, *(sign * float(f"1e{power}") for power in range(LOWEST, HIGHEST + 1) for sign in (-1.0, 1.0))]
    )
)
YEARS = tuple(float(date(year, 1, 1).toordinal()) for year in range(1900, 2100))
DAYS = tuple(
    float(date(year, month, day).toordinal())
    for year in range(1900, 2100)
    for month in range(1, 13)
    for day in (1, 16)
)
# Years that are split into half months. Of decades as many are split as there are digits in a step.
MOST_YEARS, LARGEST_STEP = 30, 100


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Cells of the grid: between the decades (or years) of `first` and `last`, of which those in `split` are divided.

    A cell has the place of the decade at its end. Decades are divided at every so many of the numbers of three digits
    (`step`), years at half months.
    """

    first: int
    last: int
    split: tuple[int, ...] = ()
    step: int = 1

    def check(self, *, is_date: bool) -> None:
        """MessageError unless these are cells of the grid, and not too many."""
        coarse = YEARS if is_date else DECADES
        within = 0 <= self.first < self.last <= len(coarse)
        divisible = all(0 < place < len(coarse) for place in self.split) and (
            is_date or all(coarse[place - 1] and coarse[place] for place in self.split)
        )
        most = MOST_YEARS if is_date else self.step
        if not (within and divisible and len(self.split) <= most and 1 <= self.step <= LARGEST_STEP):
            raise MessageError("a question names cells that the public grid does not have")

    def find_edges(self, *, is_date: bool) -> tuple[float, ...]:
        """The edges of its cells, in order."""
        return _find_edges(self, is_date)


@lru_cache(maxsize=1024)
def _find_edges(grid: Grid, is_date: bool) -> tuple[float, ...]:
    coarse = YEARS if is_date else DECADES
    edges = set(coarse[grid.first : grid.last])
    for place in grid.split:
        low, high = coarse[place - 1 : place + 1]
        edges.update(_find_half_months(low, high) if is_date else _find_digits(low, high, grid.step))
    return tuple(sorted(edges))


def _find_digits(low: float, high: float, step: int = 1) -> tuple[float, ...]:
    """The numbers of three digits between two powers of ten, every so many of them."""
    sign, power = (1, round(math.log10(low))) if low > 0 else (-1, round(math.log10(-high)))
    return tuple(sign * float(f"{digits}e{power - 2}") for digits in range(100, 1000, step))


def _find_half_months(low: float, high: float) -> tuple[float, ...]:
    return DAYS[bisect_left(DAYS, low) : bisect_left(DAYS, high)]


@lru_cache(maxsize=2)
def list_edges(*, is_date: bool) -> NDArray[np.float64]:
    """All edges of the grid, in order."""
    if is_date:
        return np.array(DAYS)
    tiny = DECADES.index(0.0)
    parts = [place for place in range(1, len(DECADES)) if place not in (tiny, tiny + 1)]
    digits = [_find_digits(DECADES[place - 1], DECADES[place]) for place in parts]
    return np.array(sorted({*DECADES, *(edge for part in digits for edge in part)}))


def on_grid(edge: float) -> bool:
    """Whether a study that states no cutoffs may cut here: a number of three significant digits, or a day."""
    return math.isfinite(edge) and (float(f"{edge:.3g}") == edge or edge in _days())


@lru_cache(maxsize=1)
def _days() -> frozenset[float]:
    return frozenset(DAYS)


def are_days(edges: Sequence[float]) -> bool:
    """Whether a private study that found these cutoffs cuts dates by them: no round number is such a day."""
    return bool(edges) and _days().issuperset(edges)


@lru_cache(maxsize=2048)
def all_on_grid(edges: tuple[float, ...]) -> bool:
    """Whether it may cut at each of these."""
    return all(map(on_grid, edges))
