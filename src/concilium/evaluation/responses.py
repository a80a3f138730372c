"""What a model says of patients whose outcome is known, as an attacker sees it: a loss and a signal for each of them.

Of classes the loss is 1 minus the share that the model gives to what happened, and the signal the log odds of that
share; of a number they are the squared error and the prediction itself. Whoever is asked about more than once, as
patients with many windows are, has the mean of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.evaluation.leave_out import is_set_apart
from concilium.models.method import Method
from concilium.records.columns import label
from concilium.records.patients import Patients

Floats = NDArray[np.float64]

# Shares nearer to 0 and 1 than this are alike: log odds stay finite where a leaf is pure.
LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class Responses:
    """`rows` are the patients of the population whom the model is about and whose outcome is known, in order; a lower
    loss is a better prediction."""

    rows: NDArray[np.intp]
    losses: Floats
    signals: Floats

    def __len__(self) -> int:
        return len(self.rows)


def observe(model: Method[Any], patients: Patients) -> Responses:
    """What a model says of these patients; ModelError where there is nobody whom it is about."""
    outcomes = model.find_outcomes(patients)
    if not len(outcomes.rows):
        raise ModelError(
            "among these patients there is none whom the model is about and whose outcome is known"
        )
    if model.classes_:
        shares = share_of_truth(model, outcomes.asked, list(outcomes.truth))
        kept = np.clip(shares, LEAST_SHARE, 1 - LEAST_SHARE)
        losses, signals = 1 - shares, np.log(kept / (1 - kept))
    else:
        signals = np.asarray(model.predict(outcomes.asked), dtype=np.float64)
        losses = (signals - np.array([float(value) for value in outcomes.truth])) ** 2
    rows, place = np.unique(outcomes.rows, return_inverse=True)
    times = np.bincount(place)
    return Responses(rows, np.bincount(place, losses) / times, np.bincount(place, signals) / times)


def share_of_truth(model: Method[Any], asked: Any, truth: list[Any]) -> Floats:
    """For each patient the share that the model gives to what happened; none where it never met that class."""
    classes = model.classes_
    columns = {label(value): column for column, value in enumerate(classes)}
    others = 0 if is_set_apart(classes) else -1
    true = np.array([columns.get(label(value), others) for value in truth], dtype=np.intp)
    shares = np.asarray(model.predict_proba(asked), dtype=np.float64)
    given: Floats = np.where(true < 0, 0.0, shares[np.arange(len(true)), np.maximum(true, 0)])
    return given
