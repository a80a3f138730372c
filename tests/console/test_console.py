"""The console's pages: who may open which, what they answer, and what becomes of bad input."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import concilium as cc
from concilium.console import access as access_module
from concilium.console.access import MOST_GUESSES, AccessError, UserBook
from concilium.console.audit_trail import AuditTrail, TrailError, verify
from concilium.console.gateway import listen, make_server
from concilium.console.guard import MOST_BODY, GuardedApp
from concilium.console.patient_answer import SCALE, answer_patient
from concilium.console.patient_form import FormField, list_fields
from concilium.console.serving import ConsoleError, _check_place, make_console
from concilium.console.web import make_app
from concilium.consult.cds_hooks import make_services
from concilium.models.model_file import name_by_content
from small_study import SPLIT, lay_out

DICTIONARY = """
[dictionary.age]
label = "Age at admission"
type = "number"
unit = "years"
range = [0, 110]
[dictionary.sex]
label = "Sex"
values = { f = "female", m = "male" }
[dictionary.death]
values = { 0 = "survived", 1 = "died" }
"""
PASSWORD = "correct horse battery"
MODEL = "ward/results"


def write_results(folder: Path) -> None:
    """A small study in a folder, and its results."""
    folder.mkdir(parents=True)
    study = SPLIT.replace('target = "death"', 'target = "death"\nquery = "age >= 18"') + DICTIONARY
    cc.Study.read(lay_out(folder, study)).run(folder / "results")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree of a study with a dictionary, which tests may look at and not change."""
    place = tmp_path_factory.mktemp("console")
    write_results(place / "ward")
    return place


def open_console(folder: Path, **how: Any) -> TestClient:
    """A browser of the one person who has the token."""
    app, access = make_console(folder, host="127.0.0.1", **how)
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    if access.token:
        assert client.get(f"/login?token={access.token}").status_code == 200
    return client


@pytest.fixture
def browser(folder: Path) -> TestClient:
    return open_console(folder)


def find_token(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def send(browser: TestClient, place: str, *, at: str = f"/models/{MODEL}", **fields: str) -> Any:
    """A form, with the token of a page."""
    return browser.post(place, data={"csrf": find_token(browser.get(at).text), **fields})


def ask(browser: TestClient, **fields: str) -> Any:
    return send(browser, f"/answer/{MODEL}", **fields)


def read_trail(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / ".console" / "audit.jsonl").read_text().splitlines()]


def test_the_answer_is_the_models_own(folder: Path, browser: TestClient) -> None:
    model = cc.load(folder / MODEL / "model.json")
    for patient in ({"age": 71, "sex": "f"}, {"age": 30}, {"age": 70, "sex": None}):
        fields = {f"v.{name}": str(value) for name, value in patient.items() if value is not None}
        fields |= {f"m.{name}": "1" for name, value in patient.items() if value is None}
        page = unescape(ask(browser, **fields).text)
        for sentence in model.explain(patient).sentences:
            assert re.sub(r"^(\d+\. |- )", "", sentence) in page


def test_a_card_of_an_ehr_leads_to_the_models_page(folder: Path, browser: TestClient) -> None:
    """Whatever the service is called: the link has the model's content."""
    place = folder / MODEL / "model.json"
    keys = {"ward": name_by_content(place)}
    services = make_services({"ward": (cc.load(place), {})}, console="http://127.0.0.1/", keys=keys)
    page = browser.get(services["ward"].console.removeprefix("http://127.0.0.1"))
    assert page.text == browser.get(f"/models/{MODEL}").text
    assert page.status_code == 200
    assert browser.get("/models/sha256-nothing").status_code == 404


