"""Intervals by the bootstrap: equal to figures of patients drawn one by one, and as often right as they say."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.evaluation.leave_out import Predictions, figures
from concilium.evaluation.metrics import count_patients, measure
from concilium.evaluation.summary import ENOUGH_HOSPITALS, TIMES, _draw, _estimate_intervals, _take_interval

CLASSES = ("no", "yes")


def make_site(name: str, draw_from: np.random.Generator, size: int, lift: float = 1.5) -> Predictions:
    truth = draw_from.random(size) < 0.4
    odds = draw_from.normal(0, 1, size) + lift * truth
    risks = 1 / (1 + np.exp(-odds))
    return Predictions(
        name,
        CLASSES,
        [CLASSES[int(one)] for one in truth],
        [CLASSES[int(one > 0.6)] for one in risks],
        [[1 - one, one] for one in risks.tolist()],
    )


@given(st.data())
def test_weights_are_patients_that_are_there_so_often(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    labels = st.lists(st.sampled_from("abc"), min_size=size, max_size=size)
    truth, predicted = data.draw(labels), data.draw(labels)
    scores = np.array(data.draw(st.lists(st.integers(0, 4), min_size=3 * size, max_size=3 * size)))
    shares = scores.reshape(size, 3) / 4
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    positive = data.draw(st.sampled_from([None, "a", "z"]))
    weighted = count_patients(truth, predicted, shares, "abc", positive).measure(weights[None].astype(float))
    again = np.repeat(np.arange(size), weights)
    expected = measure(
        [truth[i] for i in again], [predicted[i] for i in again], shares[again], "abc", positive
    )
    if positive == "z":  # nobody's class: no figure of it either way
        assert np.isnan(weighted["auc"][0])
        assert expected["auc"] is None
    for name, value in expected.items():
        found = weighted[name][0]
        assert np.isnan(found) if value is None else found == pytest.approx(value)


@pytest.mark.parametrize("drawn", ["patients", "hospitals"])
def test_a_draw_is_as_large_as_the_sample(drawn: str) -> None:
    sizes = np.array([3, 50, 7])
    weights = np.concatenate(list(_draw(sizes, 400, drawn)))
    assert weights.shape == (400, 60)
    first = np.concatenate([[0], np.cumsum(sizes)])
    each = np.column_stack([weights[:, a:b] for a, b in itertools.pairwise(first)])
    by_site = [each[:, a:b] for a, b in itertools.pairwise(first)]
    if drawn == "patients":
        for size, own in zip(sizes, by_site, strict=True):
            assert (own.sum(axis=1) == size).all()
        assert abs(weights.mean() - 1) < 1e-12
    else:
        for own in by_site:
            assert (own == own[:, :1]).all()  # a hospital comes whole
        assert (np.stack([own[:, 0] for own in by_site]).sum(axis=0) == 3).all()


def test_the_same_predictions_have_the_same_intervals_and_figures_lie_inside() -> None:
    sites = [make_site(f"s{i}", np.random.default_rng(i), 60) for i in range(4)]
    found = _estimate_intervals(sites, "yes")
    assert found == _estimate_intervals(sites[::-1], "yes")
    assert (found["drawn"], found["times"]) == ("patients", TIMES)
    for name, value in figures(sites, "yes").items():
        low, high = found[name]
        assert low < value < high
    many = [make_site(f"s{i}", np.random.default_rng(i), 30) for i in range(ENOUGH_HOSPITALS)]
    assert _estimate_intervals(many, "yes")["drawn"] == "hospitals"


def test_hospitals_that_differ_make_intervals_wide() -> None:
    chance = np.random.default_rng(5)
    unlike = [make_site(f"s{i}", chance, 100, lift=0.0 if i % 2 else 4.0) for i in range(20)]
    alike = [make_site(f"s{i}", chance, 100, lift=2.0) for i in range(20)]
    width = [np.ptp(_estimate_intervals(sites, "yes")["auc"]) for sites in (unlike, alike)]
    assert width[0] > 2 * width[1]


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    truth = figures([make_site("all", np.random.default_rng(0), 200_000)], "yes")["accuracy"]
    for seed in range(120):
        low, high = _estimate_intervals([make_site("s", np.random.default_rng(seed + 1), 150)], "yes")[
            "accuracy"
        ]
        inside += low <= truth <= high
    assert 104 <= inside <= 120  # of 120 at 95 %: below 104 once in 10,000 times, were the interval exact


def test_what_patients_cannot_tell_has_no_interval() -> None:
    well = Predictions("s", CLASSES, ["no"] * 5, ["no"] * 5, [[0.8, 0.2]] * 5)
    found = _estimate_intervals([well], "yes")
    assert found["auc"] is None
    assert found["sensitivity"] is None
    assert found["accuracy"] == [1.0, 1.0]
    assert _estimate_intervals([Predictions("s", CLASSES, [], [], [])], "yes") == {}
    assert _take_interval([float("nan")] * 2 + [1.0] * 8) is None


def test_numbers_have_intervals_too() -> None:
    chance = np.random.default_rng(2)
    truth = chance.normal(10, 3, 80)
    said = Predictions("s", (), truth.tolist(), (truth + chance.normal(0, 1, 80)).tolist(), [])
    found = _estimate_intervals([said], None)
    for name, value in figures([said], None).items():
        low, high = found[name]
        assert low < value < high
