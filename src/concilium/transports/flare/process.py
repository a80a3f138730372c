"""The start of every process of FLARE: it closes what FLARE leaves open, and goes on as a module of FLARE.

    python -m concilium.transports.flare.process MODULE ARGUMENTS

FLARE's settings (hardening.py) cannot close these. It reaches below FLARE's public interface: nvflare is pinned to one
version, tests/adversary/test_submitted_jobs.py drives the functions that are replaced here, and tests/flare a network.
"""

from __future__ import annotations

import gc
import logging
import runpy
import sys
from pathlib import Path
from typing import Any

from concilium.errors import HouseError

# By name: this module runs as __main__.
log = logging.getLogger("concilium.transports.flare.process")

HOUSE = "nvflare.private.fed.app.server.server_train"
SITE = "nvflare.private.fed.app.client.client_train"
HOUSE_JOB = "nvflare.private.fed.app.server.runner_process"
SITE_JOB = "nvflare.private.fed.app.client.worker_process"


def _guard(module: str) -> None:
    """Close what this module of FLARE leaves open; ValueError where it is none of ours."""
    if module not in (HOUSE, SITE, HOUSE_JOB, SITE_JOB):
        raise ValueError(f"{module} is not a process of the network")
    _read_json_only()
    from concilium.transports.flare.guards import filter_origins

    filter_origins()
    if module == HOUSE:
        _check_jobs()
        _keep_losses_apart()
    elif module == SITE:
        from concilium.transports.flare.guards import answer_jobs_only

        answer_jobs_only()


def _read_json_only() -> None:
    """Take FLARE's other readers of configuration away.

    HOCON and OmegaConf evaluate what they read: files, addresses and the environment of whoever reads. Variables in
    JSON are FLARE's own and reach the environment too; our files have none.
    """
    for name in ("pyhocon", "omegaconf"):
        sys.modules[name] = None  # type: ignore[assignment]
    from nvflare.fuel.utils import wfconf
    from nvflare.fuel.utils.config import ConfigFormat
    from nvflare.fuel.utils.config_factory import ConfigFactory
    from nvflare.private import json_configer

    for form in list(ConfigFactory._fmt2Loader):
        if form is not ConfigFormat.JSON:
            del ConfigFactory._fmt2Loader[form]
    extensions = {".json": ConfigFormat.JSON}
    ConfigFormat.config_ext_formats = classmethod(lambda cls: dict(extensions))
    wfconf.resolve_var_refs = json_configer.resolve_var_refs = lambda scanner, values: None


def _check_jobs() -> None:
    """At the house: have each submitted job checked before FLARE opens it."""
    from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

    from concilium.transports.flare.job import check_submitted_job

    validate = JobMetaValidator.validate

    def validate_checked(self: Any, job_name: str, job_data: str) -> tuple[bool, str, dict[str, Any]]:
        try:
            check_submitted_job(job_name, job_data)
        except HouseError as error:
            log.warning("%s", error)
            return False, str(error), {}
        valid: tuple[bool, str, dict[str, Any]] = validate(self, job_name, job_data)
        return valid

    JobMetaValidator.validate = validate_checked


def _keep_losses_apart() -> None:
    """At the house: a site whose process of a job failed is lost to that job, and fails it for nobody else.

    FLARE ends a job at all sites when one reports that its process failed, or cannot start it. Here the study's own
    process is told that the site's has ended, and goes on or stops with its name (run.py).
    """
    from nvflare.private.defs import ERROR_MSG_PREFIX, JobFailureMsgKey
    from nvflare.private.fed.server import job_runner
    from nvflare.private.fed.server.fed_server import FederatedServer

    from concilium.transports.flare.channel import note_ended

    process, check = FederatedServer.process_job_failure, job_runner.check_client_replies
    resolve = job_runner.JobRunner.resolve_client_outcome

    def note_failure(self: Any, request: Any) -> Any:
        if isinstance(request.payload, dict):
            if request.payload.get(JobFailureMsgKey.CODE):
                log.warning("a site's process of a job failed: %s", request.payload)
            request.payload[JobFailureMsgKey.CODE] = 0
        return process(self, request)

    def resolve_and_note(self: Any, job_id: str, client_name: str) -> None:
        resolve(self, job_id, client_name)
        note_ended(Path(self.workspace_root) / job_id, client_name)

    def check_without_errors(replies: Any, client_sites: Any, command: str, strict: bool = False) -> Any:
        for one in replies:
            if one.reply is not None and str(one.reply.body).startswith(ERROR_MSG_PREFIX):
                log.warning("%s could not %s: %s", one.client_name, command, one.reply.body)
                one.reply = None
        return check(replies, client_sites, command, strict)

    FederatedServer.process_job_failure = note_failure
    job_runner.JobRunner.resolve_client_outcome = resolve_and_note
    job_runner.check_client_replies = check_without_errors


# Nearly all that a process loads stays as long as it does: looking through it for garbage every 700 new objects took a
# seventh of the time of its imports.
COLLECTED_EVERY = 50_000


def main() -> None:
    gc.set_threshold(COLLECTED_EVERY)
    module = sys.argv[1]
    _guard(module)
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
