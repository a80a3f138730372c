"""Stage 2 of DIDT: the crosstables of every attribute, for every asked node of one level, in one question.

The question carries the partial tree, so a site needs no memory of earlier ones. An answer is one array
[node, cell, class]: cell 0 holds the node's class counts, then one cell per value of each attribute (the ULCMs
side by side). Under `exact` the house sees it per site; the sum over sites is the UGCM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort, View
from concilium.federation.disclosure import Family, withhold
from concilium.federation.held_out import Part
from concilium.federation.histograms import check_edges, check_variance
from concilium.federation.messages import decode, encode
from concilium.federation.schema import ConditionalSchema, Known, name_of
from concilium.records.table import Coded
from concilium.trees.counting import count
from concilium.trees.layout import Sample, positive_codes
from concilium.trees.routing import STAYS, Branching, route_on

# What one small message may make a site compute and send: a house asks for a larger level in parts.
MOST_CELLS = 1 << 22
MOST_TREES = 256
MOST_NOISY_CELLS = 1 << 18
MOST_CLASSES = 1000

# An attribute's codes at a site, and for each code its place among the global values.
Column = tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]

LAST_ASKED: WeakKeyDictionary[View, AskedColumns] = WeakKeyDictionary()


class AskedAttribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An attribute by name, with how many values the global schema has for it, or its public edges."""

    name: str
    size: int
    edges: list[float]


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A node of the partial tree: value v of the attribute leads to node `children[v]` (-1: no branch).

    Several values may lead to one node: they are a group (trees/grouping.py).
    """

    node: int
    attribute: int
    children: list[int]


class AskCrosstables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients have each value of each attribute, by class, in each of these nodes?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked", "private"})
    additive: ClassVar[bool] = True
    largest: ClassVar[int] = np.iinfo(np.uint32).max

    query: str
    target: str
    classes: int
    attributes: list[AskedAttribute]
    tree: list[Split]
    nodes: list[int]
    counted: list[int] | None = None
    schema: ConditionalSchema | None = None
    variance: str | None = None
    sample: Sample | None = None
    part: Part | None = None

    @property
    def counting(self) -> list[int]:
        """Which attributes are counted; the others are there for the tree to ask about."""
        return list(range(len(self.attributes))) if self.counted is None else self.counted

    @property
    def noise(self) -> Fraction:
        return Fraction(self.variance or 0)

    @property
    def sensitivity_squared(self) -> Fraction:
        """One patient is in at most one node, and there adds 1 to the class counts and 1 to each attribute's."""
        return Fraction(1 + len(self.counting))

    @property
    def numbers(self) -> int:
        return len(self.nodes) * self.cells * self.classes

    @property
    def cells(self) -> int:
        return 1 + sum(self.attributes[index].size for index in self.counting)

    def check(self, release: str) -> None:
        if (release != "exact") != (self.schema is not None):
            raise MessageError("under masks, and only there, all sites are told one common schema")
        check_variance(release, self.variance)
        if self.sample is not None:
            # One patient more changes who else is drawn: the noise of a private count would not cover that.
            if release != "exact" or self.classes != 2:
                raise MessageError("a sample is of two classes, and is released as 'exact' only")
            self.sample.check()
        if self.part is not None:
            if self.sample is not None:
                raise MessageError("a sample holds nobody out")
            self.part.check()
        check_attributes(self.attributes)
        counting = self.counting
        if len(set(counting)) != len(counting) or any(not 0 <= i < len(self.attributes) for i in counting):
            raise MessageError("the attributes to count must be among those named, each once")
        most = MOST_NOISY_CELLS if release == "private" else MOST_CELLS
        if not 1 <= self.classes <= MOST_CLASSES or self.numbers > most:
            raise MessageError(
                f"an answer may hold at most {most} numbers, of at most {MOST_CLASSES} classes"
            )
        reached = check_tree(self.tree, self.attributes, alternatives=release == "exact")
        leaves = reached - {split.node for split in self.tree}
        if not set(self.nodes) <= leaves:
            raise MessageError("only leaves of the partial tree can be counted")
        if len(set(self.nodes)) != len(self.nodes) or not self.nodes:
            raise MessageError("the nodes to count must differ, and there must be one")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        return self.count(cohort, self.schema or decode(template, ConditionalSchema))

    def count(self, cohort: Cohort, known: ConditionalSchema) -> NDArray[np.uint32]:
        """The counts of this site, [node, cell, class]."""
        if self.sample is not None:
            cohort = self.sample.choose(cohort, self.query, self.target)
        found = find_columns(cohort, self.attributes, known)
        asked = {node: place for place, node in enumerate(self.nodes)}
        rows, keys = self._keys(cohort, found, known.classes, asked)
        width = len(self.nodes) * self.classes
        counted = [found.folded[index] for index in self.counting]
        tables = count(
            [codes for codes, _ in counted],
            [len(place) for _, place in counted],
            rows,
            keys,
            width,
            repeated=has_alternatives(self.tree),
        )
        cells = found.arrange(tables, self.counting, width)
        cells[0] = np.bincount(keys, minlength=width)
        counts = cells.reshape(-1, len(self.nodes), self.classes).transpose(1, 0, 2)
        if cohort.branch_floor:
            counts[counts[:, 0, :].sum(axis=1) < cohort.branch_floor] = 0
        if cohort.guard.on:
            self._withhold(counts, cohort, found, known.classes)
        return counts

    def _withhold(
        self, counts: NDArray[np.uint32], cohort: Cohort, found: AskedColumns, classes: Known
    ) -> None:
        """Take out of the counts what the site's disclosure rules do not let it tell of this tree."""
        if has_alternatives(self.tree):
            raise MessageError("a site that leaves small counts out is asked about one tree at a time")
        place, ends, families = {0: 0}, {0: 0}, []
        nodes = 1
        for split in self.tree:
            born = distinct(split.children)
            place.update(zip(born, range(nodes, nodes + len(born)), strict=True))
            # Patients whose value has no branch stay behind: they are one more child, for the sums to add up.
            ends[split.node] = nodes + len(born)
            families.append(Family(place[split.node], split.attribute, range(nodes, nodes + len(born) + 1)))
            nodes += len(born) + 1
        width = nodes * self.classes
        sizes = [len(values) for _, values in found.columns]
        if width * sum(sizes) > MOST_CELLS:
            raise MessageError("the tree has become too large for this site to look for small cells in it")
        rows, keys = self._keys(cohort, found, classes, place | ends)
        everywhere = count([codes for codes, _ in found.columns], sizes, rows, keys, width)
        tables = [table.reshape(-1, nodes, self.classes).transpose(1, 0, 2).copy() for table in everywhere]
        for family in reversed(families):
            for table in tables:
                table[family.parent] = table[list(family.children)].sum(axis=0)
        everyone = np.bincount(keys, minlength=width).reshape(nodes, self.classes).sum(axis=0)
        dropped, empty = withhold(cohort.guard, everyone, tables, families)
        asked = [place[node] for node in self.nodes]
        offset = 1
        for index in self.counting:
            counts[dropped[index, asked], offset : offset + self.attributes[index].size] = 0
            offset += self.attributes[index].size
        counts[empty[asked]] = 0

    def _keys(
        self,
        cohort: Cohort,
        found: AskedColumns,
        classes: Known,
        asked: Mapping[int, int],
    ) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
        """The rows that rest in an asked node, in table order, and for each: the node's place x classes + class."""
        target = cohort.view.coded(self.target)
        if self.sample is None:
            class_of = places(target, classes, self.classes)
        else:
            class_of = positive_codes(target, self.sample.positive).astype(np.int32)
        dtype = np.min_scalar_type((max(asked.values()) + 1) * self.classes)
        if not self.tree:
            rows, node = cohort.rows, np.zeros(len(cohort.rows), dtype=np.int64)
        elif has_alternatives(self.tree):
            resting = route_alternatives(cohort.rows, self.tree, found.columns)
            rows = np.concatenate([resting[end] for end in asked])
            node = np.repeat(list(asked.values()), [len(resting[end]) for end in asked])
        else:
            resting = found.route(cohort.rows, self.tree)
            position = np.full(len(cohort.view.records), STAYS, dtype=np.int32)
            for end, index in asked.items():
                position[resting.get(end, cohort.rows[:0])] = index
            rows = np.flatnonzero(position != STAYS).astype(np.int32)
            node = position[rows].astype(np.int64)
        row_class = class_of[target.codes[rows]]
        named = row_class != STAYS
        if not named.all():
            # Who is of a class that the question does not name is left out: a refusal would tell that somebody is.
            rows, node, row_class = rows[named], node[named], row_class[named]
        return rows, (node * self.classes + row_class).astype(dtype)


