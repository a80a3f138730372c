"""Shape functions: without noise they are the tables' own log odds, with too much of it they are flat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from concilium.protocol.attributes import Attribute
from concilium.rulefit.private_terms import (
    SPREADS,
    NoisyPatients,
    _find_evidence,
    _linearise,
    _penalise,
    _smooth,
    count_patients,
    shape,
)

NUMBER = Attribute("age", (30.0, 50.0, 70.0))
CATEGORY = Attribute("sex", (), ("f", "m"))
COUNTS = st.integers(-200, 2000)


def test_many_patients_and_no_noise_give_the_log_odds_of_the_table():
    table = np.array([[1, 1], [80_000, 20_000], [50_000, 50_000], [40_000, 60_000], [10_000, 90_000]])
    patients = count_patients([table])
    found = shape(NUMBER, table, patients, np.full(5, 1e-6))
    log_odds = np.log(table[:, 1] / table[:, 0])
    expected = log_odds - found.shares @ log_odds
    assert np.abs(found.heights - expected)[1:].max() < 0.01
    assert found.shares == pytest.approx(table.sum(axis=1) / table.sum())
    assert found.deviation == pytest.approx(np.sqrt(found.shares @ expected**2), rel=1e-2)


@pytest.mark.parametrize("attribute", [NUMBER, CATEGORY])
def test_what_cannot_be_told_from_noise_is_flat(attribute):
    draws = np.random.default_rng(1)
    deviations = []
    for _ in range(50):
        table = np.full((attribute.size, 2), 100) + np.rint(draws.normal(0, 200, (attribute.size, 2)))
        found = shape(
            attribute, table.astype(np.int64), NoisyPatients(1000, 500), np.full(attribute.size, 4e4)
        )
        deviations.append(found.deviation)
    assert np.median(deviations) < 0.05


@settings(max_examples=50)
@given(
    table=st.lists(st.tuples(COUNTS, COUNTS), min_size=5, max_size=5),
    rate=st.floats(0.01, 0.99),
    variance=st.sampled_from([0.25, 100.0, 1e6]),
    numeric=st.booleans(),
)
def test_any_noisy_table_gives_a_finite_shape(table, rate, variance, numeric):
    heights = _smooth(
        np.array(table, dtype=np.float64), float(np.log(rate / (1 - rate))), numeric, np.full(5, variance)
    )
    assert np.all(np.isfinite(heights))


@settings(max_examples=30)
@given(
    counts=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=5, max_size=5),
    numeric=st.booleans(),
)
def test_without_noise_heights_are_the_mode_of_the_penalised_likelihood(counts, numeric):
    table = np.array(counts, dtype=np.float64)
    common = float(np.log(table[:, 1].sum() / table[:, 0].sum()))
    heights, _ = _smooth(table, common, numeric, np.full(5, 1e-9))

    def loss(at, spread):
        log_odds, penalty = common + at, _penalise(5, numeric) / spread**2
        likelihood = table[:, 1] @ log_odds - table.sum(axis=1) @ np.logaddexp(0, log_odds)
        slope = table[:, 1] - table.sum(axis=1) / (1 + np.exp(-log_odds))
        return -likelihood + 0.5 * at @ penalty @ at, penalty @ at - slope

    found = [
        optimize.minimize(loss, np.zeros(5), args=(spread,), jac=True, tol=1e-10).x for spread in SPREADS
    ]
    assert min(np.abs(heights - one).max() for one in found) < 1e-3


def test_the_evidence_is_the_density_of_what_was_observed():
    from scipy.stats import multivariate_normal

    table = np.array([[60.0, 40.0], [80.0, 30.0], [20.0, 50.0], [55.0, 45.0]])
    slope, curve = _linearise(table, np.zeros(4), np.full(4, 30.0))
    densities = []
    for spread in SPREADS:
        prior = np.linalg.inv(_penalise(4, True) / spread**2)
        observed = multivariate_normal.logpdf(slope / curve, cov=np.diag(1 / curve) + prior)
        densities.append((_find_evidence(slope, curve, _penalise(4, True) / spread**2), observed))
    differences = [ours - theirs for ours, theirs in densities]
    assert differences == pytest.approx([differences[0]] * len(differences))


def test_patients_are_counted_in_every_table_and_never_below_one():
    first = np.array([[100, 10], [300, 90]])
    second = np.array([[110, 20], [290, 80], [10, 0], [0, 0]])
    found = count_patients([first, second])
    # Twice the cells, half the weight.
    assert found.positive == pytest.approx((2 * 100 + 100) / 3)
    assert found.total == pytest.approx((2 * 500 + 510) / 3)
    empty = count_patients([np.array([[-50, -3], [10, 1]])])
    assert (empty.total, empty.positive, empty.log_odds) == (2.0, 1.0, 0.0)
