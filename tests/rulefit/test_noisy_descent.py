"""Coefficients from noisy gradients: the optimum without noise, the best linear estimate with it."""

from __future__ import annotations

import numpy as np
import pytest
from pooled_lasso import answer, end

from concilium.models.private_descent import _slow_down
from concilium.models.private_descent import descend as converse


def descend(ask, *settings):
    """The end of a descent whose gradients nobody need be asked for."""
    return end(converse(lambda w: answer(ask(w)), *settings))


def logistic(columns, patients, seed, copies=1):
    """A table and its outcomes; `copies` of every column."""
    draws = np.random.default_rng(seed)
    table = np.repeat(draws.normal(size=(patients, columns)), copies, axis=1)
    table = np.column_stack([np.ones(patients), table])
    chance = 1 / (1 + np.exp(-0.3 - table[:, 1] + 0.5 * table[:, -1]))
    return table, (draws.random(patients) < chance).astype(float)


def gradient_of(table, outcome, w):
    return table.T @ (1 / (1 + np.exp(-table @ w)) - outcome) / len(table)


def test_without_noise_it_ends_at_the_optimum():
    table, outcome = logistic(4, 2000, 1)
    hessian = 0.2 * np.eye(5)
    w = descend(lambda w: gradient_of(table, outcome, w), np.zeros(5), hessian, np.full(5, 1e3), 0.0, 200)
    assert np.abs(gradient_of(table, outcome, w)).max() < 1e-3


def test_a_hessian_that_is_far_too_flat_does_not_make_it_run_away():
    # Forty copies of each column: the true curvature is forty times that of independent columns.
    table, outcome = logistic(3, 2000, 2, copies=40)
    size = table.shape[1]
    w = descend(
        lambda w: gradient_of(table, outcome, w), np.zeros(size), 0.2 * np.eye(size), np.ones(size), 1e-7, 40
    )
    first = np.linalg.norm(gradient_of(table, outcome, np.zeros(size)))
    assert np.linalg.norm(gradient_of(table, outcome, w)) < 0.05 * first


def test_what_noise_hides_stays_where_it_began():
    draws = np.random.default_rng(3)
    start = np.array([0.5, -1.0, 2.0])
    hessian = np.diag([0.2, 0.1, 0.05])

    def ask(w):
        return hessian @ (w - np.array([3.0, 3.0, 3.0])) + draws.normal(0, 1000, 3)

    assert descend(ask, start, hessian, np.ones(3), 1000.0, 40) == pytest.approx(start, abs=1e-2)


def test_many_noisy_gradients_are_as_good_as_their_mean():
    # On a quadratic every gradient is the same experiment, so that forty have a fortieth of the variance.
    draws = np.random.default_rng(4)
    hessian = np.diag([0.2, 0.1, 0.05])
    optimum, noise, errors = np.array([1.0, -1.0, 0.5]), 0.01, []
    for _ in range(300):
        w = descend(
            lambda w: hessian @ (w - optimum) + draws.normal(0, noise, 3),
            np.zeros(3),
            hessian,
            np.full(3, 100.0),
            noise,
            40,
        )
        errors.append(hessian @ (w - optimum))
    spread = np.std(errors, axis=0) * np.sqrt(40) / noise
    # The weights 1, 2, ... 40 make of forty as much as thirty equal ones.
    assert np.all(spread < 1.35)
    # What is left of the start after forty short steps.
    assert np.all(np.abs(np.mean(errors, axis=0)) < 0.02 * np.abs(hessian @ optimum))


def test_on_a_quadratic_it_ends_at_the_best_linear_estimate():
    draws = np.random.default_rng(5)
    root = draws.normal(size=(4, 4))
    hessian, doubt, noise = root @ root.T + np.eye(4), np.array([0.5, 1.0, 2.0, 0.1]), 0.3
    start, optimum = draws.normal(size=(2, 4))
    # One look hessian (w - optimum) + noise, as large as after averaging; optimum ~ N(start, doubt^2).
    prior = np.diag(doubt**2)
    covariance = hessian @ prior @ hessian.T + noise**2 * 4 / 900 * np.eye(4)
    expected = start + prior @ hessian.T @ np.linalg.solve(covariance, hessian @ (optimum - start))
    found = descend(lambda w: hessian @ (w - optimum), start, hessian, doubt, noise, 300)
    assert found == pytest.approx(expected, abs=2e-3)


def test_steps_get_shorter_where_they_would_overshoot_and_not_for_noise():
    hessian, step = np.diag([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0])
    assert _slow_down(0.25, hessian, step, np.array([20.0, 1.0, 0.0]), 0.0) == pytest.approx(1 / 20)
    assert _slow_down(0.25, hessian, step, np.array([1e9, 0.0, 0.0]), 0.0) == 0.01
    assert _slow_down(0.25, hessian, step, np.array([20.0, 1.0, 0.0]), 10.0) == 0.25
    assert _slow_down(0.25, hessian, step, np.array([3.0, 0.0, 0.0]), 0.0) == 0.25
    assert _slow_down(0.25, hessian, np.zeros(3), np.zeros(3), 0.0) == 0.25
