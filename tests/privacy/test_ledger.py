import hashlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import BudgetError, LedgerError
from concilium.ledger import chain as ledger_chain
from concilium.ledger import memory as memory_module
from concilium.ledger.chain import Entry, Head, LedgerSettings
from concilium.ledger.file import open_to_write
from concilium.ledger.ledger import Ledger
from concilium.privacy.accounting import epsilon_from_rho, rho_from_pure
from room import has_room


def release(ledger, question="q", digest="d", cost=None, study="burns", seal=None, **more):
    """A private release where there is a cost, else an exact one; the answer says what it answers."""
    return ledger.charge(
        question,
        digest,
        study=study,
        kind="count",
        mode="exact" if cost is None else "private",
        cost=cost,
        seal=seal or (lambda head: f"{question} after {head.count}".encode()),
        **more,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.ledger"


@cache
def filled(entries, site):
    """The bytes of a ledger with private and exact releases and a change of budget, and its head."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "north.ledger"
        with Ledger(path, budget=10, site=site) as ledger:
            for number in range(entries):
                cost = Fraction(1, number + 2) if number % 2 else None
                release(ledger, f"q{number}", cost=cost, numbers=number)
            ledger.set_budget(12, "a second year")
            release(ledger, "last", cost=1)
            head = ledger.head()
        return path.read_bytes(), Path(f"{path}.head").read_bytes(), head


def fill(path, entries=6, site=None):
    content, beside, head = filled(entries, site)
    path.write_bytes(content)
    Path(f"{path}.head").write_bytes(beside)
    return head


@contextmanager
def tampering(path):
    """The file as someone with a database tool sees it, with the guards lifted and put back afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        guards = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            database.execute(f"DROP TRIGGER {name}")
        yield database
        for _, guard in guards:
            database.execute(guard)


def refusal(path):
    """The sentence with which a look at the whole ledger is refused."""
    with pytest.raises(LedgerError) as caught, Ledger.open_readonly(path) as ledger:
        ledger.verify()
    sentence = str(caught.value)
    assert path.name in sentence
    assert "\n" not in sentence
    return sentence


def test_a_release_is_entered_and_its_answer_kept(path):
    with Ledger(path, site="north", records="abc", budget=1) as ledger:
        heads = []
        answer = release(ledger, cost="1/3", numbers=7, seal=lambda head: heads.append(head) or b"noisy")
        assert answer == b"noisy"
        (entry,) = ledger.entries()
        assert entry == Entry(
            1, entry.time, "burns", "q", "d", "count", "private", Fraction(1, 3), 7, ledger.head().hash, ""
        )
        assert abs(entry.time - datetime.now(UTC)) < timedelta(minutes=1)
        assert heads == [ledger.head()] == [Head(1, entry.hash)]
        assert (ledger.spent(), ledger.balance().left) == (Fraction(1, 3), Fraction(2, 3))
    with Ledger(path) as again:
        assert again.entries() == [entry]
        assert again.recall("q", "d") == b"noisy"
        assert again.settings == LedgerSettings("rho", Fraction(1, 10**6), Fraction(1), "north", "abc")
        assert (again.settings.currency, again.settings.delta, again.settings.budget) == (
            "rho",
            Fraction(1, 10**6),
            1,
        )
        assert again.verify() == 1


def test_three_thirds_are_one():
    ledger = Ledger(budget=1)
    for number in range(3):
        release(ledger, f"q{number}", cost="1/3")
    assert ledger.balance().left == 0


def test_a_repeated_question_gets_the_stored_answer_and_is_not_charged():
    ledger = Ledger(budget=1)
    first = release(ledger, cost=1)
    assert release(ledger, cost=1, seal=lambda head: b"fresh noise") == first == ledger.recall("q", "d")
    assert ledger.head().count == 1
    assert ledger.spent() == 1


def test_the_same_id_with_other_content_is_refused():
    ledger = Ledger()
    release(ledger)
    for ask in (lambda: release(ledger, digest="other"), lambda: ledger.recall("q", "other")):
        with pytest.raises(LedgerError, match="'q' was answered before with other content"):
            ask()
    assert ledger.recall("unasked", "d") is None


def test_what_does_not_fit_is_refused_with_numbers_and_costs_nothing():
    ledger = Ledger(budget="0.5")
    release(ledger, "first", cost="0.2")
    assert has_room(ledger, "0.3")
    assert not has_room(ledger, "0.300001")
    assert has_room(ledger, None)
    with pytest.raises(BudgetError, match=r"cost rho = 0\.4, but 0\.3 is left") as caught:
        release(ledger, cost="0.4", seal=lambda head: pytest.fail("noise was drawn"))
    assert (caught.value.asked, caught.value.spent, caught.value.left) == (
        Fraction(2, 5),
        Fraction(1, 5),
        Fraction(3, 10),
    )
    assert ledger.head().count == 1
    assert ledger.recall("q", "d") is None
    release(ledger, cost="0.3")
    assert ledger.balance().left == 0


def test_exact_and_masked_releases_are_unlimited_and_counted():
    ledger = Ledger(budget=1)
    release(ledger, "a", numbers=10)
    release(ledger, "b", numbers=5, study="sepsis")
    ledger.charge("c", "d", study="sepsis", kind="count", mode="masked", numbers=3, seal=lambda head: b"")
    release(ledger, "e", cost=1, numbers=100, study="sepsis")
    assert [entry.cost for entry in ledger.entries()] == [None, None, None, 1]
    assert (ledger.numbers(), ledger.numbers("burns"), ledger.numbers("sepsis")) == (118, 10, 108)
    assert (ledger.numbers("sepsis", "exact"), ledger.numbers(mode="masked"), ledger.numbers("none")) == (
        5,
        3,
        0,
    )
    assert ledger.epsilon() == float("inf")


def test_epsilon_is_shown_by_the_tight_conversion():
    rho, pure = Ledger(delta="1e-9"), Ledger(currency="epsilon")
    for ledger in (rho, pure):
        assert ledger.epsilon() == 0
        release(ledger, "a", cost="0.1")
        release(ledger, "b", cost="0.2")
    assert rho.epsilon() == epsilon_from_rho("0.3", "1e-9")
    assert pure.epsilon() == pytest.approx(0.3)
    assert Fraction(pure.epsilon()) >= pure.spent() == Fraction(3, 10)


def test_pure_epsilon_enters_a_ledger_in_rho_and_rho_no_ledger_in_epsilon():
    ledger = Ledger(budget=rho_from_pure(1))
    assert has_room(ledger, 1, "epsilon")
    release(ledger, cost=1, currency="epsilon")
    assert ledger.spent() == rho_from_pure(1)
    pure = Ledger(currency="epsilon", budget=5)
    release(pure, cost=1, currency="epsilon")
    for ask in (lambda: release(pure, "other", cost=1, currency="rho"), lambda: has_room(pure, 1, "rho")):
        with pytest.raises(LedgerError, match="kept in epsilon"):
            ask()
    assert pure.spent() == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"mode": "private", "cost": 0.1}, "exact number"),
        ({"mode": "private", "cost": float("nan")}, "exact number"),
        ({"mode": "private", "cost": "inf"}, "finite number"),
        ({"mode": "private", "cost": 0}, "above zero"),
        ({"mode": "private", "cost": "-1"}, "above zero"),
        ({"mode": "private", "cost": None}, "needs its cost"),
        ({"mode": "private", "cost": 1, "currency": "euro"}, "'euro'"),
        ({"mode": "exact", "cost": 1}, "takes no cost"),
        ({"mode": "masked", "cost": "1"}, "takes no cost"),
        (
            {"mode": "settings"},
            "'exact' or 'masked' or 'private' or 'local' or 'noised' or 'shared'; got 'settings'",
        ),
        ({"mode": ""}, "needs a mode"),
        ({"mode": ["exact"]}, "mode must be text"),
        ({"mode": "exact", "numbers": -1}, "-1"),
        ({"mode": "exact", "numbers": 1.5}, "1.5"),
        ({"mode": "exact", "numbers": 2**63}, "whole number"),
        ({"mode": "exact", "question": ""}, "question id"),
        ({"mode": "exact", "question": 5}, "question id"),
        ({"mode": "exact", "digest": b"d"}, "digest"),
        ({"mode": "exact", "study": None}, "study"),
        ({"mode": "exact", "kind": "\ud800"}, "UTF-8"),
    ],
)
def test_a_charge_that_makes_no_sense_is_refused_and_leaves_nothing(wrong, sentence):
    ledger = Ledger(budget=1)
    asked = {"question": "q", "digest": "d", "study": "s", "kind": "count", "seal": lambda head: b"", **wrong}
    with pytest.raises(LedgerError, match=sentence):
        ledger.charge(asked.pop("question"), asked.pop("digest"), **asked)
    assert ledger.head().count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": 1.0},
        {"budget": -1},
        {"delta": 1e-6},
        {"delta": 0},
        {"currency": "e"},
        {"site": 5},
        {"records": b""},
    ],
)
def test_settings_that_make_no_sense_make_no_file(path, wrong):
    with pytest.raises(LedgerError):
        Ledger(path, **wrong)
    assert not path.exists()


