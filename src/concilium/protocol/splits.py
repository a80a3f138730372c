"""A partial tree as a question carries it: where it splits, what makes it one, and what may be asked of its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.questions import MOST_NUMBERS
from concilium.protocol.routing import STAYS, Branching
from concilium.protocol.work import CALL, Workload

# An attribute's codes at a site, one for each patient, and for each such code the attribute's cell (or STAYS).
SiteColumn = tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A node of the partial tree: cell c of the attribute leads to node `children[c]` (-1: no branch).

    Several cells may lead to one node: their values are a group (trees/grouping.py).
    """

    node: int
    attribute: int
    children: list[int]


def check_tree(
    tree: Sequence[Split], attributes: Sequence[Attribute], alternatives: bool = False
) -> set[int]:
    """All nodes of a tree over these attributes; MessageError unless it is one.

    With `alternatives` a node may be split more than once: patients then go down each of its splits, as if there
    were several trees with a common top (evaluation/shared_tables.py).
    """
    reached = {0}
    for split in tree:
        if split.node not in reached or not 0 <= split.attribute < len(attributes):
            raise MessageError("the partial tree is not connected")
        if len(split.children) != attributes[split.attribute].size:
            raise MessageError("a split of the partial tree does not fit its attribute")
        children = distinct(split.children)
        if not reached.isdisjoint(children) or min(children, default=1) < 1:
            raise MessageError("a node of the partial tree is reached twice")
        reached.update(children)
    if (has_alternatives(tree) and not alternatives) or max(reached) >= 1 << 31:
        raise MessageError("a node of the partial tree is split twice, or numbered too high")
    return reached


def distinct(children: Iterable[int]) -> list[int]:
    """The nodes that a split leads to, each once, in the order of their numbers."""
    return sorted(set(children) - {STAYS})


def has_alternatives(tree: Sequence[Split]) -> bool:
    """Whether a node is split more than once."""
    return len({split.node for split in tree}) != len(tree)


def count_visits(tree: Sequence[Split]) -> tuple[int, int]:
    """At how many splits a patient can come by, and in how many leaves end: where nodes are split more than once, a
    patient goes down each of the splits."""
    visits: dict[int, int] = {}
    ends: dict[int, int] = {}
    for split in reversed(tree):  # parents come first in it
        below = set(split.children)
        visits[split.node] = (
            visits.get(split.node, 0) + 1 + max((visits.get(child, 0) for child in below), default=0)
        )
        ends[split.node] = ends.get(split.node, 0) + max((ends.get(child, 1) for child in below), default=1)
    return visits.get(0, 0), ends.get(0, 1)


def estimate_routing(tree: Sequence[Split], patients: int) -> Workload:
    """To send patients down a tree."""
    visits, ends = count_visits(tree)
    cells = sum(len(split.children) for split in tree)
    return Workload(
        30 * visits * patients + CALL * (4 * len(tree) + cells),
        (56 + 16 * ends) * patients + 300 * len(tree) + 16 * cells,
    )


def estimate_tables(
    attributes: Sequence[Attribute],
    counted: Sequence[int],
    tree: Sequence[Split],
    numbers: int,
    classes: int,
    patients: int,
) -> Workload:
    """To count the tables of some leaves, with what a site looks at to leave small counts out."""
    _, ends = count_visits(tree)
    everywhere = 1 + sum(len(set(split.children)) + 1 for split in tree)
    looked_at = min(MOST_NUMBERS, everywhere * classes * sum(attribute.size for attribute in attributes))
    return estimate_routing(tree, patients) + Workload(
        (4 * ends * len(counted) + 4 * len(attributes) + 60) * patients
        + CALL * (1 + len(tree)) * (1 + len(attributes))
        + 16 * (numbers + looked_at),
        (16 * ends + 64) * patients + 24 * (numbers + looked_at),
    )


def find_branchings(tree: Sequence[Split], columns: Sequence[SiteColumn]) -> dict[int, Branching]:
    """The tests of a tree, by node, on the columns of a site."""
    branchings = {}
    for split in tree:
        codes, cells = columns[split.attribute]
        children = np.array([*split.children, STAYS], dtype=np.int32)  # the last is for codes without a cell
        branchings[split.node] = Branching(codes, children[cells])
    return branchings
