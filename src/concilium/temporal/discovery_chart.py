"""A discovery as a picture: the share of patients who have each rule, and how far the noise leaves that open."""

from __future__ import annotations

from collections.abc import Sequence

from concilium.models.pictures import COLOURS, INK, RULE, SOFT, draw_frame, element_text
from concilium.temporal.discovery_body import FoundRule

WIDTH, NAMES, BAR, LINE = 780, 330, 12, 24
MOST_BARS = 20
LETTERS = 46


def draw_prevalences(rules: Sequence[FoundRule], outcome: str, *, whole: bool = False) -> str:
    """A bar for each rule, the most frequent first, with its 95 % interval as a line; `whole`: all of them."""
    shown = rules if whole else rules[:MOST_BARS]
    room = WIDTH - NAMES - 150
    parts, top = [], 4.0
    for rule in shown:
        name = rule.text if len(rule.text) <= LETTERS else f"{rule.text[: LETTERS - 3]}..."
        low, high = (NAMES + share * room for share in rule.interval)
        middle = top + BAR / 2
        label = f"{rule.prevalence:.1%} ({rule.interval[0]:.1%} to {rule.interval[1]:.1%})"
        parts += [
            f'<text x="{NAMES - 10}" y="{top + 10:g}" text-anchor="end">{element_text(name)}</text>',
            f'<rect x="{NAMES}" y="{top:g}" width="{max(1.0, rule.prevalence * room):.1f}" height="{BAR}" '
            f'fill="{COLOURS[0]}"/>',
            f'<line x1="{low:.1f}" y1="{middle:g}" x2="{high:.1f}" y2="{middle:g}" stroke="{INK}" stroke-width="2"/>',
            f'<text x="{high + 8:.1f}" y="{top + 10:g}" fill="{SOFT}">{element_text(label)}</text>',
        ]
        top += LINE
    axis = f'<line x1="{NAMES}" y1="0" x2="{NAMES}" y2="{top:g}" stroke="{RULE}"/>'
    title = f"{outcome}: the share of patients who have each rule, with its 95 % interval"
    return draw_frame(title, [axis, *parts], WIDTH, top + 4)
