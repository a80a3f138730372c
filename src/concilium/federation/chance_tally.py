"""Patients by class and chance, as sites count them for a decision by a sensitivity or by Youden (decision.py).

Chances are counted as log odds in bins of a quarter, which are public and the same for everybody: 132 numbers, by which
a threshold is chosen to a quarter of log odds. Exact and masked studies alone ask for them, whose answers have no
bound, and only those that decide so: methods hold the questions of their studies to it (`find_objection`, `plan`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.federation.decision import LEARNED_FROM, Tally

LOG_ODDS = tuple(quarter / 4 for quarter in range(-32, 33))
# Of each class: a bin that ends with the first, one between every two, and one that begins with the last.
BINS = len(LOG_ODDS) + 1


def count_chances(odds: NDArray[np.float64], positive: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Patients with these log odds by class and bin, [class, bin], negative first."""
    cells = positive * BINS + np.searchsorted(LOG_ODDS, odds, side="right")
    return np.bincount(cells, minlength=2 * BINS).reshape(2, BINS)


def read_chances(counts: NDArray[np.int64], who: str = LEARNED_FROM) -> Tally:
    """What these counts tell; a bin stands for its lower end."""
    negatives, positives = counts.reshape(2, BINS).tolist()
    return Tally([0.0, *probability(np.array(LOG_ODDS)).tolist()], negatives, positives, who)


def probability(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that goes with log odds, without overflow."""
    half: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * odds))
    return half
