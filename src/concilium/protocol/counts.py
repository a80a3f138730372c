"""Counts of patients: by group, by the cells of attributes, and by class. Most of what methods ask is this.

Groups are leaves of a partial tree that the question carries, so that a site needs no memory of earlier questions
(docs/methods.md, 1.3); without a tree there is one group, everybody. An answer is one array [group, cell, class]: first
the group's class counts, if `totals` are asked for, then the cells of each counted attribute (the ULCMs side by side).
The sum over sites is the UGCM. Histograms for cutoffs are counts without classes; how many patients there are is the
total alone.

Sensitivity: a patient is in one group at most and has one cell of each counted attribute, so that one more or less
moves each counted attribute's table by 1 in one cell, and the totals by 1. So it must stay: whoever has a class that is
not named is left out (a refusal would tell), and nothing comes from the records but the counts.

The kernels add up (value, key) for every row in one pass over the columns, a key being a node and a class. They are
compiled by numba, release the GIL and work on column-major codes. All nodes of a level are counted in the same pass,
so a level costs one read of the table whatever the number of nodes; four columns share a pass, so that the keys are
read once for the four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.disclosure import Family, Guard, withhold
from concilium.protocol.held_out import Part, Sample
from concilium.protocol.questions import (
    LOCAL,
    MOST_NUMBERS,
    NOISED,
    PLAIN,
    PRIVATE,
    Sensitivity,
    Summed,
)
from concilium.protocol.splits import (
    STAYS,
    AskedColumns,
    SiteColumn,
    Split,
    check_tree,
    distinct,
    estimate_tables,
    find_columns,
    has_alternatives,
)
from concilium.records.blocks import each_block, is_large, list_blocks, read_block, release_pages

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

Codes = NDArray[np.unsignedinteger]
Table = NDArray[np.uint32]

TOGETHER = 4
# Above this share of the table's rows, reading all of them in order beats picking the rows out.
DENSE = 0.4
# Up to so many cells to read, a few calls of numpy over all columns at once beat a call of a kernel for each four.
FEW_CELLS = 1 << 12


def _count(
    columns: Sequence[Codes],
    sizes: Sequence[int],
    rows: NDArray[np.int32],
    keys: Codes,
    width: int,
    *,
    repeated: bool = False,
) -> Table:
    """How many of the rows have which code and which key: a table [code, key] of each column, one below the other.

    `keys` belongs to `rows` and is below `width`; `sizes` says how many codes a column has. Rows are in order, or
    `repeated`: then a row may come several times, each time with another key.
    """
    if not columns:
        return np.zeros((0, width), dtype=np.uint32)
    everyone = len(columns[0])
    if len(columns) * max(len(rows), everyone) <= FEW_CELLS:
        return _count_few(columns, sizes, rows, keys, width)
    if repeated or len(rows) < DENSE * everyone:
        return _fill(columns, sizes, rows, keys, width)
    if len(rows) == everyone:
        return _fill(columns, sizes, None, keys, width)
    all_keys = np.full(everyone, width, dtype=np.min_scalar_type(width))
    all_keys[rows] = keys
    return _fill(columns, sizes, None, all_keys, width + 1)[:, :width]


def _count_few(
    columns: Sequence[Codes], sizes: Sequence[int], rows: NDArray[np.int32], keys: Codes, width: int
) -> Table:
    ends = list(accumulate(sizes, initial=0))
    codes = np.concatenate(columns).reshape(len(columns), -1).take(rows, axis=1)
    places = (codes + np.array(ends[:-1], dtype=np.int64)[:, None]) * width + keys
    counts = np.bincount(places.reshape(-1), minlength=ends[-1] * width)
    return counts.astype(np.uint32).reshape(-1, width)


def _fill(
    columns: Sequence[Codes], sizes: Sequence[int], rows: NDArray[np.int32] | None, keys: Codes, width: int
) -> Table:
    """The tables over the given rows, or over all rows in order where None."""
    ends = list(accumulate((size * width for size in sizes), initial=0))
    block = np.zeros(ends[-1], dtype=np.uint32)
    tables = [block[start:end] for start, end in pairwise(ends)]
    by_size: dict[int, list[int]] = {}  # which is their type, since codes are unsigned
    for index, column in enumerate(columns):
        by_size.setdefault(column.itemsize, []).append(index)
    for indices in by_size.values():
        for start in range(0, len(indices), TOGETHER):
            group = indices[start : start + TOGETHER]
            codes = tuple([read_block(columns[index], slice(None)) for index in group])
            into = tuple([tables[index] for index in group])
            if len(group) == TOGETHER:
                _add_four(codes, rows, keys, width, into)
            else:
                for one, table in zip(codes, into, strict=True):
                    _add(one, rows, keys, width, table)
    return block.reshape(-1, width)


# Without rows the compiler leaves the look-up of a row out.
@compiled(boundscheck=False)
def _add(codes: Codes, rows: NDArray[np.int32] | None, keys: Codes, width: int, table: Table) -> None:
    step = np.uint32(width)
    for index in range(len(keys)):
        row = index if rows is None else rows[index]
        table[np.uint32(codes[row]) * step + np.uint32(keys[index])] += 1


@compiled(boundscheck=False)
def _add_four(
    codes: tuple[Codes, ...], rows: NDArray[np.int32] | None, keys: Codes, width: int, into: tuple[Table, ...]
) -> None:
    a, b, c, d = codes
    table_a, table_b, table_c, table_d = into
    step = np.uint32(width)
    for index in range(len(keys)):
        row = index if rows is None else rows[index]
        key = np.uint32(keys[index])
        table_a[np.uint32(a[row]) * step + key] += 1
        table_b[np.uint32(b[row]) * step + key] += 1
        table_c[np.uint32(c[row]) * step + key] += 1
        table_d[np.uint32(d[row]) * step + key] += 1


MOST_TREES = 256
MOST_CLASSES = 1000
# A table so small, and a tree of so few nodes, are looked at level by level rather than node by node.
FEW_ROWS, FEW_NODES = 512, 1 << 12

Counts = NDArray[np.int64]


class AskCounts(Summed, frozen=True, kw_only=True, dict=True):
    """How many patients are in each of these `nodes` of a tree, by the cells of the `counted` attributes and by class?

    `counted`: these attributes only; the others are there for the tree to ask about. `part`: of those who are held out,
    or of the others. `sample`: of those whom one expert of an ensemble learns from.
    """

    kind: ClassVar[str] = "counts"
    releases: ClassVar[frozenset[str]] = PLAIN | PRIVATE | NOISED | LOCAL
    merges: ClassVar[bool] = True

    attributes: tuple[Attribute, ...] = ()
    classes: Attribute | None = None
    tree: list[Split] = msgspec.field(default_factory=list)
    nodes: list[int] = msgspec.field(default_factory=lambda: [0])
    counted: list[int] | None = None
    totals: bool = True
    part: Part | None = None
    sample: Sample | None = None

    @property
    def reads(self) -> frozenset[str]:
        """How many patients there are is known without a table."""
        return frozenset() if self.is_bare else super().reads

    @property
    def is_bare(self) -> bool:
        """Whether it asks how many patients there are, of all of them, and nothing else."""
        narrowed = self.query or self.target or self.tree or self.part or self.sample
        return not narrowed and self.numbers == 1

    @property
    def counting(self) -> list[int]:
        """Which attributes are counted."""
        return list(range(len(self.attributes))) if self.counted is None else self.counted

    @property
    def columns(self) -> int:
        """How many classes there are; without classes there is one number for each cell."""
        return 1 if self.classes is None else self.classes.size

    @cached_property
    def shape(self) -> tuple[int, ...]:
        # Gate, meter and release each ask, and hundreds of attributes take a while. Nobody changes a question.
        cells = self.totals + sum(self.attributes[index].size for index in self.counting)
        return len(self.nodes), cells, self.columns

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(len(self.counting) + self.totals)

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes if self.classes is None else (*self.attributes, self.classes)

    @property
    def division(self) -> Part | None:
        return self.part

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {} if self.sample is None else self.sample.fixed

    def check(self, release: Release) -> None:
        if len(set(self.counting)) != len(self.counting) or any(
            not 0 <= index < len(self.attributes) for index in self.counting
        ):
            raise MessageError("the attributes to count must be among those named, each once")
        if self.classes is not None and (self.classes.name != self.target or self.classes.edges):
            raise MessageError("the classes must be values of the target, and nothing else")
        if not 1 <= self.columns <= MOST_CLASSES:
            raise MessageError(f"patients are counted in 1 to {MOST_CLASSES} classes")
        leaves = check_tree(self.tree, self.attributes, alternatives=release.tells_each)
        leaves -= {split.node for split in self.tree}
        if not set(self.nodes) <= leaves or len(set(self.nodes)) != len(self.nodes) or not self.nodes:
            raise MessageError("only leaves of the partial tree can be counted, each once")
        if self.sample is not None:
            self.sample.check_release(release)
            if self.classes is None or not self.sample.tells_apart(self.classes):
                raise MessageError("a sample is counted in two classes: the positive value, and any other")
        elif self.classes is None and not release.bounded and not self.is_bare:
            # What a site leaves out of tables by class it must not tell by this way.
            if self.totals and not release.tells_each:
                raise MessageError("how many patients match a query is told under 'exact' only")
            if not all(attribute.numeric and attribute.missing for attribute in self.attributes):
                raise MessageError("values of categories are counted by class, or with noise")
        if self.noise is not None and not all(one.covers_everyone for one in self.attributes):
            raise MessageError("every attribute of a private question has a cell for every patient")

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        work = estimate_columns(self.named, patients, each_by_itself=self.noise is not None)
        work += estimate_tables(
            self.attributes, self.counting, self.tree, self.numbers, self.columns, patients
        )
        return work if self.sample is None else work + self.sample.estimate(patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        of_everybody = (self.classes, self.sample, self.tree) == (None, None, [])
        if of_everybody and self.attributes and all(a.grid and a.missing for a in self.attributes):
            return self._count_on_grid(cohort)
        return self._open(cohort).count()

    def _count_on_grid(self, cohort: Cohort) -> NDArray[np.integer]:
        """The same as by codes of their own: columns are placed on the grid once, for all questions about it."""
        rows = None if cohort.everyone else cohort.rows
        counted = [self.attributes[index] for index in self.counting]
        placed = [cohort.view.place_on_grid(one.name, is_date=one.date) for one in counted]
        counts = [
            one.count(a.grid, rows) for one, a in zip(placed, counted, strict=True) if a.grid is not None
        ]
        totals = [np.array([len(cohort)])] if self.totals else []
        return np.concatenate([*totals, *counts])[None, :, None]

    def suppress(self, words: NDArray[np.integer], cohort: Cohort) -> None:
        if not self.attributes:
            if self.classes is not None and cohort.guard.withholds_classes(words.reshape(-1)):
                words[:] = 0
            return
        if cohort.branch_floor and self.totals and self.classes is not None:
            words[words[:, 0, :].sum(axis=1) < cohort.branch_floor] = 0
        if cohort.guard.on:
            self._open(cohort).suppress(words, cohort.guard)

    def _open(self, cohort: Cohort) -> _SiteTables:
        columns = find_columns(cohort.view, self.attributes)
        target = None if self.classes is None else columns.find_target(self.classes, cohort.view)
        chosen = cohort if self.sample is None else self.sample.choose(cohort, self.query, self.target)
        return _SiteTables(chosen, columns, target, self)


@dataclass(frozen=True)
class _SiteTables:
    """What a question counts at a site: of these patients, by columns and `target` (the cell of each class)."""

    cohort: Cohort
    columns: AskedColumns
    target: SiteColumn | None
    question: AskCounts
    size: int | None = None

    def count(self) -> NDArray[np.uint32]:
        """All counts, [node, cell, class]."""
        question, nodes = self.question, self.question.nodes
        width = len(nodes) * question.columns
        tables, totals = self._count_all({node: place for place, node in enumerate(nodes)}, width)
        cells = self.columns.arrange(tables, question.counting)
        cells[0] = totals
        counts = cells[not question.totals :].reshape(-1, len(nodes), question.columns)
        return np.ascontiguousarray(counts.transpose(1, 0, 2))

    def suppress(self, counts: NDArray[np.integer], guard: Guard) -> None:
        """Take out of the counts what the site's disclosure rules do not let it tell of this tree."""
        question, classes = self.question, self.question.columns
        if has_alternatives(question.tree):
            raise MessageError("a site that leaves small counts out is asked about one tree at a time")
        if question.classes is None:
            guard = Guard(guard.minimum_cell)  # one class has all patients of any value
        place, ends, families = {0: 0}, {0: 0}, []
        nodes = 1
        for split in question.tree:
            born = distinct(split.children)
            place.update(zip(born, range(nodes, nodes + len(born)), strict=True))
            # Patients whose value has no branch stay behind: they are one more child, for the sums to add up.
            ends[split.node] = nodes + len(born)
            families.append(Family(place[split.node], split.attribute, range(nodes, nodes + len(born) + 1)))
            nodes += len(born) + 1
        width = nodes * classes
        sizes = [len(cells) for _, cells in self.columns.columns]
        if width * sum(sizes) > MOST_NUMBERS:
            raise MessageError("the tree has become too large for this site to look for small cells in it")
        everywhere, totals = self._count_all(place | ends, width, folded=False)
        tables = [
            table.reshape(-1, nodes, classes).transpose(1, 0, 2).copy()
            for table in np.split(everywhere, np.cumsum(sizes)[:-1])
        ]
        for family in reversed(families):
            for table in tables:
                table[family.parent] = table[list(family.children)].sum(axis=0)
        everyone = totals.reshape(nodes, classes).sum(axis=0)
        dropped, empty = withhold(guard, everyone, tables, families)
        asked = [place[node] for node in question.nodes]
        offset = int(question.totals)
        for index in question.counting:
            size = self.columns.attributes[index].size
            counts[dropped[index, asked], offset : offset + size] = 0
            offset += size
        counts[empty[asked]] = 0

    def _count_all(
        self, asked: Mapping[int, int], width: int, *, folded: bool = True
    ) -> tuple[Table, NDArray[np.int64]]:
        """The table of each counted column, and how many rows have each key. A large table is counted block by block on
        all cores: sums of whole numbers are the same in any order."""
        size = len(self.cohort.view.records)
        if not is_large(size):
            return self._count_here(asked, width, folded=folded)
        columns = self.columns.folded if folded else self.columns.columns

        def count(block: slice) -> tuple[Table, NDArray[np.int64]]:
            part, rows = self.columns.at(block, self.cohort.rows, size)
            target = None if self.target is None else (self.target[0][block], self.target[1])
            here = replace(self, cohort=replace(self.cohort, rows=rows), columns=part, target=target)
            counted = replace(here, size=block.stop - block.start)._count_here(asked, width, folded=folded)
            for codes, _ in [*columns, *([] if self.target is None else [self.target])]:
                release_pages(codes, block)
            return counted

        tables, totals = np.zeros(0, dtype=np.uint32), np.zeros(width, dtype=np.int64)
        for one, more in each_block(list_blocks(size), count):
            tables = tables + one if tables.size else one
            totals += more
        return tables, totals

    def _count_here(
        self, asked: Mapping[int, int], width: int, *, folded: bool
    ) -> tuple[Table, NDArray[np.int64]]:
        counted = self.columns.columns
        if folded:
            counted = [self.columns.folded[index] for index in self.question.counting]
        rows, keys = self._find_keys(asked)
        tables = _count(
            [codes for codes, _ in counted],
            [len(cells) for _, cells in counted],
            rows,
            keys,
            width,
            repeated=has_alternatives(self.question.tree),
        )
        return tables, np.bincount(keys, minlength=width)

    @property
    def _patients(self) -> int:
        """How many rows these columns have."""
        return len(self.cohort.view.records) if self.size is None else self.size

    def _find_keys(self, asked: Mapping[int, int]) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
        """The rows that rest in an asked node, in table order, and for each: the node's place x classes + class."""
        everyone, tree = self.cohort.rows, self.question.tree
        if not tree:
            rows, node = everyone, np.zeros(len(everyone), dtype=np.int64)
        elif has_alternatives(tree):
            resting = _route_alternatives(everyone, tree, self.columns.folded)
            rows = np.concatenate([resting[end] for end in asked])
            node = np.repeat(list(asked.values()), [len(resting[end]) for end in asked])
        elif self._patients <= FEW_ROWS and (
            (most := 1 + max([*asked, *(node for split in tree for node in split.children)])) <= FEW_NODES
        ):
            places = np.full(most, STAYS, dtype=np.int64)
            places[list(asked)] = list(asked.values())
            node = places.take(self.columns.find_nodes(everyone, tree, most))
            resting_here = (node != STAYS).nonzero()[0]
            rows, node = everyone.take(resting_here), node.take(resting_here)
        else:
            resting = self.columns.route(everyone, tree)
            position = np.full(self._patients, STAYS, dtype=np.int32)
            for end, place in asked.items():
                position.put(resting.get(end, everyone[:0]), place)
            rows = (position != STAYS).nonzero()[0].astype(np.int32)
            node = position.take(rows).astype(np.int64)
        classes = self.question.columns
        dtype = np.min_scalar_type((max(asked.values()) + 1) * classes)
        if self.target is None:
            return rows, node.astype(dtype)
        codes, cells = self.target
        row_class = cells.take(codes.take(rows))
        named = row_class != STAYS
        if not named.all():
            rows, node, row_class = rows[named], node[named], row_class[named]
        return rows, (node * classes + row_class).astype(dtype)


def _route_alternatives(
    rows: NDArray[np.int32], tree: Sequence[Split], columns: Sequence[SiteColumn]
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
            codes, cells = columns[split.attribute]
            goes = np.array([*split.children, STAYS], dtype=np.int32)[cells][codes[here]]
            moving += [(end, here[goes == end]) for end in distinct(split.children)]
    return resting


def split_counts(attributes: Sequence[Attribute], counts: Counts) -> dict[str, Counts]:
    """Each attribute's own counts of an answer without totals about everybody, [cell, class]."""
    ends = np.cumsum([attribute.size for attribute in attributes])
    return {a.name: part for a, part in zip(attributes, np.split(counts[0], ends[:-1]), strict=True)}
