"""`concilium studies`: a study is proposed, waits, is read, and is agreed to, refused or ended by a person."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import HouseError, StudyPending
from concilium.ledger.ledger import Ledger
from concilium.privacy.identity import Identity
from concilium.protocol.site import Site
from concilium.protocol.terms import name_study
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

PURPOSE = "Who dies of a burn, so that beds can be planned."
STUDY = SEVERAL.replace('target = "death"', f'target = "death"\npurpose = "{PURPOSE}"') + "[house]\n"
STUDY = STUDY.replace("[tree]\n", '[tree]\ngrowth = "id3"\n')
for NAME in HOSPITALS:
    STUDY = STUDY.replace(f'ledger = "{NAME}.ledger"', f'ledger = "{NAME}.ledger"\npolicy = "{NAME}.toml"')
HOUSE = 'identity = "house.identity"\n'
DECIDES = '[agree]\nreleases = ["private"]\n'
WHO = ("--who", "Dr. Meyer", "--why", "ethics vote 12/26")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "160"})


def run(folder: Path, *more: object) -> Any:
    return call("run", folder / "study.toml", "--out", folder / "out", *more)


def studies(folder: Path, site: str, *more: object) -> list[dict[str, Any]]:
    result = call("studies", folder / f"{site}.ledger", "--json", *more)
    assert result.exit_code == 0, result.output
    listed: list[dict[str, Any]] = json.loads(result.stdout)["studies"]
    return listed


def decide(folder: Path, command: str, sites: tuple[str, ...], study: str) -> None:
    for site in sites:
        result = call("studies", command, folder / f"{site}.ledger", study, *WHO)
        assert result.exit_code == 0, result.output


def is_one_sentence(result: Any, *words: str) -> bool:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return result.stdout == "" and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three hospitals: at north and coast people decide on what is not private, south agrees to everything."""
    for name in HOSPITALS:
        (tmp_path / f"{name}.toml").write_text("" if name == "south" else DECIDES)
    lay_out(tmp_path, STUDY + HOUSE)
    return tmp_path


@pytest.fixture
def waiting(folder: Path) -> str:
    """The id of a study that waits."""
    assert run(folder).exit_code == 2
    (study,) = studies(folder, "north")
    return str(study["study"])


