"""A backup holds all that was entered, also while its site runs; put back, it is noticed."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.errors import LedgerError
from concilium.ledger.ledger import Ledger
from concilium.privacy.identity import Identity

WRITER = """
import sys
from concilium.ledger.ledger import Ledger
book = Ledger(sys.argv[1])
number = 0
while True:
    book.charge(f"q{number}", "d", study="s", kind="k", mode="exact", numbers=1, seal=lambda head: b"a")
    number += 1
    print(number, flush=True)
"""


def charge(book: Ledger, number: int) -> None:
    book.charge(f"q{number}", "d", study="s", kind="k", mode="exact", numbers=1, seal=lambda head: b"a")


def back_up(file: Path, out: Path) -> str:
    done = CliRunner().invoke(app, ["ledger", "backup", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_copy_misses_what_is_in_the_log_and_a_backup_does_not(tmp_path: Path) -> None:
    file = tmp_path / "north.ledger"
    identity = Identity.at(f"{file}.identity")
    with Ledger(file, site="north") as book:
        for number in range(30):
            charge(book, number)
        shutil.copyfile(file, tmp_path / "copy.ledger")
        said = back_up(file, tmp_path / "backup.ledger")
        head = book.head()
    with Ledger.open_readonly(tmp_path / "copy.ledger") as copy:
        assert copy.head().count < head.count
    with Ledger.open_readonly(tmp_path / "backup.ledger") as copy:
        copy.verify()
        assert copy.head() == head
    assert head.hash in said
    for path in (tmp_path / "backup.ledger", tmp_path / "backup.ledger.identity"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(tmp_path / "backup.ledger.identity").public == identity.public
    names = {path.name for path in tmp_path.glob("backup*")}
    assert names == {
        "backup.ledger",
        "backup.ledger.identity",
    }  # no head, by which it would pass for the newest


def test_backups_of_a_ledger_that_another_process_writes_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "north.ledger"
    Ledger(file).close()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        counts = []
        for number in range(5):
            entered = int(writer.stdout.readline())
            back_up(file, tmp_path / f"{number}.ledger")
            with Ledger.open_readonly(tmp_path / f"{number}.ledger") as copy:
                counts.append(copy.verify())
            assert counts[-1] >= entered
        assert counts == sorted(counts)
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize("head", ["kept", "lost"])
def test_a_backup_that_is_put_back_is_noticed_and_goes_on_with_a_reason(tmp_path: Path, head: str) -> None:
    file = tmp_path / "north.ledger"
    with Ledger(file) as book:
        charge(book, 0)
        back_up(file, tmp_path / "backup.ledger")
        charge(book, 1)
    for ending in ("-wal", "-shm"):
        Path(f"{file}{ending}").unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "backup.ledger", file)
    if head == "lost":
        Path(f"{file}.head").unlink()
    with pytest.raises(LedgerError, match="is not as it was left"):
        Ledger(file)
    Ledger.accept_restored(file, "the disk failed")
    with Ledger(file) as book:
        charge(book, 2)
        book.verify()


def test_a_backup_replaces_nothing_and_a_ledger_that_is_not_there_is_said(tmp_path: Path) -> None:
    file = tmp_path / "north.ledger"
    Ledger(file).close()
    Identity.at(f"{file}.identity")
    for name in ("taken", "half"):
        (tmp_path / (name if name == "taken" else f"{name}.identity")).write_bytes(b"precious")
        done = CliRunner().invoke(app, ["ledger", "backup", str(file), "--out", str(tmp_path / name)])
        assert done.exit_code == 2
        assert "there is a file already" in done.stderr
    assert not (tmp_path / "half").exists()
    assert (tmp_path / "taken").read_bytes() == b"precious"
    done = CliRunner().invoke(app, ["ledger", "backup", str(tmp_path / "none"), "--out", str(tmp_path / "a")])
    assert "there is no ledger" in done.stderr
