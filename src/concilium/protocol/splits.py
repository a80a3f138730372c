"""A partial tree as a question carries it: where it splits, what makes it one, and what may be asked of its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, Attribute, Workload, recode
from concilium.protocol.cohort import View
from concilium.protocol.questions import MOST_NUMBERS
from concilium.records.blocks import look_up, read_block

STAYS = -1
FEW_TARGETS = 8


@dataclass(frozen=True)
class Branching:
    """A node's test on coded columns: row r goes to `child[codes[r]]`, or stays where that is STAYS."""

    codes: NDArray[np.integer]
    child: NDArray[np.int32]


def route(rows: NDArray[np.int32], branchings: Mapping[int, Branching]) -> dict[int, NDArray[np.int32]]:
    """Rows by the node where they come to rest, starting at node 0; rows keep their order within a node."""
    return _route_on({0: rows}, branchings)


def _route_on(
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
        for target, part in _partition(here, goes, branching.child):
            if target == STAYS:
                resting[node] = part
            else:
                moving.append((target, part))
    return resting


def _route_few(
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


def _partition(
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
    were several trees with a common top (evaluation/folds.py).
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


def _count_visits(tree: Sequence[Split]) -> tuple[int, int]:
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
    visits, ends = _count_visits(tree)
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
    _, ends = _count_visits(tree)
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


LAST_ASKED: WeakKeyDictionary[View, AskedColumns] = WeakKeyDictionary()


@dataclass(eq=False)
class AskedColumns:
    """The columns of a view as one study asks for them, and what its last question made of them."""

    attributes: Sequence[Attribute]
    asked: bytes
    columns: list[SiteColumn]
    room: Path | None = None
    _blocks: dict[int, tuple[NDArray[np.int32], AskedColumns, NDArray[np.int32]]] = field(
        default_factory=dict
    )
    _target: tuple[bytes, SiteColumn] | None = None
    _routed: tuple[NDArray[np.int32], Sequence[Split], dict[int, NDArray[np.int32]]] | None = None
    _rested: tuple[NDArray[np.int32], Sequence[Split], NDArray[np.int32]] | None = None
    _cells: tuple[list[int], NDArray[np.intp], NDArray[np.intp], bool, int] | None = None

    @cached_property
    def folded(self) -> list[SiteColumn]:
        """The same columns for counting: one with more codes than the question has cells for has one code per cell, so
        that a table is never larger than the answer, however many values the site's patients have."""
        return [
            _fold(column, a.size, self.room) for column, a in zip(self.columns, self.attributes, strict=True)
        ]

    def at(self, block: slice, rows: NDArray[np.int32], size: int) -> tuple[AskedColumns, NDArray[np.int32]]:
        """The same columns in a block of the table, and those of the rows that are in it, counted from its start."""
        there, parts = block.stop - block.start, self._blocks
        before = parts.get(block.start)
        if before is not None and before[0] is rows:
            return before[1:]
        if len(rows) == size:
            local = _count_up(there)
        else:
            first, last = np.searchsorted(rows, [block.start, block.stop])
            local = read_block(rows, slice(int(first), int(last))) - np.int32(block.start)
        part = AskedColumns(self.attributes, self.asked, take_blocks(self.columns, block))
        vars(part)["folded"] = take_blocks(self.folded, block)
        parts[block.start] = rows, part, local
        return part, local

    def find_target(self, classes: Attribute, view: View) -> SiteColumn:
        """The column of the target, by its classes."""
        asked = msgspec.msgpack.encode(classes)
        if self._target is None or self._target[0] != asked:
            self._target = asked, recode(classes, view)
        return self._target[1]

    def route(self, rows: NDArray[np.int32], tree: Sequence[Split]) -> dict[int, NDArray[np.int32]]:
        """Rows by the node of the tree where they come to rest, going on from the last tree where this grew from it."""
        start, splits = {0: rows}, tree
        last = self._routed
        if last is not None:
            before, grown, resting = last
            if before is rows and grown == tree[: len(grown)]:
                start, splits = resting, tree[len(grown) :]
        resting = _route_on(start, find_branchings(splits, self.folded))
        self._routed = rows, list(tree), resting
        return resting

    def find_nodes(self, rows: NDArray[np.int32], tree: Sequence[Split], most: int) -> NDArray[np.int32]:
        """The same for a few rows and nodes below `most`: the node of each row."""
        nodes, splits = np.zeros(len(rows), dtype=np.int32), tree
        last = self._rested
        if last is not None:
            before, grown, rested = last
            if before is rows and grown == tree[: len(grown)]:
                nodes, splits = rested, tree[len(grown) :]
        if splits:
            nodes = _route_few(rows, nodes, find_branchings(splits, self.folded), most)
        self._rested = rows, list(tree), nodes
        return nodes

    def arrange(self, tables: NDArray[np.uint32], counted: list[int]) -> NDArray[np.uint32]:
        """Counts by code, [code, key], one column below the other, by cell, [cell, key]; cell 0 is left empty."""
        width = tables.shape[1]
        if not counted:
            return np.zeros((1, width), dtype=np.uint32)
        code, cell, shared, size = self._find_cells(counted)
        cells = np.zeros((size, width), dtype=np.uint32)
        by_code = tables.take(code, axis=0)
        if shared:
            np.add.at(cells, cell, by_code)
        else:
            cells[cell] = by_code
        return cells

    def _find_cells(self, counted: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp], bool, int]:
        """Which codes of the counted columns, one after the other, have a cell, the cell of each, whether codes share
        one, and how many cells there are."""
        last = self._cells
        if last is None or last[0] != counted:
            own = [self.folded[index][1] for index in counted]
            first = np.cumsum([1, *(self.attributes[index].size for index in counted)])
            place = np.concatenate(own).astype(np.intp)
            code = np.flatnonzero(place != STAYS)
            cell = np.repeat(first[:-1], [len(one) for one in own]) + place
            shared = bool(np.bincount(cell[code], minlength=1).max() > 1)
            last = self._cells = counted, code, cell[code], shared, int(first[-1])
        return last[1:]


def find_columns(view: View, attributes: Sequence[Attribute]) -> AskedColumns:
    """The columns of these attributes at this site. All questions of one study name the same ones, so that the last
    answer is remembered for every view."""
    # As written: Python takes 1 for true, but they are two values.
    asked = msgspec.msgpack.encode(attributes)
    last = LAST_ASKED.get(view)
    if last is None or last.asked != asked:
        columns = [recode(attribute, view) for attribute in attributes]
        last = LAST_ASKED[view] = AskedColumns(attributes, asked, columns, view.room)
    return last


def take_blocks(columns: Sequence[SiteColumn], block: slice) -> list[SiteColumn]:
    """Columns in some rows of the table."""
    return [(codes[block], cells) for codes, cells in columns]


@lru_cache(maxsize=2)
def _count_up(size: int) -> NDArray[np.int32]:
    return np.arange(size, dtype=np.int32)


def _fold(column: SiteColumn, size: int, room: Path | None) -> SiteColumn:
    """A column of an attribute with so many cells, with one code for each and one for what has no cell, where it has
    more."""
    codes, cells = column
    if len(cells) <= size + 1:
        return column
    narrow = np.where(cells == STAYS, size, cells).astype(np.min_scalar_type(size))
    return look_up(narrow, codes, room), np.array([*range(size), STAYS], dtype=np.int32)
