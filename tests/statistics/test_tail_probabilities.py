"""Tail probabilities are those of SciPy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concilium.statistics.distributions import (
    chi_squared_tail,
    student_quantile,
    student_two_sided,
    two_sided,
)


@pytest.mark.parametrize("freedom", [1, 2, 7, 40, 500])
def test_they_are_those_of_scipy(freedom):
    for value in (0.01, 0.5, 1.0, 3.0, 10.0, 60.0, 600.0):
        assert chi_squared_tail(value, freedom) == pytest.approx(
            stats.chi2.sf(value, freedom), rel=1e-10, abs=1e-15
        )
        assert student_two_sided(value, freedom) == pytest.approx(
            2 * stats.t.sf(value, freedom), rel=1e-9, abs=1e-15
        )
        assert two_sided(-value) == pytest.approx(2 * stats.norm.sf(value), rel=1e-12, abs=1e-300)
    assert student_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-10)


@given(st.integers(1, 300), st.floats(0.01, 0.999))
def test_the_quantile_is_that_of_students_t(freedom, confidence):
    level = (1 + confidence) / 2
    assert student_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-9)
