"""What a ledger keeps beside its chain: populations, circles and masked answers, with the charge or not at all."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mask_circle import hospitals, some_vectors, words

from concilium.errors import LedgerError, MaskError
from concilium.ledger.ledger import Ledger
from concilium.ledger.mask_store import MaskedAnswer
from concilium.protocol.membership import hash_content
from concilium.registry import RELEASES

ASKED = b"how many died?"
ANSWER = MaskedAnswer(b"study", b"content", b"label", b"participants", ("a", "b"), b"seed", b"vector")


def charge(ledger, name, mode="exact", numbers=0, seal=lambda head: b""):
    cost = 1 if RELEASES[mode].priced else None
    return ledger.charge(name, "d", study="s", kind="k", mode=mode, cost=cost, numbers=numbers, seal=seal)


def tables(path):
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@given(st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=3))))
def test_populations_come_back_in_order_and_once(given_):
    """Against a plain list."""
    with Ledger() as ledger:
        assert ledger.recall_patients() is None
        begun = ledger.begin_patients(("a", "é"))
        kept = []
        for digest, patients in given_:
            ledger.remember_population(digest, patients)
            if not any(digest == d for d, _ in kept):
                kept.append((digest, patients))
        memory = ledger.recall_patients()
        assert (memory.key, memory.columns) == (begun.key, ("a", "é"))
        assert [one[1:] for one in memory.populations] == kept
        assert [number for number, _, _ in memory.populations] == [*range(1, len(kept) + 1)]


def test_circles_come_back_once_whatever_the_records_were():
    with Ledger() as ledger:
        assert ledger.circles() == []
        for records, names in (
            ("r1", ("a", "b")),
            ("r1", ("a", "b")),
            ("r2", ("a", "b")),
            ("r2", ("a", "é")),
        ):
            ledger.remember_circle(records, names)
        assert sorted(ledger.circles()) == [("a", "b"), ("a", "é")]


def test_what_a_seal_remembers_is_kept_with_the_charge_or_not_at_all(tmp_path):
    path = tmp_path / "north.ledger"
    with Ledger(path) as ledger:
        store = ledger.mask_store()

        def seal(head):
            with store.transaction():
                store.keep(ANSWER)
            ledger.begin_patients(None)
            ledger.remember_population(b"digest", b"patients")
            ledger.remember_names(0, b"8 bytes.")
            ledger.remember_circle("records", ("a", "b"))
            assert ledger.recall_patients().populations == [(1, b"digest", b"patients")]
            assert ledger.circles() == [("a", "b")]
            if fails:
                raise ZeroDivisionError
            return b""

        fails = True
        with pytest.raises(ZeroDivisionError):
            charge(ledger, "failing", seal=seal)
        assert (ledger.recall_patients(), ledger.patient_names(), ledger.circles()) == (None, b"", [])
        assert store.find(b"study", b"content") is None
        assert not tables(path) & {"remembered_population", "patient_key", "patient_names", "mask_circle"}
        fails = False
        charge(ledger, "standing", seal=seal)
        assert ledger.verify() == 1
    with Ledger(path) as ledger:
        assert ledger.recall_patients().populations == [(1, b"digest", b"patients")]
        assert ledger.patient_names() == b"8 bytes."
        assert ledger.circles() == [("a", "b")]
        assert ledger.mask_store().find(b"study", b"content") == ANSWER


def test_nothing_else_of_a_ledger_may_be_asked_inside_a_seal():
    with Ledger() as ledger:

        def seal(head):
            ledger.circles()
            for ask in (ledger.spent, ledger.head, lambda: ledger.numbers(), lambda: charge(ledger, "inner")):
                with pytest.raises(LedgerError, match="from inside a charge"):
                    ask()
            return b""

        charge(ledger, "outer", seal=seal)


def test_another_thread_does_not_remember_into_a_charge_that_is_undone(tmp_path):
    with Ledger(tmp_path / "north.ledger") as ledger:
        other = threading.Thread(target=lambda: ledger.remember_circle("records", ("a", "b")))

        def seal(head):
            other.start()
            other.join(0.05)
            assert other.is_alive()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            charge(ledger, "failing", seal=seal)
        other.join()
        assert ledger.circles() == [("a", "b")]


def test_looking_makes_no_table(tmp_path):
    path = tmp_path / "north.ledger"
    with Ledger(path) as ledger:
        before = tables(path)
        assert (ledger.recall_patients(), ledger.circles(), ledger.unbounded_numbers()) == (None, [], 0)
        assert tables(path) == before
    with Ledger.open_readonly(path) as ledger:
        assert (ledger.recall_patients(), ledger.circles(), ledger.unbounded_numbers()) == (None, [], 0)


@given(st.lists(st.tuples(st.sampled_from(sorted(RELEASES)), st.integers(0, 1000))))
def test_numbers_without_a_bound_are_counted_the_one_being_charged_among_them(released):
    with Ledger() as ledger:
        count = 0
        for place, (mode, numbers) in enumerate(released):
            count += 0 if RELEASES[mode].bounded else numbers
            inside = charge(
                ledger, f"q{place}", mode, numbers, lambda head: b"%d" % ledger.unbounded_numbers()
            )
            assert int(inside) == count == ledger.unbounded_numbers()
        ledger.set_budget(10**6, "a settings entry has no cost and is no release")
        assert ledger.unbounded_numbers() == count
        assert (ledger.epsilon() == float("inf")) == any(not RELEASES[mode].bounded for mode, _ in released)


def test_a_circle_that_cannot_be_read_is_damage(tmp_path):
    path = tmp_path / "north.ledger"
    with Ledger(path) as ledger:
        ledger.remember_circle("records", ("a", "b"))
    for wrong in ("not json", "5"):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE mask_circle SET names = ?", (wrong,))
        with Ledger(path) as ledger, pytest.raises(LedgerError, match=r"north\.ledger is damaged .*circle"):
            ledger.circles()


# As the version wrote them that counted how often a masked question was asked.
FIRST_TABLES = """
CREATE TABLE disclosure_population (
    number INTEGER PRIMARY KEY, records TEXT NOT NULL, digest BLOB NOT NULL, patients BLOB NOT NULL,
    UNIQUE (records, digest));
