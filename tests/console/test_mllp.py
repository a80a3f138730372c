"""HL7 v2 over MLLP as it runs: senders, a receiver, real sockets on this machine, and nothing unread going through."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hl7
import pytest
from hl7.client import MLLPClient
from typer.testing import CliRunner

from concilium import policy
from concilium.cli.main import app
from concilium.console import mllp
from concilium.console.gateway import MOST_BYTES, Gateway, listen, write_address
from concilium.console.mllp import (
    END,
    START,
    MllpChannel,
    Patience,
    _make_acknowledgement,
    _read_acknowledgement,
    _V2Header,
    running,
)
from concilium.errors import ConciliumError

RULES = """
graph identity { node u exists u.PID.19, exists u.PID.5; }
graph names { node x + eliminate x.PID.5, substitute x.PID.3.1 =~ /hash()/; }
graph kin { node x + where x.segment = 'NK1' eliminate x; }
"""
SECRET = b"a secret of this gateway"
# Long, so that a busy machine changes nothing; tests of what takes too long have less.
PATIENCE = Patience(idle=30, message=20, connection=20, answer=20)


def message(
    control: str = "MSG7", patient: str = "PID|1||MRN7||ROE^ANN", extra: str = "", version: str = "2.5.1"
) -> bytes:
    header = rf"MSH|^~\&|LAB|NORTH|EHR|SOUTH|20200228||ORU^R01|{control}|P|{version}{extra}"
    return f"{header}\r{patient}\rNK1|1|ROE^BOB\rOBX|1|NM|GLU||6.5\r".encode("latin-1")


def frame(data: bytes) -> bytes:
    return START + data + END


def read_one(connection: socket.socket) -> bytes:
    """The next frame, and not a byte more; nothing where the other side has ended."""
    data = b""
    while not data.endswith(END):
        chunk = connection.recv(1)
        if not chunk:
            return b""
        data += chunk
    assert data.startswith(START)
    return data[1:-2]


class Hospital:
    """A receiver that keeps what it gets and answers by `answer`: bytes, or None to say nothing."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.received: list[bytes] = []
        self.answer: Callable[[bytes], bytes | None] = lambda data: _make_acknowledgement(
            _V2Header.read(data), "A"
        )
        self.listener = listen(host, 0, "")
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := read_one(connection):
                self.received.append(data)
                if (answer := self.answer(data)) is not None:
                    connection.sendall(frame(answer))


@pytest.fixture
def hospital() -> Iterator[Hospital]:
    receiver = Hospital()
    yield receiver
    receiver.listener.close()


@contextlib.contextmanager
def channel(to: int, rules: str = RULES, patience: Patience = PATIENCE) -> Iterator[int]:
    gateway = Gateway(policy.parse(rules, secret=SECRET))
    with (
        listen("127.0.0.1", 0, "--hl7-port") as listener,
        running(MllpChannel(gateway, "127.0.0.1", to, patience), listener),
    ):
        yield listener.getsockname()[1]


@pytest.fixture
def port(hospital: Hospital) -> Iterator[int]:
    with channel(hospital.port) as port:
        yield port


