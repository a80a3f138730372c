"""Two hospitals' ledgers are swapped, as files are: every sentence says so, and no advice leads to the wrong book."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from small_study import SEVERAL, lay_out


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def swap(folder: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        north, south = folder / f"north.ledger{suffix}", folder / f"south.ledger{suffix}"
        north.rename(folder / "held")
        south.rename(north)
        (folder / "held").rename(south)


def read_books(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.ledger"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    study = lay_out(tmp_path, SEVERAL)
    assert call("run", study, "--out", tmp_path / "first")[0] == 0
    return tmp_path


def refuse(folder: Path, *words: str) -> None:
    code, said = call("run", folder / "study.toml", "--out", folder / "second")
    assert code == 2
    for word in words:
        assert word in said
    assert "accept-restored" not in said


def test_ledgers_alone(folder: Path) -> None:
    swap(folder, "")
    before = read_books(folder)
    refuse(folder, "is the ledger of 'south', and was given to 'north'", "put the files back")
    for command in (
        ("accept-restored", "north.ledger", "--reason", "the message said so"),
        ("rebind", "north.ledger", folder / "north.csv"),
        ("rebind", "north.ledger", folder / "north.csv", "--forget", "start anew"),
        ("rebind", "north.ledger", folder / "north.csv", "--forget", "start anew", "--site", "south"),
    ):
        code, said = call("ledger", command[0], folder / command[1], *command[2:])
        assert code == 2
        assert "is the ledger of 'south'" in said
    assert read_books(folder) == before
    swap(folder, "")
    assert call("run", folder / "study.toml", "--out", folder / "second")[0] == 0


def test_ledgers_with_their_heads(folder: Path) -> None:
    swap(folder, "", ".head")
    before = read_books(folder)
    refuse(folder, "is the ledger of 'south', and was given to 'north'", "in another hospital's book")
    for more in ((), ("--forget", "start anew"), ("--forget", "start anew", "--site", "south")):
        code, said = call("ledger", "rebind", folder / "north.ledger", folder / "north.csv", *more)
        assert code == 2
        assert "is the ledger of 'south', and north.ledger.identity beside it is another hospital's" in said
    with (
        cc.Ledger(folder / "north.ledger") as book,
        pytest.raises(cc.errors.LedgerError, match="another hospital's"),
    ):
        book.rebind(cc.Records.read(folder / "north.csv").digest, forget="start anew")
    assert read_books(folder) == before


def test_everything(folder: Path) -> None:
    """Whole sets of files, or a study file that names the wrong ones."""
    swap(folder, "", ".head", ".identity")
    before = read_books(folder)
    refuse(folder, "is the ledger of 'south', and was given to 'north'")
    code, said = call("ledger", "rebind", folder / "north.ledger", folder / "north.csv")
    assert code == 2
    assert "patients whom it remembers" in said
    assert "looks like another hospital's table" in said
    code, said = call("ledger", "rebind", folder / "north.ledger", folder / "north.csv", "--site", "north")
    assert code == 2
    assert "is the ledger of 'south', not of 'north'" in said
    assert read_books(folder) == before


@pytest.mark.parametrize("identity", ["as it was", "gone", "spoilt"])
def test_everything_and_patients_to_be_forgotten(folder: Path, identity: str) -> None:
    """What is forgotten is looked at first: it tells whose table it is, where it can be told."""
    swap(folder, "", ".head", ".identity")
    if identity == "gone":
        (folder / "north.ledger.identity").unlink()
    elif identity == "spoilt":
        (folder / "north.ledger.identity").write_text("{}")
    before = read_books(folder)
    rebind = ("ledger", "rebind", folder / "north.ledger", folder / "north.csv", "--forget", "start anew")
    code, said = call(*rebind)
    assert code == 2
    assert "looks like another hospital's table" in said
    code, said = call(*rebind, "--site", "north")
    assert code == 2
    assert "is the ledger of 'south', not of 'north'" in said
    (folder / "north.csv").write_text("other,columns\n1,2\n3,4\n")
    code, said = call(*rebind)
    assert code == 2
    assert "remembers no patients by whom to tell" in said
    assert read_books(folder) == before


def test_a_restored_ledger_forgets_nothing(folder: Path) -> None:
    shutil.copy(folder / "north.ledger", folder / "backup")
    assert call("run", folder / "study.toml", "--out", folder / "second")[0] == 0
    shutil.copy(folder / "backup", folder / "north.ledger")
    before = read_books(folder)
    code, said = call(
        "ledger", "rebind", folder / "north.ledger", folder / "north.csv", "--forget", "start anew"
    )
    assert code == 2
    assert "backup" in said
    assert read_books(folder) == before


def test_a_ledger_that_remembers_nobody_is_not_bound_without_the_hospital_s_name(folder: Path) -> None:
    """Private studies leave nobody to compare."""
    file = folder / "fourth.ledger"
    digest = cc.Records.read(folder / "south.csv").digest
    cc.Ledger(file, site="south (0123)", records=digest).close()
    code, said = call("ledger", "rebind", file, folder / "north.csv")
    assert code == 2
    assert "is the ledger of 'south', and remembers no patients by whom to tell" in said
    assert "--site south" in said
    assert call("ledger", "rebind", file, folder / "north.csv", "--site", "north")[0] == 2
    assert call("ledger", "rebind", file, folder / "south.csv")[0] == 0  # as it is
    assert call("ledger", "rebind", file, folder / "north.csv", "--site", "south")[0] == 0


def test_patients_are_forgotten_where_the_table_is_the_hospital_s(folder: Path) -> None:
    code, said = call(
        "ledger", "rebind", folder / "north.ledger", folder / "north.csv", "--forget", "the committee agreed"
    )
    assert code == 0, said
    assert "is forgotten" in said
    with cc.Ledger.open_readonly(folder / "north.ledger") as book:
        assert book.recall_patients() is None


def test_a_table_that_changed_is_bound_as_before(folder: Path) -> None:
    table = (folder / "north.csv").read_text().splitlines()
    (folder / "north.csv").write_text("\n".join([*table, table[1]]) + "\n")
    code, said = call("run", folder / "study.toml", "--out", folder / "second")
    assert code == 2
    assert "rebind the ledger to it" in said
    code, said = call("ledger", "rebind", folder / "north.ledger", folder / "north.csv")
    assert code == 0, said
    assert call("run", folder / "study.toml", "--out", folder / "second")[0] == 0


def test_a_wholly_new_table_needs_the_hospital_s_name(folder: Path) -> None:
    shutil.copy(folder / "coast.csv", folder / "north.csv")
    assert call("ledger", "rebind", folder / "north.ledger", folder / "north.csv")[0] == 2
    code, said = call("ledger", "rebind", folder / "north.ledger", folder / "north.csv", "--site", "north")
    assert code == 0, said
    with cc.Ledger.open_readonly(folder / "north.ledger") as book:
        assert book.entries()[-1].kind == "rebind"
