from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mask_circle import new_store

from concilium.errors import MaskError
from concilium.ledger import mask_store
from concilium.ledger.mask_store import MaskedAnswer, SqliteMaskStore

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
    assert store.openings(b"content") == {}
    with store.transaction():
        store.open(FIRST, b"transcript")
    assert store.openings(b"content") == {b"participants": ("a", "b", "c")}
    assert store.find(b"study", b"content") == replace(FIRST, opened=b"transcript")
    assert store.openings(b"another") == {}


def test_an_ended_study_keeps_for_whom_it_opened_what_and_nothing_else() -> None:
    store = new_store()
    with store.transaction():
        store.enroll(b"study", b"key")
        store.keep(FIRST)
        store.keep(replace(FIRST, content=b"unopened"))
        store.keep(replace(FIRST, study=b"another"))
        store.open(FIRST, b"transcript")
        store.end(b"study")
    assert store.find(b"study", b"content") is None
    assert store.find(b"study", b"unopened") is None
    assert store.find(b"another", b"content") == replace(FIRST, study=b"another")
    assert store.openings(b"content") == {b"participants": ("a", "b", "c")}
    with pytest.raises(MaskError, match="would differ by the answer of c"):
        store.check_participants(b"content", b"others", ("a", "b"))


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
    assert tables == {"entry", "mask_study", "mask_attempt", "mask_opened", "mask_party"}


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
from concilium.ledger.mask_store import MaskedAnswer, SqliteMaskStore
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


def count_bytes(store: SqliteMaskStore) -> int:
    """What is in use of a file; room that deleted rows left is used again."""
    pages, free, size = (
        store._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def run_study(
    store: SqliteMaskStore, number: int, *, ends: bool, opens: bool = True, size: int = 20_000
) -> None:
    study = number.to_bytes(32, "big")
    with store.transaction():
        store.enroll(study, b"k" * 32)
        for question in range(3):
            content = hashlib.sha256(b"%d of %d" % (question, number)).digest()
            answer = replace(FIRST, study=study, content=content, label=b"l" * 32, vector=bytes(size))
            store.keep(answer)
            if opens:
                store.open(answer, b"t" * 32)
        if ends:
            store.end(study)


@pytest.mark.parametrize("ends", [True, False])
def test_a_thousand_studies_leave_some_hundred_bytes_each(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_store, "MOST_STUDIES", 20)
    store = new_store()
    sizes = []
    for number in range(1000):
        run_study(store, number, ends=ends)
        if number in (99, 999):
            sizes.append(count_bytes(store))
    assert sizes[0] < 2_000_000
    assert sizes[1] - sizes[0] < 900 * 300  # for whom each of its questions was opened
    assert store.openings(hashlib.sha256(b"0 of 0").digest()) == {b"participants": ("a", "b", "c")}


def test_studies_that_open_nothing_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_store, "MOST_STUDIES", 20)
    monkeypatch.setattr(mask_store, "MOST_ENDED", 20)
    store = new_store()
    run_study(store, 0, ends=False)
    sizes = []
    for number in range(1, 1001):
        run_study(store, number, ends=False, opens=False)
        if number in (99, 999):
            sizes.append(count_bytes(store))
    assert sizes[-1] <= sizes[0]
    # Joining is free: it does not end a study that has opened something.
    assert store.study_key((0).to_bytes(32, "big")) == b"k" * 32


def test_of_too_many_opened_bytes_the_oldest_vectors_go_and_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mask_store, "MOST_BYTES", 100_000)
    store = new_store()
    contents = [f"content {number}".encode() for number in range(20)]
    with store.transaction():
        store.enroll(b"study", b"key")
        for content in contents:
            answer = replace(FIRST, content=content, vector=bytes(10_000))
            store.keep(answer)
            store.open(answer, b"transcript")
    kept = [content for content in contents if store.find(b"study", content).seed]  # type: ignore[union-attr]
    assert kept == contents[-len(kept) :]
    assert 5 <= len(kept) <= 10
    assert store.find_answer(b"study", contents[-1], b"label") is not None
    with pytest.raises(MaskError, match="answered and opened so long ago"):
        store.find_answer(b"study", contents[0], b"label")
    assert store.openings(contents[0])


def test_a_study_that_is_not_asked_for_a_month_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    day = mask_store._find_day()
    for number, later in ((1, 0), (2, 20), (3, 40)):
        monkeypatch.setattr(mask_store, "_find_day", lambda later=later: day + later)
        run_study(store, number, ends=False)
    assert [store.has_ended(number.to_bytes(32, "big")) for number in (1, 2, 3)] == [True, False, False]
    assert store.find((1).to_bytes(32, "big"), hashlib.sha256(b"0 of 1").digest()) is None
