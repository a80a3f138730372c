"""What an evaluation came to: figures with their intervals and risks, over all patients, by site and by fold.

Risks: discrimination (ROC), calibration and clinical utility. Calibration is the Brier score, the slope and intercept
of a logistic regression of the outcome on the log odds of the risk (1 and 0 where risks come true; the intercept is the
one at slope 1, "in the large": Cox 1958; Steyerberg, Clinical Prediction Models, 2019, chapter 15), and tenths of the
patients. The decision curve is net benefit, true positives minus false ones weighted by the odds of the threshold, for
each patient (Vickers and Elkin, 2006), beside that of treating everyone. Figures that the patients cannot tell are
None.

Intervals are 95 % percentiles of the bootstrap (Efron, 1979). Patients of one hospital are alike, so hospitals are
drawn as a whole where there are enough of them (Davison and Hinkley, Bootstrap Methods, 1997, section 3.8): the
interval is then about hospitals such as these. Where there are fewer, patients are drawn within each: the interval is
about further patients of these very hospitals, and too narrow for any other. Which of the two it is stands beside the
figures. Draws come from a fixed seed: the same predictions have the same intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.evaluation.leave_out import FoldResult, Predictions, figures, join_classes, join_numbers
from concilium.evaluation.metrics import Floats, auc, calibrate, count_patients, measure_numbers
from concilium.models.intervals import WITHIN_95
from concilium.models.measuring import RiskTable, count_risks
from concilium.records.columns import Value

NEVER_SURE = 0.001
"""Risks of 0 and 1 have no log odds: they count as this far from it."""
MOST_POINTS = 200
THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))
STEPS, CLOSE, STEEP = 50, 1e-7, 50.0


def _judge_risks(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any] | None:
    """All of it for the patients of these sites, as plain values; None where there is no one positive class."""
    found = _find_risks(predictions, positive)
    if found is None or not len(found[0]):
        return None
    risks, outcomes = found
    return {
        **_say_calibration(risks, outcomes),
        "groups": calibrate(outcomes.tolist(), risks.tolist()),
        "roc": _trace_roc(risks, outcomes),
        "net_benefit": {
            "threshold": list(THRESHOLDS),
            "model": [_net_benefit(risks, outcomes, at) for at in THRESHOLDS],
            "everyone": [_net_benefit(np.ones_like(risks), outcomes, at) for at in THRESHOLDS],
        },
    }


def _find_risks(predictions: Sequence[Predictions], positive: Value | None) -> tuple[Floats, Floats] | None:
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


def _say_calibration(risks: Floats, outcomes: Floats) -> dict[str, Any]:
    """Brier score, slope with its 95 % interval (Wald's), and intercept."""
    slope, error = _fit_slope(risks, outcomes)
    return {
        "brier": float(np.mean((risks - outcomes) ** 2)),
        "slope": slope,
        "slope_interval": None if slope is None else [slope - WITHIN_95 * error, slope + WITHIN_95 * error],
        "intercept": _fit_intercept(risks, outcomes),
    }


def find_log_odds(risks: Floats) -> Floats:
    held = np.clip(risks, NEVER_SURE, 1 - NEVER_SURE)
    return np.log(held / (1 - held))


def fit_logistic(at: Floats, events: Floats, everyone: Floats, *, slope: bool) -> tuple[Floats, Floats]:
    """Intercept and slope of a logistic regression on log odds of each table, by Newton's method; or the intercept
    alone, at slope 1."""
    a, b = np.zeros(len(events)), np.ones(len(events))
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-np.clip(a[:, None] + b[:, None] * at, -500, 500)))
        left, weight = events - everyone * likely, everyone * likely * (1 - likely)
        g0, g1, h0, h1, h2 = (
            part.sum(axis=1) for part in (left, left * at, weight, weight * at, weight * at * at)
        )
        if slope:
            determinant = np.maximum(h0 * h2 - h1 * h1, 1e-12)
            move = np.stack([(h2 * g0 - h1 * g1) / determinant, (h0 * g1 - h1 * g0) / determinant])
        else:
            move = np.stack([g0 / np.maximum(h0, 1e-12), np.zeros_like(g0)])
        largest = np.abs(move).max(axis=0)
        move = move / np.maximum(largest, 1.0)
        a, b = a + move[0], b + move[1]
        if largest.max() < CLOSE:
            break
    return a, b


