"""Branches of fewer than `min_leaf` patients: their values share one, or join the commonest (docs/methods.md, 1.4).

An attribute is not given up because one of its values is rare. At each node the rare values of a category, and its
missing ones where these are few, are one branch together; where even together they are too few, they join the branch of
the commonest value. Of a number, small bins join their neighbours towards the commonest bin, so that a branch stays a
range, and few missing ones join the commonest. Nothing is asked for it and outcomes play no part: it follows from how
many patients have each value. Of equally common values the first in their order counts as the commonest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.protocol.attributes import MISSING, Attribute
from concilium.trees.grouping import Grouped, ungrouped


def join_small(table: NDArray[np.int64], attributes: Sequence[Attribute], min_leaf: int) -> Grouped:
    """A node's table with its small branches joined: cell 0 has the class counts, then come the cells of each
    attribute."""
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
                join_bins(counts, bool(last), min_leaf)
                if attribute.numeric
                else join_values(counts, min_leaf)
            )
            first[there] = there[leaders]
            merged[cells] = 0
            np.add.at(merged, first[there], table[there])
        start += attribute.size
    return Grouped(merged, first)


@compiled()
def join_values(patients: NDArray[np.int64], min_leaf: int) -> NDArray[np.int64]:
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
def join_bins(patients: NDArray[np.int64], missing_last: bool, min_leaf: int) -> NDArray[np.int64]:
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
