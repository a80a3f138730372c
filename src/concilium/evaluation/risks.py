"""Predicted risks as a reviewer judges them: who is told apart (ROC), whether they come true (calibration), and whether
acting on them does more good than harm (decision curve).

Calibration is told by the Brier score, by the slope and the intercept of a logistic regression of the outcome on the
log odds of the risk (1 and 0 where risks come true; the intercept is the one at slope 1, "in the large": Cox 1958;
Steyerberg, Clinical Prediction Models, 2019, chapter 15), and by tenths of the patients. The decision curve is net
benefit, true positives minus false ones weighted by the odds of the threshold, for each patient (Vickers and Elkin,
2006), beside that of treating everyone. Figures that the patients cannot tell are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from concilium.evaluation.leave_out import Predictions, join_classes
from concilium.evaluation.metrics import Floats, auc
from concilium.evaluation.number_metrics import calibrate
from concilium.records.table import Value

NEVER_SURE = 0.001
"""Risks of 0 and 1 have no log odds: they count as this far from it."""
MOST_POINTS = 200
THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))
STEPS, CLOSE, STEEP = 50, 1e-9, 50.0


def judge_risks(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any] | None:
    """All of it for the patients of these sites, as plain values; None where there is no one positive class."""
    found = find_risks(predictions, positive)
    if found is None or not len(found[0]):
        return None
    risks, outcomes = found
    return {
        **say_calibration(risks, outcomes),
        "groups": calibrate(outcomes.tolist(), risks.tolist()),
        "roc": trace_roc(risks, outcomes),
        "net_benefit": {
            "threshold": list(THRESHOLDS),
            "model": [net_benefit(risks, outcomes, at) for at in THRESHOLDS],
            "everyone": [net_benefit(np.ones_like(risks), outcomes, at) for at in THRESHOLDS],
        },
    }


def find_risks(predictions: Sequence[Predictions], positive: Value | None) -> tuple[Floats, Floats] | None:
    """How likely the positive class was said to be for each patient, and whether (1 or 0) it was so."""
    if not predictions or not (classes := predictions[0].classes):
        return None
    if positive is None and len(classes) == 2:
        positive = classes[1]
    if positive not in classes:
        return None
    truth, _, probabilities, _ = join_classes(predictions)
    outcomes = np.array([value == positive for value in truth], dtype=np.float64)
    return probabilities[:, classes.index(positive)], outcomes


def say_calibration(risks: Floats, outcomes: Floats) -> dict[str, float | None]:
    """Brier score, slope and intercept."""
    slope, intercept = fit_slope(risks, outcomes), fit_intercept(risks, outcomes)
    return {"brier": float(np.mean((risks - outcomes) ** 2)), "slope": slope, "intercept": intercept}


def log_odds(risks: Floats) -> Floats:
    held = np.clip(risks, NEVER_SURE, 1 - NEVER_SURE)
    odds: Floats = np.log(held / (1 - held))
    return odds


def fit_slope(risks: Floats, outcomes: Floats) -> float | None:
    """The slope of a logistic regression on the log odds, by Newton's method; None where all risks or all outcomes are
    the same, or risks tell the outcomes apart without a fault."""
    at = log_odds(risks)
    area = auc(outcomes > 0, at)
    if area is None or np.all(at == at[0]) or area in (0.0, 1.0):
        return None
    design = np.column_stack([np.ones_like(at), at])
    found = np.array([0.0, 1.0])
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-design @ found))
        weights = likely * (1 - likely)
        step = np.linalg.lstsq(
            design.T @ (design * weights[:, None]), design.T @ (outcomes - likely), rcond=None
        )[0]
        largest = float(np.abs(step).max())
        found = found + step * min(1.0, 1.0 / max(largest, 1.0))
        if largest < CLOSE:
            break
    slope = float(found[1])
    return slope if abs(slope) < STEEP else None


def fit_intercept(risks: Floats, outcomes: Floats) -> float | None:
    """By how much the log odds are too low for everyone, at slope 1; None where all outcomes are the same."""
    happened = float(outcomes.sum())
    if happened in (0.0, float(len(outcomes))):
        return None
    at, low, high = log_odds(risks), -50.0, 50.0
    for _ in range(100):  # the expected number grows with the intercept
        middle = (low + high) / 2
        low, high = (
            (middle, high) if float((1 / (1 + np.exp(-at - middle))).sum()) < happened else (low, middle)
        )
    return (low + high) / 2


def trace_roc(risks: Floats, outcomes: Floats) -> list[list[float]] | None:
    """Points (1 - specificity, sensitivity) from (0, 0) to (1, 1), of many some; None for one class only."""
    positives = float(outcomes.sum())
    others = len(outcomes) - positives
    if not positives or not others:
        return None
    order = np.argsort(-risks, kind="stable")
    last = np.flatnonzero(np.concatenate([risks[order][1:] != risks[order][:-1], [True]]))
    found = np.cumsum(outcomes[order])[last] / positives
    alarms = np.cumsum(1 - outcomes[order])[last] / others
    points = np.concatenate([[[0.0, 0.0]], np.column_stack([alarms, found])])
    if len(points) > MOST_POINTS:
        points = points[np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int))]
    return [[float(x), float(y)] for x, y in points]


def net_benefit(risks: Floats, outcomes: Floats, threshold: float) -> float:
    """For each patient, of treating those with at least this risk."""
    treated = risks >= threshold
    right = float(outcomes[treated].sum())
    wrong = float(treated.sum()) - right
    return (right - wrong * threshold / (1 - threshold)) / len(outcomes)
