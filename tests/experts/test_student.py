"""Smoothing, window features, and students of labels without hospitals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import concilium as cc
from concilium.errors import MessageError
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.patient_windows import PublicStays, lay_course, lay_out, lay_public
from concilium.experts.student import (
    Lesson,
    _find_doubt,
    _in_units,
    _name_features,
    _regress,
    find_features,
    judge,
    read_features,
    smooth,
    teach,
)
from concilium.protocol.sums import pack
from experts.expert_patients import RANGES, make_series, make_task

CUTOFFS = {"HR": (60.0, 80.0, 100.0, 120.0), "Temp": (36.0, 37.0, 38.0)}
SMALL = NetworkSettings(units=3, epochs=5, batch=20)


def test_features_are_what_can_be_read_off_a_window():
    series, task = make_series(6, 1, hours=(3, 30)), make_task()
    laid = lay_out(series, task)
    features = _in_units(find_features(laid), task)
    names = _name_features(task)
    over = [f"{name} {what} in the latest 12h" for what in ("mean", "highest", "lowest") for name in RANGES]
    assert [*names] == [*(f"{name} latest" for name in RANGES), *over]
    assert [*names.values()] == [*RANGES] * 4
    middle = np.array([(low + high) / 2 for low, high in RANGES.values()])
    half = np.array([(high - low) / 2 for low, high in RANGES.values()])
    for patient in range(len(laid)):
        first, last = laid.starts[patient], laid.starts[patient + 1]
        for cell in range(first, last):
            rows = slice(max(first, cell - task.steps + 1), cell + 1)
            seen = np.where(laid.known[rows], laid.values[rows] * 2 * half + middle, np.nan)
            seen[:, np.isnan(seen).all(axis=0)] = middle[np.isnan(seen).all(axis=0)]
            latest = laid.values[cell] * 2 * half + middle
            expected = np.concatenate(
                [latest, np.nanmean(seen, axis=0), np.nanmax(seen, axis=0), np.nanmin(seen, axis=0)]
            )
            np.testing.assert_allclose(features[cell], expected, rtol=1e-5)


@given(st.integers(0, 10**6), st.floats(0.01, 10))
def test_regression_with_known_noise_is_ridge_at_the_likeliest_prior(seed, noise):
    dice = np.random.default_rng(seed)
    design = dice.normal(size=(40, 4))
    labels = design @ dice.normal(size=4) + dice.normal(0, noise**0.5, 40)
    found = _regress(design, labels, noise)

    def find_evidence(prior):
        covariance = prior * design @ design.T + noise * np.eye(40)
        return -0.5 * (np.linalg.slogdet(covariance)[1] + labels @ np.linalg.solve(covariance, labels))

    priors = 10.0 ** np.arange(-10.0, 2.01, 0.25)
    best = priors[np.argmax([find_evidence(prior) for prior in priors])]
    ridge = np.linalg.solve(design.T @ design + noise / best * np.eye(4), design.T @ labels)
    np.testing.assert_allclose(found, ridge, rtol=1e-3, atol=1e-6)


def test_a_value_at_a_cutoff_is_not_below_it():
    task = make_task()
    stay = cc.Series({"HR": np.full((4, 1), 80.0), "Temp": np.full((4, 1), 37.1)})
    features = _in_units(find_features(lay_out(stay, task, labelled=False)), task)
    assert (features == np.tile([80.0, 37.1], 4)).all()


def test_features_are_of_what_was_measured():
    """Hours before the first measurement say nothing: a heart rate of 110 and 120 was never 90, the middle."""
    nan = np.nan
    stay = cc.Series({"HR": np.array([[nan, nan, 110.0, 120.0]]).T, "Temp": np.full((4, 1), nan)})
    task = make_task()
    laid = lay_out(stay, task, labelled=False)
    last = dict(zip(_name_features(task), _in_units(find_features(laid), task)[-1], strict=True))
    assert last["HR latest"] == 120
    assert [last[f"HR {one} in the latest 12h"] for one in ("mean", "highest", "lowest")] == [115, 120, 110]
    middle = sum(RANGES["Temp"]) / 2
    assert {value for name, value in last.items() if name.startswith("Temp")} == {middle}


def test_smoothing_finds_what_noise_hides_and_says_nothing_of_noise_alone():
    dice = np.random.default_rng(1)
    features = dice.normal(size=(4000, 6))
    truth = 0.5 + 0.1 * features[:, 0]
    asked = np.arange(0, 4000, 2)
    noisy = truth[asked] + dice.normal(0, 1.0, len(asked))
    smoothed = smooth(features, asked, noisy, 1.0, 4.0)
    assert np.corrcoef(smoothed, truth)[0, 1] > 0.8
    assert np.corrcoef(noisy, truth[asked])[0, 1] < 0.2
    nothing = smooth(features, asked, dice.normal(0, 1.0, len(asked)), 1.0, 4.0)
    assert nothing.std() < 0.1
    constant = smooth(np.ones((10, 2)), np.arange(10), np.full(10, 3.0), 1.0, 4.0)
    assert constant.tolist() == [3.0] * 10


def test_doubt_is_how_often_noise_alone_says_as_much():
    """Against the chi-squared tail of another library, and as a distribution: evenly spread over draws of noise."""
    dice = np.random.default_rng(2)
    features, asked = dice.normal(size=(300, 7)), np.arange(300)
    doubts = []
    for _ in range(400):
        noise = dice.normal(0, 0.5, 300)
        doubts.append(_find_doubt(features, asked, noise, 0.5))
        centred = features - features.mean(axis=0)
        basis = np.linalg.qr(centred)[0]
        along = ((basis.T @ (noise - noise.mean())) ** 2).sum() / 0.25
        assert doubts[-1] == pytest.approx(stats.chi2.sf(along, 7), abs=0.01)
    assert stats.kstest(doubts, "uniform").pvalue > 0.001
    assert _find_doubt(np.ones((5, 2)), np.arange(5), np.arange(5.0), 1.0) == 1.0


def test_labels_without_noise_are_learned_as_they_are():
    laid = lay_out(make_series(20, 1), make_task())
    asked = np.arange(0, len(laid.values), 2)
    exact = Lesson(laid, asked, np.ones(len(asked)), 0.0)
    assert np.isnan(exact.targets[1])
    assert (exact.targets[asked] == 1).all()
    assert not np.isnan(Lesson(laid, asked, np.ones(len(asked)), 0.5).targets).any()


def test_labels_that_are_all_the_same_teach_a_constant_and_no_rules():
    series = make_series(20, 1)
    laid = lay_out(series, make_task())
    asked = np.arange(len(laid.values))
    student = teach(Lesson(laid, asked, np.full(len(asked), 1.5), 0.0), SMALL, CUTOFFS, 0.1)
    assert student.readable is None
    np.testing.assert_allclose(judge(student, series)[0], 1.5)


def test_rules_are_of_features_that_some_cutoff_tells_apart():
    series = make_series(40, 1)
    laid = lay_out(series, make_task())
    asked = np.arange(len(laid.values))
    labels = np.clip(laid.values[:, 0], 0, 1).astype(np.float64)
    student = teach(Lesson(laid, asked, labels, 0.0), SMALL, {**CUTOFFS, "Temp": (20.0,)}, 0.1)
    assert student.readable is not None
    assert {name.split()[0] for name in student.features} == {"HR"}
    row = read_features(student, series)[0]
    assert set(row) == set(student.features)


def test_public_stays_travel_and_are_checked():
    series, task = make_series(5, 1), make_task()
    stays = lay_public(series, task, "4h")
    laid, asked = stays.open(task)
    np.testing.assert_allclose(laid.values, lay_out(series, task).values, atol=1 / 8192)
    steps = asked - np.repeat(series.starts[:-1], series.lengths)[asked]
    lengths = np.repeat(series.lengths, series.lengths)[asked]
    assert all((step % 4 == 3) or (step == length - 1) for step, length in zip(steps, lengths, strict=True))
    assert stays.digest != lay_public(series, task, "2h").digest
    one = series.take(np.array([0]))
    assert lay_course(one, task, whole=False).open(task)[1].tolist() == [int(one.lengths[0]) - 1]
    assert len(lay_course(one, task, whole=True).open(task)[1]) == int(one.lengths[0])
    twice = PublicStays(stays.inputs, stays.lengths, pack(np.array([1, 1], dtype="<u4")))
    beyond = PublicStays(stays.inputs, stays.lengths, pack(np.array([10**6], dtype="<u4")))
    nobody = PublicStays(stays.inputs, pack(np.zeros(3, dtype="<u4")), stays.asked)
    for wrong in (twice, beyond, nobody):
        with pytest.raises(MessageError, match="public stays have at least one step each"):
            wrong.open(task)
