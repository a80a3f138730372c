from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import MessageError, RecordsError
from concilium.experts.expert_task import NetworkSettings, PublicRange
from concilium.experts.patient_windows import _grade, check_target, find_onsets, has_outcome, lay_out
from experts.expert_patients import make_series, make_task


def say_severity(label, lead, bound):
    """By the definition, one step after the other."""
    first = next((step for step, value in enumerate(label) if value == 1), None)
    graded = []
    for step, value in enumerate(label):
        if value not in (0, 1):
            graded.append(None)
        elif value == 1:
            graded.append(bound)
        elif first is not None and first - lead < step < first:
            graded.append(bound * (1 - (first - step) / lead))
        else:
            graded.append(0)
    return graded


@given(
    st.lists(
        st.lists(st.sampled_from([0, 0, 0, 1, np.nan, 2]), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    st.integers(1, 8),
)
def test_severity_rises_to_the_bound_in_the_lead_before_the_label(labels, lead):
    longest = max(map(len, labels))
    grid = np.full((longest, len(labels)), np.nan)
    for patient, label in enumerate(labels):
        grid[: len(label), patient] = label
    series = cc.Series({"y": grid, "x": np.zeros_like(grid)}, lengths=[len(label) for label in labels])
    severity = _grade(series, make_task(target="y", lead=f"{lead}h", variables=(PublicRange("x", 0, 1),)))
    for patient, label in enumerate(labels):
        own = severity[series.starts[patient] : series.starts[patient + 1]]
        expected = [np.nan if one is None else one for one in say_severity(label, lead, 4)]
        np.testing.assert_allclose(own, expected)
    first = [float(np.argmax(np.array(label) == 1)) if 1 in label else np.inf for label in labels]
    assert find_onsets(series, "y").tolist() == first


def grade_series(labels, **more):
    grid = np.array([labels], dtype=float).T
    series = cc.Series({"sepsis": grid, "HR": np.full_like(grid, 80.0)}, lengths=[len(labels)])
    return series, make_task(**more)


def test_grades_of_physicians_are_the_severity_itself():
    """Read as a label of 0 and 1, the paper's own grades were [2, 4, unknown, unknown, unknown]."""
    series, graded = grade_series([0, 1, 2, 3, 4], grade=3)
    assert _grade(series, graded).tolist() == [0, 1, 2, 3, 4]
    assert has_outcome(series, graded).tolist() == [0, 0, 0, 1, 1]
    assert find_onsets(series, "sepsis", has_outcome(series, graded)).tolist() == [3]
    check_target(series, graded)
    # Grades from 0 to 1 are grades as well: what a study says decides, not what patients have.
    assert _grade(*grade_series([0, 1, 0.5], grade=3)).tolist() == [0, 1, 0.5]
    unknown = _grade(*grade_series([0, np.nan, 5], grade=3))
    assert unknown[0] == 0
    assert np.isnan(unknown[1:]).all()


@pytest.mark.parametrize(
    ("labels", "more", "sentence"),
    [
        ([0, 1, 2, 3, 4], {}, "must be 0 or 1 and is something else at 3 of 5 steps. If it is a grade"),
        ([0, 0.5, np.nan], {}, "something else at 1 of 2 steps"),
        ([0, 4, 5], {"grade": 3}, "must be a grade from 0 to 4 and is something else at 1 of 3 steps"),
        ([-1, 4], {"grade": 3}, "must be a grade from 0 to 4"),
    ],
)
def test_a_target_that_is_neither_a_label_nor_a_grade_is_refused(labels, more, sentence):
    with pytest.raises(RecordsError, match=sentence):
        check_target(*grade_series(labels, **more))


def test_who_changes_is_decided_by_each_stay():
    grid = np.array([[0, 0, 0], [0, 1, 1], [1, 1, 1], [np.nan, np.nan, np.nan], [np.nan, 0, 1]]).T
    series = cc.Series({"sepsis": grid, "HR": np.full_like(grid, 80.0)}, lengths=[3] * 5)
    laid = lay_out(series, make_task(lead="1h"))
    assert laid.changes.tolist() == [False, True, False, False, True]
    assert [laid.cut(row).constant is None for row in range(5)] == laid.changes.tolist()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 12))
