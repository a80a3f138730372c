"""Two limits of one variable in one sentence, such as `WBC >= 4 and WBC < 12`: estimated together.

Limits that are estimated one by one can be put together to an interval in which nothing lies (`WBC >= 10 and WBC <
10`), or to one in which everything does (`HR < 90 or HR >= 80`). Patients' pairs are counted as pairs instead, in
cells of which none is empty or trivial, and a pair is chosen among these cells.

docs/methods.md, section 6.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.temporal.formula import Always, Conjunction, Disjunction, Formula, Limit
from concilium.temporal.windows import HOLE, Window

UPPER, LOWER = ("<", "<="), (">", ">=")


@dataclass(frozen=True)
class PairBins:
    """Where an upper and a lower limit of one variable lie among public edges, both at once: a cell for each pair
    that can be fulfilled and can be broken, and one for all others. Of `and` the upper limit is the larger one, of
    `or` the smaller; `touching`: or both are one (`x >= 1 and x <= 1`)."""

    edges: tuple[float, ...]
    together: bool
    touching: bool = False

    holes: ClassVar[int] = 2

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The places of the upper and the lower edge, lower edges in order, for each of them the upper edges."""
        size = len(self.edges)
        return tuple(
            (upper, lower)
            for lower in range(size)
            for upper in (
                range(lower + (not self.touching), size) if self.together else range(lower + self.touching)
            )
        )

    def __len__(self) -> int:
        return len(self.pairs) + 1

    def place(self, values: Iterable[tuple[Any, Any]]) -> NDArray[np.intp]:
        """The cell of each pair (upper, lower)."""
        numbers = np.array([tuple(map(float, pair)) for pair in values], dtype=np.float64).reshape(-1, 2)
        bins = np.maximum(np.searchsorted(np.array(self.edges), numbers, side="right") - 1, 0)
        cells = np.full((len(self.edges), len(self.edges)), len(self.pairs), dtype=np.intp)
        for cell, (upper, lower) in enumerate(self.pairs):
            cells[upper, lower] = cell
        return cells[bins[:, 0], bins[:, 1]]

    def choose(self, place: int) -> tuple[Any, Any]:
        """The edges of a cell; of "another pair" nobody knows which, so both stay open."""
        if place == len(self.pairs):
            return HOLE, HOLE
        upper, lower = self.pairs[place]
        return self.edges[upper], self.edges[lower]

    def describe(self, place: int) -> str:
        """A cell in words."""
        if place == len(self.pairs):
            return "another pair of limits"
        upper, lower = self.choose(place)
        return f"{lower:g} and {upper:g}"

    def find_middle(
        self, counts: NDArray[np.int64], deviation: float, quantile: float, margin: float
    ) -> tuple[int, tuple[int, ...]]:
        """The cell that stands for all, and those that it could be at 95 %.

        The lower limit is the quantile of all lower limits, the upper one the quantile among the patients who have
        that lower limit; where noise hides these, among all. Candidates are the cells near it, by `margin` deviations
        of the noise. Where more have another pair than any of these together, no pair stands for them.
        """
        named = counts[: len(self.pairs)].astype(np.float64)
        if counts[-1] - named.sum() > margin * deviation * np.sqrt(len(counts)):
            return len(self.pairs), (len(self.pairs),)
        if not len(named):
            return 0, (0,)
        table = np.zeros((len(self.edges), len(self.edges)))
        uppers, lowers = (np.array(one) for one in zip(*self.pairs, strict=True))
        table[lowers, uppers] = named
        allowed = np.zeros(table.shape, dtype=np.bool_)
        allowed[lowers, uppers] = True
        lower = _find_quantile(table.sum(axis=1), quantile, np.asarray(allowed.any(axis=1)))
        row = np.where(allowed[lower], table[lower], 0.0)
        if row.sum() < 2 * deviation * np.sqrt(allowed[lower].sum()):
            row = np.where(allowed[lower], table.sum(axis=0), 0.0)
        upper = _find_quantile(row, quantile, allowed[lower])
        chosen = self.pairs.index((upper, lower))
        near = named >= named[chosen] - margin * np.sqrt(2) * deviation
        near[chosen] = True
        return chosen, tuple(np.flatnonzero(near).tolist())


def _find_quantile(counts: NDArray[np.float64], quantile: float, allowed: NDArray[np.bool_]) -> int:
    """The first allowed place up to which a share of all counts lies; counts are noisy and never clipped."""
    below = np.cumsum(counts)
    places = np.flatnonzero(allowed)
    reached = places[(1 - quantile) * below[places] >= quantile * (below[-1] - below[places])]
    return int(reached[0] if len(reached) else places[-1])


def find_partners(parts: Sequence[Formula]) -> Iterator[tuple[Formula, ...]]:
    """The parts of `and` or `or` in order, an upper and a lower limit of one variable that stand side by side as a
    pair."""
    left = list(parts)
    while left:
        taken = 2 if len(left) > 1 and _are_pair(left[0], left[1]) else 1
        yield tuple(left[:taken])
        del left[:taken]


def can_touch(upper: Limit, lower: Limit, together: bool) -> bool:
    """Whether the two may be about one number: `x >= 1 and x <= 1`, or `x < 1 or x > 1`."""
    return (upper.relation, lower.relation) == (("<=", ">=") if together else ("<", ">"))


def _are_pair(one: Formula, other: Formula) -> bool:
    return (
        isinstance(one, Limit)
        and isinstance(other, Limit)
        and one.variable == other.variable
        and one.relation in UPPER
        and other.relation in LOWER
    )


def is_vacuous(rule: Formula) -> bool:
    """Whether a part of the rule can never hold (`x >= 10 and x < 10`) or never fail (`x < 90 or x >= 80`).

    Limits of one moment are compared, and those of several G of one conjunction where their intervals overlap.
    """
    for part in rule.walk():
        if isinstance(part, Conjunction | Disjunction):
            limits = list(_list_limits(part))
            together = isinstance(part, Conjunction)
            if any(
                _clash(one, other, together)
                for one, first in limits
                for other, second in limits
                if one.variable == other.variable and _overlap(first, second)
            ):
                return True
    return False


def _list_limits(joined: Conjunction | Disjunction) -> Iterator[tuple[Limit, Window | None]]:
    """The limits that a conjunction asks for at once, or of which a disjunction asks for one, each with its
    interval."""
    for part in joined.parts:
        if isinstance(part, Limit):
            yield part, None
        elif isinstance(part, Always) and isinstance(joined, Conjunction):
            inner = part.inner.parts if isinstance(part.inner, Conjunction) else (part.inner,)
            yield from ((limit, part.window) for limit in inner if isinstance(limit, Limit))


def _overlap(one: Window | None, other: Window | None) -> bool:
    if one is None or other is None:
        return one is other
    first = [end for end in (one.low, one.high) if isinstance(end, int)]
    second = [end for end in (other.low, other.high) if isinstance(end, int)]
    if len(first) + len(second) < 4:
        return one == other
    return first[0] <= second[1] and second[0] <= first[1]


def _clash(upper: Limit, lower: Limit, together: bool) -> bool:
    """Whether two limits leave nothing between them (`together`), or nothing beside them."""
    if upper.relation not in UPPER or lower.relation not in LOWER:
        return False
    if not (isinstance(upper.number, float) and isinstance(lower.number, float)):
        return False
    if upper.number == lower.number:
        return not can_touch(upper, lower, together)
    return (upper.number < lower.number) == together
