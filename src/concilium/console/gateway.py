"""The gateway: messages on their way out, filtered by constraint graphs (docs/methods.md, section 3.5).

A message (a graph, a FHIR bundle, HL7 v2) is posted and comes back filtered in the form it had, or is refused with the
rule's name; HL7 v2 over MLLP is in `mllp.py`. Who is protected:
the people in a message, from its recipient, as far as rules name what identifies them; a filter, not a guarantee.
Nothing of a message is kept, and the log says what was decided and never about what: no value, no attribute, no
address, no query string. Assumption: whoever can reach the port may send messages, and what is let out is read by who
sent it, so it listens on this machine only unless told otherwise, and has neither accounts nor encryption of its own.
What one message may take is bounded by its bytes (`MOST_BYTES`, `MOST_PARTS`), what one peer may by `connections.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from concilium.console.connections import Decisions, TimedConnections
from concilium.errors import ConciliumError, MissingExtra, PolicyError
from concilium.policy.actions import ConstraintGraphs
from concilium.policy.fhir import decide_bundle, is_bundle
from concilium.policy.hl7v2 import decide_v2, is_v2

log = logging.getLogger("concilium.gateway")

MOST_BYTES = 8 * 1024 * 1024
TOO_LARGE = f"a message may have at most {MOST_BYTES:,} bytes"
MOST_PARTS = 500_000
# Up to the next sign that begins a value; text is passed over, and no byte is looked at twice.
_NEXT_PART = re.compile(rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)*+(?:([\[{,])|\Z)', re.DOTALL)
MOST_HEADER_BYTES = 16 * 1024
REQUEST_SECONDS = 30.0
"""How long a connection may take to send a request, or to read its answer, before it is closed."""
MEDIA_TYPES = {"graph": "application/json", "bundle": "application/fhir+json", "hl7": "application/hl7-v2"}
UNREADABLE = "the policy has changed and cannot be read, so nothing is let out: see the log"
FAILED = "the gateway could not decide about this message, so nothing was let out"


@dataclass(frozen=True)
class _GatewayReply:
    """What the sender gets: an HTTP status and a JSON document, or the bytes of a message in another form."""

    status: int
    content: Any
    media_type: str = "application/json"


class PolicyFile:
    """The constraint graphs of a policy file, read again when it, its rules or its secret change.

    *Protects:* the people in messages, from rules that were just forbidden. What cannot be read lets nothing out: the
    rules of before may be those that somebody has taken back. A change counts once it has another size or time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen, self._graphs = self._look(), _read_graphs(path)
        self._reading = threading.Lock()

    @property
    def graphs(self) -> ConstraintGraphs:
        """Those of the file as it is now; PolicyError where it cannot be read."""
        with self._reading:
            seen = self._look()
            if seen != self._seen:
                self._graphs = _read_graphs(self.path)
                self._seen = seen
                log.info("the policy has changed and is read again")
            return self._graphs

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """The files that the policy is made of, each with its size and time; a file that is not there has none."""
        from concilium.policy.policy import list_files

        named = [self.path, *(self.path.parent / name for name in list_files(self.path))]
        states = []
        for one in named:
            try:
                found = one.stat()
                states.append((str(one), found.st_size, found.st_mtime_ns))
            except OSError:
                states.append((str(one), -1, -1))
        return tuple(states)


def _read_graphs(path: Path) -> ConstraintGraphs:
    """The graphs of a policy file that a gateway can filter by; PolicyError where there are none."""
    from concilium.policy.policy import read_rules  # which loads more than a gateway of given graphs needs

    graphs = read_rules(path).graphs()
    if graphs is None:
        raise PolicyError(
            f"{path}: there is no constraint graph in it, so a gateway would let everything through"
        )
    if graphs.needs_secret and not graphs.has_secret:
        raise PolicyError(
            f"{path}: hash and shift_dates need a secret here; name a file with it as `secret` under [constraints]"
        )
    return graphs


class Gateway:
    """Decides about messages, one line of log for each; by graphs that stay, or those of a file as it is."""

    def __init__(self, rules: ConstraintGraphs | PolicyFile, character_set: str = "ascii") -> None:
        self._rules = rules
        self.graphs.require_secret()
        self.character_set = character_set

    @property
    def graphs(self) -> ConstraintGraphs:
        return self._rules.graphs if isinstance(self._rules, PolicyFile) else self._rules

    def handle(self, data: bytes) -> _GatewayReply:
        """The filtered message (200), the rule that refuses it (403), or what is wrong with it (400)."""
        return self.handle_v2(data) if is_v2(data) else self._handle("message", data)

    def handle_v2(self, data: bytes) -> _GatewayReply:
        """The same for what is HL7 v2 or nothing."""
        return self._handle("hl7", data)

    def _handle(self, kind: str, data: bytes) -> _GatewayReply:
        try:
            graphs = self.graphs
        except ConciliumError as error:
            log.error("the policy has changed and cannot be read, so nothing is let out: %s", error)
            return _GatewayReply(503, {"error": UNREADABLE})
        try:
            if kind == "hl7":
                decision = decide_v2(graphs, data, self.character_set)
            else:
                message = read_message(data)
                kind = "bundle" if is_bundle(message) else "graph"
                bundle = kind == "bundle"
                decision = decide_bundle(graphs, message) if bundle else graphs.decide(message)
        except (PolicyError, MissingExtra) as error:
            log.info("error %s", kind)
            return _GatewayReply(400, {"error": str(error)})
        except Exception as error:
            # By its name alone: the text of an unforeseen error may hold a value.
            log.error("failure %s: %s", kind, type(error).__name__)
            return _GatewayReply(500, {"error": FAILED})
        rules = ", ".join(decision.rules) or "none"
        if decision.graph is None:
            log.info("refused %s by %s", kind, rules)
            return _GatewayReply(403, {"refused_by": decision.refused_by})
        log.info("passed %s, rules that applied: %s", kind, rules)
        return _GatewayReply(200, decision.graph, MEDIA_TYPES[kind])