@contextlib.contextmanager
def sender(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        yield connection


def send(port: int, *parts: bytes) -> bytes:
    with sender(port) as connection:
        for part in parts:
            connection.sendall(part)
        return read_one(connection)


def answer_of(data: bytes) -> list[str]:
    """MSA-1, MSA-2 and MSA-3, if it has one."""
    msh, msa, last = data.decode("latin-1").split("\r")
    assert msh.startswith("MSH|^~\\&|")
    assert last == ""
    assert msa.startswith("MSA|")
    return msa.split("|")[1:]


def gateway_lines(caplog: Any) -> list[str]:
    """Lines of the gateway alone: garbage of earlier tests may be logged meanwhile."""
    return [record.getMessage() for record in caplog.records if record.name == "concilium.gateway"]


FILTERED = (
    rb"MSH|^~\&|LAB|NORTH|EHR|SOUTH|20200228||ORU^R01|MSG7|P|2.5.1" + b"\rPID|1||HASH||\rOBX|1|NM|GLU||6.5\r"
)


def without_hash(data: bytes) -> bytes:
    return re.sub(rb"\b[0-9a-f]{32}\b", b"HASH", data)


def test_a_message_goes_on_filtered_and_is_acknowledged(port: int, hospital: Hospital) -> None:
    reply = send(port, frame(message()))
    assert [without_hash(data) for data in hospital.received] == [FILTERED]
    assert answer_of(reply) == ["AA", "MSG7"]
    header = reply.decode().split("\r")[0].split("|")
    assert header[2:6] == ["EHR", "SOUTH", "LAB", "NORTH"]
    assert header[8] == "ACK^R01^ACK"
    assert header[10:] == ["P", "2.5.1"]


def test_the_client_of_another_library_understands_us(port: int, hospital: Hospital) -> None:
    with MLLPClient("127.0.0.1", port) as client:
        for number in range(3):
            answer = hl7.parse(client.send_message(message(f"M{number}").decode()))
            assert [str(answer.segment("MSA")(field)) for field in (1, 2)] == ["AA", f"M{number}"]
            assert str(answer.segment("MSH")(9)) == "ACK^R01^ACK"
    received = hl7.parse(hospital.received[0].decode())
    assert [str(segment[0]) for segment in received] == ["MSH", "PID", "OBX"]
    assert str(received.segment("PID")(5)) == ""
    assert str(received.segment("OBX")(5)) == "6.5"


def test_a_rule_refuses_and_nothing_goes_on(port: int, hospital: Hospital, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, logger="concilium.gateway"):
        reply = send(port, frame(message(patient="PID|1||MRN7||ROE^ANN" + "|" * 14 + "123-45-6789")))
    assert answer_of(reply) == ["AE", "MSG7", "refused by graph identity"]
    assert hospital.received == []
    assert gateway_lines(caplog) == ["refused hl7 by identity"]


def test_several_messages_on_one_connection_in_order(port: int, hospital: Hospital) -> None:
    with sender(port) as connection:
        connection.sendall(b"".join(frame(message(f"M{number}")) for number in range(20)))
        replies = [answer_of(read_one(connection)) for _ in range(20)]
        connection.sendall(b"\r\n" + frame(message("LAST")))
        assert answer_of(read_one(connection)) == ["AA", "LAST"]
    assert replies == [["AA", f"M{number}"] for number in range(20)]
    assert [_V2Header.read(data)[10] for data in hospital.received] == [*(f"M{n}" for n in range(20)), "LAST"]


def test_many_senders_at_once_each_get_their_own(port: int, hospital: Hospital) -> None:
    found: dict[int, list[str]] = {}

    def one(number: int) -> None:
        found[number] = answer_of(send(port, frame(message(f"S{number}"))))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: ["AA", f"S{number}"] for number in range(12)}
    assert len(hospital.received) == 12


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", ["AE", "", "an HL7 v2 message begins with its header, MSH"]),
        (b"PID|1||MRN7||ROE", ["AE", "", "an HL7 v2 message begins with its header, MSH"]),
        (b'{"nodes": [{"name": "ROE"}]}', ["AE", "", "an HL7 v2 message begins with its header, MSH"]),
        (b"MSH|^^^^|ROE", ["AE", "", r"MSH-1 and MSH-2 are not five different signs, such as \F\\S\\R\\E\\T\ "[:-1]]),
        (message(patient="PID|1||MRN7||R\xd6E"),
         ["AE", "MSG7", "the message is not ascii throughout, though MSH-18 says so or names no other character set"]),
        (message(patient="R|ROE"),
         ["AE", "MSG7", "a segment has no name of three letters, so that no rule could see what it is"]),
        (message(patient=message().decode()),
         ["AE", "MSG7", "this is more than one message, or a batch; send each message on its own"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_goes_no_further(
    port: int, hospital: Hospital, data: bytes, answer: list[str], caplog: Any
) -> None:
    with caplog.at_level(logging.INFO, logger="concilium.gateway"), sender(port) as connection:
        connection.sendall(frame(data))
        reply = read_one(connection)
        connection.sendall(frame(message("NEXT")))
        assert answer_of(read_one(connection)) == ["AA", "NEXT"]
    assert answer_of(reply) == answer
    assert [_V2Header.read(one)[10] for one in hospital.received] == ["NEXT"]
    assert gateway_lines(caplog)[0] == "error hl7"
    assert "ROE" not in caplog.text + reply.decode()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([message() + END], "begins with <VT>"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "begins with <VT>"),
        ([START + message() + START + message() + END], "neither <VT> nor <FS>"),
        ([START + message() + b"\x1c" + frame(message())], "neither <VT> nor <FS>"),
        ([START + message() + b"\x1c\n\x1c\r"], "neither <VT> nor <FS>"),
        ([START + b"MSH|" + b"x" * (MOST_BYTES + 70_000)], "at most 8,388,608 bytes"),
    ],
)
def test_malformed_frames_end_the_connection(
    port: int, hospital: Hospital, parts: list[bytes], words: str
) -> None:
    with sender(port) as connection:
        for part in parts:
            connection.sendall(part)
        code, control, said = answer_of(read_one(connection))
        assert (code, control) == ("AE", "")
        assert words in said
        with contextlib.suppress(OSError):
            connection.sendall(frame(message("NEXT")))
        with contextlib.suppress(OSError):
            assert connection.recv(1) == b""
    assert hospital.received == []
    assert answer_of(send(port, frame(message("ANEW")))) == ["AA", "ANEW"]


