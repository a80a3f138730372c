"""Bayesian Federated Inference (Jonker, Pazira and Coolen, Stat. Med. 43, 2024): a linear baseline in one round.

Every hospital l sends the mode theta_l of its own posterior and the curvature A_l there, under a Gaussian prior of
precision Lambda_l. The house returns A = sum A_l + Lambda - sum Lambda_l and theta = A^-1 sum A_l theta_l: the pooled
mode exactly where log posteriors are quadratic (linear regression), and nearly so in logistic regression. A baseline
for accuracy, without a claim of privacy: theta_l and A_l are exact statistics of a hospital's patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError

Floats = NDArray[np.float64]
Family = Literal["logistic", "linear"]
Site = tuple[Floats, Floats]

STEPS = 200
HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian about its mode: coefficients (the intercept first) and the curvature there."""

    coefficients: Floats
    curvature: Floats

    def predict(self, matrix: Floats) -> Floats:
        """The linear predictor: an expected outcome, or log odds."""
        return _design(matrix) @ self.coefficients

    def predict_proba(self, matrix: Floats) -> Floats:
        """Probabilities of 0 and 1 under a logistic model, one row for each patient."""
        positive = _chance(self.predict(matrix))
        return np.column_stack([1 - positive, positive])


def infer(
    sites: Sequence[Site],
    prior: float | Floats = 1.0,
    site_priors: Sequence[float | Floats] | None = None,
    family: Family = "logistic",
    variance: float = 1.0,
) -> Posterior:
    """The posterior of all hospitals' patients, from what each hospital finds in its own (matrix, outcomes).

    prior         precision of the coefficients before any patient is seen, the intercept included: a number for all, or
                  a matrix; 1 is the default of the authors' package, and 0.01 what its guide uses
    site_priors   what each hospital used, where that differs from `prior`
    variance      of the outcome around a linear predictor, for `family="linear"`
    """
    if not sites:
        raise StudyError("Bayesian federated inference needs the patients of at least one site; got none")
    used = [prior] * len(sites) if site_priors is None else list(site_priors)
    if len(used) != len(sites):
        raise StudyError(f"there are {len(sites)} sites but {len(used)} site_priors; give one for each site")
    widths = {matrix.shape[1] for matrix, _ in sites}
    if len(widths) > 1:
        raise StudyError(
            f"the sites have matrices of different widths, {sorted(widths)}; give all the same columns"
        )
    found = [
        estimate(matrix, outcome, own, family, variance)
        for (matrix, outcome), own in zip(sites, used, strict=True)
    ]
    return combine(found, used, prior)


def combine(
    found: Sequence[Posterior], site_priors: Sequence[float | Floats], prior: float | Floats
) -> Posterior:
    """What the house does: curvatures add up, and every prior but one is taken out again."""
    size = len(found[0].coefficients)
    excess = sum((_precision(own, size) for own in site_priors), np.zeros((size, size)))
    curvature = sum((one.curvature for one in found), _precision(prior, size) - excess)
    weighted = sum((one.curvature @ one.coefficients for one in found), np.zeros(size))
    return Posterior(_solve(curvature, weighted), curvature)


def estimate(
    matrix: Floats,
    outcome: Floats,
    prior: float | Floats = 1.0,
    family: Family = "logistic",
    variance: float = 1.0,
) -> Posterior:
    """What one hospital does: its posterior mode and the curvature there.

    The prior makes the posterior strictly concave, so the mode exists even where the outcome is separable or of one
    class only; halved Newton steps cannot run away from it.
    """
    design, outcome = _design(matrix), np.asarray(outcome, dtype=np.float64)
    _check(design, outcome, family, variance)
    precision = _precision(prior, design.shape[1])
    if family == "linear":
        curvature = design.T @ design / variance + precision
        return Posterior(_solve(curvature, design.T @ outcome / variance), curvature)
    return _find_mode(design, outcome, precision)


def _find_mode(design: Floats, outcome: Floats, precision: Floats) -> Posterior:
    theta = np.zeros(design.shape[1])
    for _ in range(STEPS):
        chance = _chance(design @ theta)
        gradient = design.T @ (chance - outcome) + precision @ theta
        step = _solve(_curvature(design, chance, precision), gradient)
        decrement = float(gradient @ step)
        loss = _loss(design, outcome, precision, theta)
        enough = (
            there
            for length in 0.5 ** np.arange(HALVINGS)
            if _loss(design, outcome, precision, there := theta - length * step)
            <= loss - 0.1 * length * decrement
        )
        better = next(enough, None)
        if better is None:  # no digit of the loss is left to gain
            break
        theta = better
        if decrement < 1e-20 * (1 + loss):
            break
    return Posterior(theta, _curvature(design, _chance(design @ theta), precision))


def _solve(curvature: Floats, vector: Floats) -> Floats:
    return np.asarray(np.linalg.solve(curvature, vector), dtype=np.float64)


def _loss(design: Floats, outcome: Floats, precision: Floats, theta: Floats) -> float:
    score = design @ theta
    return float(np.sum(np.logaddexp(0, score) - outcome * score) + theta @ precision @ theta / 2)


def _curvature(design: Floats, chance: Floats, precision: Floats) -> Floats:
    return (design.T * (chance * (1 - chance))) @ design + precision


def _chance(score: Floats) -> Floats:
    """1 / (1 + exp(-score)), written so that no score overflows."""
    return 0.5 * (1 + np.tanh(score / 2))


def _design(matrix: Floats) -> Floats:
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2:
        raise StudyError(
            f"a site's matrix must have a row for each patient and a column for each feature; got {matrix.ndim}-d"
        )
    return np.column_stack([np.ones(len(matrix)), matrix])


def _precision(prior: float | Floats, size: int) -> Floats:
    precision = np.asarray(prior, dtype=np.float64)
    if precision.ndim == 0:
        precision = precision * np.eye(size)
    if precision.shape != (size, size) or not np.allclose(precision, precision.T):
        raise StudyError(
            f"a prior must be a number or a symmetric {size} x {size} matrix (intercept first); got {precision.shape}"
        )
    if not np.all(np.isfinite(precision)) or np.linalg.eigvalsh(precision)[0] <= 0:
        raise StudyError("a prior's precision must be positive, so that every site's estimate exists")
    return precision


def _check(design: Floats, outcome: Floats, family: Family, variance: float) -> None:
    if outcome.shape != (len(design),):
        raise StudyError(
            f"a site has {len(design)} patients but outcomes of shape {outcome.shape}; give one for each"
        )
    if not (np.all(np.isfinite(design)) and np.all(np.isfinite(outcome))):
        raise StudyError(
            "a site's matrix or outcomes have missing or infinite cells; fill them in or leave the patients out"
        )
    if family == "logistic" and not np.all((outcome == 0) | (outcome == 1)):
        raise StudyError("outcomes of a logistic model must be 0 or 1; code the positive class as 1")
    if family not in ("logistic", "linear") or not variance > 0:
        raise StudyError(
            f"family must be 'logistic' or 'linear' and variance positive; got {family!r}, {variance!r}"
        )
