"""What came out of a run, in words and tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from concilium.cli.output import figure, say, say_table, size, warn

if TYPE_CHECKING:
    from concilium.protocol.card import Card
    from concilium.study import Study
    from concilium.study.results import StudyResults
    from concilium.study.several import SeveralResults

SITES_SHOWN = 12
WARNINGS_SHOWN = 3
SHOWN = {
    "accuracy": "accuracy",
    "balanced": "balanced_accuracy",
    "AUC": "auc",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
SHOWN_NUMBERS = {
    "RMSE": "rmse",
    "mean error": "mae",
    "R²": "r2",
    "Spearman": "spearman",
    "mean": "mean",
    "median": "median",
}


def tell_all(results: StudyResults | SeveralResults, out: Path) -> None:
    """What came out of a run of one method or of several, and where it is."""
    if results.study.several:
        tell_methods(cast("SeveralResults", results))
        folders = ", ".join(f"{one.method}/" for one in results.study.several)
        say(f"results in {out}: report.html, metrics.json, and of each method what a run leaves: {folders}")
        return
    tell_results(cast("StudyResults", results))
    say(f"results in {out}: {', '.join(results.files)}")


def tell_results(results: StudyResults) -> None:
    """What came out, for people: a line, the figures, and what to be warned of."""
    from concilium.evaluation.number_metrics import IN_UNITS

    study, card, metrics = results.study, results.card, results.metrics
    say(
        f"{study.name}: learned from {count(len(card.sites), 'site')} in {count(card.rounds, 'round')}, "
        f"{size(card.bytes)}, {metrics['seconds']:.1f} s"
    )
    if study.evaluate is not None:
        rows = [("overall", metrics["overall"])]
        if len(metrics["sites"]) <= SITES_SHOWN:
            rows += metrics["sites"].items()
        say(
            f"evaluated on {metrics['evaluation']}" if not study.evaluate.leave_out else metrics["evaluation"]
        )
        if metrics.get("threshold") is not None:
            say(f"{metrics['target']}: {metrics['decision']}")
        columns = SHOWN_NUMBERS if study.target_range else SHOWN
        say_table(
            ["", "patients", *columns],
            [
                [name, str(row["patients"]), *(figure(row[key], key in IN_UNITS) for key in columns.values())]
                for name, row in rows
            ],
        )
        if intervals := metrics["overall"].get("intervals"):
            tell_intervals(metrics["overall"], intervals, columns)
    if "comparison" in metrics:
        tell_comparison(metrics["comparison"], study)
    for line in list_left_out(card):
        warn(f"warning: {line}")
    for warning in card.warnings[:WARNINGS_SHOWN]:
        warn(f"warning: {warning}")
    if len(card.warnings) > WARNINGS_SHOWN:
        warn(f"and {count(len(card.warnings) - WARNINGS_SHOWN, 'more warning')}: see report.html")


def tell_methods(results: SeveralResults) -> None:
    """Methods side by side, what each costs, how much there is to read, and which to take."""
    from concilium.evaluation.number_metrics import IN_UNITS

    study, metrics = results.study, results.metrics
    say(
        f"{study.name}: {', '.join(results.results)}, learned and measured on the same patients; "
        f"{metrics['evaluation']}"
    )
    names = ("RMSE", "R²") if study.target_range else ("accuracy", "balanced", "AUC")
    columns = {name: (SHOWN_NUMBERS if study.target_range else SHOWN)[name] for name in names}
    key = metrics["primary"]
    rows = []
    for method, row in metrics["methods"].items():
        known = (row.get("intervals") or {}).get(key)
        between = "" if known is None else " to ".join(figure(end, key in IN_UNITS) for end in known)
        cells = [figure(row.get(one), one in IN_UNITS) for one in columns.values()]
        epsilon = "unlimited" if row["epsilon"] is None else f"{row['epsilon']:g}"
        rows.append(
            [
                method,
                *cells,
                between,
                str(row["lines"]),
                epsilon,
                f"{row['numbers']:,}",
                f"{row['seconds']:.1f}",
            ]
        )
    say_table(["", *columns, "95 %", "lines", "epsilon", "numbers", "seconds"], rows)
    ways = {method: row["ways"] for method, row in metrics["methods"].items() if "ways" in row}
    if ways:
        heading = "how far off (RMSE)" if study.target_range else "AUC on the same patients"
        learned = list(dict.fromkeys(way for row in ways.values() for way in row))
        say(f"{heading}, when learned")
        say_table(
            ["", *learned],
            [
                [method, *(figure(row.get(n), key in IN_UNITS) for n in learned)]
                for method, row in ways.items()
            ],
        )
    if metrics["epsilon"] is not None:
        say(
            f"all together cost every patient epsilon = {metrics['epsilon']:g} at delta = {study.privacy.delta}"
        )
    say(f"to take: {metrics['pick']}; {metrics['why']}" if metrics["pick"] else metrics["why"])
    for method, one in results.results.items():
        for line in list_left_out(one.card):
            warn(f"warning: {method}: {line}")
        if one.card.warnings:
            warn(f"warning: {method}: {count(len(one.card.warnings), 'warning')} in its report, first of all: "
                 f"{one.card.warnings[0]}")  # fmt: skip


def tell_intervals(
    overall: Mapping[str, Any], intervals: Mapping[str, Any], columns: Mapping[str, str]
) -> None:
    """Between what the overall figures lie at 95 %, in a line."""
    from concilium.evaluation.number_metrics import IN_UNITS

    known = [
        f"{name} {figure(low, key in IN_UNITS)} to {figure(high, key in IN_UNITS)}"
        for name, key in columns.items()
        if overall[key] is not None and intervals.get(key) is not None
        for low, high in [intervals[key]]
    ]
    if known:
        say(f"95 % intervals ({intervals['drawn']} drawn): {', '.join(known)}")


def list_left_out(card: Card) -> list[str]:
    """The hospitals that are not in the model, each with why."""
    there = {site.name for site in card.sites}
    reasons: dict[str, str] = {}
    for refusal in card.refusals:
        reasons.setdefault(refusal.site, f"refused ({refusal.rule}: {refusal.reason})")
    for loss in card.dropouts:
        reasons.setdefault(loss.site, f"was lost in round {loss.round} ({loss.reason})")
    return [f"{site} is not in the model: it {why}" for site, why in reasons.items() if site not in there]


def tell_comparison(comparison: Mapping[str, Any], study: Study) -> None:
    """How many patients each way of learning diagnoses wrongly, or how far off it is."""
    from concilium.evaluation.number_metrics import IN_UNITS

    if study.target_range:
        say(f"how far off {study.target} is when learned")
        columns = {name: SHOWN_NUMBERS[name] for name in ("RMSE", "mean error", "R²")}
    else:
        say("wrongly diagnosed when learned")
        columns = {name: SHOWN[name] for name in ("accuracy", "AUC")}
    counts = [] if study.target_range else ["wrong"]
    say_table(
        ["", "patients", *counts, *columns],
        [
            [
                way,
                *(str(row[name]) for name in ("patients", *counts)),
                *(figure(row[key], key in IN_UNITS) for key in columns.values()),
            ]
            for way, row in ((way, row["same_patients"]) for way, row in comparison["ways"].items())
            if row["patients"]
        ],
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