def test_a_slow_sender_and_a_silent_receiver_are_not_waited_for(hospital: Hospital) -> None:
    with channel(hospital.port, patience=PATIENCE._replace(message=0.3, answer=0.3)) as port:
        with sender(port) as connection:
            connection.sendall(START + message()[:40])
            assert answer_of(read_one(connection)) == [
                "AE",
                "",
                "a message must be there within 0.3 s of its beginning",
            ]
            assert connection.recv(1) == b""
        assert hospital.received == []
        hospital.answer = lambda data: None
        assert answer_of(send(port, frame(message())))[:2] == ["AR", "MSG7"]


def test_a_message_that_is_cut_off_goes_no_further(port: int, hospital: Hospital) -> None:
    with sender(port) as connection:
        connection.sendall(START + message())
        connection.shutdown(socket.SHUT_WR)
        assert answer_of(read_one(connection))[2] == "the connection ended within a message"
    assert hospital.received == []


def test_a_message_may_come_in_pieces(port: int, hospital: Hospital) -> None:
    with sender(port) as connection:
        for piece in re.findall(rb".{1,17}", frame(message()), flags=re.DOTALL):
            connection.sendall(piece)
            time.sleep(0.005)
        assert answer_of(read_one(connection)) == ["AA", "MSG7"]
    assert [without_hash(data) for data in hospital.received] == [FILTERED]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda data: _make_acknowledgement(_V2Header.read(data), "E", "no"),
         ["AE", "MSG7", "the receiver did not take it"]),
        (lambda data: _make_acknowledgement(_V2Header.read(data), "R"),
         ["AR", "MSG7", "the receiver did not take it"]),
        (lambda data: _make_acknowledgement(_V2Header.read(message("OTHER")), "A"), None),
        (lambda data: b"MSH|^~\\&|\rMSA|XX|MSG7\r", None),
        (lambda data: b"thank you", None),
    ],
)  # fmt: skip
def test_accepted_is_said_only_after_the_receiver_has_said_it(
    port: int, hospital: Hospital, answer: Any, told: list[str] | None, caplog: Any
) -> None:
    hospital.answer = answer
    with caplog.at_level(logging.INFO, logger="concilium.gateway"):
        reply = answer_of(send(port, frame(message())))
    unreached = ["AR", "MSG7", "the receiver could not be reached or did not answer; send it again"]
    assert reply == (told or unreached)
    assert gateway_lines(caplog)[-1].startswith("undelivered hl7")
    hospital.answer = lambda data: _make_acknowledgement(_V2Header.read(data), "A")
    assert answer_of(send(port, frame(message()))) == ["AA", "MSG7"]


def test_without_a_receiver_the_sender_is_told_to_send_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with channel(nobody) as port:
        assert answer_of(send(port, frame(message())))[:2] == ["AR", "MSG7"]


def test_a_receiver_that_comes_back_is_connected_to_again(port: int, hospital: Hospital) -> None:
    def once(data: bytes) -> bytes:
        raise OSError  # ends this connection after its first message

    with sender(port) as connection:
        hospital.answer = once
        connection.sendall(frame(message("ONE")))
        assert answer_of(read_one(connection))[:2] == ["AR", "ONE"]
        hospital.answer = lambda data: _make_acknowledgement(_V2Header.read(data), "A")
        connection.sendall(frame(message("TWO")))
        assert answer_of(read_one(connection)) == ["AA", "TWO"]