@dataclass(eq=False)
class AskedColumns:
    """The columns of a view as one study asks for them, and what its last question made of them."""

    attributes: list[AskedAttribute]
    known: ConditionalSchema
    columns: list[Column]
    _routed: tuple[NDArray[np.int32], Sequence[Split], dict[int, NDArray[np.int32]]] | None = None
    _cells: tuple[list[int], NDArray[np.intp], NDArray[np.intp], bool] | None = None

    @cached_property
    def folded(self) -> list[Column]:
        """The same columns for counting: one with more codes than the question has cells for has one code per cell, so
        that a table is never larger than the answer, however many values the site's patients have."""
        return [fold(column, a.size) for column, a in zip(self.columns, self.attributes, strict=True)]

    def route(self, rows: NDArray[np.int32], tree: Sequence[Split]) -> dict[int, NDArray[np.int32]]:
        """Rows by the node of the tree where they come to rest, going on from the last tree where this grew from it."""
        start, splits = {0: rows}, tree
        last = self._routed
        if last is not None:
            before, grown, resting = last
            if before is rows and grown == tree[: len(grown)]:
                start, splits = resting, tree[len(grown) :]
        resting = route_on(start, find_branchings(splits, self.columns))
        self._routed = rows, list(tree), resting
        return resting

    def arrange(
        self, tables: Sequence[NDArray[np.uint32]], counted: list[int], width: int
    ) -> NDArray[np.uint32]:
        """Counts by code, [code, key], as one table by cell of the global schema, [cell, key]; cell 0 is left empty."""
        cells = np.zeros((1 + sum(self.attributes[index].size for index in counted), width), dtype=np.uint32)
        if tables:
            code, cell, shared = self._find_cells(counted)
            by_code = np.concatenate(tables)[code]
            if shared:
                np.add.at(cells, cell, by_code)
            else:
                cells[cell] = by_code
        return cells

    def _find_cells(self, counted: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp], bool]:
        """Which codes of the counted columns, one after the other, have a cell, the cell of each, and whether codes
        share one."""
        last = self._cells
        if last is None or last[0] != counted:
            own = [self.folded[index][1] for index in counted]
            first = np.cumsum([1, *(self.attributes[index].size for index in counted)])
            place = np.concatenate(own).astype(np.intp)
            code = np.flatnonzero(place != STAYS)
            cell = np.repeat(first[:-1], [len(one) for one in own]) + place
            last = self._cells = counted, code, cell[code], len(np.unique(cell[code])) < len(code)
        return last[1:]


