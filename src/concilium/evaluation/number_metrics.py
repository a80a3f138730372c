"""The figures of metrics.json where a number is predicted: how far off, how much explained, how well ordered.

R squared is 1 - SSE / SST around the mean of the patients measured, so that it is below zero where that mean would have
done better. A figure that the patients cannot tell, such as a correlation where all have the same outcome, is None.
True values are taken as they are, also beyond the range that the study states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from concilium.evaluation.metrics import Figures, Floats, rank

NUMBER_FIGURES = ("rmse", "mae", "r2", "spearman", "mean", "median")
# Those in the unit of what is predicted.
IN_UNITS = frozenset({"rmse", "mae", "mean", "median"})
GROUPS = 10


def measure_numbers(truth: Sequence[float], predicted: Sequence[float]) -> Figures:
    """All figures for these patients; mean and median are those of the true values."""
    if not truth:
        return dict.fromkeys(NUMBER_FIGURES)
    # In units of a power of two about as large as the largest number: no square overflows, and no digit is lost.
    unit = 2.0 ** min(math.frexp(float(np.max(np.abs([truth, predicted]))))[1], 1023)
    true, guess = np.array(truth) / unit, np.array(predicted) / unit
    off = guess - true
    residual, spread = float(off @ off), float(np.sum((true - true.mean()) ** 2))
    return {
        "rmse": unit * (residual / len(true)) ** 0.5,
        "mae": unit * float(np.abs(off).mean()),
        "r2": None if is_constant(true) or not spread else 1 - residual / spread,
        "spearman": spearman(true, guess),
        "mean": unit * float(true.mean()),
        "median": unit * float(np.median(true)),
    }


def spearman(true: Floats, guess: Floats) -> float | None:
    """The correlation of ranks, ties sharing theirs; None where one of the two is the same for everybody."""
    if is_constant(true) or is_constant(guess):
        return None
    return float(np.corrcoef(rank(true), rank(guess))[0, 1])


def is_constant(values: Floats) -> bool:
    return bool(np.all(values == values[0]))


def calibrate(truth: Sequence[float], predicted: Sequence[float]) -> list[dict[str, Any]]:
    """Patients in tenths by their prediction: how many, and the means of what was predicted and observed.

    Equal predictions are in one group, so that groups may be of unequal size and fewer than ten.
    """
    true, guess = np.array(truth), np.array(predicted)
    tenth = np.floor(GROUPS * (rank(guess) - 0.5) / max(len(guess), 1))
    return [
        {
            "patients": int(np.sum(tenth == group)),
            "predicted": float(guess[tenth == group].mean()),
            "observed": float(true[tenth == group].mean()),
        }
        for group in np.unique(tenth)
    ]
