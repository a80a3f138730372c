"""Whom a model is audited on: files of members and others, read as a study says, or those whom a study learned from and
held back; and how its method is made anew for shadow models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import ModelError, StudyError
from concilium.evaluation.audit import DELTA, Audit, audit_model
from concilium.evaluation.audited_patients import AuditedPatients
from concilium.evaluation.shadow_attack import Make
from concilium.models.model_file import load
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.table import Records
from concilium.study.courses import hold_back as hold_back_courses
from concilium.study.courses import open_learner, read_populations, read_series
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
            check_study(self.study, model)
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
            make=find_maker(self.study) if self.study is not None and self.shadows else None,
            delta=DELTA if self.study is None else self.study.privacy.delta,
            seed=SEED,
            tell=tell,
        )

    def _read(self, model: Method[Any]) -> Groups:
        if self.members is not None and self.others is not None:
            return read_group(model, self.members, self.study), read_group(model, self.others, self.study)
        if self.members is not None or self.others is not None:
            raise StudyError(
                "an audit takes both --members and --others, or neither with a --study that holds back"
            )
        if self.study is None:
            raise StudyError(
                "say whom the model learned from and whom not: --members FILE --others FILE, or --study"
            )
        return find_held_back(self.study)


def find_maker(study: Study) -> Make:
    """What makes the study's method anew; public stays of experts are read once."""
    if not study.method_type.reads_courses:
        return study.open_method
    learner = open_learner(study)
    return lambda: type(learner)(**learner.get_params())


def check_study(study: Study, model: Method[Any]) -> None:
    """The study is that of the model, as far as the model file tells."""
    told = {"method": (study.method, model.method), "target": (study.target, model.target)}
    told["query"] = (str(Query.parse(study.query)), str(Query.parse(model.query)))
    told["release"] = (study.release, model.card.release)
    for name, (stated, found) in told.items():
        if stated != found:
            raise StudyError(
                f"{study.path}: its {name} is {stated!r}, and that of the model {found!r}: it is another study"
            )


def read_group(model: Method[Any], path: Path, study: Study | None) -> Mapping[str, Patients]:
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
    return as_patients(table.split(by))


def find_held_back(study: Study) -> Groups:
    """Whom a study learned from, and whom it held back or predicts from a file of their own."""
    evaluate = study.evaluate
    if evaluate is None or (evaluate.holdout is None and evaluate.file is None):
        raise StudyError(
            f"{study.path}: its model learned from everybody, so that there is nobody to compare members with: give "
            "--members and --others, or hold patients back with [evaluate] holdout = 0.5"
        )
    if study.method_type.reads_courses:
        return hold_back_courses(study, read_populations(study))
    learned, held_back = hold_back(study, read_tables(study))
    return as_patients(learned), as_patients(held_back or read_test_file(study))


def as_patients(tables: Mapping[str, Records]) -> dict[str, Patients]:
    return {name: Patients(table=table) for name, table in tables.items() if len(table)}
