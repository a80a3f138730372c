"""A model adapted at a hospital, from files to figures: read as the model's dictionary and the hospital's map say,
fitted, and judged before and after, in ten folds of the hospital's own patients. Nothing leaves; nobody is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.consult.report import render_report
from concilium.errors import ModelError
from concilium.evaluation.alone import FOLDS, adapt_in_folds
from concilium.evaluation.leave_out import FoldResult, predict_at
from concilium.evaluation.summary import calibrate_all, summarise
from concilium.models.model_file import load
from concilium.models.recalibrated import AdaptedModel, adapt
from concilium.records.dictionary import Dictionary
from concilium.records.patients import Patients
from concilium.records.table import Records
from concilium.records.table_map import TableMap
from concilium.study.courses import predict_outcomes, read_series
from concilium.study.sections import CourseColumns

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.study.study import Study


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
        return judge_at_home(adapt(received, patients, site=self.site), patients)

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
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        from msgspec import to_builtins

        return {
            "adapted": to_builtins(self.model.adaptation),
            "as_received": self.before,
            "after": self.after,
        }


def judge_at_home(model: AdaptedModel, patients: Patients) -> AdaptedAtHome:
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
        tabulate(origin, FoldResult((), [said], 0, 0, 0.0), whole),
        tabulate(
            origin,
            FoldResult((), [adapted], 0, 0, 0.0),
            f"{whole}, adapted in {FOLDS} folds, each predicted by what was fitted to the others"
            if many >= FOLDS
            else f"{whole}, too few to adapt",
        ),
    )


def tabulate(model: Method[Any], result: FoldResult, about: str) -> dict[str, Any]:
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
