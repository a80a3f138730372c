"""From shared histograms to the attributes of a model: cutoffs, bounds, scales (docs/methods.md, 2.2 and 2.5).

All of it is computed by the house from counts between public edges, exact or with noise; noise below zero counts as
none, so that the distribution function never falls, and a quantile is the right edge of the bin in which it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.protocol.edges import choose_cutoffs
from concilium.rulefit.terms import WIDEST, Line

# Friedman and Popescu (2008): values beyond the 2.5 % quantiles are held there; 0.4 is the deviation of a rule.
TAIL = 0.025
RULE_DEVIATION = 0.4
# Public edges for a second look at a column of which no patient lies between the study's own.
WIDE_EDGES = tuple(sorted([0.0, *(sign * 10.0**power for power in range(-6, 10) for sign in (-1.0, 1.0))]))


def cut(attribute: Attribute, histogram: NDArray[np.int64], cutoffs: int | None) -> Attribute | None:
    """The attribute with at most so many of its edges, at even quantiles; None where all patients are in one bin."""
    bins = np.maximum(histogram[1:], 0)
    if np.count_nonzero(bins) < 2:
        return None
    if cutoffs is None or len(attribute.edges) <= cutoffs:
        return attribute
    chosen = choose_cutoffs(histogram, attribute.edges, cutoffs)
    # Where every quantile is in the last bin with patients, its left edge tells the others apart.
    return Attribute(attribute.name, tuple(chosen) or (attribute.edges[np.flatnonzero(bins)[-1] - 1],))


def measure(index: int, edges: Sequence[float], histogram: NDArray[np.int64]) -> Line | None:
    """The linear term of an attribute: held between its 2.5 % quantiles, centred at its median, in units that give
    it the standard deviation of a rule. None where that is no more than one point."""
    bins = np.maximum(histogram[1:], 0)
    total = int(bins.sum())
    if total == 0 or len(edges) < 2:
        return None
    low, middle, high = (quantile(bins, edges, share) for share in (TAIL, 0.5, 1 - TAIL))
    if low >= high:
        return None
    ends = np.array([low, *edges, high])
    lower = np.clip(ends[:-1], low, high)
    upper = np.clip(ends[1:], low, high)
    middles = (lower + upper) / 2
    mean = float(bins @ middles) / total
    deviation = float(np.sqrt(bins @ (middles - mean) ** 2 / total))
    if deviation <= (high - low) * RULE_DEVIATION / WIDEST:
        return None
    return Line(index, low, high, min(max(middle, low), high), RULE_DEVIATION / deviation)


def rescale(lines: Sequence[Line], deviations: Sequence[float]) -> list[Line]:
    """Linear terms whose columns have these standard deviations, in units that give them that of a rule; those that
    hardly vary are left out."""
    own = [
        RULE_DEVIATION * line.scale / deviation if deviation > 0 else 0.0
        for line, deviation in zip(lines, deviations, strict=True)
    ]
    pairs = zip(lines, own, strict=True)
    return [
        msgspec.structs.replace(line, scale=scale)
        for line, scale in pairs
        if scale > 0 and scale * (line.high - line.low) < WIDEST
    ]


def quantile(bins: NDArray[np.int64], edges: Sequence[float], share: float) -> float:
    """The right edge of the bin where this share of the patients is reached; the last bin has only a left one."""
    reached = np.cumsum(bins)
    at = int(np.searchsorted(reached, share * reached[-1]))
    return float(edges[min(at, len(edges) - 1)])


def missed(histogram: NDArray[np.int64]) -> bool:
    """Whether all patients with a value lie beyond the edges, on one side."""
    bins = np.maximum(histogram[1:], 0)
    return len(bins) > 2 and bool(bins.sum() > 0 and max(bins[0], bins[-1]) == bins.sum())


def say_missed(edges: Sequence[float], wide: NDArray[np.int64]) -> str:
    """What to say of bins that miss all data: which they are, and which range would do."""
    bins = np.maximum(wide[1:], 0)
    held = np.flatnonzero(bins)
    ends = (-np.inf, *WIDE_EDGES, np.inf)
    would = "give edges within the range of the column"
    if held.size:  # a site that leaves small counts out does not say where its patients are
        would = f"edges between {ends[held[0]]:g} and {ends[held[-1] + 1]:g} would do"
    return f"its bins, {edges[0]:g} to {edges[-1]:g}, miss all patients: {would}"
