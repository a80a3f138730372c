"""The columns of a site as one study asks for them, remembered from question to question: that changes no count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute, recode
from concilium.protocol.cohort import View
from concilium.protocol.routing import STAYS, route_few, route_on
from concilium.protocol.splits import SiteColumn, Split, find_branchings

LAST_ASKED: WeakKeyDictionary[View, AskedColumns] = WeakKeyDictionary()


@dataclass(eq=False)
class AskedColumns:
    """The columns of a view as one study asks for them, and what its last question made of them."""

    attributes: Sequence[Attribute]
    asked: bytes
    columns: list[SiteColumn]
    _target: tuple[bytes, SiteColumn] | None = None
    _routed: tuple[NDArray[np.int32], Sequence[Split], dict[int, NDArray[np.int32]]] | None = None
    _rested: tuple[NDArray[np.int32], Sequence[Split], NDArray[np.int32]] | None = None
    _cells: tuple[list[int], NDArray[np.intp], NDArray[np.intp], bool, int] | None = None

    @cached_property
    def folded(self) -> list[SiteColumn]:
        """The same columns for counting: one with more codes than the question has cells for has one code per cell, so
        that a table is never larger than the answer, however many values the site's patients have."""
        return [fold(column, a.size) for column, a in zip(self.columns, self.attributes, strict=True)]

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
        resting = route_on(start, find_branchings(splits, self.folded))
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
            nodes = route_few(rows, nodes, find_branchings(splits, self.folded), most)
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
            shared = len(np.unique(cell[code])) < len(code)
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
        last = LAST_ASKED[view] = AskedColumns(attributes, asked, columns)
    return last


def fold(column: SiteColumn, size: int) -> SiteColumn:
    """A column of an attribute with so many cells, with one code for each and one for what has no cell, where it has
    more."""
    codes, cells = column
    if len(cells) <= size + 1:
        return column
    narrow = np.where(cells == STAYS, size, cells).astype(np.min_scalar_type(size))
    return narrow[codes], np.array([*range(size), STAYS], dtype=np.int32)
