from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mask_circle import new_store

from concilium.privacy import mask_store
from concilium.privacy.mask_store import MaskedAnswer, SqliteMaskStore

FIRST = MaskedAnswer(b"study", b"content", b"label", b"participants", ("a", "b", "c"), b"seed", b"vector")


def test_a_study_key_is_kept_until_the_study_ends() -> None:
    store = new_store()
    assert store.study_key(b"study") is None
    assert not store.has_ended(b"study")
    with store.transaction():
        store.enroll(b"study", b"key")
    assert store.study_key(b"study") == b"key"
    assert not store.has_ended(b"study")
    with store.transaction():
        store.end(b"study")
    assert store.study_key(b"study") is None
    assert store.has_ended(b"study")
    assert not store.has_ended(b"another")


def test_an_answer_comes_back_as_it_was_kept() -> None:
    store = new_store()
    assert store.find(b"study", b"content") is None
    with store.transaction():
        store.keep(FIRST)
    assert store.find(b"study", b"content") == FIRST
    assert store.find(b"study", b"another") is None
    assert store.find(b"another", b"content") is None


def test_a_question_of_a_study_is_answered_once() -> None:
    store = new_store()
    with store.transaction():
        store.keep(FIRST)
    with pytest.raises(sqlite3.IntegrityError), store.transaction():
        store.keep(replace(FIRST, label=b"label 2", seed=b"seed 2"))
    assert store.find(b"study", b"content") == FIRST


def test_openings_are_found_in_whatever_study() -> None:
    store = new_store()
    with store.transaction():
        store.keep(FIRST)
        store.keep(replace(FIRST, study=b"later"))
        store.keep(replace(FIRST, content=b"another"))
    assert store.openings(b"content") == []
    with store.transaction():
        store.open(FIRST, b"transcript")
    opened = replace(FIRST, opened=b"transcript")
    assert store.openings(b"content") == [opened]
    assert store.find(b"study", b"content") == opened
    assert store.openings(b"another") == []


def test_an_ended_study_keeps_what_it_opened_but_no_secret() -> None:
    store = new_store()
    with store.transaction():
        store.enroll(b"study", b"key")
        store.keep(FIRST)
        store.keep(replace(FIRST, content=b"unopened"))
        store.keep(replace(FIRST, study=b"another"))
        store.open(FIRST, b"transcript")
        store.end(b"study")
    left = store.find(b"study", b"content")
    assert left == replace(FIRST, opened=b"transcript", seed=b"", vector=b"")
    assert store.find(b"study", b"unopened") is None
    assert store.find(b"another", b"content") == replace(FIRST, study=b"another")
    assert len(store.openings(b"content")) == 1


def test_a_transaction_that_fails_leaves_nothing() -> None:
    store = new_store()

    def fail_half_way() -> None:
        with store.transaction():
            store.enroll(b"study", b"key")
            store.keep(FIRST)
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert store.study_key(b"study") is None
    assert store.find(b"study", b"content") is None


@pytest.mark.parametrize(("count", "size"), [(3, 1 << 20), (1000, 3 * len(FIRST.vector))])
def test_of_too_many_unopened_answers_the_oldest_are_dropped(
    count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_store, "MOST_UNOPENED", count)
    monkeypatch.setattr(mask_store, "MOST_BYTES", size)
    store = new_store()
    contents = [f"content {number}".encode() for number in range(8)]
    for number, content in enumerate(contents):
        with store.transaction():
            store.keep(replace(FIRST, content=content, study=b"study" if number % 2 else b"another"))
            if number == 1:
                store.open(replace(FIRST, content=content), b"transcript")
    kept = [c for c in contents if store.find(b"study", c) or store.find(b"another", c)]
    assert kept == [contents[1], *contents[5:]]
    with store.transaction():
        store.keep(replace(FIRST, content=b"large", vector=b"x" * 100))
    assert store.find(b"study", b"large") is not None


def test_what_is_stored_is_on_disk_when_the_transaction_ends(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger")) as connection:
        store = SqliteMaskStore(connection)
        with store.transaction():
            store.keep(FIRST)
        with closing(sqlite3.connect(tmp_path / "ledger")) as reader:
            assert SqliteMaskStore(reader).find(b"study", b"content") == FIRST


@pytest.mark.parametrize("isolation", [None, "DEFERRED", "IMMEDIATE"])
def test_it_joins_the_callers_transaction(tmp_path: Path, isolation: str | None) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger", isolation_level=isolation)) as connection:
        store = SqliteMaskStore(connection)
        connection.execute("CREATE TABLE charges (cost)")
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charges VALUES (1)")
        with store.transaction():
            store.keep(FIRST)
            store.open(FIRST, b"transcript")
        assert connection.in_transaction
        connection.rollback()
        assert store.find(b"study", b"content") is None
        assert connection.execute("SELECT count(*) FROM charges").fetchone() == (0,)


def test_another_thread_waits_for_the_transaction_instead_of_joining_it(tmp_path: Path) -> None:
    """Joined, its answer could leave and then be rolled back with a charge that is not its own."""
    lock = threading.RLock()
    path = tmp_path / "ledger"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        store = SqliteMaskStore(connection, lock)

        def answer() -> None:
            with store.transaction():
                store.keep(FIRST)

        other = threading.Thread(target=answer)
        with lock:
            connection.execute("BEGIN IMMEDIATE")
            other.start()
            other.join(0.05)
            assert other.is_alive()
            connection.execute("ROLLBACK")
        other.join()
        assert store.find(b"study", b"content") == FIRST


def test_the_ledgers_tables_and_ours_live_side_by_side(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger")) as connection:
        connection.execute("CREATE TABLE entry (hash TEXT)")
        SqliteMaskStore(connection)
        SqliteMaskStore(connection)
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    assert tables == {"entry", "mask_study", "mask_attempt"}


def test_deleted_secrets_are_overwritten_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with closing(sqlite3.connect(path)) as connection:
        store = SqliteMaskStore(connection)
        with store.transaction():
            store.enroll(b"study", b"the study's own key")
            store.keep(replace(FIRST, seed=b"a seed nobody may see", vector=b"v" * 20_000))
        assert b"the study's own key" in path.read_bytes()
        assert b"a seed nobody may see" in path.read_bytes()
        with store.transaction():
            store.end(b"study")
    assert b"the study's own key" not in path.read_bytes()
    assert b"a seed nobody may see" not in path.read_bytes()
    assert b"v" * 50 not in path.read_bytes()


def test_a_killed_process_has_stored_all_or_nothing(tmp_path: Path) -> None:
    """Killed inside a transaction the answer never was; killed right after it, it is there."""
    program = """
import os, signal, sqlite3, sys
from concilium.privacy.mask_store import MaskedAnswer, SqliteMaskStore
store = SqliteMaskStore(sqlite3.connect(sys.argv[1]))
with store.transaction():
    names = ("a", "b", "c")
    store.keep(MaskedAnswer(b"study", b"content", b"label", b"participants", names, b"seed", b"vector"))
    if sys.argv[2] == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    for moment, expected in (("inside", None), ("after", FIRST)):
        path = tmp_path / moment
        subprocess.run([sys.executable, "-c", program, str(path), moment], check=False)
        with closing(sqlite3.connect(path)) as connection:
            assert SqliteMaskStore(connection).find(b"study", b"content") == expected
