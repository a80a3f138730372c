"""Stage 2 of DIDT: the crosstables of every attribute, for every asked node of one level, in one question.

The question carries the partial tree, so a site needs no memory of earlier ones. An answer is one array
[node, cell, class]: cell 0 holds the node's class counts, then one cell per value of each attribute (the ULCMs
side by side). Under `exact` the house sees it per site; the sum over sites is the UGCM.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.messages import decode
from concilium.records.table import Coded
from concilium.trees.counting import count
from concilium.trees.routing import STAYS, Branching, route
from concilium.trees.schema import ConditionalSchema, Known, check_edges, name_of

MOST_CELLS = 1 << 24


class AskedAttribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An attribute by name, with how many values the global schema has for it, or its public edges."""

    name: str
    size: int
    edges: list[float]


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A node of the partial tree: value v of the attribute leads to node `children[v]` (-1: no branch)."""

    node: int
    attribute: int
    children: list[int]


class AskCrosstables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients have each value of each attribute, by class, in each of these nodes?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked", "private"})
    additive: ClassVar[bool] = True

    query: str
    target: str
    classes: int
    attributes: list[AskedAttribute]
    tree: list[Split]
    nodes: list[int]
    counted: list[int] | None = None
    schema: ConditionalSchema | None = None
    variance: str | None = None

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
        if (release == "private") != (self.variance is not None) or not is_variance(self.variance):
            raise MessageError(
                "a private question, and only that, says the variance of its noise, such as '81/2'"
            )
        for attribute in self.attributes:
            if attribute.edges:
                check_edges(attribute.name, attribute.edges)
            if attribute.size < 0 or (attribute.edges and attribute.size != len(attribute.edges) + 2):
                raise MessageError("an attribute's size does not fit")
        counting = self.counting
        if len(set(counting)) != len(counting) or any(not 0 <= i < len(self.attributes) for i in counting):
            raise MessageError("the attributes to count must be among those named, each once")
        if self.classes < 1 or self.numbers > MOST_CELLS:
            raise MessageError(f"an answer may hold at most {MOST_CELLS} numbers")
        reached = {0}
        for split in self.tree:
            if split.node not in reached or not 0 <= split.attribute < len(self.attributes):
                raise MessageError("the partial tree is not connected")
            if len(split.children) != self.attributes[split.attribute].size:
                raise MessageError("a split of the partial tree does not fit its attribute")
            children = [child for child in split.children if child != STAYS]
            if len(set(children)) != len(children) or reached & set(children) or min(children, default=1) < 1:
                raise MessageError("a node of the partial tree is reached twice")
            reached.update(children)
        splits = [split.node for split in self.tree]
        if len(set(splits)) != len(splits) or not set(self.nodes) <= reached - set(splits):
            raise MessageError("only leaves of the partial tree can be counted")
        if len(set(self.nodes)) != len(self.nodes) or not self.nodes or max(reached) >= 1 << 31:
            raise MessageError("the nodes to count must differ, and there must be one")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        return self.count(cohort, self.schema or decode(template, ConditionalSchema))

    def count(self, cohort: Cohort, known: ConditionalSchema) -> NDArray[np.uint32]:
        """The counts of this site, [node, cell, class]."""
        if len(known.attributes) != len(self.attributes):
            raise MessageError("the conditional schema does not fit the question")
        columns = [
            self._column(cohort, index, known.attributes[index]) for index in range(len(self.attributes))
        ]
        rows, keys = self._keys(cohort, columns, known.classes)
        width = len(self.nodes) * self.classes
        counts = np.zeros((len(self.nodes), self.cells, self.classes), dtype=np.uint32)
        counts[:, 0, :] = np.bincount(keys, minlength=width).reshape(len(self.nodes), self.classes)
        counted = [columns[index] for index in self.counting]
        tables = count(
            [codes for codes, _ in counted], [len(place) for _, place in counted], rows, keys, width
        )
        offset = 1
        for index, (_, place), table in zip(self.counting, counted, tables, strict=True):
            by_value = table.reshape(len(place), len(self.nodes), self.classes)
            if len(np.unique(place)) == len(place):
                own = np.flatnonzero(place != STAYS)
                counts[:, offset + place[own], :] = by_value[own].transpose(1, 0, 2)
            else:
                for here, one in zip(place, by_value, strict=True):
                    if here != STAYS:
                        counts[:, offset + here, :] += one
            offset += self.attributes[index].size
        if cohort.branch_floor:
            counts[counts[:, 0, :].sum(axis=1) < cohort.branch_floor] = 0
        return counts

    def _column(
        self, cohort: Cohort, index: int, known: Known
    ) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]:
        """An attribute's codes at this site, and for each code its place among the global values."""
        attribute = self.attributes[index]
        if attribute.edges:
            bins = len(attribute.edges) + 1
            codes = cohort.view.binned(attribute.name, tuple(attribute.edges))
            return codes, np.array([bins, *range(bins)], dtype=np.int32)
        column = cohort.view.records[attribute.name]
        if not isinstance(column, Coded):
            raise MessageError(f"attribute {attribute.name!r} is a number here, and no bins are given")
        return column.codes, places(column, known, attribute.size)

    def _keys(
        self,
        cohort: Cohort,
        columns: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]],
        classes: Known,
    ) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
        """The rows that rest in an asked node, in table order, and for each: node position x classes + class."""
        branchings = {}
        for split in self.tree:
            codes, place = columns[split.attribute]
            children = np.array([*split.children, STAYS], dtype=np.int32)
            branchings[split.node] = Branching(codes, children[place])
        target = cohort.view.records[self.target]
        if not isinstance(target, Coded):
            raise MessageError(f"the target {self.target!r} is a number here; a tree predicts categories")
        class_of = places(target, classes, self.classes)
        resting = route(cohort.rows, branchings)
        dtype = np.min_scalar_type(len(self.nodes) * self.classes)
        if self.nodes == [0] and not self.tree:
            rows, node = cohort.rows, np.zeros(len(cohort.rows), dtype=np.int64)
        else:
            position = np.full(len(cohort.view.records), STAYS, dtype=np.int32)
            for index, asked in enumerate(self.nodes):
                position[resting.get(asked, cohort.rows[:0])] = index
            rows = np.flatnonzero(position != STAYS).astype(np.int32)
            node = position[rows].astype(np.int64)
        row_class = class_of[target.codes[rows]]
        if np.any(row_class == STAYS):
            if self.variance is None:
                raise MessageError("the conditional schema does not know a class of this site")
            # Under noise no refusal may depend on a patient: one of a class that the study does not name is left out.
            named = row_class != STAYS
            rows, node, row_class = rows[named], node[named], row_class[named]
        return rows, (node * self.classes + row_class).astype(dtype)


def is_variance(text: str | None) -> bool:
    """Whether this is a positive rational of bearable length (or absent)."""
    if text is None:
        return True
    try:
        return len(text) <= 200 and "e" not in text.lower() and Fraction(text) > 0
    except (ValueError, ZeroDivisionError):
        return False


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
