"""The figures of metrics.json, from true labels, predicted labels and class probabilities.

Sensitivity, specificity, F1 and AUC are those of the positive class when there are two classes (or when a
positive class is named: that class against the rest), and plain means over the classes otherwise. A figure
that the patients cannot tell, such as the sensitivity at a hospital where nobody died, is None and never a
number. MCC is Matthews' coefficient and, for many classes, Gorodkin's R_K (Comput. Biol. Chem. 28, 2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

FIGURES = ("accuracy", "balanced_accuracy", "auc", "f1", "mcc", "sensitivity", "specificity")

Figures = dict[str, float | None]
Floats = NDArray[np.float64]


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
    labels = list(dict.fromkeys([*classes, *truth, *predicted]))
    number = {value: code for code, value in enumerate(labels)}
    true = np.array([number[value] for value in truth], dtype=np.intp)
    guess = np.array([number[value] for value in predicted], dtype=np.intp)
    scores = np.zeros((len(true), len(labels)))
    scores[:, : len(classes)] = probabilities

    if positive is None and len(labels) == 2:
        positive = labels[1]
    of_interest = range(len(labels)) if positive is None else [number[positive]] if positive in number else []

    table = count_agreements(true, guess, len(labels))
    return {
        "accuracy": accuracy(table),
        "balanced_accuracy": balanced_accuracy(table),
        "auc": _mean([auc(true == c, scores[:, c]) for c in of_interest]),
        "f1": _mean([f1(table, c) for c in of_interest]),
        "mcc": mcc(table),
        "sensitivity": _mean([sensitivity(table, c) for c in of_interest]),
        "specificity": _mean([specificity(table, c) for c in of_interest]),
    }


def count_agreements(truth: NDArray[np.intp], predicted: NDArray[np.intp], classes: int) -> NDArray[np.int64]:
    """The confusion table: row = true class, column = predicted class."""
    cells = np.bincount(truth * classes + predicted, minlength=classes * classes)
    return cells.astype(np.int64).reshape(classes, classes)


def accuracy(table: NDArray[np.int64]) -> float | None:
    """Share of patients whose class was predicted; None without patients."""
    return _ratio(np.trace(table), table.sum())


def balanced_accuracy(table: NDArray[np.int64]) -> float | None:
    """Mean sensitivity over the classes that occur; None when fewer than two occur."""
    present = np.flatnonzero(table.sum(axis=1))
    return _mean([sensitivity(table, int(c)) for c in present]) if len(present) > 1 else None


def sensitivity(table: NDArray[np.int64], positive: int) -> float | None:
    """Share of the patients of this class who were found; None when there are none."""
    return _ratio(table[positive, positive], table[positive].sum())


def specificity(table: NDArray[np.int64], positive: int) -> float | None:
    """Share of the other patients who were left alone; None when there are none."""
    others = table.sum() - table[positive].sum()
    alarms = table[:, positive].sum() - table[positive, positive]
    return _ratio(others - alarms, others)


def f1(table: NDArray[np.int64], positive: int) -> float | None:
    """Harmonic mean of precision and sensitivity; None when the class neither occurs nor is predicted."""
    return _ratio(2 * table[positive, positive], table[positive].sum() + table[:, positive].sum())


def mcc(table: NDArray[np.int64]) -> float | None:
    """Correlation between truth and prediction; 0 for the same answer to all, None for one true class."""
    true, predicted, total = table.sum(axis=1), table.sum(axis=0), int(table.sum())
    # Python integers: the products of squared counts leave 64 bits behind at about 50,000 patients.
    spread_true = total**2 - sum(int(n) ** 2 for n in true)
    spread_predicted = total**2 - sum(int(n) ** 2 for n in predicted)
    if spread_true == 0:
        return None
    if spread_predicted == 0:
        return 0.0
    together = int(np.trace(table)) * total - sum(
        int(t) * int(p) for t, p in zip(true, predicted, strict=True)
    )
    return float(together / (spread_true * spread_predicted) ** 0.5)


def auc(positive: NDArray[np.bool_], scores: Floats) -> float | None:
    """Chance that a positive patient scores above another, ties counting half; None for one class only."""
    positives = int(positive.sum())
    others = len(positive) - positives
    if positives == 0 or others == 0:
        return None
    return float((rank(scores)[positive].sum() - positives * (positives + 1) / 2) / (positives * others))


def rank(values: Floats) -> Floats:
    """Ranks from 1; equal values have the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def _ratio(part: np.int64, whole: np.int64) -> float | None:
    return float(part / whole) if whole else None


def _mean(figures: Sequence[float | None]) -> float | None:
    """Mean over the classes for which the figure exists."""
    there = [figure for figure in figures if figure is not None]
    return sum(there) / len(there) if there else None