costs = st.fractions(min_value=Fraction(1, 50), max_value=2, max_denominator=50)
asked = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1), st.none() | costs), max_size=30)


@settings(max_examples=150)
@given(budget=st.none() | st.fractions(0, 5, max_denominator=20), questions=asked)
def test_whatever_is_asked_the_sum_is_exact_and_within_the_budget(budget, questions):
    """Against a plain model: distinct accepted questions are what was spent, and nothing else changes it."""
    ledger = Ledger(budget=budget)
    answers, paid = {}, {}
    for number, digest, cost in questions:
        fits = cost is None or budget is None or sum(paid.values()) + cost <= budget
        assert has_room(ledger, cost) is fits
        if number in answers:
            if answers[number][0] == digest:
                assert release(ledger, f"q{number}", f"d{digest}", cost) == answers[number][1]
            else:
                with pytest.raises(LedgerError, match="other content"):
                    release(ledger, f"q{number}", f"d{digest}", cost)
        elif fits:
            answers[number] = digest, release(ledger, f"q{number}", f"d{digest}", cost)
            paid[number] = cost or Fraction(0)
        else:
            with pytest.raises(BudgetError):
                release(ledger, f"q{number}", f"d{digest}", cost)
        assert ledger.spent() == sum(paid.values())
        assert budget is None or ledger.balance().left == budget - sum(paid.values()) >= 0
    assert ledger.verify() == len(answers) == ledger.head().count
    assert {entry.question for entry in ledger.entries()} == {f"q{number}" for number in answers}


