"""Growing a tree from noisy counts: every number the house sees has Gaussian noise added in shares by the sites.

Who is protected: every patient of every site, from the house and up to t colluding sites, at the total price that
`TreeBudget` spreads over the levels: one patient adds 1 to one cell of each attribute's table at one node of a level,
so a level with A attributes (and the class counts) has squared L2 sensitivity A + 1, and nodes of one level compose
in parallel (docs/methods.md, 1.9). The root asks for all attributes, weight 3; later levels ask for the five best
by noisy gain, weight 1 each; the leaves' class counts, weight 1 and that of levels which were not reached, and those of
held-out patients, where the tree is pruned, weight 1. What is asked next depends on noisy counts alone, so choosing,
grouping, screening, stopping and estimating are free. Without noise the tree predicts what the exact tree does.

Estimating takes as much noise out of the counts of a node as arithmetic can. It sees no patient, so it costs nothing.
- A node's class counts, the sum of each attribute's table and what the level above counted for the branch are
  estimates of the same numbers: they are averaged, each by the inverse of its variance, and tables made to add up.
- The class shares of a cell are drawn towards those that the level above lets expect if attributes were independent
  within a class, as naive Bayes takes them to be: the more, the larger the noise is beside `MISFIT` of the count.
Without noise every estimate is the count itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.models.intervals import WITHIN_95
from concilium.privacy.shares import RESERVE, variance_within
from concilium.protocol.attributes import NOWHERE, Attribute
from concilium.protocol.counts import Counts
from concilium.protocol.questions import MOST_NOISY_NUMBERS, Conversation
from concilium.protocol.schema import SharedSchema
from concilium.protocol.splits import STAYS, Split, distinct
from concilium.trees.grouping import Grouped, ungrouped
from concilium.trees.growing import GrowingNode, TreeGrowth, cells_of, choose, xlog2x

Numbers = NDArray[np.float64]

# How far, as a share of itself, a class count is taken to lie from what independence lets expect. Between 0.15 and 0.5
# AUC depended little on it, with and without strong interactions; the smaller it is, the less noise is trusted.
MISFIT = 0.2
# At the root nothing is known of how attributes and classes go together, so that more is taken to differ. Chosen on
# seven tables of scikit-learn and SurvSet at epsilon 1: AUC .645, .677, .690, .693 and Brier .903, .874, .861, .871 of
# the base rate's at .2, .35, .5 and 1.
ROOT_MISFIT = 0.5
SCREENED = 5
ID3 = TreeGrowth(None, 1)
ROOT_WEIGHT = 3
# Given a schema, splits, nodes, which attributes to count and a variance: noisy counts, [node, cell, class].
NoisyCount = Callable[[SharedSchema, list[Split], list[int], list[int], Fraction], Conversation[Counts]]


@dataclass(frozen=True)
class ExpectedCounts:
    """What is known of a node before it is counted (again): class counts with the variance of their noise, class
    shares, and for every value of every attribute how often each class has it (`given`, [cell, class])."""

    counts: Numbers
    variance: float
    shares: Numbers
    given: Numbers


@dataclass(frozen=True)
class _NodeEstimate:
    """A node's class counts and tables: `patients` of each cell and their `shares` by class, [cell, class]."""

    sizes: tuple[int, ...]
    counts: Numbers
    variance: float
    class_shares: Numbers
    cells: Numbers
    noise: float
    shares: Numbers

    @cached_property
    def patients(self) -> Numbers:
        counted: Numbers = np.maximum(self.cells.sum(axis=1), 0)
        return counted

    @cached_property
    def tables(self) -> Numbers:
        """Patients by cell and class, nobody below zero; the first row is the node's class counts."""
        cells: Numbers = np.concatenate([self.counts[None, :], self.patients[:, None] * self.shares])
        return cells

    def keep(self, attributes: Sequence[int]) -> _NodeEstimate:
        """The estimate of these attributes only."""
        starts = np.cumsum([0, *self.sizes])
        cells = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in attributes])
        sizes = tuple(self.sizes[index] for index in attributes)
        return replace(self, sizes=sizes, cells=self.cells[cells], shares=self.shares[cells])

    def expect_child(self, attribute: int, values: Sequence[int]) -> ExpectedCounts:
        """What this node says of its patients who have one of these values."""
        start = sum(self.sizes[:attribute])
        cells = [start + value for value in values]
        shares = self.shares[cells[0]]
        if self.patients[cells].any():
            shares = np.average(self.shares[cells], axis=0, weights=self.patients[cells])
        return ExpectedCounts(self.cells[cells].sum(axis=0), len(cells) * self.noise, shares, self._given)

    @property
    def again(self) -> ExpectedCounts:
        """What this node says of itself, should it be counted once more."""
        return ExpectedCounts(self.counts, self.variance, self.class_shares, self._given)

    @cached_property
    def _given(self) -> Numbers:
        cells = self.tables[1:]
        totals = np.repeat(_sum_tables(cells, self.sizes), self.sizes, axis=0)
        return np.divide(cells, totals, out=np.zeros_like(cells), where=totals > 0)


