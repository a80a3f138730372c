"""Growing a tree from noisy counts: every number the house sees has Gaussian noise added in shares by the sites.

Who is protected: every patient of every site, from the house and up to t colluding sites, at the total price that
`Budget` spreads over the levels: one patient adds 1 to one cell of each attribute's table at one node of a level,
so a level with A attributes (and the class counts) has squared L2 sensitivity A + 1, and nodes of one level compose
in parallel (METHODS.md, section 1). The root asks for all attributes, weight 3; later levels ask for the five best
by noisy gain, weight 1 each; the leaves' class counts, weight 1 and that of levels which were not reached. What is
asked next depends on noisy counts alone, so choosing, screening, stopping and estimating (private_estimates.py) are
free. Without noise the tree predicts what the exact tree does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.privacy.accounting import sigma_squared_for
from concilium.privacy.shares import PRICE_STEP
from concilium.trees.crosstables import MOST_NOISY_CELLS, Split
from concilium.trees.growing import Counts, GrowingNode, cells_of, choose, xlog2x
from concilium.trees.private_estimates import Estimate, Expected, estimate, estimate_leaf
from concilium.trees.schema import GlobalSchema

SCREENED = 5
ROOT_WEIGHT = 3
# Shares of Gaussian noise cost a trifle more than one Gaussian (privacy/shares.py); this much is held back for it.
RESERVE = Fraction(1, 10**6)

# Given a schema, splits, nodes, which attributes to count and a variance: noisy counts, [node, cell, class].
NoisyCount = Callable[[GlobalSchema, list[Split], list[int], list[int], Fraction], Counts]


@dataclass(frozen=True)
class Budget:
    """rho spread over the questions of a tree: histograms for cutoffs if asked, the root, `depth - 1` further
    levels, the leaves. `least` is the variance below which noise in shares cannot go."""

    rho: Fraction
    depth: int
    cutoffs: bool = False
    root_weight: int = ROOT_WEIGHT
    screened: int = SCREENED
    least: Fraction = Fraction(0)

    @property
    def weights(self) -> list[int]:
        return [self.root_weight, *[1] * (self.depth - 1), 1]

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
        return self._variance(self.share_of_cutoffs, attributes)

    def variance(self, question: int, attributes: int) -> Fraction:
        """The variance of the noise of a question about so many attributes."""
        return self._variance(self.share(question), attributes + 1)

    def variance_of_leaves(self, levels: int) -> Fraction:
        """The variance of the noise of the leaves' class counts, when so many levels were asked before."""
        return self._variance(self._part(sum(self.weights[levels:])), 1)

    @property
    def most_screened(self) -> int:
        """How many attributes go on below the root: more than `screened` where they would not add to the noise."""
        free = 2 * self._part(1) * (1 - RESERVE) * self.least
        return max(self.screened, int(free) - 1)

    def _variance(self, share: Fraction, sensitivity_squared: int) -> Fraction:
        return max(sigma_squared_for(share * (1 - RESERVE), sensitivity_squared), self.least)

    def _part(self, weight: int) -> Fraction:
        return self.rho * weight / (sum(self.weights) + self.cutoffs)


