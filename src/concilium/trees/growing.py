"""Growing at the house: from summed crosstables (the UGCM) to splits, one level at a time (docs/methods.md, 1.4).

The tree equals the one ID3 grows on the pooled table, whatever the split of patients over sites: every decision
is a function of sums of integer counts. A node is split while it is impure and some attribute separates its
patients, on the attribute of least weighted entropy (or, as in C4.5, of the best gain ratio); what differs by less
than 1e-9 bits a patient counts as equal, and the first attribute by name is taken. Values may be grouped first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import MISSING, Attribute
from concilium.protocol.cohort import MOST_INTEGER_VALUES
from concilium.protocol.counts import Counts
from concilium.protocol.questions import MOST_NUMBERS, Conversation
from concilium.protocol.schema import SharedSchema
from concilium.protocol.splits import STAYS, Split, distinct
from concilium.records.columns import Value
from concilium.trees.body import TreeBody, TreeBranch, TreeNode
from concilium.trees.grouping import Grouped, group_values, halve, join_small

TIE = 1e-9

# Given the splits so far, the nodes and the attributes to count: counts over all sites, [node, cell, class].
Count = Callable[[list[Split], list[int], list[int]], Conversation[Counts]]


@dataclass(frozen=True)
class TreeGrowth:
    """How a tree is grown: `halves` parts the values of an attribute in two, `groups` groups them as C4.5 does; by
    neither every value is a branch, as in ID3. Whole numbers with more than `most_values` values are cut as numbers."""

    max_depth: int | None
    min_leaf: int
    criterion: str = "entropy"
    halves: bool = False
    groups: bool = False
    most_values: int = MOST_INTEGER_VALUES

    @property
    def joins(self) -> bool:
        """Whether a branch may hold several values of an attribute."""
        return self.halves or self.groups

    def arrange(
        self, table: NDArray[np.int64], attributes: Sequence[Attribute], *, root: bool = False
    ) -> Grouped:
        """The values of every attribute as branches of a node."""
        if self.halves:
            return halve(table, attributes, self.min_leaf, root=root)
        join = group_values if self.groups else join_small
        return join(table, attributes, self.min_leaf)


@dataclass
class GrowingNode:
    """A node under construction. `children[c]` is the node for cell c of the attribute, STAYS where nobody is; values
    of one group have the same. `measured` are counts with noise of this `variance`, of a private tree."""

    depth: int
    counts: NDArray[np.int64]
    attribute: int | None = None
    children: list[int] = field(default_factory=list)
    measured: NDArray[np.int64] | None = None
    variance: float = 0.0


def grow(
    schema: SharedSchema,
    count: Count,
    growth: TreeGrowth,
    *,
    subtract: bool,
    reduce: float | None = None,
) -> Conversation[tuple[list[GrowingNode], list[int]]]:
    """All nodes of the tree, the root first, and the attributes that were counted below the root.

    With `subtract`, the largest child of a split is not asked for but derived from its parent (sums are exact),
    which halves the counting. With `reduce`, attributes of which no more than this share of the patients at the
    root has another than the commonest value are left out, from the root on (auto-reduction, section 1.6).
    """
    counted = list(range(len(schema.attributes)))
    sizes = [attribute.size for attribute in schema.attributes]
    tables = {0: (yield from count([], [0], counted))[0]}
    nodes = [GrowingNode(0, tables[0][0])]
    splits: list[Split] = []
    if reduce is not None:
        kept = [index for index in counted if _minority_share(tables[0], sizes, index) > reduce]
        tables[0] = tables[0][[0, *cells_of(sizes, kept)]]
        counted = kept

    def may_split(node: GrowingNode) -> bool:
        deep = growth.max_depth is not None and node.depth >= growth.max_depth
        return (
            int(np.count_nonzero(node.counts)) > 1
            and not deep
            and int(node.counts.sum()) >= 2 * growth.min_leaf
        )

    frontier = [0] if may_split(nodes[0]) else []
    while frontier:
        fresh: list[int] = []
        parents = {}
        here = [schema.attributes[index] for index in counted]
        starts = np.cumsum([1, *(attribute.size for attribute in here)]).tolist()
        grouped = [growth.arrange(tables[node], here, root=not node) for node in frontier]
        chosen = choose(
            [one.table for one in grouped], [a.size for a in here], growth.min_leaf, growth.criterion
        )
        for node, position, by_group in zip(frontier, chosen, grouped, strict=True):
            if position is None:
                continue
            parents[node] = tables[node]
            nodes[node].attribute = counted[position]
            _split_on(nodes, node, here[position], by_group, starts[position])
            splits.append(Split(node, counted[position], nodes[node].children))
            fresh += distinct(nodes[node].children)
        frontier = [node for node in fresh if may_split(nodes[node])]
        if frontier:
            tables = yield from _gather(nodes, parents, frontier, splits, counted, count, subtract)
    return nodes, counted


def _split_on(
    nodes: list[GrowingNode], node: int, attribute: Attribute, grouped: Grouped, start: int
) -> None:
    """Give a node its children: one for each group of values, of those that somebody has."""
    born: dict[int, int] = {}
    for cell in attribute.in_branch_order:
        if grouped.table[start + cell].any():
            born[start + cell] = len(nodes)
            nodes.append(GrowingNode(nodes[node].depth + 1, grouped.table[start + cell]))
    first = grouped.first[start : start + attribute.size].tolist()
    nodes[node].children = [born.get(cell, STAYS) for cell in first]


def cells_of(sizes: Sequence[int], attributes: Sequence[int]) -> list[int]:
    """Where the values of these attributes stand in a table."""
    starts = np.cumsum([1, *sizes])
    return [cell for index in attributes for cell in range(starts[index], starts[index + 1])]


def _minority_share(table: Counts, sizes: Sequence[int], attribute: int) -> float:
    """The share of patients who have another than the commonest value."""
    patients = table[cells_of(sizes, [attribute])].sum(axis=1)
    return 1 - float(patients.max(initial=0)) / max(int(patients.sum()), 1)


def _gather(
    nodes: Sequence[GrowingNode],
    parents: Mapping[int, Counts],
    frontier: Sequence[int],
    splits: list[Split],
    counted: list[int],
    count: Count,
    subtract: bool,
) -> Conversation[dict[int, Counts]]:
    """The tables of all frontier nodes, asking for as few patients as possible."""
    wanted = set(frontier)
    asked: list[int] = []
    derived: dict[int, tuple[Counts, list[int]]] = {}
    for parent, table in parents.items():
        children = distinct(nodes[parent].children)
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
        batch = max(1, MOST_NUMBERS // next(iter(parents.values())).size)
        for start in range(0, len(asked), batch):
            part = asked[start : start + batch]
            tables.update(zip(part, (yield from count(splits, part, counted)), strict=True))
    for child, (table, others) in derived.items():
        tables[child] = table - sum(tables[other] for other in others)
    return tables


def choose(
    tables: Sequence[Counts], sizes: Sequence[int], min_leaf: int, criterion: str = "entropy"
) -> list[int | None]:
    """For each node's table the attribute to split on, or None where no attribute separates its patients."""
    if not sizes:
        return [None] * len(tables)
    stacked = np.stack(tables)
    cells = stacked[:, 1:, :]
    starts = np.cumsum([0, *sizes[:-1]])
    patients = cells.sum(axis=2)
    total = np.maximum(stacked[:, 0, :].sum(axis=1), 1)[:, None]
    # The patients of whom the attribute is known: all, unless a site leaves the attribute out at this node.
    own = np.maximum(np.add.reduceat(patients, starts, axis=1), 1)
    # n * (weighted entropy): sum over values of n_v log n_v, minus sum over values and classes of n_vc log n_vc.
    entropy = np.add.reduceat(xlog2x(patients) - xlog2x(cells).sum(axis=2), starts, axis=1) / own
    occurring = np.add.reduceat(patients > 0, starts, axis=1, dtype=np.int64)
    too_small = np.add.reduceat((patients > 0) & (patients < min_leaf), starts, axis=1, dtype=np.int64)
    unfit = (occurring < 2) | (too_small > 0)
    if criterion == "gain-ratio":
        before = (xlog2x(total[:, 0]) - xlog2x(stacked[:, 0, :]).sum(axis=1))[:, None] / total
        width = (xlog2x(own) - np.add.reduceat(xlog2x(patients), starts, axis=1)) / own
        badness = _least_ratio(before - entropy, width, unfit)
    else:
        badness = np.where(unfit, np.inf, entropy)
    least = badness.min(axis=1)
    first = np.argmax(badness <= least[:, None] + TIE, axis=1)
    return [int(index) if np.isfinite(low) else None for index, low in zip(first, least, strict=True)]