def _fit_slope(risks: Floats, outcomes: Floats) -> tuple[float | None, float]:
    """The slope of a logistic regression on the log odds, and its standard error; None where all risks or all outcomes
    are the same, or risks tell the outcomes apart without a fault."""
    at = find_log_odds(risks)
    area = auc(outcomes > 0, at)
    if area is None or np.all(at == at[0]) or area in (0.0, 1.0):
        return None, 0.0
    a, b = fit_logistic(at, outcomes[None], np.ones((1, len(at))), slope=True)
    if abs(b[0]) >= STEEP:
        return None, 0.0
    likely = 1 / (1 + np.exp(-a[0] - b[0] * at))
    design = np.column_stack([np.ones_like(at), at])
    information = design.T @ (design * (likely * (1 - likely))[:, None])
    return float(b[0]), float(np.sqrt(np.linalg.pinv(information)[1, 1]))


def _fit_intercept(risks: Floats, outcomes: Floats) -> float | None:
    """By how much the log odds are too low for everyone, at slope 1; None where all outcomes are the same."""
    if np.all(outcomes == outcomes[0]):
        return None
    at = find_log_odds(risks)
    return float(fit_logistic(at, outcomes[None], np.ones((1, len(at))), slope=False)[0][0])


def _trace_roc(risks: Floats, outcomes: Floats) -> list[list[float]] | None:
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


def _net_benefit(risks: Floats, outcomes: Floats, threshold: float) -> float:
    """For each patient, of treating those with at least this risk."""
    treated = risks >= threshold
    right = float(outcomes[treated].sum())
    wrong = float(treated.sum()) - right
    return (right - wrong * threshold / (1 - threshold)) / len(outcomes)


CONFIDENCE = 0.95
ENOUGH_HOSPITALS = 10
TIMES, TIMES_OF_MANY, MANY = 1000, 200, 50_000
"""How often is drawn: less often for many patients, whose intervals are narrow, and for numbers."""
AT_ONCE = 1 << 22
SEED = 20_240_229


def _estimate_intervals(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any]:
    """For every figure over the patients of these sites its interval, None where too few draws tell one."""
    predictions = sorted(
        predictions, key=lambda at_site: at_site.site
    )  # the same in whatever order they come
    sizes = np.array([len(at_site.truth) for at_site in predictions])
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return {}
    drawn = "hospitals" if len(sizes) >= ENOUGH_HOSPITALS else "patients"
    by_class = bool(predictions[0].classes)
    times = TIMES if by_class and sizes.sum() <= MANY else TIMES_OF_MANY
    found: dict[str, list[float]] = {}
    measure = _measure_class_draws if by_class else _measure_number_draws
    for drawn_figures in measure(predictions, positive, _draw(sizes, times, drawn)):
        for name, values in drawn_figures.items():
            found.setdefault(name, []).extend(values)
    return {
        "drawn": drawn,
        "times": times,
        **{name: _take_interval(values) for name, values in found.items()},
    }


def _take_interval(values: Sequence[float]) -> list[float] | None:
    """Where the middle 95 % lie; None where a draw in ten, or more, has no such figure."""
    known = np.array(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) <= 0.9 * len(values):
        return None
    edge = (1 - CONFIDENCE) / 2
    return [float(one) for one in np.quantile(known, [edge, 1 - edge])]


