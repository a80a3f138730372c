"""CDS services over HTTP: the specification's examples, limits, feedback, and a log without a value of a patient."""

from __future__ import annotations

import asyncio
import copy
import http.client
import json
import logging
import re
import socket
import ssl
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from concilium.console import cds_server
from concilium.console.audit_trail import AuditTrail, verify
from concilium.console.cds_server import CdsApp
from concilium.console.client_tokens import ClientBook
from concilium.console.gateway import listen, make_server
from concilium.console.serving import ConsoleError
from concilium.consult.cds_hooks import REASON_SYSTEM, make_services
from concilium.consult.fhir_values import find_mapping
from consult.cds_patients import (
    CHOL,
    EXPIRES,
    FEEDBACK,
    JWKS,
    ORDER_SELECT,
    PATIENT_VIEW,
    TOKEN,
    bundle,
    fit,
    observe,
)

pytest.importorskip("fhir.resources")
pytest.importorskip("jwt")

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def model():
    return fit()


@pytest.fixture
def app(model, tmp_path):
    return make_app(model, tmp_path)


def make_app(model, folder, name="death", **more):
    services = make_services({name: (model, find_mapping(model, None))})
    trail = AuditTrail(folder / "audit.jsonl")
    return CdsApp(services, trail, day=lambda: date(2026, 11, 18), **more)


def call(app, method, path, document=None, headers=None, body=None):
    """Status, document and headers of an answer."""
    content = body if body is not None else b"" if document is None else json.dumps(document).encode()
    sent, waiting = [], [{"type": "http.request", "body": content, "more_body": False}]

    async def receive():
        return waiting.pop()

    async def send(message):
        sent.append(message)

    named = [(name.encode(), value.encode()) for name, value in (headers or JSON).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": named, "client": None}
    asyncio.run(app(scope, receive, send))
    answer = sent[1]["body"]
    return sent[0]["status"], json.loads(answer) if answer else None, dict(sent[0]["headers"])


def test_discovery_and_calls_and_feedback_of_the_specification(app, tmp_path):
    status, found, headers = call(app, "GET", "/cds-services")
    assert (status, [one["hook"] for one in found["services"]]) == (200, ["patient-view", "order-select"])
    assert headers[b"cache-control"] == b"no-store"
    for name, document in (("death", PATIENT_VIEW), ("death-order-select", ORDER_SELECT)):
        status, found, _ = call(app, "POST", f"/cds-services/{name}", document)
        assert (status, len(found["cards"])) == (200, 1)
    ours = copy.deepcopy(FEEDBACK[2])
    ours["overrideReason"]["reason"] = {"code": "wrong-data", "system": REASON_SYSTEM}
    document = {"feedback": [*FEEDBACK, ours]}
    assert call(app, "POST", "/cds-services/death/feedback", document)[:2] == (200, {})
    assert verify(tmp_path / "audit.jsonl") == 4
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [one["outcome"] for one in lines] == [
        "accepted",
        "overridden",
        "overridden: another reason",
        "overridden: wrong-data",
    ]
    assert lines[0]["about"] == f"death {FEEDBACK[0]['card']}"
    assert "comment" not in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "said"),
    [
        ("GET", "/nothing", b"", JSON, 404, "there is nothing here"),
        ("POST", "/cds-services/other", b"{}", JSON, 404, "there is nothing here"),
        ("GET", "/cds-services/death", b"", JSON, 405, "takes POST"),
        ("POST", "/cds-services/death", b"{}", {"content-type": "text/plain"}, 415, "calls are JSON"),
        ("POST", "/cds-services/death", b"{", JSON, 400, "is not JSON"),
        ("POST", "/cds-services/death", b"\xff\xfe", JSON, 400, "is not JSON"),
        ("POST", "/cds-services/death", b"[" * 100_000, JSON, 400, "this is no call|is not JSON"),
        ("POST", "/cds-services/death", b"{}", JSON, 400, "missing required field `hook`"),
        ("POST", "/cds-services/death", b'{"hook": 7}', JSON, 400, "Expected `str`, got `int`"),
        ("POST", "/cds-services/death/feedback", b'{"feedback": []}', JSON, 400, "length >= 1"),
        (
            "POST",
            "/cds-services/death",
            b" " * (cds_server.MOST_BYTES + 1),
            JSON,
            413,
            "at most 2,097,152 bytes",
        ),
    ],
)
def test_what_is_no_call_gets_a_status_and_a_sentence(app, method, path, body, headers, status, said):
    found, answer, _ = call(app, method, path, body=body, headers=headers)
    assert found == status
    assert re.search(said, answer["error"])


