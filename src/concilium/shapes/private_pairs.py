"""Pairs of a private fit: heat maps over few groups of two attributes, where noise lets one see them (10.6, 10.7).

Everything here follows from noisy answers and the study. Of the attributes whose curves vary most every two are asked
about, in few groups each. What rows and columns say is taken out, as if attributes were independent: it is that of the
curves. What is left is drawn to nothing by a ridge, of a spread that is weighed by evidence, as curves are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Self

import numpy as np

from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells, Vector, find_starts, group_codes
from concilium.shapes.evidence import Evidence, Matrix, weigh_priors

CROSSED, GROUPS, MOST_PAIRS = 5, 4, 3
SPREADS = (0.02, 0.08, 0.2, 0.4, 0.8)
LEAST_DEVIATION = 0.06
FIRST_STEP = 0.8  # curves that move yet will say part of it


def list_pairs(among: Sequence[Attribute], shares: Mapping[int, Vector]) -> tuple[Cells, ...]:
    """Every two of the attributes at these places, each in few groups of about equal shares of patients."""
    groups = {place: group_codes(own, GROUPS, attribute=among[place]) for place, own in shares.items()}
    several = sorted(place for place, codes in groups.items() if max(codes) > 0)
    return tuple(Cells((i, j), (groups[i], groups[j])) for i, j in combinations(several, 2))


def split_cells(numbers: Vector, pairs: Sequence[Cells], among: Sequence[Attribute]) -> list[Vector]:
    """The numbers of each pair's cells."""
    starts = [start - 1 for start in find_starts(pairs, among)]
    return [numbers[start:end] for start, end in pairwise(starts)]


@dataclass
class NoisyPair:
    """A pair as noisy answers tell it: log odds of its cells, their covariance, and the answers so far, as what they
    say of weights x heights with the variance of their noise."""

    cells: Cells
    shares: Vector
    centre: Matrix
    evidence: Evidence
    values: Vector
    covariance: Matrix
    answers: list[tuple[Vector, float]]

    @classmethod
    def of(
        cls, cells: Cells, shares: Mapping[int, Vector], scale: float, residuals: Vector, noise: float
    ) -> Self:
        """By residual sums with noise of this variance; `scale` is the weight of all patients."""
        sides = [
            np.bincount(groups, shares[index])
            for index, groups in zip(cells.attributes, cells.groups, strict=True)
        ]
        both = np.outer(sides[0], sides[1]).ravel().astype(np.float64)
        first, second = (np.eye(len(side)) - np.outer(np.ones(len(side)), side) for side in sides)
        centre = np.kron(first, second).astype(np.float64)
        priors = [spread**2 * centre @ centre.T for spread in SPREADS]
        size = len(both)
        evidence = Evidence(both, scale * both, np.zeros(size), np.eye(size), priors)
        pair = cls(cells, both, centre, evidence, np.zeros(size), np.zeros((size, size)), [])
        pair.add(residuals, noise)
        return pair

    @property
    def deviation(self) -> float:
        return math.sqrt(float(self.shares @ self.values**2))

    def add(self, residuals: Vector, noise: float) -> None:
        """Another answer, at the values as they are now."""
        self.answers.append((self.evidence.weights * self.values + self.centre.T @ residuals, noise))
        precision = sum(1 / variance for _, variance in self.answers)
        target: Vector = np.sum([said / variance for said, variance in self.answers], axis=0) / precision
        self.evidence = replace(self.evidence, target=target, noise=np.eye(len(self.values)) / precision)


def choose_pairs(pairs: Sequence[NoisyPair], most: int) -> list[NoisyPair]:
    """The pairs whose log odds vary most over patients, with their first step."""
    weigh_pairs(pairs)
    order = sorted(pairs, key=lambda pair: -pair.deviation)
    chosen = [pair for pair in order[:most] if pair.deviation > LEAST_DEVIATION]
    for pair in chosen:
        pair.values = FIRST_STEP * pair.values
    return chosen


def weigh_pairs(pairs: Sequence[NoisyPair]) -> None:
    """The values of all pairs by all their answers; how common each spread is follows from all."""
    for pair, (prior, heights) in zip(pairs, weigh_priors([pair.evidence for pair in pairs]), strict=True):
        pair.values, pair.covariance = heights, pair.evidence.find_posterior(prior)
