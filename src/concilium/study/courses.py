"""Studies of patients' courses: hospitals hold series, or rules, of which a discovery finds what patients have in
common, and of which experts teach a student.

In a simulation all patients are at hand, so that what was found is put beside what they really share, and rules that
were weighed beside the outcome of patients who were held back: exact figures, not covered by epsilon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from concilium.errors import StudyError
from concilium.evaluation.leave_out import FoldResult, Predictions, hold_out
from concilium.evaluation.rule_judgement import DiscoveryFigures, judge_discovery
from concilium.evaluation.summary import summarise
from concilium.experts.experts import Experts
from concilium.models.threshold import choose
from concilium.privacy.accounting import warn_of_delta
from concilium.records.patients import Patients
from concilium.records.series import Series
from concilium.records.table import Records
from concilium.study.results import StudyResults, find_terms, tabulate
from concilium.study.sources import open_house, open_sites, read_table
from concilium.study.work_in_progress import WorkInProgress
from concilium.temporal.rule_discovery import RuleDiscovery
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.site_rules import learn_rules

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.study.sections import CourseColumns, Hospital, SplitTable
    from concilium.study.study import Study

# What public stays may take that came with a study: a few rows far apart in time would fill any memory.
ATTACHED_GIGABYTES = 0.5

Tell = Callable[[str], None]
Populations = Mapping[str, Patients]


def read_populations(study: Study) -> dict[str, Patients]:
    """Every hospital's patients, with their series or rules and, for queries, the table of the same patients."""
    if study.split is not None:
        whole = read_population(study, study.split)
        number = study.split.gateways or 1
        if len(whole) < number:
            raise StudyError(f"{study.path}: [sites] there are {len(whole)} patients for {number} gateways")
        dealt = np.arange(len(whole)) % number
        return {f"gateway {place + 1}": whole.take(dealt == place) for place in range(number)}
    return {hospital.name: read_population(study, hospital) for hospital in study.hospitals}


def read_population(study: Study, source: Hospital | SplitTable) -> Patients:
    columns = study.columns
    parts: dict[str, Any] = {}
    if source.rules is not None:
        parts["rules"] = RuleSets.read(
            study.locate(source.rules), patient=columns.patient or "patient", rule=columns.rule
        )
    if source.series is not None:
        method = study.open_method()
        assert isinstance(method, RuleDiscovery | Experts)
        series = read_series(study.locate(source.series), method.step, columns, columns.variables)
        if method.way_out.bounded and not series.stated:
            series = series.state([*method.task.names, method.target])
        parts["series"] = series
    if source.records is None:
        return Patients(**parts)
    by = columns.patient or "patient"
    table: Records = read_table(study, study.locate(source.records), source, {by: "code", **study.reading})
    return Patients(table=table, by=by, **parts)


def read_series(
    place: str,
    step: str,
    columns: CourseColumns,
    variables: Sequence[str] | None = None,
    gigabytes: float = 4.0,
) -> Series:
    """Series of a file on a grid of this step, its columns as a study names them, with these variables if stated."""
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
    work.bind(study, populations.values())
    learn, held_back = hold_back(study, populations)
    sites = open_sites(study, learn, spare=work.folder)
    if method.window is not None:
        learned = "the experts of patients" if isinstance(method, Experts) else "the rules of each patient"
        on_round(f"learning {learned}, at each hospital")
    try:
        start = time.perf_counter()
        method.fit(open_house(study, sites.values(), work.journal("model"), on_round))
        seconds = time.perf_counter() - start
    finally:
        for site in sites.values():
            site.ledger.close()
    measured = [
        predict_outcomes(name, method, patients) for name, patients in held_back.items() if method.window
    ]
    summary: dict[str, Any] = {"overall": {}, "sites": {}, "folds": []}
    if any(one.truth for one in measured):
        card = method.card
        summary = summarise([FoldResult((), measured, card.rounds, card.bytes, round(seconds, 3))], 1)
    metrics = tabulate(study, method, seconds, summary, 1)
    if held_back and isinstance(method, RuleDiscovery):
        metrics["discovery"] = describe(judge(method, learn))
        metrics["evaluation"] = f"{metrics['evaluation']}; {say_figures(metrics['discovery'], method)}"
    return StudyResults(study, method, metrics, find_terms(work.journal("model"), method.card.study))


def hold_back(study: Study, populations: Populations) -> tuple[Populations, Populations]:
    """The patients to learn from, and those held back: nobody without `holdout`."""
    if study.evaluate is None or study.evaluate.holdout is None:
        return populations, {}
    share = study.evaluate.holdout
    masks = {site: hold_out(len(patients), share, site) for site, patients in populations.items()}
    return (
        {site: patients.take(~masks[site]) for site, patients in populations.items()},
        {site: patients.take(masks[site]) for site, patients in populations.items()},
    )


def predict_outcomes(site: str, method: Method[Any], patients: Patients) -> Predictions:
    """What the model says of each patient, at the first step with the outcome or at the last without it."""
    outcomes = method.find_outcomes(patients)
    if not len(outcomes.rows):
        return Predictions(site, (0, 1), [], [], [])
    shares = method.predict_proba(outcomes.asked)
    predicted = choose(shares, method.classes_, method.decided).tolist()
    return Predictions(site, (0, 1), list(outcomes.truth), predicted, shares.tolist(), decided=method.placed)


def judge(method: RuleDiscovery, populations: Populations) -> DiscoveryFigures:
    """What was found beside what the patients share."""
    held = []
    for patients in populations.values():
        rules = patients.rules
        if patients.series is not None and rules is None:
            rules = learn_rules(patients.series, method.task)
        assert isinstance(rules, RuleSets)
        held.append(rules)
    return judge_discovery(method.rules_, held, method.exact_threshold)


def describe(figures: DiscoveryFigures) -> dict[str, Any]:
    """For metrics.json."""
    return {
        "rules": figures.found,
        "truth": figures.truth,
        "coverage": figures.coverage,
        "precision": figures.precision,
    }


def say_figures(figures: Mapping[str, Any], method: RuleDiscovery) -> str:
    coverage, precision = (
        "none" if figures[name] is None else f"{figures[name]:.0%}" for name in ("coverage", "precision")
    )
    return (
        f"of the {figures['truth']} structures that {float(method.exact_threshold):.2%} of the others have {coverage} "
        f"were found, and of the {figures['rules']} found {precision} are among them"
    )
