"""Submitting a study to the house of a network, watching it, and fetching what came of it.

A job that ends before the study does (a hospital that has not decided, a house that was killed) is followed by another
with the same ticket, by which the house knows the study: nothing that was answered is asked, or charged, again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from concilium.errors import CannotResume, HouseError, RunStopped, StudyPending
from concilium.evaluation.leave_out import measure_model
from concilium.evaluation.risk_tables import summarise_table
from concilium.evaluation.summary import calibrate_all, summarise
from concilium.models.measuring import RiskTable
from concilium.models.model_file import load
from concilium.privacy.randomness import draw_bytes
from concilium.protocol.card import Card
from concilium.records.columns import label
from concilium.study.attached_files import pack_attached
from concilium.study.results import (
    StudyResults,
    WorkInProgress,
    publish_folder,
    raise_alarms,
    tabulate,
    write_results,
    write_whole,
)
from concilium.study.sections import say_passed_over
from concilium.study.several import conduct_all, publish_all, say_once
from concilium.study.sources import read_test_file
from concilium.study.validating import ValidatedStudy, open_validation
from concilium.transports.flare.job import (
    CARD,
    MEASURED_TABLE,
    OUTCOME,
    PROGRESS,
    JobOutcome,
    MeasuredModel,
    write_job,
)
from concilium.transports.flare.kit import HouseNotThere, Kit
from concilium.transports.flare.session import LOST, list_connected, open_session

if TYPE_CHECKING:
    from concilium.records.columns import Value
    from concilium.study.several import SeveralResults
    from concilium.study.study import Study

Tell = Callable[[str], None]
T = TypeVar("T")

LOOKED_EVERY = 0.5
# Seconds that a job may wait to be started, and be silent while it is listed as running.
STARTED_WITHIN, SILENT_FOR = 120.0, 60.0


class _Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what the house knows a study that was submitted: kept beside the results until they are there."""

    ticket: str
    digest: str
    sites: tuple[str, ...]


def submit_study(
    study: Study, kit: Kit, out: Path, *, resume: bool = False, shown: str = "", tell: Tell, warn: Tell
) -> StudyResults | SeveralResults:
    """Have the house run a study, and put its results in a folder; with several methods, one job for each. `shown` is
    the pass of whoever asks, for a consultation.

    StudyPending where hospitals have not decided, RunStopped where it can go on: either is resumed by `resume`, to the
    same folder.
    """
    work = WorkInProgress.beside(out, resume)
    learn = functools.partial(_learn_elsewhere, kit, shown=shown)
    results: StudyResults | SeveralResults
    with work.until_done(resume):
        if study.several:
            results = conduct_all(study, work, tell, say_once(warn), learn, _bind_to_ticket)
            files = publish_all(results, work.folder, out)
        else:
            results = learn(study, work, tell, warn)
            write_results(results, work.folder / "results")
            files = publish_folder(work.folder / "results", out)
    return replace(results, files=files)


def submit_validation(
    model_file: Path,
    study: Study,
    kit: Kit,
    out: Path,
    *,
    since: str | None = None,
    by: Sequence[str] = (),
    resume: bool = False,
    tell: Tell,
    warn: Tell,
) -> ValidatedStudy:
    """Have the hospitals of a network measure a model, and put the figures in a folder; it ends as `submit_study`."""
    asked = open_validation(model_file, study, since, by)  # as the house will: what is wrong is said here
    measured = MeasuredModel(file=model_file.read_text(encoding="utf-8"), since=since or "", by=tuple(by))
    digest = hashlib.sha256(study.digest.encode() + msgspec.json.encode(measured)).hexdigest()
    bound = msgspec.structs.replace(study, digest=digest)
    work = WorkInProgress.beside(out, resume)
    with work.until_done(resume):
        _, folder = _run_elsewhere(kit, bound, work, tell, warn, measured)
        table = msgspec.json.decode((folder / MEASURED_TABLE).read_bytes(), type=RiskTable)
        validated = asked.take(table, msgspec.json.decode((folder / CARD).read_bytes(), type=Card))
        validated.write(out)
    return validated