def read_message(data: bytes) -> Any:
    """JSON without what other readers of JSON would not take; PolicyError that does not repeat it."""
    if len(data) > MOST_BYTES:
        raise PolicyError(TOO_LARGE)
    if _has_more_parts(data, MOST_PARTS):
        raise PolicyError(f"a message may have at most {MOST_PARTS:,} values; send it in parts")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise PolicyError("the message is nested too deeply") from None
    except ValueError:
        raise PolicyError(
            'the message is not JSON; send a graph {"nodes": [...]}, a FHIR bundle, or HL7 v2, which begins with MSH'
        ) from None


def _has_more_parts(data: bytes, most: int) -> bool:
    """Whether a JSON document has more than so many values, before anything is made of it."""
    if sum(map(data.count, (b"{", b"[", b","))) <= most:
        return False
    return (
        next(itertools.islice(filter(itemgetter(1), _NEXT_PART.finditer(data)), most, None), None) is not None
    )


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("too large")
    return number


Message = MutableMapping[str, Any]


class _WebApp:
    """The gateway as a web application (ASGI): POST /transactions, and GET /health."""

    def __init__(self, gateway: Gateway, seconds: float = REQUEST_SECONDS) -> None:
        self.gateway = gateway
        self.connections, self._decisions = TimedConnections(seconds), Decisions()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        reply = await self._answer(scope, receive)
        if reply is None:
            return
        body = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
        headers = [
            (b"content-type", reply.media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        # What still comes of the request is read away meanwhile: an answer to whom is still sending may get lost.
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.connections.wait(scope["client"])

    async def _answer(
        self, scope: Message, receive: Callable[[], Awaitable[Message]]
    ) -> _GatewayReply | None:
        """What is replied; None where the other side has gone."""
        match scope["path"], scope["method"]:
            case "/health", "GET":
                try:
                    return _GatewayReply(
                        200, {"graphs": [graph.name for graph in self.gateway.graphs.graphs]}
                    )
                except ConciliumError:
                    return _GatewayReply(503, {"error": UNREADABLE})
            case "/transactions", "POST":
                pass
            case "/health" | "/transactions", _:
                return _GatewayReply(405, {"error": "messages are posted to /transactions"})
            case _:
                return _GatewayReply(404, {"error": "there is nothing here; post messages to /transactions"})
        connection = self.connections.find(scope["client"])
        if connection is None:
            return None
        data = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            data += message["body"]
            more = message["more_body"]
            if len(data) > MOST_BYTES:
                log.info("error message")
                return _GatewayReply(413, {"error": TOO_LARGE})
            if not self.connections.keep(connection, len(data)):
                log.info("error message")
                return _GatewayReply(503, {"error": "too much is being sent at once; send it again"})
        connection.work()
        return await self._decisions.run(connection.peer, lambda: self._decide(bytes(data)))

    def _decide(self, data: bytes) -> _GatewayReply:
        reply = self.gateway.handle(data)
        if isinstance(reply.content, bytes):
            return reply
        return _GatewayReply(reply.status, json.dumps(reply.content).encode(), reply.media_type)


def _make_server(app: _WebApp) -> Any:
    return make_server(app, app.connections, "the gateway")


def make_server(app: Any, connections: TimedConnections, purpose: str, **settings: Any) -> Any:
    """The web server, with limits: uvicorn waits for ever for what a connection does not send."""
    try:
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError:
        raise MissingExtra("web", purpose) from None

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.place = connections.enter(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.leave(self.place)
            super().connection_lost(exc)

    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        # Whoever sends it chooses what a forwarded header says; peers are told apart by where they connect from.
        proxy_headers=False,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        # The access log would hold addresses and query strings.
        log_config=None,
        access_log=False,
        server_header=False,
        **settings,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int, option: str) -> socket.socket:
    """A port to listen on, IPv4 or IPv6 as the address is; a ConciliumError that names the option where it cannot be
    had. A name with both is listened to by IPv4, and `::` is every address of this machine, of either kind."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        either = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, dualstack_ipv6=either)
        # Connections take this over. An answer leaves in two parts, and the second would wait for the first to be
        # acknowledged, some 40 ms: asyncio sets it on sockets of its own making only.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror:
        raise ConciliumError(f"{host} is no address of this machine; choose another --host") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConciliumError(
            f"cannot listen on {host} port {port} ({reason}); choose another {option}"
        ) from None


# Seconds after which a thread that computes lets the one that reads and sends go on; Python's own 5 ms are as much as
# an answer takes.
TURN = 0.0005


def run_server(server: Any, listener: socket.socket) -> None:
    """Serve what calls at this port until interrupted."""
    sys.setswitchinterval(TURN)
    server.run(sockets=[listener])


def write_address(host: str, port: int) -> str:
    """Host and port as one writes them: an IPv6 address, which has colons of its own, in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(gateway: Gateway, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Listen until interrupted; `announce` gets the address once messages can be sent to it (port 0: a free one)."""
    server = _make_server(_WebApp(gateway))
    with listen(host, port, "--port") as listener:
        announce(f"http://{write_address(host, listener.getsockname()[1])}")
        run_server(server, listener)
