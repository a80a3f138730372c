"""Shape functions from noisy tables: the log odds of each code of an attribute, smoothed as far as the noise asks for.

The first stage of a private fit (docs/methods.md, section 2.12). A table holds, for each code of an attribute, how many
patients are negative and positive, each count with noise of known variance. The log odds of the codes are the mode of
a Gaussian posterior: neighbouring intervals of a number differ little (a random walk), values of a category and missing
ones lie around the common log odds. How little is chosen by the evidence, so that an attribute that cannot be told from
noise gets a flat shape. All of it is computed from noisy counts, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.models.risk_counts import probability
from concilium.protocol.attributes import Attribute

Vector = NDArray[np.float64]

# How far log odds may wander over an attribute's whole range: the candidates among which the evidence chooses.
SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
MOST_ROUNDS = 50
# Noise can leave no patient of a class at all.
LEAST_PATIENTS = 1.0


@dataclass(frozen=True)
class Shape:
    """An attribute with its noisy table: the share of the patients with each code, and the log odds of each code as the
    distance from what is common to all. `deviation` is the standard deviation of these distances."""

    attribute: Attribute
    shares: Vector
    heights: Vector

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.shares @ self.heights**2))


@dataclass(frozen=True)
class NoisyPatients:
    """How many patients there are, and how many of them are positive, as the noisy tables say."""

    total: float
    positive: float

    @property
    def log_odds(self) -> float:
        return float(np.log(self.positive / (self.total - self.positive)))


def count_patients(tables: Sequence[NDArray[np.int64]]) -> NoisyPatients:
    """The mean over the tables: everyone is once in each of them. The noise of a sum grows with its number of cells."""
    weight = np.array([1.0 / table.size for table in tables])
    sums = np.array([table.sum(axis=0) for table in tables], dtype=np.float64)
    negative, positive = np.maximum(weight @ sums / weight.sum(), LEAST_PATIENTS).tolist()
    return NoisyPatients(negative + positive, positive)


def shape(attribute: Attribute, table: NDArray[np.int64], patients: NoisyPatients, variance: Vector) -> Shape:
    """The shape of an attribute from its noisy table, [code, negative or positive], each code with its variance."""
    counts = np.maximum(table.sum(axis=1), 0).astype(np.float64)
    shares = counts / counts.sum() if counts.any() else np.full(len(counts), 1 / len(counts))
    heights = smooth(table.astype(np.float64), patients.log_odds, attribute.numeric, variance)
    return Shape(attribute, shares, heights - shares @ heights)


def smooth(table: NDArray[np.float64], log_odds: float, numeric: bool, variance: Vector) -> Vector:
    """The distance of each code's log odds from the common one: the mode for the spread of the best evidence."""
    roughness = penalise(len(table), numeric)
    heights = np.zeros(len(table))
    slope, curve = linearise(table, log_odds + heights, variance)
    best = max(SPREADS, key=lambda spread: find_evidence(slope, curve, roughness / spread**2))
    precision = roughness / best**2
    for _ in range(MOST_ROUNDS):
        step = np.linalg.solve(np.diag(curve) + precision, slope - precision @ heights)
        # Far from the mode the quadratic overshoots.
        heights += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
        slope, curve = linearise(table, log_odds + heights, variance)
    return heights


def penalise(codes: int, numeric: bool) -> NDArray[np.float64]:
    """The precision of heights at spread 1: a random walk over intervals, and all of them around zero."""
    precision = np.eye(codes)
    if numeric:
        intervals = codes - 1
        steps = np.diff(np.eye(codes)[1:], axis=0)
        precision += intervals * steps.T @ steps
        precision[1:, 1:] -= (1 - 1 / intervals) * np.eye(intervals)
    return precision


def linearise(table: NDArray[np.float64], log_odds: Vector, variance: Vector) -> tuple[Vector, Vector]:
    """Slope and curvature of the log likelihood at these log odds.

    Noise makes counts worth less: q x positive - p x negative has variance npq + (p^2 + q^2) x that of the noise."""
    chance = probability(log_odds)
    spread = np.maximum(table.sum(axis=1), 0.0) * chance * (1 - chance)
    worth = spread / (spread + variance * (chance**2 + (1 - chance) ** 2))
    return worth * ((1 - chance) * table[:, 1] - chance * table[:, 0]), worth * spread


def find_evidence(slope: Vector, curve: Vector, precision: NDArray[np.float64]) -> float:
    """The log evidence, up to a constant, of a quadratic likelihood around zero under a Gaussian prior."""
    both = np.diag(curve) + precision
    (_, before), (_, after) = np.linalg.slogdet(precision), np.linalg.slogdet(both)
    return 0.5 * float(slope @ np.linalg.solve(both, slope) + before - after)