def _least_ratio(
    gain: NDArray[np.float64], width: NDArray[np.float64], unfit: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Minus the gain ratio (C4.5): gain per bit that the split itself takes to tell, among the attributes whose
    gain is at least the average, since the ratio alone favours splits that hardly split."""
    usable = np.where(unfit, np.nan, gain)
    average = np.nansum(usable, axis=1) / np.maximum((~unfit).sum(axis=1), 1)
    worth = ~unfit & (gain >= average[:, None] - TIE)
    ratio: NDArray[np.float64] = np.full(gain.shape, np.inf)
    np.divide(-gain, width, out=ratio, where=worth)
    return ratio


def xlog2x(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """n log2 n, and 0 at 0."""
    logarithms: NDArray[np.float64] = np.log2(np.maximum(counts, 1))
    return counts * logarithms


def finish(target: str, query: str, schema: SharedSchema, grown: Sequence[GrowingNode]) -> TreeBody:
    """The model of a grown tree."""
    bins = {attribute.name: list(attribute.edges) for attribute in schema.attributes if attribute.edges}
    nodes = []
    for node in grown:
        counts = [int(count) for count in node.counts]
        measured = [] if node.measured is None else node.measured.tolist()
        if node.attribute is None:
            nodes.append(TreeNode(counts, measured=measured, variance=node.variance))
            continue
        attribute = schema.attributes[node.attribute]
        goes = {cell: child for cell in attribute.in_branch_order if (child := node.children[cell]) != STAYS}
        other = goes.pop(attribute.other_cell, None)
        branches = [TreeBranch(name_cell(attribute, cell), child) for cell, child in goes.items()]
        nodes.append(TreeNode(counts, attribute.name, branches, other, measured, node.variance))
    return TreeBody(
        target=target,
        classes=list(schema.classes.values),
        query=query,
        bins=bins,
        nodes=nodes,
        dates=[attribute.name for attribute in schema.attributes if attribute.date],
    )


def name_cell(attribute: Attribute, cell: int) -> Value | None:
    """What a branch says of a cell: its value, the number of its interval, or None where it is missing."""
    if attribute.missing and cell == MISSING:
        return None
    place = cell - attribute.first
    return place if attribute.edges else attribute.values[place]