def _learn_elsewhere(
    kit: Kit, study: Study, work: WorkInProgress, tell: Tell, warn: Tell, shown: str = ""
) -> StudyResults:
    """Have the house run a study of one method; what came of it, measured on the patients of `[evaluate] file`."""
    outcome, folder = _run_elsewhere(kit, study, work, tell, warn, shown=shown)
    return _assemble(study, folder, outcome)


def _run_elsewhere(
    kit: Kit,
    study: Study,
    work: WorkInProgress,
    tell: Tell,
    warn: Tell,
    measured: MeasuredModel | None = None,
    shown: str = "",
) -> tuple[JobOutcome, Path]:
    """Have the house run one job of a study; how it ended, and where its files are."""
    with open_session(kit) as session:
        connected = list_connected(session)
        resumed = _bind_to_ticket(study, work) is not None
        ticket = _find_ticket(study, work, connected)
        if study.passed_over:
            warn(f"not chosen: {say_passed_over(study.passed_over)}")
        _warn_of_absent(study, ticket.sites, connected, warn)
        if study.method_type.reads_courses and measured is None:
            # As the house will: what is wrong with a file is said here, where it lies, and not there.
            from concilium.study.courses import open_learner

            open_learner(study)
        job = write_job(
            work.folder / "job",
            study.name,
            study.path.read_text(encoding="utf-8"),
            study.variant,
            ticket.ticket,
            ticket.sites,
            pack_attached(study.path),
            resumed,
            measured,
            str(study.parameters.get("month", "")),
            shown,
        )
        outcome, folder = _run_job(kit, session, job, work.folder / "fetched", tell)
    if outcome.ended == "pending":
        raise StudyPending(outcome.study, outcome.sites)
    if outcome.ended == "stopped":
        raise RunStopped(outcome.problem)
    if outcome.ended == "failed":
        raise HouseError(outcome.problem)
    return outcome, folder


def _find_ticket(study: Study, work: WorkInProgress, connected: Sequence[str]) -> _Ticket:
    """That of the study as it was submitted first, or a new one."""
    kept = _bind_to_ticket(study, work)
    if kept is not None:
        return kept
    sites = tuple(hospital.name for hospital in study.hospitals) or tuple(connected)
    if not sites:
        raise HouseError("no hospital is connected to the house; have them start `concilium flare site`")
    ticket = _Ticket(draw_bytes(16).hex(), study.digest, sites)
    work.keep("ticket", ticket)
    return ticket


def _bind_to_ticket(study: Study, work: WorkInProgress) -> _Ticket | None:
    """The ticket of work in progress; CannotResume where the study is another by now."""
    kept = work.recall("ticket", _Ticket)
    if kept is not None and kept.digest != study.digest:
        raise CannotResume(f"{study.path}: the study has changed since it was submitted")
    return kept


def _warn_of_absent(study: Study, sites: Sequence[str], connected: Sequence[str], warn: Tell) -> None:
    """Say who is not connected; HouseError where that ends the study before it begins."""
    absent = [site for site in sites if site not in connected]
    if not absent:
        return
    remedy = (
        f"not connected to the house: {', '.join(absent)}; have them start `concilium flare site` (their own log, "
        "concilium.log, says what is wrong there)"
    )
    if len(absent) == len(sites) or study.house.on_loss == "stop" or not study.way_out.begins_anew:
        raise HouseError(remedy)
    warn(f"{remedy}; the study goes on without")


def _run_job(kit: Kit, session: Any, job: Path, fetched: Path, tell: Tell) -> tuple[JobOutcome, Path]:
    """Submit a job, wait for its end, and fetch what it left: how it ended, and where that is."""
    tell("submitting")
    token = draw_bytes(16).hex()  # by which the house knows a job that is sent twice
    number = _patiently(kit, lambda: session.submit_job(str(job.absolute()), submit_token=token))
    try:
        status = _follow(kit, session, number, tell)
    except BaseException as error:
        # Nobody waits for it any more; the next job with this ticket goes on from its rounds.
        if not isinstance(error, RunStopped):
            with contextlib.suppress(Exception):
                session.abort_job(number)
        raise
    tell("fetching the results")
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir()
    if not _fetch_files(session, number, fetched):
        status = _follow(kit, session, number, tell, to_the_end=True)
        _patiently(kit, lambda: session.download_job_result(number, str(fetched)))
    found = list(fetched.rglob(OUTCOME))
    if not found:
        raise RunStopped(f"job {number} left no results ({status}); the house's log of it says why")
    return msgspec.json.decode(found[0].read_bytes(), type=JobOutcome), found[0].parent