CREATE TABLE mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID;
CREATE TABLE mask_study (study BLOB PRIMARY KEY, key BLOB) WITHOUT ROWID;
CREATE TABLE mask_attempt (
    study BLOB NOT NULL, content BLOB NOT NULL, number INTEGER NOT NULL, label BLOB NOT NULL,
    participants BLOB NOT NULL, names BLOB NOT NULL, seed BLOB, vector BLOB, opened BLOB,
    PRIMARY KEY (study, content));
CREATE INDEX mask_attempt_content ON mask_attempt (content);
CREATE INDEX mask_attempt_unopened ON mask_attempt (length(vector)) WHERE opened IS NULL;
INSERT INTO disclosure_population (records, digest, patients) VALUES ('records', x'0102', x'0304');
INSERT INTO mask_circle VALUES ('records', '["ashford", "brook", "cedar", "dale"]');
INSERT INTO mask_study VALUES (x'aa', x'bb'), (x'cc', NULL);
"""


def test_a_ledger_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """What it opened, and for whom, holds for the questions of now."""
    path = tmp_path / "ashford.ledger"
    with Ledger(path) as ledger:
        charge(ledger, "long ago", numbers=3)
    group = hospitals(4)
    everyone = group.gather()
    opened = everyone.members["ashford"]
    content, participants = hash_content(ASKED), opened.manifest.circle
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(FIRST_TABLES)
        names = b'["ashford","brook","cedar","dale"]'
        for study, number, seed, transcript in (
            (b"\xaa", 3, b"seed", None),
            (b"\xcc", 2, b"", b"transcript"),
        ):
            database.execute(
                "INSERT INTO mask_attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (study, content, number, b"label", participants, names, seed, seed, transcript),
            )
    with Ledger(path) as ledger:
        assert ledger.verify() == 1
        assert ledger.populations_by_row() == [("records", b"\x03\x04")]
        assert ledger.circles() == [everyone.manifest.names]
        assert ledger.unbounded_numbers() == 3
        assert ledger.count_refused() == (0, "")
        store = group.stores["ashford"] = ledger.mask_store()
        assert store.study_key(b"\xaa") == b"\xbb"
        assert store.has_ended(b"\xcc")
        fewer = group.gather(group.compose(["ashford", "brook", "cedar"]))
        with pytest.raises(MaskError, match="would differ by the answer of dale"):
            fewer.members["ashford"].mask(ASKED, words(1))
        again = group.gather()
        vectors = some_vectors(group.names)
        assert again.add_up(ASKED, vectors).tolist() == [100, 104, 108]
        assert fewer.add_up(b"another question", vectors).tolist() == [60, 63, 66]
        for study in (b"\xaa", again.manifest.study_id):
            with store.transaction():
                store.end(study)
            assert store.study_key(study) is None
        ledger.remember_circle("records", fewer.manifest.names)
        charge(ledger, "now")
        assert ledger.verify() == 2
    with closing(sqlite3.connect(path)) as database:
        kept = database.execute("SELECT count(*) FROM mask_attempt").fetchone()
        opened = database.execute("SELECT content, party FROM mask_opened ORDER BY party").fetchall()
    assert kept == (1,)  # that of the study of fewer, which goes on
    assert opened == [(content, 1), (hash_content(b"another question"), 2)]


def test_a_table_of_a_transaction_that_was_undone_is_not_taken_to_be_there(tmp_path):
    """What a look inside a transaction has seen is forgotten with it, and what was there before stays."""
    ledger = Ledger(tmp_path / "own.ledger")

    def make_and_fail():
        with ledger._file.writing():
            with ledger._file.joining():
                ledger._file.run("CREATE TABLE passing (x)")
                assert ledger._file.has_table("passing")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        make_and_fail()
    with ledger._file.joining():
        assert not ledger._file.has_table("passing")
    assert ledger.circles() == []
    ledger.remember_circle("records", ("a", "b"))
    assert ledger.circles() == ledger.circles() == [("a", "b")]
    assert Ledger(tmp_path / "own.ledger").circles() == [("a", "b")]
