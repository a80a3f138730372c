"""Families of a regression: what a patient adds to likelihood, score and information (McCullagh and Nelder, 1989)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Counts whose variance is mean + a mean^2; a is one coefficient more (regression_sums.py).
NEGATIVE_BINOMIAL = "negative-binomial"
COUNTS = ("poisson", NEGATIVE_BINOMIAL)
LARGEST_COUNT = 100_000
LARGEST_LOG = 40.0  # exp of it is 2e17: no mean of a count, and no odds, is beyond


@dataclass(frozen=True)
class OutcomeFamily:
    """`ratio`: what exp(coefficient) is called; empty where coefficients are differences. `reach` are the bounds of a
    private study for an outcome between public ends: of a residual, and of a weight."""

    name: str
    ratio: str
    predictor: str

    def mean(self, eta: Vector) -> Vector:
        """The expected outcome at a linear predictor."""
        if self.name == "binomial":
            return np.asarray(0.5 * (1 + np.tanh(0.5 * eta)))
        if self.name in COUNTS:
            return np.asarray(np.exp(np.clip(eta, -LARGEST_LOG, LARGEST_LOG)))
        return eta

    def weight(self, mean: Vector) -> Vector:
        """The variance of an outcome, at unit dispersion; of a count, that of Poisson's law."""
        if self.name == "binomial":
            return mean * (1 - mean)
        return mean if self.name in COUNTS else np.ones_like(mean)

    def log_likelihood(self, y: Vector, eta: Vector, mean: Vector) -> float:
        """The sum over patients; for `gaussian` at unit variance and without its constant."""
        if self.name == "binomial":
            return float((y * eta - np.logaddexp(0, eta)).sum())
        if self.name == "gaussian":
            return float(-0.5 * ((y - mean) ** 2).sum())
        values, often = np.unique(y, return_counts=True)
        constants = [math.lgamma(value + 1) for value in values.tolist()]
        return float((y * eta - mean).sum() - np.array(constants) @ often)

    def is_outcome(self, y: Vector) -> NDArray[np.bool_]:
        """Which outcomes it can be about: counts are not below zero, and those of a negative binomial are whole."""
        if self.name == NEGATIVE_BINOMIAL:
            return np.isin(np.mod(y, 1), 0) & (y >= 0) & (y <= LARGEST_COUNT)
        return np.isfinite(y) & (y >= 0) if self.name == "poisson" else np.isfinite(y)

    def reach(self, low: float, high: float) -> tuple[float, float]:
        """How large a residual and a weight can be where outcome and mean are held between these ends."""
        if self.name == "binomial":
            return 1.0, 0.25
        return high - low, (high if self.name == "poisson" else 1.0)


FAMILIES = {
    "binomial": OutcomeFamily("binomial", "odds ratio", "log odds"),
    "gaussian": OutcomeFamily("gaussian", "", "difference"),
    "poisson": OutcomeFamily("poisson", "rate ratio", "log rate"),
    NEGATIVE_BINOMIAL: OutcomeFamily(NEGATIVE_BINOMIAL, "rate ratio", "log rate"),
}
