"""Studies of patients' courses: hospitals hold series, or rules, of which a discovery finds what patients have in
common, and of which experts teach a student.

In a simulation all patients are at hand, so that what was found is put beside what they really share, and rules that
were weighed beside the outcome of patients who were held back: exact figures, not covered by epsilon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.evaluation.horizons import ScoredStays, count_alarms, measure_horizons
from concilium.evaluation.leave_out import FoldResult, Predictions
from concilium.evaluation.rule_judgement import DiscoveryFigures, judge_discovery
from concilium.evaluation.summary import summarise
from concilium.experts.experts import Experts
from concilium.models.threshold import choose
from concilium.privacy.accounting import warn_of_delta
from concilium.records.columns import label
from concilium.records.patients import Patients
from concilium.records.series import Series
from concilium.records.series_columns import find_column
from concilium.records.series_description import find_constant
from concilium.records.series_times import count_steps, read_step
from concilium.records.table import Records
from concilium.study.evaluating import hold_back
from concilium.study.results import StudyResults, WorkInProgress, find_terms, raise_alarms, tabulate
from concilium.study.sources import open_house, open_sites, read_table
from concilium.temporal.rule_discovery import RuleDiscovery
from concilium.temporal.rule_questions import CONSTANT, LEARNING, learn_rules
from concilium.temporal.rule_sets import RuleSets

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.study.sections import CourseColumns, Hospital, SplitTable
    from concilium.study.study import Study

# What public stays may take that came with a study: a few rows far apart in time would fill any memory.
ATTACHED_GIGABYTES = 0.5

TRUTHS = {"0": 0.0, "1": 1.0, "no": 0.0, "yes": 1.0}
"""What an outcome is in a table beside series."""

Tell = Callable[[str], None]
Populations = Mapping[str, Patients]


def read_populations(study: Study) -> dict[str, Patients]:
    """Every hospital's patients, with their series or rules and, for queries, the table of the same patients."""
    if study.split is not None:
        return _deal_patients(study, study.split, _read_population(study, study.split))
    return {hospital.name: _read_population(study, hospital) for hospital in study.hospitals}


def _deal_patients(study: Study, split: SplitTable, whole: Patients) -> dict[str, Patients]:
    """The patients of each hospital, by the column that [series] names or all together, dealt to so many gateways."""
    number, parts = split.gateways or 1, {}
    for hospital, rows in _find_hospitals(study, split, whole).items():
        if len(rows) < number:
            raise StudyError(f"{study.path}: [sites] there are {len(rows)} patients for {number} gateways")
        for place in range(number):
            gateway = f"gateway {place + 1}" if number > 1 or not hospital else ""
            mine = np.isin(np.arange(len(whole)), rows[np.arange(len(rows)) % number == place])
            parts[f"{hospital} {gateway}".strip()] = whole.take(mine)
    return parts


def _find_hospitals(study: Study, split: SplitTable, whole: Patients) -> dict[str, NDArray[np.intp]]:
    """The rows of each hospital; one without a name where no column tells them apart."""
    column, part = study.columns.by, whole.series
    if column is None or split.series is None or part is None:
        return {"": np.arange(len(whole))}
    place = study.locate(split.series)
    patient = find_column("patient", study.columns.patient, Records.read(place).names, split.series)
    table = Records.read(place, schema={patient: "code", column: "code"})
    hospital_of: dict[str, str] = {}
    for one, hospital in zip(table.values(patient), table.values(column), strict=True):
        if hospital is None or hospital_of.setdefault(label(one), label(hospital)) != label(hospital):
            raise StudyError(
                f"{study.path}: [series] by = {column!r}: patient {label(one)!r} is in no hospital, or in two"
            )
    names = np.array([hospital_of[label(one)] for one in part.ids])
    return {name: np.flatnonzero(names == name) for name in sorted(set(names.tolist()))}


def _read_population(study: Study, source: Hospital | SplitTable) -> Patients:
    columns = study.columns
    parts: dict[str, Any] = {}
    if source.rules is not None:
        parts["rules"] = RuleSets.read(
            study.locate(source.rules), patient=columns.patient or "patient", rule=columns.rule
        )
    if source.series is not None:
        method = study.open_method()
        assert isinstance(method, RuleDiscovery | Experts)
        ledger = getattr(source, "ledger", None)
        series = read_series(
            study.locate(source.series),
            method.step,
            columns,
            columns.variables,
            folder=None if ledger is None else f"{study.locate(ledger)}.columns",
        )
        if method.target not in series and source.records is not None:
            series = _add_outcome(study, source, series, method.target)
        if method.way_out.bounded and not series.stated:
            series = series.state([*_list_variables(method), method.target])
        parts["series"] = series
    if source.records is None:
        return Patients(**parts)
    by = columns.patient or "patient"
    table: Records = read_table(study, study.locate(source.records), source, {by: "code", **study.reading})
    return Patients(table=table, by=by, **parts)


def _list_variables(method: RuleDiscovery | Experts) -> list[str]:
    """All that a method reads of series, but for its outcome."""
    static = method.task.static_names if isinstance(method, RuleDiscovery) else ()
    return [*method.task.names, *static]


