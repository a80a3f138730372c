"""What a run leaves: the model, figures under plain names, and files in full or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.consult.report import render_report
from concilium.errors import StudyError
from concilium.evaluation.metrics import FIGURES
from concilium.evaluation.number_metrics import NUMBER_FIGURES
from concilium.models.threshold import Decided
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon
from concilium.protocol.journal import Journal
from concilium.protocol.terms import name_study
from concilium.study.planning import count_models
from concilium.study.work_in_progress import write_whole

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.protocol.card import Card
    from concilium.records.table import Value
    from concilium.study.sections import Evaluate
    from concilium.study.study import Study

TAKEN = ("left_out", "rounds", "bytes", "seconds")  # what a fold took, apart from its figures
# All files that a run may leave; `tree.svg` only where the model is one picture.
RESULTS = ("model.json", "metrics.json", "card.json", "terms.json", "tree.svg", "report.html")


@dataclass(frozen=True)
class StudyResults:
    """A study's fitted model with its figures, and the terms that hospitals agreed to, byte for byte (their hash is the
    study's id on the card); `files` are those written, by name: none where no folder was given."""

    study: Study
    model: Method[Any]
    metrics: dict[str, Any]
    terms: bytes
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def card(self) -> Card:
        """Sites, rounds, bytes, releases with their cost, refusals, dropouts, warnings."""
        return self.model.card

    def report(self) -> str:
        """The page report.html."""
        return render_report(
            metrics=self.metrics,
            card=self.card.to_dict(),
            drawing=self.model.text(),
            query=self.study.query,
            pictures=self.model.pictures(),
        )


def write_results(results: StudyResults, folder: Path) -> None:
    """All files in a folder of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    results.model.save(folder / "model.json")
    write_json(folder / "metrics.json", results.metrics)
    write_json(folder / "card.json", results.card.to_dict())
    write_whole(folder / "terms.json", results.terms)
    if set(pictures := results.model.pictures(whole=True)) == {"tree"}:
        write_whole(folder / "tree.svg", pictures["tree"].encode())
    write_whole(folder / "report.html", results.report().encode())


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def publish_folder(folder: Path, out: Path) -> dict[str, Path]:
    """Put finished results in place; other files of an existing folder are left alone."""
    names = [name for name in RESULTS if (folder / name).exists()]
    try:
        if out.exists():
            for name in RESULTS:
                if name in names:
                    (folder / name).replace(out / name)
                else:
                    (out / name).unlink(missing_ok=True)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None
    return {name: out / name for name in names}


def publish_file(path: Path, out: Path) -> Path:
    """Put one finished file in place."""
    try:
        return path.replace(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None


def find_terms(journal: Path, study: str) -> bytes:
    """The terms of a study as they were proposed, byte for byte."""
    notes = Journal(journal)
    try:
        return next(note for note in notes.list_notes() if name_study(note) == study)
    finally:
        notes.close()


def tabulate(
    study: Study, model: Method[Any], seconds: float, summary: Mapping[str, Any], positive: Value | None
) -> dict[str, Any]:
    """metrics.json: the overall figures under plain names, then the same for each site and each fold.

    Protects: what was measured at each single hospital, from whoever reads the results, where the release shows the
    house no single hospital either (`shows_single_sites`). Does not: figures over all hospitals are exact, and as a
    simulation computes them beside the gate, no ledger is charged for them; `evaluation` says so.
    """
    single = shows_single_sites(study)
    epsilon = total_epsilon(study) if study.way_out.bounded else None
    overall = {
        "patients": 0,
        **dict.fromkeys(NUMBER_FIGURES if study.target_range else FIGURES),
        **summary["overall"],
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
        **describe_decision(study, model),
        "evaluation": describe_evaluation(study),
        **overall,
        "overall": overall,
        "sites": {site: {**row, "epsilon": epsilon} for site, row in summary["sites"].items() if single},
        "folds": [fold if single else {key: fold[key] for key in TAKEN} for fold in summary["folds"]],
        "risks": summary.get("risks"),
    }


def shows_single_sites(study: Study) -> bool:
    """Whether figures of a single hospital tell no more than the release shows the house anyway."""
    return study.way_out.by_site and not study.way_out.bounded


def describe_decision(study: Study, model: Method[Any]) -> dict[str, Any]:
    """At which threshold the figures are: the study's decision, in words, and the number; nothing where a number is
    predicted."""
    if study.target_range:
        return {}
    decided: Decided | None = getattr(model.body, "decided", None)
    if decided is None:
        return {"decision": model.decides or "the likeliest class is called", "threshold": None}
    each = "; each fold has its own" if study.evaluate is not None and study.evaluate.leave_out else ""
    return {"decision": f"{model.card.decision}{each}", "threshold": decided.threshold}


def total_epsilon(study: Study) -> float:
    """What the study spends per patient: that of its model, and of every fold a site takes part in."""
    models = count_models(study)
    method = study.open_method()
    if models == 1:
        return float(Fraction(method.get_params()["epsilon"]))
    epsilon = epsilon_from_rho(method.plan().total * models, study.privacy.delta)
    return float(say_epsilon(epsilon, digits=7))


def describe_evaluation(study: Study) -> str:
    """How the figures came about, in a sentence."""
    if study.evaluate is None:
        return "not evaluated: the study file has no [evaluate]"
    about = describe_held_back(study.evaluate)
    if shows_single_sites(study):
        return about
    # In a simulation all records are at hand; between hospitals such figures would be releases of their own.
    covered = "not covered by epsilon" if study.way_out.bounded else "for which no ledger was charged"
    return f"{about} (exact figures of a simulation, {covered}; figures of single sites are withheld)"


def describe_held_back(evaluate: Evaluate) -> str:
    """Whom the figures are about."""
    if evaluate.bands is not None:
        return (
            f"{evaluate.bands} bands of sites, each left out in turn and predicted by a model of the others"
        )
    if evaluate.leave_out is not None:
        return "every site left out in turn and predicted by a model of the others"
    if evaluate.holdout is not None:
        return f"{evaluate.holdout:.0%} of the patients of every site, held back from learning"
    return f"the patients of {evaluate.file}"
