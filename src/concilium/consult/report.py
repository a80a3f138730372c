"""A run as one page of HTML that stands alone: no script, nothing fetched, fit for paper and for a phone."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import msgspec

from concilium.consult.curves import draw_calibration, draw_risks
from concilium.evaluation.drift import NAMES
from concilium.evaluation.metrics import IN_UNITS
from concilium.models.explanation import say_share
from concilium.privacy.accounting import shown
from concilium.protocol.releases import find_release
from concilium.records.dictionary import DictionaryEntry, describe_entry, say_value
from concilium.registry import METHODS, load
from concilium.rulefit.body import say_number

MAIN_FIGURES = {
    "auc": "AUC",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
}
MORE_FIGURES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "f1": "F1",
    "mcc": "MCC",
}
FIGURES = {**MAIN_FIGURES, **MORE_FIGURES}

NUMBER_FIGURES = {
    "rmse": "RMSE",
    "mae": "Mean abs. error",
    "r2": "R²",
    "spearman": "Spearman",
    "mean": "Mean outcome",
    "median": "Median outcome",
}

LONG_LIST = 4
LONG_TABLE = 25
LONG_TEXT = 400
"""Above these lengths a list, table or model is folded on the screen (on paper it is whole), so that the page stays a
page."""


def render_report(
    metrics: Mapping[str, Any],
    card: Mapping[str, Any],
    drawing: str,
    query: str,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """The page for a run: metrics and card as they stand in their files, and the model drawn as text.

    `pictures` are the model as SVG of our own drawing, by name, and go into the page as they are.
    """
    numeric = "range" in metrics
    entries = msgspec.convert(card.get("dictionary", {}), dict[str, DictionaryEntry])
    positive = metrics.get("positive")
    if positive is not None:
        positive = say_value(positive, entries.get(metrics["target"]))
    patients = [site["patients"] for site in card["sites"] if site["patients"] is not None]
    return (
        make_environment()
        .get_template("report.html.jinja")
        .render(
            metrics=metrics,
            card=card,
            way_out=find_release(card["release"]),
            drawing=drawing,
            pictures={name: markupsafe.Markup(picture) for name, picture in (pictures or {}).items()},
            method=load(METHODS[metrics["method"]]).description,
            query=query,
            figures=NUMBER_FIGURES if numeric else FIGURES,
            main_figures=NUMBER_FIGURES if numeric else MAIN_FIGURES,
            more_figures={} if numeric else MORE_FIGURES,
            positive=positive,
            drift_names=NAMES,
            overall=metrics.get("overall", metrics),
            numeric=numeric,
            calibration=markupsafe.Markup(draw_calibration(metrics["calibration"], metrics["target"]))
            if metrics.get("calibration")
            else None,
            curves={
                name: markupsafe.Markup(picture)
                for name, picture in draw_risks(risks, f"{metrics['target']} = {positive}").items()
            }
            if (risks := metrics.get("risks"))
            else {},
            patients=sum(patients),
            releases=_releases_by_site(card),
            dictionary=_describe_dictionary(entries),
            long_list=LONG_LIST,
            long_table=LONG_TABLE,
            long_text=LONG_TEXT,
        )
    )


def _describe_dictionary(entries: Mapping[str, DictionaryEntry]) -> dict[str, str]:
    """What the study's attributes mean, by name; nothing where the study has no dictionary."""
    return {
        name: f"{entry.label}: {describe_entry(entry)}" if entry.label else describe_entry(entry)
        for name, entry in entries.items()
    }


@cache
def make_environment() -> jinja2.Environment:
    """Where the templates of reports are found, and how they write numbers."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": _figure,
        "thousands": _thousands,
        "amount": say_number,
        "interval": _interval,
        "share": say_share,
    }
    return environment


def _releases_by_site(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For every site that answered: its patients, what it answered, and numbers released per patient. One that opted
    out or was lost released what it did all the same."""
    there = {site["name"]: site["patients"] for site in card["sites"]}
    absent = sorted({release["site"] for release in card["releases"]} - set(there))
    rows = []
    for name in (*there, *absent):
        releases = [release for release in card["releases"] if release["site"] == name]
        patients = there.get(name)
        numbers = sum(release["numbers"] for release in releases)
        costs = [release["cost"] for release in releases]
        rows.append(
            {
                "site": name if name in there else f"{name} (not in the model)",
                "patients": patients,
                "answers": sum(release["answers"] for release in releases),
                "numbers": numbers,
                "per_patient": numbers / patients if patients else None,
                "cost": "unlimited"
                if None in costs or not costs
                else f"rho {shown(sum((Fraction(cost) for cost in costs), Fraction(0)))}",
            }
        )
    return rows


def _figure(number: float | None, key: str = "") -> str:
    """A figure with three digits, or as a number with a unit reads; a dash where the patients cannot tell."""
    if number is not None and key in IN_UNITS:
        return say_number(number)
    return "–" if number is None else f"{number:.3f}"


def _interval(row: Mapping[str, Any], key: str) -> str:
    """Between what a figure lies at 95 %; nothing where that is not known."""
    known = (row.get("intervals") or {}).get(key)
    return "" if known is None else f"{_figure(known[0], key)} to {_figure(known[1], key)}"


def _thousands(number: int | None) -> str:
    """A count with its thousands set apart; a dash where it is not released."""
    return "–" if number is None else f"{number:,}"


def render_methods(metrics: Mapping[str, Any], query: str) -> str:
    """The page for the table of methods, as it stands in metrics.json."""
    numeric = metrics["primary"] == "rmse"
    return (
        make_environment()
        .get_template("methods_page.html.jinja")
        .render(
            metrics=metrics,
            query=query,
            figures=NUMBER_FIGURES if numeric else {**MAIN_FIGURES, "brier": "Brier score"},
            descriptions={
                name: load(METHODS[row["method"]]).description for name, row in metrics["methods"].items()
            },
        )
    )