def estimate(
    table: NDArray[np.int64],
    sizes: Sequence[int],
    variance: float,
    expected: ExpectedCounts | None = None,
    misfit: float = MISFIT,
) -> _NodeEstimate:
    """The estimate of a node from its noisy class counts and tables, [1 + cell, class], all of this variance."""
    widths = np.array(sizes, dtype=np.float64)[:, None]
    sums = _sum_tables(table[1:], sizes)
    # The sum of a table of k cells has k times the noise of the node's own class counts.
    precision = 1 + float((1 / widths).sum())
    counts = (table[0] + (sums / widths).sum(axis=0)) / precision
    spread = variance / precision
    if expected is not None:
        trust = expected.variance / (expected.variance + spread)
        counts = trust * counts + (1 - trust) * expected.counts
        spread *= trust
    prior = np.full(len(counts), 1 / len(counts)) if expected is None else expected.shares
    shares = _find_shares(counts, prior, 0.0 if expected is None else spread)
    counts = max(float(counts.sum()), 0.0) * shares
    cells = table[1:].astype(np.float64) + np.repeat((counts - sums) / widths, sizes, axis=0)
    likely = np.ones_like(cells) if expected is None else expected.given
    likely = likely * shares
    certain = likely.sum(axis=1, keepdims=True)
    likely = np.divide(likely, certain, out=np.broadcast_to(shares, likely.shape).copy(), where=certain > 0)
    return _NodeEstimate(
        tuple(sizes), counts, spread, shares, cells, variance, _find_shares(cells, likely, variance, misfit)
    )


def _estimate_leaf(counts: NDArray[np.int64], variance: float, expected: ExpectedCounts) -> _NodeEstimate:
    """The estimate of a leaf: of its class counts alone."""
    return estimate(counts[None, :], (), variance, replace(expected, given=np.empty((0, len(counts)))))


def _find_shares(counts: Numbers, expected: Numbers, variance: float, misfit: float = MISFIT) -> Numbers:
    """Class shares (the last axis) of noisy counts, drawn towards the expected ones as far as noise hides them."""
    patients = np.maximum(counts.sum(axis=-1, keepdims=True), 0)
    likely = patients * expected
    doubt = (misfit * np.maximum(likely, 1)) ** 2
    trust = doubt / (doubt + variance)
    mixed = np.maximum(trust * counts + (1 - trust) * likely, 0)
    total = mixed.sum(axis=-1, keepdims=True)
    shares: Numbers = np.divide(mixed, total, out=expected + np.zeros_like(mixed), where=patients * total > 0)
    return shares


def _sum_tables(cells: NDArray[np.int64] | Numbers, sizes: Sequence[int]) -> Numbers:
    """The class counts that each attribute's table adds up to, [attribute, class]."""
    totals = np.concatenate([np.zeros((1, cells.shape[1])), np.cumsum(cells, axis=0, dtype=np.float64)])
    ends = np.cumsum([0, *sizes])
    sums: Numbers = np.diff(totals[ends], axis=0)
    return sums


@dataclass(frozen=True)
class TreeBudget:
    """rho spread over the questions of a tree: histograms for cutoffs if asked, the root, `depth - 1` further
    levels, the leaves, and the leaves again for held-out patients if it is pruned. `least` is the variance below which
    noise in shares cannot go."""

    rho: Fraction
    depth: int
    cutoffs: bool = False
    prune: bool = False
    root_weight: int = ROOT_WEIGHT
    screened: int = SCREENED
    least: Fraction = Fraction(0)

    @property
    def weights(self) -> list[int]:
        """Of the levels, the root first, and of the leaves; histograms and held-out patients have weight 1."""
        return [self.root_weight, *[1] * (self.depth - 1), 1]

    def share(self, weight: int = 1) -> Fraction:
        """rho of a question of this weight."""
        return self.rho * weight / (sum(self.weights) + self.cutoffs + self.prune)

    def variance_of_cutoffs(self, attributes: int) -> Fraction:
        """The variance of the noise of histograms of so many attributes."""
        return self._variance(1, attributes)

    @property
    def variance_of_pruning(self) -> Fraction:
        """The variance of the noise of the class counts of held-out patients."""
        return self._variance(1, 1)

    def variance(self, question: int, attributes: int) -> Fraction:
        """The variance of the noise of a question about so many attributes."""
        return self._variance(self.weights[question], attributes + 1)

    def variance_of_leaves(self, levels: int) -> Fraction:
        """The variance of the noise of the leaves' class counts, when so many levels were asked before."""
        return self._variance(sum(self.weights[levels:]), 1)

    @property
    def most_screened(self) -> int:
        """How many attributes go on below the root: more than `screened` where they would not add to the noise."""
        free = 2 * self.share() * (1 - RESERVE) * self.least
        return max(self.screened, int(free) - 1)

    def _variance(self, weight: int, sensitivity_squared: int) -> Fraction:
        return max(variance_within(self.share(weight), sensitivity_squared), self.least)


