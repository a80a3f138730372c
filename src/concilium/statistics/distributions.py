"""Tail probabilities for tests: normal, chi-squared and Student's t, without a library (checked against SciPy).

The regularised incomplete gamma and beta functions follow Numerical Recipes (third edition, sections 6.2 and 6.4): a
power series where it converges fast, a continued fraction (Lentz) elsewhere.
"""

from __future__ import annotations

import math

TINY = 1e-300
PRECISION = 1e-15
MOST_TERMS = 10_000


def two_sided(z: float) -> float:
    """The probability that a standard normal variable is further from zero than z."""
    return math.erfc(abs(z) / math.sqrt(2)) if not math.isnan(z) else math.nan


def chi_squared_tail(statistic: float, freedom: float) -> float:
    """The probability that a chi-squared variable with so many degrees of freedom exceeds the statistic."""
    if math.isnan(statistic) or freedom <= 0:
        return math.nan
    if statistic <= 0:
        return 1.0
    shape, x = freedom / 2, statistic / 2
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return 1.0 - front * _sum_gamma_series(shape, x)
    return front * _continue_gamma(shape, x)


def _sum_gamma_series(shape: float, x: float) -> float:
    term = total = 1 / shape
    for step in range(1, MOST_TERMS):
        term *= x / (shape + step)
        total += term
        if term < total * PRECISION:
            break
    return total


def _continue_gamma(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1 / TINY, 1 / b
    value = d
    for step in range(1, MOST_TERMS):
        factor = -step * (step - shape)
        b += 2
        d = 1 / _away_from_zero(factor * d + b)
        c = _away_from_zero(b + factor / c)
        value *= d * c
        if abs(d * c - 1) < PRECISION:
            break
    return value


def student_two_sided(t: float, freedom: float) -> float:
    """The probability that a Student's t variable with so many degrees of freedom is further from zero than t."""
    if math.isnan(t) or freedom <= 0:
        return math.nan
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def fisher_tail(statistic: float, between: float, within: float) -> float:
    """The probability that an F variable with these degrees of freedom exceeds the statistic."""
    if math.isnan(statistic) or between <= 0 or within <= 0:
        return math.nan
    return _incomplete_beta(within / 2, between / 2, within / (within + between * max(statistic, 0.0)))


def student_quantile(level: float, freedom: float) -> float:
    """The quantile of Student's t distribution, by bisection; infinite without degrees of freedom."""
    if freedom <= 0:
        return math.inf
    low, high = 0.0, 1e8
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_two_sided(middle, freedom) > 2 * (1 - level) else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _continue_beta(a, b, x) / a
    return 1 - front * _continue_beta(b, a, 1 - x) / b


def _continue_beta(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MOST_TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + factor * d)
            c = _away_from_zero(1 + factor / c)
            value *= d * c
        if abs(d * c - 1) < PRECISION:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
