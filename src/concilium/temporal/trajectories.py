"""Courses of single patients that fulfil a rule and that break it, as a picture (Figure 2 of DP-RuL).

It shows values of single patients: it is for the hospital that holds them, and for public data (docs/methods.md,
section 6.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.pictures import COLOURS, INK, SOFT, draw_frame, element_text
from concilium.records.series import Series
from concilium.temporal.evaluation import robustness_all, satisfied_all
from concilium.temporal.formula import Always, Eventually, Formula, Limit, Until
from concilium.temporal.windows import Bound, Duration

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
        parts.append(f'<line x1="{x}" y1="30" x2="{x + 22}" y2="30" stroke="{colour}" stroke-width="3"/>')
        shown = f"{count:,} {words}" + (f", {len(rows)} shown" if len(rows) < count else "")
        parts.append(f'<text x="{x + 28}" y="34" fill="{SOFT}">{element_text(shown)}</text>')
    last = int(series.lengths.max(initial=1)) - 1
    for number, name in enumerate(names):
        top = TOP + number * (PANEL + GAP)
        parts += _draw_panel(rule, series, name, groups, last, top)
    height = TOP + len(names) * (PANEL + GAP) + 22
    parts.append(
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2:g}" y="{height - 8}" text-anchor="middle" fill="{SOFT}">'
        f"hours from the beginning of the window</text>"
    )
    parts.append(f'<text x="{LEFT}" y="16" font-weight="600">{element_text(str(rule))}</text>')
    return draw_frame(f"Courses that fulfil and that break {rule}", parts, WIDTH, height)


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
) -> list[str]:
    rows = np.concatenate([rows for _, rows, _, _ in groups])
    values = series.take(rows)[name]
    limits = sorted(
        {
            (float(part.number), str(part.relation))
            for part in rule.walk()
            if isinstance(part, Limit) and part.variable == name and isinstance(part.number, float)
        }
    )
    numbers = [number for number, _ in limits]
    present = values[np.isfinite(values)]
    low = min([*numbers, *([float(present.min())] if present.size else [])], default=0.0)
    high = max([*numbers, *([float(present.max())] if present.size else [])], default=1.0)
    spare = (high - low or 1.0) * 0.06
    low, high = low - spare, high + spare
    right, bottom = WIDTH - RIGHT, top + PANEL

    def across(step: float) -> float:
        return LEFT + (right - LEFT) * step / max(last, 1)

    def up(value: float) -> float:
        return bottom - PANEL * (value - low) / (high - low)

    parts = [
        f'<rect x="{LEFT}" y="{top}" width="{right - LEFT}" height="{PANEL}" fill="#fbfcfd" stroke="#d8dee5"/>'
    ]
    for first, until in _find_intervals(rule, name, last, series.step_hours):
        width = max(across(until) - across(first), 3.0)
        x = min(across(first), right - width)
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{PANEL}" fill="#0b5c6b" opacity="0.06"/>'
        )
    start = 0
    for colour, members, _, _ in groups:
        lines = " ".join(
            _draw_line(values[:, column], across, up) for column in range(start, start + len(members))
        )
        start += len(members)
        parts.append(
            f'<path d="{lines}" fill="none" stroke="{colour}" stroke-width="1.2" stroke-opacity="0.55"/>'
        )
    for number, relation in limits:
        y = up(number)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{INK}" stroke-dasharray="5 4"/>'
            f'<text x="{right + 8}" y="{y + 4:.1f}">{element_text(f"{relation} {number:g}")}</text>'
        )
    parts += [
        f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end" fill="{SOFT}">{value:.4g}</text>'
        for value, y in ((low + spare, up(low + spare)), (high - spare, up(high - spare) + 8))
    ]
    middle = top + PANEL / 2
    parts.append(
        f'<text x="16" y="{middle:g}" text-anchor="middle" transform="rotate(-90 16 {middle:g})">'
        f"{element_text(name)}</text>"
    )
    for step in sorted({0, last // 2, last}):
        hours = f"{step * series.step_hours:g}"
        parts.append(
            f'<text x="{across(step):.1f}" y="{bottom + 16}" text-anchor="middle" fill="{SOFT}">{hours}</text>'
        )
    return parts


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
            low, high = (_count_steps(bound, step_hours) for bound in part.window[:2])
            intervals.add((low, min(high, last)))
    return sorted(interval for interval in intervals if interval != (0, last))


def _count_steps(bound: Bound, step_hours: float) -> int:
    steps = bound.steps(step_hours) if isinstance(bound, Duration) else bound
    assert isinstance(steps, int)  # or the rule could not have been evaluated
    return steps
