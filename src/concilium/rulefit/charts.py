"""A rule model as pictures: what its attributes weigh, and what became of patients inside and outside of each rule.

The second is Figure 3 of the paper (docs/methods.md, section 2.10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.rulefit.outcome import say_number
from concilium.rulefit.table import Row

WIDTH, NAMES, BAR, BETWEEN, LINE = 780, 330, 14, 14, 16
OUTSIDE, INSIDE = COLOURS[:2]
LETTERS = 42
MOST_BARS = 12


def draw_importances(importances: Mapping[str, float], target: str) -> str:
    """A bar for each attribute, the most important first."""
    shown = list(importances.items())[:MOST_BARS]
    parts: list[str] = []
    top = 4.0
    for name, value in shown:
        parts += _name(name, top)
        parts += _bar(value / 100, top + 2, INSIDE, f"{value:.0f}")
        top += LINE + BETWEEN / 2
    return _frame(f"What weighs most in the rules for {target}, the largest 100", parts, top)


def draw_rates(rows: Sequence[Row], outcome: str, *, shares: bool = True) -> str:
    """For each rule two bars: the rate inside and the rate outside, or (not `shares`) the mean of a number; bars of
    numbers below zero begin at the least of them."""
    rules = [row for row in rows if row.rate_in is not None and row.rate_out is not None][:MOST_BARS]
    rates = [rate for row in rules for rate in (row.rate_in, row.rate_out) if rate is not None]
    least = min([0.0, *rates])
    scale = 1.0 if shares else (max([0.0, *rates]) - least) or 1.0
    parts = [
        f'<rect x="{NAMES}" y="2" width="10" height="10" fill="{INSIDE}"/>'
        f'<text x="{NAMES + 16}" y="12">patients for whom the rule holds</text>'
        f'<rect x="{NAMES + 230}" y="2" width="10" height="10" fill="{OUTSIDE}"/>'
        f'<text x="{NAMES + 246}" y="12">all others</text>'
    ]
    top = 26.0
    for row in rules:
        support = "" if row.support is None else f", {row.support:.0%} of patients"
        parts += _name(row.rule, top)
        for rate, colour in ((row.rate_in, INSIDE), (row.rate_out, OUTSIDE)):
            assert rate is not None
            shown = f"{rate:.0%}" if shares else say_number(rate)
            parts += _bar((rate - least) / scale, top, colour, shown + (support if colour == INSIDE else ""))
            top += BAR + 2
        top += max(0, len(_wrap(row.rule)) - 2) * LINE + BETWEEN
    return _frame(f"{outcome} inside and outside of each rule", parts, top)


def _name(text: str, top: float) -> list[str]:
    return [
        f'<text x="{NAMES - 10}" y="{top + 12 + LINE * number:g}" text-anchor="end">{element_text(line)}</text>'
        for number, line in enumerate(_wrap(text))
    ]


def _bar(share: float, top: float, colour: str, text: str) -> list[str]:
    """A bar, and beside it what it stands for."""
    width = max(1.0, min(share, 1.0) * (WIDTH - NAMES - 150))
    return [
        f'<rect x="{NAMES}" y="{top:g}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<text x="{NAMES + 6 + width:.1f}" y="{top + BAR - 3:g}" fill="{SOFT}">{element_text(text)}</text>',
    ]


def _wrap(text: str) -> list[str]:
    """A name in lines that fit beside the bars, broken between conditions; at most three."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) <= 3 else [*lines[:2], lines[2][: LETTERS - 3] + "..."]


def _frame(title: str, parts: Sequence[str], height: float) -> str:
    line = f'<line x1="{NAMES}" y1="0" x2="{NAMES}" y2="{height:g}" stroke="{RULE}"/>'
    return draw_frame(title, [line, *parts], WIDTH, height + 6)
