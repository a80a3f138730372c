"""CDS services over HTTP: discovery, calls, feedback. Limits, clients' tokens, and a log without values.

*Protects:* patients, from a log or a file that holds what a call was about: of a call, service and outcome are logged;
of feedback, the card's number, the outcome and one of our reasons go into an audit log that is only added to. Comments
are not read. *Assumes:* TLS, or a proxy that has it, wherever it is not this machine alone. A call is bounded by its
bytes (`MOST_BYTES`), its resources and the time in which it must arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

import concilium
from concilium.console.audit_trail import AuditTrail
from concilium.console.client_tokens import ClientBook, ClientError, TokenError
from concilium.console.connections import Decisions, TimedConnections
from concilium.console.gateway import Message, listen, make_server, run_server, write_address
from concilium.console.serving import LOOPBACK, ConsoleError
from concilium.consult.cds_hooks import CdsError, CdsService, Feedback, HookCall
from concilium.consult.fhir_validation import require_validation
from concilium.errors import ConciliumError
from concilium.protocol.terms import today

log = logging.getLogger("concilium.cds")

MOST_BYTES = 2 * 1024 * 1024
REQUEST_SECONDS = 15.0
ROOT = "/cds-services"
FAILED = "the service could not answer this call; nothing of it was kept"
HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_read_call = msgspec.json.Decoder(HookCall)
_read_feedback = msgspec.json.Decoder(Feedback)


@dataclass(frozen=True)
class _CdsReply:
    """A status and a JSON document."""

    status: int
    content: Any


class CdsApp:
    """The services as a web application (ASGI). `clients`: whose tokens count; None: anybody may call. `trail`: where
    feedback is entered. `origins`: pages of a browser that may call."""

    def __init__(
        self,
        services: Mapping[str, CdsService],
        trail: AuditTrail,
        *,
        clients: ClientBook | None = None,
        origins: frozenset[str] = frozenset(),
        seconds: float = REQUEST_SECONDS,
        day: Callable[[], date] = today,
    ) -> None:
        require_validation()
        self.services, self.trail, self.clients, self.origins = services, trail, clients, origins
        self._day = day
        self.connections, self._decisions = TimedConnections(seconds), Decisions()
        self._patience = 0.8 * seconds  # then there is time for a sentence before the connection is closed

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        named = {name: value.decode("latin-1") for name, value in scope["headers"]}
        reply = await self._answer(scope, named, receive)
        if reply is None:
            return
        body = b"" if reply.content is None else msgspec.json.encode(reply.content)
        headers = [*HEADERS, (b"content-length", str(len(body)).encode()), *self._allow(named)]
        if reply.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if reply.status in (408, 413):
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        if scope.get("client"):
            self.connections.wait(tuple(scope["client"][:2]))

    def _allow(self, headers: Mapping[bytes, str]) -> list[tuple[bytes, bytes]]:
        """What lets a page of a browser read the answer, if it is one of those that may."""
        origin = headers.get(b"origin", "")
        if origin not in self.origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"vary", b"origin"),
        ]

    async def _answer(
        self, scope: Message, headers: Mapping[bytes, str], receive: Receive
    ) -> _CdsReply | None:
        """What is replied; None where the other side has gone."""
        path, method = scope["path"], scope["method"]
        work = self._find_work(path)
        if work is None:
            return _CdsReply(404, {"error": f"there is nothing here; services are listed at {ROOT}"})
        if method == "OPTIONS" and self.origins:
            return _CdsReply(204, None)
        wanted, decide = work
        if method != wanted:
            return _CdsReply(405, {"error": f"this address takes {wanted}"})
        client = ""
        if self.clients is not None and path.startswith(ROOT):
            try:
                client = self.clients.check(headers.get(b"authorization", ""), path)
            except TokenError as error:
                log.info("refused a token: %s", error)
                return _CdsReply(401, {"error": str(error)})
            except ClientError as error:
                log.error("clients cannot be read, so nobody is answered: %s", error)
                return _CdsReply(503, {"error": "the list of clients cannot be read: see the log"})
            except Exception as error:
                log.error("failure with a token: %s", type(error).__name__)
                return _CdsReply(401, {"error": "the token is no JWT as CDS Hooks has it"})
        if method == "GET":
            return decide(b"", client)
        kind = headers.get(b"content-type", "").partition(";")[0].strip().casefold()
        if kind not in ("application/json", "application/fhir+json"):
            return _CdsReply(415, {"error": "calls are JSON: content-type application/json"})
        try:
            async with asyncio.timeout(self._patience):
                body = await self._read(scope, receive)
        except TimeoutError:
            log.info("refused a call: too slow")
            return _CdsReply(
                408, {"error": f"the call did not arrive in {self._patience:.3g} s: send it again"}
            )
        if body is None or isinstance(body, _CdsReply):
            return body
        peer = str(scope["client"][0]) if scope.get("client") else ""
        return await self._decisions.run(peer, lambda: self._guard(path, decide, body, client))

    def _find_work(self, path: str) -> tuple[str, Callable[[bytes, str], _CdsReply]] | None:
        """What an address takes, and what is done there."""
        if path == ROOT:
            return "GET", lambda _body, _client: _CdsReply(
                200, {"services": [one.discovery for one in self.services.values()]}
            )
        if path == "/openapi.json":
            return "GET", lambda _body, _client: _CdsReply(200, _describe_api(self.services))
        if path == "/health":
            return "GET", lambda _body, _client: _CdsReply(200, {"services": list(self.services)})
        name, _, rest = path.removeprefix(f"{ROOT}/").partition("/")
        service = self.services.get(name) if path.startswith(f"{ROOT}/") else None
        if service is None:
            return None
        if rest == "feedback":
            return "POST", lambda body, client: self._take_feedback(service, body, client)
        return ("POST", lambda body, _client: self._call(service, body)) if not rest else None

    async def _read(self, scope: Message, receive: Receive) -> bytes | _CdsReply | None:
        """The body of a call, within its size; None where the other side has gone."""
        found = self.connections.find(tuple(scope["client"][:2])) if scope.get("client") else None
        data = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            data += message.get("body", b"")
            more = message.get("more_body", False)
            if len(data) > MOST_BYTES:
                log.info("refused a call: too large")
                return _CdsReply(413, {"error": f"a call has at most {MOST_BYTES:,} bytes"})
            if found is not None and not self.connections.keep(found, len(data)):
                return _CdsReply(503, {"error": "too much is being sent at once; send it again"})
        if found is not None:
            found.work()
        return bytes(data)

    def _guard(
        self, path: str, decide: Callable[[bytes, str], _CdsReply], body: bytes, client: str
    ) -> _CdsReply:
        """The answer, or what is wrong with the call in a sentence; of an unforeseen error its kind alone is logged."""
        try:
            return decide(body, client)
        except msgspec.ValidationError as error:
            reply = _CdsReply(400, {"error": f"this is no call as CDS Hooks has it: {_say_fault(error)}"})
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reply = _CdsReply(400, {"error": "the call is not JSON"})
        except CdsError as error:
            reply = _CdsReply(error.status, {"error": str(error)})
        except ConciliumError as error:
            reply = _CdsReply(422, {"error": str(error)})
        except Exception as error:
            log.error("failure at %s: %s", path, type(error).__name__)
            return _CdsReply(500, {"error": FAILED})
        log.info("%s: status %d", path, reply.status)
        return reply

    def _call(self, service: CdsService, body: bytes) -> _CdsReply:
        answered = service.answer(_read_call.decode(body), self._day())
        log.info("%s: %s", service.id, "a card" if answered["cards"] else "no card")
        return _CdsReply(200, answered)

    def _take_feedback(self, service: CdsService, body: bytes, client: str) -> _CdsReply:
        for one in _read_feedback.decode(body).feedback:
            self.trail.enter(client, "feedback", f"{service.id} {one.card.casefold()}", one.said)
        return _CdsReply(200, {})


def _say_fault(error: msgspec.ValidationError) -> str:
    """What is wrong and where, without a value: msgspec quotes one where it lists what is allowed."""
    said = str(error)
    place = said.rpartition(" - at `$")[2].rstrip("`") if " - at `$" in said else ""
    quotes = "Invalid enum value" in said or "regex" in said or "[...]" in place
    return f"see {place.lstrip('.')}" if quotes else said


def _describe_api(services: Mapping[str, CdsService]) -> dict[str, Any]:
    """The services as OpenAPI 3.1 has them."""
    (call, feedback), parts = msgspec.json.schema_components(
        [HookCall, Feedback], ref_template="#/components/schemas/{name}"
    )
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    cards = {
        "type": "object",
        "required": ["cards"],
        "properties": {
            "cards": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["uuid", "summary", "indicator", "source"],
                    "properties": {
                        "summary": {"type": "string", "minLength": 1, "maxLength": 139},
                        "indicator": {"enum": ["info", "warning", "critical"]},
                    },
                },
            }
        },
    }
    wrong = ("400", "401", "404", "405", "408", "412", "413", "415", "422", "503")

    def respond(form: dict[str, Any]) -> dict[str, Any]:
        found = {"200": {"description": "answered", "content": {"application/json": {"schema": form}}}}
        refused = {"description": "a sentence", "content": {"application/json": {"schema": error}}}
        return {**found, **dict.fromkeys(wrong, refused)}

    def take(form: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        body = {"required": True, "content": {"application/json": {"schema": form}}}
        return {"post": {"requestBody": body, "responses": respond(answer)}}

    paths: dict[str, Any] = {
        ROOT: {"get": {"responses": respond({"type": "object", "required": ["services"]})}}
    }
    for one in services:
        paths[f"{ROOT}/{one}"] = take(call, cards)
        paths[f"{ROOT}/{one}/feedback"] = take(feedback, {"type": "object"})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Concilium CDS services", "version": concilium.__version__},
        "paths": paths,
        "components": {"schemas": parts},
    }


def check_place(
    host: str, tls: tuple[Path, Path] | None, behind_proxy: bool, clients: ClientBook | None
) -> None:
    """ConsoleError where others could listen in, or call without being known."""
    if host in LOOPBACK and not behind_proxy:
        return
    if tls is None and not behind_proxy:
        raise ConsoleError(
            f"on {host} others could read along: give --certificate and --key for TLS, or --behind-proxy where a "
            "proxy of yours has TLS; without either the services listen on this machine only"
        )
    if clients is None:
        raise ConsoleError("others could call these services: say whose tokens count with --clients FILE")
    for path in tls or ():
        if not path.is_file():
            raise ConsoleError(f"{path}: is not a file; --certificate and --key are files in PEM")


def serve_cds(
    app: CdsApp,
    host: str,
    port: int,
    announce: Callable[[str], None],
    *,
    tls: tuple[Path, Path] | None = None,
) -> None:
    """Listen until interrupted; `announce` gets the address of the discovery."""
    settings = {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
    server = make_server(app, app.connections, "CDS services", **settings)
    with listen(host, port, "--port") as listener:
        scheme = "http" if tls is None else "https"
        announce(f"{scheme}://{write_address(host, listener.getsockname()[1])}{ROOT}")
        with contextlib.suppress(KeyboardInterrupt):
            run_server(server, listener)
