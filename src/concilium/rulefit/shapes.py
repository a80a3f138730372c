"""The shapes of a private model to read: odds over the bins of each attribute, with the band of their noise.

A private model is a list of shapes before it is a list of rules (docs/methods.md, 2.12): what an attribute does is one
curve over its public bins. An odds ratio is against the mean over patients, for a patient whose other values are
unusual to a mean degree: rows are scaled to a public length, so that the same value moves a patient with many unusual
ones less. The band holds the noise, which is public, and the chance that these patients were seen and not others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from concilium.models.explanation import read_odds
from concilium.models.intervals import WITHIN_95
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.protocol.attributes import MISSING, Attribute
from concilium.rulefit.body import Curve, RuleBody
from concilium.rulefit.terms import say_rule

# Codes that hardly anybody has are not drawn: their band is all there would be to see.
LEAST_SHARE = 0.002
MOST_DRAWN = 12
WIDTH, NAMES, ROW, MOST_LOG_ODDS = 780, 250, 18, math.log(20)


@dataclass(frozen=True)
class ShapeBin:
    """An interval or a value: in words, the share of patients with it, and its odds ratio with a 95 % interval."""

    name: str
    share: float
    odds_ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class AttributeShape:
    """What one attribute does; `deviation` is that of its log odds over patients, by which shapes are ordered. A shape
    that is `hidden` has no bin whose interval leaves out 1."""

    attribute: str
    deviation: float
    bins: tuple[ShapeBin, ...]

    @property
    def hidden(self) -> bool:
        return all(one.low <= 1 <= one.high for one in self.bins)


def list_shapes(body: RuleBody) -> list[AttributeShape]:
    """All shapes of a model, the most important first."""
    shapes = [_read_curve(curve, body.terms.attributes[curve.attribute]) for curve in body.curves]
    return sorted(shapes, key=lambda shape: (-shape.deviation, shape.attribute))


def _read_curve(curve: Curve, attribute: Attribute) -> AttributeShape:
    bins = []
    for code, (share, moved, error) in enumerate(zip(curve.shares, curve.moved, curve.errors, strict=True)):
        ends = (moved, moved - WITHIN_95 * error, moved + WITHIN_95 * error)
        if share >= LEAST_SHARE:
            bins.append(ShapeBin(_name_code(attribute, code), share, *map(read_odds, ends)))
    pairs = zip(curve.shares, curve.moved, strict=True)
    return AttributeShape(
        attribute.name, math.sqrt(sum(share * moved**2 for share, moved in pairs)), tuple(bins)
    )


def _name_code(attribute: Attribute, code: int) -> str:
    """A code as a condition says it, without the attribute's name where that comes first."""
    if code == MISSING:
        return "missing"
    if not attribute.numeric and code == attribute.size - 1:
        return "any other value"
    return say_rule(((0, code, code),), [attribute]).removeprefix(f"{attribute.name} ").removeprefix("= ")


def _say_odds(odds: float) -> str:
    return "> 1000" if odds > 1e3 else f"{odds:.2f}"


def _say_band(one: ShapeBin) -> str:
    return f"{_say_odds(one.low)} to {_say_odds(one.high)}"


def say_shapes(shapes: Sequence[AttributeShape]) -> list[str]:
    """Shapes as lines of text, those that noise hides in one."""
    lines = []
    for shape in shapes:
        if shape.hidden:
            continue
        lines.append(f"{shape.attribute}:")
        lines += [
            f"  {_say_odds(one.odds_ratio):>6}  {_say_band(one):>15}  {one.share:>5.0%}  {one.name}"
            for one in shape.bins
        ]
    if lines:
        lines = ["  odds ratio     95 % CI   share of patients (noisy)", *lines]
    hidden = [shape.attribute for shape in shapes if shape.hidden]
    if hidden:
        lines.append(f"noise hides what these do: {', '.join(hidden)}")
    return lines


def draw_shapes(shapes: Sequence[AttributeShape], outcome: str, *, whole: bool = False) -> dict[str, str]:
    """A picture of each shape, by its name: a dot for each bin's odds ratio and a line for its band."""
    drawn = [shape for shape in shapes if not shape.hidden]
    return {
        f"shape of {shape.attribute}": _draw(shape, outcome)
        for shape in (drawn if whole else drawn[:MOST_DRAWN])
    }


def _draw(shape: AttributeShape, outcome: str) -> str:
    """One row for each bin, odds ratios on a logarithmic scale from a twentieth to twenty."""

    def place(odds: float) -> float:
        held = max(-MOST_LOG_ODDS, min(math.log(odds), MOST_LOG_ODDS))
        return NAMES + (WIDTH - NAMES - 110) * (held + MOST_LOG_ODDS) / (2 * MOST_LOG_ODDS)

    top, parts = 4.0, []
    for one in shape.bins:
        middle = top + ROW / 2
        parts += [
            f'<text x="{NAMES - 10}" y="{middle + 4:g}" text-anchor="end">{element_text(one.name)}</text>',
            f'<line x1="{place(one.low):.1f}" y1="{middle:g}" x2="{place(one.high):.1f}" y2="{middle:g}" '
            f'stroke="{COLOURS[0]}" stroke-width="5"/>',
            f'<circle cx="{place(one.odds_ratio):.1f}" cy="{middle:g}" r="4" fill="{COLOURS[1]}"/>',
            f'<text x="{WIDTH - 100}" y="{middle + 4:g}" fill="{SOFT}">'
            f"{element_text(f'{_say_odds(one.odds_ratio)} ({_say_band(one)})')}</text>",
        ]
        top += ROW
    for odds in (0.1, 0.5, 1, 2, 10):
        x = place(odds)
        parts.insert(0, f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{top:g}" stroke="{RULE}"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + 14:g}" text-anchor="middle" fill="{SOFT}">{odds:g}</text>')
    title = f"Odds ratio of {outcome} by {shape.attribute}, with a 95 % interval of noise and chance"
    return draw_frame(title, parts, WIDTH, top + 20)
