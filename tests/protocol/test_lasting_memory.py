"""A question that was refused stays refused: whatever the order, the reading and the binding of the table."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conversation import schema_message
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

import concilium as cc
from agreed import deliver
from concilium.errors import LedgerError
from concilium.ledger.ledger import Ledger
from concilium.protocol.disclosure import Population, Populations
from concilium.protocol.messages import Answer, open_reply
from concilium.protocol.patient_identity import PatientIdentity, _encipher, _look_up

SEXES, ODD = ("f", "m"), ("1", "1.0", "007", "7", "+5", "NA", "TRUE", "x")
POLICY = cc.Policy(minimum_patients=4, refusals_per_month=1000)
QUERIES = (
    "",
    "sex = 'f'",
    "age < 60",
    "age < 61",
    "age < 62",
    "not (sex = 'f' and age > 61)",
    "age between 30 and 61",
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "age": st.integers(55, 65),
            "sex": st.sampled_from(SEXES),
            "odd": st.sampled_from(ODD),
            "y": st.sampled_from("np"),
        }
    ),
    min_size=6,
    max_size=25,
)


def write(path, people, names=("age", "sex", "odd", "y")):
    path.write_text(
        "\n".join([",".join(names), *(",".join(str(one[n]) for n in names) for one in people), ""])
    )
    return path


def ask(site, name, query):
    """Whether the site tells its schema, which is plain, in a study of its own."""
    message = schema_message(f"question {name}", query=query, study=f"study-{name}")
    return isinstance(open_reply(deliver(site, message)), Answer)


@settings(max_examples=60, deadline=None)
@given(st.data(), rows, st.lists(st.sampled_from(QUERIES), min_size=1, max_size=4))
def test_what_was_refused_before_is_refused_after(data, people, before):
    stated = st.fixed_dictionaries(
        {},
        optional={
            "age": st.just("number"),
            "sex": st.just("code"),
            "odd": st.just("code"),
            "y": st.just("code"),
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger, table = Path(folder) / "a.ledger", Path(folder) / "a.csv"
        site = cc.Site("a", cc.Records.read(write(table, people)), policy=POLICY, ledger=ledger)
        for number, query in enumerate(before):
            ask(site, f"before {number}", query)
        fresh = {query: ask(site, f"again {query}", query) for query in QUERIES}
        told = {query for query, answered in fresh.items() if answered}
        site.ledger.close()
        for turn in range(2):
            names = data.draw(st.permutations(["age", "sex", "odd", "y", *(["more"] if turn else [])]))
            shuffled = [{**one, "more": n} for n, one in enumerate(data.draw(st.permutations(people)))]
            records = cc.Records.read(write(table, shuffled, names), schema=data.draw(stated))
            if turn:  # another column: another table
                with pytest.raises(LedgerError, match="rebind"):
                    cc.Site("a", records, policy=POLICY, ledger=ledger)
                with Ledger(ledger) as book:
                    book.rebind(records.digest)
            site = cc.Site("a", records, policy=POLICY, ledger=ledger)
            for query in data.draw(st.permutations(QUERIES)):
                assert ask(site, f"turn {turn} {query}", query) == (query in told)
            site.ledger.close()


def test_a_stated_column_opens_no_way_to_one_patient(tmp_path):
    """Adding `sex = "code"` under [schema] demanded a rebind, and after it the second question was answered."""
    people = [{"age": 20 + row, "sex": "f", "odd": "x", "y": "n"} for row in range(20)] + [
        {"age": 90, "sex": "m", "odd": "x", "y": "p"}
    ]
    table, ledger = write(tmp_path / "a.csv", people), tmp_path / "a.ledger"
    site = cc.Site("a", cc.Records.read(table), policy=POLICY, ledger=ledger)
    assert ask(site, "1", "")
    assert not ask(site, "2", "age < 90")
    site.ledger.close()
    for schema in ({"sex": "code"}, {"sex": "code", "age": "number"}):
        site = cc.Site("a", cc.Records.read(table, schema=schema), policy=POLICY, ledger=ledger)
        assert not ask(site, f"3 {schema}", "age < 90")
        site.ledger.close()
    people[0]["age"] = 19
    records = cc.Records.read(write(table, people))
    with Ledger(ledger) as book:
        book.rebind(records.digest)
    site = cc.Site("a", records, policy=POLICY, ledger=ledger)
    # One patient of whom the table says something else: before and after would tell them apart.
    assert not ask(site, "4", "")
    assert not ask(site, "5", "age < 90")
    assert not ask(site, "6", "age > 19")
    assert ask(site, "7", "age > 30")


@pytest.mark.parametrize("by", [None, "odd"])
def test_a_table_that_grows_is_compared_patient_by_patient(tmp_path, by):
    people = [{"age": 40 + row, "sex": "f", "odd": f"id{row}", "y": "n"} for row in range(30)]

    def open_site(rows):
        records = cc.Records.from_rows(rows)
        with Ledger(tmp_path / "a.ledger") as book:
            book.rebind(records.digest)
        return cc.Site("a", cc.Patients(table=records, by=by), policy=POLICY, ledger=tmp_path / "a.ledger")

    site = open_site(people[3:20])
    assert ask(site, "1", "")
    site.ledger.close()
    for number, (start, end, answered) in enumerate(
        [(2, 20, False), (0, 20, False), (3, 24, True), (3, 25, False)]
    ):
        site = open_site(people[start:end])
        assert ask(site, f"2 {number}", "") == answered
        site.ledger.close()
    older = [{**one, "age": one["age"] + 1} for one in people[3:23]]
    site = open_site(older)
    assert ask(site, "3", "") == (
        by is None
    )  # everybody is new without an id; with one, all but a few are the same
    site.ledger.close()


def test_patients_who_cannot_be_compared_are_forgotten_only_with_a_reason(tmp_path):
    people = [{"age": 40 + row, "sex": "f", "y": "n"} for row in range(30)]
    path = tmp_path / "a.ledger"
    site = cc.Site("a", cc.Records.from_rows(people), policy=POLICY, ledger=path)
    assert ask(site, "1", "")
    site.ledger.close()
    fewer = cc.Records.from_rows([{"age": one["age"], "y": one["y"]} for one in people])
    with Ledger(path) as book:
        book.rebind(fewer.digest)
        with pytest.raises(
            LedgerError, match=r"columns that are gone, such as 'sex'.*forget them, with a reason"
        ):
            Populations(book, cc.Patients(table=fewer), 4).count_known()
    site = cc.Site("a", fewer, policy=POLICY, ledger=path)
    refusal = open_reply(deliver(site, schema_message("question 2", study="study-2")))
    assert refusal.rule == "ledger"
    with Ledger(path) as book:  # while the site runs
        with pytest.raises(LedgerError, match="needs a reason"):
            book.rebind(fewer.digest, forget=" ")
        book.rebind(fewer.digest, forget="the committee agreed")
        assert book.entries()[-1].note.endswith(
            "whom 1 answers were about was forgotten: the committee agreed"
        )
    assert ask(site, "3", "")
    assert not ask(site, "4", "age > 40")


def test_a_running_site_notices_that_its_memory_was_taken_away(tmp_path):
    path, records = (
        tmp_path / "a.ledger",
        cc.Records.from_rows([{"age": 40 + row, "y": "n"} for row in range(30)]),
    )
    site = cc.Site("a", records, policy=POLICY, ledger=path)
    assert ask(site, "1", "")
    assert ask(site, "2", "")
    with Ledger(path) as book:
        book.rebind(records.digest, forget="a new beginning")
        assert book.recall_patients() is None
    assert ask(site, "3", "")  # and is remembered anew
    assert not ask(site, "4", "age > 40")


@given(st.lists(st.sets(st.integers(0, 15), min_size=1), min_size=1, max_size=6), st.data())
def test_numbers_last_and_no_two_patients_share_one(tables, data):
    """Whoever was entered, in whatever order and however many charges fail in between."""
    with Ledger() as ledger:
        lasting = {}
        for ids in tables:
            order = data.draw(st.permutations(sorted(ids)))
            patients = cc.Patients(table=cc.Records.from_rows([{"id": one} for one in order]))
            numbers = PatientIdentity(ledger, patients)

            def look(fails, numbers=numbers, order=order):
                found = []

                def seal(head):
                    memory = ledger.recall_patients() or ledger.begin_patients(numbers.columns)
                    found.extend(numbers.find(memory).tolist())
                    if fails:
                        raise ZeroDivisionError
                    return b""

                question = f"question {len(ledger.entries())}"
                with suppress(ZeroDivisionError):
                    ledger.charge(question, "d", study="s", kind="k", mode="exact", seal=seal)
                return [] if fails else zip(order, found, strict=True)

            for fails in [*data.draw(st.lists(st.booleans(), max_size=3)), False]:
                for one, number in look(fails):
                    assert lasting.setdefault(one, number) == number
        assert len(set(lasting.values())) == len(lasting)
        assert len(ledger.patient_names()) == 8 * len(lasting)


def test_names_are_of_the_key_and_of_the_patient():
    hashes = cc.Records.from_rows([{"a": row} for row in range(100)]).tell_apart()
    names = _encipher(hashes, bytes(16))
    assert len({*names.tolist(), *_encipher(hashes, b"another key 1234").tolist()}) == 200
    assert np.array_equal(names, _encipher(hashes.copy(), bytes(16)))
    numbers, is_new = _look_up(names, names[::-1][:50])
    assert numbers[50:].tolist() == [*range(50)][::-1]
    assert is_new.tolist() == [True] * 50 + [False] * 50


def test_the_memory_of_one_table_is_asked_about_its_parts():
    """Evaluation holds patients back: the sites of its folds are parts of one table, row by row."""
    records = cc.Records.from_rows([{"a": row % 3, "y": "np"[row % 2]} for row in range(40)])
    halves = [records.take(np.arange(40) % 2 == half) for half in (0, 1)]
    with Ledger() as ledger:
        for number, part in enumerate([records, *halves]):
            populations = Populations(ledger, cc.Patients(table=part), 4)
            everyone = Population(np.arange(len(part)))

            def seal(head, populations=populations, everyone=everyone):
                assert populations.admit(everyone)
                return b""

            ledger.charge(f"{number}", "d", study="s", kind="k", mode="exact", seal=seal)
        stored = [BitMap.deserialize(one) for _, _, one in ledger.recall_patients().populations]
        assert [len(one) for one in stored] == [40, 20, 20]
        assert not stored[1] & stored[2]


def test_what_was_undone_is_not_taken_for_compared():
    """A study that is refused takes back what it remembered: the next population in its place is compared anew."""
    table = cc.Records.from_rows([{"age": 20 + row, "y": "np"[row % 2]} for row in range(30)])
    with Ledger(":memory:") as ledger:
        populations = Populations(ledger, cc.Patients(table=table), 4)

        def admit(*groups):
            with ledger.writing():
                return [populations.admit(Population(np.arange(*group))) for group in groups]

        assert admit((0, 30)) == [True]
        with suppress(ZeroDivisionError), ledger.writing():
            assert populations.admit(Population(np.arange(10, 20)))
            assert populations.admit(Population(np.arange(0, 10)))
            raise ZeroDivisionError
        assert admit((0, 11)) == [True]
        assert admit((0, 10)) == [False]  # one patient fewer than those before
