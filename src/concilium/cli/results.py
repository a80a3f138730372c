"""What came out of a run, in words and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        _tell_methods(cast("SeveralResults", results))
        folders = ", ".join(f"{one.variant}/" for one in results.study.several)
        say(f"results in {out}: report.html, metrics.json, and of each method what a run leaves: {folders}")
        return
    _tell_results(cast("StudyResults", results))
    say(f"results in {out}: {', '.join(results.files)}")


def _tell_results(results: StudyResults) -> None:
    """What came out, for people: a line, the figures, and what to be warned of."""
    from concilium.evaluation.metrics import IN_UNITS

    study, card, metrics = results.study, results.card, results.metrics
    for alarm in results.alarms:
        warn(f"alarm: {alarm}")
    _tell_differences(results.differences)
    say(
        f"{study.name}: learned from {_count(len(card.sites), 'site')} in {_count(card.rounds, 'round')}, "
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
            _tell_intervals(metrics["overall"], intervals, columns)
        if (
            study.way_out.bounded
            and study.find_evaluation() is not None
            and metrics.get("epsilon") is not None
        ):
            say(
                f"learning and measuring together cost every patient epsilon = {metrics['epsilon']:g} at delta = "
                f"{study.privacy.delta}"
            )
    elif study.method_type.tells_apart and not study.method_type.reads_courses:
        say(
            "not evaluated: [evaluate] with holdout = 0.3 in the study file measures the model on held-out patients"
        )
    tell_subgroups(metrics)
    for note in metrics.get("notes", ()):
        warn(f"note: {note}")
    if "comparison" in metrics:
        _tell_comparison(metrics["comparison"], study)
    for line in _list_missing_sites(card):
        warn(f"warning: {line}")
    left_out, others = _part_warnings(card)
    for warning in [*left_out, *others[:WARNINGS_SHOWN]]:
        warn(f"warning: {warning}")
    if len(others) > WARNINGS_SHOWN:
        warn(f"and {_count(len(others) - WARNINGS_SHOWN, 'more warning')}: see report.html")


COLUMNS = ["", "patients", "events", "AUC", "95 %", "slope", "intercept", "Brier"]


def calibrated_row(name: str, row: Mapping[str, Any]) -> list[str]:
    """A line of a table with COLUMNS: how well risks tell patients apart, and how well they come true."""
    interval = (row.get("intervals") or {}).get("auc")
    calibration = row.get("calibration") or {}
    return [
        name,
        str(row["patients"]),
        str(row["events"]),
        figure(row["auc"]),
        "" if interval is None else " to ".join(figure(end) for end in interval),
        *(figure(calibration.get(key)) for key in ("slope", "intercept", "brier")),
    ]


def tell_subgroups(metrics: Mapping[str, Any]) -> None:
    """Performance in subgroups, where these were measured."""
    for attribute, groups in metrics.get("subgroups", {}).items():
        say(f"by {attribute}")
        say_table(COLUMNS, [calibrated_row(group, row) for group, row in groups.items()])
        if hidden := [group for group, row in groups.items() if row["auc"] is None]:
            say(f"too few patients with the outcome, or without it, to tell: {', '.join(hidden)}")


def _tell_methods(results: SeveralResults) -> None:
    """Methods side by side, what each costs, how much there is to read, and which to take."""
    from concilium.evaluation.metrics import IN_UNITS

    study, metrics = results.study, results.metrics
    for alarm, methods in _gather_alarms(results).items():
        warn(f"alarm: {', '.join(methods)}: {alarm}")
    _tell_differences(results.differences)
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
                row["release"],
                str(row["lines"]),
                epsilon,
                f"{row['numbers']:,}",
                f"{row['seconds']:.1f}",
                str(len(row["alarms"]) or ""),
            ]
        )
    say_table(["", *columns, "95 %", "release", "lines", "epsilon", "numbers", "seconds", "alarms"], rows)
    for method, one in results.results.items():
        if metrics["methods"][method].get(key) is None:
            for note in one.metrics.get("notes", ()):
                say(f"{method}: {note}")
    _tell_ways(study, metrics)
    if metrics["epsilon"] is not None:
        say(
            f"all together cost every patient epsilon = {metrics['epsilon']:g} at delta = {study.privacy.delta}"
        )
    say(f"to take: {metrics['pick']}; {metrics['why']}" if metrics["pick"] else metrics["why"])
    by_sentence: dict[str, list[str]] = {}
    for method, one in results.results.items():
        for line in _list_missing_sites(one.card):
            warn(f"warning: {method}: {line}")
        left_out, others = _part_warnings(one.card)
        for line in left_out:
            by_sentence.setdefault(line, []).append(method)
        if others:
            warn(
                f"warning: {method}: {_count(len(others), 'warning')} in its report, first of all: {others[0]}"
            )
    for line, methods in by_sentence.items():
        warn(f"warning: {', '.join(methods)}: {line}")


def _tell_differences(differences: Sequence[str]) -> None:
    """One alarm for what was warned of when the run began, and stands in no file."""
    if differences:
        warn(
            f"alarm: hospitals' tables differ as by mistake ({_count(len(differences), 'warning')} above); the files "
            "do not say so, since the release shows no single hospital"
        )


def _gather_alarms(results: SeveralResults) -> dict[str, list[str]]:
    """Every alarm once, with the methods that raise it."""
    found: dict[str, list[str]] = {}
    for method, one in results.results.items():
        for alarm in one.alarms:
            found.setdefault(alarm, []).append(method)
    return found


def _tell_ways(study: Study, metrics: Mapping[str, Any]) -> None:
    """What each method is worth when learned alone, together or pooled, where that was compared."""
    from concilium.evaluation.metrics import IN_UNITS

    ways = {method: row["ways"] for method, row in metrics["methods"].items() if "ways" in row}
    if not ways:
        return
    in_units = metrics["primary"] in IN_UNITS
    heading = "how far off (RMSE)" if study.target_range else "AUC on the same patients"
    learned = list(dict.fromkeys(way for row in ways.values() for way in row))
    say(f"{heading}, when learned")
    say_table(
        ["", *learned],
        [[method, *(figure(row.get(way), in_units) for way in learned)] for method, row in ways.items()],
    )


def _tell_intervals(
    overall: Mapping[str, Any], intervals: Mapping[str, Any], columns: Mapping[str, str]
) -> None:
    """Between what the overall figures lie at 95 %, in a line."""
    from concilium.evaluation.metrics import IN_UNITS

    known = [
        f"{name} {figure(low, key in IN_UNITS)} to {figure(high, key in IN_UNITS)}"
        for name, key in columns.items()
        if overall[key] is not None and intervals.get(key) is not None
        for low, high in [intervals[key]]
    ]
    if known:
        say(f"95 % intervals ({intervals['drawn']} drawn): {', '.join(known)}")


def _part_warnings(card: Card) -> tuple[list[str], list[str]]:
    """What a card says of columns that were left out, and its other warnings."""
    from concilium.protocol.schema import LEFT_OUT

    left_out = [warning for warning in card.warnings if warning.startswith(LEFT_OUT)]
    return left_out, [warning for warning in card.warnings if warning not in left_out]


def _list_missing_sites(card: Card) -> list[str]:
    """The hospitals that are not in the model, each with why."""
    return [f"{site} is not in the model ({why})" for site, why in card.find_missing_sites().items()]


def _tell_comparison(comparison: Mapping[str, Any], study: Study) -> None:
    """How many patients each way of learning diagnoses wrongly, or how far off it is."""
    from concilium.evaluation.metrics import IN_UNITS

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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