def test_a_patient_of_others_is_refused_as_by_consult(folder: Path, browser: TestClient) -> None:
    model = cc.load(folder / MODEL / "model.json")
    page = unescape(ask(browser, **{"v.age": "7"}).text)
    for sentence in model.explain({"age": 7}).sentences[:-1]:
        assert sentence in page
    assert "answer though the model is not about this patient" in page
    insisted = unescape(ask(browser, **{"v.age": "7", "anyway": "1"}).text)
    assert model.explain({"age": 7}, anyway=True).sentences[1] in insisted


@pytest.mark.parametrize("name", ["DecisionTree", "NaiveBayes", "RuleFit", "ShapeModel", "Regression"])
def test_the_probability_that_is_drawn_is_the_one_that_is_said(name: str) -> None:
    """Of the class that the first sentence speaks of, whichever is predicted; the picture says which."""
    rows = [{"age": 20 + n % 70, "death": "yes" if n % 70 > 45 and n % 5 else "no"} for n in range(700)]
    method: Any = getattr(cc, name)
    positive = {"positive": "yes"} if "positive" in method.parameters() else {}
    model = method("death", release="exact", **positive).fit({"here": cc.Records.from_rows(rows)})
    predicted = set()
    for age in (25, 85):
        answered = answer_patient(model, {"age": age})
        (title,) = [one for one in answered.pictures if one.startswith("Probability of ")]
        drawn = re.search(r'circle cx="([\d.]+)"', answered.pictures[title])
        said = re.search(r"= (\w+) \((?:(\w+): )?(?:above |below )?([\d.]+)%", answered.headline)
        assert drawn is not None
        assert said is not None, answered.headline
        assert title == f"Probability of death = {said[2] or said[1]}"
        assert (float(drawn[1]) - 20) / (SCALE - 40) == pytest.approx(float(said[3]) / 100, abs=0.006)
        predicted.add(said[1])
    assert predicted == {"no", "yes"}


def test_the_form_is_made_of_the_dictionary(folder: Path) -> None:
    age, sex = list_fields(cc.load(folder / MODEL / "model.json"))
    assert (age.title, age.kind, age.unit, age.low, age.high) == (
        "Age at admission",
        "number",
        "years",
        0,
        110,
    )
    assert age.in_query
    assert sex.options == (("f", "female"), ("m", "male"))


@pytest.mark.parametrize(
    ("field", "reach", "step"),
    [
        (FormField("age", "number", low=0, high=110, edges=(40.0,)), (0, 110), "1"),
        (FormField("score", "number", edges=(10.0, 30.0)), (5, 35), "0.1"),
        (FormField("score", "number", edges=(4.0,)), (2, 6), "0.01"),
        (FormField("base", "number", edges=(-3.0, 1.0)), (-4, 2), "0.01"),
        (FormField("level", "number", edges=(0.0, 8.0)), (0, 10), "0.1"),
        (FormField("level", "number"), None, "any"),
    ],
)
def test_a_slider_goes_as_far_as_is_plausible_or_somewhat_beyond_the_cuts(
    field: FormField, reach: tuple[float, float] | None, step: str
) -> None:
    assert field.reach == (None if reach is None else pytest.approx(reach))
    assert field.step == step


def test_what_if_says_what_changed_and_both_answers(folder: Path, browser: TestClient) -> None:
    model = cc.load(folder / MODEL / "model.json")
    first = ask(browser, **{"v.age": "71", "v.sex": "f"}).text
    assert 'name="before.v.age" value="71"' in first
    again = {"before.v.age": "71", "before.v.sex": "f", "v.age": "30", "v.sex": "f"}
    page = unescape(ask(browser, **again).text)
    assert "Age at admission: 71 → 30." in page
    assert f"Before: {model.explain({'age': 71, 'sex': 'f'}).sentences[0]}" in page
    assert model.explain({"age": 30, "sex": "f"}).sentences[0] in page


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"v.age": "seventy"}, "must be a number in years"),
        ({"v.age": "37,5"}, "write a point, as in 37.5"),
        ({"v.age": "nan"}, "must be a number"),
        ({"v.age": "1e999"}, "must be a number"),
        ({"v.age": "9" * 5000}, "must be one line of at most 200 characters"),
        ({"v.sex": "a\nb"}, "must be one line"),
        ({"v.age": "71", "m.age": "1"}, "has a value and is ticked as not measured"),
        ({"v.religion": "none"}, "the model does not ask about this"),
    ],
)
def test_nonsense_in_a_form_is_a_sentence(browser: TestClient, fields: dict[str, str], said: str) -> None:
    reply = ask(browser, **{"v.sex": "m", **fields})
    assert reply.status_code == 422
    assert said in unescape(reply.text)
    if "v.sex" not in fields:
        assert '<option value="m" selected>' in reply.text  # nothing that was entered is lost