def test_a_study_waits_is_agreed_to_and_goes_on_in_the_same_terms(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    (study,) = studies(folder, "north")
    short = study["study"][:12]
    assert lines[0] == f"small: study {short} waits for north and coast, where a person decides:"
    assert lines[1] == f"  concilium studies show {folder / 'north.ledger'} {short}"
    assert lines[3] == (
        f"to go on then: concilium run {folder / 'study.toml'} --out {folder / 'out'} --resume"
    )
    assert (study["status"], study["answers"], study["spent"]) == ("waiting", 0, "0")
    assert (study["release"], study["price"]) == ("exact", None)
    assert study["terms"]["purpose"] == PURPOSE
    assert study["house"] == Identity.load(folder / "house.identity").fingerprint
    (agreed,) = studies(folder, "south")
    assert (agreed["status"], agreed["who"]) == ("agreed", "policy")
    assert not (folder / "out").exists()

    decide(folder, "agree", ("north",), short)
    again = run(folder, "--resume")
    assert "waits for coast, where" in again.stderr
    decide(folder, "agree", ("coast",), study["study"][:6])
    done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    (after,) = studies(folder, "north")
    assert after["study"] == study["study"]
    assert (after["status"], after["who"], after["why"]) == ("running", "Dr. Meyer", "ethics vote 12/26")
    assert after["unlimited_numbers"] > 100
    assert after["answers"] > 2

    card = json.loads((folder / "out" / "card.json").read_text())
    assert (card["study"], card["purpose"]) == (study["study"], PURPOSE)
    assert name_study((folder / "out" / "terms.json").read_bytes()) == study["study"]
    assert PURPOSE in (folder / "out" / "report.html").read_text()
    assert not list(folder.glob(".*.partial"))
    with Ledger.open_readonly(folder / "north.ledger") as book:
        assert book.verify() > 0
        (entry,) = [entry for entry in book.entries() if entry.kind == "study"]
        assert entry.note.startswith(f"{study['study']} agreed by Dr. Meyer: ethics vote 12/26 (signed ")
    assert "agreed by Dr. Meyer: ethics vote 12/26" in call("ledger", folder / "north.ledger").stdout


def test_a_list_is_a_table_with_names_of_houses(folder: Path, waiting: str) -> None:
    fingerprint = Identity.load(folder / "house.identity").fingerprint
    plain = call("studies", folder / "north.ledger")
    row = next(line for line in plain.stdout.splitlines() if waiting[:12] in line)
    ends = studies(folder, "north")[0]["terms"]["ends"]
    named = [PURPOSE if len(PURPOSE) <= 40 else f"{PURPOSE[:39]}…", "waiting", "tree: death", "everyone"]
    cells = [*named, "exact", f"{fingerprint[:9]}…", "–", "nothing", ends, waiting[:12]]
    assert row.split() == " ".join(cells).split()
    assert f"to decide: concilium studies show {folder / 'north.ledger'} {waiting[:12]}" in plain.stdout
    (folder / "pins.toml").write_text(f'[houses]\nnetwork = "{fingerprint.lower()}"\n')
    named = call("studies", "--policy", folder / "pins.toml", folder / "north.ledger")
    assert " network " in named.stdout
    assert studies(folder, "north", "--policy", folder / "pins.toml")[0]["house_name"] == "network"
    Ledger(folder / "new.ledger").close()
    assert call("studies", folder / "new.ledger").stdout.endswith("new.ledger: no study was proposed yet\n")


def test_looking_changes_nothing(folder: Path, waiting: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert call("studies", folder / "north.ledger").exit_code == 0
    assert call("studies", "show", folder / "north.ledger", waiting).exit_code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_page_says_who_what_how_and_until_when(folder: Path, waiting: str) -> None:
    page = call("studies", "show", folder / "north.ledger", waiting[:8], "--policy", folder / "north.toml")
    assert page.exit_code == 0, page.output
    assert all(len(line) <= 98 or str(folder) in line for line in page.stdout.splitlines())
    text = " ".join(page.stdout.split())
    for words in (
        f"Study {waiting[:12]}, proposed to north on",
        Identity.load(folder / "house.identity").fingerprint,
        "It is NOT pinned",
        PURPOSE,
        "A decision tree over all sites, to predict death.",
        "Patients: everyone, if death is known.",
        "Attributes: all that are not withheld.",
        "Cutoffs of age: 40, 60.",
        "counts of all attributes, once per level of the tree (counts; this hospital's own answer, as it is)",
        "max_depth = 3:",
        "3 hospitals at most: coast, north, south.",
        cc.Study.read(folder / "study.toml").way_out.meaning,
        "treat this as handing over these tables",
        "no budget protects from it",
        "30 days from today",
        "A person decides: it agrees to no 'tree' released as 'exact' by itself.",
        f"concilium studies agree {folder / 'north.ledger'} {waiting[:12]} --who NAME --why TEXT",
        waiting,
    ):
        assert words in text, words
    plain = json.loads(call("studies", "show", folder / "north.ledger", waiting, "--json").stdout)
    assert (plain["study"], plain["currency"], plain["left"]) == (waiting, "rho", "1")


def test_a_refusal_ends_the_run_with_its_reason(folder: Path, waiting: str) -> None:
    decide(folder, "agree", ("coast",), waiting)
    decide(folder, "refuse", ("north",), waiting)
    assert studies(folder, "north")[0]["status"] == "refused"
    result = run(folder, "--resume")
    assert result.exit_code == 0, result.output
    card = json.loads((folder / "out" / "card.json").read_text())
    assert [site["name"] for site in card["sites"]] == ["south", "coast"]
    (refusal,) = [one for one in card["refusals"] if one["rule"] == "refused"]
    assert (refusal["site"], refusal["reason"]) == (
        "north",
        "this hospital refused the study: ethics vote 12/26",
    )


def test_refused_by_all_is_a_clear_end(folder: Path) -> None:
    (folder / "south.toml").write_text(DECIDES)
    assert "waits for north, south and coast" in run(folder).stderr
    (study,) = studies(folder, "north")
    decide(folder, "refuse", HOSPITALS, study["study"])
    result = run(folder, "--resume")
    assert is_one_sentence(result, "no site answered", "this hospital refused the study: ethics vote 12/26")
    assert not (folder / "out").exists()


def test_a_masked_study_that_a_hospital_refuses_says_who_and_why(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(path.read_text() + '[privacy]\nrelease = "masked"\n')
    assert "waits for north and coast" in run(folder).stderr
    (study,) = studies(folder, "north")
    decide(folder, "agree", ("coast",), study["study"])
    decide(folder, "refuse", ("north",), study["study"])
    words = ("north: this hospital refused the study: ethics vote 12/26", "at least 3 are needed")
    assert is_one_sentence(run(folder, "--resume"), *words)
    decide(folder, "agree", ("north",), study["study"])  # they have thought again
    done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "out" / "card.json").read_text())["study"] == study["study"]


def test_a_study_that_is_ended_midway_is_answered_no_more(
    folder: Path, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends it while it runs."""
    decide(folder, "agree", ("north", "coast"), waiting)
    answer = Site.answer
    questions = 0

    def end_after_three(site: Site, message: bytes) -> bytes:
        nonlocal questions
        if site.name == "north":
            questions += 1
            if questions == 4:
                command = [sys.executable, "-m", "concilium.cli.main", "studies", "end"]
                subprocess.run([*command, str(folder / "north.ledger"), waiting, *WHO], check=True)
        return answer(site, message)

    monkeypatch.setattr(Site, "answer", end_after_three)
    result = run(folder, "--resume")
    assert result.exit_code == 0, result.output
    card = json.loads((folder / "out" / "card.json").read_text())
    assert [site["name"] for site in card["sites"]] == ["south", "coast"]
    assert {(one["site"], one["rule"]) for one in card["refusals"]} == {("north", "ended")}
    assert card["refusals"][0]["reason"] == "this hospital ended the study: ethics vote 12/26"
    (ended,) = studies(folder, "north")
    assert (ended["status"], ended["answers"]) == ("ended", 2)
    again = call("studies", "agree", folder / "north.ledger", waiting, *WHO)
    assert is_one_sentence(again, "is ended by Dr. Meyer: ethics vote 12/26; it is not taken up again")


def test_waiting_is_over_when_people_have_decided(folder: Path) -> None:
    """The run holds the ledgers open while other processes agree."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "concilium.cli.main", "run", str(folder / "study.toml")]
    with subprocess.Popen(
        [*command, "--out", str(folder / "out"), "--wait", "60"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stderr is not None
        first = [process.stderr.readline() for _ in range(4)]
        assert "waits for north and coast" in first[0]
        assert first[3] == "waiting 60 s for that\n"
        time.sleep(0.5)
        (study,) = studies(folder, "north")
        decide(folder, "agree", ("north", "coast"), study["study"])
        assert process.wait(600) == 0
    assert json.loads((folder / "out" / "card.json").read_text())["study"] == study["study"]


def test_patience_that_ends_says_so_and_the_run_can_be_resumed(folder: Path) -> None:
    result = run(folder, "--wait", "0.2")
    assert result.exit_code == 2
    assert result.stderr.count("waits for north and coast") == 2
    assert "--resume" in result.stderr.splitlines()[-1]
    assert len(studies(folder, "north")) == 1


def test_from_python_a_run_that_waits_is_resumed(folder: Path) -> None:
    study = cc.Study.read(folder / "study.toml")
    with pytest.raises(StudyPending, match="waits for north, coast") as caught:
        study.run(folder / "out")
    assert caught.value.sites == ("north", "coast")
    decide(folder, "agree", caught.value.sites, caught.value.study)
    assert study.run(folder / "out", resume=True).card.study == caught.value.study
    with pytest.raises(HouseError, match="a run without a folder is forgotten") as forgotten:
        study.run()
    assert not isinstance(forgotten.value, StudyPending)


def test_one_character_more_is_another_study(folder: Path, waiting: str) -> None:
    decide(folder, "agree", ("north", "coast"), waiting)
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace("can be planned.", "can be planned!"))
    assert is_one_sentence(run(folder, "--resume"), "have changed since", "run it again without --resume")
    assert "waits for north and coast" in run(folder).stderr
    first, second = studies(folder, "north")
    assert (first["study"], first["status"], second["status"]) == (waiting, "agreed", "waiting")
    assert second["study"] != waiting


def test_a_changed_ledger_gives_no_agreement(folder: Path, waiting: str) -> None:
    """Somebody changes the terms in the file by one character, or has them agreed to without the hospital's key."""
    path = folder / "north.ledger"
    with sqlite3.connect(path) as database:
        (terms,) = database.execute("SELECT terms FROM study").fetchone()
        changed = terms.replace(b"can be planned.", b"can be planned!")
        assert changed != terms
        database.execute("UPDATE study SET terms = ?", (changed,))
    database.close()
    assert is_one_sentence(
        call("studies", "agree", path, waiting, *WHO), "cannot be agreed to: its terms were changed"
    )
    page = call("studies", "show", path, waiting)
    assert page.exit_code == 0
    assert "its terms were changed since they were proposed" in " ".join(page.stdout.split())
    assert "not readable" in call("studies", path).stdout
    with sqlite3.connect(path) as database:
        database.execute("UPDATE study SET terms = ?, status = 'agreed', who = 'me', why = 'so'", (terms,))
    database.close()
    page = " ".join(call("studies", "show", path, waiting).stdout.split())
    assert "The file says agreed by me, but this hospital's identity did not sign that" in page
    listed = json.loads(call("studies", path, "--json").stdout)["studies"]
    assert [(study["status"], "did not sign" in study["problem"]) for study in listed] == [("waiting", True)]
    hidden = path.with_name("north.ledger.identity").rename(folder / "elsewhere")
    assert "Whether the hospital signed that" in call("studies", "show", path, waiting).stdout
    found = call("studies", "show", path, waiting, "--identity", hidden).stdout
    assert "did not sign that" in " ".join(found.split())
    hidden.rename(path.with_name("north.ledger.identity"))
    assert "waits for north and coast" in run(folder, "--resume").stderr
    decide(folder, "agree", ("north", "coast"), waiting)
    assert run(folder, "--resume").exit_code == 0
    assert "did not sign" not in call("studies", "show", path, waiting).stdout


def test_decisions_that_cannot_be_are_one_sentence(folder: Path, waiting: str) -> None:
    path = folder / "north.ledger"
    assert is_one_sentence(
        call("studies", "end", path, waiting, *WHO), "is waiting; it can be agreed to or refused"
    )
    assert is_one_sentence(call("studies", "agree", path, "zz", *WHO), "no study whose id begins with 'zz'")
    assert is_one_sentence(call("studies", "show", path, ""), "1 studies whose id begins with ''")
    assert run(folder).exit_code == 2
    ids = [study["study"] for study in studies(folder, "north")]
    with Ledger(folder / "alike.ledger") as book:
        for last in "01":
            book.studies.wait("ab" * 31 + f"a{last}", b"{}", b"", None)
    alike = call("studies", "agree", folder / "alike.ledger", "ab", *WHO, "--identity", f"{path}.identity")
    assert is_one_sentence(alike, "2 studies whose id begins with 'ab'; give more of the id")
    decide(folder, "agree", ("north",), waiting)
    assert is_one_sentence(
        call("studies", "agree", path, waiting, *WHO),
        f"study {waiting[:12]} is agreed already by Dr. Meyer: ethics vote 12/26; it can be ended",
    )
    assert is_one_sentence(
        call("studies", "refuse", path, waiting, *WHO), "is agreed by Dr. Meyer", "it can be ended"
    )
    assert is_one_sentence(
        call("studies", "refuse", path, ids[1], "--who", " ", "--why", "x"), "says who decided, and why"
    )
    assert is_one_sentence(
        call("studies", "refuse", path, ids[1], "--who", "a\x1b[2J", "--why", "x"), "printable"
    )
    assert call("studies", "agree", path, ids[1]).exit_code == 2
    assert is_one_sentence(call("studies", folder / "none.ledger"), "there is no ledger")
    assert is_one_sentence(call("studies", "agree", folder / "none.ledger", "ab", *WHO), "there is no ledger")
    wrong = call("studies", "agree", path, ids[1], *WHO, "--identity", folder / "south.ledger.identity")
    assert is_one_sentence(wrong, "is the ledger of north (", "name the identity file of that hospital")
    absent = call("studies", "agree", path, ids[1], *WHO, "--identity", folder / "no.identity")
    assert is_one_sentence(absent, "no.identity")
    assert not (folder / "no.identity").exists()
    assert [study["status"] for study in studies(folder, "north")] == ["agreed", "waiting"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to whatever it likes")
def test_a_ledger_that_cannot_be_written_is_one_sentence(folder: Path, waiting: str) -> None:
    (folder / "north.ledger").chmod(0o400)
    assert is_one_sentence(call("studies", "agree", folder / "north.ledger", waiting, *WHO), "north.ledger")


def test_terms_that_are_over_are_agreed_to_by_nobody(
    folder: Path, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("consult.consent", "protocol.studies"):
        monkeypatch.setattr(f"concilium.{module}.today", lambda: date(2999, 1, 1))
    assert studies(folder, "north")[0]["status"] == "ended"
    assert (
        "None was made before its last day."
        in call("studies", "show", folder / "north.ledger", waiting).stdout
    )
    assert is_one_sentence(
        call("studies", "agree", folder / "north.ledger", waiting, *WHO), "nothing left to agree to"
    )
    assert is_one_sentence(run(folder, "--resume"), "no site answered", "this study ended on")


def test_an_unknown_house_is_refused_and_a_pinned_one_is_asked_to_wait(folder: Path) -> None:
    for name in HOSPITALS:
        (folder / f"{name}.toml").write_text('[houses]\nother = "ABCD-EFGH-ABCD-EFGH-ABCD-EFGH-ABCD-EFGH"\n')
    fingerprint = call("identity", folder / "house.identity").stdout.split()[0]
    result = run(folder)
    assert is_one_sentence(result, "will refuse", "is not known at this hospital", "[houses]", fingerprint)
    assert not (folder / "north.ledger").exists()
    for name in HOSPITALS:
        (folder / f"{name}.toml").write_text(f'[houses]\nnetwork = "{fingerprint}"\n[agree]\nmethods = []\n')
    assert "waits for north, south and coast" in run(folder).stderr


def test_what_no_committee_could_read_is_one_sentence(folder: Path) -> None:
    private = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\ndeath = [0, 1]\nsex = ["f", "VALUE"]\n'
    text = (folder / "study.toml").read_text() + private
    (folder / "study.toml").write_text(text.replace("VALUE", "m" * 10_000_000))
    result = run(folder)
    assert result.exit_code == 2
    assert len(result.stderr) < 2000  # what does not fit the tables is said too, and short
    last = result.stderr.splitlines()[-1]
    for words in ("this study cannot be proposed", "at most 262,144 bytes", "a committee can read"):
        assert words in last
    assert studies(folder, "north") == []


def test_where_people_decide_there_is_a_ledger(folder: Path) -> None:
    text = SPLIT.replace('by = "hospital"', 'by = "hospital"\npolicy = "north.toml"')
    (folder / "study.toml").write_text(text)
    assert is_one_sentence(run(folder), "there is no ledger to do that in")
    assert not list(folder.glob(".*.partial"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("days = 0", "[house] days must be a whole number from 1 to 366; got 0"),
        ("patience = -1", "[house] patience must be a number of seconds from 0; got -1"),
        ('identity = ""', "[house] identity must be text"),
    ],
)
def test_what_a_house_cannot_be_is_one_sentence(folder: Path, line: str, words: str) -> None:
    (folder / "study.toml").write_text(STUDY + line)
    assert is_one_sentence(run(folder), words)


@pytest.mark.parametrize(
    ("purpose", "words"),
    [("x" * 2001, "a text of at most 2000 characters"), ("\\u001b[2J", "words that can be printed")],
)
def test_a_purpose_that_nobody_could_read_is_one_sentence(folder: Path, purpose: str, words: str) -> None:
    (folder / "study.toml").write_text(STUDY.replace(PURPOSE, purpose))
    assert is_one_sentence(run(folder), "[study] purpose must be", words)


def test_days_and_a_purpose_of_several_lines_are_in_the_terms(folder: Path) -> None:
    text = STUDY.replace(f'"{PURPOSE}"', '"""\nBurns,\n  and who dies."""') + "days = 3\n"
    (folder / "study.toml").write_text(text)
    run(folder)
    (study,) = studies(folder, "north")
    assert study["terms"]["purpose"] == "Burns, and who dies."
    page = call("studies", "show", folder / "north.ledger", study["study"]).stdout
    assert re.search(r"\(UTC\), then nothing more is answered; 3 days from\s+today", page)
    (folder / "study.toml").write_text(STUDY.replace(f'purpose = "{PURPOSE}"\n', ""))
    run(folder)
    assert studies(folder, "north")[-1]["terms"]["purpose"] == "small"


def test_the_ledger_speaks_in_names(folder: Path, waiting: str) -> None:
    said = call("ledger", folder / "north.ledger").stdout
    assert f"{folder / 'north.ledger'}: the ledger of north" in said
    row = next(line for line in said.splitlines() if waiting[:12] in line)
    assert row.split()[:2] == PURPOSE.split()[:2]
    assert "tree: death" in row
    assert row.rstrip().endswith(waiting[:12])
    plain = json.loads(call("ledger", folder / "north.ledger", "--json").stdout)
    assert plain["studies"][waiting]["asks"] == "tree: death"
