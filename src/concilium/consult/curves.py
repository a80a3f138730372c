"""Predictions as pictures: ROC curve, calibration of risks and of numbers, decision curve (evaluation/summary.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.rulefit.body import say_number

WIDTH, HEIGHT, LEFT, TOP, SIDE = 400, 360, 58, 26, 280
LEAST_BENEFIT = -0.05
DOTS = 4.5


@dataclass(frozen=True)
class _DrawnLine:
    """A line through these points; dashed where it is there to compare with, with dots where each point is a group."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = False


def draw_risks(judged: Mapping[str, Any], positive: str) -> dict[str, str]:
    """The pictures by name, as SVG; only those that the patients tell."""
    pictures = {}
    if judged["roc"] is not None:
        lines = [
            _DrawnLine("a coin", [(0, 0), (1, 1)], dashed=True),
            _DrawnLine("the model", [(x, y) for x, y in judged["roc"]]),
        ]
        pictures["ROC curve"] = _draw_lines(
            f"ROC curve for {positive}", lines, ("1 - specificity", "sensitivity"), (0, 1), (0, 1)
        )
    groups = [(float(one["predicted"]), float(one["observed"])) for one in judged["groups"]]
    lines = [
        _DrawnLine("comes true", [(0, 0), (1, 1)], dashed=True),
        _DrawnLine("tenths of the patients", groups, dots=True),
    ]
    pictures["Calibration"] = _draw_lines(
        f"Predicted risk of {positive} against its share",
        lines,
        ("predicted risk", "observed share"),
        (0, 1),
        (0, 1),
    )
    benefit = judged["net_benefit"]
    pairs = {
        name: list(zip(benefit["threshold"], benefit[name], strict=True)) for name in ("model", "everyone")
    }
    highest = max(0.01, *(value for _, value in (*pairs["model"], *pairs["everyone"])))
    lines = [
        _DrawnLine("nobody", [(0, 0), (1, 0)], dashed=True),
        _DrawnLine("everyone", _cut_below(pairs["everyone"], LEAST_BENEFIT)),
        _DrawnLine("by the model", _cut_below(pairs["model"], LEAST_BENEFIT)),
    ]
    pictures["Decision curve"] = _draw_lines(
        f"Net benefit of acting on the risk of {positive}",
        lines,
        ("risk from which one treats", "net benefit"),
        (0, 1),
        (LEAST_BENEFIT, highest),
    )
    return pictures


def _cut_below(points: Sequence[tuple[float, float]], least: float) -> list[tuple[float, float]]:
    """The points up to where they fall below what is drawn."""
    kept = []
    for x, y in points:
        kept.append((x, max(y, least)))
        if y < least:
            break
    return kept


def _draw_lines(
    title: str,
    lines: Sequence[_DrawnLine],
    axes: tuple[str, str],
    across: tuple[float, float],
    up: tuple[float, float],
) -> str:
    """A square of lines over two axes, each named beside it."""
    columns, rows = _find_ticks(*across), _find_ticks(*up)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + SIDE * (point[0] - columns[0]) / (columns[-1] - columns[0])
        return x, TOP + SIDE * (rows[-1] - point[1]) / (rows[-1] - rows[0])

    bottom, parts = TOP + SIDE, []
    for tick in columns:
        x, _ = place((tick, rows[0]))
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">{tick:g}</text>'
        )
    for tick in rows:
        _, y = place((columns[0], tick))
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + SIDE}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{round(tick, 6):g}</text>'
        )
    colours = iter(COLOURS)
    beside = LEFT
    for line in lines:
        colour = RULE if line.dashed else next(colours)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line.points))
        if not line.dots:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        else:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOTS}" fill="{colour}"/>'
                for x, y in map(place, line.points)
            ]
        parts.append(
            f'<line x1="{beside}" y1="{TOP - 14}" x2="{beside + 16}" y2="{TOP - 14}" stroke="{colour}" '
            f'stroke-width="3"{dash}/>'
        )
        parts.append(
            f'<text x="{beside + 21}" y="{TOP - 10}" fill="{SOFT}">{element_text(line.label)}</text>'
        )
        beside += 40 + round(6.4 * len(line.label))
    middle = TOP + SIDE / 2
    parts.append(
        f'<text x="{LEFT + SIDE / 2:g}" y="{bottom + 40}" text-anchor="middle">{element_text(axes[0])}</text>'
    )
    parts.append(
        f'<text x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">'
        f"{element_text(axes[1])}</text>"
    )
    return draw_frame(title, parts, WIDTH, HEIGHT)


DOTS_WIDTH, DOTS_HEIGHT, DOTS_LEFT, DOTS_TOP, DOTS_SIDE = 480, 400, 92, 10, 330
TICKS = 5
DOT = 6
GRID = "#e6eaee"


def draw_calibration(groups: Sequence[Mapping[str, Any]], target: str) -> str:
    """Draw predicted against observed numbers: a dot for each group of `patients`, by `predicted` and `observed`.

    On the dashed line the mean prediction is the mean outcome. A dot above it is a group for which too little was
    predicted.
    """
    means = [float(group[name]) for group in groups for name in ("predicted", "observed")]
    ticks = _find_ticks(min(means), max(means))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        return DOTS_SIDE * (value - low) / (high - low)

    bottom = DOTS_TOP + DOTS_SIDE
    parts = []
    for tick in ticks:
        x, y, text = DOTS_LEFT + place(tick), bottom - place(tick), element_text(say_number(tick))
        parts.append(f'<line x1="{x:.1f}" y1="{DOTS_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(
            f'<line x1="{DOTS_LEFT}" y1="{y:.1f}" x2="{DOTS_LEFT + DOTS_SIDE}" y2="{y:.1f}" stroke="{GRID}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">{text}</text>')
        parts.append(
            f'<text x="{DOTS_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{text}</text>'
        )
    parts.append(
        f'<line x1="{DOTS_LEFT}" y1="{bottom}" x2="{DOTS_LEFT + DOTS_SIDE}" y2="{DOTS_TOP}" stroke="{RULE}" '
        'stroke-width="1.5" stroke-dasharray="5 4"/>'
    )
    for group in groups:
        x, y = DOTS_LEFT + place(float(group["predicted"])), bottom - place(float(group["observed"]))
        caption = (
            f"{group['patients']:,} patients: predicted {say_number(group['predicted'])}, "
            f"observed {say_number(group['observed'])}"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{COLOURS[0]}" fill-opacity="0.85">'
            f"<title>{element_text(caption)}</title></circle>"
        )
    middle, named = DOTS_TOP + DOTS_SIDE / 2, element_text(target)
    parts.append(
        f'<text x="{DOTS_LEFT + DOTS_SIDE / 2:g}" y="{bottom + 40}" text-anchor="middle">mean predicted {named}</text>'
    )
    parts.append(
        f'<text x="16" y="{middle:g}" text-anchor="middle" transform="rotate(-90 16 {middle:g})">'
        f"mean observed {named}</text>"
    )
    title = f"Predicted against observed {target}, in tenths of the patients by their prediction"
    return draw_frame(title, parts, DOTS_WIDTH, DOTS_HEIGHT)


def _find_ticks(low: float, high: float) -> list[float]:
    """Round numbers at even steps, from one at or below the least to one at or above the largest."""
    # Means that all but agree are not drawn apart further than their digits tell.
    width = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-9)
    size = 10.0 ** math.floor(math.log10(width / TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * TICKS >= width)
    first, last = math.floor(low / step), math.ceil(high / step)
    first -= first * step > low  # a quotient may be rounded to nothing
    return [number * step for number in range(first, max(last, first + 1) + 1)]
