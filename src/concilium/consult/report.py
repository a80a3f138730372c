"""A run as one page of HTML that stands alone: no script, nothing fetched, fit for paper and for a phone.

Predictions are drawn as pictures: ROC curve, calibration of risks and of numbers, decision curve
(evaluation/summary.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import msgspec

from concilium.evaluation.drift import NAMES
from concilium.evaluation.metrics import IN_UNITS
from concilium.models.explanation import say_share
from concilium.models.outcome import say_number
from concilium.models.pictures import COLOURS, RULE, SOFT, draw, draw_frame
from concilium.privacy.accounting import shown
from concilium.protocol.releases import find_release
from concilium.records.dictionary import DictionaryEntry, describe_entry, say_value
from concilium.registry import METHODS, load
from concilium.statistics.results import draw_text

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
    table: Sequence[Sequence[str]] = (),
) -> str:
    """The page for a run: metrics and card as they stand in their files, and the model drawn as text.

    `pictures` are the model as SVG of our own drawing, by name, and go into the page as they are.
    `table` is the model in words where it is a table, the head first.
    """
    numeric, method = "range" in metrics, load(METHODS[metrics["method"]])
    if table:  # what the text says beside it
        drawing = drawing.removeprefix(draw_text(table)).strip()
    entries = msgspec.convert(card.get("dictionary", {}), dict[str, DictionaryEntry])
    positive = metrics.get("positive")
    if positive is not None:
        positive = say_value(positive, entries.get(metrics["target"]))
    patients = [site["patients"] for site in card["sites"] if site["patients"] is not None]
    return render(
        "report.html.jinja",
        metrics=metrics,
        card=card,
        way_out=find_release(card["release"]),
        drawing=drawing,
        pictures={name: markupsafe.Markup(picture) for name, picture in (pictures or {}).items()},
        table=table,
        method=method.description,
        tells_apart=method.tells_apart,
        query=query,
        figures=NUMBER_FIGURES if numeric else FIGURES,
        main_figures=NUMBER_FIGURES if numeric else MAIN_FIGURES,
        more_figures={} if numeric else MORE_FIGURES,
        positive=positive,
        drift_names=NAMES,
        overall=metrics.get("overall", metrics),
        numeric=numeric,
        calibration=markupsafe.Markup(_draw_calibration(metrics["calibration"], metrics["target"]))
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


def _describe_dictionary(entries: Mapping[str, DictionaryEntry]) -> dict[str, str]:
    """What the study's attributes mean, by name; nothing where the study has no dictionary."""
    return {
        name: f"{entry.label}: {describe_entry(entry)}" if entry.label else describe_entry(entry)
        for name, entry in entries.items()
    }


@cache
def make_environment() -> jinja2.Environment:
    """Where the templates of pages are found, and how they write numbers."""
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


def render(template: str, /, **values: Any) -> str:
    """A page by its template."""
    return make_environment().get_template(template).render(**values)


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
    return render(
        "methods_page.html.jinja",
        metrics=metrics,
        query=query,
        figures=NUMBER_FIGURES if numeric else {**MAIN_FIGURES, "brier": "Brier score"},
        descriptions={
            name: load(METHODS[row["method"]]).description for name, row in metrics["methods"].items()
        },
    )


WIDTH, HEIGHT, LEFT, TOP, SIDE = 400, 360, 58, 26, 280
LEAST_BENEFIT = -0.05
DOTS = 4.5


