"""Curves over epsilon as a picture: one line for each mechanism, with the spread of its runs (Figures 4 and 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from concilium.codes.sharing_report import CurvePoint
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text

WIDTH, HEIGHT, LEFT, BELOW, ABOVE, LEGEND = 640, 360, 52, 40, 14, 18
TICKS = 5


def draw_curves(
    points: Iterable[CurvePoint], measure: Callable[[CurvePoint], float | None], title: str
) -> str:
    """The mean of a measure over runs, with bars of one standard deviation; points without a value are left out."""
    series: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    listed = list(points)
    colour_of = {name: place for place, name in enumerate(dict.fromkeys(point.series for point in listed))}
    for point in listed:
        value = measure(point)
        if value is not None:
            series[point.series][float(point.epsilon)].append(value)
    widest = max((x for line in series.values() for x in line), default=1.0)
    highest = max((max(found) for line in series.values() for found in line.values()), default=1.0) or 1.0
    right, bottom = WIDTH - 20, HEIGHT - BELOW

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * x / widest, bottom - (bottom - ABOVE) * y / highest

    parts = _draw_axes(widest, highest, right, bottom, title)
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[colour_of[name] % len(COLOURS)]
        means = [(x, float(np.mean(found)), float(np.std(found))) for x, found in sorted(line.items())]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y, _ in means)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, spread in means:
            left, low = place(x, max(y - spread, 0.0))
            _, high = place(x, min(y + spread, highest))
            parts.append(
                f'<line x1="{left:.1f}" y1="{low:.1f}" x2="{left:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
            )
        top = HEIGHT + LEGEND * number
        parts.append(f'<rect x="{LEFT}" y="{top}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{top + 7}">{element_text(name)}</text>')
    return draw_frame(f"{title} over epsilon", parts, WIDTH, HEIGHT + LEGEND * len(series) + 4)


def _draw_axes(widest: float, highest: float, right: float, bottom: float, title: str) -> list[str]:
    parts = [f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{RULE}"/>']
    for tick in range(TICKS + 1):
        share = tick / TICKS
        x, y = LEFT + (right - LEFT) * share, bottom - (bottom - ABOVE) * share
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{RULE}" stroke-width="0.5"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{highest * share:.2f}</text>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{SOFT}">{widest * share:.1f}</text>'
        )
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{bottom + 32}" text-anchor="middle">'
        f"{element_text(title)} over epsilon of one event</text>"
    )
    return parts
