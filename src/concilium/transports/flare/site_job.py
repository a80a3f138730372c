"""A hospital's process of one FLARE job: it opens the hospital's own site and answers through its gate.

Nothing of it comes from the job but the bytes of questions: which records, policy and ledger is said by the hospital's
own file. There is one process for each job; what must last is in the ledger, which several of them may write.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

import concilium
from concilium.errors import ConciliumError, MessageError
from concilium.protocol.house import House
from concilium.protocol.messages import decode, encode
from concilium.protocol.site import Site
from concilium.records.columns import Value
from concilium.records.table import Records
from concilium.transports.flare.channel import listen
from concilium.transports.flare.own_files import SiteFile
from concilium.transports.flare.own_log import start_own_log
from concilium.transports.flare.transport import (
    HELLO,
    KNOCK,
    QUESTION,
    FlareGreeting,
    FlareHello,
    find_discord,
)
from concilium.trees.tree import DecisionTree

log = logging.getLogger(__name__)

CANNOT = (
    "its records, policy or ledger cannot be used: its own log, concilium.log, says which and what to do; fix it, and "
    "submit again"
)


class FlareSite(Executor):  # type: ignore[misc]
    """The one class that a job may name at a hospital (hardening.py). It takes no arguments: they would be the
    job's."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | None = None
        self._problem = ""
        self._answering = threading.Lock()
        self._house_greeted = self._ended = False

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.START_RUN:
            engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
            start_own_log(_find_kit(fl_ctx), fl_ctx.get_identity_name(), job)
            listen(engine, job, KNOCK, lambda message: b"")
            listen(engine, job, HELLO, self._greet)
            listen(engine, job, QUESTION, self._answer)
            threading.Thread(
                target=self._open, args=(_find_kit(fl_ctx), fl_ctx.get_identity_name()), daemon=True
            ).start()
        elif event_type == EventType.END_RUN:
            with self._answering:
                if self._site is not None:
                    self._site.ledger.close()
                self._site, self._ended = None, True
            log.info("the job has ended")

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """A job has no tasks: questions arrive as messages."""
        return make_reply(ReturnCode.TASK_UNSUPPORTED)

    def _open(self, kit: Path, name: str) -> None:
        rehearsing = threading.Thread(target=rehearse, daemon=True)
        rehearsing.start()
        try:
            site = SiteFile.read(kit).open(name)
            rehearsing.join()
        except ConciliumError as error:
            log.error("%s; fix it, and have the study submitted again", error)
            self._problem = CANNOT
        except Exception:
            log.exception("this site could not be opened")
            self._problem = CANNOT
        else:
            log.info("%r answers as %s", site, site.identity.fingerprint)
            self._site = site

    def _greet(self, message: bytes) -> bytes:
        hello = decode(message, FlareHello)
        if not self._house_greeted:
            self._house_greeted = True
            own = FlareHello(concilium.__version__, time.time())
            if own.version != hello.version:
                log.error(
                    "the house runs concilium %s, and this site %s: nothing is answered; install that version here "
                    "(pip install 'concilium[flare]==%s') and start the site again",
                    hello.version,
                    own.version,
                    hello.version,
                )
            elif find_discord(hello.version, hello.time):
                log.error(
                    "this machine's clock is %.0f s off the house's: nothing is answered; set it, best by NTP, and "
                    "start the site again",
                    own.time - hello.time,
                )
        ready = self._site is not None
        return encode(FlareGreeting(concilium.__version__, time.time(), ready, self._problem))

    def _answer(self, message: bytes) -> bytes | None:
        with self._answering:  # one at a time, even where the house has given up on the one before
            if self._ended:
                return None
            if self._site is None:
                raise MessageError("this site is not open")
            return self._site.answer(message)


def _find_kit(fl_ctx: Any) -> Path:
    return Path(fl_ctx.get_workspace().get_root_dir())


# Fewer are counted without kernels (protocol/counts.py).
PATIENTS = 3000


def rehearse() -> None:
    """Learn a tree of synthetic patients while the records are read, so that the first question is answered as quickly
    as those after it: what a process loads once, kernels above all, is there by then.

    Nothing of it stays, and nothing leaves. If it fails, the site answers all the same.
    """
    rows: list[dict[str, Value]] = [
        {"number": n % 7, "code": "xyz"[n % 3], "outcome": "np"[n % 2]} for n in range(PATIENTS)
    ]
    try:
        sites = [Site(name, Records.from_rows(rows)) for name in ("one", "other")]
        DecisionTree("outcome", max_depth=3, bins={"number": [0, 2, 4, 6]}).fit(House(sites))
    except Exception:
        log.exception("the rehearsal failed; studies will show why")
