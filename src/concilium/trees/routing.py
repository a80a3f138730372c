"""Sending patients down a tree: rows of a table to the nodes they reach, one column at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAYS = -1


@dataclass(frozen=True)
class Branching:
    """A node's test on coded columns: row r goes to `child[codes[r]]`, or stays where that is STAYS."""

    codes: NDArray[np.integer]
    child: NDArray[np.int32]


def route(rows: NDArray[np.int32], branchings: Mapping[int, Branching]) -> dict[int, NDArray[np.int32]]:
    """Rows by the node where they come to rest, starting at node 0; rows keep their order within a node."""
    resting: dict[int, NDArray[np.int32]] = {}
    moving = [(0, rows)]
    while moving:
        node, here = moving.pop()
        branching = branchings.get(node)
        if branching is None or not len(here):
            resting[node] = here
            continue
        goes = branching.child[branching.codes[here]]
        targets = [int(target) for target in np.unique(branching.child)]
        for target in targets:
            part = here[goes == target]
            if target == STAYS:
                resting[node] = part
            else:
                moving.append((target, part))
    return resting
