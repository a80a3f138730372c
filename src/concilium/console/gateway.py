"""The gateway: messages on their way out, filtered by constraint graphs (docs/methods.md, section 3.5).

A message (a graph, a FHIR bundle, HL7 v2) is posted and comes back filtered in the form it had, or is refused with the
rule's name; HL7 v2 over MLLP is in `mllp.py`. Who is protected:
the people in a message, from its recipient, as far as rules name what identifies them; a filter, not a guarantee.
Nothing of a message is kept, and the log says what was decided and never about what: no value, no attribute, no
address, no query string. Assumption: whoever can reach the port may send messages, and what is let out is read by who
sent it, so it listens on this machine only unless told otherwise, and has neither accounts nor encryption of its own.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from concilium.errors import ConciliumError, MissingExtra, PolicyError
from concilium.policy.actions import ConstraintGraphs
from concilium.policy.fhir import decide_bundle, is_bundle
from concilium.policy.hl7v2 import decide_v2, is_v2

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

log = logging.getLogger("concilium.gateway")

MOST_BYTES = 8 * 1024 * 1024
TOO_LARGE = f"a message may have at most {MOST_BYTES:,} bytes"
MOST_PARTS = 500_000
# Up to the next sign that begins a value; text is passed over, and no byte is looked at twice.
_NEXT_PART = re.compile(rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)*+(?:([\[{,])|\Z)', re.DOTALL)
MEDIA_TYPES = {"graph": "application/json", "bundle": "application/fhir+json", "hl7": "application/hl7-v2"}
FAILED = "the gateway could not decide about this message, so nothing was let out"


@dataclass(frozen=True)
class GatewayReply:
    """What the sender gets: an HTTP status and a JSON document, or the bytes of a message in another form."""

    status: int
    content: Any
    media_type: str = "application/json"


class Gateway:
    """Decides about messages, one line of log for each."""

    def __init__(self, graphs: ConstraintGraphs, character_set: str = "ascii") -> None:
        graphs.require_secret()
        self.graphs = graphs
        self.character_set = character_set

    def handle(self, data: bytes) -> GatewayReply:
        """The filtered message (200), the rule that refuses it (403), or what is wrong with it (400)."""
        return self.handle_v2(data) if is_v2(data) else self._handle("message", data)

    def handle_v2(self, data: bytes) -> GatewayReply:
        """The same for what is HL7 v2 or nothing."""
        return self._handle("hl7", data)

    def _handle(self, kind: str, data: bytes) -> GatewayReply:
        try:
            if kind == "hl7":
                decision = decide_v2(self.graphs, data, self.character_set)
            else:
                message = read_message(data)
                kind = "bundle" if is_bundle(message) else "graph"
                bundle = kind == "bundle"
                decision = decide_bundle(self.graphs, message) if bundle else self.graphs.decide(message)
        except (PolicyError, MissingExtra) as error:
            log.info("error %s", kind)
            return GatewayReply(400, {"error": str(error)})
        except Exception as error:
            # By its name alone: the text of an unforeseen error may hold a value.
            log.error("failure %s: %s", kind, type(error).__name__)
            return GatewayReply(500, {"error": FAILED})
        rules = ", ".join(decision.rules) or "none"
        if decision.graph is None:
            log.info("refused %s by %s", kind, rules)
            return GatewayReply(403, {"refused_by": decision.refused_by})
        log.info("passed %s, rules that applied: %s", kind, rules)
        return GatewayReply(200, decision.graph, MEDIA_TYPES[kind])


def read_message(data: bytes) -> Any:
    """JSON without what other readers of JSON would not take; PolicyError that does not repeat it."""
    if len(data) > MOST_BYTES:
        raise PolicyError(TOO_LARGE)
    if has_more_parts(data, MOST_PARTS):
        raise PolicyError(f"a message may have at most {MOST_PARTS:,} values; send it in parts")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise PolicyError("the message is nested too deeply") from None
    except ValueError:
        raise PolicyError(
            'the message is not JSON; send a graph {"nodes": [...]}, a FHIR bundle, or HL7 v2, which begins with MSH'
        ) from None


def has_more_parts(data: bytes, most: int) -> bool:
    """Whether a JSON document has more than so many values, before anything is made of it."""
    if sum(map(data.count, (b"{", b"[", b","))) <= most:
        return False
    return next(itertools.islice(filter(itemgetter(1), _NEXT_PART.finditer(data)), most, None), None) is not None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("too large")
    return number


def make_app(gateway: Gateway) -> FastAPI:
    """The gateway as a web application: POST /transactions, and GET /health."""
    try:
        from fastapi import FastAPI, Response
        from fastapi.concurrency import run_in_threadpool
    except ImportError:
        raise MissingExtra("web", "the gateway") from None

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def answer(reply: GatewayReply) -> Response:
        content = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content)
        return Response(content, reply.status, media_type=reply.media_type)

    async def post(request: Request) -> Response:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MOST_BYTES:
                log.info("error message")
                return answer(GatewayReply(413, {"error": TOO_LARGE}))
        return answer(await run_in_threadpool(gateway.handle, bytes(data)))

    async def health(request: Request) -> Response:
        return answer(GatewayReply(200, {"graphs": [graph.name for graph in gateway.graphs.graphs]}))

    app.add_route("/transactions", post, methods=["POST"])
    app.add_route("/health", health, methods=["GET"])
    return app


def listen(host: str, port: int, option: str) -> socket.socket:
    """A port to listen on, IPv4 or IPv6 as the address is; a ConciliumError that names the option where it cannot be
    had. A name with both is listened to by IPv4, and `::` is every address of this machine, of either kind."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        either = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, dualstack_ipv6=either)
    except socket.gaierror:
        raise ConciliumError(f"{host} is no address of this machine; choose another --host") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConciliumError(
            f"cannot listen on {host} port {port} ({reason}); choose another {option}"
        ) from None


def write_address(host: str, port: int) -> str:
    """Host and port as one writes them: an IPv6 address, which has colons of its own, in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(gateway: Gateway, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Listen until interrupted; `announce` gets the address once messages can be sent to it (port 0: a free one)."""
    app = make_app(gateway)
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("web", "the gateway") from None
    with listen(host, port, "--port") as listener:
        announce(f"http://{write_address(host, listener.getsockname()[1])}")
        # The access log would hold addresses and query strings.
        settings = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, limit_concurrency=100
        )
        uvicorn.Server(settings).run(sockets=[listener])