def grow_privately(
    schema: GlobalSchema, count: NoisyCount, budget: Budget
) -> tuple[GlobalSchema, list[GrowingNode]]:
    """The attributes that were screened in, and all nodes of the tree, the root first, with noisy counts."""
    nodes = [GrowingNode(0, np.zeros(len(schema.classes), dtype=np.int64))]
    parents: dict[int, int] = {}
    known: dict[int, Expected] = {}
    splits: list[Split] = []
    frontier, asked, levels = [0], schema, 0
    leaves, most_leaves = 1, MOST_NOISY_CELLS // len(schema.classes)
    while frontier and levels < budget.depth:
        sizes = [attribute.size for attribute in asked.attributes]
        frontier = take_largest(frontier, known, MOST_NOISY_CELLS // ((1 + sum(sizes)) * len(asked.classes)))
        variance = budget.variance(levels, len(sizes))
        tables = count(asked, splits, frontier, list(range(len(sizes))), variance)
        levels += 1
        fresh: list[int] = []
        for node, table in zip(frontier, tables, strict=True):
            found = estimate(table, sizes, float(variance), known.get(node))
            if node == 0:
                best = screen(found, budget.most_screened)
                found, asked = found.keep(best), asked.keep(best)
            known[node] = found.again
            nodes[node].counts = as_patients(found.counts, nodes[node].counts)
            attribute = choose_attribute(found, used_above(nodes, parents, node))
            if attribute is None or leaves + found.sizes[attribute] > most_leaves:
                continue
            nodes[node].attribute = attribute
            leaves += found.sizes[attribute] - 1
            for value in range(found.sizes[attribute]):
                parents[len(nodes)] = node
                known[len(nodes)] = found.expect_child(attribute, [value])
                nodes[node].children.append(len(nodes))
                nodes.append(GrowingNode(levels, nodes[node].counts))
            splits.append(Split(node, attribute, nodes[node].children))
            fresh += nodes[node].children
        frontier = fresh
    resting = [index for index, node in enumerate(nodes) if node.attribute is None]
    variance = budget.variance_of_leaves(levels)
    for leaf, table in zip(resting, count(asked, splits, resting, [], variance), strict=True):
        found = estimate_leaf(table[0], float(variance), known[leaf])
        # Fewer patients than the noise's standard deviation cannot be told from it.
        patients = max(float(found.counts.sum()), math.sqrt(float(variance) * len(schema.classes)))
        nodes[leaf].counts = as_patients(patients * found.class_shares, nodes[leaf].counts)
    return asked, nodes


def take_largest(nodes: list[int], known: Mapping[int, Expected], most: int) -> list[int]:
    """As many of the nodes as one question may ask about, those with most patients, in their order."""
    if len(nodes) <= most:
        return nodes
    by_size = sorted(nodes, key=lambda node: -float(known[node].counts.sum()))
    return sorted(by_size[:most])


def used_above(nodes: Sequence[GrowingNode], parents: Mapping[int, int], node: int) -> set[int]:
    """The attributes asked on the way to a node: they separate nobody any more."""
    used = set()
    while node in parents:
        node = parents[node]
        above = nodes[node].attribute
        if above is not None:
            used.add(above)
    return used


def screen(found: Estimate, most: int) -> list[int]:
    """So many attributes of least estimated entropy, in their order."""
    cells = found.tables[1:]
    starts = np.cumsum([0, *found.sizes[:-1]])
    patients = cells.sum(axis=1)
    spread = np.add.reduceat(xlog2x(patients) - xlog2x(cells).sum(axis=1), starts)
    entropy = spread / np.maximum(np.add.reduceat(patients, starts), 1)
    return sorted(np.argsort(entropy, kind="stable")[:most].tolist())


def choose_attribute(found: Estimate, used: set[int]) -> int | None:
    """The attribute of least estimated entropy, or None where there is none to ask, the node looks pure, or holds too
    few patients to tell from noise. METHODS.md asks for twice this number of patients before splitting on raw counts;
    estimates that lean on the level above bear half of it."""
    left = [index for index in range(len(found.sizes)) if index not in used]
    table = np.rint(found.tables).astype(np.int64)
    if not left or np.count_nonzero(table[0]) < 2:
        return None
    part = table[[0, *cells_of(found.sizes, left)]]
    (position,) = choose([part], [found.sizes[index] for index in left], min_leaf=1)
    if position is None:
        return None
    cells = found.sizes[left[position]] * table.shape[1]
    enough = float(found.counts.sum()) > math.sqrt(found.noise * cells)
    return left[position] if enough else None


def as_patients(counts: NDArray[np.float64], parent: Counts) -> Counts:
    """Estimated class counts as whole patients; a node that nobody reaches keeps what its parent says."""
    whole: Counts = np.rint(counts).astype(np.int64)
    return whole if whole.any() else parent
