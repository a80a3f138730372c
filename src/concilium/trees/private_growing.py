"""Growing a tree from noisy counts: every number the house sees has Gaussian noise added in shares by the sites.

Who is protected: every patient of every site, from the house and up to t colluding sites, at the total price that
`Budget` spreads over the levels: one patient adds 1 to one cell of each attribute's table at one node of a level,
so a level with A attributes (and the class counts) has squared L2 sensitivity A + 1, and nodes of one level compose
in parallel (METHODS.md, section 1). The root asks for all attributes, weight 3; later levels ask for the five best
by noisy gain, weight 1 each; the leaves' class counts, weight 1. What is asked next depends on noisy counts alone,
so choosing, screening and stopping are free.
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
from concilium.trees.growing import Counts, GrowingNode, xlog2x

SCREENED = 5
ROOT_WEIGHT = 3
# Shares of Gaussian noise cost a trifle more than one Gaussian (privacy/shares.py); this much is held back for it.
RESERVE = Fraction(1, 10**6)

# Given a schema, splits, nodes, which attributes to count and a variance: noisy counts, [node, cell, class].
NoisyCount = Callable[[GlobalSchema, list[Split], list[int], list[int], Fraction], Counts]


@dataclass(frozen=True)
class Budget:
    """rho spread over the questions of a tree: histograms for cutoffs if asked, the root, `depth - 1` further
    levels, the leaves."""

    rho: Fraction
    depth: int
    cutoffs: bool = False

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
    def too_small(self) -> bool:
        """Whether the reserve of a question would not cover what adding noise in shares costs more."""
        return self._part(1) * RESERVE < 100 * PRICE_STEP

    def variance_of_cutoffs(self, attributes: int) -> Fraction:
        """The variance of the noise of histograms of so many attributes."""
        return sigma_squared_for(self.share_of_cutoffs * (1 - RESERVE), attributes)

    def _part(self, weight: int) -> Fraction:
        return self.rho * weight / (sum(self.weights) + self.cutoffs)

    def variance(self, question: int, attributes: int) -> Fraction:
        """The variance of the noise of a question about so many attributes."""
        return sigma_squared_for(self.share(question) * (1 - RESERVE), attributes + 1)


def grow_privately(
    schema: GlobalSchema, count: NoisyCount, budget: Budget
) -> tuple[GlobalSchema, list[GrowingNode]]:
    """The attributes that were screened in, and all nodes of the tree, the root first, with noisy counts."""
    nodes = [GrowingNode(0, np.zeros(len(schema.classes), dtype=np.int64))]
    parents: dict[int, int] = {}
    splits: list[Split] = []
    frontier, asked = [0], schema
    for level in range(budget.depth):
        counted = list(range(len(asked.attributes)))
        variance = budget.variance(level, len(counted))
        tables = count(asked, splits, frontier, counted, variance)
        if level == 0 and len(counted) > SCREENED:
            best = sorted(np.argsort(entropies(tables[0], asked), kind="stable")[:SCREENED].tolist())
            tables, asked = keep(tables, asked, best), asked.keep(best)
        fresh: list[int] = []
        for node, table in zip(frontier, tables, strict=True):
            nodes[node].counts = np.maximum(table[0], 0)
            attribute = choose(table, asked, used_above(nodes, parents, node), math.sqrt(variance))
            if attribute is None:
                continue
            nodes[node].attribute = attribute
            for _ in range(asked.attributes[attribute].size):
                parents[len(nodes)] = node
                nodes[node].children.append(len(nodes))
                nodes.append(GrowingNode(level + 1, nodes[node].counts))
            splits.append(Split(node, attribute, nodes[node].children))
            fresh += nodes[node].children
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


def used_above(nodes: Sequence[GrowingNode], parents: Mapping[int, int], node: int) -> set[int]:
    """The attributes asked on the way to a node: they separate nobody any more."""
    used = set()
    while node in parents:
        node = parents[node]
        above = nodes[node].attribute
        if above is not None:
            used.add(above)
    return used


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


def choose(table: Counts, schema: GlobalSchema, used: set[int], spread: float) -> int | None:
    """The attribute of least noisy entropy, or None where the node holds too few patients to tell from noise."""
    left = [index for index in range(len(schema.attributes)) if index not in used]
    if not left:
        return None
    entropy = entropies(table, schema)
    attribute = min(left, key=lambda index: (entropy[index], index))
    cells = schema.attributes[attribute].size * len(schema.classes)
    return attribute if table[0].sum() >= 2 * spread * math.sqrt(cells) else None