def _fetch_files(session: Any, number: str, folder: Path) -> bool:
    """Have the files of a job whose study is over while its process is there; False where that is too late."""
    try:
        files = session.do_app_command(number, PROGRESS, {"fetch": True}).get("files", {})
    except Exception:
        return False
    for name, text in files.items():
        write_whole(folder / Path(name).name, text.encode())
    return OUTCOME in files


def _follow(kit: Kit, session: Any, number: str, tell: Tell, *, to_the_end: bool = False) -> str:
    """Tell how a job goes until its study is over, or until it has ended itself; its last status."""
    begun = heard = time.monotonic()
    said = ""
    while True:
        status = str(_patiently(kit, lambda: session.get_job_meta(number)).get("status", ""))
        if status.startswith(("FINISHED", "ABANDONED")):
            return status
        now = time.monotonic()
        if status == "RUNNING":
            progress = None if to_the_end else _ask_progress(session, number)
            if progress is not None:
                heard = now
                if progress.get("over"):
                    return status
                if progress.get("last", "") != said:
                    said = str(progress["last"])
                    tell(said)
            elif now - heard > SILENT_FOR:
                raise RunStopped(
                    f"job {number} is listed as running, and nobody has answered for it for {SILENT_FOR:g} s: the "
                    "house was started again since"
                )
        else:
            heard = now
            if now - begun > STARTED_WITHIN:
                raise HouseError(
                    f"job {number} was not started within {STARTED_WITHIN:g} s ({status}); concilium flare status says "
                    "who is connected and what runs"
                )
        time.sleep(LOOKED_EVERY)


def _ask_progress(session: Any, number: str) -> dict[str, Any] | None:
    """What the job told last, and whether it is over; None where it does not answer."""
    try:
        told: dict[str, Any] = session.do_app_command(number, PROGRESS, {})
        return told
    except Exception:
        return None


def _patiently(kit: Kit, call: Callable[[], T]) -> T:
    """What a call to the house brings: again where a busy house was late; RunStopped where it is gone."""
    from nvflare.fuel.flare_api.api_spec import NoConnection, SessionClosed

    until = time.monotonic() + SILENT_FOR
    while True:
        try:
            return call()
        except SessionClosed as error:
            raise RunStopped(f"{LOST} ({error})") from None
        except NoConnection as error:
            try:
                kit.check_house()
            except HouseNotThere:
                raise RunStopped(f"{LOST} ({error})") from None
            if time.monotonic() > until:
                raise RunStopped(f"{LOST} ({error})") from None
            time.sleep(LOOKED_EVERY)


def _assemble(study: Study, folder: Path, outcome: JobOutcome) -> StudyResults:
    """The results of a study from what its job left, measured on the patients of `[evaluate] file`."""
    model = load(folder / "model.json")
    metrics_of: list[Any] = []
    classes: list[Value] = [] if study.target_range is not None else list(model.classes_)
    test = read_test_file(study)
    if test:
        known = {label(value) for value in classes}
        if study.target_range is None and not study.method_type.against_rest:
            classes += [value for value in study.find_classes(test.values()) if label(value) not in known]
        metrics_of = [measure_model(model, outcome.seconds, test, classes=classes)]
    positive = 1 if study.method_type.reads_courses else study.find_positive(classes)
    summary = summarise(metrics_of, positive) if metrics_of else {"overall": {}, "sites": {}, "folds": []}
    table = None
    if (measured := folder / MEASURED_TABLE).exists():
        table = msgspec.json.decode(measured.read_bytes(), type=RiskTable)
        summary = summarise_table(table)
    metrics = tabulate(study, model, outcome.seconds, summary, positive)
    if study.target_range is not None:
        metrics["calibration"] = calibrate_all(metrics_of)
    raise_alarms(model, metrics, table=table)
    return StudyResults(study, model, metrics, (folder / "terms.json").read_bytes())
