"""Figures of attacks against brute force, closed forms and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from concilium.errors import ModelError
from concilium.evaluation.attacks import FALSE_ALARMS, _measure_attack, measure_threshold_attack

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30)


def found_by_brute_force(members, others, alarms):
    """The best that a mixture of two thresholds finds at this share of false alarms."""
    points = [(0.0, 0.0)]
    for threshold in {*members, *others}:
        points.append((np.mean(others >= threshold), np.mean(members >= threshold)))
    best = max(tpr for fpr, tpr in points if fpr <= alarms)
    here = sorted(points)
    low = max(point for point in here if point[0] <= alarms)
    above = [point for point in here if point[0] > alarms]
    if above:
        high = min(above)
        best = low[1] + (alarms - low[0]) / (high[0] - low[0]) * (high[1] - low[1])
    return best


@given(SCORES, SCORES, st.integers(-3, 3))
def test_figures_are_those_of_brute_force(inside, outside, threshold):
    members, others = np.array(inside), np.array(outside)
    figures = _measure_attack(members, others, lambda mean: threshold, resamples=2)
    assert figures.advantage.value == pytest.approx(
        np.mean(members >= threshold) - np.mean(others >= threshold)
    )
    truth = [1] * len(members) + [0] * len(others)
    assert figures.auc.value == pytest.approx(roc_auc_score(truth, [*inside, *outside]))
    assert (figures.members, figures.others) == (len(members), len(others))
    for alarms in FALSE_ALARMS:
        assert (
            figures.found[str(alarms)] is None
        )  # thirty others are too few for one false alarm in a hundred


@given(SCORES, SCORES)
def test_members_found_at_few_false_alarms_are_those_of_brute_force(inside, outside):
    members, others = np.array(inside), np.repeat(outside, 100)
    found = _measure_attack(members, others, lambda mean: 0.0, resamples=2).found["0.01"]
    assert found is not None
    assert found.value == pytest.approx(found_by_brute_force(members, others, 0.01))


@given(st.floats(-5, 5), st.integers(1, 50), st.integers(1, 50))
def test_who_knows_nothing_gains_nothing(score, inside, outside):
    """The same score for all: no advantage at any threshold, AUC one half, as many found as false alarms."""
    members, others = np.full(inside, score), np.full(100 * outside, score)
    for figures in (
        measure_threshold_attack(members, others, resamples=20),
        _measure_attack(members, others, lambda mean: 0.0, resamples=20),
    ):
        assert (figures.advantage.low, figures.advantage.value, figures.advantage.high) == (0, 0, 0)
        assert figures.auc.value == pytest.approx(0.5)
        found = figures.found["0.01"]
        assert found is not None
        assert found.value == pytest.approx(0.01)


def test_who_knows_everything_finds_everybody():
    """All members have one loss, all others another."""
    figures = measure_threshold_attack(np.full(50, 0.1), np.full(2000, 0.7))
    assert (figures.advantage.value, figures.auc.value) == (1, 1)
    assert (figures.advantage.low, figures.advantage.high) == (1, 1)
    assert [one.value for one in figures.found.values() if one] == [1, 1]


def test_two_normals_have_the_advantage_of_the_closed_form():
    """Scores N(1, 1) of members and N(0, 1) of others: at 1/2 the advantage is 2 Phi(1/2) - 1, the AUC is
    Phi(1/sqrt 2), and at 1 % false alarms 1 - Phi(2.326 - 1) are found."""

    def phi(x):
        return (1 + math.erf(x / math.sqrt(2))) / 2

    draw = np.random.default_rng(5)
    figures = _measure_attack(
        draw.normal(1, 1, 5_000), draw.normal(0, 1, 5_000), lambda mean: 0.5, resamples=300
    )
    closed = [2 * phi(0.5) - 1, phi(1 / math.sqrt(2)), 1 - phi(2.3263 - 1)]
    measured = [figures.advantage, figures.auc, figures.found["0.01"]]
    for truth, estimate in zip(closed, measured, strict=True):
        assert estimate.low < truth < estimate.high
        assert estimate.high - estimate.low < 0.1


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Of 100 studies of 200 members and 200 others with losses alike, about 95 hold zero; 84 are five standard
    deviations fewer."""
    draw = np.random.default_rng(3)
    held = 0
    for seed in range(100):
        figures = measure_threshold_attack(
            draw.exponential(size=200), draw.exponential(size=200), resamples=150, seed=seed
        )
        held += figures.advantage.low <= 0 <= figures.advantage.high
    assert held >= 84


def test_yeom_s_threshold_is_the_mean_loss_of_the_members():
    members, others = np.array([0.0, 0.0, 0.9, 0.3]), np.array([0.2, 0.31, 0.8, 0.1])
    figures = measure_threshold_attack(members, others, resamples=5)
    assert figures.advantage.value == pytest.approx(3 / 4 - 2 / 4)  # the mean is 0.3


def test_an_attack_on_nobody_is_an_error():
    with pytest.raises(ModelError, match="at least one member"):
        _measure_attack(np.array([]), np.array([1.0]), lambda mean: 0.0)


def test_the_same_seed_gives_the_same_figures():
    draw = np.random.default_rng(1)
    members, others = draw.normal(size=40), draw.normal(size=50)
    one, other, third = (
        measure_threshold_attack(members, others, resamples=50, seed=seed) for seed in (1, 1, 2)
    )
    assert one == other
    assert one != third
