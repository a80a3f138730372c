"""Peers that hold connections idle or slow, or send a lot: they do not shut others out of the gateway."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium import policy
from concilium.console import connections as limits
from concilium.console.connections import Connection, Connections
from concilium.console.gateway import MOST_BYTES, Gateway, _make_server, _WebApp, listen
from concilium.console.mllp import END, START, MllpChannel, Patience, running

RULES = "graph N { node x + eliminate x.name, eliminate x.PID.5; }"
HEADER = rb"MSH|^~\&|LAB|NORTH|EHR|SOUTH|20200228||ORU^R01|MSG7|P|2.5.1"
GRAPH = b'{"nodes":[{"id":1,"name":"Roe"}]}'
POST = b"POST /transactions HTTP/1.1\r\nHost: x\r\n"
ATTACKER, OTHER = "127.0.0.2", "127.0.0.1"
LONG = 60.0


@pytest.fixture(autouse=True)
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 8)


@contextlib.contextmanager
def web_server(gateway: Gateway, seconds: float = LONG) -> Iterator[int]:
    server = _make_server(_WebApp(gateway, seconds))
    with listen("127.0.0.1", 0, "--port") as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join(timeout=LONG)


@contextlib.contextmanager
def mllp_server(gateway: Gateway, idle: float = LONG, message: float = LONG) -> Iterator[int]:
    """Its receiver is nobody: messages are answered with AR once they are decided about."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    channel = MllpChannel(gateway, "127.0.0.1", nobody, Patience(idle=idle, message=message))
    with listen("127.0.0.1", 0, "--hl7-port") as listener, running(channel, listener):
        yield listener.getsockname()[1]


def connect(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LONG, source_address=(source, 0))


def post(port: int, source: str, body: bytes = GRAPH) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG, source_address=(source, 0))
    with contextlib.closing(connection):
        connection.request("POST", "/transactions", body)
        reply = connection.getresponse()
        return reply.status, reply.read()


def send_v2(port: int, source: str, data: bytes = HEADER) -> bytes:
    with connect(port, source) as connection:
        connection.sendall(START + data + END)
        return read_to_end(connection, END)


def read_to_end(connection: socket.socket, end: bytes = b"") -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while not (end and data.endswith(end)) and (chunk := connection.recv(65536)):
            data += chunk
    return data


SLOW_REQUESTS = [
    b"",
    b"P",
    POST,
    POST + b"X: " + b"x" * 8_000,
    POST + b"Content-Length: 1000000\r\n\r\n",
    POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000,
    POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
]
SLOW_FRAMES = [b"", b"\r", START, START + HEADER, START + b"x" * 100_000, START + HEADER + b"\x1c"]


@pytest.mark.parametrize("held", SLOW_REQUESTS)
@pytest.mark.parametrize("source", [OTHER, ATTACKER])
def test_slow_requests_do_not_shut_others_out(held: bytes, source: str) -> None:
    with web_server(Gateway(policy.parse(RULES))) as port, contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connect(port, ATTACKER)).sendall(held)
        for _ in range(3):
            assert post(port, source) == (200, b'{"nodes": [{"id": 1}], "edges": []}')


@pytest.mark.parametrize("held", SLOW_FRAMES)
@pytest.mark.parametrize("source", [OTHER, ATTACKER])
def test_slow_frames_do_not_shut_others_out(held: bytes, source: str) -> None:
    with mllp_server(Gateway(policy.parse(RULES))) as port, contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connect(port, ATTACKER)).sendall(held)
        for _ in range(3):
            assert b"MSA|AR|MSG7|the receiver could not be reached" in send_v2(port, source)


def test_a_peer_keeps_its_connections_while_another_opens_many() -> None:
    with mllp_server(Gateway(policy.parse(RULES))) as port, contextlib.ExitStack() as stack:
        own = [stack.enter_context(connect(port, OTHER)) for _ in range(2)]
        for _ in range(30):
            stack.enter_context(connect(port, ATTACKER))
        for connection in own:
            connection.sendall(START + HEADER + END)
            assert b"MSA|AR|MSG7" in read_to_end(connection, END)


@pytest.mark.parametrize("held", SLOW_REQUESTS[:-2])
def test_a_request_that_takes_too_long_is_cut_off(held: bytes) -> None:
    with web_server(Gateway(policy.parse(RULES)), seconds=0.2) as port, connect(port, ATTACKER) as connection:
        connection.sendall(held)
        assert read_to_end(connection) == b""


