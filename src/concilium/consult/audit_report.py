"""An audit as one page of HTML that stands alone, with a picture: each attack's gain with its 95 % interval, beside
what privacy allows at most.
"""

from __future__ import annotations

from collections.abc import Mapping

import markupsafe

from concilium.consult.report import render
from concilium.evaluation.attacks import Estimate
from concilium.evaluation.audit import GUESSES, MEMBERSHIP, Audit, say_estimate, say_meaning
from concilium.models.pictures import COLOURS, RULE, SOFT, draw, draw_frame

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
        stroke, width = (RULE, 1.5) if tick == 0 else (GRID, 1.0)
        parts.append(draw("line", x1=x, y1=TOP, x2=x, y2=bottom, stroke=stroke, stroke_width=width))
        parts.append(draw("text", f"{tick:g}", x=x, y=bottom + 18, text_anchor="middle", fill=SOFT))
    if bound is not None:
        x, said = place(bound), f"no attack gains more than {bound:.3f}"
        dashed = {"stroke": COLOURS[1], "stroke_dasharray": "5 4", "title": said}
        parts.append(draw("line", x1=x, y1=TOP, x2=x, y2=bottom, stroke_width=2, **dashed))
    for number, (name, estimate) in enumerate(estimates.items()):
        y = TOP + ROW * (number + 0.5)
        caption = f"{name}: {estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"
        ends = {"x1": place(estimate.low), "y1": y, "x2": place(estimate.high), "y2": y}
        parts.append(draw("text", name, x=LEFT - 12, y=y + 4, text_anchor="end"))
        parts.append(draw("line", **ends, stroke=COLOURS[0], stroke_width=3))
        parts.append(draw("circle", cx=place(estimate.value), cy=y, r=6, fill=COLOURS[0], title=caption))
    said = "TPR - FPR: 0 is chance, 1 is certainty"
    parts.append(draw("text", said, x=(LEFT + WIDTH - RIGHT) / 2, y=bottom + 40, text_anchor="middle"))
    return draw_frame("What attacks gained, with 95 % intervals", parts, WIDTH, bottom + 54)


def render_audit(audit: Audit, model: str) -> str:
    """The page of an audit of the model of this name."""
    attacks = {
        MEMBERSHIP[name] + (f", {audit.shadows} shadows" if name == "shadows" else ""): figures
        for name, figures in audit.membership.items()
    }
    advantages = {MEMBERSHIP[name]: figures.advantage for name, figures in audit.membership.items()}
    return render(
        "audit_report.html.jinja",
        say_estimate=say_estimate,
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
