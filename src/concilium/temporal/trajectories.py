"""Courses of single patients that fulfil a rule and that break it, as a picture (Figure 2 of DP-RuL).

It shows values of single patients: it is for the hospital that holds them, and for public data (docs/methods.md,
section 6.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.pictures import COLOURS, INK, SOFT, draw, draw_frame
from concilium.records.series import Series
from concilium.temporal.evaluation import robustness_all, satisfied_all
from concilium.temporal.formula import Always, Eventually, Formula, Limit, Until

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 640, 70, 110, 44, 150, 34
FULFILS, BREAKS = COLOURS[:2]
MOST = 25


def draw_trajectories(rule: Formula, series: Series, most: int = MOST) -> str:
    """The picture of a rule: at most so many windows that fulfil it and as many that break it, some of them clearly and
    some narrowly, a panel for each of its variables with the limits it is compared with. Windows in which it is unknown
    are not drawn."""
    names = sorted(rule.variables)
    if not names:
        raise ModelError("a rule without variables cannot be drawn")
    series.check(names)
    robustness = robustness_all([rule], series, absent=True)[0]
    truth = satisfied_all([rule], series, absent=True)[0]
    fulfil, break_it = truth.filled(False), ~truth.filled(True)
    groups = [
        (BREAKS, _spread_out(robustness, break_it, most), int(break_it.sum()), "break it"),
        (FULFILS, _spread_out(robustness, fulfil, most), int(fulfil.sum()), "fulfil it"),
    ]
    parts = []
    for place, (colour, rows, count, words) in enumerate(reversed(groups)):
        x = LEFT + 190 * place
        parts.append(draw("line", x1=x, y1=30, x2=x + 22, y2=30, stroke=colour, stroke_width=3))
        shown = f"{count:,} {words}" + (f", {len(rows)} shown" if len(rows) < count else "")
        parts.append(draw("text", shown, x=x + 28, y=34, fill=SOFT))
    last = int(series.lengths.max(initial=1)) - 1
    for number, name in enumerate(names):
        top = TOP + number * (PANEL + GAP)
        parts += _draw_panel(rule, series, name, groups, last, top)
    height = TOP + len(names) * (PANEL + GAP) + 22
    parts.append(_name_time("hours from the beginning of the window", height - 8))
    parts.append(draw("text", str(rule), x=LEFT, y=16, font_weight=600))
    return draw_frame(f"Courses that fulfil and that break {rule}", parts, WIDTH, height)


HOLDS, FAILS, UNKNOWN = "#0b5c6b", "#c2571a", "#8a949e"


def draw_patient(rules: Sequence[Formula], course: Series, captions: Sequence[str]) -> str:
    """One patient's measurements over time, a panel for each rule and variable: the rule's window is shaded where it
    holds in one colour and where it fails in another, its limits are dashed lines, and dots are what was measured.

    It shows the values of one patient: for the hospital that holds them.
    """
    if len(course) != 1:
        raise ModelError(f"a picture is of one patient; got {len(course)}")
    truths: Any = satisfied_all(list(rules), course, absent=True)[:, 0] if rules else []
    last = int(course.lengths[0]) - 1
    parts: list[str] = []
    top = 30
    for rule, truth, caption in zip(rules, truths, captions, strict=True):
        unknown = truth is np.ma.masked
        words, colour = ("unknown", UNKNOWN) if unknown else ("holds", HOLDS) if truth else ("fails", FAILS)
        parts.append(draw("text", f"{words}: {caption}", x=LEFT, y=top, font_weight=600, fill=colour))
        top += 12
        for name in sorted(rule.variables):
            group = [(INK, np.zeros(1, dtype=np.intp), 1, "")]
            shading = _find_intervals(rule, name, last, course.step_hours) or [(0, last)]
            parts += _draw_panel(rule, course, name, group, last, top, shading, colour, last)
            parts += _draw_dots(course, name, rule, last, top)
            top += PANEL + GAP
        top += 14
    parts.append(_name_time("hours, 0 is the latest", top - 8))
    return draw_frame("The measurements of one patient, with the windows of the rules", parts, WIDTH, top)


def _name_time(name: str, y: float) -> str:
    """What is below the panels."""
    return draw("text", name, x=LEFT + (WIDTH - LEFT - RIGHT) / 2, y=y, text_anchor="middle", fill=SOFT)


def _draw_dots(course: Series, name: str, rule: Formula, last: int, top: int) -> list[str]:
    across, up = _find_scales(course[name], _find_limits(rule, name), last, top)
    return [
        draw("circle", cx=across(step), cy=up(value), r=2.5, fill=INK)
        for step, value in enumerate(course[name][:, 0].tolist())
        if math.isfinite(value)
    ]


def _find_limits(rule: Formula, name: str) -> list[tuple[float, str]]:
    """The numbers that a variable is compared with, and how."""
    return sorted(
        {
            (float(part.number), str(part.relation))
            for part in rule.walk()
            if isinstance(part, Limit) and part.variable == name and isinstance(part.number, float)
        }
    )


def _find_ends(values: NDArray[np.float32], limits: Sequence[tuple[float, str]]) -> tuple[float, float]:
    """The least and the largest of values and limits."""
    numbers = [number for number, _ in limits]
    present = values[np.isfinite(values)]
    return (
        min([*numbers, *([float(present.min())] if present.size else [])], default=0.0),
        max([*numbers, *([float(present.max())] if present.size else [])], default=1.0),
    )


def _find_scales(
    values: NDArray[np.float32], limits: Sequence[tuple[float, str]], last: int, top: int
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Where steps and values lie in a panel."""
    low, high = _find_ends(values, limits)
    spare = (high - low or 1.0) * 0.06
    low, high = low - spare, high + spare
    right, bottom = WIDTH - RIGHT, top + PANEL

    def across(step: float) -> float:
        return LEFT + (right - LEFT) * step / max(last, 1)

    def up(value: float) -> float:
        return bottom - PANEL * (value - low) / (high - low)

    return across, up


