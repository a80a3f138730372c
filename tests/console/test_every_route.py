"""Every route of the console, by what the application lists: who gets in, which forms count, and what keys do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from test_console import find_token, log_in, open_console, users, write_results  # noqa: F401

from concilium.console.serving import make_console

OPEN = {"/login", "/static/{name}", "/login/openid", "/login/openid/back"}
"""What anybody may open."""


def list_routes(folder: Path) -> list[tuple[str, str]]:
    """Method and path of each route, however routers nest."""
    app, _ = make_console(folder, host="127.0.0.1")
    found: list[tuple[str, str]] = []
    waiting: list[Any] = list(app.app.routes)  # type: ignore[attr-defined]
    while waiting:
        one = waiting.pop()
        inner = getattr(one, "routes", None) or getattr(getattr(one, "original_router", None), "routes", None)
        if inner:
            waiting += inner
        elif hasattr(one, "methods"):
            found += [(method, one.path) for method in one.methods if method != "HEAD"]
    return sorted(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("routes")
    write_results(place / "ward")
    return place


def fill(path: str) -> str:
    """An address of a route: the one model of the folder where it takes a key."""
    path = path.replace("{key:path}", "ward/results").replace("{number}", "1").replace("{study}", "0" * 64)
    return path.replace("{name}", "model.json")


@pytest.fixture(scope="module")
def routes(folder: Path) -> list[tuple[str, str]]:
    return list_routes(folder)


def test_all_routes_are_known(routes: list[tuple[str, str]]) -> None:
    assert len(routes) >= 25
    assert ("POST", "/scientist/run/{number}") in routes
    assert ("POST", "/steward/policy/{key:path}") in routes


def test_without_a_session_no_page_opens(folder: Path, routes: list[tuple[str, str]]) -> None:
    app, _ = make_console(folder, host="127.0.0.1")
    stranger = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    for method, path in routes:
        if path in OPEN:
            continue
        reply = (
            stranger.request(method, fill(path), data={}, follow_redirects=False)
            if method == "POST"
            else (stranger.get(fill(path), follow_redirects=False))
        )
        outcome = reply.status_code, reply.headers.get("location", "")
        assert outcome in ((303, "/login"), (401, ""), (415, "")), (method, path)


def test_no_form_counts_without_the_token_of_its_session(folder: Path, routes: list[tuple[str, str]]) -> None:
    browser, other = open_console(folder), open_console(folder)
    foreign = find_token(other.get("/models/ward/results").text)
    for method, path in routes:
        if method == "POST" and path != "/login":
            for token in ("", "guess", foreign):
                reply = browser.post(fill(path), data={"csrf": token, "do": "save", "decision": "agree"})
                assert reply.status_code == 403, path
                assert "not from a page of your session" in reply.text


ROLES = {
    "viewer": ("/", "/models", "/report", "/file", "/compare", "/terms", "/logout", "/login", "/static"),
    "clinician": ("/answer",),
    "steward": ("/steward",),
    "scientist": ("/scientist",),
}


@pytest.mark.parametrize("role", list(ROLES))
def test_each_role_gets_to_its_own_routes_only(
    folder: Path,
    users: Path,  # noqa: F811
    routes: list[tuple[str, str]],
    role: str,
) -> None:
    browser = log_in(folder, users, role)
    token = find_token(browser.get("/").text)
    for method, path in routes:
        first = "/" + path.split("/")[1]
        owners = [name for name, places in ROLES.items() if first in places]
        assert owners, path  # a new route says whose it is
        if path in OPEN or first == "/logout":
            continue
        reply = (
            browser.post(fill(path), data={"csrf": token}) if method == "POST" else browser.get(fill(path))
        )
        refused = "which you do not have" in reply.text
        assert refused == (owners[0] not in ("viewer", role)), (method, path)


KEYS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "../../../../etc/passwd",
            "..%2f..%2fetc%2fpasswd",
            "ward/results/../../../etc/passwd",
            "/etc/passwd",
            "ward/results/",
            "ward//results",
            "\0",
            "%00",
            ".console/audit.jsonl",
            "ward/results/.",
            "x" * 5000,
        ]
    ),
)


@pytest.fixture(scope="module")
def browser(folder: Path) -> TestClient:
    return open_console(folder)


@given(key=KEYS, place=st.integers(0, 1000))
def test_no_key_opens_what_was_not_found(
    browser: TestClient, routes: list[tuple[str, str]], key: str, place: int
) -> None:
    """Whatever an address says, it ends in a page or in a refusal, and never in a file that was not listed."""
    keyed = [path for method, path in routes if method == "GET" and "{" in path]
    path = keyed[place % len(keyed)]
    quoted = re.sub(r"[^\w./%-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), key)
    reply = browser.get(fill(path).replace("ward/results", quoted).replace("/1", f"/{quoted}"))
    assert reply.status_code in (200, 303, 400, 404, 405, 422), path
    assert "root:" not in reply.text
    assert '"before"' not in reply.text  # a line of the audit log