def _find_constant(method: RuleDiscovery | Experts, populations: Populations) -> Iterator[str]:
    """For whoever runs a simulation: variables of rules that have one value in each stay of a hospital."""
    for place, patients in populations.items():
        if isinstance(method, RuleDiscovery) and isinstance(patients.series, Series):
            for name in find_constant(patients.series, method.task.names):
                yield f"{place}: {CONSTANT % (name, name)}"


def _add_outcome(study: Study, source: Hospital | SplitTable, series: Series, outcome: str) -> Series:
    """The series with the outcome of the table of the same patients: it is known at the end of each stay."""
    by = study.columns.patient or "patient"
    assert source.records is not None
    table = Records.read(study.locate(source.records), schema={by: "code", outcome: "code"})
    truths = dict(zip(map(label, table.values(by)), table.values(outcome), strict=True))
    values = np.full(int(series.starts[-1]), np.nan, dtype=np.float32)
    for row, patient in enumerate(series.ids):
        truth = truths.get(label(patient))
        if truth is not None and label(truth) in TRUTHS:
            values[series.starts[row + 1] - 1] = TRUTHS[label(truth)]
    return series.with_stays({**series.stays, outcome: values})


def read_series(
    place: str,
    step: str,
    columns: CourseColumns,
    variables: Sequence[str] | None = None,
    gigabytes: float = 4.0,
    folder: str | None = None,
) -> Series:
    """Series of a file on a grid of this step, its columns as a study names them, with these variables if stated; a
    large file is read into a folder."""
    return Series.read(
        place,
        step=step,
        gigabytes=gigabytes,
        patient=columns.patient,
        time=columns.time,
        time_unit=columns.time_unit,
        origin=columns.origin,
        variable=columns.variable,
        value=columns.value,
        variables=variables,
        static=columns.static or (),
        leave_out=[*columns.leave_out, *([columns.by] if columns.by is not None else [])],
        missing=columns.missing,
        columns=folder,
    )


def open_learner(study: Study) -> RuleDiscovery | Experts:
    """The method of the study, with the public stays of experts at hand."""
    method = study.open_method()
    if isinstance(method, Experts):
        if not isinstance(method.public, str):
            raise StudyError(
                f"{study.path}: [experts] needs the key 'public', a file of public stays that teach the student"
            )
        gigabytes = ATTACHED_GIGABYTES if study.elsewhere else 4.0
        public = read_series(study.locate(method.public), method.step, study.columns, gigabytes=gigabytes)
        return Experts(**{**method.get_params(), "public": public})
    assert isinstance(method, RuleDiscovery)
    return method


def conduct_courses(study: Study, work: WorkInProgress, on_round: Tell, warn: Tell) -> StudyResults:
    """Learn with the study's hospitals, and judge what came out as it says."""
    method = open_learner(study)
    populations = read_populations(study)
    if method.way_out.bounded:
        for name, patients in populations.items():
            if warning := warn_of_delta(study.privacy.delta, len(patients)):
                warn(f"{name}: {warning}")
    for constant in _find_constant(method, populations):
        warn(constant)
    work.bind(study, populations.values())
    learn, held_back = hold_back(study, populations)
    sites = open_sites(study, learn, spare=work.folder)
    if method.window is not None:
        learned = "the experts of patients" if isinstance(method, Experts) else "the rules of each patient"
        on_round(f"learning {learned}, at each hospital")
    try:
        start = time.perf_counter()
        with _report_learning(on_round):
            method.fit(open_house(study, sites.values(), work.journal("model"), on_round))
        seconds = time.perf_counter() - start
    finally:
        for site in sites.values():
            site.ledger.close()
    measured = [
        predict_outcomes(name, method, patients)
        for name, patients in held_back.items()
        if method.window and method.find_why_silent() is None
    ]
    summary: dict[str, Any] = {"overall": {}, "sites": {}, "folds": []}
    if any(one.truth for one in measured):
        card = method.card
        summary = summarise([FoldResult((), measured, card.rounds, card.bytes, round(seconds, 3))], 1)
    metrics = tabulate(study, method, seconds, summary, 1)
    if held_back and method.window is not None and method.find_why_silent() is None:
        found = _ask_for_the_ward(study, method, held_back)
        metrics |= found
        metrics["evaluation"] = f"{metrics['evaluation']}; {_say_ward(found)}"
        if (alarm := _find_alarm(found)) is not None:
            warn(alarm)
            metrics["evaluation"] = f"{metrics['evaluation']}; {alarm}"
    if (quiet := _say_quiet(study, summary["overall"])) is not None:
        warn(quiet)
        metrics["evaluation"] = f"{metrics['evaluation']}; {quiet}"
    if held_back and isinstance(method, RuleDiscovery):
        metrics["discovery"] = _describe(_judge(method, learn))
        metrics["evaluation"] = f"{metrics['evaluation']}; {_say_figures(metrics['discovery'], method)}"
    raise_alarms(method, metrics)
    return StudyResults(study, method, metrics, find_terms(work.journal("model"), method.card.study))


