"""Windows of stays against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records.series import Series
from concilium.temporal.learning import LabelledWindows, cut_windows


@st.composite
def stays(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    shape = (max(lengths), len(lengths))
    grids = {"HR": generator.normal(80, 10, shape), "out": generator.choice([0.0, 1.0, np.nan], shape)}
    return Series(grids, lengths=lengths, ids=[f"p{i}" for i in range(len(lengths))])


@given(stays(), st.integers(1, 5), st.integers(1, 3))
def test_windows_are_those_of_a_loop(series, length, every):
    expected = []
    values, outcome = series["HR"], series["out"]
    for patient, stay in enumerate(series.lengths):
        for end in range(stay, length - 1, -every):
            if not np.isnan(outcome[end - 1, patient]):
                expected.append(
                    (patient, values[end - length : end, patient], outcome[end - 1, patient] == 1)
                )
    if not expected:
        with pytest.raises(RecordsError, match=r"no stay is as long|missing in every window"):
            cut_windows(series, "out", length, every)
        return
    windows = cut_windows(series, "out", length, every)
    assert windows.owners.tolist() == [patient for patient, _, _ in expected]
    assert windows.labels.tolist() == [bool(positive) for _, _, positive in expected]
    assert windows.series.names == ("HR",)
    assert windows.series.points == length
    assert windows.series.lengths.tolist() == [length] * len(expected)
    for column, (patient, part, _) in enumerate(expected):
        np.testing.assert_array_equal(windows.series["HR"][:, column], part)
        assert windows.series.ids[column] == f"p{patient}"


def test_labels_of_patients_go_to_all_their_windows():
    series = Series({"HR": np.ones((4, 3))})
    windows = cut_windows(series, [1, 0, np.nan], 2, 2)
    assert windows.owners.tolist() == [0, 0, 1, 1]
    assert windows.labels.tolist() == [True, True, False, False]


def test_times_may_be_said_in_hours():
    series = Series({"HR": np.ones((8, 1))}, step="15min")
    assert cut_windows(series, [1], "1h", "30min").series.lengths.tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("outcome", "length", "problem"),
    [
        ("odd", 2, "0 or 1"),
        ("none", 2, "no variable 'none'"),
        ([1, 0], 2, "one label for each of the 1 patients"),
        ("odd", 0, "at least one step"),
        ("odd", 4, "no stay is as long as a window of 4 steps; the longest has 3"),
        ([np.nan], 2, "missing in every window"),
        (["yes"], 2, "0 or 1, or missing"),
        ([2], 2, "0 or 1, or missing; got 2"),
    ],
)
def test_bad_windows(outcome, length, problem):
    series = Series({"HR": np.ones((3, 1)), "odd": np.full((3, 1), 2.0)})
    with pytest.raises(RecordsError, match=problem):
        cut_windows(series, outcome, length)


def test_an_outcome_alone_tells_nothing():
    with pytest.raises(RecordsError, match="no variable beside the outcome"):
        cut_windows(Series({"out": np.ones((3, 1))}), "out", 2)


@pytest.mark.parametrize(
    ("labels", "owners", "problem"),
    [
        ([1, 0], [0, 1], "labels are true or false"),
        ([True], [0, 1], "labels are true or false, one for each of the 2 windows"),
        ([True, False], [0.0, 1.0], "owners are whole numbers"),
        ([True, False], [-1, 1], "owners are whole numbers from 0"),
    ],
)
def test_labels_and_owners_go_with_the_windows(labels, owners, problem):
    with pytest.raises(RecordsError, match=problem):
        LabelledWindows(Series({"HR": np.ones((3, 2))}), np.array(labels), np.array(owners))


def test_windows_of_a_long_stay_cost_no_copies_of_it():
    series = Series({"HR": np.arange(50_000.0)[:, None]})
    windows = cut_windows(series, [1], 2)
    assert len(windows) == 49_999
    assert windows.series["HR"][:, 0].tolist() == [49_998, 49_999]
