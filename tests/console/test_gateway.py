"""The gateway as it runs: a process, a port, messages in and out, and a log that says nothing about patients."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from concilium import policy
from concilium.console import gateway as web
from concilium.console.gateway import MOST_BYTES, Gateway, _GatewayReply, read_message
from concilium.errors import ConciliumError, MissingExtra, PolicyError

RULES = """
graph identity { node u exists u.ssn, exists u.name; }
graph births { node x + eliminate x.birthDate, eliminate x.name; }
graph wards { node y + where y.ward = 'psychiatry' eliminate y.ward; }
graph codes { node z + substitute z.id =~ /hash()/; }
"""
SECRET = b"a secret of this gateway"
PATIENT = {"id": "MRN-7", "birthDate": "1950-01-31", "ward": "psychiatry", "sex": "f"}
GRAPH = {"nodes": [PATIENT, {"id": "v1", "type": "visit"}], "edges": [["MRN-7", "v1"]]}
BUNDLE = {
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [
        {
            "resource": {
                "resourceType": "Patient",
                "id": "MRN-7",
                "birthDate": "1950-01-31",
                "gender": "female",
            }
        },
        {"resource": {"resourceType": "Observation", "id": "o1", "subject": {"reference": "Patient/MRN-7"}}},
    ],
}
DANGLING = {**BUNDLE, "entry": BUNDLE["entry"][1:]}


class Running:
    """A gateway in a process of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "rules.graph").write_text(RULES)
        (folder / "own.secret").write_bytes(SECRET)
        (folder / "own.secret").chmod(0o600)
        (folder / "policy.toml").write_text('[constraints]\nfile = "rules.graph"\nsecret = "own.secret"\n')
        self.log = folder / "decisions.log"
        command = [sys.executable, "-m", "concilium.cli.main", "gateway", str(folder / "policy.toml")]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--log", str(self.log)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said + self.process.communicate()[1]
        self.address = urlsplit(found[0])

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any, str]:
        connection = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read()), reply.headers["Content-Type"]

    def post(self, message: Any) -> tuple[int, Any, str]:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.ask("POST", "/transactions", body)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    gateway = Running(tmp_path_factory.mktemp("gateway"))
    try:
        yield gateway
    finally:
        gateway.process.kill()
        gateway.process.communicate()


def test_it_listens_on_this_machine_only(running: Running) -> None:
    assert running.address.hostname == "127.0.0.1"


def test_a_graph_comes_back_filtered_as_a_graph(running: Running) -> None:
    status, left, kind = running.post(GRAPH)
    assert (status, kind) == (200, "application/json")
    assert left == policy.parse(RULES, secret=SECRET).apply(GRAPH)
    first, second = left["nodes"]
    assert first == {"id": first["id"], "sex": "f"}
    assert left["edges"] == [[first["id"], second["id"]]]
    assert "MRN-7" not in json.dumps(left)


def test_a_bundle_comes_back_filtered_as_a_bundle(running: Running) -> None:
    status, left, kind = running.post(BUNDLE)
    assert (status, kind) == (200, "application/fhir+json")
    patient, observation = (entry["resource"] for entry in left["entry"])
    assert patient == {"resourceType": "Patient", "id": patient["id"], "gender": "female"}
    assert observation["subject"] == {"reference": f"Patient/{patient['id']}"}


def test_a_refusal_names_the_rule_and_nothing_else(running: Running) -> None:
    refused = {"nodes": [{"id": 1, "ssn": "123-45-6789", "name": "Ann Roe"}]}
    assert running.post(refused) == (403, {"refused_by": "identity"}, "application/json")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"Ann Roe", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"nodes": [{"a": NaN}]}', "not JSON"),
        (b'{"nodes": [{"a": 1e999}]}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        ([], "no list of nodes"),
        ({"nodes": [{"name": {"family": "Roe"}}]}, "no rule could see inside it"),
        ({"nodes": [{"id": "Roe"}], "edges": [["Roe", "Ann"]]}, "edge 1 ends at a node that is not"),
        (DANGLING, "refers to a resource that is not in the bundle"),
        ({"resourceType": "Patient", "name": "Roe"}, "is a Bundle"),
    ],
)
def test_bad_input_is_one_sentence_that_does_not_repeat_it(
    running: Running, message: Any, words: str
) -> None:
    status, said, _ = running.post(message)
    assert status == 400
    assert list(said) == ["error"]
    assert words in said["error"]
    assert not re.search("Roe|Ann|MRN", said["error"])


