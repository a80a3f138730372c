"""The layout of Figure 7.1 against its definition, on every patient of small tables."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import MessageError, RecordsError
from concilium.protocol.cohort import View
from concilium.protocol.held_out import Sample, _order_key, take_turn
from concilium.records import blocks


def cohort_of(rows, query="", target="y"):
    return View(cc.Records.from_rows(rows), cc.Policy()).select(query, target)


def lay_out(rows, key):
    """The circle, one after the other."""
    everyone = np.ones(len(rows), dtype=bool)
    turns = [take_turn(rows, everyone, key, 1, turn, None) for turn in range(len(rows))]
    return [int(rows[turn][0]) for turn in turns]


def chosen(cohort, negatives, expert, query="", positive=1):
    return Sample(positive=positive, negatives=negatives, expert=expert).choose(cohort, query, "y").rows


OUTCOMES = st.lists(st.sampled_from([0, 0, 0, 1, 2, None]), min_size=1, max_size=60).filter(any)


@given(outcomes=OUTCOMES, negatives=st.integers(1, 5), experts=st.integers(1, 12))
def test_every_expert_has_all_positives_and_its_helping_of_negatives(outcomes, negatives, experts):
    cohort = cohort_of([{"x": i, "y": y} for i, y in enumerate(outcomes)])
    positives = {i for i, y in enumerate(outcomes) if y == 1}
    others = {i for i, y in enumerate(outcomes) if y in (0, 2)}
    helping = min(len(others), negatives * len(positives))
    if len(positives) + helping < 4 or not positives:
        assert not len(chosen(cohort, negatives, 0))
        return
    used = Counter()
    for expert in range(experts):
        rows = chosen(cohort, negatives, expert).tolist()
        assert rows == sorted(set(rows))
        assert positives <= set(rows) <= positives | others
        assert len(rows) == len(positives) + helping
        used.update(set(rows) - positives)
        # Nobody is used again before all were used.
        assert max(used[row] for row in others) - min(used[row] for row in others) <= 1 if others else True
    if helping == len(others):
        assert all(used[row] == experts for row in others)


def test_two_positives_and_sixteen_negatives_as_in_figure_7_1():
    cohort = cohort_of([{"x": i, "y": int(i in (3, 11))} for i in range(18)])
    first, second, third = (set(chosen(cohort, 3, expert).tolist()) - {3, 11} for expert in range(3))
    assert [len(first), len(second), len(third)] == [6, 6, 6]
    assert not first & second
    assert len(third - first - second) == 4
    assert first | second | third == set(range(18)) - {3, 11}


def test_the_order_is_the_questions_and_nobody_elses():
    rows = [{"x": i, "y": int(i < 5)} for i in range(200)]
    cohort = cohort_of(rows)
    one = chosen(cohort, 3, 0).tolist()
    assert one == chosen(cohort_of(rows), 3, 0).tolist()
    assert one == chosen(cohort_of([{**row, "x": -row["x"]} for row in rows]), 3, 0).tolist()
    assert one != chosen(cohort, 3, 0, query="x >= 0").tolist()
    assert _order_key("ab", "c", 1) != _order_key("a", "bc", 1)
    assert _order_key("", "y", 1) == _order_key("", "y", 1.0) == _order_key("", "y", "1")


def test_only_patients_of_the_query_are_laid_out():
    cohort = cohort_of([{"x": i % 2, "y": int(i < 6)} for i in range(60)], "x = 1")
    rows = chosen(cohort, 3, 0, query="x = 1")
    assert set(rows[:3]) == {1, 3, 5}
    assert all(row % 2 for row in rows)


def test_the_circle_is_a_fair_shuffle():
    """Over many keys every place of the circle is taken by every row equally often (chi-squared, 99.9 %)."""
    rows, keys = np.arange(8, dtype=np.int32), 4000
    circles = np.array([lay_out(rows, _order_key(f"x = {number}", "y", 1)) for number in range(keys)])
    assert (np.sort(circles, axis=1) == rows).all()
    places = np.array([np.bincount(circles[:, place], minlength=8) for place in range(8)])
    assert ((places - keys / 8) ** 2 / (keys / 8)).sum() < 85.4  # 49 degrees of freedom
    # Neighbours in the table are no neighbours in the circle more often than chance: 2 in 7.
    near = np.abs(np.argmax(circles == 0, axis=1) - np.argmax(circles == 1, axis=1))
    assert abs(np.isin(near, (1, 7)).mean() - 2 / 7) < 0.03


def test_the_order_is_that_of_splitmix64_in_plain_integers():
    key, mask = _order_key("age > 3", "y", "yes"), 2**64 - 1

    def mix(row):
        z = (row * 0x9E3779B97F4A7C15 + key) & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    rows = np.arange(0, 3000, 7, dtype=np.int32)
    assert lay_out(rows, key) == sorted(rows.tolist(), key=mix)


@given(st.data())
def test_a_turn_comes_after_those_before_it_however_large_the_table(data):
    rows = np.arange(0, 60, 2, dtype=np.int32)
    among = np.array(data.draw(st.lists(st.booleans(), min_size=30, max_size=30)))
    key, turn = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 10**6))
    count = data.draw(st.integers(0, 35))
    circle = lay_out(rows[among], key)
    expected = {circle[(turn * count + place) % len(circle)] for place in range(min(count, len(circle)))}
    for block in (1 << 20, data.draw(st.integers(1, 29))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "ROWS_AT_ONCE", block)
            patch.setattr(blocks, "ROWS_SORTED", max(1, block // 2))
            assert set(rows[take_turn(rows, among, key, count, turn, None)].tolist()) == expected


def test_without_negatives_it_is_everyone():
    cohort = cohort_of([{"x": i, "y": i % 2} for i in range(9)])
    assert Sample(positive=1).choose(cohort, "", "y") is cohort


def test_a_sample_of_no_sense_is_refused():
    for sample in (
        Sample(positive=1, negatives=0),
        Sample(positive=1, negatives=10**9),
        Sample(positive=1, negatives=3, expert=-1),
        Sample(positive=1, negatives=3, expert=10**9),
    ):
        with pytest.raises(MessageError):
            sample.check()
    cohort = cohort_of([{"y": i + 0.5} for i in range(9)])
    with pytest.raises(RecordsError, match="a tree predicts categories"):
        Sample(positive=1, negatives=3).choose(cohort, "", "y")
