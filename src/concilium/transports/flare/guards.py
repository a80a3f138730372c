"""What every process of FLARE refuses: messages of strangers, and at a hospital all requests but those of a job.

**Who may speak to which process.** A message names its own origin, and FLARE forwards messages between any two. FLARE
checks whose connection it is, by certificate, and whether its token is real. It does not hold the origin to the
connection: the house sends its own token out with each request, and with it any member could speak as the house.

*Protects:* hospitals and house, *from:* other hospitals and people with a kit. Nobody can greet, ask, start, stop or
fetch in another's name. *Assumes:* the house runs this filter; a house that does not can forge origins, and gains
nothing by it but what is left to the house below. What is asked and answered is proven by keys of our own besides
(terms.py, messages.py).

**What a hospital does when the house starts a job there.** It writes the job itself, and takes nothing of it but its
number.

*Protects:* the hospital, *from:* the house, and from whoever submitted the job. No file and no setting that is sent is
unpacked, read or built. Of FLARE's requests six are answered, those that a job needs; there is no shell, nothing is
deleted, and nobody stops or restarts the site. FLARE itself checks a person's rights only where the house's message
says so. *Leaves to the house:* when a job starts and ends, and how many there are.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.job_def import JobMetaKey, is_valid_job_id
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError
from nvflare.private.admin_defs import Message, error_reply, ok_reply
from nvflare.private.defs import CellChannel, RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from concilium.transports.flare.job import SITE_CONFIG, render_site_config

log = logging.getLogger(__name__)

HOUSE = FQCN.ROOT_SERVER
# By which FLARE's own tools look into a process, move it to another house, or stop it.
MANAGEMENT = "_net_manager"
# A site looks for tasks, of which a study gives out none. All else that a study's process is told the house tells it:
# to end, for one, or to send what came of it.
OPEN_TO_SITES = frozenset({ServerCommandNames.GET_TASK})


def _may_speak(own: str, neighbour: str, origin: str, channel: str, topic: str) -> bool:
    """Whether a process takes a message of this origin that came over the connection of a neighbour.

    The names are those of FLARE's cells: `server`, `north`, and `server.JOB`, `north.JOB` for processes of a job.
    """
    if own == HOUSE and not _is_within(neighbour, origin):
        return False
    ours, theirs = (FQCN.split(name)[0] for name in (own, origin))
    if ours == theirs:
        return True
    if channel == MANAGEMENT:
        return False
    if ours == HOUSE:
        return channel != CellChannel.SERVER_COMMAND or topic in OPEN_TO_SITES
    return bool(theirs == HOUSE)


def _is_within(name: str, origin: str) -> bool:
    """Whether an origin is a cell itself, or a process that it started."""
    return origin == name or bool(FQCN.is_ancestor(name, origin))


def _refuse_strangers(message: Any, cell: Any) -> Any:
    """A filter of FLARE's cells: None lets a message pass, a reply drops it."""
    own = cell.get_fqcn()
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    neighbour = endpoint.name if endpoint is not None else own
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    # A message may be part of a stream, which has a channel of its own.
    ways = [
        (str(message.get_header(channel, "")), str(message.get_header(topic, "")))
        for channel, topic in (
            (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC),
            (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC),
        )
    ]
    if all(_may_speak(own, neighbour, origin, *way) for way in ways) and not _would_end(own, origin, message):
        return None
    log.warning("%s refused a message that %s may not send, from %s: %s", own, origin, neighbour, ways)
    return make_reply(ReturnCode.UNAUTHENTICATED)


def _would_end(own: str, origin: str, message: Any) -> bool:
    """Whether this is, from elsewhere, the error at which FLARE ends the house's process of a study."""
    here = FQCN.split(own)[0] == FQCN.split(origin)[0]
    return not here and message.get_header(StreamHeaderKey.ERROR_TYPE) == BlobSizeError.__name__


def filter_origins() -> None:
    """Have every cell of this process refuse strangers, before it takes its first message."""
    build = CoreCell.__init__

    def build_with_filter(self: Any, *positions: Any, **names: Any) -> None:
        build(self, *positions, **names)
        self.add_incoming_filter("*", "*", _refuse_strangers, cell=self)

    CoreCell.__init__ = build_with_filter


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


class _DeployOwnJob(RequestProcessor):  # type: ignore[misc]
    """Answers the request to deploy a job: writes the hospital's own, whatever came with it."""

    def get_topics(self) -> list[str]:
        return [TrainingTopic.DEPLOY]

    def process(self, req: Any, app_ctx: Any) -> Any:
        job = req.get_header(RequestHeader.JOB_ID)
        if not is_valid_job_id(job):
            return error_reply("a job has a number of FLARE's form")
        _write_own_job(Workspace(root_dir=app_ctx.args.workspace, site_name=app_ctx.get_client_name()), job)
        return ok_reply(body="deployed")


class _Bounded(RequestProcessor):  # type: ignore[misc]
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
        own.headers = {**req.headers, RequestHeader.JOB_META: _describe_own_job(job)}
        return self._inner.process(own, app_ctx)


def _write_own_job(workspace: Any, job: str) -> None:
    """The folder of a job, as the hospital itself would have it."""
    shutil.rmtree(workspace.get_run_dir(job), ignore_errors=True)
    config = Path(workspace.get_app_dir(job)) / "config" / Path(SITE_CONFIG).name
    config.parent.mkdir(parents=True)
    config.write_bytes(render_site_config())
    Path(workspace.get_job_meta_path(job)).write_text(json.dumps(_describe_own_job(job)), encoding="utf-8")


def _describe_own_job(job: str | None) -> dict[str, Any]:
    """What FLARE wants to know of a job; its other sites are no concern of this one."""
    return {
        JobMetaKey.JOB_ID.value: job,
        JobMetaKey.RESOURCE_SPEC.value: {},
        JobMetaKey.JOB_CLIENTS.value: [],
    }


def answer_jobs_only() -> None:
    """Have this site answer the requests of a job, and no others."""
    theirs = ClientRequestProcessors.request_processors
    ours = [_Bounded(one) for one in theirs if set(one.get_topics()) <= ANSWERED]
    theirs[:] = [_DeployOwnJob(), *ours]
