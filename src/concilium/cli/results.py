"""What `concilium run` leaves: figures under plain names, files in full or not at all, and words for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.cli.output import figure, say, say_table, size, warn
from concilium.errors import StudyError

if TYPE_CHECKING:
    from concilium.model import Estimator
    from concilium.records.table import Value
    from concilium.study import Study
    from concilium.study_sections import Evaluate

# All files that a run may leave; `tree.svg` only where the model is one picture.
RESULTS = ("model.json", "metrics.json", "card.json", "tree.svg", "report.html")
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


@dataclass(frozen=True)
class Results:
    """A fitted model with its figures, before any of it is written."""

    model: Estimator
    metrics: dict[str, Any]


def tabulate(
    study: Study, model: Estimator, seconds: float, measured: dict[str, Any], positive: Value | None
) -> dict[str, Any]:
    """metrics.json: the overall figures under plain names, then the same for each site and each fold."""
    from concilium.evaluation.metrics import FIGURES
    from concilium.evaluation.number_metrics import NUMBER_FIGURES

    epsilon = total_epsilon(study) if study.privacy.release == "private" else None
    overall = {
        "patients": 0,
        **dict.fromkeys(NUMBER_FIGURES if study.target_range else FIGURES),
        **measured["overall"],
        "rounds": model.card.rounds,
        "bytes": model.card.bytes,
        "seconds": round(seconds, 3),
        "epsilon": epsilon,
    }
    return {
        "study": study.name,
        "method": study.method,
        "target": study.target,
        **({"range": list(study.target_range)} if study.target_range else {"positive": positive}),
        "evaluation": describe_evaluation(study),
        **overall,
        "overall": overall,
        "sites": {site: {**row, "epsilon": epsilon} for site, row in measured["sites"].items()},
        "folds": measured["folds"],
    }


def total_epsilon(study: Study) -> float | None:
    """What the study spends per patient: that of its model, and of every fold a site takes part in."""
    from concilium.cli.plan import count_fits
    from concilium.privacy.accounting import epsilon_from_rho, say_epsilon

    fits = count_fits(study)
    if fits == 1:
        return study.privacy.epsilon
    epsilon = epsilon_from_rho(study.open_method().plan().total * fits, study.privacy.delta)
    return float(say_epsilon(epsilon, digits=7))


def describe_evaluation(study: Study) -> str:
    """How the figures came about, in a sentence."""
    evaluate = study.evaluate
    if evaluate is None:
        return "not evaluated: the study file has no [evaluate]"
    if study.privacy.release == "private":
        # In a simulation all records are at hand; between hospitals such figures would be releases of their own.
        return f"{_describe_held_back(evaluate)} (exact figures of a simulation, not covered by epsilon)"
    return _describe_held_back(evaluate)


def _describe_held_back(evaluate: Evaluate) -> str:
    if evaluate.bands is not None:
        return (
            f"{evaluate.bands} bands of sites, each left out in turn and predicted by a model of the others"
        )
    if evaluate.leave_out is not None:
        return "every site left out in turn and predicted by a model of the others"
    if evaluate.holdout is not None:
        return f"{evaluate.holdout:.0%} of the patients of every site, held back from learning"
    return f"the patients of {evaluate.file}"


def write_results(study: Study, results: Results, folder: Path) -> None:
    """All files in a folder of their own."""
    from concilium.consult.report import render_report

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    card = results.model.card.to_dict()
    report = render_report(
        metrics=results.metrics,
        card=card,
        drawing=results.model.text(),
        query=study.query,
        pictures=results.model.pictures(),
    )
    results.model.save(folder / "model.json")
    write_json(folder / "metrics.json", results.metrics)
    write_json(folder / "card.json", card)
    if set(pictures := results.model.pictures(whole=True)) == {"tree"}:
        write_whole(folder / "tree.svg", pictures["tree"].encode())
    write_whole(folder / "report.html", report.encode())


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


def publish(finished: Path, out: Path) -> None:
    """Put finished results in place; other files of an existing folder are left alone."""
    try:
        if out.exists():
            for name in RESULTS:
                if (finished / name).exists():
                    (finished / name).replace(out / name)
                else:
                    (out / name).unlink(missing_ok=True)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            finished.rename(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None


def tell_results(study: Study, results: Results) -> None:
    """What came out, for people: a line, the figures, and what to be warned of."""
    from concilium.evaluation.number_metrics import IN_UNITS

    card, metrics = results.model.card, results.metrics
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
        shown = SHOWN_NUMBERS if study.target_range else SHOWN
        say_table(
            ["", "patients", *shown],
            [
                [name, str(row["patients"]), *(figure(row[key], key in IN_UNITS) for key in shown.values())]
                for name, row in rows
            ],
        )
    if "comparison" in metrics:
        tell_comparison(metrics["comparison"], study)
    for warning in card.warnings[:WARNINGS_SHOWN]:
        warn(f"warning: {warning}")
    if len(card.warnings) > WARNINGS_SHOWN:
        warn(f"and {count(len(card.warnings) - WARNINGS_SHOWN, 'more warning')}: see report.html")


def tell_comparison(comparison: Mapping[str, Any], study: Study) -> None:
    """How many patients each way of learning diagnoses wrongly, or how far off it is."""
    from concilium.evaluation.number_metrics import IN_UNITS

    if study.target_range:
        say(f"how far off {study.target} is when learned")
        shown = {name: SHOWN_NUMBERS[name] for name in ("RMSE", "mean error", "R²")}
    else:
        say("wrongly diagnosed when learned")
        shown = {name: SHOWN[name] for name in ("accuracy", "AUC")}
    counted = [] if study.target_range else ["wrong"]
    say_table(
        ["", "patients", *counted, *shown],
        [
            [
                way,
                *(str(row[name]) for name in ("patients", *counted)),
                *(figure(row[key], key in IN_UNITS) for key in shown.values()),
            ]
            for way, row in ((way, row["same_patients"]) for way, row in comparison["ways"].items())
            if row["patients"]
        ],
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
