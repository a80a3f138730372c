"""The weighted t interval, against scipy, least squares by hand, and the thesis' own table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concilium.errors import StudyError
from concilium.evaluation.comparison import _Interval, estimate_difference
from concilium.statistics.distributions import student_quantile

FOLDS = st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 500)), min_size=2, max_size=40)


@given(FOLDS, st.floats(0.5, 0.99))
def test_the_interval_is_weighted_least_squares(folds: list[tuple[float, int]], confidence: float) -> None:
    d, n = (np.array(side, dtype=float) for side in zip(*folds, strict=True))
    design = np.ones((len(d), 1))
    weights = np.diag(n)
    covariance = np.linalg.inv(design.T @ weights @ design)
    (mean,) = covariance @ design.T @ weights @ d
    residual = d - mean
    variance = float(residual @ weights @ residual) / (len(d) - 1) * covariance[0, 0]
    found = estimate_difference(d.tolist(), [int(k) for k in n], confidence)
    half = stats.t.ppf((1 + confidence) / 2, len(d) - 1) * math.sqrt(variance)
    assert found.mean == pytest.approx(mean, abs=1e-12)
    assert found.error == pytest.approx(math.sqrt(variance), abs=1e-9)
    assert found.low == pytest.approx(mean - half, abs=1e-8)
    assert found.high == pytest.approx(mean + half, abs=1e-8)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(1, 99))
def test_folds_of_one_size_give_the_textbook_interval(differences: list[float], size: int) -> None:
    found = estimate_difference(differences, [size] * len(differences))
    assert found.error == pytest.approx(stats.sem(differences), abs=1e-9)


@pytest.mark.parametrize(
    ("folds", "mean", "error", "low", "high"),
    [(6, 0.22, 0.13, -0.04, 0.48), (5, 0.10, 0.19, -0.31, 0.51), (9, 0.10, 0.11, -0.10, 0.30)],
)
def test_table_6_11_of_the_thesis_is_two_sided_at_ninety_per_cent(
    folds: int, mean: float, error: float, low: float, high: float
) -> None:
    half = student_quantile(0.95, folds - 1) * error
    assert (round(mean - half, 2), round(mean + half, 2)) == pytest.approx((low, high), abs=0.011)
    assert student_quantile(0.975, folds - 1) * error > (high - low) / 2 + 0.03


def test_what_is_significant_leaves_zero_out() -> None:
    assert estimate_difference([0.1, 0.11, 0.12], [10, 10, 10]).significant
    assert estimate_difference([-0.1, -0.11, -0.12], [10, 10, 10]).significant
    assert not estimate_difference([-0.1, 0.11, 0.0], [10, 10, 10]).significant
    assert str(_Interval(0.1, 0.02, 0.05, 0.15, 3, 0.95)) == "+0.100 (+0.050 to +0.150)"


def test_folds_without_patients_do_not_count() -> None:
    assert estimate_difference([0.1, 9.0, 0.3], [10, 0, 20]) == estimate_difference([0.1, 0.3], [10, 20])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0.1], [5]), "at least two folds"),
        (([0.1, 0.2], [5, 0]), "at least two folds"),
        (([0.1, 0.2], [5]), "every fold needs both"),
        (([0.1, 0.2], [5, 5], 1.0), "between 0 and 1"),
    ],
)
def test_bad_input_is_said(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        estimate_difference(*arguments)