@dataclass(frozen=True)
class _DrawnLine:
    """A line through these points; dashed where it is there to compare with, with dots where each point is a group."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = False


def draw_risks(judged: Mapping[str, Any], positive: str) -> dict[str, str]:
    """The pictures by name, as SVG; only those that the patients tell."""
    pictures = {}
    if judged["roc"] is not None:
        lines = [
            _DrawnLine("a coin", [(0, 0), (1, 1)], dashed=True),
            _DrawnLine("the model", [(x, y) for x, y in judged["roc"]]),
        ]
        pictures["ROC curve"] = _draw_lines(
            f"ROC curve for {positive}", lines, ("1 - specificity", "sensitivity"), (0, 1), (0, 1)
        )
    groups = [(float(one["predicted"]), float(one["observed"])) for one in judged["groups"]]
    lines = [
        _DrawnLine("comes true", [(0, 0), (1, 1)], dashed=True),
        _DrawnLine("tenths of the patients", groups, dots=True),
    ]
    pictures["Calibration"] = _draw_lines(
        f"Predicted risk of {positive} against its share",
        lines,
        ("predicted risk", "observed share"),
        (0, 1),
        (0, 1),
    )
    benefit = judged["net_benefit"]
    pairs = {
        name: list(zip(benefit["threshold"], benefit[name], strict=True)) for name in ("model", "everyone")
    }
    highest = max(0.01, *(value for _, value in (*pairs["model"], *pairs["everyone"])))
    lines = [
        _DrawnLine("nobody", [(0, 0), (1, 0)], dashed=True),
        _DrawnLine("everyone", _cut_below(pairs["everyone"], LEAST_BENEFIT)),
        _DrawnLine("by the model", _cut_below(pairs["model"], LEAST_BENEFIT)),
    ]
    pictures["Decision curve"] = _draw_lines(
        f"Net benefit of acting on the risk of {positive}",
        lines,
        ("risk from which one treats", "net benefit"),
        (0, 1),
        (LEAST_BENEFIT, highest),
    )
    return pictures


def _cut_below(points: Sequence[tuple[float, float]], least: float) -> list[tuple[float, float]]:
    """The points up to where they fall below what is drawn."""
    kept = []
    for x, y in points:
        kept.append((x, max(y, least)))
        if y < least:
            break
    return kept


def _draw_lines(
    title: str,
    lines: Sequence[_DrawnLine],
    axes: tuple[str, str],
    across: tuple[float, float],
    up: tuple[float, float],
) -> str:
    """A square of lines over two axes, each named beside it."""
    columns, rows = _find_ticks(*across), _find_ticks(*up)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + SIDE * (point[0] - columns[0]) / (columns[-1] - columns[0])
        return x, TOP + SIDE * (rows[-1] - point[1]) / (rows[-1] - rows[0])

    bottom, parts = TOP + SIDE, []
    for tick in columns:
        x, _ = place((tick, rows[0]))
        parts.append(draw("line", x1=x, y1=TOP, x2=x, y2=bottom, stroke=GRID))
        parts.append(draw("text", f"{tick:g}", x=x, y=bottom + 18, text_anchor="middle", fill=SOFT))
    for tick in rows:
        _, y = place((columns[0], tick))
        parts.append(draw("line", x1=LEFT, y1=y, x2=LEFT + SIDE, y2=y, stroke=GRID))
        parts.append(draw("text", f"{round(tick, 6):g}", x=LEFT - 8, y=y + 4, text_anchor="end", fill=SOFT))
    colours = iter(COLOURS)
    beside = LEFT
    for line in lines:
        style: dict[str, Any] = {"stroke": RULE if line.dashed else next(colours)}
        points = list(map(place, line.points))
        if line.dashed:
            style["stroke_dasharray"] = "5 4"
        if line.dots:
            parts += [draw("circle", cx=x, cy=y, r=DOTS, fill=style["stroke"]) for x, y in points]
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(draw("polyline", points=path, fill="none", stroke_width=2, **style))
        parts.append(
            draw("line", x1=beside, y1=TOP - 14, x2=beside + 16, y2=TOP - 14, stroke_width=3, **style)
        )
        parts.append(draw("text", line.label, x=beside + 21, y=TOP - 10, fill=SOFT))
        beside += 40 + round(6.4 * len(line.label))
    parts += _name_axes(axes, LEFT + SIDE / 2, TOP + SIDE / 2, bottom, 14)
    return draw_frame(title, parts, WIDTH, HEIGHT)


def _name_axes(axes: tuple[str, str], x: float, y: float, bottom: float, left: float) -> list[str]:
    """The names of both axes, in the middle of each."""
    return [
        draw("text", axes[0], x=x, y=bottom + 40, text_anchor="middle"),
        draw("text", axes[1], x=left, y=y, text_anchor="middle", transform=f"rotate(-90 {left:g} {y:g})"),
    ]


DOTS_WIDTH, DOTS_HEIGHT, DOTS_LEFT, DOTS_TOP, DOTS_SIDE = 480, 400, 92, 10, 330
TICKS = 5
DOT = 6
GRID = "#e6eaee"


def _draw_calibration(groups: Sequence[Mapping[str, Any]], target: str) -> str:
    """Draw predicted against observed numbers: a dot for each group of `patients`, by `predicted` and `observed`.

    On the dashed line the mean prediction is the mean outcome. A dot above it is a group for which too little was
    predicted.
    """
    means = [float(group[name]) for group in groups for name in ("predicted", "observed")]
    ticks = _find_ticks(min(means), max(means))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        return DOTS_SIDE * (value - low) / (high - low)

    bottom, right = DOTS_TOP + DOTS_SIDE, DOTS_LEFT + DOTS_SIDE
    parts = []
    for tick in ticks:
        x, y, text = DOTS_LEFT + place(tick), bottom - place(tick), say_number(tick)
        parts.append(draw("line", x1=x, y1=DOTS_TOP, x2=x, y2=bottom, stroke=GRID))
        parts.append(draw("line", x1=DOTS_LEFT, y1=y, x2=right, y2=y, stroke=GRID))
        parts.append(draw("text", text, x=x, y=bottom + 18, text_anchor="middle", fill=SOFT))
        parts.append(draw("text", text, x=DOTS_LEFT - 8, y=y + 4, text_anchor="end", fill=SOFT))
    ends = {"x1": DOTS_LEFT, "y1": bottom, "x2": right, "y2": DOTS_TOP}
    parts.append(draw("line", **ends, stroke=RULE, stroke_width=1.5, stroke_dasharray="5 4"))
    for group in groups:
        x, y = DOTS_LEFT + place(float(group["predicted"])), bottom - place(float(group["observed"]))
        caption = (
            f"{group['patients']:,} patients: predicted {say_number(group['predicted'])}, "
            f"observed {say_number(group['observed'])}"
        )
        parts.append(draw("circle", cx=x, cy=y, r=DOT, fill=COLOURS[0], fill_opacity=0.85, title=caption))
    axes = f"mean predicted {target}", f"mean observed {target}"
    parts += _name_axes(axes, DOTS_LEFT + DOTS_SIDE / 2, DOTS_TOP + DOTS_SIDE / 2, bottom, 16)
    title = f"Predicted against observed {target}, in tenths of the patients by their prediction"
    return draw_frame(title, parts, DOTS_WIDTH, DOTS_HEIGHT)


def _find_ticks(low: float, high: float) -> list[float]:
    """Round numbers at even steps, from one at or below the least to one at or above the largest."""
    # Means that all but agree are not drawn apart further than their digits tell.
    width = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-9)
    size = 10.0 ** math.floor(math.log10(width / TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * TICKS >= width)
    first, last = math.floor(low / step), math.ceil(high / step)
    first -= first * step > low  # a quotient may be rounded to nothing
    return [number * step for number in range(first, max(last, first + 1) + 1)]