@contextmanager
def _report_learning(tell: Tell) -> Iterator[None]:
    """Hand on how far hospitals of this process have come with learning."""

    class Progress(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.INFO:
                tell(record.getMessage())

    logger, handler = logging.getLogger(LEARNING), Progress(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def predict_outcomes(site: str, method: Method[Any], patients: Patients) -> Predictions:
    """What the model says of each patient, at the first step with the outcome or at a matched one without it."""
    outcomes = method.find_outcomes(patients)
    if not len(outcomes.rows):
        return Predictions(site, (0, 1), [], [], [])
    shares = method.predict_proba(outcomes.asked)
    predicted = choose(shares, method.classes_, method.decided).tolist()
    return Predictions(site, (0, 1), list(outcomes.truth), predicted, shares.tolist(), decided=method.placed)


def _ask_for_the_ward(
    study: Study, method: Experts | RuleDiscovery, held_back: Populations
) -> dict[str, Any]:
    """What the model is worth at every hour of the stays that were held back: `horizons` (AUROC so long before onset,
    against hours at the same time since admission) and `alarms` (what finding so many patients takes)."""
    assert study.evaluate is not None
    stays = _score_stays(method, held_back.values(), study.evaluate.onset_after)
    if stays is None:
        return {"horizons": {}, "bedside_alarms": None}
    alarms = count_alarms(stays, study.evaluate.sensitivity)
    return {
        "horizons": {
            name: None if one is None else msgspec.to_builtins(one)
            for name, one in measure_horizons(stays).items()
        },
        "bedside_alarms": None if alarms is None else msgspec.to_builtins(alarms),
    }


def _score_stays(
    method: Experts | RuleDiscovery, held_back: Iterable[Patients], onset_after: str | None
) -> ScoredStays | None:
    """What a model says at every hour of these stays, and when the outcome begins: `onset_after` its target first
    turns 1. None where there is no stay."""
    scores, lengths, onsets = [], [], []
    later = count_steps(onset_after, method.step, "onset_after") if onset_after else 0
    for patients in held_back:
        series = patients.series
        assert isinstance(series, Series)
        if not len(series):
            continue
        scores.append(
            method.predict_severity(series, whole=True)
            if isinstance(method, Experts)
            else method.predict_steps(series)
        )
        lengths.append(series.lengths)
        onsets.append(method.find_onsets(series) + later)
    if not scores:
        return None
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    hours = read_step(method.step)
    return ScoredStays(np.concatenate(scores), starts, np.concatenate(onsets), hours)


def _say_ward(found: Mapping[str, Any]) -> str:
    parts = [
        f"{name} before onset {one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        for name, one in found["horizons"].items()
        if one is not None
    ]
    said = "AUROC against hours at the same time since admission: " + (", ".join(parts) or "nobody can tell")
    alarms = found["bedside_alarms"]
    if alarms is None:
        return said
    found_share, each_day = f"{alarms['sensitivity']:.0%}", f"{alarms['per_patient_day']:.2f}"
    return (
        f"{said}; to find {found_share} of the patients with an onset takes {each_day} alarms in a day of a patient "
        f"without one, in the median {alarms['lead_hours']:.0f} hours before"
    )


def _say_quiet(study: Study, overall: Mapping[str, Any]) -> str | None:
    """What to say of a threshold that flags nobody, as the likeliest class of a rare outcome does."""
    if overall.get("sensitivity") != 0 or overall.get("specificity") != 1:
        return None
    return (
        f"nobody is predicted {study.target} = 1 at this threshold: only the risks tell patients apart; "
        'threshold = "prevalence" under [study] flags those above the average risk'
    )


def _find_alarm(found: Mapping[str, Any]) -> str | None:
    """What to say of a student that is no better than chance at any time before onset."""
    known = [one for one in found["horizons"].values() if one is not None]
    if not known or any(one["low"] > 0.5 for one in known):
        return None
    return "the model is no better than chance on the patients held back: do not use it"


def _judge(method: RuleDiscovery, populations: Populations) -> DiscoveryFigures:
    """What was found beside what the patients share."""
    held = []
    for patients in populations.values():
        rules = patients.rules
        if patients.series is not None and rules is None:
            rules = learn_rules(patients.series, method.task)
        assert isinstance(rules, RuleSets)
        held.append(rules)
    return judge_discovery(method.rules_, held, method.exact_prevalence)


def _describe(figures: DiscoveryFigures) -> dict[str, Any]:
    """For metrics.json."""
    return {
        "rules": figures.found,
        "truth": figures.truth,
        "coverage": figures.coverage,
        "precision": figures.precision,
    }


def _say_figures(figures: Mapping[str, Any], method: RuleDiscovery) -> str:
    coverage, precision = (
        "none" if figures[name] is None else f"{figures[name]:.0%}" for name in ("coverage", "precision")
    )
    return (
        f"of the {figures['truth']} structures that {float(method.exact_prevalence):.2%} of the others have {coverage} "
        f"were found, and of the {figures['rules']} found {precision} are among them"
    )
