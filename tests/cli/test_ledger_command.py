"""`concilium ledger`: the book as people and as machines read it, and one that does not add up."""

from __future__ import annotations

import json
import sqlite3
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.ledger.ledger import Ledger
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["ledger", *arguments], env={"COLUMNS": "160"})


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "north.ledger"
    with Ledger(path, site="north", records="ab" * 32, budget=Fraction(1, 2)) as ledger:
        ledger.charge(
            "q1", "d1", study="burns", kind="tree.schema", mode="exact", numbers=12, seal=lambda head: b"1"
        )
        ledger.charge(
            "q2", "d2", study="burns", kind="tree.cross", mode="private", cost=Fraction(1, 3), numbers=40,
            seal=lambda head: b"2",
        )  # fmt: skip
        ledger.refuse("burns", "tree.cross", "q3", "budget")
        ledger.set_budget(Fraction(3, 4), "the board agreed")
    return path


@pytest.mark.parametrize("show", [[], ["show"]])
def test_the_book_is_a_table_and_a_balance(book: Path, show: list[str]) -> None:
    result = ask(*show, str(book))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    (schema,) = [line for line in lines if "tree.schema" in line]
    assert schema.split()[-4:] == ["exact", "unlimited", "12", "burns"]
    (cross,) = [line for line in lines if "tree.cross" in line]
    epsilon = say_epsilon(epsilon_from_rho(Fraction(1, 3), Fraction(1, 10**6)), digits=4)
    assert cross.split()[-5:-1] == ["private", "epsilon", epsilon, "40"]
    assert any("the board agreed" in line and "settings" in line for line in lines)
    assert "2 releases, 1 refusal" in lines
    assert "12 numbers left without a bound on what they tell (epsilon = unlimited)" in lines
    assert lines[-1].startswith("rho = ~0.333333 is spent (epsilon = ")
    assert lines[-1].endswith("; ~0.416667 is left")


def test_machines_get_exact_numbers(book: Path) -> None:
    plain = json.loads(ask("show", str(book), "--json").stdout)
    assert (plain["spent"], plain["left"], plain["currency"], plain["site"]) == (
        "1/3",
        "5/12",
        "rho",
        "north",
    )
    assert [entry["cost"] for entry in plain["entries"]] == [None, "1/3", None]
    assert [entry["release"] for entry in plain["entries"]] == ["exact", "private", "settings"]
    assert [refusal["rule"] for refusal in plain["refusals"]] == ["budget"]


HOSTILE = "a\x1b[2J\x9b31m\u202eb\x00\x7f\rc\nd"


def test_a_study_of_an_older_ledger_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    """Before names had to be printable, a house could have the steward's screen cleared, or a line written over."""
    path = tmp_path / "old.ledger"
    with Ledger(path) as ledger:
        ledger.charge("q\x1b1", "d1", study=HOSTILE[:8], kind=HOSTILE, mode="exact", seal=lambda head: b"1")
        ledger.refuse(HOSTILE, HOSTILE, HOSTILE, "kind")
        ledger.set_budget(1, HOSTILE)
    shown = ask(str(path)).stdout
    assert "a\\x1b[2J" in shown
    plain = ask("show", str(path), "--json").stdout
    for text in (shown, plain):
        assert all(line.isprintable() for line in text.split("\n"))
    read = json.loads(plain)
    assert read["refusals"][0]["study"] == HOSTILE
    assert read["entries"][0]["question"] == "q\x1b1"


def test_a_book_without_releases_says_so(tmp_path: Path) -> None:
    Ledger(tmp_path / "new.ledger").close()
    assert (
        ask(str(tmp_path / "new.ledger")).stdout
        == "0 releases, 0 refusals\nrho = 0 is spent; no budget is set: rho = 1 holds from when its site opens it\n"
    )


def test_a_whole_book_verifies(book: Path) -> None:
    result = ask("verify", str(book))
    assert result.exit_code == 0
    with Ledger.open_readonly(book) as ledger:
        assert ledger.head().hash in result.stdout
        assert json.loads(ask("verify", str(book), "--json").stdout)["entries"] == ledger.verify()