def grow_privately(
    schema: SharedSchema, count: NoisyCount, budget: TreeBudget, growth: TreeGrowth = ID3
) -> Conversation[tuple[SharedSchema, list[GrowingNode]]]:
    """The attributes that were screened in, and all nodes of the tree, the root first, with noisy counts.

    Where `growth` parts or groups values, a branch has at least as many patients as noise could hide, and values that
    by the noisy counts nobody has get no branch.
    """
    classes = schema.classes.size
    nodes = [GrowingNode(0, np.zeros(classes, dtype=np.int64))]
    parents: dict[int, int] = {}
    expectations: dict[int, ExpectedCounts] = {}
    splits: list[Split] = []
    frontier, asked, levels = [0], schema, 0
    # Where values have no branch, pruning asks about their patients too: at most as many places again.
    leaves, most_leaves = 1, MOST_NOISY_NUMBERS // (2 * classes)
    while frontier and levels < budget.depth:
        sizes = [attribute.size for attribute in asked.attributes]
        frontier = _take_largest(frontier, expectations, MOST_NOISY_NUMBERS // ((1 + sum(sizes)) * classes))
        variance = budget.variance(levels, len(sizes))
        tables = yield from count(asked, splits, frontier, list(range(len(sizes))), variance)
        levels += 1
        fresh: list[int] = []
        for node, table in zip(frontier, tables, strict=True):
            misfit = MISFIT if node else ROOT_MISFIT
            node_estimate = estimate(table, sizes, float(variance), expectations.get(node), misfit)
            if node == 0:
                best = _screen(_arrange(node_estimate, asked, growth).table, sizes, budget.most_screened)
                node_estimate, asked = node_estimate.keep(best), asked.keep(best)
            own = estimate(table, sizes, float(variance))
            nodes[node].measured = np.rint(own.counts).astype(np.int64)
            nodes[node].variance = own.variance
            expectations[node] = node_estimate.again
            nodes[node].counts = _as_patients(node_estimate.counts, nodes[node].counts)
            left = _left_above(nodes, parents, node)
            grouped = _arrange(node_estimate, asked, growth, left)
            attribute = _choose_attribute(node_estimate, grouped.table, left)
            if attribute is None or leaves + node_estimate.sizes[attribute] > most_leaves:
                continue
            nodes[node].attribute = attribute
            nodes[node].children = [STAYS] * node_estimate.sizes[attribute]
            for values in _find_branches(grouped, asked.attributes, attribute, every_value=not growth.joins):
                parents[len(nodes)] = node
                expectations[len(nodes)] = node_estimate.expect_child(attribute, values)
                for value in values:
                    nodes[node].children[value] = len(nodes)
                fresh.append(len(nodes))
                nodes.append(GrowingNode(levels, nodes[node].counts))
                leaves += 1
            leaves -= 1
            splits.append(Split(node, attribute, nodes[node].children))
        frontier = fresh
    resting = [index for index, node in enumerate(nodes) if node.attribute is None]
    variance = budget.variance_of_leaves(levels)
    tables = yield from count(asked, splits, resting, [], variance)
    for leaf, table in zip(resting, tables, strict=True):
        node_estimate = _estimate_leaf(table[0], float(variance), expectations[leaf])
        # Fewer patients than the noise's standard deviation cannot be told from it.
        patients = max(float(node_estimate.counts.sum()), math.sqrt(float(variance) * classes))
        nodes[leaf].counts = _as_patients(patients * node_estimate.class_shares, nodes[leaf].counts)
        nodes[leaf].measured, nodes[leaf].variance = table[0], float(variance)
    _add_up_measured(nodes)
    return asked, nodes


def _add_up_measured(nodes: Sequence[GrowingNode]) -> None:
    """Give a node what was measured at the leaves below it, where that has less noise than its own counts; children
    come after their parents."""
    for node in reversed(nodes):
        below = [nodes[child] for child in distinct(node.children)]
        if below and sum(child.variance for child in below) < (node.variance or math.inf):
            node.measured = np.sum([child.measured for child in below if child.measured is not None], axis=0)
            node.variance = sum(child.variance for child in below)


def _take_largest(nodes: list[int], expectations: Mapping[int, ExpectedCounts], most: int) -> list[int]:
    """As many of the nodes as one question may ask about, those with most patients, in their order."""
    if len(nodes) <= most:
        return nodes
    by_size = sorted(nodes, key=lambda node: -float(expectations[node].counts.sum()))
    return sorted(by_size[:most])


def _left_above(nodes: Sequence[GrowingNode], parents: Mapping[int, int], node: int) -> dict[int, set[int]]:
    """For the attributes asked on the way to a node the values that are left; of one alone nobody can be separated."""
    left: dict[int, set[int]] = {}
    while node in parents:
        child, node = node, parents[node]
        above = nodes[node].attribute
        assert above is not None
        taken = {place for place, end in enumerate(nodes[node].children) if end == child}
        left[above] = left.get(above, taken) & taken
    return left


def _arrange(
    node_estimate: _NodeEstimate,
    schema: SharedSchema,
    growth: TreeGrowth,
    left: Mapping[int, set[int]] | None = None,
) -> Grouped:
    """An estimated table in whole patients, its values as branches; those that are not `left` at this node are noise
    alone and count as none where values are joined."""
    table = np.rint(node_estimate.tables).astype(np.int64)
    if not growth.joins:
        return ungrouped(table)
    for attribute, places in (left or {}).items():
        cells = cells_of(node_estimate.sizes, [attribute])
        table[[cell for place, cell in enumerate(cells) if place not in places]] = 0
    noise = math.sqrt(node_estimate.noise * table.shape[1])
    for place, attribute_ in enumerate(schema.attributes):
        cells = cells_of(node_estimate.sizes, [place])
        for cell in {attribute_.missing_cell, attribute_.other_cell} - {NOWHERE}:
            if node_estimate.patients[cells[cell] - 1] <= WITHIN_95 * noise:
                table[cells[cell]] = 0
    hidden = math.ceil(noise)
    return replace(growth, min_leaf=max(growth.min_leaf, hidden)).arrange(table, schema.attributes)


def _find_branches(
    grouped: Grouped, attributes: Sequence[Attribute], attribute: int, *, every_value: bool
) -> list[list[int]]:
    """The cells of each branch of a split: every value its own, or those of a group that somebody is in."""
    start = 1 + sum(one.size for one in attributes[:attribute])
    branches: dict[int, list[int]] = {}
    for value in attributes[attribute].in_branch_order:
        first = int(grouped.first[start + value])
        if every_value or grouped.table[first].any():
            branches.setdefault(first, []).append(value)
    return list(branches.values())


def _screen(table: Counts, sizes: Sequence[int], most: int) -> list[int]:
    """So many attributes of least estimated entropy, in their order."""
    starts = np.cumsum([0, *sizes[:-1]])
    patients = table[1:].sum(axis=1)
    spread = np.add.reduceat(xlog2x(patients) - xlog2x(table[1:]).sum(axis=1), starts)
    entropy = spread / np.maximum(np.add.reduceat(patients, starts), 1)
    return sorted(np.argsort(entropy, kind="stable")[:most].tolist())


def _choose_attribute(
    node_estimate: _NodeEstimate, table: Counts, left: Mapping[int, set[int]]
) -> int | None:
    """The attribute of least estimated entropy, or None where there is none to ask, the node looks pure, or holds too
    few patients to tell from noise. Raw counts would ask for twice this number (section 1.9);
    estimates that lean on the level above bear half of it."""
    open_ = [index for index in range(len(node_estimate.sizes)) if len(left.get(index, ())) != 1]
    if not open_ or np.count_nonzero(table[0]) < 2:
        return None
    part = table[[0, *cells_of(node_estimate.sizes, open_)]]
    (position,) = choose([part], [node_estimate.sizes[index] for index in open_], min_leaf=1)
    if position is None:
        return None
    cells = node_estimate.sizes[open_[position]] * table.shape[1]
    enough = float(node_estimate.counts.sum()) > math.sqrt(node_estimate.noise * cells)
    return open_[position] if enough else None


def _as_patients(counts: NDArray[np.float64], parent: Counts) -> Counts:
    """Estimated class counts as whole patients; a node that nobody reaches keeps what its parent says."""
    whole: Counts = np.rint(counts).astype(np.int64)
    return whole if whole.any() else parent