def test_every_step_is_in_windows_and_told_by_exactly_one(lengths, hours):
    longest = max(lengths)
    values = np.arange(longest * len(lengths), dtype=np.float32).reshape(len(lengths), longest).T
    series = cc.Series({"HR": 60 + values % 40, "sepsis": np.zeros_like(values)}, lengths=lengths)
    task = make_task(window=f"{hours}h")
    laid = lay_out(series, task)
    windows, places, cells = laid.gather(np.arange(len(lengths)))
    assert sorted(cells.tolist()) == list(range(sum(lengths)))
    inputs = windows.inputs.reshape(-1, 2)[places]
    np.testing.assert_array_equal(inputs, laid.values[cells])
    step = places % task.steps
    before = cells - np.repeat(series.starts[:-1], series.lengths)[cells]
    # Nothing is told with less of the stay before it than half a window, unless there is no more.
    assert np.all(step >= np.minimum(before, task.steps - task.stride))


def test_windows_overlap_by_half_and_a_shorter_stay_is_one_shorter_window():
    task = make_task(window="24h")
    series = make_series(3, 1, hours=(48, 48))
    assert lay_out(series, task).cut(0).lengths.tolist() == [
        24,
        24,
        24,
    ]  # a stay of 48 hours, as in the paper
    short = make_series(1, 1, hours=(5, 5))
    windows = lay_out(short, task).cut(0)
    assert windows.lengths.tolist() == [5]
    assert windows.inputs.shape == (1, 24, 2)


def test_scaling_is_public_and_what_was_never_measured_is_the_middle():
    task = make_task(carry="2h")
    nothing = np.full((4, 1), np.nan)
    hr = np.array([[100.0], [np.nan], [np.nan], [np.nan]])
    zeros = np.zeros((4, 1))
    laid = lay_out(cc.Series({"HR": hr, "Temp": nothing, "sepsis": zeros}, lengths=[4]), task)
    # High end of the range is 1/2; carried for two hours and no longer; all-missing variables are the middle.
    assert laid.values[:, 0].tolist() == [0.5, 0.5, 0.5, 0.0]
    assert laid.values[:, 1].tolist() == [0.0] * 4
    without = lay_out(cc.Series({"HR": hr, "sepsis": zeros}, lengths=[4]), task)
    np.testing.assert_array_equal(without.values, laid.values)
    slip = lay_out(cc.Series({"HR": hr * 1e30, "sepsis": zeros}, lengths=[4]), task)
    assert slip.values[0, 0] == 2.0


def test_a_patient_s_windows_do_not_depend_on_others():
    series, task = make_series(12, 3), make_task()
    whole = lay_out(series, task)
    some = lay_out(series.take(np.array([7, 2])), task)
    for place, patient in enumerate([7, 2]):
        assert some.cut(place).digest == whole.cut(patient).digest


def test_series_that_do_not_fit_are_named():
    series = make_series(3, 1)
    with pytest.raises(RecordsError, match="a step of 1h, and experts were asked for with 30min"):
        lay_out(series, make_task(step="30min"))
    with pytest.raises(RecordsError, match="no 'sepsis', or none of the variables"):
        lay_out(series.choose(["HR"]), make_task())
    assert np.isnan(lay_out(series.choose(["HR"]), make_task(), labelled=False).severity).all()


@pytest.mark.parametrize(
    "more",
    [
        {"variables": ()},
        {"variables": (PublicRange("sepsis", 0, 1),)},
        {"variables": (PublicRange("HR", 1, 1),)},
        {"variables": (PublicRange("HR", float("nan"), 1),)},
        {"variables": (PublicRange("b", 0, 1), PublicRange("a", 0, 1))},
        {"window": "501h"},
        {"window": "soon"},
        {"bound": 0},
        {"grade": 5},
        {"network": NetworkSettings(units=401)},
        {"network": NetworkSettings(rate=0.0)},
    ],
)
def test_a_task_that_means_nothing_is_refused(more):
    make_task().check()
    with pytest.raises(MessageError):
        make_task(**more).check()
