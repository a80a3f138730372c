"""A model file and the hospitals of a study file: how good the model is there, and whether it has drifted since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import StudyError
from concilium.evaluation.validation import ValidationFigures
from concilium.models.measuring import Evaluation
from concilium.models.method import Method
from concilium.models.model_file import load
from concilium.models.validation import Validation
from concilium.study.planning import StudyPlan, plan_proposal, refuse_proposal
from concilium.study.results import make_folder, write_json, write_whole
from concilium.study.sources import open_house, open_sites, read_tables, require_classes

if TYPE_CHECKING:
    from concilium.models.measuring import RiskTable
    from concilium.protocol.card import Card
    from concilium.protocol.held_out import Holdout
    from concilium.protocol.subgroups import Subgroup
    from concilium.records.table import Records
    from concilium.study.study import Study


def validate_at_hospitals(
    model_file: Path, study: Study, since: str | None = None, by: Sequence[str] = ()
) -> ValidatedStudy:
    """Measure a model at the hospitals of a study file, released as that says; since a day of its [evaluate] date, and
    in subgroups as well, of [evaluate] or others."""
    asked = open_validation(model_file, study, since, by)
    refuse_proposal(study, asked.proposal)
    tables = read_tables(study)
    _require_outcome(asked, tables)
    sites = open_sites(study, tables)
    try:
        asked.proposal.fit(open_house(study, sites.values()))
    finally:
        for site in sites.values():
            site.ledger.close()
    return asked.take(asked.proposal.body, asked.proposal.card)


def plan_validation(
    model_file: Path, study: Study, since: str | None = None, by: Sequence[str] = ()
) -> StudyPlan:
    """What that would ask of every hospital, what it costs, and whether it fits. Nothing is asked."""
    return plan_proposal(study, open_validation(model_file, study, since, by).proposal, ())


@dataclasses.dataclass(frozen=True)
class _AskedValidation:
    """What a model file and a study file ask together."""

    study: Study
    model: Method[Any]
    proposal: Validation
    held: Holdout | None
    subgroups: tuple[Subgroup, ...]

    def take(self, table: RiskTable, card: Card) -> ValidatedStudy:
        """What came of it, once hospitals have answered."""
        since = "" if self.held is None else self.held.since
        found = ValidationFigures(table, card, self.proposal.positive, self.model, since)
        total = float(self.proposal.plan().total)
        return ValidatedStudy(self.study, self.model, found, self.held, total, self.subgroups)


def open_validation(
    model_file: Path, study: Study, since: str | None, by: Sequence[str] = ()
) -> _AskedValidation:
    """The proposal to measure the model of a file; StudyError where the study is not about it."""
    model: Method[Any] = load(model_file)
    _check_model(model, study)
    held = _find_holdout(study, since)
    privacy = study.privacy
    how: dict[str, Any] = {"release": study.release, "positive": study.positive, "delta": privacy.delta}
    if study.way_out.bounded:
        how["epsilon"] = None if privacy.epsilon is None else str(privacy.epsilon)
    subgroups = study.read_subgroups(by or (() if study.evaluate is None else study.evaluate.subgroups or ()))
    if held is not None:
        held.check()
    proposal = Validation.of(model, since=held, subgroups=subgroups, **how)
    return _AskedValidation(study, model, proposal, held, subgroups)


def _require_outcome(asked: _AskedValidation, tables: Mapping[str, Records]) -> None:
    """StudyError where no patient of a hospital has a class of the model, before any hospital answers. All tables are
    at hand here; between hospitals each looks for itself (models/risk_counts.py)."""
    model = asked.model
    if model.names_classes:
        for site, table in tables.items():
            require_classes(
                f"site {site!r}", model.target, model.classes_, table, "which the model tells apart"
            )


def _check_model(model: Any, study: Study) -> None:
    """StudyError where the study is not about what the model predicts."""
    if isinstance(model, Method) and model.target != study.target:
        raise StudyError(
            f"{study.path}: [study] target = {study.target!r}, and the model predicts {model.target!r}: take the "
            "study of the same outcome"
        )


def _find_holdout(study: Study, since: str | None) -> Holdout | None:
    from concilium.protocol.held_out import Holdout

    evaluate = study.evaluate
    column, _, day = (since or "").rpartition("=")
    if evaluate is not None:
        column, day = column or evaluate.date or "", day or evaluate.since or ""
    if not day:
        return None
    if not column:
        raise StudyError(
            f"{study.path}: to measure since {day}, name the column that says when: --since admitted={day}, or "
            "[evaluate] date"
        )
    return Holdout(column=column, since=day)


@dataclasses.dataclass(frozen=True)
class ValidatedStudy:
    """What came of it; `metrics` has all figures, `write` puts them in a folder."""

    study: Study
    model: Method[Any]
    found: ValidationFigures
    held: Holdout | None
    rho: float
    subgroups: tuple[Subgroup, ...] = ()

    @property
    def metrics(self) -> dict[str, Any]:
        metrics = self.found.metrics
        planned = Evaluation(self.held, subgroups=self.subgroups).planned.note
        return {
            "study": self.study.name,
            "method": self.model.method,
            "target": self.model.target,
            "positive": self.found.positive,
            "release": self.study.release,
            "measured": planned,
            "rho": self.rho or None,
            **metrics,
        }

    def write(self, out: Path) -> None:
        """evaluation.json, card.json and report.html in a folder."""
        make_folder(out)
        write_json(out / "evaluation.json", self.metrics)
        write_json(out / "card.json", self.found.card.to_dict())
        write_whole(out / "report.html", self.report().encode())

    def report(self) -> str:
        """The page report.html, as of a study that learned."""
        from concilium.consult.report import render_report

        metrics = self.metrics
        overall = metrics["overall"]
        page = {
            **metrics,
            **overall,
            "decision": self.model.card.decision or "the likeliest class is called",
            "evaluation": f"{metrics['measured']}, released as {metrics['release']}",
            "folds": [],
            "seconds": None,
            "epsilon": self.study.privacy.epsilon if self.study.way_out.bounded else None,
        }
        return render_report(
            metrics=page,
            card={**self.found.card.to_dict(), "alarms": metrics["alarms"]},
            drawing=self.model.text(),
            query=self.study.query,
            pictures=self.model.pictures(),
            table=self.model.rows(),
        )