def _draw(sizes: NDArray[np.intp], times: int, drawn: str) -> Iterator[Floats]:
    """How often each patient counts, [draw, patient], some draws at a time; patients are in the order of hospitals."""
    chance = np.random.default_rng(SEED)
    everyone, first = int(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)])
    step = max(1, AT_ONCE // everyone)
    for start in range(0, times, step):
        count = min(step, times - start)
        if drawn == "hospitals":
            hospitals = chance.integers(0, len(sizes), (count, len(sizes)))
            yield np.repeat(_count_rows(hospitals, len(sizes)), sizes, axis=1).astype(np.float64)
            continue
        weights = np.empty((count, everyone))
        for place, size in enumerate(sizes.tolist()):
            weights[:, first[place] : first[place + 1]] = _count_rows(
                chance.integers(0, size, (count, size)), size
            )
        yield weights


def _count_rows(drawn: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How often each number below `size` is in each row."""
    rows = np.arange(len(drawn))[:, None] * size
    return np.bincount((drawn + rows).ravel(), minlength=len(drawn) * size).reshape(len(drawn), size)


def _measure_class_draws(
    predictions: Sequence[Predictions], positive: Value | None, draws: Iterator[Floats]
) -> Iterator[dict[str, list[float]]]:
    truth, predicted, probabilities, classes = join_classes(predictions)
    counted = count_patients(truth, predicted, probabilities, classes, positive)
    for weights in draws:
        yield {name: values.tolist() for name, values in counted.measure(weights).items()}


def _measure_number_draws(
    predictions: Sequence[Predictions], positive: Value | None, draws: Iterator[Floats]
) -> Iterator[dict[str, list[float]]]:
    truth, predicted = (np.array(values) for values in join_numbers(predictions))
    for weights in draws:
        for one in weights.astype(np.intp):
            figures = measure_numbers(np.repeat(truth, one).tolist(), np.repeat(predicted, one).tolist())
            yield {name: [np.nan if value is None else value] for name, value in figures.items()}


def summarise(results: Sequence[FoldResult], positive: Value | None) -> dict[str, Any]:
    """Figures over all patients measured, for each site, and for each fold, as plain JSON values."""
    predictions = [at_site for result in results for at_site in result.predictions]
    return {
        "overall": {
            "patients": sum(len(at_site.truth) for at_site in predictions),
            **_count_events(predictions, positive),
            **figures(predictions, positive),
            "intervals": _estimate_intervals(predictions, positive),
        },
        "sites": {
            at_site.site: {
                "patients": len(at_site.truth),
                **_count_events([at_site], positive),
                **figures([at_site], positive),
                **_took(result),
                "intervals": _estimate_intervals([at_site], positive),
                **_calibrate_site(at_site, positive),
            }
            for result in results
            for at_site in result.predictions
        },
        "folds": [
            {
                "left_out": list(result.left_out),
                "patients": sum(len(at_site.truth) for at_site in result.predictions),
                **figures(result.predictions, positive),
                **_took(result),
            }
            for result in results
            if result.left_out
        ],
        "risks": _judge_risks(predictions, positive),
    }


def _count_events(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any]:
    """How many patients have the positive class, and what share; nothing where there is no one such class."""
    found = _find_risks(predictions, positive)
    if found is None or not len(found[1]):
        return {}
    return {"events": int(found[1].sum()), "prevalence": float(found[1].mean())}


def count_predictions(predictions: Sequence[Predictions], positive: Value | None) -> RiskTable | None:
    """The same patients counted by predicted risk and outcome, as hospitals would; None where there is no one positive
    class."""
    found = _find_risks(predictions, positive)
    return None if found is None or not len(found[0]) else count_risks(*found)


def _calibrate_site(predictions: Predictions, positive: Value | None) -> dict[str, Any]:
    """How well the risks of one site's patients come true; nothing where a number is predicted."""
    found = _find_risks([predictions], positive)
    if found is None or not len(found[0]):
        return {}
    return {"calibration": _say_calibration(*found)}


def _took(result: FoldResult) -> dict[str, float]:
    """What making a fold's model took."""
    return {"rounds": result.rounds, "bytes": result.bytes, "seconds": result.seconds}


def calibrate_all(results: Iterable[FoldResult]) -> list[dict[str, Any]]:
    """Predicted numbers beside observed ones in tenths of the prediction, over all patients measured."""
    return calibrate(*join_numbers(at_site for result in results for at_site in result.predictions))
