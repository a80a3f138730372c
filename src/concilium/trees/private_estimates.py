"""What the noisy tables of a node say together: the same counts with as much noise taken out as arithmetic can.

Post-processing of noisy counts for private trees (docs/methods.md, 1.9): it sees no patient, so it costs nothing.
- A node's class counts, the sum of each attribute's table and what the level above counted for the branch are
  estimates of the same numbers: they are averaged, each by the inverse of its variance, and tables made to add up.
- The class shares of a cell are drawn towards those that the level above lets expect if attributes were independent
  within a class, as naive Bayes takes them to be: the more, the larger the noise is beside `MISFIT` of the count.
Without noise every estimate is the count itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

# How far, as a share of itself, a class count is taken to lie from what independence lets expect. Between 0.15 and 0.5
# AUC depended little on it, with and without strong interactions; the smaller it is, the less noise is trusted.
MISFIT = 0.2


@dataclass(frozen=True)
class ExpectedCounts:
    """What is known of a node before it is counted (again): class counts with the variance of their noise, class
    shares, and for every value of every attribute how often each class has it (`given`, [cell, class])."""

    counts: Numbers
    variance: float
    shares: Numbers
    given: Numbers


@dataclass(frozen=True)
class NodeEstimate:
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

    def keep(self, attributes: Sequence[int]) -> NodeEstimate:
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
        totals = np.repeat(sum_tables(cells, self.sizes), self.sizes, axis=0)
        return np.divide(cells, totals, out=np.zeros_like(cells), where=totals > 0)


def estimate(
    table: NDArray[np.int64], sizes: Sequence[int], variance: float, expected: ExpectedCounts | None = None
) -> NodeEstimate:
    """The estimate of a node from its noisy class counts and tables, [1 + cell, class], all of this variance."""
    widths = np.array(sizes, dtype=np.float64)[:, None]
    sums = sum_tables(table[1:], sizes)
    # The sum of a table of k cells has k times the noise of the node's own class counts.
    precision = 1 + float((1 / widths).sum())
    counts = (table[0] + (sums / widths).sum(axis=0)) / precision
    spread = variance / precision
    if expected is not None:
        trust = expected.variance / (expected.variance + spread)
        counts = trust * counts + (1 - trust) * expected.counts
        spread *= trust
    prior = np.full(len(counts), 1 / len(counts)) if expected is None else expected.shares
    shares = find_shares(counts, prior, 0.0 if expected is None else spread)
    counts = max(float(counts.sum()), 0.0) * shares
    cells = table[1:].astype(np.float64) + np.repeat((counts - sums) / widths, sizes, axis=0)
    likely = np.ones_like(cells) if expected is None else expected.given
    likely = likely * shares
    certain = likely.sum(axis=1, keepdims=True)
    likely = np.divide(likely, certain, out=np.broadcast_to(shares, likely.shape).copy(), where=certain > 0)
    return NodeEstimate(
        tuple(sizes), counts, spread, shares, cells, variance, find_shares(cells, likely, variance)
    )


def estimate_leaf(counts: NDArray[np.int64], variance: float, expected: ExpectedCounts) -> NodeEstimate:
    """The estimate of a leaf: of its class counts alone."""
    return estimate(counts[None, :], (), variance, replace(expected, given=np.empty((0, len(counts)))))


def find_shares(counts: Numbers, expected: Numbers, variance: float) -> Numbers:
    """Class shares (the last axis) of noisy counts, drawn towards the expected ones as far as noise hides them."""
    patients = np.maximum(counts.sum(axis=-1, keepdims=True), 0)
    likely = patients * expected
    doubt = (MISFIT * np.maximum(likely, 1)) ** 2
    trust = doubt / (doubt + variance)
    mixed = np.maximum(trust * counts + (1 - trust) * likely, 0)
    total = mixed.sum(axis=-1, keepdims=True)
    shares: Numbers = np.divide(mixed, total, out=expected + np.zeros_like(mixed), where=patients * total > 0)
    return shares


def sum_tables(cells: NDArray[np.int64] | Numbers, sizes: Sequence[int]) -> Numbers:
    """The class counts that each attribute's table adds up to, [attribute, class]."""
    totals = np.concatenate([np.zeros((1, cells.shape[1])), np.cumsum(cells, axis=0, dtype=np.float64)])
    ends = np.cumsum([0, *sizes])
    sums: Numbers = np.diff(totals[ends], axis=0)
    return sums