def _spread_out(robustness: NDArray[np.float32], chosen: NDArray[np.bool_], most: int) -> NDArray[np.intp]:
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(robustness[rows], kind="stable")]
    return rows if len(rows) <= most else rows[((np.arange(most) + 0.5) * len(rows) / most).astype(np.intp)]


def _draw_panel(
    rule: Formula,
    series: Series,
    name: str,
    groups: Sequence[tuple[str, NDArray[np.intp], int, str]],
    last: int,
    top: int,
    shading: Sequence[tuple[int, int]] | None = None,
    shade: str = HOLDS,
    now: int = 0,
) -> list[str]:
    rows = np.concatenate([rows for _, rows, _, _ in groups])
    values = series.take(rows)[name]
    limits = _find_limits(rule, name)
    across, up = _find_scales(values, limits, last, top)
    right = WIDTH - RIGHT
    opacity = 0.06 if shading is None else 0.14
    frame = {"x": LEFT, "y": top, "width": right - LEFT, "height": PANEL}
    parts = [draw("rect", **frame, fill="#fbfcfd", stroke="#d8dee5")]
    for first, until in _find_intervals(rule, name, last, series.step_hours) if shading is None else shading:
        width = max(across(until) - across(first), 3.0)
        x = min(across(first), right - width)
        parts.append(draw("rect", x=x, y=top, width=width, height=PANEL, fill=shade, opacity=opacity))
    start = 0
    for colour, members, _, _ in groups:
        columns = range(start, start + len(members))
        lines = " ".join(_draw_line(values[:, column], across, up) for column in columns)
        start += len(members)
        parts.append(draw("path", d=lines, fill="none", stroke=colour, stroke_width=1.2, stroke_opacity=0.55))
    for number, relation in limits:
        y = up(number)
        parts.append(draw("line", x1=LEFT, y1=y, x2=right, y2=y, stroke=INK, stroke_dasharray="5 4"))
        parts.append(draw("text", f"{relation} {number:g}", x=right + 8, y=y + 4))
    low, high = _find_ends(values, limits)
    ends = ((low, up(low)), (high, up(high) + 8))
    hours = {across(step): (step - now) * series.step_hours for step in (0, last // 2, last)}
    return [*parts, *_draw_axes(name, top, ends, hours)]


def _draw_axes(
    name: str, top: int, ends: Sequence[tuple[float, float]], hours: Mapping[float, float]
) -> list[str]:
    """The name of a panel, the values at both `ends` with their heights, and `hours` by how far right they are."""
    middle = top + PANEL / 2
    values = [
        draw("text", f"{value:.4g}", x=LEFT - 8, y=y, text_anchor="end", fill=SOFT) for value, y in ends
    ]
    turned = f"rotate(-90 16 {middle:g})"
    title = draw("text", name, x=16, y=middle, text_anchor="middle", transform=turned)
    times = [
        draw("text", f"{hour:g}", x=x, y=top + PANEL + 16, text_anchor="middle", fill=SOFT)
        for x, hour in hours.items()
    ]
    return [*values, title, *times]


def _draw_line(
    values: NDArray[np.float32], across: Callable[[float], float], up: Callable[[float], float]
) -> str:
    """One patient's course, with a gap where nothing was measured and a dot where a value stands alone."""
    strokes, pen = [], "M"
    for step, value in enumerate(values.tolist()):
        if not math.isfinite(value):
            pen = "M"
            continue
        strokes.append(f"{pen}{across(step):.1f} {up(value):.1f}" + ("h0.01" if pen == "M" else ""))
        pen = "L"
    return "".join(strokes)


def _find_intervals(rule: Formula, name: str, last: int, step_hours: float) -> list[tuple[int, int]]:
    """The intervals of the operators that are about this variable; without one, the whole."""
    intervals = set()
    for part in rule.walk():
        if isinstance(part, Always | Eventually | Until) and part.window and name in part.variables:
            low, high = part.window.steps(step_hours)
            intervals.add((low, min(high, last)))
    return sorted(interval for interval in intervals if interval != (0, last))
