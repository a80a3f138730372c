"""Priors of shapes, and what noisy tables say for them (docs/methods.md, 10.7).

A shape is drawn towards smooth curves: a line, a walk from interval to interval, and a height for missing, of spreads
on a public grid. Each spread counts by its evidence, and what spreads are common is learned from all attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Vector

Matrix = Vector
LINES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
WALKS = (0.03, 0.1, 0.25, 0.6)
VALUES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
ROUNDS = 8


def _list_priors(attribute: Attribute, shares: Vector) -> list[Matrix]:
    """The covariances that heights may have, centred by the shares of codes."""
    size = len(shares)
    centre = np.eye(size) - np.outer(np.ones(size), shares)
    if not attribute.numeric or size <= 3:
        return [centre @ centre.T * spread**2 for spread in VALUES]
    first = attribute.first
    own = shares[first:] + 1e-6
    own = own / own.sum()
    place = np.cumsum(own) - own / 2
    line = np.zeros(size)
    line[first:] = place - own @ place
    line /= np.sqrt(own @ line[first:] ** 2)
    inner = np.eye(size - first) - np.outer(np.ones(size - first), own)
    step = inner @ np.minimum.outer(place, place) @ inner.T
    walk, missing = np.zeros((size, size)), np.zeros((size, size))
    walk[first:, first:] = step / max(float(own @ np.diag(step)), 1e-9)
    missing[:first, :first] = 1.0
    return [
        centre @ (a**2 * np.outer(line, line) + b**2 * walk + max(a, b) ** 2 * missing) @ centre.T
        for a in LINES
        for b in WALKS
    ]


@dataclass(frozen=True)
class Evidence:
    """What noisy answers say of one shape: `target` is weights x heights, with an error of covariance diag(weights) +
    `noise`."""

    shares: Vector
    weights: Vector
    target: Vector
    noise: Matrix
    priors: list[Matrix]

    @classmethod
    def of_sums(
        cls,
        counted: Vector,
        deviation: float,
        residuals: Vector,
        variance: float,
        weight: float,
        attribute: Attribute,
    ) -> Self:
        """Of the patients with each code, with noise of this deviation, and the sums of their residuals, with noise of
        this variance. `weight`: of all patients."""
        held = np.where(counted > deviation, counted, np.maximum(counted, 0) * 0.5) + 0.5
        shares = held / held.sum()
        return cls(
            shares,
            weight * shares,
            residuals - shares * residuals.sum(),
            variance * np.eye(len(shares)),
            _list_priors(attribute, shares),
        )

    def find_posterior(self, prior: Matrix) -> Matrix:
        """The covariance of heights that is left of this prior."""
        scaled = self.weights[:, None] * prior
        middle = scaled * self.weights + np.diag(self.weights) + self.noise
        found: Matrix = prior - scaled.T @ np.linalg.solve(middle, scaled)
        return found

    def try_prior(self, prior: Matrix) -> tuple[float, Vector]:
        """The log evidence of a prior, up to a constant, and the heights under it."""
        scaled = self.weights[:, None] * prior
        root = np.linalg.cholesky(scaled * self.weights + np.diag(self.weights) + self.noise)
        whitened = np.linalg.solve(root, self.target)
        heights = scaled.T @ np.linalg.solve(root.T, whitened)
        return float(-0.5 * whitened @ whitened - np.log(np.diag(root)).sum()), heights


def weigh_priors(evidence: Sequence[Evidence]) -> list[tuple[Matrix, Vector]]:
    """The prior and the heights of each shape, averaged over the grid by evidence.

    How common each spread is follows from all shapes with the same grid (EM).
    """
    tried = [[one.try_prior(prior) for prior in one.priors] for one in evidence]
    found: dict[int, tuple[Matrix, Vector]] = {}
    for size in sorted({len(one.priors) for one in evidence}):
        places = [place for place, one in enumerate(evidence) if len(one.priors) == size]
        logs = np.array([[log for log, _ in tried[place]] for place in places])
        common = np.full(size, 1 / size)
        for _ in range(ROUNDS):
            weights = np.exp(logs + np.log(common) - (logs + np.log(common)).max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            total = weights.sum(axis=0) + 2 / size
            common = total / total.sum()
        for place, own in zip(places, weights, strict=True):
            heights = own @ np.array([heights for _, heights in tried[place]])
            found[place] = np.tensordot(own, np.array(evidence[place].priors), 1), heights
    return [found[place] for place in range(len(evidence))]