def test_a_ledger_can_grow_for_ever():
    """Sums of unlike fractions stay short, and what is rounded is rounded against us."""
    ledger = Ledger()
    primes = [n for n in range(10**9, 10**9 + 4000) if all(n % d for d in range(2, 32000))]
    assert len(primes) > 150
    for prime in primes:
        release(ledger, f"q{prime}", cost=Fraction(1, prime))
    truth = sum(Fraction(1, prime) for prime in primes)
    assert 0 < ledger.spent() - truth < Fraction(len(primes), 2**256)
    assert ledger.spent().denominator < 2**1300
    assert ledger.spent() == sum(entry.cost for entry in ledger.entries())
    assert ledger.verify() == len(primes)


def test_an_answer_that_cannot_be_made_costs_nothing():
    ledger = Ledger(budget=1)

    def fail(head):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        release(ledger, cost=1, seal=fail)
    with pytest.raises(TypeError, match="as bytes"):
        release(ledger, cost=1, seal=lambda head: "text")
    with pytest.raises(LedgerError, match="from inside a charge"):
        release(ledger, cost=1, seal=lambda head: release(ledger, "inner", cost=1))
    assert (ledger.head().count, ledger.spent()) == (0, 0)
    assert release(ledger, cost=1) == b"q after 1"


def test_nothing_is_visible_before_it_is_committed_and_everything_once_it_is_returned(path):
    with Ledger(path) as ledger:

        def look(head):
            with Ledger.open_readonly(path) as other:
                assert other.head().count == 0
                assert other.recall("q", "d") is None
            return b"sealed"

        release(ledger, cost=1, seal=look)
        with Ledger(path) as other:
            assert other.head() == ledger.head()
            assert other.recall("q", "d") == b"sealed"
        with ledger._file.joining() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_full_disk_releases_nothing(path):
    with Ledger(path) as ledger:
        release(ledger, "small")
        with ledger._file.joining() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match=r"north\.ledger cannot grow: the disk is full"):
            release(ledger, "large", seal=lambda head: bytes(10**5))
        assert ledger.recall("large", "d") is None
        assert ledger.verify() == 1


def test_a_new_ledger_that_cannot_be_written_to_the_end_is_none(path):
    """Where its log cannot be moved to the file, as on a full disk, no half ledger is left behind."""
    readers = []

    def begin(file):
        file.make_durable()
        file.run("CREATE TABLE t (x)")
        readers.append(sqlite3.connect(file.path, isolation_level=None))
        readers[0].execute("BEGIN")
        readers[0].execute("SELECT * FROM t").fetchall()  # nobody moves what comes after this moment
        file.run("INSERT INTO t VALUES (1)")

    with pytest.raises(LedgerError, match=r"north\.ledger cannot be written to the end"):
        open_to_write(path, begin)
    readers[0].close()
    assert list(path.parent.iterdir()) == []


def test_a_damaged_ledger_in_use_is_one_sentence(path):
    with Ledger(path):
        content = bytearray(path.read_bytes())
    Path(f"{path}-wal").write_bytes(b"")
    Path(f"{path}-shm").write_bytes(b"")
    content[4096 * 2 :] = b""
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"north\.ledger is damaged"):
        Ledger.open_readonly(path)


def test_threads_share_one_ledger(path):
    """200 questions asked by 8 threads, every one twice: each is sealed once, and 100 fit."""
    with Ledger(path, budget=25) as ledger:
        sealed, lock = [], threading.Lock()

        def ask(number):
            def seal(head):
                with lock:
                    sealed.append((number % 200, head))
                return os.urandom(16)

            try:
                return number % 200, release(ledger, f"q{number % 200}", cost="1/4", seal=seal)
            except BudgetError:
                return number % 200, None

        with ThreadPoolExecutor(8) as pool:
            answers = [answer for answer in pool.map(ask, range(400)) if answer[1] is not None]
        assert len(set(answers)) == len(sealed) == 100
        assert [head.count for _, head in sealed] == list(range(1, 101))
        assert all(ledger.holds(head) for _, head in sealed)
        assert ledger.balance().left == 0
        assert ledger.verify() == 100


