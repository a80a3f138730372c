"""The way a question and its answer take inside a FLARE job: one message there and one back, bytes as they are.

FLARE's own requests (the auxiliary channel, Collab's calls) are streams: each is cut into chunks that are acknowledged,
and its body is an object that is taken apart and put together. Below them lies the cell, which carries one message over
the same connection, under the same certificates and through the same filters. Our messages are bytes and small, so they
go that way: an empty round with three sites took a quarter of the time. Nothing is trusted to it but delivery
(transport.py). It reaches below FLARE's public interface: nvflare is pinned to one version, and
tests/flare runs on a real network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from concilium.errors import HouseError, MessageError
from concilium.protocol.messages import Silence
from concilium.transports.flare.transport import Ended, Unreachable

CHANNEL = "concilium"
# Where a job's folder at the house has a file for each site whose process of the job is gone.
ENDED = "ended"
GONE = frozenset(
    {
        ReturnCode.COMM_ERROR,
        ReturnCode.INVALID_TARGET,
        ReturnCode.SERVICE_UNAVAILABLE,
        ReturnCode.TARGET_UNREACHABLE,
    }
)


class JobAborted(HouseError):
    """Somebody ended the job."""


def listen(engine: Any, job: str, topic: str, answer: Callable[[bytes], bytes | None]) -> None:
    """At a site: have messages of this topic answered that the house's process of this job sends; with None it is as
    if nobody were there any more."""
    house = FQCN.join([FQCN.ROOT_SERVER, job])

    def take(request: Any) -> Any:
        body = _read_body(request)
        if body is None or request.get_header(MessageHeaderKey.ORIGIN) != house:
            return _write_reply(ReturnCode.INVALID_REQUEST)
        try:
            reply = answer(body)
        except MessageError:
            return _write_reply(ReturnCode.INVALID_REQUEST)
        code = ReturnCode.SERVICE_UNAVAILABLE if reply is None else ReturnCode.OK
        return _write_reply(code, reply or b"")

    engine.get_cell().core_cell.register_request_cb(CHANNEL, topic, take)


def _read_body(message: Any) -> bytes | None:
    """The bytes of a message; None where it has something else."""
    body = message.payload
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else None


def _write_reply(code: str, body: bytes = b"") -> Any:
    return Message({MessageHeaderKey.RETURN_CODE: code}, body)


def note_ended(run: Path, site: str) -> None:
    """At the house's main process: leave word in a job's folder that a site's process of the job has ended."""
    with contextlib.suppress(OSError):  # the job may be over, and its folder gone
        (run / ENDED).mkdir(exist_ok=True)
        (run / ENDED / site).touch()


class FlareLine:
    """At the house: one message to one site of the job, and what came back. `run` is the job's folder."""

    def __init__(self, engine: Any, job: str, run: Path, abort_signal: Any) -> None:
        self._engine, self._job, self._run, self._abort_signal = engine, job, run, abort_signal

    def __call__(self, site: str, topic: str, message: bytes, timeout: float) -> bytes | Silence:
        if self._abort_signal.triggered:
            raise JobAborted("the job was ended by somebody who may, or by the house's own end")
        if (self._run / ENDED / site).exists():
            return Ended("its process of this study has ended: its own log says why")
        client = self._engine.get_client_from_name(site)
        if client is None:
            return Unreachable("there is no way to it")
        reply = self._engine.get_cell().core_cell.send_request(
            channel=CHANNEL,
            topic=topic,
            target=FQCN.join([client.get_fqcn(), self._job]),
            request=Message(payload=message),
            timeout=timeout,
            optional=True,
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        body = _read_body(reply)
        if code == ReturnCode.OK and body is not None:
            return body
        if code == ReturnCode.TIMEOUT:
            return Silence(f"no answer within {timeout:g} s")
        if code in GONE:
            return Unreachable("its process ended, or its connection broke")
        return Silence(f"it could not take the question ({code})")