def test_a_changed_entry_is_found(book: Path) -> None:
    with sqlite3.connect(book) as database:
        for (trigger,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE entries SET numbers = 1 WHERE kind = 'tree.cross'")
    database.close()
    result = ask("verify", str(book))
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert str(book) in result.stderr


@pytest.mark.parametrize("command", ["show", "verify"])
def test_what_is_not_a_ledger_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "text.ledger").write_text("not a ledger\n" * 50)
    result = ask(command, str(tmp_path / "text.ledger"))
    assert result.exit_code == 2
    assert "text.ledger" in result.stderr
    result = ask(command, str(tmp_path / "none.ledger"))
    assert result.exit_code == 2
    assert "none.ledger" in result.stderr
    assert not (tmp_path / "none.ledger").exists()


def test_looking_changes_nothing(book: Path) -> None:
    before = {path.name: path.read_bytes() for path in book.parent.iterdir()}
    ask("show", str(book))
    ask("verify", str(book))
    assert {path.name: path.read_bytes() for path in book.parent.iterdir()} == before


def test_a_budget_is_set_anew_with_its_reason(book: Path) -> None:
    result = ask("budget", str(book), "3/2", "--reason", "the committee agreed")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith("; ~1.16667 is left")
    with Ledger.open_readonly(book) as ledger:
        assert ledger.settings.budget == Fraction(3, 2)
        assert ledger.entries()[-1].note == "the committee agreed"
    assert ask("budget", str(book), "none", "--reason", "no cap").exit_code == 0
    with Ledger.open_readonly(book) as ledger:
        assert ledger.balance().left is None


@pytest.mark.parametrize(("amount", "said"), [("1/4", "cannot"), ("much", "much"), ("-1", "-1")])
def test_a_budget_that_cannot_be_is_one_sentence(book: Path, amount: str, said: str) -> None:
    result = ask("budget", "--reason", "x", str(book), "--", amount)
    assert result.exit_code == 2
    assert said in result.stderr
    with Ledger.open_readonly(book) as ledger:
        assert ledger.settings.budget == Fraction(3, 4)


def test_a_changed_table_is_bound_and_what_is_spent_stays_spent(book: Path, tmp_path: Path) -> None:
    from concilium.records.table import Records

    (tmp_path / "north.csv").write_text("age,race,y\n40,5,1\n50,3,0\n")
    result = ask("rebind", str(book), str(tmp_path / "north.csv"), "--site", "north")
    assert result.exit_code == 0, result.output
    digest = Records.read(tmp_path / "north.csv", schema={"race": "code"}).digest
    with Ledger(book, site="north", records=digest) as ledger:
        assert ledger.spent() == Fraction(1, 3)


def test_rebinding_says_whom_it_remembers_and_forgets_only_with_a_reason(tmp_path: Path) -> None:
    import concilium as cc

    lines = ["age,sex,y", *(f"{40 + row},{'fm'[row % 2]},{row % 3 % 2}" for row in range(12))]
    table, file = tmp_path / "north.csv", tmp_path / "north.ledger"
    table.write_text("\n".join(lines) + "\n")
    site = cc.Site("north", cc.Records.read(table), ledger=file)
    cc.NaiveBayes("y").fit(cc.House([site]))
    site.ledger.close()
    table.write_text("\n".join([lines[0], *lines[:3:-1], "90,f,1"]) + "\n")
    result = ask("rebind", str(file), str(table))
    assert result.exit_code == 0, result.output
    assert "of 12 patients who are remembered, 9 are in the table as they were" in result.stdout
    table.write_text("\n".join(line.partition(",")[2] for line in lines) + "\n")
    result = ask("rebind", str(file), str(table))
    assert result.exit_code == 2
    assert "columns that are gone, such as 'age'" in result.stderr
    forget = ("--forget", "ages are not kept any more")
    result = ask("rebind", str(file), str(table), *forget)
    assert result.exit_code == 2
    assert "remembers no patients by whom to tell" in result.stderr
    result = ask("rebind", str(file), str(table), *forget, "--site", "north")
    assert result.exit_code == 0, result.output
    with Ledger.open_readonly(file) as ledger:
        assert ledger.entries()[-1].note.endswith("forgotten: ages are not kept any more")
        assert ledger.recall_patients() is None


def test_changing_a_ledger_never_makes_one(tmp_path: Path) -> None:
    for arguments in (["budget", "x.ledger", "1", "--reason", "r"], ["rebind", "x.ledger", "x.csv"]):
        result = ask(arguments[0], str(tmp_path / arguments[1]), *arguments[2:])
        assert result.exit_code == 2
        assert "there is no ledger" in result.stderr
    assert list(tmp_path.iterdir()) == []