def test_a_call_that_comes_too_slowly_or_has_too_much_gets_a_sentence(model, tmp_path):
    app, sent = make_app(model, tmp_path, seconds=0.05), []

    async def receive():
        await asyncio.sleep(20)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/cds-services/death", "client": None}
    asyncio.run(app({**scope, "headers": [(b"content-type", b"application/json")]}, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert "did not arrive in 0.04 s: send it again" in json.loads(sent[1]["body"])["error"]
    many = {**PATIENT_VIEW, "prefetch": {"conditions": bundle(*[{"resourceType": "Condition"}] * 5001)}}
    assert call(app, "POST", "/cds-services/death", many)[:2] == (
        413,
        {"error": "a call has at most 5,000 resources"},
    )


def test_feedback_that_is_wrong_is_not_quoted(app):
    for change in ({"outcome": "secret"}, {"card": "secret"}, {"outcomeTimestamp": 7}):
        document = {"feedback": [{**FEEDBACK[1], **change}]}
        status, answer, _ = call(app, "POST", "/cds-services/death/feedback", document)
        assert status == 400
        assert "secret" not in answer["error"]
        assert "regex" not in answer["error"]


def test_no_log_holds_a_value_of_a_patient(app, caplog, tmp_path, monkeypatch):
    caplog.set_level(logging.DEBUG)
    document = copy.deepcopy(PATIENT_VIEW)
    document["prefetch"] |= {"chol": bundle(observe({**CHOL, "value": 6.54321}, "2026-11-01"))}
    call(app, "POST", "/cds-services/death", document)
    for wrong in ({"birthDate": "1925-12-99"}, {"gender": "male-secret"}):
        broken = copy.deepcopy(document)
        broken["prefetch"]["patientToGreet"] |= wrong
        call(app, "POST", "/cds-services/death", broken)
    monkeypatch.setattr(type(app.services["death"].method), "explain", lambda *_: 1 / 0)
    status, answer, _ = call(app, "POST", "/cds-services/death", document)
    assert (status, answer["error"]) == (500, cds_server.FAILED)
    logged = caplog.text + (tmp_path / "audit.jsonl").read_text()
    assert "ZeroDivisionError" in logged
    for value in ("1288992", "6.54321", "253", "1925", "male", "Practitioner", "some-opaque"):
        assert value not in logged, value


def test_only_tokens_that_are_signed_for_this_address_count_once(model, tmp_path):
    (tmp_path / "ehr.jwks.json").write_text(json.dumps(JWKS))
    (tmp_path / "clients.toml").write_text(
        '[[client]]\nissuer = "https://fhir-ehr.example.com/"\njwks = "ehr.jwks.json"\n'
    )
    book = ClientBook(
        tmp_path / "clients.toml", "https://cds.example.org", lambda: EXPIRES - 60.0, since=1311280000
    )
    app = make_app(model, tmp_path, "some-service", clients=book)
    path, headers = "/cds-services/some-service", {**JSON, "authorization": f"Bearer {TOKEN}"}
    assert call(app, "POST", path, PATIENT_VIEW)[0] == 401
    assert call(app, "GET", "/cds-services")[0] == 401
    assert call(app, "GET", "/cds-services", headers=headers)[1]["error"].startswith(
        "the token is not made out"
    )
    status, _, found = call(app, "POST", path, PATIENT_VIEW, headers={**JSON, "authorization": "Basic x"})
    assert (status, found[b"www-authenticate"]) == (401, b"Bearer")
    assert call(app, "POST", path, PATIENT_VIEW, headers=headers)[0] == 200
    again = call(app, "POST", path, PATIENT_VIEW, headers=headers)
    assert again[:2] == (401, {"error": "the token was used before (jti): make a new one for each call"})


def test_pages_of_a_browser_may_call_if_they_are_named(model, tmp_path):
    app = make_app(model, tmp_path, origins=frozenset({"https://sandbox.example.org"}))
    for origin, allowed in (("https://sandbox.example.org", True), ("https://other.example.org", False)):
        status, _, headers = call(app, "OPTIONS", "/cds-services/death", headers={"origin": origin})
        assert (status, b"access-control-allow-origin" in headers) == (204, allowed)


def test_a_connection_by_tls_gives_its_place_back(app, tmp_path):
    """TLS forgets who was connected before it says that the connection is lost."""
    pytest.importorskip("uvicorn")
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now, names = datetime.now(UTC), x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    signed = signed.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = signed.add_extension(names, critical=True).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "tls.pem").write_bytes(certificate.public_bytes(pem) + plain)
    server = make_server(app, app.connections, "a test", ssl_certfile=tmp_path / "tls.pem")
    trusted = ssl.create_default_context(cafile=tmp_path / "tls.pem")
    with listen("127.0.0.1", 0, "--port") as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        for _ in range(3):
            client = http.client.HTTPSConnection(
                "localhost", listener.getsockname()[1], context=trusted, timeout=10
            )
            client.request("GET", "/health")
            assert client.getresponse().status == 200
            client.close()
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()
    assert not app.connections._connections


def test_an_answer_does_not_wait_for_its_first_part_to_be_acknowledged():
    """Every call on a connection that is kept took 40 ms."""
    with (
        listen("127.0.0.1", 0, "--port") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_others_may_not_listen_in_or_call_unknown(tmp_path):
    for tls, clients, said in (
        (None, None, "could read along"),
        ((tmp_path, tmp_path), None, "could call these"),
    ):
        with pytest.raises(ConsoleError, match=said):
            cds_server.check_place("0.0.0.0", tls, False, clients)
    cds_server.check_place("127.0.0.1", None, False, None)


def test_nonsense_by_the_schema_gets_a_proper_answer(app):
    """What schemathesis makes of the services' own OpenAPI schema, right and wrong, bounded."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

    checks = [not_a_server_error, content_type_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [one.ok() for one in schema.get_all_operations()]
    assert len(operations) == 5
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    for operation in operations:
        for mode in modes if operation.method == "post" else modes[:1]:

            @settings(
                max_examples=6,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def run(case):
                case.call_and_validate(checks=checks)

            run()


def test_the_page_says_what_is_answered(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "cds.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"```toml\n# file: (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    bare = fit(codes=False)
    services = make_services({"death": (bare, find_mapping(bare, tmp_path / "codes.toml"))})
    app = CdsApp(services, AuditTrail(tmp_path / "audit.jsonl"))
    document = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    status, answer, _ = call(app, "POST", "/cds-services/death", document)
    assert status == 200
    assert "infarct 0: nothing recorded" in answer["cards"][0]["detail"]
    assert "Not in the record: antibiotic, chol." in answer["cards"][0]["detail"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) <= {*answer["cards"][0], "links"}
    (tmp_path / "ehr.jwks.json").write_text(json.dumps(JWKS))
    ClientBook(tmp_path / "clients.toml", "https://cds.example.org")
