"""A folder whose names were changed is never taken for unchanged."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from concilium.errors import LedgerError
from concilium.ledger import file as ledger_file
from concilium.ledger.file import _FolderWatch
from concilium.ledger.ledger import Ledger

SETTLED = 2 * ledger_file.TICK / 1e9


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    (place / "a").write_text("a")
    (tmp_path / "other").write_text("b")
    time.sleep(SETTLED)
    return place


def trust(watch: _FolderWatch) -> None:
    state = watch.look()
    assert state is not None
    watch.trust(state)


def move_in(place: Path) -> None:
    (place.parent / "other").replace(place / "a")


def put_back_the_times(place: Path) -> None:
    before = place.stat()
    move_in(place)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange_the_folder(place: Path) -> None:
    copy = place.parent / "copy"
    shutil.copytree(place, copy)
    place.rename(place.parent / "former")
    copy.rename(place)


@pytest.mark.parametrize(
    "change",
    [
        move_in,
        put_back_the_times,
        exchange_the_folder,
        lambda place: (place / "a").unlink(),
        lambda place: (place / "a").rename(place / "b"),
        lambda place: (place / "b").write_text("new"),
        lambda place: shutil.rmtree(place),
    ],
)
def test_each_change_of_a_name_is_seen(folder, change):
    watch = _FolderWatch(folder)
    trust(watch)
    assert watch.look() is None
    (folder / "a").write_text("longer, and no name changed")
    assert watch.look() is None
    change(folder)
    assert watch.look() is not None


def test_a_folder_that_changed_just_now_is_looked_at_again(folder, monkeypatch):
    changed = folder.stat().st_mtime_ns
    watch = _FolderWatch(folder)
    for later, trusted in (
        (-1, False),
        (0, False),
        (ledger_file.TICK, False),
        (ledger_file.TICK + 1, True),
    ):
        monkeypatch.setattr(ledger_file.time, "time_ns", lambda later=later: changed + later)
        trust(watch)
        assert (watch.look() is None) == trusted


def test_times_of_whole_seconds_settle_later(monkeypatch):
    watch, now = _FolderWatch(Path("/")), 1_800_000_000 * 10**9
    monkeypatch.setattr(ledger_file.time, "time_ns", lambda: now)
    for ago, trusted in ((0, False), (1, False), (2, False), (3, True)):
        state = (now - ago * 10**9, now - ago * 10**9, 1, 1)
        watch.trust(state)
        assert (watch._known == state) == trusted


@pytest.mark.parametrize("ending", [".head", "-wal"])
@pytest.mark.parametrize("is_removed", [True, False])
def test_files_beside_a_ledger_are_not_exchanged_once_it_has_settled(tmp_path, ending, is_removed):
    path = tmp_path / "north.ledger"

    def charge(ledger, question):
        return ledger.charge(
            question, "0" * 64, study="s", kind="k", mode="exact", seal=lambda head: question.encode()
        )

    with Ledger(path) as ledger:
        for number in range(3):
            time.sleep(SETTLED)
            charge(ledger, f"before {number}")
        assert ledger._file.disk.folder.look() is None
        beside = Path(f"{path}{ending}")
        if is_removed:
            beside.unlink()
        else:
            shutil.copy(beside, tmp_path / "copy")
            (tmp_path / "copy").replace(beside)
        for _ in range(2):
            with pytest.raises(LedgerError, match="removed or replaced while"):
                charge(ledger, "after")
