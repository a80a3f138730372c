"""The figures of metrics.json, from true labels, predicted labels and class probabilities.

Sensitivity, specificity, PPV, NPV, F1 and AUC are those of the positive class when there are two classes (or when a
positive class is named: that class against the rest), and plain means over the classes otherwise. A figure
that the patients cannot tell, such as the sensitivity at a hospital where nobody died, is None and never a
number. MCC is Matthews' coefficient and, for many classes, Gorodkin's R_K (Comput. Biol. Chem. 28, 2004).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIGURES = ("accuracy", "balanced_accuracy", "auc", "f1", "mcc", "sensitivity", "specificity", "ppv", "npv")

FIGURE_HEAD = ("figure", "value", "95 % interval")

Figures = dict[str, float | None]
Floats = NDArray[np.float64]


def list_figures(overall: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, str, str]]:
    """The figures that were measured, as text, each with its interval."""
    intervals = overall.get("intervals") or {}
    return [
        (name, f"{overall[name]:.3f}", " to ".join(f"{end:.3f}" for end in intervals.get(name) or ()))
        for name in names
        if isinstance(overall.get(name), int | float)
    ]


def measure(
    truth: Sequence[Hashable],
    predicted: Sequence[Hashable],
    probabilities: Floats,
    classes: Sequence[Hashable],
    positive: Hashable | None = None,
) -> Figures:
    """All figures for these patients; column j of `probabilities` belongs to `classes[j]`.

    A true label that is not among `classes` (the model never met it) counts as a class of its own, which the
    model gives probability zero. Without `positive`, the second of two classes is the positive one.
    """
    counted = count_patients(truth, predicted, probabilities, classes, positive)
    return {name: _as_figure(value) for name, value in counted.measure(np.ones((1, len(truth)))).items()}


@dataclass(frozen=True)
class _Counted:
    """Patients by their class, the class that was predicted and its probability, so that any of them may count more
    than once: `measure` takes how often each does, [times, patient], and gives every figure as often."""

    true: NDArray[np.intp]
    guess: NDArray[np.intp]
    scores: Floats
    of_interest: Sequence[int]

    def measure(self, weights: Floats) -> dict[str, Floats]:
        """The figures, NaN where the patients cannot tell."""
        times = len(weights)
        tables = _count_agreements(self.true, self.guess, self.scores.shape[1], weights)
        return {
            "accuracy": _accuracy(tables),
            "balanced_accuracy": _balanced_accuracy(tables),
            "auc": _mean(
                [weighted_auc(self.true == c, self.scores[:, c], weights) for c in self.of_interest], times
            ),
            "f1": _mean([_f1(tables, c) for c in self.of_interest], times),
            "mcc": _mcc(tables),
            "sensitivity": _mean([_sensitivity(tables, c) for c in self.of_interest], times),
            "specificity": _mean([_specificity(tables, c) for c in self.of_interest], times),
            "ppv": _mean([_ppv(tables, c) for c in self.of_interest], times),
            "npv": _mean([_npv(tables, c) for c in self.of_interest], times),
        }


def count_patients(
    truth: Sequence[Hashable],
    predicted: Sequence[Hashable],
    probabilities: Floats,
    classes: Sequence[Hashable],
    positive: Hashable | None = None,
) -> _Counted:
    """The patients as `measure` takes them."""
    labels = list(dict.fromkeys([*classes, *truth, *predicted]))
    number = {value: code for code, value in enumerate(labels)}
    true = np.array([number[value] for value in truth], dtype=np.intp)
    guess = np.array([number[value] for value in predicted], dtype=np.intp)
    scores = np.zeros((len(true), len(labels)))
    scores[:, : len(classes)] = probabilities

    if positive is None and len(labels) == 2:
        positive = labels[1]
    of_interest = range(len(labels)) if positive is None else [number[positive]] if positive in number else []
    return _Counted(true, guess, scores, of_interest)


def _as_figure(value: Floats) -> float | None:
    """One figure, None where the patients cannot tell."""
    return None if np.isnan(value[0]) else float(value[0])


def _count_agreements(
    truth: NDArray[np.intp], predicted: NDArray[np.intp], classes: int, weights: Floats
) -> Floats:
    """The confusion tables, [times, true class, predicted class]."""
    cells = truth * classes + predicted
    tables = np.zeros((len(weights), classes * classes))
    for cell in np.unique(cells):
        tables[:, cell] = weights[:, cells == cell].sum(axis=1)
    return tables.reshape(len(weights), classes, classes)


def _accuracy(tables: Floats) -> Floats:
    """Share of patients whose class was predicted; none without patients."""
    return ratio(np.trace(tables, axis1=1, axis2=2), tables.sum(axis=(1, 2)))


def _balanced_accuracy(tables: Floats) -> Floats:
    """Mean sensitivity over the classes that occur; none when fewer than two occur."""
    present = (tables.sum(axis=2) > 0).sum(axis=1)
    mean = _mean([_sensitivity(tables, c) for c in range(tables.shape[1])], len(tables))
    return np.where(present > 1, mean, np.nan)


def _sensitivity(tables: Floats, positive: int) -> Floats:
    """Share of the patients of this class who were found; none when there are none."""
    return ratio(tables[:, positive, positive], tables[:, positive].sum(axis=1))


def _specificity(tables: Floats, positive: int) -> Floats:
    """Share of the other patients who were left alone; none when there are none."""
    others = tables.sum(axis=(1, 2)) - tables[:, positive].sum(axis=1)
    alarms = tables[:, :, positive].sum(axis=1) - tables[:, positive, positive]
    return ratio(others - alarms, others)


def _ppv(tables: Floats, positive: int) -> Floats:
    """Share of the patients predicted to be of this class who are; none when nobody is."""
    return ratio(tables[:, positive, positive], tables[:, :, positive].sum(axis=1))


def _npv(tables: Floats, positive: int) -> Floats:
    """Share of the patients predicted to be of another class who are; none when nobody is."""
    spared = tables.sum(axis=(1, 2)) - tables[:, :, positive].sum(axis=1)
    missed = tables[:, positive].sum(axis=1) - tables[:, positive, positive]
    return ratio(spared - missed, spared)


def _f1(tables: Floats, positive: int) -> Floats:
    """Harmonic mean of precision and sensitivity; none when the class neither occurs nor is predicted."""
    either = tables[:, positive].sum(axis=1) + tables[:, :, positive].sum(axis=1)
    return ratio(2 * tables[:, positive, positive], either)


def _mcc(tables: Floats) -> Floats:
    """Correlation between truth and prediction; 0 for the same answer to all, none for one true class."""
    total = tables.sum(axis=(1, 2))
    # As shares of all: products of squared counts would leave what a number holds exactly.
    shares = tables / np.where(total > 0, total, 1)[:, None, None]
    true, predicted = shares.sum(axis=2), shares.sum(axis=1)
    one_true = (tables.sum(axis=2) > 0).sum(axis=1) < 2
    one_predicted = (tables.sum(axis=1) > 0).sum(axis=1) < 2
    spread = (1 - (true**2).sum(axis=1)) * (1 - (predicted**2).sum(axis=1))
    together = np.trace(shares, axis1=1, axis2=2) - (true * predicted).sum(axis=1)
    defined = ~(one_true | one_predicted)
    found = np.divide(
        together,
        np.sqrt(spread, where=defined, out=np.ones_like(spread)),
        where=defined,
        out=np.zeros_like(spread),
    )
    return np.where(one_true, np.nan, found)


def auc(positive: NDArray[np.bool_], scores: Floats) -> float | None:
    """Chance that a positive patient scores above another, ties counting half; None for one class only."""
    return _as_figure(weighted_auc(positive, scores, np.ones((1, len(scores)))))


def weighted_auc(positive: NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """The same where patients count as often as these weights, [times, patient], say."""
    if not len(scores):
        return np.full(len(weights), np.nan)
    order = np.argsort(scores, kind="stable")
    ordered, of_positive = scores[order], positive[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sorted_weights = weights[:, order]
    positives = np.add.reduceat(sorted_weights * of_positive, first, axis=1)
    others = np.add.reduceat(sorted_weights * ~of_positive, first, axis=1)
    below = np.cumsum(others, axis=1) - others
    won = (positives * (below + others / 2)).sum(axis=1)
    return ratio(won, positives.sum(axis=1) * others.sum(axis=1))


def _rank(values: Floats) -> Floats:
    """Ranks from 1; equal values have the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def ratio(part: Floats, whole: Floats) -> Floats:
    """NaN where there is no whole."""
    found: Floats = np.divide(part, whole, where=whole > 0, out=np.full(np.shape(whole), np.nan))
    return found


