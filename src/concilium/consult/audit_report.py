"""An audit as one page of HTML that stands alone."""

from __future__ import annotations

import markupsafe

from concilium.consult.audit_chart import draw_advantages
from concilium.consult.report import make_environment
from concilium.evaluation.attack_figures import Estimate
from concilium.evaluation.audit import GUESSES, MEMBERSHIP, Audit, say_meaning


def render_audit(audit: Audit, model: str) -> str:
    """The page of an audit of the model of this name."""
    environment = make_environment()
    environment.filters |= {"estimate": show_estimate, "share": show_share}
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
            draw_advantages(advantages, None if audit.bound is None else audit.bound.least)
        ),
    )


def show_estimate(estimate: Estimate | None) -> str:
    """A figure with its interval; a dash where patients are too few."""
    return "–" if estimate is None else f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def show_share(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"
