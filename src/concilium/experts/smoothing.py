"""Labels that are mostly noise, smoothed: linear regression on public features, with the noise's known variance.

Coefficients have a normal prior whose variance is the one that makes the labels likeliest (Bishop 2006, section 3.5;
the noise is not estimated, it is known). All of it is made from what was released, so that it costs no more.
docs/methods.md, section 8.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

PRIORS = 10.0 ** np.arange(-10.0, 2.01, 0.25)
"""Variances of the prior that are tried, in units of the labels' scale."""
LEAST_NOISE = 1e-3


def smooth(features: Reals, asked: NDArray[np.int64], labels: Reals, deviation: float, scale: float) -> Reals:
    """What the labels of the cells that were asked about say of every cell [cell, feature].

    `deviation` is that of the noise on each label, in units of the labels; `scale` the largest that a label can be.
    """
    center, spread = features.mean(axis=0), features.std(axis=0)
    kept = spread > 1e-6
    if not kept.any():
        return np.full(len(features), labels.mean())
    standard = (features[:, kept] - center[kept]) / spread[kept]
    seen = standard[asked]
    mean, middle = labels.mean(), seen.mean(axis=0)
    coefficients = regress(seen - middle, (labels - mean) / scale, max(deviation / scale, LEAST_NOISE) ** 2)
    smoothed: Reals = mean + scale * ((standard - middle) @ coefficients)
    return smoothed


def regress(design: Reals, labels: Reals, noise: float) -> Reals:
    """The mean of the posterior at the likeliest prior, noise of this variance given."""
    values, vectors = np.linalg.eigh(design.T @ design)
    values = np.maximum(values, 0.0)
    pulled = vectors.T @ (design.T @ labels)
    evidence = [weigh_evidence(values, pulled, prior, noise) for prior in PRIORS]
    prior = PRIORS[int(np.argmax(evidence))]
    coefficients: Reals = vectors @ (pulled / (values + noise / prior))
    return coefficients


def weigh_evidence(values: Reals, pulled: Reals, prior: float, noise: float) -> float:
    """The log probability of the labels under a prior, but for what all priors have in common."""
    fits = (pulled**2 * prior / (noise * (noise + prior * values))).sum()
    return float(0.5 * (fits - np.log1p(prior * values / noise).sum()))