def test_refusals_are_logged_beside_the_chain(path):
    with Ledger(path) as ledger:
        before = ledger.head()
        ledger.refuse("burns", "count", "q1", "minimum patients")
        ledger.refuse("sepsis", "crosstables", "q2", "budget")
        assert ledger.head() == before
        assert [(r.study, r.kind, r.question, r.rule) for r in ledger.refusals()] == [
            ("burns", "count", "q1", "minimum patients"),
            ("sepsis", "crosstables", "q2", "budget"),
        ]
        assert [r.question for r in ledger.refusals("sepsis")] == ["q2"]
        assert abs(ledger.refusals()[0].time - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_question_refused_again_by_the_same_rule_is_noted_once():
    with Ledger() as ledger:
        for _ in range(5):
            ledger.refuse("burns", "count", "q1", "patients")
        assert [(r.question, r.rule) for r in ledger.refusals()] == [("q1", "patients")]
        ledger.refuse("burns", "count", "q1", "ended")
        ledger.refuse("burns", "count", "q2", "patients")
        ledger.refuse("sepsis", "count", "q3", "patients")
        assert [r.question for r in ledger.refusals()] == ["q1", "q1", "q2", "q3"]


def test_a_refusal_for_patients_is_counted_once_for_each_content(path):
    with Ledger(path) as ledger:
        assert ledger.count_refused()[0] == 0
        for number, content in enumerate(["this", "that", "this"]):
            ledger.refuse_for_patients(f"study {number}", "count", f"q{number}", content)
        assert [(r.question, r.rule) for r in ledger.refusals()] == [("q0", "patients"), ("q1", "patients")]
        ledger.verify()
    with Ledger.open_readonly(path) as ledger:
        assert ledger.count_refused()[0] == 2


@given(st.lists(st.sampled_from(["patients", "kind", "mode"]), max_size=40), st.integers(1, 10))
def test_the_log_of_refusals_is_bounded_and_what_depends_on_patients_is_the_last_to_go(rules, most):
    with pytest.MonkeyPatch.context() as patch, Ledger() as ledger:
        patch.setattr(memory_module, "MOST_NOTES", most)
        kept = []
        for number, rule in enumerate(rules):
            ledger.refuse("burns", "count", f"q{number}", rule)
            kept.append((f"q{number}", rule))
            if len(kept) > most:
                kept.remove(next((note for note in kept if note[1] != "patients"), kept[0]))
            assert [(r.question, r.rule) for r in ledger.refusals()] == kept
        ledger.verify()


def test_ledgers_in_memory_have_nothing_in_common():
    with Ledger(records="first") as first, Ledger(records="second") as second:
        first.charge("q1", "d1", study="s", kind="k", mode="exact", seal=lambda head: b"answer")
        assert [len(ledger.entries()) for ledger in (first, second, Ledger())] == [1, 0, 0]
        assert second.recall("q1", "d1") is None
        assert (first.settings.records, second.settings.records) == ("first", "second")
        assert [first.verify(), second.verify()] == [1, 0]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"site": "south"}, r"has site 'north', not 'south'; give each site its own ledger"),
        (
            {"records": "fedcba9876543210"},
            r"other records \(their digest begins 0123456789ab, not fedcba987654\).*rebind",
        ),
        ({"currency": "epsilon"}, r"has currency 'rho', not 'epsilon'"),
        ({"budget": 3}, r"has budget 2, not 3; a budget is changed by set_budget"),
        ({"delta": "1e-5"}, r"has delta 1e-06, not 1e-05"),
    ],
)
def test_a_ledger_bound_to_something_else_is_not_opened(path, other, sentence):
    bound = {"site": "north", "records": "0123456789abcdef", "currency": "rho", "budget": 2, "delta": "1e-6"}
    with Ledger(path, **bound) as ledger:
        release(ledger, cost=1)
        head = ledger.head()
    with pytest.raises(LedgerError, match=rf"north\.ledger .*{sentence}"):
        Ledger(path, **{**bound, **other})
    for same in (bound, {}, {"site": "north"}):
        with Ledger(path, **same) as ledger:
            assert ledger.head() == head


def test_a_ledger_without_a_cap_gets_one_only_by_set_budget(path):
    Ledger(path).close()
    with pytest.raises(
        LedgerError, match="has budget without a cap, not 1; a budget is changed by set_budget"
    ):
        Ledger(path, budget=1)


def test_a_ledger_is_opened_with_whatever_settings_it_has(path):
    Ledger(path, currency="epsilon", budget=2, site="north").close()
    with Ledger(path) as ledger:
        assert (ledger.settings.currency, ledger.settings.budget) == ("epsilon", 2)
        release(ledger, cost=2)
        assert not has_room(ledger, "0.001")


def test_a_ledger_not_yet_bound_is_bound_by_the_first_that_names_itself(path):
    with Ledger(path) as ledger:
        release(ledger, cost=1)
    Ledger(path, site="north").close()
    with Ledger(path, site="north", records="abc") as ledger:
        assert [(entry.mode, entry.kind, entry.note) for entry in ledger.entries()[1:]] == [
            ("settings", "bind", "bound to its site"),
            ("settings", "bind", "bound to its records"),
        ]
        assert (ledger.settings.site, ledger.settings.records) == ("north", "abc")
        assert ledger.spent() == 1
        assert ledger.verify() == 3
    with pytest.raises(LedgerError, match="has site 'north'"):
        Ledger(path, site="south")


def test_when_the_records_change_what_is_spent_stays_spent(path):
    with Ledger(path, records="old", budget=2) as ledger:
        release(ledger, "before", cost=1)
        with Ledger(path, records="old") as elsewhere:
            ledger.rebind("new")
            with pytest.raises(LedgerError, match="bound to other records while in use"):
                release(elsewhere, "stale", cost=1)
            assert elsewhere.recall("before", "d") == b"before after 1"
        release(ledger, "after", cost="1/2")
        ledger.rebind("new")
        assert [entry.kind for entry in ledger.entries()] == ["count", "rebind", "count"]
        assert ledger.balance().left == Fraction(1, 2)
        assert ledger.verify() == 3
    with pytest.raises(LedgerError, match="other records"):
        Ledger(path, records="old")
    Ledger(path, records="new").close()


