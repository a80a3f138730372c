"""Predicted numbers against observed ones as a picture: a dot for each tenth of the patients, by their prediction.

On the dashed line the mean prediction is the mean outcome; a dot above it stands for patients of whom too little was
predicted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.rulefit.body import say_number

WIDTH, HEIGHT, LEFT, TOP, SIDE = 480, 400, 92, 10, 330
TICKS = 5
DOT = 6
GRID = "#e6eaee"


def draw_calibration(groups: Sequence[Mapping[str, Any]], target: str) -> str:
    """The picture for groups of patients, each with `patients`, `predicted` and `observed`."""
    means = [float(group[name]) for group in groups for name in ("predicted", "observed")]
    ticks = find_ticks(min(means), max(means))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        return SIDE * (value - low) / (high - low)

    bottom = TOP + SIDE
    parts = []
    for tick in ticks:
        x, y, text = LEFT + place(tick), bottom - place(tick), element_text(say_number(tick))
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + SIDE}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">{text}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{text}</text>')
    parts.append(
        f'<line x1="{LEFT}" y1="{bottom}" x2="{LEFT + SIDE}" y2="{TOP}" stroke="{RULE}" stroke-width="1.5" '
        'stroke-dasharray="5 4"/>'
    )
    for group in groups:
        x, y = LEFT + place(float(group["predicted"])), bottom - place(float(group["observed"]))
        caption = (
            f"{group['patients']:,} patients: predicted {say_number(group['predicted'])}, "
            f"observed {say_number(group['observed'])}"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{COLOURS[0]}" fill-opacity="0.85">'
            f"<title>{element_text(caption)}</title></circle>"
        )
    middle, named = TOP + SIDE / 2, element_text(target)
    parts.append(
        f'<text x="{LEFT + SIDE / 2:g}" y="{bottom + 40}" text-anchor="middle">mean predicted {named}</text>'
    )
    parts.append(
        f'<text x="16" y="{middle:g}" text-anchor="middle" transform="rotate(-90 16 {middle:g})">'
        f"mean observed {named}</text>"
    )
    title = f"Predicted against observed {target}, in tenths of the patients by their prediction"
    return draw_frame(title, parts, WIDTH, HEIGHT)


def find_ticks(low: float, high: float) -> list[float]:
    """Round numbers at even steps, from one at or below the least to one at or above the largest."""
    # Means that all but agree are not drawn apart further than their digits tell.
    width = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-9)
    size = 10.0 ** math.floor(math.log10(width / TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * TICKS >= width)
    first, last = math.floor(low / step), math.ceil(high / step)
    first -= first * step > low  # a quotient may be rounded to nothing
    return [number * step for number in range(first, max(last, first + 1) + 1)]
