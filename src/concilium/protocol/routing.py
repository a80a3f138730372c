"""Sending patients down a tree: rows of a table to the nodes they reach, one column at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAYS = -1
FEW_TARGETS = 8


@dataclass(frozen=True)
class Branching:
    """A node's test on coded columns: row r goes to `child[codes[r]]`, or stays where that is STAYS."""

    codes: NDArray[np.integer]
    child: NDArray[np.int32]


def route(rows: NDArray[np.int32], branchings: Mapping[int, Branching]) -> dict[int, NDArray[np.int32]]:
    """Rows by the node where they come to rest, starting at node 0; rows keep their order within a node."""
    return route_on({0: rows}, branchings)


def route_on(
    begin: Mapping[int, NDArray[np.int32]], branchings: Mapping[int, Branching]
) -> dict[int, NDArray[np.int32]]:
    """The same for rows that have come to these nodes already."""
    resting: dict[int, NDArray[np.int32]] = {}
    moving = list(begin.items())
    while moving:
        node, here = moving.pop()
        branching = branchings.get(node)
        if branching is None or not len(here):
            resting[node] = here
            continue
        goes = branching.child.take(branching.codes.take(here))
        for target, part in partition(here, goes, branching.child):
            if target == STAYS:
                resting[node] = part
            else:
                moving.append((target, part))
    return resting


def route_few(
    rows: NDArray[np.int32], nodes: NDArray[np.int32], branchings: Mapping[int, Branching], most: int
) -> NDArray[np.int32]:
    """The node where each of these rows comes to rest, of those where they are (`nodes`, below `most`): all tests of a
    level at once, which for a few hundred rows takes fewer calls than test by test."""
    slot = np.full(most, STAYS, dtype=np.int32)
    slot[list(branchings)] = np.arange(len(branchings), dtype=np.int32)
    tests = list(branchings.values())
    codes = np.concatenate([test.codes for test in tests])
    starts = np.arange(len(tests)) * len(tests[0].codes)
    sizes = np.cumsum([0, *(len(test.child) for test in tests)])
    child = np.concatenate([test.child for test in tests])
    nodes = nodes.copy()
    moving = np.arange(len(rows))
    while True:
        at = slot.take(nodes.take(moving))
        tested = (at != STAYS).nonzero()[0]
        if not len(tested):
            return nodes
        moving, at = moving.take(tested), at.take(tested)
        goes = child.take(sizes.take(at) + codes.take(starts.take(at) + rows.take(moving)))
        gone = (goes != STAYS).nonzero()[0]
        moving = moving.take(gone)
        nodes[moving] = goes.take(gone)


def partition(
    rows: NDArray[np.int32], goes: NDArray[np.int32], targets: NDArray[np.int32]
) -> list[tuple[int, NDArray[np.int32]]]:
    """Rows by where they go, each part in order. A few targets are looked for one by one, many sorted out at once:
    otherwise a wide split would cost a pass over the rows for each of its children."""
    wanted = sorted(set(targets.tolist()), reverse=True)
    if len(wanted) <= FEW_TARGETS:
        parts, left = [], len(rows)
        for target in wanted:
            # Indices rather than masks: numpy picks rows by a mask several times as slowly.
            part = rows.take((goes == target).nonzero()[0]) if left else rows[:0]
            parts.append((target, part))
            left -= len(part)
        return parts
    wanted.reverse()
    order = np.argsort(goes, kind="stable")
    ends = np.searchsorted(goes[order], wanted, side="right")
    return list(zip(wanted, np.split(rows[order], ends[:-1]), strict=True))