def test_a_budget_changes_with_a_reason_and_never_below_what_is_spent(path):
    with Ledger(path, budget=1) as ledger:
        release(ledger, "a", cost=1)
        with Ledger(path) as elsewhere:
            ledger.set_budget(2, "a second year")
            assert elsewhere.balance().left == 1
        ledger.set_budget("1.5", "the board said so")
        assert ledger.balance().left == Fraction(1, 2)
        with pytest.raises(LedgerError, match=r"north\.ledger cannot become rho = 0\.5: 1 is spent already"):
            ledger.set_budget("0.5", "too late")
        for wrong in (1.5, -1, "nan"):
            with pytest.raises(LedgerError):
                ledger.set_budget(wrong, "wrong")
        with pytest.raises(LedgerError, match="needs a reason"):
            ledger.set_budget(3, " ")
        ledger.set_budget(None, "no cap any more")
        assert ledger.balance().left is None
        assert [(e.kind, e.note) for e in ledger.entries() if e.mode == "settings"] == [
            ("budget", "a second year"),
            ("budget", "the board said so"),
            ("budget", "no cap any more"),
        ]
        release(ledger, "b", cost=1000)
        assert ledger.verify() == 5


def test_a_clock_that_goes_back_never_moves_an_entry_before_the_last(path, monkeypatch):
    clock = iter(
        [
            "2026-03-01T12:00:00.000000+00:00",
            "2026-03-01T11:59:30.000000+00:00",
            "2026-03-01T12:00:01.000000+00:00",
        ]
    )
    with Ledger(path) as ledger:
        pass
    with tampering(path) as database:
        database.execute("UPDATE entries SET time = '2026-01-01T00:00:00.000000+00:00'")
    monkeypatch.setattr(ledger_chain, "now", lambda: next(clock))
    with Ledger(path) as ledger:
        release(ledger, "a")
        release(ledger, "b")
        release(ledger, "c")
        first, second, third = ledger.entries()
    assert first.time == second.time < third.time
    assert second.note == "the clock was 30 s behind the entry before"
    assert first.note == third.note == ""


def test_entries_and_answers_are_never_changed(path):
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        row = database.execute("SELECT * FROM entries WHERE sequence = 2").fetchone()
        places = ", ".join("?" * len(row))
        for change in (
            "UPDATE entries SET cost = '0/1' WHERE sequence = 2",
            "DELETE FROM entries WHERE sequence = 2",
            "DELETE FROM entries",
            "UPDATE answers SET answer = x'00'",
            "DELETE FROM answers",
            "INSERT OR REPLACE INTO answers VALUES (1, '', x'00')",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="a ledger only grows"):
                database.execute(change)
        for fresh in (row, (99, *row[1:]), (8, *row[1:]), (8, *row[1:3], "new", *row[4:])):
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                database.execute(f"INSERT OR REPLACE INTO entries VALUES ({places})", fresh)
    with Ledger(path) as ledger:
        assert ledger.verify() == 8


@pytest.mark.parametrize(
    "change",
    [
        "time = '2000-01-01T00:00:00.000000+00:00'",
        "time = replace(time, '+00:00', '+01:00')",
        "study = 'another'",
        "question = 'another'",
        "question = NULL",
        "digest = 'another'",
        "kind = 'another'",
        "mode = 'masked'",
        "cost = '1/1000'",
        "cost = NULL",
        "spent = '0/1'",
        "spent = 'much'",
        "numbers = 99",
        "note = 'a note'",
        "note = CAST(note AS BLOB)",
        """settings = '{"budget": null, "currency": "rho", "delta": "1/10", "records": null, "site": null}'""",
        "settings = 'none'",
        "hash = replace(hash, substr(hash, 1, 1), 'x')",
    ],
)
@pytest.mark.parametrize("sequence", [4, 8])
def test_a_changed_field_is_found(path, change, sequence):
    fill(path)
    with tampering(path) as database:
        database.execute(f"UPDATE entries SET {change} WHERE sequence = ?", (sequence,))
    assert f"entry {sequence}" in refusal(path) or "damaged" in refusal(path)