def answer_as_asked(data: bytes) -> bytes | None:
    """A receiver that takes everything and keeps to MSH-15 and MSH-16."""
    fields = data.split(b"\r")[0].decode().split("|") + [""] * 16
    if fields[14] in ("AL", "SU"):
        code = "CA"
    elif fields[15] in ("AL", "SU") or fields[14] == fields[15] == "":
        code = "AA"
    else:
        return None
    return f"MSH|^~\\&|\rMSA|{code}|{fields[9]}\r".encode()


NOBODY_ASKED = ["", "NE"]


@pytest.mark.parametrize("application", ["", "AL", "NE", "ER", "SU"])
@pytest.mark.parametrize("accept", ["", "AL", "NE", "ER", "SU"])
def test_enhanced_mode_is_answered_as_it_asks(
    port: int, hospital: Hospital, accept: str, application: str
) -> None:
    hospital.answer = answer_as_asked
    asked = accept if accept not in NOBODY_ASKED else application or ("NE" if accept else "AL")
    letter = "A" if accept in NOBODY_ASKED else "C"
    told = {
        "GOOD": {"AL": "A", "SU": "A"},
        "UNREADABLE": {"AL": "E", "ER": "E"},
        "REFUSED": {"AL": "E", "ER": "E"},
    }
    patients = {
        "GOOD": "PID|1||MRN7||ROE^ANN",
        "UNREADABLE": "??",
        "REFUSED": "PID|1||MRN7||ROE^ANN" + "|" * 14 + "123-45-6789",
    }
    with sender(port) as connection:
        for control, patient in patients.items():
            connection.sendall(frame(message(control, extra=f"|||{accept}|{application}", patient=patient)))
        connection.sendall(frame(message("PLAIN")))
        replies = []
        while not replies or replies[-1] != ["AA", "PLAIN"]:
            replies.append(answer_of(read_one(connection))[:2])
    assert replies[:-1] == [
        [letter + code[asked], control] for control, code in told.items() if asked in code
    ]
    # Success and errors are told apart by an answer, so that no silence of the receiver has to be waited out.
    goes_on = {
        14: "AL" if accept in ("ER", "SU") else accept,
        15: "AL" if accept in NOBODY_ASKED and application in ("ER", "SU") else application,
    }
    good, plain = hospital.received
    assert {place: good.split(b"\r")[0].decode().split("|")[place] for place in goes_on} == goes_on
    assert _V2Header.read(plain)[10] == "PLAIN"


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ("|||AL|NE", "C"),
        ("|||ER|AL", "C"),
        ("|||SU|ER", None),
        ("|||NE|ER", "A"),
        ("||||AL", "A"),
        ('|||""|""', "A"),
        ("|||NE|SU", None),
    ],
)
@pytest.mark.parametrize(
    ("receiver", "code"),
    [
        (lambda data: _make_acknowledgement(_V2Header.read(data), "E"), "E"),
        (lambda data: _make_acknowledgement(_V2Header.read(data), "R"), "R"),
        (lambda data: b"thank you", "R"),
    ],
)
def test_where_silence_is_success_what_the_receiver_did_not_take_is_told(
    port: int, hospital: Hospital, conditions: str, told: str | None, receiver: Any, code: str
) -> None:
    with sender(port) as connection:
        hospital.answer = lambda data: (receiver if b"|MSG7|" in data else answer_as_asked)(data)
        connection.sendall(frame(message(extra=conditions)) + frame(message("PLAIN")))
        if told is not None:
            assert answer_of(read_one(connection))[:2] == [told + code, "MSG7"]
        assert answer_of(read_one(connection)) == ["AA", "PLAIN"]


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [
        ("|||XX|NE", ["CE", "MSG7", "MSH-15 is none of AL, NE, ER and SU, so that nobody knows when to answer"]),
        ("|||NE|no", ["AE", "MSG7", "MSH-16 is none of AL, NE, ER and SU, so that nobody knows when to answer"]),
    ],
)  # fmt: skip
def test_a_condition_that_hl7_does_not_have_is_told(
    port: int, hospital: Hospital, conditions: str, answer: list[str]
) -> None:
    assert answer_of(send(port, frame(message(extra=conditions)))) == answer
    assert hospital.received == []


