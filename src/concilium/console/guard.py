"""What stands before every page of the console: limits on requests, security headers, and no error that tells more.

*Protects:* who uses the console, from other pages in the same browser, from content that runs, from requests that are
too large or too slow; and patients, from a log that quotes what was entered. An unforeseen error is logged by its kind
and the line of code, never by its text. *Assumes:* TLS, or a proxy that has it, wherever it is not this machine alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from concilium.console.connections import TimedConnections

log = logging.getLogger("concilium.console")

MOST_BODY = 256 * 1024
REQUEST_SECONDS = 30.0
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; sandbox; base-uri 'none'; frame-ancestors 'none'"
)
"""For files of a folder of results, which have their own style and are trusted with nothing else."""
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"cache-control": b"no-store",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _TooLarge(Exception):
    """A request with more bytes than any form has."""


class GuardedApp:
    """The console as a web application (ASGI). `hosts`: by which names it may be called; empty: by any."""

    def __init__(
        self,
        app: Callable[[Message, Receive, Send], Awaitable[None]],
        *,
        hosts: frozenset[str] = frozenset(),
        secure: bool = False,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        self.app, self.hosts, self.secure = app, hosts, secure
        self.seconds = seconds
        self.connections = TimedConnections(seconds)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = self._add_headers(message.get("headers", ()))
            await send(message)

        client = scope.get("client")
        try:
            if not self._may_call(scope):
                await _say(send_guarded, 421, "This address is not one of the console's.")
                return
            body = await self._read(scope, receive)
            connection = self.connections.find(tuple(client[:2])) if client else None
            if connection is not None:
                connection.work()
            await self.app(scope, _replay(body, receive), send_guarded)
        except _TooLarge:
            await _say(send_guarded, 413, f"A form has at most {MOST_BODY:,} bytes.")
        except TimeoutError:
            await _say(send_guarded, 408, "The request did not arrive in time. Send it again.")
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "nowhere"
            log.error("failure: %s at %s", type(error).__name__, where)
            if not started:
                await _say(
                    send_guarded,
                    500,
                    "The console could not do this. Its log has the line of code.",
                )
        finally:
            if client:
                self.connections.wait(tuple(client[:2]))

    def _may_call(self, scope: Message) -> bool:
        """Whether it is called by one of its names: a page elsewhere that has its own name point here is not."""
        if not self.hosts:
            return True
        named = [value for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1:
            return False
        host = named[0].decode("latin-1").casefold()
        bare = (
            host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        )
        return bare in self.hosts

    async def _read(self, scope: Message, receive: Receive) -> bytes:
        """The body of a request, within its time and size."""
        if scope["method"] in ("GET", "HEAD"):
            return b""
        data = bytearray()
        async with asyncio.timeout(self.seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return bytes(data)
                data += message.get("body", b"")
                if len(data) > MOST_BODY:
                    raise _TooLarge
                if not message.get("more_body", False):
                    return bytes(data)

    def _add_headers(self, given: Any) -> list[tuple[bytes, bytes]]:
        """Those of the response, and each of ours that it does not set itself."""
        headers = [(bytes(name).lower(), bytes(value)) for name, value in given]
        names = {name for name, _ in headers}
        more = [(name, value) for name, value in HEADERS.items() if name not in names]
        if self.secure:
            more.append((b"strict-transport-security", b"max-age=31536000"))
        return [*headers, *more]


def _replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, then whatever else comes."""
    waiting = [body]

    async def next_message() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return next_message


async def _say(send: Send, status: int, sentence: str) -> None:
    """A sentence for a person, without a page."""
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
