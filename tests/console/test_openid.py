"""Log-in at a provider: who gets in with which role, and every answer that must not count."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from joserfc.jwk import RSAKey
from openid_provider import CLIENT, SECRET, Provider, running_provider
from starlette.testclient import TestClient
from test_console import read_trail
from typer.testing import CliRunner

from concilium.cli.main import app as command
from concilium.console.access import MOST_GUESSES
from concilium.console.openid import OpenidError, OpenidLogin
from concilium.console.serving import ConsoleError, _check_place, _find_openid, make_console

BASE = "http://127.0.0.1"
SETTINGS = """
issuer = "{issuer}"
client = "concilium"
address = "http://127.0.0.1"
secret_file = "secret"
[roles]
clinician = ["icu", "ward"]
steward = ["data office"]
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with running_provider() as one:
        yield one


@pytest.fixture
def provider(running: Provider) -> Iterator[Provider]:
    before = dict(running.person)
    yield running
    running.person, running.changes, running.key = before, {}, running.known


@pytest.fixture
def folder(tmp_path: Path, provider: Provider) -> Path:
    own = tmp_path / ".console"
    own.mkdir()
    (own / "secret").write_text(SECRET)
    (own / "openid.toml").write_text(SETTINGS.format(issuer=provider.issuer))
    return tmp_path


def open_browser(folder: Path, **how: Any) -> TestClient:
    app, access = make_console(folder, host="127.0.0.1", **how)
    assert access.token == ""
    return TestClient(app, base_url=BASE, raise_server_exceptions=False)


def come_back(browser: TestClient, provider: Provider) -> str:
    """Where the provider sends a browser that began to log in."""
    place = browser.get("/login/openid", follow_redirects=False).headers["location"]
    assert place.startswith(f"{provider.issuer}/authorize?")
    return provider.authorize(urlsplit(place).query).removeprefix(BASE)


def test_groups_there_are_roles_here(folder: Path, provider: Provider) -> None:
    browser = open_browser(folder)
    assert "Log in at 127.0.0.1" in browser.get("/login").text
    back = browser.get(come_back(browser, provider), follow_redirects=False)
    assert back.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/"' in back.text
    page = browser.get("/")
    assert "Dr. Meyer" in page.text
    assert browser.get("/steward").status_code == 403
    assert read_trail(folder)[0]["user"] == "Dr. Meyer"
    provider.person["groups"] = ["data office"]
    other = open_browser(folder)
    other.get(come_back(other, provider))
    assert other.get("/steward").status_code == 200


def test_the_cookie_comes_from_no_other_site(folder: Path, provider: Provider) -> None:
    browser = open_browser(folder)
    begun = browser.get("/login/openid", follow_redirects=False)
    assert "SameSite=lax" in begun.headers["set-cookie"]
    place = provider.authorize(urlsplit(begun.headers["location"]).query).removeprefix(BASE)
    back = browser.get(place, follow_redirects=False)
    session = next(one for one in back.headers.get_list("set-cookie") if one.startswith("concilium="))
    assert "SameSite=strict" in session
    assert "HttpOnly" in session


@pytest.mark.parametrize(
    "lie",
    [
        {"aud": "somebody else"},
        {"iss": "http://127.0.0.1:1"},
        {"nonce": "another"},
        {"exp": int(time.time()) - 600},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"preferred_username": "a\nb"},
        {"preferred_username": ""},
        {"preferred_username": "x" * 61},
        {"groups": ["cleaning"]},
        {"groups": "icu"},
        {"groups": [["icu"]]},
    ],
)
def test_an_answer_that_does_not_fit_counts_for_nothing(
    folder: Path, provider: Provider, lie: dict[str, Any]
) -> None:
    provider.changes = lie
    browser = open_browser(folder)
    reply = browser.get(come_back(browser, provider))
    assert reply.status_code == 403
    assert browser.get("/", follow_redirects=False).headers["location"] == "/login"
    assert read_trail(folder)[-1]["outcome"] == "refused"


def test_a_token_that_others_signed_counts_for_nothing(folder: Path, provider: Provider) -> None:
    provider.key = RSAKey.generate_key(2048, {"kid": "one"})
    browser = open_browser(folder)
    assert browser.get(come_back(browser, provider)).status_code == 403


def test_an_answer_counts_once_and_in_the_browser_that_asked(folder: Path, provider: Provider) -> None:
    app, _ = make_console(folder, host="127.0.0.1")
    mine, theirs = (TestClient(app, base_url=BASE) for _ in range(2))
    place = come_back(mine, provider)
    assert theirs.get(place).status_code == 403  # the answer to my question, in the browser of somebody else
    assert mine.get(place).status_code == 403  # and it is used up
    place = come_back(mine, provider)
    assert mine.get(place).status_code == 200
    assert TestClient(app, base_url=BASE).get(place).status_code == 403
    assert mine.get("/login/openid/back?state=none&code=x").status_code == 403


def test_who_guesses_waits(folder: Path) -> None:
    browser = open_browser(folder)
    replies = [browser.get("/login/openid/back?state=x&code=y").status_code for _ in range(MOST_GUESSES + 1)]
    assert replies == [403] * MOST_GUESSES + [429]


def test_a_provider_that_is_gone_is_a_sentence(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / ".console" / "openid.toml").write_text(SETTINGS.format(issuer="http://127.0.0.1:9"))
    with caplog.at_level(logging.INFO, "concilium.console"):
        reply = open_browser(folder).get("/login/openid")
    assert reply.status_code == 503
    assert "cannot be asked who you are" in reply.text
    assert caplog.text == ""


def test_the_request_has_its_challenge(folder: Path) -> None:
    place = open_browser(folder).get("/login/openid", follow_redirects=False).headers["location"]
    asked = dict(parse_qsl(urlsplit(place).query))
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    assert asked["redirect_uri"] == f"{BASE}/login/openid/back"
    assert SECRET not in json.dumps(parse_qs(urlsplit(place).query))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('issuer = "http://127', 'issuer = "http://provider', "issuer must begin with https://"),
        ("clinician", "doctor", "has no role 'doctor'"),
        ('secret_file = "secret"', "", "the client's secret is missing"),
        ('secret_file = "secret"', 'secret_file = "nowhere"', "cannot be read"),
        ("client =", "clients =", "is no file for OpenID Connect"),
        ("[roles]", "[roles", "is no file for OpenID Connect"),
        ('clinician = ["icu", "ward"]\nsteward = ["data office"]', "", "names no group"),
    ],
)
def test_a_wrong_file_is_said(folder: Path, old: str, new: str, said: str) -> None:
    path = folder / ".console" / "openid.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(OpenidError, match=said):
        OpenidLogin(path)


def test_it_counts_as_users(folder: Path) -> None:
    _check_place("0.0.0.0", None, True, _find_openid(folder, None) is not None)
    with pytest.raises(ConsoleError):
        _find_openid(folder, folder / "nowhere.toml")
    assert "--openid" in CliRunner().invoke(command, ["console", "open", "--help"]).stdout