@pytest.mark.parametrize("held", SLOW_FRAMES)
def test_a_frame_that_takes_too_long_is_cut_off(held: bytes) -> None:
    gateway = Gateway(policy.parse(RULES))
    with mllp_server(gateway, idle=0.2, message=0.2) as port, connect(port, ATTACKER) as connection:
        connection.sendall(held)
        reply = read_to_end(connection, END)
        assert (b"MSA|AE||" in reply) == (START in held)


def test_heavy_messages_of_one_peer_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(policy.parse(RULES))
    go_on, decide = threading.Event(), gateway._handle

    def slowly(kind: str, data: bytes) -> Any:
        if b"HEAVY" in data:
            assert go_on.wait(LONG)
        return decide(kind, data)

    monkeypatch.setattr(gateway, "_handle", slowly)
    heavy = b'{"nodes":[{"a":"HEAVY"}]}'
    request = POST + b"Content-Length: %d\r\n\r\n" % len(heavy) + heavy
    with (
        web_server(gateway) as web,
        mllp_server(gateway) as mllp,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(4):
            stack.enter_context(connect(web, ATTACKER)).sendall(request)
            stack.enter_context(connect(mllp, ATTACKER)).sendall(START + HEADER + b"HEAVY" + END)
        assert post(web, OTHER)[0] == 200
        assert b"MSA|AR|MSG7" in send_v2(mllp, OTHER)
        go_on.set()


def test_unfinished_messages_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES_KEPT", 1_000_000)
    unfinished = POST + b"Content-Length: 5000000\r\n\r\n" + b"x" * 300_000
    with web_server(Gateway(policy.parse(RULES))) as port, contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(port, ATTACKER)).sendall(unfinished)
        assert post(port, OTHER, b'{"nodes":[{"a":"' + b"x" * 400_000 + b'"}]}')[0] == 200
        assert post(port, OTHER, b'{"nodes":[{"a":"' + b"x" * 600_000 + b'"}]}')[0] == 503


@pytest.mark.parametrize("lines", [b"X: " + b"x" * 20_000, b"X: x\r\n" * 5_000])
def test_headers_have_a_bounded_size(lines: bytes) -> None:
    with web_server(Gateway(policy.parse(RULES))) as port, connect(port, OTHER) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(POST + lines)
        assert b" 200 " not in read_to_end(connection, b"\r\n")


@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_have_a_bounded_size(chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 20000000"
    chunk = b"x" * 100_000
    with web_server(Gateway(policy.parse(RULES))) as port, connect(port, OTHER) as connection:
        connection.sendall(POST + length + b"\r\n\r\n")
        for _ in range(MOST_BYTES // len(chunk) + 2):
            connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
        assert read_to_end(connection, b"}").startswith(b"HTTP/1.1 413")


PEERS = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.sampled_from(["admit", "keep", "work", "wait", "release"]), PEERS, st.integers(0, 60)),
    max_size=60,
)


@given(STEPS)
def test_whatever_peers_do_limits_hold_and_nothing_at_work_is_closed(
    steps: list[tuple[str, str, int]],
) -> None:
    places = Connections(most=6, most_kept=100)
    held: list[Connection] = []

    def close(peer: str) -> Connection | None:
        connection: list[Connection] = []

        def end() -> None:
            (one,) = connection
            assert one.waiting_since is not None
            held.remove(one)

        admitted = places.admit(peer, end)
        if admitted is not None:
            connection.append(admitted)
            held.append(admitted)
        return admitted

    for what, peer, number in steps:
        own = [one for one in held if one.peer == peer]
        if what == "admit":
            waiting = [one for one in held if one.waiting_since is not None]
            counts = Counter(one.peer for one in held)
            free = len(held) < 6 or bool(waiting)
            if counts[peer] >= 3:
                free = any(one.peer == peer for one in waiting)
            assert (close(peer) is not None) == free
        elif own:
            one = own[number % len(own)]
            if what == "keep":
                if not places.keep(one, number):
                    one.kept = 0
                    places.release(one)
                    held.remove(one)
            elif what == "release":
                places.release(one)
                held.remove(one)
            else:
                getattr(one, what)()
        assert len(held) <= 6
        assert all(count <= 3 for count in Counter(one.peer for one in held).values())
        assert sum(one.kept for one in held) <= 100
