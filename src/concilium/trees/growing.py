"""Growing at the house: from summed crosstables (the UGCM) to splits, one level at a time (DIDT steps 10-12).

The tree equals the one ID3 grows on the pooled table, whatever the split of patients over sites: every decision
is a function of sums of integer counts. A node is split while it is impure and some attribute separates its
patients, on the attribute of least weighted entropy; entropies closer than 1e-9 bits a patient count as equal,
and the first attribute by name is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.trees.crosstables import MOST_CELLS, Split
from concilium.trees.routing import STAYS
from concilium.trees.schema import GlobalSchema

TIE = 1e-9

Counts = NDArray[np.int64]
# Given the splits so far and the nodes to count: counts over all sites, [node, cell, class].
Count = Callable[[list[Split], list[int]], Counts]


@dataclass
class GrowingNode:
    """A node under construction. `children[v]` is the node for value v of the attribute, STAYS where nobody is."""

    depth: int
    counts: NDArray[np.int64]
    attribute: int | None = None
    children: list[int] = field(default_factory=list)

    @property
    def impure(self) -> bool:
        return int(np.count_nonzero(self.counts)) > 1


def grow(
    schema: GlobalSchema, count: Count, *, max_depth: int | None, min_leaf: int, subtract: bool
) -> list[GrowingNode]:
    """All nodes of the tree, the root first. With `subtract`, the largest child of a split is not asked for but
    derived from its parent (sums are exact), which halves the counting."""
    sizes = [attribute.size for attribute in schema.attributes]
    tables = {0: count([], [0])[0]}
    nodes = [GrowingNode(0, tables[0][0])]
    splits: list[Split] = []

    def may_split(node: GrowingNode) -> bool:
        deep = max_depth is not None and node.depth >= max_depth
        return node.impure and not deep and int(node.counts.sum()) >= 2 * min_leaf

    frontier = [0] if may_split(nodes[0]) else []
    while frontier:
        fresh: list[int] = []
        parents = {}
        for node, attribute in zip(
            frontier, choose([tables[n] for n in frontier], sizes, min_leaf), strict=True
        ):
            if attribute is None:
                continue
            parents[node] = tables[node]
            start = 1 + sum(sizes[:attribute])
            by_value = tables[node][start : start + sizes[attribute]]
            here = nodes[node]
            here.attribute = attribute
            for counts in by_value:
                if counts.any():
                    here.children.append(len(nodes))
                    nodes.append(GrowingNode(here.depth + 1, counts))
                else:
                    here.children.append(STAYS)
            splits.append(Split(node, attribute, here.children))
            fresh += [child for child in here.children if child != STAYS]
        frontier = [node for node in fresh if may_split(nodes[node])]
        tables = gather(nodes, parents, frontier, splits, count, subtract) if frontier else {}
    return nodes


def gather(
    nodes: Sequence[GrowingNode],
    parents: dict[int, Counts],
    frontier: Sequence[int],
    splits: list[Split],
    count: Count,
    subtract: bool,
) -> dict[int, Counts]:
    """The tables of all frontier nodes, asking for as few patients as possible."""
    wanted = set(frontier)
    asked: list[int] = []
    derived: dict[int, tuple[Counts, list[int]]] = {}
    for parent, table in parents.items():
        children = [child for child in nodes[parent].children if child != STAYS]
        needed = [child for child in children if child in wanted]
        largest = max(children, key=lambda child: (int(nodes[child].counts.sum()), -child))
        others = [child for child in children if child != largest]
        patients = [sum(int(nodes[child].counts.sum()) for child in some) for some in (others, needed)]
        if subtract and largest in wanted and patients[0] < patients[1]:
            derived[largest] = (table, others)
            asked += others
        else:
            asked += needed
    tables: dict[int, Counts] = {}
    if asked:
        cells = next(iter(parents.values())).size
        batch = max(1, MOST_CELLS // cells)
        for start in range(0, len(asked), batch):
            part = asked[start : start + batch]
            tables.update(zip(part, count(splits, part), strict=True))
    for child, (table, others) in derived.items():
        tables[child] = table - sum(tables[other] for other in others)
    return tables


def choose(tables: Sequence[Counts], sizes: Sequence[int], min_leaf: int) -> list[int | None]:
    """For each node's table the attribute to split on, or None where no attribute separates its patients."""
    if not sizes:
        return [None] * len(tables)
    cells = np.stack(tables)[:, 1:, :]
    starts = np.cumsum([0, *sizes[:-1]])
    patients = cells.sum(axis=2)
    # n * (weighted entropy): sum over values of n_v log n_v, minus sum over values and classes of n_vc log n_vc.
    spread = np.add.reduceat(xlog2x(patients) - xlog2x(cells).sum(axis=2), starts, axis=1)
    occurring = np.add.reduceat(patients > 0, starts, axis=1, dtype=np.int64)
    too_small = np.add.reduceat((patients > 0) & (patients < min_leaf), starts, axis=1, dtype=np.int64)
    entropy = spread / np.maximum(np.stack(tables)[:, 0, :].sum(axis=1), 1)[:, None]
    entropy[(occurring < 2) | (too_small > 0)] = np.inf
    least = entropy.min(axis=1)
    first = np.argmax(entropy <= least[:, None] + TIE, axis=1)
    return [int(index) if np.isfinite(low) else None for index, low in zip(first, least, strict=True)]


def xlog2x(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """n log2 n, and 0 at 0."""
    logarithms: NDArray[np.float64] = np.log2(np.maximum(counts, 1))
    return counts * logarithms
