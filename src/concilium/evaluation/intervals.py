"""Is one model better than another, or was it luck? A weighted t interval (docs/methods.md, section 1.16).

With d_i the difference of two error rates in fold i of k and n_i the patients measured there, the mean is weighted by
w_i = n_i / sum n, its variance is sum w_i (d_i - mean)^2 / (k - 1), and the interval takes Student's t with k - 1
degrees of freedom. That is exact where the d_i are normal with variance in proportion to 1 / n_i, and with equal
folds it is the textbook interval. Two limits. Folds that learn from mostly the same patients are not independent, so
the interval is somewhat too narrow (Bengio and Grandvalet, JMLR 5, 2004). And the thesis takes the one-sided quantile
of t: what its Table 6.11 calls 95 % is 90 % here, where both sides count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from concilium.errors import StudyError

HALVINGS = 80


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A weighted mean difference, its standard error, and where it lies with this confidence."""

    mean: float
    error: float
    low: float
    high: float
    folds: int
    confidence: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def estimate_difference(
    differences: Sequence[float], patients: Sequence[int], confidence: float = 0.95
) -> Interval:
    """The interval of a mean difference over folds, each weighted by its patients; folds without any do not count."""
    if len(differences) != len(patients):
        raise StudyError("every fold needs both a difference and its number of patients")
    if not 0 < confidence < 1:
        raise StudyError(f"the confidence must be between 0 and 1; got {confidence!r}")
    folds = [(d, n) for d, n in zip(differences, patients, strict=True) if n > 0]
    if len(folds) < 2:
        raise StudyError("an interval needs at least two folds with patients")
    everyone = sum(n for _, n in folds)
    mean = math.fsum(d * n for d, n in folds) / everyone
    spread = math.fsum(n * (d - mean) ** 2 for d, n in folds) / everyone
    error = math.sqrt(spread / (len(folds) - 1))
    half = t_quantile(confidence, len(folds) - 1) * error
    return Interval(mean, error, mean - half, mean + half, len(folds), confidence)


def t_quantile(confidence: float, freedom: int) -> float:
    """The t that a Student variable exceeds in size with probability 1 - confidence."""
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if probability_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def probability_within(angle: float, freedom: int) -> float:
    """P(|T| < t) at t = sqrt(freedom) tan(angle): finite sums for whole degrees of freedom (Abramowitz and Stegun,
    26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        total, term = 0.0, cosine
        for step in range(2, freedom, 2):
            total += term
            term *= cosine**2 * step / (step + 1)
        return 2 / math.pi * (angle + sine * total)
    total, term = 0.0, 1.0
    for step in range(1, freedom, 2):
        total += term
        term *= cosine**2 * step / (step + 1)
    return sine * total
