"""Several methods of one study as one page of HTML: a table of them, which to take and why, and the way to the page of
each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concilium.consult.report import FIGURES, NUMBER_FIGURES, make_environment
from concilium.registry import METHODS, load


def render_methods(metrics: Mapping[str, Any], query: str) -> str:
    """The page for the table of methods, as it stands in metrics.json."""
    numeric = metrics["primary"] == "rmse"
    return (
        make_environment()
        .get_template("methods_page.html.jinja")
        .render(
            metrics=metrics,
            query=query,
            figures=NUMBER_FIGURES if numeric else {**FIGURES, "brier": "Brier score"},
            descriptions={method: load(METHODS[method]).description for method in metrics["methods"]},
        )
    )
