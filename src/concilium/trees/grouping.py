"""Grouping of values: one branch for several values of an attribute (Quinlan, "C4.5", 1993, chapter 7).

The house merges values on the counts that it has already, so that grouping asks nothing and, under `private`, costs
nothing. It starts from one group a value and merges, again and again, the two groups whose merger gives the split of
best gain ratio, as long as the ratio does not fall (by more than 1e-9) and two groups are left; a group with fewer than
`min_leaf` patients is merged whatever that does to the ratio, until none is left or all values are one group, which is
no split. Mergers that differ by less than 1e-9 count as equal, and the first pair in the order of values is taken. Of
bins only neighbours are merged, so that a group stays a range; missing values may join any group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

TIE = 1e-9
ANYWHERE = -1  # the place in line of a value that may join any group


@dataclass(frozen=True)
class Grouped:
    """A node's table [cell, class] in which the first value of a group counts for all of it, and its others for none;
    `first` says for every cell which one counts for it."""

    table: NDArray[np.int64]
    first: NDArray[np.int64]


def ungrouped(table: NDArray[np.int64]) -> Grouped:
    """A table in which every value is a group of its own."""
    return Grouped(table, np.arange(len(table)))


def group_values(
    table: NDArray[np.int64], sizes: Sequence[int], lines: Sequence[bool], min_leaf: int = 1
) -> Grouped:
    """A table with its values grouped: cell 0 has the class counts, then come the values of each attribute; those of a
    line are bins in order, and then missing."""
    merged, first = np.maximum(table, 0), np.arange(len(table))
    start = 1
    for size, line in zip(sizes, lines, strict=True):
        cells = slice(start, start + size)
        # A value that nobody has is in no group: there is no telling where it belongs.
        present = np.flatnonzero(merged[cells].any(axis=1))
        if len(present) > 2 or (len(present) == 2 and min_leaf > 1):
            place = np.arange(len(present), dtype=np.int64)
            if line and present[-1] == size - 1:
                place[-1] = ANYWHERE
            leader = merge(merged[cells][present], place, line, min_leaf)
            first[start + present] = start + present[leader]
            counts = merged[cells][present]
            merged[cells] = 0
            np.add.at(merged, first[start + present], counts)
        start += size
    return Grouped(merged, first)


@numba.njit(nogil=True, cache=True)
def merge(
    counts: NDArray[np.int64], place: NDArray[np.int64], line: bool, min_leaf: int
) -> NDArray[np.int64]:
    """For each value of a table [value, class] the first value of its group.

    `place` are places in line: with `line` only groups that are next to each other are merged.
    """
    values = len(counts)
    leader = np.arange(values)
    sums = counts.copy()
    patients = counts.sum(axis=1)
    low, high = place.copy(), place.copy()
    total = patients.sum()
    # All of them times the number of patients: what a merger adds to the entropy, and takes from the split's own bits.
    entropy, width, before = 0.0, xlog2x(total), xlog2x(total)
    for value in range(values):
        entropy += xlog2x(patients[value])
        width -= xlog2x(patients[value])
    for class_ in range(counts.shape[1]):
        before -= xlog2x(sums[:, class_].sum())
        for value in range(values):
            entropy -= xlog2x(sums[value, class_])
    loss, bits = np.zeros((values, values)), np.zeros((values, values))
    for one in range(values):
        for other in range(one + 1, values):
            bits[one, other], loss[one, other] = price(sums, patients, one, other)
    groups = values
    while groups > 1:
        forced = False
        for one in range(values):
            forced |= leader[one] == one and patients[one] < min_leaf
        if groups == 2 and not forced:
            break
        best, first, second = -np.inf, -1, -1
        for again in range(2):  # the best ratio, and then the first pair that comes near it
            for one in range(values):
                if leader[one] != one:
                    continue
                for other in range(one + 1, values):
                    if leader[other] != other:
                        continue
                    if forced and patients[one] >= min_leaf and patients[other] >= min_leaf:
                        continue
                    if line and not (
                        low[one] == -1
                        or low[other] == -1
                        or high[one] + 1 == low[other]
                        or high[other] + 1 == low[one]
                    ):
                        continue
                    ratio = divide(before - entropy - loss[one, other], width - bits[one, other])
                    if again == 0:
                        best = max(best, ratio)
                    elif first == -1 and ratio >= best - TIE:
                        first, second = one, other
        if first == -1 or (not forced and best < divide(before - entropy, width) - TIE):
            break
        entropy += loss[first, second]
        width -= bits[first, second]
        sums[first] += sums[second]
        patients[first] += patients[second]
        if low[first] == -1:
            low[first], high[first] = low[second], high[second]
        elif low[second] != -1:
            low[first] = min(low[first], low[second])
            high[first] = max(high[first], high[second])
        for value in range(values):
            if leader[value] == second:
                leader[value] = first
        groups -= 1
        for other in range(values):
            if leader[other] == other and other != first:
                one, two = min(first, other), max(first, other)
                bits[one, two], loss[one, two] = price(sums, patients, one, two)
    return leader


@numba.njit(nogil=True, cache=True)
def price(sums: NDArray[np.int64], patients: NDArray[np.int64], one: int, other: int) -> tuple[float, float]:
    """By how much merging two groups lessens the bits of the split, and raises its entropy, times patients."""
    bits = xlog2x(patients[one] + patients[other]) - xlog2x(patients[one]) - xlog2x(patients[other])
    loss = bits
    for class_ in range(sums.shape[1]):
        a, b = sums[one, class_], sums[other, class_]
        loss -= xlog2x(a + b) - xlog2x(a) - xlog2x(b)
    return bits, loss


@numba.njit(nogil=True, cache=True)
def xlog2x(count: int) -> float:
    return count * np.log2(count) if count > 0 else 0.0


@numba.njit(nogil=True, cache=True)
def divide(gain: float, width: float) -> float:
    """The gain ratio; one group alone tells nothing."""
    return gain / width if width > 0.5 else -1.0
