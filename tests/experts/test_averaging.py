"""The noise of private averages, as a distribution and in proportion to what one patient can change."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concilium.errors import StudyError
from concilium.experts.expert_answers import (
    GRID,
    _find_sensitivity,
    _find_squared_sensitivity,
    _find_step_deviation,
    _sum_on_grid,
    check_course,
    check_step,
    check_student,
    find_course_deviation,
)
from concilium.privacy.accounting import rho_for_epsilon, sigma_squared_for
from concilium.privacy.mechanisms import add_gaussian, add_laplace

answers = st.lists(
    st.lists(st.floats(-10, 10) | st.just(math.nan) | st.just(math.inf), min_size=3, max_size=3),
    min_size=1,
    max_size=6,
)


@given(answers, st.lists(st.floats(-10, 10), min_size=3, max_size=3), st.integers(0, 5))
def test_one_expert_changes_no_more_than_is_paid_for(told, other, place):
    """Whoever is replaced, added or removed, and whatever the networks say."""
    told = np.array(told)
    place %= len(told)
    replaced = told.copy()
    replaced[place] = other
    sums = _sum_on_grid(told, 4)
    for neighbour in (replaced, np.delete(told, place, axis=0), np.vstack([told, other])):
        moved = sums - _sum_on_grid(neighbour, 4)
        assert np.abs(moved).max() <= _find_sensitivity(4)
        assert (moved**2).sum() <= _find_squared_sensitivity(4, 3)
    worst = _sum_on_grid(np.full((1, 3), 9.0), 4) - _sum_on_grid(np.full((1, 3), -9.0), 4)
    assert (worst**2).sum() == _find_squared_sensitivity(4, 3)  # which is reached


def test_the_noise_of_one_step_is_laplace_of_the_bound_over_experts_and_epsilon():
    sums = _sum_on_grid(np.full((40, 1), 1.25), 4)
    noisy = np.array([add_laplace(sums, "1/2", _find_sensitivity(4))[0] for _ in range(3000)])
    drawn = noisy / GRID / 40 - 1.25
    assert stats.kstest(drawn, stats.laplace(scale=4 / (40 * 0.5)).cdf).pvalue > 1e-4
    assert drawn.std() == pytest.approx(_find_step_deviation(40, 4, 0.5), rel=0.1)


def test_the_noise_of_a_course_is_gaussian_by_its_length():
    rho = Fraction(1, 8)
    sums = _sum_on_grid(np.full((40, 3000), 2.0), 4)
    variance = sigma_squared_for(rho, _find_squared_sensitivity(4, 3000))
    drawn = add_gaussian(sums, variance) / GRID / 40 - 2.0
    deviation = math.sqrt(3000) * 4 / (40 * math.sqrt(2 * rho))
    assert find_course_deviation(40, 4, 3000, rho) == pytest.approx(deviation)
    assert stats.kstest(drawn, stats.norm(scale=deviation).cdf).pvalue > 1e-4


def test_the_figures_of_the_paper_s_stay():
    """A 96-step stay, 40 experts, epsilon 1: one Gaussian vector has an sd of 3.7 where its own privacy curve is used,
    and of 4.0 at the rho that ledgers add up; 96 Laplace answers have one of 13.6."""
    assert find_course_deviation(40, 4, 96, rho_for_epsilon(1, "1e-5")) == pytest.approx(3.96, abs=0.01)
    assert _find_step_deviation(40, 4, 1 / 96) == pytest.approx(13.6, abs=0.1)


def test_too_few_experts_are_refused_with_what_would_do():
    with pytest.raises(StudyError, match=r"3 experts are too few .* 6 experts would do, or epsilon = 1\.89"):
        check_step(3, 4, Fraction(1))
    check_step(6, 4, Fraction(1))
    check_step(3, 4, Fraction("1.89"))
    with pytest.raises(StudyError, match="too few to answer 96 steps privately") as caught:
        check_course(40, 4, 96, 1, "1e-5")
    enough = int(str(caught.value).split(" experts would do")[0].split()[-1])
    epsilon = str(caught.value).split("epsilon = ")[1].split(";")[0]
    check_course(enough, 4, 96, 1, "1e-5")
    check_course(40, 4, 96, epsilon, "1e-5")
    with pytest.raises(StudyError):
        check_course(enough - 1, 4, 96, 1, "1e-5")
    with pytest.raises(StudyError, match="too few to teach a student") as caught:
        check_student(40, rho_for_epsilon(1, "1e-5"), "1e-5")
    enough = int(str(caught.value).split(" experts would do")[0].split()[-1])
    check_student(enough, rho_for_epsilon(1, "1e-5"), "1e-5")
    check_student(40, rho_for_epsilon(str(caught.value).split("epsilon = ")[1], "1e-5"), "1e-5")
    with pytest.raises(StudyError):
        check_student(enough - 1, rho_for_epsilon(1, "1e-5"), "1e-5")


def test_answers_are_rounded_one_by_one():
    told = np.array([[0.4 / GRID], [0.4 / GRID], [0.4 / GRID]])
    assert _sum_on_grid(told, 4).tolist() == [0]
