"""What a ledger keeps beside its chain: populations, circles and masked answers, with the charge or not at all."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.errors import LedgerError
from concilium.ledger.ledger import Ledger
from concilium.ledger.mask_store import MaskedAnswer
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
