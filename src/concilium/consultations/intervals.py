"""The interval of a private answer: between which risks the truth is, by noise, by chance, and by how cells differ.

Every count that an answer takes is known with a deviation (cube.py). A share of a value is a count beside those of its
own table, so that the noise of other tables does not enter it. Counts are not below zero, so their laws are normal ones
cut there; the odds are what comes of draws from them. The draws are the same for everybody: an answer that is asked
again is the same. It sees nothing but the release, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.trees.body import BEFOREHAND

if TYPE_CHECKING:
    from concilium.models.intervals import Interval
    from concilium.trees.naive_bayes import NaiveBayesBody

DRAWS = 2000
ENDS = 0.025, 0.975
Table = NDArray[np.float64]


def find_interval(
    counts: Table,
    measured: Table,
    deviations: Table,
    rows: Sequence[int],
    learned: NaiveBayesBody,
    reached: Sequence[int],
    best: int,
) -> Interval:
    """The interval of a class for a patient with the values of these rows of a population's table; the first row are
    its class counts. It reaches from their estimates to what was measured of them, and to the odds of attributes that
    repeat each other, as that of naive Bayes does."""
    drawn = draw_counts(counts[[0, *rows]], deviations[[0, *rows]])
    held = np.maximum(counts[0], 0.5)
    prior = BEFOREHAND * held / held.sum()
    said = np.log((drawn[:, 1:] + prior) / (held + prior)).sum(axis=1)
    times = learned.count_repeated(reached, best)
    limits = []
    for classes in (drawn[:, 0], draw_counts(np.maximum(measured[:1], 0), deviations[:1])[:, 0]):
        scores = np.log(np.maximum(classes, 0.5))
        base, odds = _find_odds(scores, best), _find_odds(scores + said, best)
        limits.append(np.quantile([odds, base + (odds - base) / times], ENDS, axis=1))
    low, high = 1 / (1 + np.exp([-np.min(limits), -np.max(limits)]))
    return float(low), float(high)


def draw_counts(counts: Table, deviations: Table) -> Table:
    """Draws [draw, row, class] of normal laws that are cut at zero."""
    places, shares = _tabulate_normal()
    below = np.interp(-counts / np.maximum(deviations, 1e-9), places, shares)
    uniform = _draw_uniform(counts.size).reshape(DRAWS, *counts.shape)
    drawn: Table = counts + deviations * np.interp(below + uniform * (1 - below), shares, places)
    return np.maximum(drawn, 0)


@cache
def _tabulate_normal() -> tuple[Table, Table]:
    """The normal law from -6 to 6: places, and the share below each."""
    places = np.linspace(-6, 6, 2401)
    return places, np.array([NormalDist().cdf(place) for place in places])


@cache
def _draw_uniform(many: int) -> Table:
    """Each column has every part of 0 to 1 once, in an order of its own."""
    parts = np.tile((np.arange(DRAWS) + 0.5) / DRAWS, (many, 1))
    drawn: Table = np.ascontiguousarray(np.random.default_rng(35).permuted(parts, axis=1).T)
    drawn.setflags(write=False)
    return drawn


def _find_odds(scores: Table, best: int) -> Table:
    odds: Table = scores[:, best] - np.logaddexp.reduce(np.delete(scores, best, axis=1), axis=1)
    return odds