def test_changed_settings_are_found(path):
    fill(path, site="north")
    with tampering(path) as database:
        database.execute("UPDATE entries SET settings = replace(settings, '10/1', '99/1') WHERE sequence = 0")
    assert "entry 0 (or the answer before it) was changed" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (["DELETE FROM entries WHERE sequence = 3"], "entry 3 is missing"),
        (["DELETE FROM entries WHERE sequence = 0"], "entry 0 is missing"),
        (["DELETE FROM entries"], "damaged"),
        (
            [
                "DELETE FROM entries WHERE sequence = 3",
                "DELETE FROM answers WHERE sequence = 3",
                "UPDATE entries SET sequence = sequence - 1 WHERE sequence > 3",
                "UPDATE answers SET sequence = sequence - 1 WHERE sequence > 3",
            ],
            "entry 3",
        ),
        (
            [
                "UPDATE entries SET sequence = -3 WHERE sequence = 3",
                "UPDATE entries SET sequence = 3 WHERE sequence = 4",
                "UPDATE entries SET sequence = 4 WHERE sequence = -3",
            ],
            "entry 3",
        ),
        (
            [
                "CREATE TEMP TABLE copy AS SELECT * FROM entries WHERE sequence = 8",
                "UPDATE copy SET sequence = 9, question = 'new'",
                "INSERT INTO entries SELECT * FROM copy",
                "INSERT INTO answers SELECT 9, sealed, answer FROM answers WHERE sequence = 8",
            ],
            "entry 9",
        ),
        (["UPDATE answers SET answer = x'00' WHERE sequence = 2"], "answer of entry 2 was changed"),
        (["UPDATE answers SET answer = x'00' WHERE sequence = 8"], "answer of entry 8 was changed"),
        (["UPDATE answers SET answer = 'text' WHERE sequence = 8"], "answer of entry 8 was changed"),
        (["UPDATE answers SET sealed = 'x' WHERE sequence = 8"], "answer of entry 8 was changed"),
        (["DELETE FROM answers WHERE sequence = 8"], "entry 8"),
        (["DELETE FROM answers WHERE sequence = 2"], "entry 2"),
        (["INSERT INTO answers VALUES (99, 'x', x'00')"], "an answer without an entry"),
        (["CREATE TRIGGER mine AFTER INSERT ON entries BEGIN DELETE FROM answers; END"], "guards against change"),
        (["DROP TABLE refusals"], "its tables"),
    ],
)  # fmt: skip
def test_what_was_moved_removed_or_added_is_found(path, changes, found):
    fill(path)
    with tampering(path) as database:
        for change in changes:
            database.execute(change)
    assert found in refusal(path)


def test_an_answer_changed_together_with_its_digest_is_found_once_another_entry_follows(path):
    fill(path)
    forged = hashlib.sha256(b"forged").hexdigest()
    with tampering(path) as database:
        database.execute("UPDATE answers SET answer = ?, sealed = ? WHERE sequence = 6", (b"forged", forged))
    assert "entry 7 (or the answer before it)" in refusal(path)


def test_lifted_guards_are_found(path):
    fill(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TRIGGER entries_refuse_update")
    assert "guards against change" in refusal(path)


def test_a_chain_that_is_sound_but_overspends_is_found(path):
    with Ledger(path, budget=1) as ledger:
        with ledger._file.writing():
            tail = ledger_chain.read_tail(ledger._file)
            head = ledger_chain.append(
                ledger._file, tail, kind="count", mode="private", question="q", digest="d", cost=Fraction(2)
            )
            ledger_chain.store(ledger._file, head, b"")
        with pytest.raises(LedgerError, match="entry 1 overspends the budget"):
            ledger.verify()


def test_a_stored_answer_that_was_changed_is_not_given_out(path):
    fill(path)
    with tampering(path) as database:
        database.execute("UPDATE answers SET answer = x'00' WHERE sequence = 2")
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match="the answer to 'q1' was changed"):
            ledger.recall("q1", "d")
        assert ledger.recall("q2", "d") == b"q2 after 3"


def test_a_cut_tail_is_valid_in_itself_and_found_by_the_head_others_remember(path):
    head = fill(path)
    with tampering(path) as database:
        database.execute("DELETE FROM entries WHERE sequence > 5")
        database.execute("DELETE FROM answers WHERE sequence > 5")
    with pytest.raises(LedgerError, match=r"it has 5 entries, and north\.ledger\.head says that it had 8"):
        Ledger(path)
    with Ledger.open_readonly(path) as ledger:
        with pytest.raises(LedgerError, match="a restored backup"):
            ledger.verify()
        Path(f"{path}.head").unlink()
        assert ledger.verify() == 5
        assert not ledger.holds(head)


def test_an_older_copy_is_found_by_the_head_others_remember(path):
    with Ledger(path) as ledger:
        release(ledger, "a", cost=1)
        early = ledger.head()
    shutil.copy(path, path.with_suffix(".old"))
    shutil.copy(f"{path}.head", path.with_suffix(".old.head"))
    with Ledger(path) as ledger:
        release(ledger, "b", cost=1)
        late = ledger.head()
        assert ledger.holds(early)
        assert ledger.holds(late)
    path.with_suffix(".old").replace(path)  # with the head beside it: only others can tell
    path.with_suffix(".old.head").replace(f"{path}.head")
    with Ledger(path) as ledger:
        assert ledger.holds(early)
        assert not ledger.holds(late)
        release(ledger, "c", cost=1)
        assert ledger.head().count == late.count
        assert not ledger.holds(late)
        assert ledger.verify() == 2


@pytest.mark.parametrize("count", [-1, 1, 2**63, 2**200])
def test_a_head_that_never_was_is_not_held(count):
    ledger = Ledger()
    assert ledger.holds(ledger.head())
    assert not ledger.holds(Head(count, ledger.head().hash))
    assert not ledger.holds(Head(0, ""))


