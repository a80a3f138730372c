"""The scientist's pages: a study as a form and as text, checked, planned, saved and run; nothing outside the folder."""

from __future__ import annotations

import re
import time
import tomllib
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from test_console import find_token, log_in, open_console, read_trail, users  # noqa: F401
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.console.study_form import FIELD, change_text, read_study_form
from concilium.console.study_runs import StudyRuns
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
    for do in ("plan", "check", "tables", "take"):
        send(open_console(folder), PRIVATE, do=do)
    assert (folder / KEY).read_bytes() == before


def open_study(browser: TestClient) -> dict[str, str]:
    """The fields of the page as a browser would send them."""
    page = browser.get(f"/scientist/study/{KEY}").text
    inputs = re.findall(r'<input[^>]*? name="([^"]+)" value="([^"]*)"', page)
    found = {unescape(name): unescape(value) for name, value in inputs}
    for name, options in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', page, re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options)
        found[unescape(name)] = unescape(chosen[1]) if chosen else ""
    text = re.search(r"<textarea[^>]*>\n(.*)</textarea>", page, re.DOTALL)
    assert text is not None
    return {**found, "text": unescape(text[1])}


def post(browser: TestClient, fields: dict[str, str], **more: str) -> Any:
    return browser.post(f"/scientist/study/{KEY}", data={**fields, **more})


def test_a_change_of_the_form_changes_the_text_and_nothing_else_of_it(folder: Path) -> None:
    (folder / KEY).write_text("# why this study\n" + SEVERAL)
    browser = open_console(folder)
    fields = open_study(browser)
    fields[f"{FIELD}tree.max_depth"] = "5"
    fields[f"{FIELD}evaluate.holdout"] = "0.3"
    page = unescape(post(browser, fields, do="take").text)
    new = re.search(r"<textarea[^>]*>\n(.*)</textarea>", page, re.DOTALL)
    assert new is not None
    assert new[1].startswith("# why this study\n")
    before, after = tomllib.loads(SEVERAL), tomllib.loads(new[1])
    assert after == {**before, "tree": {"max_depth": 5}, "evaluate": {"holdout": 0.3}}
    assert "This is a study" in page


def test_a_change_of_the_text_changes_the_form(folder: Path) -> None:
    page = send(open_console(folder), SEVERAL.replace("max_depth = 3", "max_depth = 7"), do="check").text
    assert re.search(r'name="f.tree.max_depth" value="7"', page)
    page = send(open_console(folder), SEVERAL.replace('"tree"', '["tree", "rulefit"]'), do="check").text
    assert 'name="f.study.method" value="tree, rulefit"' in page


def test_another_method_leaves_the_settings_of_the_first(folder: Path) -> None:
    browser = open_console(folder)
    page = post(browser, open_study(browser) | {f"{FIELD}study.method": "rulefit"}, do="take").text
    assert "[tree]" not in page
    assert "This is a study: rulefit" in page


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(st.dictionaries(st.sampled_from([one.key for one in read_study_form(SEVERAL)]), WORDS))
def test_whatever_a_form_holds_the_text_stays_toml_and_its_sites_as_they_were(fields: dict[str, str]) -> None:
    changed = change_text(SEVERAL, fields)
    document = tomllib.loads(changed)
    assert document["site"] == tomllib.loads(SEVERAL)["site"]
    for one in read_study_form(changed):
        given = fields.get(one.key, "").strip()
        if given and one.kind == "text":
            assert one.value == given
    assert change_text(changed, {one.key: one.value for one in read_study_form(changed)}) == changed


def test_a_study_is_saved_once_it_is_right(folder: Path) -> None:
    browser = open_console(folder)
    fields = open_study(browser)
    wrong = fields | {"text": SEVERAL.replace('"tree"', '"treee"')}
    assert post(browser, wrong, do="save").status_code == 422
    assert (folder / KEY).read_text() == SEVERAL
    right = SEVERAL.replace("max_depth = 3", "max_depth = 2")
    reply = post(browser, fields | {"text": right}, do="save")
    assert "Saved as" in reply.text
    assert (folder / KEY).read_text() == right
    second = post(browser, open_study(browser), do="save", name="second.toml")
    assert second.url.path == "/scientist/study/second.toml"
    assert (folder / "second.toml").read_text() == right


