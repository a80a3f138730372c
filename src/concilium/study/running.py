"""A study run from its records to its results: tables checked where they lie, learned with all its hospitals, evaluated
as it says, all or nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from concilium.consult.table_check import TableCheck, TableUnderStudy
from concilium.errors import ConciliumError, HouseError, RunStopped, StudyError, StudyPending, nearest
from concilium.evaluation.alarms import compare_hospitals
from concilium.evaluation.leave_out import FoldResult, measure_model
from concilium.evaluation.risk_tables import summarise_table
from concilium.evaluation.summary import calibrate_all, count_predictions, summarise
from concilium.policy.policy import Policy
from concilium.privacy.accounting import warn_of_delta
from concilium.protocol.schema import LEFT_OUT
from concilium.records.table import Records
from concilium.records.table_map import read_mapped
from concilium.study.evaluating import compare_ways, hold_back, learn_through_gate, leave_out, widen
from concilium.study.planning import refuse_unfit
from concilium.study.results import (
    StudyResults,
    WorkInProgress,
    find_terms,
    publish_folder,
    raise_alarms,
    shows_single_sites,
    tabulate,
    write_results,
)
from concilium.study.sections import say_passed_over
from concilium.study.sources import keep_patients, open_house, open_sites, read_tables, read_test_file

if TYPE_CHECKING:
    from concilium.study.sections import Hospital, SplitTable
    from concilium.study.study import Study


def check_study(study: Study, site: str | None = None) -> list[TableCheck]:
    """What is found of every hospital's table, or of one."""
    if study.method_type.reads_courses:
        raise StudyError(
            f"{study.path}: tables are checked, and method = {study.method!r} learns from series or rules"
        )
    if study.split is not None:
        tables = dict(_split(study, study.split))
    else:
        tables = {
            one.name: _look_at(study, one, one.name) for one in study.hospitals if site in (None, one.name)
        }
    if site is not None and site not in tables:
        names = [*tables, *(one.name for one in study.hospitals)]
        raise StudyError(f"{study.path}: there is no site {site!r}{nearest(site, names)}")
    return [table.check() for name, table in tables.items() if site in (None, name)]


def _find_faults(study: Study, tables: Mapping[str, Records]) -> Iterator[str]:
    """What whoever runs a simulation should know before it is believed: hospitals whose tables do not fit."""
    policies = {one.name: one.policy for one in study.hospitals}
    for name, records in tables.items():
        file = policies.get(name) or (study.split.policy if study.split is not None else None)
        policy = Policy.read(study.locate(file)) if file else Policy()
        table = _put_together(study, policy, name, records, {})
        yield from (f"{name}: {fault}" for fault in table.find_faults())


def _find_differences(study: Study, tables: Mapping[str, Records]) -> list[str]:
    """Hospitals whose tables differ from the others' as mistakes do (evaluation/alarms.py)."""
    shared = [set(table.names) for table in tables.values()]
    everywhere = set.intersection(*shared) if shared else set()
    among = study.attributes or sorted({*everywhere, *study.bins, *study.values})
    columns = [*dict.fromkeys([*among, study.target])]
    return list(compare_hospitals(tables, columns, list(study.bins), study.dictionary.entries))


def _look_at(study: Study, source: Hospital | SplitTable, name: str) -> TableUnderStudy:
    assert source.records is not None
    problems: dict[str, str] = {}
    records = read_mapped(
        study.locate(source.records),
        source.table,
        study.reading,
        dictionary=study.dictionary,
        map=study.find_map(source),
        problems=problems,
    )
    policy = Policy.read(study.locate(source.policy)) if source.policy else Policy()
    return _put_together(study, policy, name, records, problems)


def _put_together(
    study: Study, policy: Policy, name: str, records: Records, problems: dict[str, str]
) -> TableUnderStudy:
    stated = dict.fromkeys([*study.values, *study.bins]) if study.way_out.bounded else {}
    return TableUnderStudy(
        name,
        records,
        study.dictionary,
        policy,
        study.query,
        study.target,
        [*dict.fromkeys([*(study.attributes or ()), *stated])],
        study.values,
        problems,
    )


def _split(study: Study, split: SplitTable) -> Iterator[tuple[str, TableUnderStudy]]:
    assert split.by is not None
    whole = _look_at(study, split, "")
    for name, records in whole.records.split(split.by).items():
        yield name, _put_together(study, whole.policy, name, records, dict(whole.problems))


Tell = Callable[[str], None]
MOST_FAULTS = 8


def run_study(
    study: Study, out: Path | None, resume: bool, on_progress: Tell | None, warn: Tell | None
) -> StudyResults:
    """Conduct a study and, given a folder, put its results in place."""
    tell = on_progress or (lambda text: None)
    warn = warn or _warn
    if not resume:
        refuse_unfit(study)
    if study.passed_over:
        warn(f"not chosen: {say_passed_over(study.passed_over)}")
    tell("reading records")
    if out is not None:
        return _run_to_folder(study, out, resume, tell, warn)
    if resume:
        raise StudyError("a run is resumed by the folder its results go to; give 'out' as well")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return conduct(study, WorkInProgress(Path(folder)), tell, warn)
        except StudyPending as pending:
            raise HouseError(
                f"study {pending.study[:12]} waits for {', '.join(pending.sites)} to agree, and a run without a folder "
                "is forgotten: run it to a folder, or have it wait"
            ) from None


