"""What was corrected of a patient does not follow from two plain answers: a correction counts as a difference."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc

LEAST = 4  # patients by whom two plain answers may differ: the default policy's
ROWS = [
    {"mrn": f"p{i:03}", "sex": "fm"[i % 2], "ward": "abc"[i % 3], "death": int(i % 5 == 0)} for i in range(40)
]


def ask(folder, rows, query="", policy=None, series=None):
    """Whether a tree over these patients is answered."""
    table = cc.Records.from_rows(rows)
    patients = cc.Patients(table=table, series=series, by="mrn")
    site = cc.Site("north", patients, policy=policy, ledger=Path(folder) / "north.ledger")
    refusal = ""
    try:
        cc.DecisionTree("death", query=query, attributes=["sex", "ward"]).fit(cc.House([site]))
    except cc.errors.HouseError as error:
        refusal = str(error)
    finally:
        site.ledger.close()
    assert not refusal or "too few" in refusal
    return not refusal


def correct(rows, which, **cells):
    return [{**row, **cells} if index in which else row for index, row in enumerate(rows)]


@pytest.mark.parametrize(("corrected", "answered"), [(1, False), (3, False), (4, True), (20, True)])
def test_answers_before_and_after_a_correction_are_not_both_given(tmp_path, corrected, answered):
    assert ask(tmp_path, ROWS)
    after = correct(ROWS, range(corrected), ward="d")
    assert ask(tmp_path, after) == answered
    assert ask(tmp_path, random.Random(2).sample(ROWS, len(ROWS)))  # as it was, in another order
    assert ask(tmp_path, random.Random(3).sample(after, len(after))) == answered


def test_new_patients_do_not_hide_a_correction(tmp_path):
    """Of the answers' difference, what is said of the corrected patient before stands alone."""
    assert ask(tmp_path, ROWS)
    more = [*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:10]))]
    assert not ask(tmp_path, correct(more, [7], sex="x"))
    assert ask(tmp_path, more)


def test_a_correction_elsewhere_is_none_of_a_study_s(tmp_path):
    """Of patients whom neither answer is about, and in a column that policy withholds."""
    assert ask(tmp_path, ROWS, query="sex = 'f'")
    assert ask(tmp_path, correct(ROWS, [1], ward="d"), query="sex = 'f'")  # a man
    assert not ask(tmp_path, correct(ROWS, [0], ward="d"), query="sex = 'f'")
    other = tmp_path / "other"
    other.mkdir()
    phones = [{**row, "phone": str(i % 7)} for i, row in enumerate(ROWS)]
    withheld = cc.Policy(withhold=("phone",))
    assert ask(other, phones, policy=withheld)
    assert ask(other, correct(phones, [3], phone="none"), policy=withheld)


def test_columns_that_come_later_change_nobody_and_hide_no_correction(tmp_path):
    assert ask(tmp_path, ROWS)
    wider = [{**row, "age": str(i % 9)} for i, row in enumerate(ROWS)]
    assert not ask(tmp_path, correct(wider, [5], ward="d"))
    assert ask(tmp_path, wider)
    assert not ask(tmp_path, correct(wider, [5], age="x"))


def without(rows, *names):
    return [{name: cell for name, cell in row.items() if name not in names} for row in rows]


WIDE = [{**row, "phone": str(i % 7), "unit": str(i % 3)} for i, row in enumerate(ROWS)]


@pytest.mark.parametrize(("corrected", "answered"), [(0, True), (1, False), (3, False), (4, True)])
def test_a_column_that_is_gone_hides_no_correction(tmp_path, corrected, answered):
    """The attack: take a column out and correct somebody in another, in one go or one after the other."""
    assert ask(tmp_path, WIDE)
    after = without(correct(WIDE, range(corrected), ward="d"), "phone")
    assert ask(tmp_path, after) == answered
    assert ask(tmp_path, without(WIDE, "phone", "unit"))
    assert ask(tmp_path, random.Random(1).sample(after, len(after))) == answered
    assert ask(tmp_path, without(after, "unit")) == answered


def test_a_column_that_may_not_be_told_any_more_hides_no_correction(tmp_path):
    assert ask(tmp_path, WIDE)
    withheld = cc.Policy(withhold=("phone",))
    assert not ask(tmp_path, correct(WIDE, [5], ward="d"), policy=withheld)
    assert ask(tmp_path, correct(WIDE, [5], phone="none"), policy=withheld)  # nobody is told
    assert not ask(tmp_path, correct(WIDE, [5], phone="none"))


def test_another_name_hides_no_correction(tmp_path):
    assert ask(tmp_path, WIDE)

    def rename(rows):
        return [{("device" if name == "phone" else name): cell for name, cell in row.items()} for row in rows]

    assert not ask(tmp_path, rename(correct(WIDE, [5, 6], phone="none")))
    assert ask(tmp_path, rename(WIDE))
    rare = [{**row, "rare": int(i == 3)} for i, row in enumerate(without(WIDE, "phone"))]
    assert ask(tmp_path, rare)
    assert ask(tmp_path, [{**row, "seldom": int(i == 8)} for i, row in enumerate(without(rare, "rare"))])