def test_the_applications_answer_after_the_neighbours_is_not_taken_for_the_next_messages(
    port: int, hospital: Hospital
) -> None:
    def answer_twice(data: bytes) -> bytes:
        control = _V2Header.read(data)[10]
        return END.join(
            [f"MSH|^~\\&|\rMSA|CA|{control}\r".encode(), START + f"MSH|^~\\&|\rMSA|AA|{control}\r".encode()]
        )

    hospital.answer = answer_twice
    with sender(port) as connection:
        for control in ("ONE", "TWO"):
            connection.sendall(frame(message(control, extra="|||AL|AL")))
            assert answer_of(read_one(connection)) == ["CA", control]


def test_a_control_id_that_a_rule_changes_is_the_receivers_own(hospital: Hospital) -> None:
    with channel(hospital.port, "graph I { node x + substitute x.MSH.10 =~ /MSG/ID/; }") as port:
        assert answer_of(send(port, frame(message()))) == ["AA", "MSG7"]
    assert _V2Header.read(hospital.received[0])[10] == "ID7"


def test_character_sets_come_through(port: int, hospital: Hospital) -> None:
    for extra, encoding in (("||||||8859/1", "latin-1"), ("||||||UNICODE UTF-8", "utf-8")):
        data = message("MÜ", patient="PID|1||7||ROE|MÜLLER", extra=extra).decode("latin-1").encode(encoding)
        reply = send(port, frame(data))
        assert "MSA|AA|MÜ\r".encode(encoding) in reply
        assert extra.encode() in reply
        assert "||MÜLLER".encode(encoding) in hospital.received[-1]


def test_a_fault_of_ours_lets_nothing_out_and_logs_only_its_name(
    port: int, hospital: Hospital, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("ROE")

    monkeypatch.setattr("concilium.console.gateway.decide_v2", fail)
    with caplog.at_level(logging.INFO, logger="concilium.gateway"):
        code, control, said = answer_of(send(port, frame(message())))
    assert (code, control) == ("AR", "MSG7")
    assert "nothing was let out" in said
    assert hospital.received == []
    assert gateway_lines(caplog) == ["failure hl7: ZeroDivisionError"]


def test_a_connection_that_is_closing_when_the_channel_stops_is_not_left_pending(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    closing = threading.Event()

    async def close_slowly(writer: asyncio.StreamWriter) -> None:
        writer.close()
        closing.set()
        await asyncio.sleep(1)

    monkeypatch.setattr(mllp, "close", close_slowly)
    with channel(hospital.port) as port:
        assert answer_of(send(port, frame(message()))) == ["AA", "MSG7"]
        assert closing.wait(600)
    gc.collect()
    assert "MllpChannel" not in caplog.text


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"MSH|^~\\&|\rMSA|AA|7\r", ("A", "7")),
        (b"MSH|^~\\&|\nMSA|CE|8|no\n", ("E", "8")),
        (b"MSH#^~\\&#\rMSA#AR##7\r", ("R", "")),
        (b"MSH|^~\\&|\rMSA|XX|7\r", None),
        (b"MSH|^~\\&|\rMSA|AA\r", None),
        (b"MSH|^~\\&|\rMSA|AA|7\rMSA|AA|7\r", None),
        (b"MSA|AA|7\r", None),
        (b"", None),
    ],
)
def test_acknowledgements_are_read(data: bytes, read: tuple[str, str] | None) -> None:
    assert _read_acknowledgement(data) == read


def test_messages_can_also_be_posted(hospital: Hospital) -> None:
    gateway = Gateway(policy.parse(RULES, secret=SECRET))
    reply = gateway.handle(message())
    assert (reply.status, reply.media_type) == (200, "application/hl7-v2")
    assert without_hash(reply.content) == FILTERED
    assert gateway.handle(message(patient="R|ROE")).status == 400


# As a process