def _mean(figures: Sequence[Floats], times: int) -> Floats:
    """Mean over the classes for which the figure exists."""
    stacked = np.array(figures).reshape(len(figures), times)
    there = ~np.isnan(stacked)
    return ratio(np.where(there, stacked, 0.0).sum(axis=0), there.sum(axis=0).astype(np.float64))


# Numbers. R squared is 1 - SSE / SST around the mean of the patients measured: below zero where that mean would have
# done better. True values are taken as they are, also beyond the range that the study states.

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
        "r2": None if _is_constant(true) or not spread else 1 - residual / spread,
        "spearman": _spearman(true, guess),
        "mean": unit * float(true.mean()),
        "median": unit * float(np.median(true)),
    }


def _spearman(true: Floats, guess: Floats) -> float | None:
    """The correlation of ranks, ties sharing theirs; None where one of the two is the same for everybody."""
    if _is_constant(true) or _is_constant(guess):
        return None
    return float(np.corrcoef(_rank(true), _rank(guess))[0, 1])


def _is_constant(values: Floats) -> bool:
    return bool(np.all(values == values[0]))


def calibrate(truth: Sequence[float], predicted: Sequence[float]) -> list[dict[str, Any]]:
    """Patients in tenths by their prediction: how many, and the means of what was predicted and observed.

    Equal predictions are in one group, so that groups may be of unequal size and fewer than ten.
    """
    true, guess = np.array(truth), np.array(predicted)
    tenth = np.floor(GROUPS * (_rank(guess) - 0.5) / max(len(guess), 1))
    return [
        {
            "patients": int(np.sum(tenth == group)),
            "predicted": float(guess[tenth == group].mean()),
            "observed": float(true[tenth == group].mean()),
        }
        for group in np.unique(tenth)
    ]
