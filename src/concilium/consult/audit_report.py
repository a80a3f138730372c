"""An audit as one page of HTML that stands alone, with a picture: each attack's gain with its 95 % interval, beside
what privacy allows at most.
"""

from __future__ import annotations

from collections.abc import Mapping

import markupsafe

from concilium.consult.report import make_environment
from concilium.evaluation.attacks import Estimate
from concilium.evaluation.audit import GUESSES, MEMBERSHIP, Audit, say_meaning
from concilium.models.pictures import COLOURS, RULE, SOFT, draw_frame, element_text

WIDTH, LEFT, RIGHT, TOP, ROW = 640, 190, 30, 14, 34
GRID = "#e6eaee"
STEP = 0.25


def _draw_advantages(estimates: Mapping[str, Estimate], bound: float | None) -> str:
    """The picture for advantages by the name of their attack; `bound` is drawn as a line."""
    low = min(0.0, *(estimate.low for estimate in estimates.values()))
    first = -STEP if low < 0 else 0.0
    bottom = TOP + ROW * len(estimates)

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (max(value, first) - first) / (1 - first)

    parts = []
    for number in range(round((1 - first) / STEP) + 1):
        tick = first + number * STEP
        x = place(tick)
        stroke = f'stroke="{RULE}" stroke-width="1.5"' if tick == 0 else f'stroke="{GRID}"'
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" {stroke}/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">{tick:g}</text>'
        )
    if bound is not None:
        x = place(bound)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{COLOURS[1]}" stroke-width="2" '
            f'stroke-dasharray="5 4"><title>no attack gains more than {bound:.3f}</title></line>'
        )
    for number, (name, estimate) in enumerate(estimates.items()):
        y = TOP + ROW * (number + 0.5)
        caption = f"{name}: {estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{element_text(name)}</text>')
        parts.append(
            f'<line x1="{place(estimate.low):.1f}" y1="{y:.1f}" x2="{place(estimate.high):.1f}" y2="{y:.1f}" '
            f'stroke="{COLOURS[0]}" stroke-width="3"/>'
        )
        parts.append(
            f'<circle cx="{place(estimate.value):.1f}" cy="{y:.1f}" r="6" fill="{COLOURS[0]}">'
            f"<title>{element_text(caption)}</title></circle>"
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{bottom + 40}" text-anchor="middle">TPR - FPR: 0 is chance, '
        "1 is certainty</text>"
    )
    return draw_frame("What attacks gained, with 95 % intervals", parts, WIDTH, bottom + 54)


def render_audit(audit: Audit, model: str) -> str:
    """The page of an audit of the model of this name."""
    environment = make_environment().overlay()
    environment.filters = {**environment.filters, "estimate": _show_estimate, "share": _show_share}
    attacks = {
        MEMBERSHIP[name] + (f", {audit.shadows} shadows" if name == "shadows" else ""): figures
        for name, figures in audit.membership.items()
    }
    advantages = {MEMBERSHIP[name]: figures.advantage for name, figures in audit.membership.items()}
    return environment.get_template("audit_report.html.jinja").render(
        audit=audit,
        model=model,
        attacks=attacks,
        alarms=list(next(iter(audit.membership.values())).found),
        guesses=GUESSES,
        meaning=say_meaning(audit),
        picture=markupsafe.Markup(
            _draw_advantages(advantages, None if audit.bound is None else audit.bound.least)
        ),
    )


def _show_estimate(estimate: Estimate | None) -> str:
    """A figure with its interval; a dash where patients are too few."""
    return "–" if estimate is None else f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _show_share(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"