def test_what_somebody_saved_meanwhile_is_not_written_over(folder: Path) -> None:
    browser = open_console(folder)
    fields = open_study(browser)
    (folder / KEY).write_text(SEVERAL + "# of a colleague\n")
    mine = SEVERAL.replace("max_depth = 3", "max_depth = 2")
    for do in ("save", "run"):
        reply = post(browser, fields | {"text": mine}, do=do)
        assert reply.status_code == 409
        assert "was changed since you opened it" in reply.text
        assert "max_depth = 2" in reply.text
    assert (folder / KEY).read_text().endswith("# of a colleague\n")
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "name", ["../x.toml", "a/b.toml", ".hidden.toml", "x.ledger", "x", "north.csv", "é.toml"]
)
def test_a_study_is_saved_beside_its_file_only(folder: Path, name: str) -> None:
    browser = open_console(folder)
    before = sorted(folder.parent.rglob("*"))
    assert post(browser, open_study(browser), do="save", name=name).status_code == 422
    assert sorted(folder.parent.rglob("*")) == before


def wait_for(runs: TestClient, place: str) -> str:
    """The page of a run that has ended."""
    for _ in range(600):
        page = str(runs.get(place).text)
        if "data-events" not in page:
            return page
        time.sleep(0.05)
    raise AssertionError("it does not end")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TestClient, str, str]:
    """A study that ran from its page: the folder, the browser, where its run is, and what that says."""
    folder = tmp_path_factory.mktemp("ran")
    lay_out(folder, SEVERAL)
    browser = open_console(folder)
    reply = post(browser, open_study(browser), do="run")
    return folder, browser, reply.url.path, wait_for(browser, reply.url.path)


def test_a_run_shows_its_rounds_and_leads_to_its_model(ran: tuple[Path, TestClient, str, str]) -> None:
    folder, browser, _, page = ran
    assert 'class="status finished"' in page
    assert "tree.schema" in page
    assert "3 sites" in page
    assert 'href="/models/results"' in page
    assert (folder / "results" / "report.html").is_file()
    alone = cc.Study.read(folder / KEY).run(folder.with_name("alone"))
    assert cc.load(folder / "results" / "model.json").text() == alone.model.text()
    assert any(one["action"] == "run" for one in read_trail(folder))
    assert 'value="results-2"' in browser.get(f"/scientist/study/{KEY}").text


def test_events_say_how_far_it_is(ran: tuple[Path, TestClient, str, str]) -> None:
    _, browser, place, _ = ran
    reply = browser.get(f"{place}/events")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert re.search(r"data: finished \d+\n\n", reply.text)


@pytest.mark.parametrize("out", ["", "../out", "a/b", ".hidden", "north.csv", "x.toml", "taken"])
def test_results_go_to_a_folder_of_their_own(folder: Path, out: str) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "something").write_text("else")
    browser = open_console(folder)
    assert post(browser, open_study(browser), do="run", out=out).status_code == 422
    assert [one.name for one in (folder / "taken").iterdir()] == ["something"]


def test_a_run_that_waits_for_a_person_says_for_whom_and_goes_on(folder: Path) -> None:
    text = SEVERAL.replace('ledger = "north.ledger"', 'ledger = "north.ledger"\npolicy = "north.toml"')
    (folder / "north.toml").write_text('[agree]\nreleases = ["private"]\n')
    (folder / KEY).write_text(text + '[house]\nidentity = "house.identity"\n')
    from concilium.privacy.identity import Identity

    house = Identity.create()
    house.save(folder / "house.identity")
    (folder / "north.toml").write_text(
        f'[houses]\nhere = "{house.fingerprint}"\n[agree]\nreleases = ["masked"]\n'
    )
    browser = open_console(folder)
    place = post(browser, open_study(browser), do="run").url.path
    page = wait_for(browser, place)
    assert "waits for north" in page
    study = browser.get("/steward").text
    where = re.search(r"/steward/study/\w+/north.ledger", study)
    assert where is not None
    token = find_token(browser.get(where[0]).text)
    browser.post(where[0], data={"csrf": token, "decision": "agree", "who": "A", "why": "B"})
    again = browser.post(place, data={"csrf": token, "do": "resume"})
    assert again.url.path != place
    assert 'class="status finished"' in wait_for(browser, again.url.path)
    assert browser.post(again.url.path, data={"csrf": token, "do": "resume"}).status_code == 409


