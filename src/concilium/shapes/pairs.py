"""Pairs of attributes that act together beyond their curves: which join, where they are cut (docs/methods.md, 10.4).

One question gives residuals and weights in the cells of all pairs of attributes, in few groups each. A pair is scored
by the evidence that these residuals vary over its cells, smoothly where attributes are numbers. A second question
gives the full tables of the best pairs. Each is cut there where that raises the evidence: a step needs two groups, and
a pair that is cut so has few cells to read.

All of it follows from sums over hospitals: pairs are those of the pooled patients, however these are split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells, Vector

Matrix = Vector
Groups = NDArray[np.intp]

GROUPS = 8  # of an attribute in a pair, at most
SPREADS = np.array(
    [0.03, 0.1, 0.3, 1.0, 3.0]
)  # of log odds over the cells of a pair, of which the likeliest counts
SPREADS_OF_CUTS = np.array([0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
WORTH = 1.0  # a cut raises the log evidence by so much at least


class Table:
    """What curves leave over in the cells of two attributes: residuals beside what rows and columns explain."""

    def __init__(self, gradient: Matrix, weight: Matrix) -> None:
        rows, columns = weight.shape
        both = np.zeros((rows + columns, rows + columns))
        both[:rows, :rows], both[rows:, rows:] = np.diag(weight.sum(axis=1)), np.diag(weight.sum(axis=0))
        both[:rows, rows:], both[rows:, :rows] = weight, weight.T
        self.weight = weight
        self._inverse = np.linalg.pinv(both + 1e-9 * np.eye(rows + columns), rcond=1e-9)
        self.left = self.take_out(gradient)

    def take_out(self, numbers: Matrix) -> Matrix:
        """The numbers without what rows and columns explain of them (weighted least squares)."""
        rows = len(self.weight)
        explained = self._inverse @ np.concatenate([numbers.sum(axis=1), numbers.sum(axis=0)])
        return np.asarray(numbers - self.weight * (explained[:rows, None] + explained[None, rows:]))

    def explain(self, sides: Matrix) -> Vector:
        """Of each of these sums over rows and columns the information that rows and columns have."""
        return np.asarray(np.einsum("ij,jk,ik->i", sides, self._inverse, sides, optimize=True))

    def score(self, first: Matrix, second: Matrix) -> float:
        """The log evidence that residuals vary over cells by factors like these of the two attributes, against none."""
        factors = np.kron(first, second)
        spread = (self.weight.ravel()[:, None] * factors).reshape(*self.weight.shape, -1)
        sides = np.concatenate([spread.sum(axis=1), spread.sum(axis=0)])
        information = factors.T @ spread.reshape(factors.shape) - sides.T @ self._inverse @ sides
        values, vectors = np.linalg.eigh(information)
        pulls = vectors.T @ (factors.T @ self.left.ravel())
        return _weigh(pulls, np.maximum(values, 0.0), SPREADS)


def _weigh(pulls: Vector, information: Vector, spreads: Vector) -> float:
    """The log evidence, at the likeliest spread, that these independent pulls are not of chance alone."""
    variance = spreads[:, None] ** 2
    gained = variance * pulls**2 / (1 + variance * information) - np.log1p(variance * information)
    return float(gained.sum(axis=1).max() / 2)


def find_factors(attribute: Attribute, groups: Sequence[int]) -> Matrix:
    """How heights of groups vary together: as a walk over intervals, values and missing by themselves."""
    size = max(groups) + 1
    if not attribute.numeric:
        return np.eye(size)
    apart = int(attribute.missing and groups.count(0) == 1 and groups[0] == 0)
    steps = np.arange(size - apart)
    centre = np.eye(len(steps)) - 1 / len(steps)
    walk = centre @ np.minimum.outer(steps, steps) @ centre
    together = np.eye(size)
    together[apart:, apart:] = walk / max(np.trace(walk) / len(steps), 1e-9)
    values, vectors = np.linalg.eigh(together)
    kept = values > 1e-3 * values[-1]
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def list_fine(pair: Cells, attributes: Sequence[Attribute]) -> Cells:
    """The pair with every interval of its numbers as a group of its own."""
    groups = tuple(
        tuple(range(attributes[index].size)) if attributes[index].numeric else codes
        for index, codes in zip(pair.attributes, pair.groups, strict=True)
    )
    return Cells(pair.attributes, groups)


def cut_pair(
    fine: Cells, attributes: Sequence[Attribute], gradient: Matrix, weight: Matrix, counts: Matrix
) -> Cells | None:
    """The pair with its numbers cut where that raises the evidence: one cut of each first, then the best ones. None
    where a number cannot be cut."""
    left = Table(gradient, weight).left
    groups: list[Groups] = []
    free: list[range] = []
    for side, index in enumerate(fine.attributes):
        one, own = attributes[index], counts.sum(axis=1 - side)
        if one.numeric:
            missing = int(one.missing and own[0] > 0)
            groups.append(np.array([0] * one.first + [missing] * (one.size - one.first)))
            free.append(range(one.first + 1, one.size))
        else:
            groups.append(np.arange(len(own)))
            free.append(range(0))

    def weigh(groups: list[Groups]) -> float:
        first, second = (np.eye(codes.max() + 1)[codes] for codes in groups)
        pulls, information = ((first.T @ part @ second).ravel() for part in (left, weight))
        return _weigh(pulls, information, SPREADS_OF_CUTS)

    def cut(groups: list[Groups], side: int, place: int) -> list[Groups]:
        return [
            codes + (np.arange(len(codes)) >= place) if at == side else codes
            for at, codes in enumerate(groups)
        ]

    if all(free):
        options = [cut(cut(groups, 0, first), 1, second) for first in free[0] for second in free[1]]
        groups = max(options, key=weigh)
    reached = weigh(groups)
    while True:
        options = [
            cut(groups, side, place)
            for side, codes in enumerate(groups)
            if codes.max() + 1 < GROUPS
            for place in free[side]
            if codes[place] == codes[place - 1]
        ]
        best = max(options, key=weigh, default=groups)
        # A number that is not cut yet is cut in any case: without it there is no pair.
        whole = min(codes.max() for codes in groups) == 0
        if not options or (weigh(best) < reached + WORTH and not whole):
            break
        groups, reached = best, weigh(best)
    if min(codes.max() for codes in groups) == 0:
        return None
    # Values stand in the groups of the question.
    coded = (tuple(codes[list(before)].tolist()) for codes, before in zip(groups, fine.groups, strict=True))
    return Cells(fine.attributes, tuple(coded))
