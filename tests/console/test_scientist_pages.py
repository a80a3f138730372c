"""The scientist's pages: a study as text, checked and planned as the command does; nothing outside of the folder."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from test_console import find_token, log_in, open_console, users  # noqa: F401
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from small_study import SEVERAL, lay_out

KEY = "study.toml"
PRIVATE = SEVERAL.replace("[bins]", '[privacy]\nrelease = "private"\nepsilon = 1\n[bins]').replace(
    "[tree]", '[values]\ndeath = [0, 1]\nsex = ["f", "m"]\n[tree]'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lay_out(tmp_path, SEVERAL)
    return tmp_path


def send(browser: TestClient, text: str, **fields: str) -> Any:
    place = f"/scientist/study/{KEY}"
    return browser.post(place, data={"csrf": find_token(browser.get(place).text), "text": text, **fields})


def test_a_study_is_shown_as_it_is_written(folder: Path) -> None:
    page = open_console(folder).get(f"/scientist/study/{KEY}").text
    shown = re.search(r"<textarea[^>]*>\n(.*)</textarea>", page, re.DOTALL)
    assert shown is not None
    assert unescape(shown[1]) == (folder / KEY).read_text()
    assert "This is a study: tree, to predict death, released as exact." in page


def test_of_two_errors_each_is_said_as_by_the_command(folder: Path) -> None:
    browser = open_console(folder)
    wrong = SEVERAL.replace('method = "tree"', 'method = "treee"').replace("max_depth = 3", 'max_depth = "x"')
    for text in (wrong, wrong.replace("treee", "tree"), "[study", SEVERAL + "[nowhere]\n"):
        reply = send(browser, text)
        assert reply.status_code == 422
        (folder / "wrong.toml").write_text(text)
        said = CliRunner().invoke(app, ["run", str(folder / "wrong.toml"), "--plan"]).stderr.strip()
        assert said.removeprefix(f"{folder}/wrong.toml: ") in unescape(reply.text)
        assert unescape(reply.text).count(text) == 1  # nothing that was written is lost
        (folder / "wrong.toml").unlink()


def test_a_plan_has_the_prices_of_the_command(folder: Path) -> None:
    page = unescape(send(open_console(folder), PRIVATE, do="plan").text)
    plan = cc.Study.read(folder / KEY, text=PRIVATE).plan()
    assert plan.total > 0
    assert "It fits everywhere" in page
    for kind, price, about in plan.rows:
        assert kind in page
        assert price in page
        assert about in page
    assert not list(folder.glob("*.ledger"))  # nothing was asked


def test_nothing_is_saved(folder: Path) -> None:
    before = (folder / KEY).read_bytes()
    send(open_console(folder), PRIVATE, do="plan")
    assert (folder / KEY).read_bytes() == before


@pytest.mark.parametrize("place", ["../outside.csv", "/etc/passwd", "postgresql://reader@localhost/coast"])
def test_others_read_nothing_outside_of_the_folder(folder: Path, users: Path, place: str) -> None:  # noqa: F811
    browser = log_in(folder, users, "scientist")
    reply = send(browser, SEVERAL.replace("north.csv", place), do="plan")
    assert reply.status_code == 422
    assert "is not in the folder of the console" in unescape(reply.text)
    assert send(browser, SEVERAL, do="plan").status_code == 200


def test_others_are_told_no_cell_of_a_table(folder: Path, users: Path) -> None:  # noqa: F811
    (folder / "north.csv").write_text("age,sex,smoker,death\nJane Roe,f,no,1\n")
    text = PRIVATE.replace("[bins]", '[schema]\nage = "number"\n[bins]')
    assert "Jane" not in send(log_in(folder, users, "scientist"), text, do="plan").text.replace("[schema]", "")


def test_it_is_for_scientists(folder: Path, users: Path) -> None:  # noqa: F811
    for name in ("viewer", "clinician", "steward"):
        browser = log_in(folder, users, name)
        assert browser.get("/scientist").status_code == 403
        assert browser.get(f"/scientist/study/{KEY}").status_code == 403


def test_a_file_that_is_wrong_is_listed_with_why(folder: Path) -> None:
    (folder / "wrong.toml").write_text("[study]\nname = 1\n")
    page = open_console(folder).get("/scientist").text
    assert 'class="warns"' in page
    assert str(folder) not in page