def test_a_file_replaced_or_removed_while_in_use_is_noticed(path):
    with Ledger(path) as ledger:
        release(ledger, "a", cost=1)
        shutil.copy(path, path.with_suffix(".old"))
        path.with_suffix(".old").replace(path)
        for ask in (lambda: release(ledger, "b", cost=1), ledger.head, ledger.spent):
            with pytest.raises(LedgerError, match="removed or replaced while in use"):
                ask()
        path.unlink()
        with pytest.raises(LedgerError, match="removed or replaced while in use"):
            release(ledger, "b", cost=1)


def test_a_file_put_back_in_place_while_in_use_is_noticed(path):
    with Ledger(path) as ledger:
        release(ledger, "a", cost=1)
        with (
            closing(sqlite3.connect(path)) as other,
            closing(sqlite3.connect(path.with_suffix(".old"))) as old,
        ):
            other.backup(old)
        release(ledger, "b", cost=1)
        with (
            closing(sqlite3.connect(path)) as other,
            closing(sqlite3.connect(path.with_suffix(".old"))) as old,
        ):
            old.backup(other)
        with pytest.raises(LedgerError, match=r"north\.ledger was put back to an older state while in use"):
            release(ledger, "c", cost=1)


def test_what_is_not_a_ledger_is_refused_in_a_sentence(tmp_path):
    def attempt(name, content):
        file = tmp_path / name
        file.write_bytes(content)
        sentences = []
        for opened in (Ledger, Ledger.open_readonly):
            with pytest.raises(LedgerError) as caught:
                opened(file)
            sentences.append(str(caught.value))
        assert file.read_bytes() == content
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted({name, *before})
        assert sentences[0] == sentences[1]
        assert name in sentences[0]
        before.add(name)
        return sentences[0]

    before = set()
    assert "not even a database" in attempt("noise", random.Random(1).randbytes(20_000))
    assert "not even a database" in attempt("text", b"name,age\nA,5\n" * 100)
    assert "is empty" in attempt("empty", b"")
    with closing(sqlite3.connect(tmp_path / "other")) as database:
        database.execute("CREATE TABLE patients (name TEXT)")
    assert "a database but not a ledger" in attempt("other", (tmp_path / "other").read_bytes())


