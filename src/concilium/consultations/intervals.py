"""The interval of a private answer: between which risks the truth is, by noise, by chance, and by how cells differ.

Every count that an answer takes is known with a deviation (cube.py). A share of a value is a count beside those of its
own table, so that the noise of other tables does not enter it. Counts are not below zero, so their laws are normal ones
cut there; the odds are what comes of draws from them. The draws are the same for everybody: an answer that is asked
again is the same. It sees nothing but the release, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from concilium.trees.body import BEFOREHAND

if TYPE_CHECKING:
    from concilium.models.intervals import Interval
    from concilium.trees.naive_bayes import NaiveBayesBody

DRAWS = 2000
LEVEL = 0.95
Table = NDArray[np.float64]


def find_interval(
    counts: Table,
    deviations: Table,
    rows: Sequence[int],
    learned: NaiveBayesBody,
    reached: Sequence[int],
    best: int,
) -> Interval:
    """The interval of a class for a patient with the values of these rows of a population's table; the first row are
    its class counts. It reaches to the odds of attributes that repeat each other, as that of naive Bayes does."""
    taken = [0, *rows]
    drawn = draw_counts(counts[taken], deviations[taken])
    classes = np.maximum(drawn[:, 0], 0.5)
    shares = classes / classes.sum(axis=1, keepdims=True)
    held = np.maximum(counts[0], 0.5)
    given = (drawn[:, 1:] + BEFOREHAND * shares[:, None]) / (held + BEFOREHAND * shares)[:, None]
    base = _find_odds(np.log(shares), best)
    odds = _find_odds(np.log(shares) + np.log(given).sum(axis=1), best)
    times = learned.count_repeated(reached, best)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    limits = np.quantile([odds, base + (odds - base) / times], ends, axis=1)
    low, high = 1 / (1 + np.exp(-limits[0].min())), 1 / (1 + np.exp(-limits[1].max()))
    return float(low), float(high)


def draw_counts(counts: Table, deviations: Table) -> Table:
    """Draws [draw, row, class] of normal laws that are cut at zero."""
    below = ndtr(-counts / np.maximum(deviations, 1e-9))
    uniform = _draw_uniform(counts.size).reshape(DRAWS, *counts.shape)
    drawn: Table = counts + deviations * ndtri(below + uniform * (1 - below))
    return np.maximum(drawn, 0)


@cache
def _draw_uniform(many: int) -> Table:
    drawn = np.random.default_rng(35).random((DRAWS, many))
    drawn.setflags(write=False)
    return drawn


def _find_odds(scores: Table, best: int) -> Table:
    odds: Table = scores[:, best] - np.logaddexp.reduce(np.delete(scores, best, axis=1), axis=1)
    return odds