def test_what_is_kept_of_columns_grows_with_what_is_new(tmp_path):
    def ask_and_weigh(rows):
        assert ask(tmp_path, rows)
        with closing(sqlite3.connect(tmp_path / "north.ledger")) as file:
            query = "SELECT count(*), sum(length(states)) FROM patient_state WHERE aspect LIKE '%cells%'"
            return file.execute(query).fetchone()

    assert ask_and_weigh(WIDE) == (5, 5 * 2 * 40)  # sex, ward, death, phone, unit
    more = [*WIDE, *({**row, "mrn": f"q{i}"} for i, row in enumerate(WIDE[:10]))]
    assert ask_and_weigh(more) == (5, 5 * 2 * 50)
    assert ask_and_weigh(more[8:]) == (5, 5 * 2 * 50)
    assert ask_and_weigh(without(more, "unit")) == (5, 5 * 2 * 50)
    assert ask_and_weigh(correct(more, range(4), phone="none")) == (6, 6 * 2 * 50)


def test_columns_of_very_large_tables_are_kept_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("concilium.protocol.patient_identity.MOST_CELLS", 3 * 40)
    assert ask(tmp_path, WIDE)  # (death, unit), (phone, ward), (sex)
    assert not ask(tmp_path, without(correct(WIDE, [5], sex="x"), "phone"))
    assert not ask(tmp_path, without(correct(WIDE, [5], unit="x"), "phone"))
    assert not ask(tmp_path, correct(WIDE, [5], ward="x"))


def make_series(rows, corrected=()):
    values = np.array([[10.0 * step + row for row in range(len(rows))] for step in range(3)])
    for row in corrected:
        values[1, row] += 0.5
    return cc.Series({"HR": values}, ids=[row["mrn"] for row in rows])


def test_what_is_held_beside_the_table_is_compared_and_the_ledger_goes_on_with_it(tmp_path):
    assert ask(tmp_path, ROWS, series=make_series(ROWS))
    assert not ask(tmp_path, ROWS, series=make_series(ROWS, [2]))
    assert ask(tmp_path, ROWS, series=make_series(ROWS, range(5)))
    shuffled = random.Random(4).sample(ROWS, len(ROWS))
    values = {row["mrn"]: index for index, row in enumerate(ROWS)}
    order = np.array([values[row["mrn"]] for row in shuffled])
    assert ask(tmp_path, shuffled, series=make_series(ROWS).take(order))
    more = [*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:6]))]
    assert ask(tmp_path, more, series=make_series(more))
    assert ask(tmp_path, more)  # without them, by the same ledger
    with cc.Ledger.open_readonly(tmp_path / "north.ledger") as book:
        book.verify()
        assert [entry.kind for entry in book.entries()].count("rebind") >= 3


def test_codes_and_rules_of_one_patient_are_told_apart(tmp_path):
    one = cc.Sequences([[(1, "a"), (1, "b"), (2, "c")], [(1, "a")], []])
    same = cc.Sequences([[(1, "b"), (1, "a"), (2, "c")], [(1, "a")], []])
    other = cc.Sequences([[(1, "b"), (1, "a"), (3, "c")], [(1, "a")], []])
    assert np.array_equal(one.hashes, same.hashes)
    assert (one.hashes != other.hashes).any(axis=0).tolist() == [True, False, False]
    assert np.array_equal(one.hashes[:, [2, 0]], one.take(np.array([2, 0])).hashes)
    rules = cc.RuleSets([["HR > 90", "HR > 80"], ["HR > 80"]])
    turned = cc.RuleSets([["HR > 80", "HR > 90"], ["HR > 80"]])
    assert (rules.hashes != turned.hashes).any(axis=0).tolist() == [True, False]
    series = make_series(ROWS)
    assert (series.hashes != make_series(ROWS, [4]).hashes).any(axis=0).tolist() == [
        i == 4 for i in range(40)
    ]
    assert np.array_equal(series.hashes[:, [5, 1]], series.take(np.array([5, 1])).hashes)


versions = st.lists(
    st.tuples(
        st.sampled_from(["", "sex = 'f'", "ward = 'a'"]),
        st.integers(0, 6),  # patients taken out
        st.sets(st.integers(0, 39), max_size=6),  # corrected
        st.booleans(),  # without a column that has nothing to do with it
        st.randoms(use_true_random=False),
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(versions)
def test_no_two_answers_differ_by_few_patients_or_by_what_is_said_of_few(asked):
    """The oracle is brute force: all that every earlier answer was computed from, compared as sets."""
    folder = tempfile.mkdtemp()
    given: list[tuple[set[str], set[tuple[str, ...]]]] = []
    for query, gone, corrected, narrower, dice in asked:
        rows = correct(ROWS, corrected, ward="d")[gone:]
        dice.shuffle(rows)
        name, _, value = query.partition(" = ")
        chosen = [row for row in rows if not query or row[name] == value.strip("'")]
        ids = {row["mrn"] for row in chosen}
        states = {tuple(map(str, row.values())) for row in chosen}
        close = any(
            0 < len(one - other) < LEAST
            for before in given
            for now, then in zip((ids, states), before, strict=True)
            for one, other in ((now, then), (then, now))
        )
        fits = len(chosen) >= LEAST and not close
        told = rows if narrower else [{**row, "phone": str(int(row["mrn"][1:]) % 7)} for row in rows]
        assert ask(folder, told, query=query) == fits
        if fits:
            given.append((ids, states))
    shutil.rmtree(folder)
