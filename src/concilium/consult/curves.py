"""Predicted risks as pictures: ROC curve, risks against what happened, decision curve (evaluation/risks.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concilium.consult.calibration import GRID, find_ticks
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text

WIDTH, HEIGHT, LEFT, TOP, SIDE = 400, 360, 58, 26, 280
LEAST_BENEFIT = -0.05
DOTS = 4.5


@dataclass(frozen=True)
class DrawnLine:
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
            DrawnLine("a coin", [(0, 0), (1, 1)], dashed=True),
            DrawnLine("the model", [(x, y) for x, y in judged["roc"]]),
        ]
        pictures["ROC curve"] = draw_lines(
            f"ROC curve for {positive}", lines, ("1 - specificity", "sensitivity"), (0, 1), (0, 1)
        )
    groups = [(float(one["predicted"]), float(one["observed"])) for one in judged["groups"]]
    lines = [
        DrawnLine("comes true", [(0, 0), (1, 1)], dashed=True),
        DrawnLine("tenths of the patients", groups, dots=True),
    ]
    pictures["Calibration"] = draw_lines(
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
        DrawnLine("nobody", [(0, 0), (1, 0)], dashed=True),
        DrawnLine("everyone", cut_below(pairs["everyone"], LEAST_BENEFIT)),
        DrawnLine("by the model", cut_below(pairs["model"], LEAST_BENEFIT)),
    ]
    pictures["Decision curve"] = draw_lines(
        f"Net benefit of acting on the risk of {positive}",
        lines,
        ("risk from which one treats", "net benefit"),
        (0, 1),
        (LEAST_BENEFIT, highest),
    )
    return pictures


def cut_below(points: Sequence[tuple[float, float]], least: float) -> list[tuple[float, float]]:
    """The points up to where they fall below what is drawn."""
    kept = []
    for x, y in points:
        kept.append((x, max(y, least)))
        if y < least:
            break
    return kept


def draw_lines(
    title: str,
    lines: Sequence[DrawnLine],
    axes: tuple[str, str],
    across: tuple[float, float],
    up: tuple[float, float],
) -> str:
    """A square of lines over two axes, each named beside it."""
    columns, rows = find_ticks(*across), find_ticks(*up)

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
