"""The private average of an ensemble: what one patient can change, how much noise that takes, and when it is too much.

Claim. Protected: the patient of any one expert, from whoever sees the noisy averages. Each expert's answer to each step
is held to [0, B] and rounded to a grid of 2^-BINARY_PLACES by itself, before anything is added; one expert more, less,
or replaced by another patient's moves the sum of a step by at most B, and of T steps by at most sqrt(T) B in L2.
- one step: discrete Laplace of scale B/e on the sum, so B/(N e) on the average: pure e
- a course of T steps: discrete Gaussian, sigma^2 = T B^2/(2 rho) on the sums: rho
Assumptions: weights are uniform and N is public (what the study says, not how many there are); which experts answer is
decided by each patient's own data and a public seed (site_experts.py). For an ensemble that was grown, whom else the
choice would have fallen on is not covered: the claim holds on condition of the choice, and is not entered as
differential privacy. Weights by history move a step by up to B alpha, many times B/N, and optimal weights depend on
everybody: there is no noisy answer with them. docs/methods.md, section 8.4.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.privacy.accounting import Number as Exact
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon, say_epsilon

BINARY_PLACES = 10
GRID = 1 << BINARY_PLACES
WIDEST = Fraction(1, 4)
"""Of the bound: noise of a larger standard deviation tells hardly anything of one answer."""
LEAST_SIGNAL = 100
"""Experts times mu (mu^2 = 2 rho) that a student needs: with fewer it learns noise (docs/methods.md, section 8.5)."""


def sum_on_grid(told: NDArray[np.floating], bound: int) -> NDArray[np.int64]:
    """The sums over experts of [expert, step], each held to [0, B] and rounded by itself, in steps of the grid."""
    # What is no number is nothing: no patient's broken network decides whether there is an answer.
    held = np.nan_to_num(np.clip(told, 0, bound), nan=0.0)
    sums: NDArray[np.int64] = np.rint(held * GRID).astype(np.int64).sum(axis=0)
    return sums


def find_sensitivity(bound: int) -> int:
    """What one expert can change of the sum of a step, in steps of the grid."""
    return bound * GRID


def find_squared_sensitivity(bound: int, steps: int) -> Fraction:
    """The squared L2 norm of what one expert can change of the sums of so many steps."""
    return Fraction(steps * find_sensitivity(bound) ** 2)


def _find_step_deviation(experts: int, bound: int, epsilon: float) -> float:
    """Of the noise on one step: sqrt(2) B/(N e)."""
    return math.sqrt(2) * bound / (experts * epsilon)


def find_course_deviation(experts: int, bound: int, steps: int, rho: Fraction) -> float:
    """Of the noise on each step of a course: sqrt(T) B/(N mu)."""
    return math.sqrt(steps / float(2 * rho)) * bound / experts


def check_step(experts: int, bound: int, epsilon: Fraction) -> None:
    """StudyError where a private answer for one step would be noise, with what would do."""
    deviation = _find_step_deviation(experts, bound, float(epsilon))
    widest = bound * float(WIDEST)
    if deviation > widest:
        factor = deviation / widest
        raise StudyError(
            f"{experts} experts are too few for a private answer: its noise would have a deviation of {deviation:.3g} "
            f"on a scale of 0 to {bound}. {math.ceil(experts * factor)} experts would do, or "
            f"epsilon = {say_epsilon(float(epsilon) * factor)}"
        )


def check_course(experts: int, bound: int, steps: int, epsilon: Exact, delta: Exact) -> None:
    """The same for a course of so many steps."""
    rho = rho_for_epsilon(epsilon, delta)
    deviation = find_course_deviation(experts, bound, steps, rho)
    widest = bound * float(WIDEST)
    if deviation > widest:
        factor = Fraction(deviation / widest)
        enough = say_epsilon(epsilon_from_rho(rho * factor**2, delta))
        raise StudyError(
            f"{experts} experts are too few to answer {steps} steps privately: the noise of each would have a "
            f"deviation of {deviation:.3g} on a scale of 0 to {bound}. {math.ceil(experts * factor)} experts would "
            f"do, or epsilon = {enough}; a student of public stays costs once, however often it is asked"
        )


def check_student(experts: int, epsilon: Exact, delta: Exact) -> None:
    """The same for labels that a student is to learn from: what counts is experts times mu, not how many labels."""
    rho = rho_for_epsilon(epsilon, delta)
    signal = experts * math.sqrt(2 * rho)
    if signal < LEAST_SIGNAL:
        enough = epsilon_from_rho(Fraction(LEAST_SIGNAL**2, 2 * experts**2), delta)
        needed = math.ceil(LEAST_SIGNAL / math.sqrt(2 * rho))
        raise StudyError(
            f"{experts} experts are too few to teach a student at this epsilon: it would learn noise. "
            f"{needed} experts would do, or epsilon = {say_epsilon(enough)}"
        )
