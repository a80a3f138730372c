"""Bayesian federated inference, against pooled ridge, scipy's optimiser and the figures its authors print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import concilium as cc
from bfi import Floats, Posterior, combine, estimate, infer
from concilium.errors import StudyError

REPOSITORY = Path(__file__).resolve().parents[2]
TRAUMA = REPOSITORY.parent / "shared" / "data" / "bfi-trauma" / "trauma.csv"

# The guide to the authors' R package BFI prints these for the trauma patients, standardised, lambda = 0.01.
GUIDE = {
    1: [-2.1226, -5.2795, 1.8864, 2.3741, -2.4522],
    2: [-0.7854, -0.7850, 1.9601, 0.5216, -1.8737],
    3: [-2.3144, 0.1580, 1.3031, 0.2967, -2.4221],
    "federated": [-1.4434, -0.2473, 1.2189, 0.4939, -1.7375],
    "pooled": [-1.6255, -0.3357, 1.3703, 0.5498, -1.9981],
}


def draw_sites(seed: int, sizes: list[int], features: int, scale: float = 1.0) -> list[tuple[Floats, Floats]]:
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=features)
    sites = []
    for size in sizes:
        matrix = draw.normal(size=(size, features))
        sites.append((matrix, (draw.random(size) < 1 / (1 + np.exp(-scale * matrix @ truth))).astype(float)))
    return sites


def pool(sites: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.concatenate([m for m, _ in sites]), np.concatenate([o for _, o in sites])


def find_mode_by_scipy(matrix: Floats, outcome: Floats, precision: Floats) -> Floats:
    design = np.column_stack([np.ones(len(matrix)), matrix])

    def loss(theta: Floats) -> float:
        score = design @ theta
        return float(np.logaddexp(0, score).sum() - outcome @ score + theta @ precision @ theta / 2)

    def slope(theta: Floats) -> Floats:
        return design.T @ (1 / (1 + np.exp(-design @ theta)) - outcome) + precision @ theta

    found = minimize(loss, np.zeros(design.shape[1]), jac=slope, method="BFGS", options={"gtol": 1e-8})
    return np.asarray(found.x)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(1, 4),
    st.floats(0.01, 10),
    st.floats(0.1, 10),
)
def test_linear_regression_is_pooled_ridge_exactly(
    seed: int, sizes: list[int], features: int, prior: float, variance: float
) -> None:
    draw = np.random.default_rng(seed)
    sites = [(draw.normal(size=(size, features)), draw.normal(size=size)) for size in sizes]
    matrix, outcome = pool(sites)
    design = np.column_stack([np.ones(len(matrix)), matrix])
    ridge = np.linalg.lstsq(
        np.concatenate([design, np.sqrt(prior * variance) * np.eye(features + 1)]),
        np.concatenate([outcome, np.zeros(features + 1)]),
        rcond=None,
    )[0]
    found = infer(sites, prior, family="linear", variance=variance)
    np.testing.assert_allclose(found.coefficients, ridge, atol=1e-8)
    own_priors: list[float | Floats] = [prior * (1 + place) for place in range(len(sites))]
    others = infer(sites, prior, own_priors, family="linear", variance=variance)
    np.testing.assert_allclose(others.coefficients, ridge, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 80), st.integers(1, 4), st.floats(0.05, 5), st.floats(0, 8))
def test_one_site_has_the_mode_that_scipy_finds(
    seed: int, patients: int, features: int, prior: float, scale: float
) -> None:
    (site,) = draw_sites(seed, [patients], features, scale)
    spread = np.random.default_rng(seed).normal(size=(features + 1, features + 1))
    precision = prior * np.eye(features + 1) + 0.1 * spread @ spread.T
    found = infer([site], precision)
    expected = find_mode_by_scipy(*site, precision)
    np.testing.assert_allclose(found.coefficients, expected, atol=2e-5)
    np.testing.assert_allclose(found.coefficients, estimate(*site, precision).coefficients, atol=1e-9)


@pytest.mark.parametrize("sites", [2, 5])
def test_logistic_regression_comes_close_to_the_pooled_mode(sites: int) -> None:
    dealt = draw_sites(5, [4000 // sites] * sites, 4)
    pooled = find_mode_by_scipy(*pool(dealt), np.eye(5))
    alone = estimate(*dealt[0]).coefficients
    together = infer(dealt).coefficients
    assert np.abs(together - pooled).max() < 0.02
    assert np.abs(together - pooled).max() < np.abs(alone - pooled).max() / 3


def test_the_order_of_sites_does_not_matter() -> None:
    dealt = draw_sites(6, [20, 50, 80], 3)
    np.testing.assert_allclose(infer(dealt).coefficients, infer(dealt[::-1]).coefficients, rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-4, 1), st.floats(0.1, 1e3))
def test_separable_outcomes_and_sites_of_one_class_do_not_diverge(
    seed: int, prior: float, width: float
) -> None:
    draw = np.random.default_rng(seed)
    matrix = width * draw.normal(size=(40, 2))
    separable = (matrix, (matrix[:, 0] > 0).astype(float))
    sites = [separable, (matrix, np.ones(40)), (matrix, np.zeros(40))]
    for one in sites:
        found = estimate(*one, prior)
        design = np.column_stack([np.ones(40), matrix])
        chance = found.predict_proba(matrix)[:, 1]
        slope = design.T @ (chance - one[1]) + prior * found.coefficients
        assert np.abs(slope).max() < 1e-6 * width
    together = infer(sites, prior)
    assert np.all(np.isfinite(together.coefficients))
    assert np.linalg.eigvalsh(together.curvature)[0] > 0


def test_probabilities_of_any_score_add_up() -> None:
    found = Posterior(np.array([0.0, 1.0]), np.eye(2))
    scores = np.array([-1e4, -2.0, 0.0, 2.0, 1e4])
    chances = found.predict_proba(scores[:, None])
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_allclose(chances[1:4, 1], 1 / (1 + np.exp(-scores[1:4])))
    assert chances[0, 1] == 0
    assert chances[-1, 1] == 1


@pytest.mark.skipif(not TRAUMA.exists(), reason="the trauma patients are not beside the checkout")
def test_trauma_patients_give_the_figures_that_the_authors_print() -> None:
    table = cc.Records.read(TRAUMA, schema=dict.fromkeys(["sex", "age", "ISS", "GCS", "mortality"], "number"))
    column = {name: np.array(table.values(name), dtype=float) for name in table.names}
    for name in ("age", "ISS", "GCS"):
        column[name] = (column[name] - column[name].mean()) / column[name].std(ddof=1)
    matrix = np.column_stack([column[name] for name in ("sex", "age", "ISS", "GCS")])
    sites = [
        (matrix[column["hospital"] == number], column["mortality"][column["hospital"] == number])
        for number in (1, 2, 3)
    ]
    for number, site in enumerate(sites, start=1):
        np.testing.assert_allclose(estimate(*site, 0.01).coefficients, GUIDE[number], atol=1e-4)
    np.testing.assert_allclose(infer(sites, 0.01).coefficients, GUIDE["federated"], atol=1e-4)
    np.testing.assert_allclose(infer([pool(sites)], 0.01).coefficients, GUIDE["pooled"], atol=1e-4)


ONE = (np.zeros((3, 2)), np.array([0.0, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: infer([]), "at least one site"),
        (lambda: infer([ONE, (np.zeros((3, 1)), ONE[1])]), r"different widths, \[1, 2\]"),
        (lambda: infer([ONE], site_priors=[1.0, 1.0]), "1 sites but 2 site_priors"),
        (lambda: infer([ONE], prior=0.0), "must be positive"),
        (lambda: infer([ONE], prior=np.eye(2)), "3 x 3 matrix"),
        (lambda: infer([(ONE[0], np.array([0.0, 1.0]))]), "one for each"),
        (lambda: infer([(ONE[0], np.array([0.0, 1.0, 2.0]))]), "must be 0 or 1"),
        (lambda: infer([(np.full((3, 2), np.nan), ONE[1])]), "missing or infinite"),
        (lambda: estimate(np.zeros(3), ONE[1]), "1-d"),
        (lambda: infer([ONE], family="linear", variance=0.0), "variance positive"),
        (lambda: combine([Posterior(np.zeros(2), np.eye(2))], [np.eye(3)], 1.0), "2 x 2 matrix"),
    ],
)
def test_what_is_wrong_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        call()
