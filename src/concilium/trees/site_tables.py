"""The crosstables of a site, for plain questions: patients by node, cell and class, without what it does not tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.disclosure import Family, withhold
from concilium.trees.counting import count
from concilium.trees.routing import STAYS
from concilium.trees.site_columns import AskedColumns
from concilium.trees.splits import MOST_CELLS, SiteColumn, Split, distinct, has_alternatives

MOST_TREES = 256
# A table so small, and a tree of so few nodes, are looked at level by level rather than node by node.
FEW_ROWS, FEW_NODES = 512, 1 << 12


@dataclass(frozen=True)
class SiteTables:
    """What is counted: of these patients those in some leaves (`nodes`) of a tree, by the cells of the attributes that
    are `counted` and by class (`target` has the cell of each class)."""

    cohort: Cohort
    columns: AskedColumns
    target: SiteColumn
    classes: int
    tree: Sequence[Split]
    nodes: Sequence[int]
    counted: list[int]

    def count(self) -> NDArray[np.uint32]:
        """The counts that this site tells, [node, cell, class]."""
        rows, keys = self._find_keys({node: place for place, node in enumerate(self.nodes)})
        width = len(self.nodes) * self.classes
        folded = [self.columns.folded[index] for index in self.counted]
        tables = count(
            [codes for codes, _ in folded],
            [len(cells) for _, cells in folded],
            rows,
            keys,
            width,
            repeated=has_alternatives(self.tree),
        )
        cells = self.columns.arrange(tables, self.counted)
        cells[0] = np.bincount(keys, minlength=width)
        counts = cells.reshape(-1, len(self.nodes), self.classes).transpose(1, 0, 2)
        if self.cohort.branch_floor:
            counts[counts[:, 0, :].sum(axis=1) < self.cohort.branch_floor] = 0
        if self.cohort.guard.on:
            self._withhold(counts)
        return counts

    def _withhold(self, counts: NDArray[np.uint32]) -> None:
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
        sizes = [len(cells) for _, cells in self.columns.columns]
        if width * sum(sizes) > MOST_CELLS:
            raise MessageError("the tree has become too large for this site to look for small cells in it")
        rows, keys = self._find_keys(place | ends)
        everywhere = count([codes for codes, _ in self.columns.columns], sizes, rows, keys, width)
        tables = [
            table.reshape(-1, nodes, self.classes).transpose(1, 0, 2).copy()
            for table in np.split(everywhere, np.cumsum(sizes)[:-1])
        ]
        for family in reversed(families):
            for table in tables:
                table[family.parent] = table[list(family.children)].sum(axis=0)
        everyone = np.bincount(keys, minlength=width).reshape(nodes, self.classes).sum(axis=0)
        dropped, empty = withhold(self.cohort.guard, everyone, tables, families)
        asked = [place[node] for node in self.nodes]
        offset = 1
        for index in self.counted:
            size = self.columns.attributes[index].size
            counts[dropped[index, asked], offset : offset + size] = 0
            offset += size
        counts[empty[asked]] = 0

    def _count_nodes(self, asked: Mapping[int, int]) -> int:
        """One more than the highest number of a node."""
        return 1 + max(max(asked), *(max([split.node, *split.children]) for split in self.tree))

    def _find_keys(self, asked: Mapping[int, int]) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
        """The rows that rest in an asked node, in table order, and for each: the node's place x classes + class."""
        everyone = self.cohort.rows
        if not self.tree:
            rows, node = everyone, np.zeros(len(everyone), dtype=np.int64)
        elif has_alternatives(self.tree):
            resting = route_alternatives(everyone, self.tree, self.columns.folded)
            rows = np.concatenate([resting[end] for end in asked])
            node = np.repeat(list(asked.values()), [len(resting[end]) for end in asked])
        elif len(self.cohort.view.records) <= FEW_ROWS and (most := self._count_nodes(asked)) <= FEW_NODES:
            places = np.full(most, STAYS, dtype=np.int64)
            places[list(asked)] = list(asked.values())
            node = places.take(self.columns.find_nodes(everyone, self.tree, most))
            resting_here = (node != STAYS).nonzero()[0]
            rows, node = everyone.take(resting_here), node.take(resting_here)
        else:
            resting = self.columns.route(everyone, self.tree)
            position = np.full(len(self.cohort.view.records), STAYS, dtype=np.int32)
            for end, place in asked.items():
                position.put(resting.get(end, everyone[:0]), place)
            rows = (position != STAYS).nonzero()[0].astype(np.int32)
            node = position.take(rows).astype(np.int64)
        codes, cells = self.target
        row_class = cells.take(codes.take(rows))
        named = row_class != STAYS
        if not named.all():
            # Who is of a class that the question does not name is left out: a refusal would tell that somebody is.
            rows, node, row_class = rows[named], node[named], row_class[named]
        dtype = np.min_scalar_type((max(asked.values()) + 1) * self.classes)
        return rows, (node * self.classes + row_class).astype(dtype)


def route_alternatives(
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
