"""The one-level model as a picture: for every value of every attribute the share of the positive class among its
patients, with its 95 % interval, beside the share among all."""

from __future__ import annotations

from collections.abc import Sequence

from concilium.models.explanation import say_share
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text
from concilium.records.columns import label
from concilium.trees.body import BodyOfTrees, TreeNode, class_shares

WIDTH, NAMES, BAR, LINE = 780, 330, 12, 20
LETTERS = 46
MOST_ATTRIBUTES = 12


def draw_evidence(
    body: BodyOfTrees, attributes: Sequence[list[TreeNode]], positive: int, *, most: int | None = None
) -> str:
    """Attributes in the order given, the first `most` of them (twelve, unless told)."""
    shown = attributes[: MOST_ATTRIBUTES if most is None else most]
    of_all = class_shares(shown[0][0].counts)[positive] if shown else 0.0
    outcome = f"{body.target} = {label(body.classes[positive])}"
    parts = [
        f'<text x="{NAMES}" y="12" fill="{SOFT}">share with {element_text(outcome)}, 95% interval</text>'
    ]
    top = 26.0
    for nodes in shown:
        name = element_text(nodes[0].attribute or "")
        parts.append(f'<text x="0" y="{top + 12:g}" font-weight="600">{name}</text>')
        top += LINE
        for node, reached in nodes[0].ways(body):
            parts += _draw_value(nodes[node], reached, positive, top)
            top += LINE
        top += 6
    middle = NAMES + of_all * (WIDTH - NAMES - 60)
    parts += [
        f'<line x1="{middle:.1f}" y1="20" x2="{middle:.1f}" y2="{top:g}" stroke="{RULE}" stroke-dasharray="4 3"/>',
        f'<text x="{middle:.1f}" y="{top + 14:g}" text-anchor="middle" fill="{SOFT}">all: {say_share(of_all)}</text>',
    ]
    hidden = len(attributes) - len(shown)
    if hidden:
        parts.append(f'<text x="0" y="{top + 14:g}" fill="{SOFT}">and {hidden} more attributes</text>')
    return draw_frame(f"What each attribute says of {outcome}", parts, WIDTH, top + 22)


def _draw_value(node: TreeNode, reached: str, positive: int, top: float) -> list[str]:
    """A bar for the share, and a line for its interval."""
    share, scale = class_shares(node.counts)[positive], WIDTH - NAMES - 60
    low, high = (NAMES + end * scale for end in node.find_interval(positive))
    middle = top + BAR / 2 + 2
    said = reached if len(reached) <= LETTERS else reached[: LETTERS - 1] + "…"
    return [
        f'<text x="{NAMES - 10}" y="{top + 12:g}" text-anchor="end">{element_text(said)}</text>',
        f'<rect x="{NAMES}" y="{top + 2:g}" width="{max(share * scale, 1):.1f}" height="{BAR}" fill="{COLOURS[1]}" '
        'fill-opacity="0.55"/>',
        f'<line x1="{low:.1f}" y1="{middle:g}" x2="{high:.1f}" y2="{middle:g}" stroke="{SOFT}" stroke-width="2"/>',
        f'<text x="{high + 6:.1f}" y="{top + 12:g}" fill="{SOFT}">{say_share(share)}</text>',
    ]
