"""Grouping of values: one branch for several values of an attribute (docs/methods.md, section 1.7; Quinlan 1993).

The house merges values on the counts that it has already, so that grouping asks nothing and, under `private`, costs
nothing. It starts from one group a value and merges, again and again, the two groups whose merger loses least of what
the split tells of the class, as long as the gain ratio does not fall and two groups are left. (C4.5 merges the pair of
best ratio, which ends more often in one rare value against all others.) A group with fewer than `min_leaf` patients is
merged whatever that does to the ratio, until none is left or all values are one group, which is no split. What differs
by less than 1e-9 bits a patient counts as equal, and the first pair in the order of values is taken. Of bins only
neighbours are merged, so that a group stays a range; missing values may join any group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.protocol.attributes import MISSING, Attribute

TIE = 1e-9
# Of the bits that it takes to name a question, how many it must gain: at the root all, so that a tree of chance alone
# is rare; below it half, which predicts best; and three quarters of those that name the sides of values, which chance
# alone gains half of.
WORTH, WORTH_AT_ROOT, WORTH_OF_VALUES = 0.5, 1.0, 0.75
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


def group_values(table: NDArray[np.int64], attributes: Sequence[Attribute], min_leaf: int = 1) -> Grouped:
    """Group the values of a table: cell 0 has the class counts, then come the cells of each attribute."""
    merged, first = np.maximum(table, 0), np.arange(len(table))
    start = 1
    for attribute in attributes:
        cells = start + np.array(attribute.in_branch_order, dtype=np.intp)
        # A value that nobody has is in no group: there is no telling where it belongs.
        present = cells[merged[cells].any(axis=1)]
        if len(present) > 2 or (len(present) == 2 and min_leaf > 1):
            place = np.arange(len(present), dtype=np.int64)
            if attribute.numeric and present[-1] == start + MISSING:
                place[-1] = ANYWHERE
            counts = merged[present]
            first[present] = present[_merge(counts, place, attribute.numeric, min_leaf)]
            merged[cells] = 0
            np.add.at(merged, first[present], counts)
        start += attribute.size
    return Grouped(merged, first)


@compiled()
def _merge(
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
    entropy, width, before = 0.0, _xlog2x(total), _xlog2x(total)
    for value in range(values):
        entropy += _xlog2x(patients[value])
        width -= _xlog2x(patients[value])
    for class_ in range(counts.shape[1]):
        before -= _xlog2x(sums[:, class_].sum())
        for value in range(values):
            entropy -= _xlog2x(sums[value, class_])
    loss, bits = np.zeros((values, values)), np.zeros((values, values))
    for one in range(values):
        for other in range(one + 1, values):
            bits[one, other], loss[one, other] = _price(sums, patients, one, other)
    groups = values
    while groups > 1:
        forced = False
        for one in range(values):
            forced |= leader[one] == one and patients[one] < min_leaf
        if groups == 2 and not forced:
            break
        first, second = _find_pair(
            loss, leader, patients, low, high, line, min_leaf if forced else 0, TIE * total
        )
        if first == -1:
            break
        after = _divide(before - entropy - loss[first, second], width - bits[first, second])
        if not forced and after < _divide(before - entropy, width) - TIE:
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
                bits[one, two], loss[one, two] = _price(sums, patients, one, two)
    return leader


@compiled()
def _find_pair(
    loss: NDArray[np.float64],
    leader: NDArray[np.int64],
    patients: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    line: bool,
    small: int,
    tie: float,
) -> tuple[int, int]:
    """The first two groups of least loss that may be merged, (-1, -1) if there are none; one has to have fewer than
    `small` patients, if that is above 0."""
    least = np.inf
    for near in (False, True):  # what is least, and then the first pair that comes near it
        for one in range(len(leader)):
            if leader[one] != one:
                continue
            for other in range(one + 1, len(leader)):
                if leader[other] != other or (small and min(patients[one], patients[other]) >= small):
                    continue
                apart = low[one] != -1 and low[other] != -1  # -1: may join any
                if line and apart and high[one] + 1 != low[other] and high[other] + 1 != low[one]:
                    continue
                if near and loss[one, other] <= least + tie:
                    return one, other
                least = min(least, loss[one, other])
    return -1, -1


@compiled()
def _price(sums: NDArray[np.int64], patients: NDArray[np.int64], one: int, other: int) -> tuple[float, float]:
    """By how much merging two groups lessens the bits of the split, and raises its entropy, times patients."""
    bits = _xlog2x(patients[one] + patients[other]) - _xlog2x(patients[one]) - _xlog2x(patients[other])
    loss = bits
    for class_ in range(sums.shape[1]):
        a, b = sums[one, class_], sums[other, class_]
        loss -= _xlog2x(a + b) - _xlog2x(a) - _xlog2x(b)
    return bits, loss


@compiled()
def _xlog2x(count: int) -> float:
    return count * np.log2(count) if count > 0 else 0.0


@compiled()
def _divide(gain: float, width: float) -> float:
    """The gain ratio; one group alone tells nothing."""
    return gain / width if width > 0.5 else -1.0


def join_small(table: NDArray[np.int64], attributes: Sequence[Attribute], min_leaf: int) -> Grouped:
    """Join branches of fewer than `min_leaf` patients, by how many patients have each value (docs/methods.md, 1.4).

    Cell 0 of a node's table has the class counts, then come the cells of each attribute. An attribute is not given up
    because one of its values is rare. The rare values of a category, and its missing ones where these are few, are one
    branch together; where even together they are too few, they join the branch of the commonest value. Of a number,
    small bins join their neighbours towards the commonest bin, so that a branch stays a range, and few missing ones
    join the commonest. Outcomes play no part. Of equally common values the first in their order counts as the
    commonest.
    """
    if min_leaf <= 1:
        return ungrouped(table)
    patients = table.sum(axis=1)
    small = (patients > 0) & (patients < min_leaf)
    if not small[1:].any():
        return ungrouped(table)
    merged, first = table.copy(), np.arange(len(table))
    start = 1
    for attribute in attributes:
        if small[start : start + attribute.size].any():
            cells = start + np.array(attribute.in_branch_order, dtype=np.intp)
            there = cells[patients[cells] > 0]
            counts = patients[there]
            last = attribute.numeric and there[-1] == start + MISSING
            leaders = (
                _join_bins(counts, bool(last), min_leaf)
                if attribute.numeric
                else _join_values(counts, min_leaf)
            )
            first[there] = there[leaders]
            merged[cells] = 0
            np.add.at(merged, first[there], table[there])
        start += attribute.size
    return Grouped(merged, first)


@compiled()
def _join_values(patients: NDArray[np.int64], min_leaf: int) -> NDArray[np.int64]:
    """For each value that somebody has, the first value of its branch."""
    leaders = np.arange(len(patients))
    commonest, rare, of_rare = int(np.argmax(patients)), -1, 0
    for value in range(len(patients)):
        if patients[value] < min_leaf:
            of_rare += patients[value]
            if rare == -1:
                rare = value
    if rare == -1:
        return leaders
    together = of_rare >= min_leaf and patients[commonest] >= min_leaf
    home = rare if together else min(rare, commonest)
    for value in range(len(patients)):
        if patients[value] < min_leaf or (value == commonest and not together):
            leaders[value] = home
    return leaders


@compiled()
def _join_bins(patients: NDArray[np.int64], missing_last: bool, min_leaf: int) -> NDArray[np.int64]:
    """The same for bins in a row, and after them the missing ones where `missing_last`."""
    leaders = np.arange(len(patients))
    bins = len(patients) - missing_last
    if bins == 0:
        return leaders
    commonest = int(np.argmax(patients[:bins]))
    own, low, high = int(patients[commonest]), commonest, commonest
    # From both ends towards the commonest: a branch is whole as soon as it has enough, and the rest of a side is its.
    begin, here = 0, 0
    for place in range(commonest):
        here += patients[place]
        leaders[place] = begin
        if here >= min_leaf:
            begin, here = place + 1, 0
    if begin < commonest:
        low, own = begin, own + here
    end, here = bins - 1, 0
    for place in range(bins - 1, commonest, -1):
        here += patients[place]
        if here >= min_leaf:
            leaders[place : end + 1] = place
            end, here = place - 1, 0
    if end > commonest:
        high, own = end, own + here
    with_missing = missing_last and patients[bins] < min_leaf
    if with_missing:
        own += int(patients[bins])
    # Even so it may be too small: then it joins the branch before it, the one after it, or the missing ones.
    if own < min_leaf:
        if low > 0:
            low = leaders[low - 1]
        elif high < bins - 1:
            after = leaders[high + 1]
            while high < bins - 1 and leaders[high + 1] == after:
                high += 1
        else:
            with_missing = missing_last
    leaders[low : high + 1] = low
    if with_missing:
        leaders[bins] = low
    return leaders


def halve(
    table: NDArray[np.int64], attributes: Sequence[Attribute], min_leaf: int, *, root: bool = False
) -> Grouped:
    """Part the values of every attribute in two, where that leaves least entropy: each side with `min_leaf` patients.

    Cell 0 of a node's table has the class counts, then come the cells of each attribute. A number is parted at one of
    its edges, and its missing values go where they fit better. The values of a category are put in the order of their
    share of a class and parted there (with two classes no other way to part them is better: Breiman 1984, theorem
    4.5; where the rare values are too few to be a side, one other value goes with them, whichever fits best). Those of
    fewer than `min_leaf` patients count as one value, since their shares are chance. What a question
    gains must be more than it takes to name it among all that could be asked (minimum description length; Quinlan
    1996): bits for the attribute, and for the edge of a number or the side of each value. An attribute that cannot be
    parted is one group.
    """
    merged, first = np.maximum(table, 0), np.arange(len(table))
    worth, of_values = (WORTH_AT_ROOT, WORTH_AT_ROOT) if root else (WORTH, WORTH_OF_VALUES)
    named = worth * math.log2(max(len(attributes), 1))
    start = 1
    for attribute in attributes:
        cells = start + np.array(attribute.in_branch_order, dtype=np.intp)
        counts = merged[cells]
        numeric = attribute.numeric
        missing = numeric and attribute.missing
        if numeric:
            sides = _part_numbers(counts, missing, min_leaf, named, worth)
        else:
            sides = _part_values(counts, min_leaf, named, of_values)
        there: NDArray[np.bool_] = counts.sum(axis=1) > 0
        # A value that nobody has leads no group: there is no telling where it belongs.
        leading = there | numeric
        leaders = {int(side): int(cells[leading & (sides == side)][0]) for side in np.unique(sides[there])}
        for cell, side, held in zip(cells.tolist(), sides.tolist(), there.tolist(), strict=True):
            # A bin without patients lies on one side all the same; nobody knows where a missing value would.
            if held or (numeric and side in leaders and not (missing and cell == start + MISSING)):
                first[cell] = leaders[side]
        merged[cells] = 0
        np.add.at(merged, first[cells[there]], counts[there])
        start += attribute.size
    return Grouped(merged, first)


@compiled()
def _spread(left: NDArray[np.int64], right: NDArray[np.int64]) -> float:
    """The entropy that is left of two groups, times patients."""
    return _entropy(left) + _entropy(right)


@compiled()
def _entropy(counts: NDArray[np.int64]) -> float:
    total = _xlog2x(counts.sum())
    for class_ in range(len(counts)):
        total -= _xlog2x(counts[class_])
    return total


@compiled()
def _part_numbers(
    counts: NDArray[np.int64], missing: bool, min_leaf: int, named: float, worth: float
) -> NDArray[np.int64]:
    """For each bin in order (the last is missing, where `missing`) its side, 0 or 1; all 0 where no edge will do."""
    bins = len(counts) - missing
    sides = np.zeros(len(counts), dtype=np.int64)
    unknown = counts[bins] if missing else np.zeros(counts.shape[1], dtype=np.int64)
    right = counts[:bins].sum(axis=0)
    left = np.zeros_like(right)
    best, edge, with_left, edges = np.inf, 0, True, 0
    before = _entropy(right + unknown)
    for bin_ in range(bins - 1):
        left = left + counts[bin_]
        right = right - counts[bin_]
        if counts[bin_].sum() == 0:
            continue
        for joins_left in (True, False):
            one = left + unknown if joins_left else left
            other = right if joins_left else right + unknown
            if min(one.sum(), other.sum()) < min_leaf or min(left.sum(), right.sum()) == 0:
                continue
            edges += 1
            here = _spread(one, other)
            if here < best - TIE:
                best, edge, with_left = here, bin_ + 1, joins_left
    if edge and before - best > named + worth * np.log2(edges) + TIE:
        sides[edge:bins] = 1
        if missing and not with_left:
            sides[bins] = 1
    return sides


@compiled()
def _part_values(counts: NDArray[np.int64], min_leaf: int, named: float, worth: float) -> NDArray[np.int64]:
    """For each value its side, 0 or 1; all 0 where there is no way to part them."""
    patients = counts.sum(axis=1)
    common = np.flatnonzero(patients >= max(min_leaf, 1))
    rare = np.flatnonzero((patients > 0) & (patients < min_leaf))
    sides = np.zeros(len(counts), dtype=np.int64)
    groups = len(common) + (len(rare) > 0)
    if groups < 2:
        return sides
    tables = np.zeros((groups, counts.shape[1]), dtype=np.int64)
    tables[: len(common)] = counts[common]
    if len(rare):
        tables[-1] = counts[rare].sum(axis=0)
    best, found = _part_in_order(tables, min_leaf)
    if len(rare) and len(common) > 1 and tables[-1].sum() < min_leaf:
        best = _join_rare(tables, best, found)
    if _entropy(tables.sum(axis=0)) - best > named + worth * (groups - 1):
        sides[common] = found[: len(common)]
        sides[rare] = found[-1]
    return sides


@compiled()
def _part_in_order(tables: NDArray[np.int64], min_leaf: int) -> tuple[float, NDArray[np.int64]]:
    """The least spread of groups in the order of their share of a class, parted in two, and the side of each."""
    total = tables.sum(axis=0)
    best, found = np.inf, np.zeros(len(tables), dtype=np.int64)
    for class_ in range(1 if len(total) == 2 else len(total)):
        order = np.argsort(tables[:, class_] / tables.sum(axis=1), kind="mergesort")
        left = np.zeros_like(total)
        for place in range(len(tables) - 1):
            left = left + tables[order[place]]
            right = total - left
            if min(left.sum(), right.sum()) < min_leaf:
                continue
            here = _spread(left, right)
            if here < best - TIE:
                best = here
                found[:] = 1
                found[order[: place + 1]] = 0
    return best, found


@compiled()
def _join_rare(tables: NDArray[np.int64], best: float, found: NDArray[np.int64]) -> float:
    """The same where the last group may not be alone: it may be best to put one other with it, out of order."""
    total = tables.sum(axis=0)
    for place in range(len(tables) - 1):
        left = tables[-1] + tables[place]
        here = _spread(left, total - left)
        if here < best - TIE:
            best = here
            found[:] = 1
            found[place] = found[-1] = 0
    return best