def _run_to_folder(study: Study, out: Path, resume: bool, tell: Tell, warn: Tell) -> StudyResults:
    """Conduct a study and put its results in place; whatever goes wrong, no half of them is left behind."""
    work = WorkInProgress.beside(out, resume)
    rounds = 0

    def on_round(text: str) -> None:
        nonlocal rounds
        rounds += 1
        tell(text)

    with work.until_done(resume):
        try:
            results = conduct(study, work, on_round, warn)
        except StudyPending as pending:
            require_ledgers(study, pending.sites)
            raise
        except HouseError as error:
            # Only a house that stops for a lost site will ask it again; any other end would come out the same.
            stops = study.house.on_loss == "stop" or not study.way_out.begins_anew
            if stops and rounds > 1:
                raise RunStopped(str(error)) from None
            raise
        except ConciliumError:
            raise
        except BaseException as error:
            # A Ctrl-C that hits a lock while it is being released comes out as that lock's complaint.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        write_results(results, work.folder / "results")
        files = publish_folder(work.folder / "results", out)
    return dataclasses.replace(results, files=files)


def require_ledgers(study: Study, waiting: Iterable[str]) -> None:
    """Where people decide, there must be a ledger that outlives the run."""
    keepers = {hospital.name for hospital in study.hospitals if hospital.ledger}
    for name in waiting:
        if name not in keepers:
            raise StudyError(
                f"{study.path}: the policy of {name!r} has a person decide on this study, and there is no ledger to do "
                "that in: give the [[site]] a ledger, or let [agree] of its policy cover the study"
            )


def _warn_of_faults(study: Study, faults: Sequence[str], warn: Tell) -> None:
    """The first of these, and how many more there are."""
    for fault in faults[:MOST_FAULTS]:
        warn(fault)
    if len(faults) > MOST_FAULTS:
        warn(f"and {len(faults) - MOST_FAULTS} more like that: concilium check {study.path}")


def conduct(study: Study, work: WorkInProgress, on_round: Tell, warn: Tell) -> StudyResults:
    """Fit the study's method with all its sites, and evaluate it as the study says."""
    if study.method_type.reads_courses:
        # Here, for it loads what studies of tables do without.
        from concilium.study.courses import conduct_courses

        return conduct_courses(study, work, on_round, warn)
    method = study.open_method()
    tables, test = read_tables(study), read_test_file(study)
    classes = study.find_classes([*tables.values(), *test.values()])
    positive = study.find_positive(classes)
    _warn_of_deltas(study, tables, warn)
    differences = _find_differences(study, tables)
    single = shows_single_sites(study)
    _warn_of_faults(study, [*(() if single else differences), *_find_faults(study, tables)], warn)
    work.bind(study, [*tables.values(), *test.values()])
    sites = open_sites(study, tables, spare=work.folder)
    for name, site in sites.items():
        if site.grown:
            warn(f"{name}: {site.grown}; the ledger goes on")
    try:
        patients, held_back = hold_back(study, tables)
        members = keep_patients(study, sites, patients) if held_back else sites
        start = time.perf_counter()
        house = open_house(study, members.values(), work.journal("model"), on_round)
        model, table = learn_through_gate(study, house, method, work)
        seconds = time.perf_counter() - start
        compares = study.evaluate is not None and study.evaluate.compare
        measure = functools.partial(measure_model, classes=classes, soft=compares)
        results: list[FoldResult] = []
        folds_took = None
        if study.evaluate is not None and study.evaluate.leave_out is not None and table is None:
            results, folds_took = leave_out(study, tables, sites, measure, work, on_round)
        elif study.evaluate is not None and table is None:
            results = [measure(model, seconds, widen({**held_back, **test}, tables.values()))]
    finally:
        for site in sites.values():
            site.ledger.close()
    summary = summarise(results, positive) if results else {"overall": {}, "sites": {}, "folds": []}
    if table is not None:
        summary = summarise_table(table)
    metrics = tabulate(study, model, seconds, summary, positive)
    if study.target_range is not None:
        metrics["calibration"] = calibrate_all(results)
    if folds_took is not None:
        metrics["folds_took"] = folds_took
    if study.evaluate is not None and study.evaluate.compare:
        on_round(f"comparing with local{', pooled and donor' if classes else ' and pooled'} models")
        metrics["comparison"] = compare_ways(study, tables, results, classes, positive)
    if table is None and single:
        table = count_predictions([one for result in results for one in result.predictions], positive)
    raise_alarms(model, metrics, differences if single else [], table)
    terms = find_terms(work.journal("model"), model.card.study)
    return StudyResults(study, model, metrics, terms, differences=[] if single else differences)


def _warn(text: str) -> None:
    """Warn whoever runs a study from Python; that identifiers are left out is a matter of course there."""
    if not text.startswith(LEFT_OUT):
        warnings.warn(text, stacklevel=2)


def _warn_of_deltas(study: Study, tables: Mapping[str, Records], warn: Tell) -> None:
    """Say where delta is so large that it allows publishing somebody's whole record."""
    if not study.way_out.bounded:
        return
    for name, table in tables.items():
        warning = warn_of_delta(study.privacy.delta, len(table))
        if warning is not None:
            warn(f"{name}: {warning}")
