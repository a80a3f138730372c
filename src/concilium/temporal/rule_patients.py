"""Patients as a discovered rule set judges them: series, or one mapping of values for each patient."""

from __future__ import annotations

from collections.abc import Sequence

from concilium.errors import ModelError
from concilium.models.series_reading import AnySeries, lay_out_courses
from concilium.records.series import Series
from concilium.records.time_grid import count_steps
from concilium.temporal.formula import Formula
from concilium.temporal.windows import Duration


def read_courses(
    patients: AnySeries,
    rules: Sequence[Formula],
    names: Sequence[str],
    step: str,
    window: str | None,
    carry: str,
) -> Series:
    """The courses of these variables: the last window of each stay with values carried forward as
    where the rules were learned, or all of it; ModelError where there is none."""
    series = patients if isinstance(patients, Series) else lay_out_courses(patients, names, step)
    if not any(name in series for name in names):
        raise ModelError(
            "the patients have none of the attributes that this model asks about: " + ", ".join(sorted(names))
        )
    series = series.state(names)
    if len(series) and window is not None:
        steps = count_steps(window, step, "window")
        series = series.carry_forward(carry)
        series = series.cut(series.lengths, steps) if int(series.lengths.max()) > steps else series
    return Series.from_stays(
        series.stays,
        series.lengths,
        step=series.step,
        ids=series.ids,
        points=max([series.points, *(count_points(rule, series.step_hours) for rule in rules)]),
    )


def count_points(rule: Formula, step_hours: float) -> int:
    """How many points in time a rule looks at, at most: where a stay is shorter, what comes after it is unknown."""
    last = 0
    for part in rule.walk():
        window = getattr(part, "window", None)
        if window is not None:
            high = window.high
            last += (high.steps(step_hours) or 0) if isinstance(high, Duration) else int(high)
    return last + 1
