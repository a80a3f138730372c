"""How far a figure of an evaluation could lie from what it came to: 95 % intervals by the bootstrap.

Patients of one hospital are alike, so that hospitals are drawn as a whole (with replacement) where there are enough of
them: the interval is then about hospitals such as these. Where there are fewer, a draw of hospitals says next to
nothing, and patients are drawn within each: the interval is about further patients of these very hospitals, and too
narrow for any other. Which of the two it is stands beside the figures. Intervals are percentiles (Efron, 1979; whole
clusters: Davison and Hinkley, Bootstrap Methods, 1997, section 3.8). Draws come from a fixed seed: the same predictions
have the same intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.evaluation.leave_out import Predictions, join_classes, join_numbers
from concilium.evaluation.metrics import Floats, count_patients
from concilium.evaluation.number_metrics import measure_numbers
from concilium.records.table import Value

CONFIDENCE = 0.95
ENOUGH_HOSPITALS = 10
TIMES, TIMES_OF_MANY, MANY = 1000, 200, 50_000
"""How often is drawn: less often for many patients, whose intervals are narrow, and for numbers."""
AT_ONCE = 1 << 22
SEED = 20_240_229


def estimate_intervals(predictions: Sequence[Predictions], positive: Value | None) -> dict[str, Any]:
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
    measure = measure_class_draws if by_class else measure_number_draws
    for figures in measure(predictions, positive, draw(sizes, times, drawn)):
        for name, values in figures.items():
            found.setdefault(name, []).extend(values)
    return {"drawn": drawn, "times": times, **{name: take_interval(values) for name, values in found.items()}}


def take_interval(values: Sequence[float]) -> list[float] | None:
    """Where the middle 95 % lie; None where a draw in ten, or more, has no such figure."""
    known = np.array(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) <= 0.9 * len(values):
        return None
    edge = (1 - CONFIDENCE) / 2
    return [float(one) for one in np.quantile(known, [edge, 1 - edge])]


def draw(sizes: NDArray[np.intp], times: int, drawn: str) -> Iterator[Floats]:
    """How often each patient counts, [draw, patient], some draws at a time; patients are in the order of hospitals."""
    chance = np.random.default_rng(SEED)
    everyone, first = int(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)])
    step = max(1, AT_ONCE // everyone)
    for start in range(0, times, step):
        count = min(step, times - start)
        if drawn == "hospitals":
            hospitals = chance.integers(0, len(sizes), (count, len(sizes)))
            yield np.repeat(count_rows(hospitals, len(sizes)), sizes, axis=1).astype(np.float64)
            continue
        weights = np.empty((count, everyone))
        for place, size in enumerate(sizes.tolist()):
            weights[:, first[place] : first[place + 1]] = count_rows(
                chance.integers(0, size, (count, size)), size
            )
        yield weights


def count_rows(drawn: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How often each number below `size` is in each row."""
    rows = np.arange(len(drawn))[:, None] * size
    return np.bincount((drawn + rows).ravel(), minlength=len(drawn) * size).reshape(len(drawn), size)


def measure_class_draws(
    predictions: Sequence[Predictions], positive: Value | None, draws: Iterator[Floats]
) -> Iterator[dict[str, list[float]]]:
    truth, predicted, probabilities, classes = join_classes(predictions)
    counted = count_patients(truth, predicted, probabilities, classes, positive)
    for weights in draws:
        yield {name: values.tolist() for name, values in counted.measure(weights).items()}


def measure_number_draws(
    predictions: Sequence[Predictions], positive: Value | None, draws: Iterator[Floats]
) -> Iterator[dict[str, list[float]]]:
    truth, predicted = (np.array(values) for values in join_numbers(predictions))
    for weights in draws:
        for one in weights.astype(np.intp):
            figures = measure_numbers(np.repeat(truth, one).tolist(), np.repeat(predicted, one).tolist())
            yield {name: [np.nan if value is None else value] for name, value in figures.items()}