def test_a_run_that_fails_says_why(folder: Path) -> None:
    (folder / "coast.csv").unlink()
    browser = open_console(folder)
    reply = post(browser, open_study(browser), do="run")
    page = wait_for(browser, reply.url.path)
    assert 'class="status failed"' in page
    assert "coast.csv" in page
    assert not (folder / "results").exists()


def test_others_are_told_no_cell_by_a_run(folder: Path, users: Path) -> None:  # noqa: F811
    text = (folder / "north.csv").read_text()
    (folder / "north.csv").write_text(text + "41,Jane Roe,no,1\n")
    (folder / KEY).write_text(SEVERAL + "[dictionary.sex]\nvalues = { f = 'female', m = 'male' }\n")
    browser = open_console(folder)
    own = wait_for(browser, post(browser, open_study(browser), do="run").url.path)
    assert "Jane" in own
    browser = log_in(folder, users, "scientist")
    theirs = wait_for(browser, post(browser, open_study(browser), do="run").url.path)
    assert "Jane" not in theirs
    assert "about tables" in theirs


def test_a_run_that_is_ended_can_go_on(folder: Path) -> None:
    runs = StudyRuns(folder)
    run = runs.start(KEY, folder / KEY, "results", "A")
    runs.end(run)
    for _ in range(600):
        if run.state != "running":
            break
        time.sleep(0.05)
    assert run.state in ("stopped", "finished")  # it may have been done already
    assert run.state == "finished" or run.can_go_on


OTHER_SOURCES = [
    ('records = "north.csv"', 'records = "south.csv"'),
    ('ledger = "north.ledger"\n', ""),
    ("[tree]", '[evaluate]\nfile = "north.csv"\n[tree]'),
    ("[tree]", '[dictionary]\nfile = "north.csv"\n[tree]'),
    ("[tree]", '[house]\nidentity = "north.ledger.identity"\n[tree]'),
]


@pytest.mark.parametrize(("old", "new"), OTHER_SOURCES)
def test_others_ask_no_other_records_and_by_no_other_gate(
    folder: Path,
    users: Path,  # noqa: F811
    old: str,
    new: str,
) -> None:
    browser = log_in(folder, users, "scientist")
    fields = open_study(browser)
    assert old in SEVERAL
    for do in ("save", "run"):
        reply = post(browser, fields | {"text": SEVERAL.replace(old, new)}, do=do)
        assert reply.status_code == 422
    assert (folder / KEY).read_text() == SEVERAL
    assert not (folder / "results").exists()
    changed = post(browser, fields | {"text": SEVERAL.replace("max_depth = 3", "max_depth = 2")}, do="save")
    assert "Saved as" in changed.text


def test_tables_are_checked_where_they_lie(folder: Path, users: Path) -> None:  # noqa: F811
    (folder / "north.csv").write_text("age,sex,smoker,death\n41,f,no,Jane Roe\n51,m,no,Jane Roe\n")
    text = SEVERAL + "[dictionary.death]\nvalues = { 0 = 'survived', 1 = 'died' }\n"
    own = send(open_console(folder), text, do="tables").text
    assert "1 of 3 tables do not fit" in own
    theirs = send(log_in(folder, users, "scientist"), text, do="tables").text
    assert "1 of 3 tables do not fit" in theirs
    assert "Jane" not in theirs


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
    assert "Jane" not in send(log_in(folder, users, "scientist"), text, do="plan").text.replace(
        "[schema]", ""
    )


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


def test_a_study_that_shares_codes_is_no_fault_among_the_files(tmp_path: Path) -> None:
    (tmp_path / "share.toml").write_text('[study]\nname = "codes"\nmethod = "code-sharing"\n')
    (tmp_path / "wrong.toml").write_text('[study]\nname = "codes"\nmethod = "no-such-method"\n')
    page = open_console(tmp_path).get("/scientist").text
    assert "Shares coded histories, randomised." in page
    assert page.count('class="warns"') == 1