def start(
    folder: Path, hospital: Hospital, host: str = "127.0.0.1"
) -> tuple[subprocess.Popen[str], int, str]:
    (folder / "own.secret").write_bytes(SECRET)
    (folder / "own.secret").chmod(0o600)
    (folder / "policy.toml").write_text(f'[constraints]\ntext = """{RULES}"""\nsecret = "own.secret"\n')
    command = [
        sys.executable,
        "-m",
        "concilium.cli.main",
        "gateway",
        str(folder / "policy.toml"),
        "--port",
        "0",
        "--host",
        host,
    ]
    process = subprocess.Popen(
        [
            *command,
            "--hl7-port",
            "0",
            "--hl7-to",
            write_address(host, hospital.port),
            "--log",
            str(folder / "log"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    found = re.search(rf"{re.escape(write_address(host, 0)[:-1])}(\d+) \(MLLP\)", first)
    assert found, first + second + (process.communicate()[1] if process.poll() is not None else "")
    assert "/transactions" in second
    return process, int(found[1]), second


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_command_listens_on_ipv6_too(tmp_path: Path) -> None:
    receiver = Hospital("::1")
    process, port, said = start(tmp_path, receiver, "::1")
    address = re.search(r"http://(\[::1\]:\d+)/transactions", said)
    assert address
    try:
        web = http.client.HTTPConnection(address[1], timeout=600)
        with contextlib.closing(web):
            web.request("POST", "/transactions", message())
            assert without_hash(web.getresponse().read()) == FILTERED
        with socket.create_connection(("::1", port), timeout=600) as connection:
            connection.sendall(frame(message()))
            assert answer_of(read_one(connection)) == ["AA", "MSG7"]
    finally:
        process.kill()
        process.communicate()
        receiver.listener.close()
    assert [without_hash(data) for data in receiver.received] == [FILTERED]


def test_a_host_that_is_none_is_said() -> None:
    with pytest.raises(
        ConciliumError, match=r"nowhere\.invalid is no address of this machine; choose another --host"
    ):
        listen("nowhere.invalid", 0, "--port")


def test_the_command_listens_for_both_and_ends_when_interrupted(tmp_path: Path, hospital: Hospital) -> None:
    process, port, said = start(tmp_path, hospital)
    address = re.search(r"127\.0\.0\.1:\d+", said)
    assert address
    try:
        web = http.client.HTTPConnection(address[0], timeout=600)
        with contextlib.closing(web):
            web.request("POST", "/transactions", message())
            posted = web.getresponse()
            assert (posted.status, posted.headers["Content-Type"]) == (200, "application/hl7-v2")
            assert without_hash(posted.read()) == FILTERED
        with sender(port) as connection:
            connection.sendall(frame(message()))
            assert answer_of(read_one(connection)) == ["AA", "MSG7"]
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in complaints
    assert [without_hash(data) for data in hospital.received] == [FILTERED]
    logged = (tmp_path / "log").read_text()
    assert logged.count("\n") == 2
    assert logged.count("passed hl7, rules that applied: names, kin") == 2
    assert not re.search("ROE|MRN|127", logged + complaints)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hl7-port", "2575"], "needs --hl7-to"),
        (["--hl7-to", "127.0.0.1:2575"], "needs --hl7-to"),
        (["--hl7-port", "0", "--hl7-to", "nowhere"], "HOST:PORT"),
        (["--hl7-port", "0", "--hl7-to", "a:99999"], "HOST:PORT"),
        (["--hl7-charset", "EBCDIC"], "a character set that is not read"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "rules.graph").write_text("graph N { node x eliminate x.PID.5; }")
    result = CliRunner().invoke(app, ["gateway", str(tmp_path / "rules.graph"), *options])
    assert result.exit_code == 2
    assert words in result.output


def test_without_the_extra_the_command_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hl7", None)
    (tmp_path / "rules.graph").write_text("graph N { node x eliminate x.PID.5; }")
    options = ["--hl7-port", "0", "--hl7-to", "127.0.0.1:2575"]
    result = CliRunner().invoke(app, ["gateway", str(tmp_path / "rules.graph"), *options])
    assert result.exit_code == 2
    assert "pip install 'concilium[hl7]'" in result.output


def test_policy_try_shows_a_message_segment_by_segment(tmp_path: Path) -> None:
    (tmp_path / "rules.graph").write_text("graph N { node x eliminate x.PID.5; }")
    (tmp_path / "one.hl7").write_bytes(message())
    result = CliRunner().invoke(
        app, ["policy", "try", str(tmp_path / "rules.graph"), str(tmp_path / "one.hl7")]
    )
    assert result.exit_code == 0
    assert re.search(r'"PID\|1\|\|MRN7\|\|ROE\^ANN",\s+\| +"PID\|1\|\|MRN7\|\|",', result.stdout)
