"""An L1-penalised quadratic: closed forms, optimality conditions, and columns that are nearly alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.rulefit.newton import _minimise


def value(gradient, hessian, at, penalties, w):
    step = w - at
    return gradient @ step + 0.5 * step @ hessian @ step + penalties @ np.abs(w)


def solve_by_signs(gradient, hessian, at, penalties):
    """Brute force: the least over all patterns of signs, each solved exactly."""
    best = np.inf
    for signs in itertools.product((-1, 0, 1), repeat=len(at)):
        chosen = np.flatnonzero(np.array(signs) != 0)
        free = np.union1d(chosen, np.flatnonzero(penalties == 0)).astype(int)
        w = np.zeros(len(at))
        if free.size:
            linear = gradient - hessian @ at + penalties * np.array(signs)
            w[free] = np.linalg.solve(hessian[np.ix_(free, free)], -linear[free])
        best = min(best, value(gradient, hessian, at, penalties, w))
    return best


@st.composite
def quadratics(draw):
    size = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(size + 2, size)) * 10.0 ** draws.integers(-1, 2, size=size)
    penalties = draws.exponential(size=size) * draw(st.sampled_from([0.01, 1.0, 20.0]))
    if draw(st.booleans()):
        penalties[0] = 0
    at = draws.normal(size=size) * draw(st.sampled_from([0.0, 1.0]))
    return draws.normal(size=size) * 10, root.T @ root, at, penalties


@given(quadratics())
@settings(max_examples=150)
def test_it_is_the_least_over_all_patterns_of_signs(problem):
    found = _minimise(*problem, 1e-10)
    best = solve_by_signs(*problem)
    assert value(*problem, found) <= best + 1e-9 * max(1, abs(best))


@given(quadratics())
@settings(max_examples=100)
def test_what_is_found_fulfils_the_optimality_conditions(problem):
    gradient, hessian, at, penalties = problem
    found = _minimise(*problem, 1e-12)
    slope = gradient + hessian @ (found - at)
    scale = 1e-6 * np.sqrt(np.diag(hessian)).clip(1)
    inside = found != 0
    assert np.all(np.abs(slope + penalties * np.sign(found))[inside] <= scale[inside])
    assert np.all(np.abs(slope)[~inside] <= (penalties + scale)[~inside])


def test_a_diagonal_quadratic_is_shrunk_towards_zero():
    gradient, curve = np.array([3.0, -0.5, -4.0, 0.2]), np.array([2.0, 1.0, 4.0, 0.5])
    penalties = np.array([1.0, 1.0, 1.0, 0.0])
    found = _minimise(gradient, np.diag(curve), np.zeros(4), penalties, 1e-12)
    assert found == pytest.approx([-1.0, 0.0, 0.75, -0.4])


def test_columns_that_are_nearly_alike_do_not_make_it_crawl():
    draws = np.random.default_rng(5)
    shared = draws.normal(size=(60, 1))
    root = (shared + 1e-3 * draws.normal(size=(60, 12))) / np.sqrt(60)
    hessian = root.T @ root + 1e-10 * np.eye(12)
    gradient = root.T @ draws.normal(size=60)
    penalties = np.full(12, 1e-4)
    coarse = _minimise(gradient, hessian, np.zeros(12), penalties, 1e-6)
    fine = _minimise(gradient, hessian, np.zeros(12), penalties, 1e-13)
    problem = (gradient, hessian, np.zeros(12), penalties)
    assert value(*problem, coarse) <= value(*problem, fine) + 1e-9
    # A thousand sweeps of coordinate descent alone are still far off.
    w, slope = np.zeros(12), gradient.copy()
    for _ in range(1000):
        for j in range(12):
            pull = w[j] - slope[j] / hessian[j, j]
            new = np.sign(pull) * max(abs(pull) - penalties[j] / hessian[j, j], 0)
            slope += (new - w[j]) * hessian[:, j]
            w[j] = new
    assert value(*problem, w) > value(*problem, fine) + 1e-6


@given(seed=st.integers(0, 10**6), columns=st.integers(9, 40), rounded=st.booleans())
@settings(max_examples=60)
def test_more_columns_than_rows_and_all_alike(seed, columns, rounded):
    """The curvature is zero, or what rounding made of zero, in most directions; what is found is the optimum still."""
    draws = np.random.default_rng(seed)
    root = (draws.normal(size=(8, 1)) + 1e-3 * draws.normal(size=(8, columns))) / np.sqrt(8)
    hessian = root.T @ root
    if rounded:
        hessian = np.rint(hessian * 2.0**33) / 2.0**33
    gradient = root.T @ draws.normal(size=8) / 3
    penalties = np.full(columns, 1e-4)
    found = _minimise(gradient, hessian + 1e-10 * np.eye(columns), np.zeros(columns), penalties, 1e-6)
    slope = gradient + hessian @ found
    inside = found != 0
    assert np.abs(slope + penalties * np.sign(found))[inside].max(initial=0.0) <= 1e-6
    assert np.abs(slope)[~inside].max(initial=0.0) <= 1e-4 + 2e-6


def test_flat_empty_and_equal_columns():
    empty = np.zeros(0)
    assert _minimise(empty, np.zeros((0, 0)), empty, empty, 1e-9).size == 0
    assert _minimise(np.array([5.0]), np.zeros((1, 1)), np.zeros(1), np.ones(1), 1e-9) == [0.0]
    twins = _minimise(np.array([-2.0, -2.0]), np.ones((2, 2)), np.zeros(2), np.ones(2), 1e-12)
    assert twins.sum() == pytest.approx(1.0)
    assert np.all(twins >= 0)


def test_what_it_is_given_is_left_alone():
    gradient, hessian, at = np.array([1.0, 2.0]), np.eye(2), np.array([0.5, 0.5])
    _minimise(gradient, hessian, at, np.zeros(2), 1e-9)
    assert gradient.tolist() == [1, 2]
    assert at.tolist() == [0.5, 0.5]