def test_an_implausible_value_is_answered_with_a_warning(browser: TestClient) -> None:
    reply = ask(browser, **{"v.age": "200"})
    assert reply.status_code == 200
    assert "is hardly plausible" in reply.text


def test_text_of_a_form_is_never_markup(browser: TestClient) -> None:
    page = ask(browser, **{"v.sex": "<script>alert(1)</script>", "v.age": '"><b>'}).text
    assert "<script>alert" not in page
    assert '"><b>' not in page


def test_nothing_of_a_patient_is_kept(
    folder: Path, browser: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ask(browser, **{"v.age": "83.625", "v.sex": "Jane Roe"})
    ask(browser, **{"v.age": "eighty-three.625"})
    kept = "".join(path.read_text(encoding="utf-8", errors="replace") for path in folder.glob(".console/*"))
    for secret in ("83.625", "Jane", "eighty"):
        assert secret not in kept
        assert secret not in caplog.text
    outcomes = [line["outcome"] for line in read_trail(folder) if line["action"] == "answer"]
    assert outcomes[-2:] == ["answered", "not read"]


def test_an_unforeseen_error_tells_nothing(
    folder: Path, browser: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Jane Roe, 83")

    monkeypatch.setattr("concilium.console.web.answer_patient", fail)
    reply = ask(browser, **{"v.age": "83"})
    assert reply.status_code == 500
    assert "The console could not do this." in reply.text
    assert "Jane" not in reply.text + caplog.text
    assert "RuntimeError at test_console.py" in caplog.text


def test_pages_have_a_strict_policy_and_no_other_place(browser: TestClient) -> None:
    for place in ("/", f"/models/{MODEL}", "/static/console.js", "/nowhere"):
        reply = browser.get(place)
        assert reply.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", reply.text)
        assert "style=" not in reply.text
        assert "onclick" not in reply.text
    assert browser.get("/").headers["cache-control"] == "no-store"
    report = browser.get(f"/report/{MODEL}")
    assert "sandbox" in report.headers["content-security-policy"]


@pytest.mark.parametrize(
    "place",
    [
        "/models/../../etc",
        "/models/ward",
        "/file/model.json/nowhere",
        f"/file/all.csv/{MODEL}",
        "/static/web.py",
    ],
)
def test_only_what_was_found_is_served(browser: TestClient, place: str) -> None:
    reply = browser.get(place)
    assert reply.status_code == 404
    assert "<h1>Not possible</h1>" in reply.text


def test_downloads_are_the_files(folder: Path, browser: TestClient) -> None:
    for name in ("model.json", "card.json", "metrics.json"):
        reply = browser.get(f"/file/{name}/{MODEL}")
        assert reply.content == (folder / MODEL / name).read_bytes()
        assert reply.headers["content-disposition"] == f'attachment; filename="ward-results-{name}"'


def test_results_of_another_version_say_so(tmp_path: Path) -> None:
    write_results(tmp_path / "new")
    model = tmp_path / "new" / "results" / "model.json"
    model.write_text(model.read_text().replace("concilium/model@1", "concilium/model@9"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.json").write_text("{")
    (tmp_path / "broken" / "metrics.json").write_text("[1]")
    browser = open_console(tmp_path)
    assert "metrics.json is not a file of results" in browser.get("/").text
    reply = browser.get("/models/new/results")
    assert reply.status_code == 422
    assert "its format is" in reply.text
    assert str(tmp_path) not in reply.text
    assert browser.get("/models/broken").status_code == 422


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write_results(tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "model.json").symlink_to(tmp_path / "outside" / "results" / "model.json")
    assert "There is no <code>model.json</code>" in open_console(inside).get("/").text


CONSULTATION = """
[privacy]
release = "exact"
[consultation]
grid = ["sex", "age"]
requesters = ["clinician"]
ends = "2099-01-01"
enough = 5
"""


def test_a_consultation_is_asked_as_its_agreement_says(tmp_path: Path, users: Path) -> None:
    study = SPLIT.replace("[tree]\nmax_depth = 3\n", CONSULTATION).replace('"tree"', '"consultation"')
    study = study.replace('target = "death"', 'target = "death"\npositive = 1') + DICTIONARY
    (tmp_path / "ward").mkdir()
    cc.Study.read(lay_out(tmp_path / "ward", study)).run(tmp_path / MODEL)
    asked = cc.load(tmp_path / MODEL / "model.json").ask({"age": 71, "sex": "f"}, requester="clinician")
    patient = {"v.age": "71", "v.sex": "f"}
    page = unescape(ask(log_in(tmp_path, users, "clinician"), **patient).text)
    for sentence in asked.sentences:
        assert re.sub(r"^(\d+\. |- )", "", sentence) in page
    alone = open_console(tmp_path)
    refused = ask(alone, **patient, requester="Dr. Weiss")
    assert refused.status_code == 422
    assert "is not on the list of this consultation" in refused.text
    assert ask(alone, **patient, requester="clinician").status_code == 200


# Access.


def test_the_address_of_the_terminal_opens_once(folder: Path) -> None:
    app, access = make_console(folder, host="127.0.0.1")
    one, other = (TestClient(app, base_url="http://127.0.0.1") for _ in range(2))
    token = access.token
    assert one.get("/", follow_redirects=False).headers["location"] == "/login"
    assert other.get("/login?token=guess").status_code == 403
    assert one.get(f"/login?token={token}").status_code == 200
    cookie = one.cookies["concilium"]
    assert token not in cookie
    reply = other.get(f"/login?token={token}")
    assert reply.status_code == 403
    assert "was used already" in reply.text
    assert one.get("/").status_code == 200


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One user for each role, by its name."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    for role in ("viewer", "clinician", "steward", "scientist"):
        UserBook(path).add(role, [role], PASSWORD)
    return path


def log_in(folder: Path, users: Path, name: str) -> TestClient:
    browser = open_console(folder, users=users)
    reply = browser.post("/login", data={"name": name, "password": PASSWORD})
    assert reply.url.path == "/"
    return browser


def test_each_role_has_its_pages(folder: Path, users: Path) -> None:
    for role in ("viewer", "clinician"):
        browser = log_in(folder, users, role)
        page = browser.get(f"/models/{MODEL}").text
        assert ("Ask about a patient" in page) == (role == "clinician")
        reply = browser.post(f"/answer/{MODEL}", data={"csrf": find_token(page), "v.age": "71"})
        assert reply.status_code == (200 if role == "clinician" else 403)


def test_a_cookie_is_signed_and_kept_from_scripts(folder: Path, users: Path) -> None:
    app, _ = make_console(folder, users=users, secure=True, host="0.0.0.0")
    client = TestClient(app, base_url="https://ward.example")
    reply = client.post("/login", data={"name": "viewer", "password": PASSWORD}, follow_redirects=False)
    (header,) = reply.headers.get_list("set-cookie")
    assert header.startswith("__Host-concilium=")
    for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert part in header
    assert reply.headers["strict-transport-security"]
    cookie = client.cookies["__Host-concilium"]
    # Of the last sign of a signature two bits say nothing.
    other = f"{cookie[:-3]}{'x' if cookie[-3] != 'x' else 'y'}{cookie[-2:]}"
    forged = TestClient(app, base_url="https://ward.example", cookies={"__Host-concilium": other})
    assert forged.get("/", follow_redirects=False).status_code == 303


def test_a_session_ends(folder: Path, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = log_in(folder, users, "clinician")
    token = find_token(browser.get(f"/models/{MODEL}").text)
    clock = time.monotonic() + 3601
    monkeypatch.setattr("concilium.console.access.time.monotonic", lambda: clock)
    reply = browser.post(f"/answer/{MODEL}", data={"csrf": token, "v.age": "71"})
    assert reply.status_code == 401
    assert "your session has ended" in reply.text
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_who_logs_out_or_loses_a_role_is_out(folder: Path, tmp_path: Path) -> None:
    book = UserBook(tmp_path / "users.json")
    book.add("Dr. Meyer", ["clinician"], PASSWORD)
    browser = log_in(folder, book.path, "Dr. Meyer")
    book.add("Dr. Meyer", ["viewer"], PASSWORD)
    assert browser.get("/", follow_redirects=False).status_code == 303
    browser = log_in(folder, book.path, "Dr. Meyer")
    assert send(browser, "/logout", at="/").url.path == "/login"
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_a_form_of_another_page_is_refused(browser: TestClient) -> None:
    for token in ({}, {"csrf": ""}, {"csrf": "guess"}):
        reply = browser.post(f"/answer/{MODEL}", data={**token, "v.age": "71"})
        assert reply.status_code == 403
        assert "not from a page of your session" in reply.text
    assert browser.post(f"/answer/{MODEL}", json={"v.age": 71}).status_code == 415
    body = "csrf=a&csrf=b"
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert browser.post(f"/answer/{MODEL}", content=body, headers=kind).status_code == 400
    assert browser.post(f"/answer/{MODEL}", content="a=%ff", headers=kind).status_code == 400


def test_a_log_in_from_another_site_is_refused(folder: Path, users: Path) -> None:
    browser = open_console(folder, users=users)
    fields, headers = {"name": "viewer", "password": PASSWORD}, {"sec-fetch-site": "cross-site"}
    assert browser.post("/login", data=fields, headers=headers).status_code == 403


def test_guessing_a_password_is_slowed(folder: Path, users: Path) -> None:
    browser = open_console(folder, users=users)
    for _ in range(MOST_GUESSES):
        reply = browser.post("/login", data={"name": "viewer", "password": "wrong password"})
        assert (reply.status_code, "Name or password is wrong." in reply.text) == (403, True)
    reply = browser.post("/login", data={"name": "viewer", "password": PASSWORD})
    assert reply.status_code == 429
    assert "Wait" in reply.text


def test_passwords_are_hashed_and_users_files_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        access_module, "_make_hasher", access_module._make_hasher.__wrapped__
    )  # as it is shipped
    book = UserBook(tmp_path / "users.json")
    book.add("A", ["viewer", "steward"], PASSWORD)
    text = book.path.read_text()
    assert PASSWORD not in text
    assert "$argon2id$v=19$m=65536,t=3,p=4$" in text
    assert book.path.stat().st_mode & 0o077 == 0
    assert book.check("A", PASSWORD) == {"viewer", "steward"}
    assert book.check("A", PASSWORD + "x") is None
    assert book.check("B", PASSWORD) is None
    for name, roles, password in (
        ("", ["viewer"], PASSWORD),
        ("A", ["admin"], PASSWORD),
        ("A", ["viewer"], "short"),
    ):
        with pytest.raises(AccessError):
            book.add(name, roles, password)
    book.path.write_text('{"A": {"roles": ["admin"], "password": ""}}')
    with pytest.raises(AccessError, match="is not a users file"):
        book.read()


def test_a_name_of_another_site_is_not_answered(folder: Path) -> None:
    app, _ = make_console(folder, host="127.0.0.1")
    assert TestClient(app, base_url="http://evil.example").get("/").status_code == 421
    assert TestClient(app, base_url="http://localhost:8700").get("/login").status_code == 401


@pytest.mark.parametrize(
    ("host", "proxy", "users", "said"),
    [
        ("0.0.0.0", False, True, "others could read along"),
        ("::", False, False, "others could read along"),
        ("0.0.0.0", True, False, "it has no users yet"),
        ("127.0.0.1", True, False, "it has no users yet"),
    ],
)
def test_it_refuses_to_be_open_to_others(host: str, proxy: bool, users: bool, said: str) -> None:
    with pytest.raises(ConsoleError, match=said):
        _check_place(host, None, proxy, users)


def test_it_listens_here_or_with_what_protects_it(tmp_path: Path) -> None:
    pem = tmp_path / "cert.pem"
    pem.touch()
    _check_place("127.0.0.1", None, False, False)
    _check_place("0.0.0.0", None, True, True)
    _check_place("0.0.0.0", (pem, pem), False, True)


# The audit log.


def test_the_trail_says_who_did_what(folder: Path, users: Path) -> None:
    browser = log_in(folder, users, "clinician")
    browser.get(f"/models/{MODEL}")
    ask(browser, **{"v.age": "7"})
    lines = [(line["user"], line["action"], line["about"], line["outcome"]) for line in read_trail(folder)]
    assert lines[-1] == ("clinician", "answer", MODEL, "outside of the model's patients")
    assert ("clinician", "open model", MODEL, "") in lines
    assert verify(folder / ".console" / "audit.jsonl") == len(lines)


def test_a_changed_trail_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trails = [AuditTrail(path), AuditTrail(path)]  # two consoles of one folder
    for number in range(3):
        for start, trail in enumerate(trails):
            trail.enter("A", "look", f"{start}-{number}")
    lines = path.read_bytes().splitlines(keepends=True)
    assert verify(path) == 6
    for changed in (
        lines[:2] + lines[3:],
        [lines[0].replace(b"0-0", b"0-9"), *lines[1:]],
        [lines[1], lines[0], *lines[2:]],
        [b"{\n", *lines],
    ):
        path.write_bytes(b"".join(changed))
        with pytest.raises(TrailError, match="was changed"):
            verify(path)


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"torn')
    trail = AuditTrail(path)
    trail.enter("A", "look")
    trail.close()
    assert json.loads(path.read_bytes().splitlines()[1])["action"] == "look"


# Real connections.


def test_too_large_and_too_slow_requests_end(folder: Path) -> None:
    state = make_console(folder, host="127.0.0.1")[0].app.state.console
    app = GuardedApp(make_app(state), hosts=frozenset({"127.0.0.1"}), seconds=0.3)
    server = make_server(app, app.connections, "the console")
    with listen("127.0.0.1", 0, "--port") as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            begin = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: "
            with socket.create_connection(("127.0.0.1", port), timeout=30) as large:
                large.sendall(f"{begin}{MOST_BODY + 1}\r\n\r\n".encode() + b"a" * (MOST_BODY + 1))
                assert b" 413 " in large.recv(100)
            for said in (begin[:20], f"{begin}10\r\n\r\nabc"):
                with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
                    slow.sendall(said.encode())
                    reply = slow.recv(4096)
                    assert not reply or b" 408 " in reply
            with socket.create_connection(("127.0.0.1", port), timeout=30) as good:
                good.sendall(f"GET /login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert b" 401 " in good.recv(100)
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def test_the_command_says_where_it_is_open(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "concilium.cli.main", "console", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        finally:
            process.terminate()
    assert re.fullmatch(r"The console is open at http://127\.0\.0\.1:\d+/login\?token=[\w-]{40,}\n", line)
