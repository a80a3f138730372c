"""The house's process of one FLARE job: it runs the study's method against the job's hospitals, and leaves the model.

Finished rounds are kept outside the job (own_files.py), by the ticket of whoever submitted it: FLARE loses a job whose
house is killed, and the next job with the same ticket goes on where that one was. Questions that hospitals have
answered they answer again for nothing.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from nvflare.apis.client import Client
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

from concilium.consultations.consultation import Consultation
from concilium.consultations.passes import RequesterPass
from concilium.errors import ConciliumError, HouseError, ModelError, StudyPending
from concilium.models.measuring import RiskTable
from concilium.models.method import Method
from concilium.models.validation import Validation
from concilium.protocol.house import House
from concilium.study.attached_files import unpack_attached
from concilium.study.consulting import date_study
from concilium.study.evaluating import learn_through_gate
from concilium.study.results import WorkInProgress, find_terms, write_whole
from concilium.study.study import Study
from concilium.study.validating import open_validation
from concilium.transports.flare.channel import FlareLine, JobAborted
from concilium.transports.flare.job import (
    CARD,
    MEASURED_TABLE,
    OUTCOME,
    PROGRESS,
    RESULTS,
    STUDY,
    JobOutcome,
    MeasuredModel,
    SubmittedStudy,
)
from concilium.transports.flare.own_files import HouseFile
from concilium.transports.flare.own_log import start_own_log
from concilium.transports.flare.transport import FlareTransport

log = logging.getLogger(__name__)

# When a job ends FLARE looks for tensors that are still being fetched, and loads torch for it where torch is installed:
# more than a second, and some hundred megabytes. Studies fetch none.
sys.modules.setdefault("nvflare.app_opt.pt.tensor_downloader", None)  # type: ignore[arg-type]

FETCHED_WITHIN = 5.0
MOST_AT_ONCE = 1 << 23


class FlareHouse(Controller):  # type: ignore[misc]
    """The one class that a job may name at the house (hardening.py). It takes no arguments, which FLARE would evaluate:
    the study is in a file of the job's folder."""

    def __init__(self) -> None:
        super().__init__()
        self._last, self._rounds = "", 0
        self._results: Path | None = None
        self._fetched = threading.Event()

    def start_controller(self, fl_ctx: Any) -> None:
        start_own_log(Path(fl_ctx.get_workspace().get_root_dir()), "house", fl_ctx.get_job_id())
        fl_ctx.get_engine().register_app_command(PROGRESS, self._report)

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing is left to stop: a round that is under way ends by its deadline."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """No tasks are given out."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        workspace = fl_ctx.get_workspace()
        results = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RESULTS
        results.mkdir(exist_ok=True)
        config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
        submitted = msgspec.json.decode((config / STUDY).read_bytes(), type=SubmittedStudy)
        outcome = self._conduct(submitted, Path(workspace.get_root_dir()), results, abort_signal, fl_ctx)
        log.info("the study has %s%s", outcome.ended, f": {outcome.problem}" if outcome.problem else "")
        write_whole(results / OUTCOME, msgspec.json.encode(outcome))
        self._results = results
        # FLARE ends a job only when all its sites have, and one that hangs has not: whoever watches fetches from here.
        self._fetched.wait(FETCHED_WITHIN)

    def _report(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:
        """How far it has come, for whoever watches; in the end, the files that it leaves."""
        if self._results is None or not data:
            return {"last": self._last, "over": self._results is not None}
        files = {path.name: path.read_text(encoding="utf-8") for path in self._results.glob("*.json")}
        if sum(map(len, files.values())) > MOST_AT_ONCE:
            return {"files": {}}  # they are fetched with the job, when it has ended
        threading.Timer(1.0, self._fetched.set).start()
        return {"files": files}

    def _tell(self, text: str) -> None:
        self._last = text
        self._rounds += text.startswith("round ")

    def _conduct(
        self, submitted: SubmittedStudy, kit: Path, results: Path, abort_signal: Any, fl_ctx: Any
    ) -> JobOutcome:
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "study.toml"
                path.write_text(submitted.study, encoding="utf-8")
                unpack_attached(submitted.files, path.parent)
                study = Study.read(path, elsewhere=True).find_variant(submitted.method)
                if submitted.month:
                    study = date_study(study, submitted.month)
                proposal = _open_proposal(study, submitted.measured, path.with_name("model.json"))
            _check_requester(proposal, submitted, fl_ctx)
            own = HouseFile.read(kit)
            kept = own.find_release(submitted) if submitted.month else None
            if kept is not None and kept.is_dir():
                shutil.copytree(kept, results, dirs_exist_ok=True)
                return msgspec.json.decode((kept / OUTCOME).read_bytes(), type=JobOutcome)
            with own.take_up(submitted.ticket, study.house.days, submitted.resumed) as work:
                outcome = self._learn(
                    submitted.sites, study, proposal, own, work, results, abort_signal, fl_ctx
                )
            if kept is not None:
                own.keep_release(kept, results, outcome)
            return outcome
        except StudyPending as pending:
            return JobOutcome(ended="pending", problem=str(pending), study=pending.study, sites=pending.sites)
        except JobAborted as error:
            return JobOutcome(ended="stopped", problem=str(error))
        except HouseError as error:
            stops = study.house.on_loss == "stop" or not study.way_out.begins_anew
            return JobOutcome(ended="stopped" if stops and self._rounds else "failed", problem=str(error))
        except ConciliumError as error:
            log.error("the study could not be run: %s", error)
            return JobOutcome(ended="failed", problem=error.outside)
        except Exception:
            log.exception("the study could not be run")
            return JobOutcome(
                ended="failed", problem="the house could not run the study; its own log says why"
            )

    def _learn(
        self,
        sites: tuple[str, ...],
        study: Study,
        proposal: Method[Any] | Validation,
        own: HouseFile,
        work: WorkInProgress,
        results: Path,
        abort_signal: Any,
        fl_ctx: Any,
    ) -> JobOutcome:
        engine = fl_ctx.get_engine()
        connected = [client.name for client in engine.get_clients()]
        job = fl_ctx.get_job_id()
        line = FlareLine(engine, job, Path(fl_ctx.get_workspace().get_run_dir(job)), abort_signal)
        transport = FlareTransport(sites, connected, line, own.pins)
        try:
            self._tell("waiting for the sites")
            transport.greet(study.house.timeout)
            for site, reason in transport.absent.items():
                log.warning("%s takes no part: %s", site, reason)
            house = House(
                transport=transport,
                timeout=study.house.timeout,
                on_loss=study.house.on_loss,
                journal=work.journal("model"),
                memory=own.memory,
                revoked=own.revoked,
                on_round=self._tell,
                identity=own.identity,
                purpose=study.aim,
                dictionary=study.dictionary,
                check_tables=study.house.check_tables,
                encounters=study.encounters or 1,
                days=study.house.days,
            )
            start = time.perf_counter()
            table: RiskTable | None
            if isinstance(proposal, Validation):
                proposal.fit(house)
                card, table = proposal.card, proposal.body
                write_whole(results / CARD, msgspec.json.encode(card))
            else:
                model, table = learn_through_gate(study, house, proposal, work)
                card = model.card
                model.save(results / "model.json")
            seconds = time.perf_counter() - start
            log.info("%s, %.2f s in all", transport.describe_rounds(), seconds)
        finally:
            transport.close()
        if table is not None:
            write_whole(results / MEASURED_TABLE, msgspec.json.encode(table))
        write_whole(results / "terms.json", find_terms(work.journal("model"), card.study))
        return JobOutcome(ended="finished", study=card.study, seconds=round(seconds, 3))


def _check_requester(proposal: Method[Any] | Validation, submitted: SubmittedStudy, fl_ctx: Any) -> None:
    """HouseError where whoever submitted it may not have the counts of a consultation: by the pass that is shown, or
    else by the name of the kit, which FLARE has from the certificate."""
    if isinstance(proposal, Consultation):
        described = Path(fl_ctx.get_workspace().get_job_meta_path(fl_ctx.get_job_id()))
        kit = str(json.loads(described.read_bytes()).get("submitter_name", ""))
        try:
            proposal.check_request(RequesterPass.parse(submitted.shown.encode()) if submitted.shown else kit)
        except ModelError as error:
            raise HouseError(f"the house hands out no counts: {error}") from None


def _open_proposal(study: Study, measured: MeasuredModel | None, file: Path) -> Method[Any] | Validation:
    """What a study learns by, or the measuring of a model that came with it."""
    if measured is not None:
        file.write_text(measured.file, encoding="utf-8")
        return open_validation(file, study, measured.since or None, measured.by).proposal
    if not study.method_type.reads_courses:
        return study.open_method()
    # Here, for it loads what studies of tables do without.
    from concilium.study.courses import open_learner

    return open_learner(study)
