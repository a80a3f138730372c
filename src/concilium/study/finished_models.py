"""What a hospital does with a finished model and patients at hand: audit it, or recalibrate it locally.

An audit takes files of members and others, read as a study says, or the training and held-out patients of a study; its
method is made anew for shadow models. An adapted model is fitted to the hospital's own patients and judged before and
after, in ten folds of them. Nothing leaves; nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.consult.report import render_report
from concilium.errors import ModelError, StudyError
from concilium.evaluation.alone import FOLDS, adapt_in_folds
from concilium.evaluation.attacks import Make
from concilium.evaluation.audit import DELTA, Audit, audit_model
from concilium.evaluation.audited_patients import AuditedPatients
from concilium.evaluation.leave_out import FoldResult, predict_at
from concilium.evaluation.summary import calibrate_all, summarise
from concilium.models.model_file import load
from concilium.models.recalibrated import AdaptedModel, adapt
from concilium.records.dictionary import Dictionary
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.table import Records
from concilium.records.table_map import TableMap
from concilium.study.courses import open_learner, predict_outcomes, read_populations, read_series
from concilium.study.evaluating import hold_back
from concilium.study.sections import CourseColumns
from concilium.study.sources import read_as_stated, read_tables, read_test_file

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.study.study import Study

Groups = tuple[Mapping[str, Patients], Mapping[str, Patients]]
SEED = 0


@dataclass(frozen=True)
class AuditOrder:
    """What is to be audited: a model file, the patients, and what to try.

    Without `members` and `others` they are those whom the `study` learned from and held back.
    """

    model: Path
    members: Path | None = None
    others: Path | None = None
    study: Study | None = None
    attribute: str | None = None
    shadows: int = 0

    def run(self, tell: Callable[[str], None] = lambda text: None) -> Audit:
        """Read the patients and attack the model."""
        model: Method[Any] = load(self.model)
        if self.study is not None and self.study.several:
            return replace(self, study=self.study.find_variant(model.method)).run(tell)
        if self.study is not None:
            _check_study(self.study, model)
        elif self.shadows:
            raise StudyError(
                "shadow models are learned with the parameters of the model's study: name its file with --study"
            )
        tell("reading patients")
        audited = AuditedPatients.join(*self._read(model))
        if len(set(audited.homes)) < 2:
            audited = audited.deal(max(len(model.card.sites), 1), SEED)
        return audit_model(
            model,
            audited,
            attribute=self.attribute,
            shadows=self.shadows,
            make=_find_maker(self.study) if self.study is not None and self.shadows else None,
            delta=DELTA if self.study is None else self.study.privacy.delta,
            seed=SEED,
            tell=tell,
        )

    def _read(self, model: Method[Any]) -> Groups:
        if self.members is not None and self.others is not None:
            return _read_group(model, self.members, self.study), _read_group(model, self.others, self.study)
        if self.members is not None or self.others is not None:
            raise StudyError(
                "an audit takes both --members and --others, or neither with a --study that holds back"
            )
        if self.study is None:
            raise StudyError(
                "say whom the model learned from and whom not: --members FILE --others FILE, or --study"
            )
        return _find_held_back(self.study)


def _find_maker(study: Study) -> Make:
    """What makes the study's method anew; public stays of experts are read once."""
    if not study.method_type.reads_courses:
        return study.open_method
    learner = open_learner(study)
    return lambda: type(learner)(**learner.get_params())


def _check_study(study: Study, model: Method[Any]) -> None:
    """The study is that of the model, as far as the model file tells."""
    facts = {"method": (study.method, model.method), "target": (study.target, model.target)}
    facts["query"] = (str(Query.parse(study.query)), str(Query.parse(model.query)))
    facts["release"] = (study.release, model.card.release)
    for name, (stated, found) in facts.items():
        if stated != found:
            raise StudyError(
                f"{study.path}: its {name} is {stated!r}, and that of the model {found!r}: it is another study"
            )


def _read_group(model: Method[Any], path: Path, study: Study | None) -> Mapping[str, Patients]:
    """The patients of a file, by hospital where it has the column that the study splits by."""
    if model.reads_courses:
        columns = CourseColumns() if study is None else study.columns
        step: str | None = getattr(model, "step", None)
        if step is None:
            raise ModelError(f"a model of method {model.method!r} does not tell the step of its series")
        return {"": Patients(series=read_series(str(path), step, columns))}
    table: Records = read_as_stated(str(path), None, {} if study is None else study.reading)
    by = None if study is None or study.split is None else study.split.by
    if by is None or by not in table:
        return {"": Patients(table=table)}
    return _as_patients(table.split(by))


