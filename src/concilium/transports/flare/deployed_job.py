"""What a hospital does when the house starts a job there: it writes the job itself, and takes nothing of it but its
number.

*Protects:* the hospital, *from:* the house, and from whoever submitted the job. No file and no setting that is sent is
unpacked, read or built. Of FLARE's requests six are answered, those that a job needs; there is no shell, nothing is
deleted, and nobody stops or restarts the site. FLARE itself checks a person's rights only where the house's message
says so. *Leaves to the house:* when a job starts and ends, and how many there are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from nvflare.apis.job_def import JobMetaKey, is_valid_job_id
from nvflare.apis.workspace import Workspace
from nvflare.private.admin_defs import Message, error_reply, ok_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from concilium.transports.flare.job import SITE_CONFIG, render_site_config

ANSWERED = frozenset(
    {
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.START_JOB,
        TrainingTopic.NOTIFY_JOB_STATUS,
        TrainingTopic.ABORT,
    }
)
# Of what a job asks for: nothing.
WITH_RESOURCES = frozenset(
    {TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.START_JOB}
)


class DeployOwnJob(RequestProcessor):  # type: ignore[misc]
    """Answers the request to deploy a job: writes the hospital's own, whatever came with it."""

    def get_topics(self) -> list[str]:
        return [TrainingTopic.DEPLOY]

    def process(self, req: Any, app_ctx: Any) -> Any:
        job = req.get_header(RequestHeader.JOB_ID)
        if not is_valid_job_id(job):
            return error_reply("a job has a number of FLARE's form")
        write_own_job(Workspace(root_dir=app_ctx.args.workspace, site_name=app_ctx.get_client_name()), job)
        return ok_reply(body="deployed")


class Bounded(RequestProcessor):  # type: ignore[misc]
    """Answers a request as FLARE does, about jobs only, and with the hospital's own description of the job."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def get_topics(self) -> list[str]:
        return list(self._inner.get_topics())

    def process(self, req: Any, app_ctx: Any) -> Any:
        job = req.get_header(RequestHeader.JOB_ID)
        if job is not None and not is_valid_job_id(job):
            return error_reply("a job has a number of FLARE's form")
        own = Message(req.topic, {} if req.topic in WITH_RESOURCES else req.body)
        own.headers = {**req.headers, RequestHeader.JOB_META: describe_own_job(job)}
        return self._inner.process(own, app_ctx)


def write_own_job(workspace: Any, job: str) -> None:
    """The folder of a job, as the hospital itself would have it."""
    shutil.rmtree(workspace.get_run_dir(job), ignore_errors=True)
    config = Path(workspace.get_app_dir(job)) / "config" / Path(SITE_CONFIG).name
    config.parent.mkdir(parents=True)
    config.write_bytes(render_site_config())
    Path(workspace.get_job_meta_path(job)).write_text(json.dumps(describe_own_job(job)), encoding="utf-8")


def describe_own_job(job: str | None) -> dict[str, Any]:
    """What FLARE wants to know of a job; its other sites are no concern of this one."""
    return {
        JobMetaKey.JOB_ID.value: job,
        JobMetaKey.RESOURCE_SPEC.value: {},
        JobMetaKey.JOB_CLIENTS.value: [],
    }


def answer_jobs_only() -> None:
    """Have this site answer the requests of a job, and no others."""
    theirs = ClientRequestProcessors.request_processors
    ours = [Bounded(one) for one in theirs if set(one.get_topics()) <= ANSWERED]
    theirs[:] = [DeployOwnJob(), *ours]
