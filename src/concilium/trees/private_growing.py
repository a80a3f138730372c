"""Growing a tree from noisy counts: every number the house sees has Gaussian noise added in shares by the sites.

Who is protected: every patient of every site, from the house and up to t colluding sites, at the total price that
`Budget` spreads over the levels: one patient adds 1 to one cell of each attribute's table at one node of a level,
so a level with A attributes (and the class counts) has squared L2 sensitivity A + 1, and nodes of one level compose
in parallel (METHODS.md, section 1). The root asks for all attributes, weight 3; later levels ask for the five best
by noisy gain, weight 1 each; the leaves' class counts, weight 1, and those of held-out patients, where the tree is
pruned, too. What is asked next depends on noisy counts alone, so choosing, grouping, screening and stopping are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.federation.schema import GlobalSchema
from concilium.privacy.accounting import sigma_squared_for
from concilium.privacy.shares import PRICE_STEP
from concilium.trees.crosstables import Split
from concilium.trees.grouping import Grouped, group_values, ungrouped
from concilium.trees.growing import Counts, GrowingNode, cells_of, xlog2x
from concilium.trees.routing import STAYS

SCREENED = 5
ROOT_WEIGHT = 3
# Shares of Gaussian noise cost a trifle more than one Gaussian (privacy/shares.py); this much is held back for it.
RESERVE = Fraction(1, 10**6)

# Given a schema, splits, nodes, which attributes to count and a variance: noisy counts, [node, cell, class].
NoisyCount = Callable[[GlobalSchema, list[Split], list[int], list[int], Fraction], Counts]


@dataclass(frozen=True)
class Budget:
    """rho spread over the questions of a tree: histograms for cutoffs if asked, the root, `depth - 1` further
    levels, the leaves, and the leaves again for held-out patients if it is pruned."""

    rho: Fraction
    depth: int
    cutoffs: bool = False
    prune: bool = False

    @property
    def weights(self) -> list[int]:
        return [ROOT_WEIGHT, *[1] * (self.depth - 1), 1]

    def share(self, question: int) -> Fraction:
        """rho of the question of this number; the last is that of the leaves."""
        return self._part(self.weights[question])

    @property
    def share_of_cutoffs(self) -> Fraction:
        return self._part(1)

    @property
    def share_of_pruning(self) -> Fraction:
        return self._part(1)

    @property
    def too_small(self) -> bool:
        """Whether the reserve of a question would not cover what adding noise in shares costs more."""
        return self._part(1) * RESERVE < 100 * PRICE_STEP

    def variance_of_cutoffs(self, attributes: int) -> Fraction:
        """The variance of the noise of histograms of so many attributes."""
        return sigma_squared_for(self.share_of_cutoffs * (1 - RESERVE), attributes)

    @property
    def variance_of_pruning(self) -> Fraction:
        """The variance of the noise of the class counts of held-out patients."""
        return sigma_squared_for(self.share_of_pruning * (1 - RESERVE), 1)

    def _part(self, weight: int) -> Fraction:
        return self.rho * weight / (sum(self.weights) + self.cutoffs + self.prune)

    def variance(self, question: int, attributes: int) -> Fraction:
        """The variance of the noise of a question about so many attributes."""
        return sigma_squared_for(self.share(question) * (1 - RESERVE), attributes + 1)


def grow_privately(
    schema: GlobalSchema, count: NoisyCount, budget: Budget, group: bool = False
) -> tuple[GlobalSchema, list[GrowingNode]]:
    """The attributes that were screened in, and all nodes of the tree, the root first, with noisy counts.

    With `group`, values are grouped at every node, and those that by the noisy counts nobody has get no branch.
    """
    nodes = [GrowingNode(0, np.zeros(len(schema.classes), dtype=np.int64))]
    parents: dict[int, int] = {}
    splits: list[Split] = []
    frontier, asked = [0], schema
    for level in range(budget.depth):
        counted = list(range(len(asked.attributes)))
        variance = budget.variance(level, len(counted))
        tables = count(asked, splits, frontier, counted, variance)
        if level == 0 and len(counted) > SCREENED:
            spread = entropies(group_table(tables[0], asked, group).table, asked)
            best = sorted(np.argsort(spread, kind="stable")[:SCREENED].tolist())
            tables, asked = keep(tables, asked, best), asked.keep(best)
        fresh: list[int] = []
        for node, table in zip(frontier, tables, strict=True):
            nodes[node].counts = np.maximum(table[0], 0)
            left = left_above(nodes, parents, node)
            used = {attribute for attribute, places in left.items() if len(places) == 1}
            grouped = group_table(table, asked, group, left)
            if group:
                used |= unseparated(grouped.table, asked)
            attribute = choose(grouped.table, int(table[0].sum()), asked, used, math.sqrt(variance))
            if attribute is None:
                continue
            nodes[node].attribute = attribute
            born: dict[int, int] = {}
            for cell in cells_of([one.size for one in asked.attributes], [attribute]):
                first = int(grouped.first[cell])
                if group and not grouped.table[first].any():
                    nodes[node].children.append(STAYS)
                    continue
                if first not in born:
                    born[first] = len(nodes)
                    parents[len(nodes)] = node
                    nodes.append(GrowingNode(level + 1, nodes[node].counts))
                nodes[node].children.append(born[first])
            splits.append(Split(node, attribute, nodes[node].children))
            fresh += born.values()
        frontier = fresh
        if not frontier:
            break
    leaves = [index for index, node in enumerate(nodes) if node.attribute is None]
    for leaf, table in zip(
        leaves, count(asked, splits, leaves, [], budget.variance(budget.depth, 0)), strict=True
    ):
        # A leaf that noise has emptied keeps what its parent says.
        if table[0].max() > 0:
            nodes[leaf].counts = np.maximum(table[0], 0)
    return asked, nodes


def left_above(nodes: Sequence[GrowingNode], parents: Mapping[int, int], node: int) -> dict[int, set[int]]:
    """For the attributes asked on the way to a node the values that are left; of one alone nobody can be separated."""
    left: dict[int, set[int]] = {}
    while node in parents:
        child, node = node, parents[node]
        above = nodes[node].attribute
        assert above is not None
        taken = {place for place, end in enumerate(nodes[node].children) if end == child}
        left[above] = left.get(above, taken) & taken
    return left


def group_table(
    table: Counts, schema: GlobalSchema, group: bool, left: Mapping[int, set[int]] | None = None
) -> Grouped:
    """A table with its values grouped if wanted; counts below zero are taken as none for that, and so are those of
    values that are not `left` at this node: they are noise alone."""
    if not group:
        return ungrouped(table)
    sizes = [attribute.size for attribute in schema.attributes]
    cleared = table.copy()
    for attribute, places in (left or {}).items():
        cells = cells_of(sizes, [attribute])
        cleared[[cell for place, cell in enumerate(cells) if place not in places]] = 0
    return group_values(cleared, sizes, [bool(attribute.edges) for attribute in schema.attributes])


def unseparated(grouped: Counts, schema: GlobalSchema) -> set[int]:
    """The attributes of which a table shows fewer than two groups."""
    sizes = [attribute.size for attribute in schema.attributes]
    return {index for index in range(len(sizes)) if grouped[cells_of(sizes, [index])].any(axis=1).sum() < 2}


def keep(tables: Counts, schema: GlobalSchema, attributes: Sequence[int]) -> Counts:
    """Tables of these attributes only."""
    starts = np.cumsum([1, *(attribute.size for attribute in schema.attributes)])
    cells = [0, *(cell for i in attributes for cell in range(starts[i], starts[i + 1]))]
    return tables[:, cells, :]


def entropies(table: Counts, schema: GlobalSchema) -> NDArray[np.float64]:
    """Each attribute's weighted entropy (times patients) by a noisy table, counts below zero taken as none."""
    cells = np.maximum(table[1:], 0)
    starts = np.cumsum([0, *(attribute.size for attribute in schema.attributes)])[:-1]
    spread: NDArray[np.float64] = np.add.reduceat(
        xlog2x(cells.sum(axis=1)) - xlog2x(cells).sum(axis=1), starts
    )
    patients = np.add.reduceat(cells.sum(axis=1), starts)
    return spread / np.maximum(patients, 1)


def choose(table: Counts, patients: int, schema: GlobalSchema, used: set[int], spread: float) -> int | None:
    """The attribute of least noisy entropy, or None where the node holds too few patients to tell from noise."""
    left = [index for index in range(len(schema.attributes)) if index not in used]
    if not left:
        return None
    entropy = entropies(table, schema)
    attribute = min(left, key=lambda index: (entropy[index], index))
    cells = schema.attributes[attribute].size * len(schema.classes)
    return attribute if patients >= 2 * spread * math.sqrt(cells) else None