def _find_held_back(study: Study) -> Groups:
    """Whom a study learned from, and whom it held back or predicts from a file of their own."""
    evaluate = study.evaluate
    if evaluate is None or (evaluate.holdout is None and evaluate.file is None):
        raise StudyError(
            f"{study.path}: its model learned from everybody, so that there is nobody to compare members with: give "
            "--members and --others, or hold patients back with [evaluate] holdout = 0.5"
        )
    if study.method_type.reads_courses:
        return hold_back(study, read_populations(study))
    learned, held_back = hold_back(study, read_tables(study))
    return _as_patients(learned), _as_patients(held_back or read_test_file(study))


def _as_patients(tables: Mapping[str, Records]) -> dict[str, Patients]:
    return {name: Patients(table=table) for name, table in tables.items() if len(table)}


@dataclass(frozen=True)
class AdaptationOrder:
    """Which model, which table, whose: and how the hospital's table becomes the study's columns."""

    model: Path
    table: str
    site: str
    map: Path | None = None
    database_table: str | None = None
    study: Study | None = None
    records: str | None = None

    def run(self) -> AdaptedAtHome:
        """Read, adapt, judge."""
        received = load(self.model)
        if received.reads_courses:
            patients = self._read_courses(received)
        elif self.records is not None or self.study is not None:
            raise ModelError(
                "this is a model of a table, whose columns the model file and the hospital's map tell: leave out "
                "--records and --study, which are for models of series"
            )
        else:
            patients = Patients(table=self._read_table(self.table, received))
        return _judge_at_home(adapt(received, patients, site=self.site), patients)

    def _read_table(self, place: str, model: Method[Any]) -> Records:
        return Records.read(
            place,
            table=self.database_table,
            dictionary=Dictionary(model.card.dictionary),
            map=None if self.map is None else TableMap.read(self.map),
        )

    def _read_courses(self, model: Method[Any]) -> Patients:
        """Series on the grid of the model, and the table of the same patients, where there is one."""
        columns = CourseColumns() if self.study is None else self.study.columns
        step: str = model.get_params()["step"]
        series = read_series(self.table, step, columns)
        if self.records is None:
            if model.query:
                raise ModelError(
                    f"the model is about {model.query}: give the table of the same patients with --records"
                )
            return Patients(series=series)
        table = self._read_table(self.records, model)
        return Patients(table=table, series=series, by=columns.patient or "patient")


@dataclass(frozen=True)
class AdaptedAtHome:
    """An adapted model, and what it and the one that was received are worth to this hospital's patients: `before` and
    `after` are figures as in metrics.json."""

    model: AdaptedModel
    before: dict[str, Any]
    after: dict[str, Any]

    def report(self) -> str:
        """A page like that of a study."""
        return render_report(
            metrics=self.after,
            card=self.model.card.to_dict(),
            drawing=self.model.text(),
            query=self.model.query,
            pictures=self.model.pictures(),
            table=self.model.rows(),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        from msgspec import to_builtins

        return {
            "adapted": to_builtins(self.model.adaptation),
            "as_received": self.before,
            "after": self.after,
        }


def _judge_at_home(model: AdaptedModel, patients: Patients) -> AdaptedAtHome:
    """What both models say of the patients: the one that was received as it is, the adapted one in ten folds, so that
    nobody is predicted by what was fitted to him."""
    origin, site = model.origin, model.adaptation.site
    took_part = any(one.name == site for one in origin.card.sites)
    if origin.reads_courses:
        said = predict_outcomes(site, origin, patients)
    else:
        assert patients.table is not None
        said = predict_at(site, origin, patients.table, origin.classes_, soft=True)
    adapted = adapt_in_folds(said, learned_from=took_part)
    learned = ", whom the model learned from too" if took_part else ""
    many = len(said.truth)
    whole = f"{many} patients of {site}{learned}"
    return AdaptedAtHome(
        model,
        _tabulate(origin, FoldResult((), [said], 0, 0, 0.0), whole),
        _tabulate(
            origin,
            FoldResult((), [adapted], 0, 0, 0.0),
            f"{whole}, adapted in {FOLDS} folds, each predicted by what was fitted to the others"
            if many >= FOLDS
            else f"{whole}, too few to adapt",
        ),
    )


def _tabulate(model: Method[Any], result: FoldResult, about: str) -> dict[str, Any]:
    """Figures under the names of metrics.json."""
    classes = model.classes_
    positive = classes[1] if len(classes) == 2 else None
    summary = summarise([result], positive)
    numeric = not classes
    truth = [float(value) for value in result.predictions[0].truth] if numeric else []
    return {
        "study": model.card.purpose or f"a model of {model.target}",
        "method": model.method,
        "target": model.target,
        **({"range": [min(truth), max(truth)]} if numeric else {"positive": positive}),
        "evaluation": about,
        **summary["overall"],
        "rounds": model.card.rounds,
        "bytes": model.card.bytes,
        "seconds": 0.0,
        "sites": summary["sites"],
        "risks": summary["risks"],
        **({"calibration": calibrate_all([result])} if numeric else {}),
    }
