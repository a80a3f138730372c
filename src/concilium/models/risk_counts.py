"""Patients by class and chance, as sites count them for a decision by a sensitivity or by Youden (decision.py).

Chances are counted as log odds in bins of one width, from the least to the greatest that the model can give (or 8 on
either side): they follow from the model that the question carries, and no edge is asked for by itself. 514 numbers, by
which a threshold is chosen to a 255th of what the model can say, a sixteenth of log odds at the most. Exact and masked
studies alone ask for them, whose answers have no bound, and only those that decide so: methods hold the questions of
their studies to it (`find_objection`, `plan`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.models.threshold import LEARNED_FROM, Tally

EDGES = 256
# Of each class: a bin that ends with the first edge, one between every two, and one that begins with the last.
BINS = EDGES + 1
FURTHEST = 8.0
NARROWEST = 1e-6


def find_edges(low: float, high: float) -> NDArray[np.float64]:
    """Edges for a model whose log odds are between these. The first and the last are half a bin further out, so that no
    rounding puts those with the least or the greatest odds on another side than the model's own."""
    low, high = (min(max(end, -FURTHEST), FURTHEST) for end in (low, high))
    beyond = max(high - low, NARROWEST) / (2 * (EDGES - 2))
    return np.linspace(low - beyond, high + beyond, EDGES)


def count_chances(
    odds: NDArray[np.float64], positive: NDArray[np.bool_], edges: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Patients with these log odds by class and bin, [class, bin], negative first."""
    cells = positive * BINS + np.searchsorted(edges, odds, side="right")
    return np.bincount(cells, minlength=2 * BINS).reshape(2, BINS)


def read_chances(counts: NDArray[np.int64], edges: NDArray[np.float64], who: str = LEARNED_FROM) -> Tally:
    """What these counts tell; a bin stands for its lower end."""
    negatives, positives = counts.reshape(2, BINS).tolist()
    return Tally([0.0, *probability(edges).tolist()], negatives, positives, who)


def probability(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that goes with log odds, without overflow."""
    half: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * odds))
    return half
