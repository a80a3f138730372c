"""The figures of predicted numbers, against scikit-learn, scipy and their definitions."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concilium.evaluation.leave_out import FoldResult, Predictions, figures
from concilium.evaluation.metrics import IN_UNITS, NUMBER_FIGURES, _rank, calibrate, measure_numbers
from concilium.evaluation.summary import calibrate_all, summarise

# Few different values, so that ties and constants are common.
COARSE = st.integers(-4, 4).map(lambda number: number / 2)
PAIRS = st.lists(st.tuples(COARSE, COARSE), min_size=1, max_size=40)


def apart(pairs):
    return [true for true, _ in pairs], [said for _, said in pairs]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=40))
def test_errors_and_r_squared_are_those_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    truth, predicted = apart(pairs)
    measured = measure_numbers(truth, predicted)
    assert measured["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predicted), abs=1e-9)
    assert measured["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted), abs=1e-9)
    if np.std(truth) > 1e-3:
        assert measured["r2"] == pytest.approx(metrics.r2_score(truth, predicted), rel=1e-6, abs=1e-9)


@given(PAIRS)
def test_every_figure_equals_its_definition(pairs):
    truth, predicted = apart(pairs)
    measured = measure_numbers(truth, predicted)
    assert tuple(measured) == NUMBER_FIGURES
    off = [said - true for true, said in pairs]
    assert measured["rmse"] == pytest.approx(math.sqrt(statistics.fmean(o * o for o in off)))
    assert measured["mae"] == pytest.approx(statistics.fmean(map(abs, off)))
    assert measured["mean"] == pytest.approx(statistics.fmean(truth))
    assert measured["median"] == pytest.approx(statistics.median(truth))
    if len(set(truth)) > 1:
        total = sum((true - statistics.fmean(truth)) ** 2 for true in truth)
        assert measured["r2"] == pytest.approx(1 - sum(o * o for o in off) / total)
    else:
        assert measured["r2"] is None
    if len(set(truth)) > 1 and len(set(predicted)) > 1:
        assert measured["spearman"] == pytest.approx(stats.spearmanr(truth, predicted).statistic)
    else:
        assert measured["spearman"] is None


def test_the_mean_for_everybody_explains_nothing_and_the_truth_everything():
    truth = [1.0, 2.0, 6.0]
    assert measure_numbers(truth, [3.0] * 3)["r2"] == pytest.approx(0)
    assert measure_numbers(truth, truth) == pytest.approx(
        {"rmse": 0, "mae": 0, "r2": 1, "spearman": 1, "mean": 3, "median": 2}
    )
    assert measure_numbers([], []) == dict.fromkeys(NUMBER_FIGURES)


@pytest.mark.parametrize("truth", [[1e200, -1e200, 3.0], [1e-200, 2e-200, 4e-200], [5.0], [0.0, 0.0]])
def test_no_size_of_numbers_overflows_and_json_never_holds_nan(truth):
    json.dumps(measure_numbers(truth, [0.0] * len(truth)), allow_nan=False)


@given(PAIRS, st.floats(0.01, 1e5))
def test_another_unit_changes_errors_in_proportion_and_nothing_else(pairs, unit):
    truth, predicted = apart(pairs)
    one = measure_numbers(truth, predicted)
    other = measure_numbers([unit * t for t in truth], [unit * p for p in predicted])
    for name in NUMBER_FIGURES:
        if one[name] is None:
            assert other[name] is None
        else:
            expected = one[name] * (unit if name in IN_UNITS else 1)
            assert other[name] == pytest.approx(expected, rel=1e-6, abs=1e-9 * unit)


@given(st.lists(COARSE, min_size=1, max_size=50))
def test_ranks_are_those_of_scipy(values):
    assert _rank(np.array(values)).tolist() == stats.rankdata(values).tolist()


@given(PAIRS, st.randoms())
def test_groups_hold_everybody_once_and_do_not_depend_on_the_order(pairs, shuffled):
    groups = calibrate(*apart(pairs))
    assert sum(group["patients"] for group in groups) == len(pairs)
    for name, column in (("observed", 0), ("predicted", 1)):
        total = sum(group["patients"] * group[name] for group in groups)
        assert total == pytest.approx(sum(pair[column] for pair in pairs), abs=1e-9)
    means = [group["predicted"] for group in groups]
    assert means == sorted(set(means))
    mixed = list(pairs)
    shuffled.shuffle(mixed)
    again = calibrate(*apart(mixed))
    assert [g["patients"] for g in again] == [g["patients"] for g in groups]
    assert [g["observed"] for g in again] == pytest.approx([g["observed"] for g in groups])


def test_different_predictions_are_dealt_to_ten_groups_of_the_same_size():
    draws = np.random.default_rng(5)
    predicted = draws.permutation(200) / 7
    truth = draws.normal(size=200)
    order = np.argsort(predicted)
    expected = [
        {"patients": 20, "predicted": predicted[part].mean(), "observed": truth[part].mean()}
        for part in np.split(order, 10)
    ]
    for group, other in zip(calibrate(truth.tolist(), predicted.tolist()), expected, strict=True):
        assert group == pytest.approx(other)


def test_equal_predictions_are_one_group_and_nobody_is_none():
    assert calibrate([1.0, 3.0], [2.0, 2.0]) == [{"patients": 2, "predicted": 2.0, "observed": 2.0}]
    assert calibrate([], []) == []


def test_sites_are_pooled_patient_by_patient():
    north = Predictions("north", (), [1.0, 2.0, 3.0], [1.0, 2.5, 2.0], [])
    south = Predictions("south", (), [10.0], [14.0], [])
    assert figures([north, south], None) == measure_numbers([1.0, 2.0, 3.0, 10.0], [1.0, 2.5, 2.0, 14.0])
    results = [
        FoldResult(("north",), [north], rounds=2, bytes=10, seconds=0.1),
        FoldResult(("south",), [south], rounds=2, bytes=10, seconds=0.1),
    ]
    measured = summarise(results, None)
    assert measured["overall"]["patients"] == 4
    assert measured["sites"]["south"]["mae"] == 4
    assert measured["sites"]["south"]["r2"] is None
    assert [fold["rmse"] for fold in measured["folds"]] == pytest.approx([(1.25 / 3) ** 0.5, 4])
    assert sum(group["patients"] for group in calibrate_all(results)) == 4