def check_attributes(attributes: Sequence[AskedAttribute]) -> None:
    """MessageError unless attributes differ, and every one's size is that of its edges, where it has them."""
    if len({attribute.name for attribute in attributes}) != len(attributes):
        raise MessageError("an attribute is named twice")
    for attribute in attributes:
        if attribute.edges:
            check_edges(attribute.name, attribute.edges)
        if attribute.size < 0 or (attribute.edges and attribute.size != len(attribute.edges) + 2):
            raise MessageError("an attribute's size does not fit")


def check_tree(
    tree: Sequence[Split], attributes: Sequence[AskedAttribute], alternatives: bool = False
) -> set[int]:
    """All nodes of a tree over these attributes; MessageError unless it is one.

    With `alternatives` a node may be split more than once: patients then go down each of its splits, as if there
    were several trees with a common top (evaluation/shared_folds.py).
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
    """The nodes that a split leads to, each once, in order."""
    return [child for child in dict.fromkeys(children) if child != STAYS]


def has_alternatives(tree: Sequence[Split]) -> bool:
    """Whether a node is split more than once."""
    return len({split.node for split in tree}) != len(tree)


def find_columns(
    cohort: Cohort, attributes: Sequence[AskedAttribute], known: ConditionalSchema
) -> AskedColumns:
    """For each attribute its codes at this site, and for each code its place among the global values.

    All questions of one study name the same attributes, so the last answer is remembered for every view.
    """
    if len(known.attributes) != len(attributes):
        raise MessageError("the conditional schema does not fit the question")
    last = LAST_ASKED.get(cohort.view)
    # As they are written: Python takes 1 for true, but they are two values.
    if last is not None and last.attributes == attributes and encode(last.known) == encode(known):
        return last
    columns = [find_column(cohort, a, own) for a, own in zip(attributes, known.attributes, strict=True)]
    found = LAST_ASKED[cohort.view] = AskedColumns(list(attributes), known, columns)
    return found


def fold(column: Column, size: int) -> Column:
    """A column of an attribute with so many global values, with one code for each and one for what has no place, where
    it has more."""
    codes, place = column
    if len(place) <= size + 1:
        return column
    narrow = np.where(place == STAYS, size, place).astype(np.min_scalar_type(size))
    return narrow[codes], np.array([*range(size), STAYS], dtype=np.int32)


def find_column(cohort: Cohort, attribute: AskedAttribute, known: Known) -> Column:
    if attribute.edges:
        bins = len(attribute.edges) + 1
        codes = cohort.view.binned(attribute.name, tuple(attribute.edges))
        return codes, np.array([bins, *range(bins)], dtype=np.int32)
    column = cohort.view.coded(attribute.name)
    return column.codes, places(column, known, attribute.size)


def route_alternatives(
    rows: NDArray[np.int32], tree: Sequence[Split], columns: Sequence[Column]
) -> dict[int, NDArray[np.int32]]:
    """Rows by leaf, where patients go down every split of a node that has several; MessageError where that is more
    work than MOST_TREES trees would be."""
    splits: dict[int, list[Split]] = {}
    depth = {0: 1}
    for split in tree:
        splits.setdefault(split.node, []).append(split)
        depth.update(dict.fromkeys(split.children, depth[split.node] + 1))
    left = MOST_TREES * max(depth.values()) * len(rows)
    resting: dict[int, NDArray[np.int32]] = {}
    moving = [(0, rows)]
    while moving:
        node, here = moving.pop()
        if node not in splits:
            resting[node] = here
            continue
        left -= len(here) * len(splits[node])
        if left < 0:
            raise MessageError(f"more was asked at once than {MOST_TREES} trees would ask")
        for split in splits[node]:
            codes, place = columns[split.attribute]
            goes = np.array([*split.children, STAYS], dtype=np.int32)[place][codes[here]]
            moving += [(end, here[goes == end]) for end in distinct(split.children)]
    return resting


def find_branchings(tree: Sequence[Split], columns: Sequence[Column]) -> dict[int, Branching]:
    """The tests of a tree, by node, on the columns of a site."""
    branchings = {}
    for split in tree:
        codes, place = columns[split.attribute]
        children = np.array([*split.children, STAYS], dtype=np.int32)
        branchings[split.node] = Branching(codes, children[place])
    return branchings


def places(column: Coded, known: Known, size: int) -> NDArray[np.int32]:
    """For each code of a column (0: missing) its place among the global values, STAYS where it has none."""
    if len(known.positions) != len(known.values) or any(not 0 <= place < size for place in known.positions):
        raise MessageError("the conditional schema does not fit the question")
    if len(set(known.positions)) != len(known.positions):
        raise MessageError("the conditional schema names a place twice")
    if known.other is not None and (not 0 <= known.other < size or known.other in known.positions):
        raise MessageError("the conditional schema has no place for other values")
    elsewhere = STAYS if known.other is None else known.other
    at = {name_of(value): place for value, place in zip(known.values, known.positions, strict=True)}
    own = [at.get(name_of(value), elsewhere) for value in (None, *column.values)]
    return np.array(own, dtype=np.int32)