def test_a_message_has_a_bounded_size(running: Running) -> None:
    status, said, _ = running.post(b'{"nodes": [{"a": "' + b"x" * MOST_BYTES + b'"}]}')
    assert status == 413
    assert "at most" in said["error"]


def test_many_senders_at_once_each_get_their_own(running: Running) -> None:
    found: dict[int, Any] = {}

    def send(number: int) -> None:
        found[number] = running.post({"nodes": [{"number": number, "birthDate": "1950"}]})[1]

    threads = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {"nodes": [{"number": number}], "edges": []} for number in range(20)}


def test_there_is_nothing_else_to_ask_for(running: Running) -> None:
    assert running.ask("GET", "/health")[:2] == (200, {"graphs": ["identity", "births", "wards", "codes"]})
    assert running.ask("GET", "/transactions")[0] == 405
    for path in ("/", "/docs", "/openapi.json", "/transactions/MRN-7"):
        assert running.ask("GET", path)[0] == 404


def test_the_log_has_every_decision_and_nothing_of_the_data(running: Running) -> None:
    before = len(running.log.read_text().splitlines())
    running.post(GRAPH)
    running.post(BUNDLE)
    running.post({"nodes": [{"id": 1, "ssn": "123-45-6789", "name": "Ann Roe"}]})
    running.post(DANGLING)
    running.post(b"Ann Roe")
    running.ask("POST", "/transactions?mrn=MRN-7", json.dumps(GRAPH).encode())
    running.ask("GET", "/transactions/MRN-7?name=Roe")
    lines = running.log.read_text().splitlines()[before:]
    said = [line.split(" ", 2)[2] for line in lines]
    assert said == [
        "passed graph, rules that applied: births, wards, codes",
        "passed bundle, rules that applied: births, codes",
        "refused graph by identity",
        "error bundle",
        "error message",
        "passed graph, rules that applied: births, wards, codes",
    ]
    whole = running.log.read_text()
    for trace in (
        "MRN-7",
        "1950",
        "psychiatry",
        "Roe",
        "Ann",
        "123-45",
        "ssn",
        "birthDate",
        "sex",
        "127.0.0.1",
        "female",
    ):
        assert trace not in whole


def test_it_ends_when_interrupted_and_says_nothing_of_the_data_then_either(tmp_path: Path) -> None:
    gateway = Running(tmp_path)
    gateway.post(GRAPH)
    gateway.process.send_signal(signal.SIGINT)
    out, complaints = gateway.process.communicate(timeout=600)
    assert gateway.process.returncode == 130
    assert "MRN-7" not in out + complaints
    assert "Traceback" not in complaints


# The same without a network


def test_a_fault_of_ours_lets_nothing_out_and_logs_only_its_name(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    gateway = Gateway(policy.parse(RULES, secret=SECRET))

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("MRN-7")

    monkeypatch.setattr(type(gateway.graphs), "decide", fail)
    with caplog.at_level("INFO", logger="concilium.gateway"):
        reply = gateway.handle(json.dumps(GRAPH).encode())
    assert reply == _GatewayReply(500, {"error": web.FAILED})
    assert "MRN-7" not in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_rules_that_need_a_secret_do_not_start_without_one() -> None:
    with pytest.raises(PolicyError, match="need the site's secret"):
        Gateway(policy.parse(RULES))


def test_a_port_that_is_taken_is_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConciliumError, match="cannot listen on"),
    ):
        web.serve(Gateway(policy.parse("graph N { node x; }")), "127.0.0.1", taken.getsockname()[1], print)


def test_without_the_extra_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"concilium\[web\]"):
        web._make_server(web._WebApp(Gateway(policy.parse("graph N { node x; }"))))


def test_random_bytes_and_damaged_messages_are_answered_without_a_fault() -> None:
    gateway = Gateway(policy.parse(RULES, secret=SECRET))
    dice = random.Random(3)
    seeds = [json.dumps(GRAPH).encode(), json.dumps(BUNDLE).encode()]
    statuses = []
    for _ in range(2_000):
        body = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(body))
            body[place : place + dice.randint(0, 3)] = dice.choice(
                [b'"', b"{", b"[", b"}", b"1", b"x", b"\xff", b"null", b","]
            )
        reply = gateway.handle(bytes(body))
        statuses.append(reply.status)
        if reply.status == 200:
            json.dumps(reply.content, allow_nan=False)
            nodes = reply.content.get("nodes", [])
            assert not any("birthDate" in node for node in nodes)
    assert set(statuses) <= {200, 400, 403}
    assert statuses.count(200) > 100
    assert read_message(b"[1.5]") == [1.5]
