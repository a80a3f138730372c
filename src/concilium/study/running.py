"""A study run from its records to its results: learned with all its hospitals, evaluated as it says, all or nothing."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from concilium.errors import ConciliumError, HouseError, RunStopped, StudyError, StudyPending
from concilium.evaluation.leave_out import FoldResult, measure_model
from concilium.evaluation.summary import calibrate_all, summarise
from concilium.privacy.accounting import warn_of_delta
from concilium.records.table import Records
from concilium.study.checking import find_faults
from concilium.study.evaluating import compare_ways, hold_back, leave_out, widen
from concilium.study.results import StudyResults, find_terms, publish_folder, tabulate, write_results
from concilium.study.sources import keep_patients, open_house, open_sites, read_tables, read_test_file
from concilium.study.work_in_progress import WorkInProgress

if TYPE_CHECKING:
    from concilium.study.study import Study

Tell = Callable[[str], None]
MOST_FAULTS = 8


def run_study(
    study: Study, out: Path | None, resume: bool, on_progress: Tell | None, warn: Tell | None
) -> StudyResults:
    """Conduct a study and, given a folder, put its results in place."""
    tell = on_progress or (lambda text: None)
    warn = warn or (lambda text: warnings.warn(text, stacklevel=2))
    tell("reading records")
    if out is not None:
        return run_to_folder(study, out, resume, tell, warn)
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


def run_to_folder(study: Study, out: Path, resume: bool, tell: Tell, warn: Tell) -> StudyResults:
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
    warn_of_deltas(study, tables, warn)
    faults = list(find_faults(study, tables))
    for fault in faults[:MOST_FAULTS]:
        warn(fault)
    if len(faults) > MOST_FAULTS:
        warn(f"and {len(faults) - MOST_FAULTS} more like that: concilium check {study.path}")
    work.bind(study, [*tables.values(), *test.values()])
    sites = open_sites(study, tables, spare=work.folder)
    for name, site in sites.items():
        if site.grown:
            warn(f"{name}: {site.grown}; the ledger goes on")
    try:
        patients, held_back = hold_back(study, tables)
        members = keep_patients(study, sites, patients) if held_back else sites
        start = time.perf_counter()
        model = method.fit(open_house(study, members.values(), work.journal("model"), on_round))
        seconds = time.perf_counter() - start
        compares = study.evaluate is not None and study.evaluate.compare
        measure = functools.partial(measure_model, classes=classes, soft=compares)
        results: list[FoldResult] = []
        folds_took = None
        if study.evaluate is not None and study.evaluate.leave_out is not None:
            results, folds_took = leave_out(study, tables, sites, measure, work, on_round)
        elif study.evaluate is not None:
            results = [measure(model, seconds, widen({**held_back, **test}, tables.values()))]
    finally:
        for site in sites.values():
            site.ledger.close()
    summary = summarise(results, positive) if results else {"overall": {}, "sites": {}, "folds": []}
    metrics = tabulate(study, model, seconds, summary, positive)
    if study.target_range is not None:
        metrics["calibration"] = calibrate_all(results)
    if folds_took is not None:
        metrics["folds_took"] = folds_took
    if study.evaluate is not None and study.evaluate.compare:
        on_round(f"comparing with local{', pooled and donor' if classes else ' and pooled'} models")
        metrics["comparison"] = compare_ways(study, tables, results, classes, positive)
    return StudyResults(study, model, metrics, find_terms(work.journal("model"), model.card.study))


def warn_of_deltas(study: Study, tables: Mapping[str, Records], warn: Tell) -> None:
    """Say where delta is so large that it allows publishing somebody's whole record."""
    if not study.way_out.bounded:
        return
    for name, table in tables.items():
        warning = warn_of_delta(study.privacy.delta, len(table))
        if warning is not None:
            warn(f"{name}: {warning}")