def test_places_where_no_ledger_can_be_are_refused_in_a_sentence(tmp_path):
    for opened in (Ledger, Ledger.open_readonly):
        with pytest.raises(LedgerError, match="is not a file"):
            opened(tmp_path)
        with pytest.raises(LedgerError, match="ledger"):
            opened(tmp_path / ("x" * 300))
        with pytest.raises(LedgerError, match="ledger"):
            opened("nul\0byte")
    with pytest.raises(LedgerError, match=r"there is no folder .*nowhere; make it first"):
        Ledger(tmp_path / "nowhere" / "north.ledger")
    with pytest.raises(LedgerError, match=r"there is no ledger .*north\.ledger"):
        Ledger.open_readonly(tmp_path / "north.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_format_of_the_future_is_refused(path):
    fill(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 3")
    assert "has ledger format 3, and this version of concilium reads format 2" in refusal(path)


def read_all(path):
    """Everything that counts; or None where a sentence that names the file says why not."""
    sentence = ""
    try:
        with Ledger.open_readonly(path) as ledger:
            ledger.verify()
            answers = [ledger.recall(e.question, e.digest) for e in ledger.entries() if e.mode != "settings"]
            return ledger.settings, ledger.entries(), answers, ledger.spent()
    except LedgerError as error:
        sentence = str(error)
    assert path.name in sentence
    return None


def test_a_damaged_file_is_refused_or_reads_as_it_was(path):
    """Bytes flipped, runs of bytes overwritten and pages swapped all over: never another answer, never a traceback."""
    fill(path, entries=40)
    sound, truth, chance = path.read_bytes(), read_all(path), random.Random(7)
    assert truth is not None
    refused = 0
    for trial in range(100):
        broken = bytearray(sound)
        place = chance.randrange(len(sound)) if trial % 3 else chance.randrange(200)
        if trial % 2:
            broken[place] ^= 1 << chance.randrange(8)
        else:
            length = chance.choice([16, 500, 4096])
            broken[place : place + length] = chance.randbytes(len(broken[place : place + length]))
        path.write_bytes(broken)
        read = read_all(path)
        assert read in (None, truth)
        refused += read is None
        with suppress(LedgerError), Ledger(path) as ledger:
            release(ledger, "another", cost="1/1000")
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
    assert refused > 30


@pytest.mark.parametrize("share", [0.999, 0.5, 0.1, 0.001])
def test_a_truncated_file_is_refused(path, share):
    fill(path, entries=40)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert refusal(path)


def test_looking_makes_and_changes_nothing(path):
    head = fill(path)

    def folder():
        return {
            file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")
        }

    before = folder()
    with Ledger.open_readonly(path) as ledger:
        assert ledger.head() == head
        assert ledger.verify() == 8
        assert ledger.recall("last", "d") == b"last after 8"
        for change in (
            lambda: release(ledger, "new"),
            lambda: ledger.set_budget(100, "more"),
            lambda: ledger.rebind("other"),
            lambda: ledger.refuse("s", "k", "q", "rule"),
            lambda: ledger.remember_population(b"digest", b"patients"),
            lambda: ledger.remember_circle("records", ("a", "b")),
            ledger.mask_store,
        ):
            with pytest.raises(LedgerError, match="opened for reading only"):
                change()
        assert folder() == before
    assert folder() == before
    with Ledger(path) as writer, Ledger.open_readonly(path) as ledger:
        release(writer, "while it is in use")
        assert ledger.head() == writer.head()
        assert ledger.verify() == 9


LOOK = textwrap.dedent(
    """
    import os, sys
    from concilium.errors import LedgerError
    from concilium.ledger.ledger import Ledger
    if os.getuid() == 0:
        os.setgid(65534), os.setuid(65534)
    for path in sys.argv[1:]:
        with Ledger.open_readonly(path) as ledger:
            print(ledger.verify())
        try:
            Ledger(path)
        except LedgerError as error:
            print(error)
    """
)


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
def test_a_ledger_that_may_only_be_read_is_shown_and_not_written():
    """At rest, in use, and left behind by a killed site with or without its index: read by another user."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / state for state in ("rest", "use", "killed", "moved")]
        for folder in folders:
            folder.mkdir()
        rest, use, killed, moved = (folder / "north.ledger" for folder in folders)
        fill(rest)
        fill(use)
        with Ledger(use) as ledger:
            release(ledger, "in the log")
            for copy, endings in ((killed, ("", ".head", "-wal", "-shm")), (moved, ("", ".head", "-wal"))):
                for ending in endings:
                    shutil.copy(f"{use}{ending}", f"{copy}{ending}")
            for file in (file for folder in folders for file in folder.iterdir()):
                file.chmod(0o444)
            for folder in (*folders, Path(name)):
                folder.chmod(0o555)
            before = {folder: sorted(folder.iterdir()) for folder in folders}
            looked = subprocess.run(
                [sys.executable, "-c", LOOK, *map(str, (rest, use, killed, moved))],
                capture_output=True,
                text=True,
            )
            after = {folder: sorted(folder.iterdir()) for folder in folders}
        for folder in (Path(name), *folders):
            folder.chmod(0o755)
    assert looked.stderr == ""
    lines = looked.stdout.splitlines()
    assert lines[::2] == ["8", "9", "9", "9"]
    assert all("north.ledger cannot be" in sentence for sentence in lines[1::2])
    assert len(lines) == 8
    assert after == before


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
def test_a_new_ledger_is_readable_by_its_owner_alone_and_alone_in_its_folder(path):
    with Ledger(path) as ledger:
        release(ledger)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {file.name for file in path.parent.iterdir()} == {"north.ledger", "north.ledger.head"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_ledger_is_not_used_across_a_fork(path):
    script = textwrap.dedent(
        """
        import os, sys
        from concilium.errors import LedgerError
        from concilium.ledger.ledger import Ledger
        ledger = Ledger(sys.argv[1])
        if os.fork() == 0:
            try:
                ledger.spent()
            except LedgerError as error:
                print(error, flush=True)
            ledger.close()
            os._exit(0)
        os.wait()
        print(ledger.verify())
        """
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    sentence, verified = ran.stdout.splitlines()
    assert "was opened in another process; open it again in this one" in sentence
    assert verified == "0"


def test_a_closed_ledger_says_so(path):
    with Ledger(path) as ledger:
        assert repr(ledger) == f"Ledger({str(path)!r})"
    for ask in (ledger.spent, ledger.verify, lambda: release(ledger)):
        with pytest.raises(LedgerError, match="is closed"):
            ask()
    ledger.close()


def test_a_ledger_in_memory_is_a_new_one_each_time():
    release(Ledger(), cost=1)
    assert Ledger().spent() == 0


def test_paths_of_every_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("plain.ledger", "with space.ledger", "what?mode=ro#a%20b.ledger", "Zürich.ledger"):
        with Ledger(path) as ledger:
            release(ledger)
        assert (tmp_path / path).is_file()
        with Ledger.open_readonly(tmp_path / path) as ledger:
            assert ledger.verify() == 1
    (tmp_path / "link.ledger").symlink_to("plain.ledger")
    with Ledger("link.ledger") as ledger:
        release(ledger, "second")
        with Ledger.open_readonly("link.ledger") as look:
            assert look.verify() == 2


def test_a_question_that_somebody_else_answered_meanwhile_is_not_charged_again(tmp_path):
    """What was looked for and not found is looked for again wherever anything was entered since."""
    path = tmp_path / "a.ledger"
    with Ledger(path) as one, Ledger(path) as other:
        sealed = {"study": "s", "kind": "k", "mode": "exact", "numbers": 3}
        assert one.recall("q", "d") is None
        assert other.charge("q", "d", seal=lambda head: b"first", **sealed) == b"first"
        assert one.charge("q", "d", seal=lambda head: b"second", **sealed) == b"first"
        assert one.recall("r", "d") is None
        assert one.charge("r", "d", seal=lambda head: b"third", **sealed) == b"third"
        assert one.charge("r", "d", seal=lambda head: b"fourth", **sealed) == b"third"
        assert [entry.question for entry in one.entries() if entry.question] == ["q", "r"]
