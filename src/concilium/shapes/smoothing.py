"""Penalised Newton steps for shapes, with their smoothing from the same sums (docs/methods.md, 10.3).

The house solves beta = (H + S)^-1 (H beta + g), where S is a sum of penalties with a weight each. The weights maximise
the restricted likelihood of the quadratic (REML), by the steps of Fellner and Schall. So no patients are held out to
choose them, and no question is asked for it. One weight is common to all terms: it draws the log odds of patients to
the mean, the more the more terms there are for what patients tell. Directions that a clinician states are kept by an
active set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells, Vector, find_starts

Matrix = Vector

RIDGE = 1e-3  # what nobody's data determine is zero
START = 10.0
FIRST_DRAWN = 0.1  # where the common weight begins, against the information of patients
LEAST_WEIGHT, MOST_WEIGHT = 1e-3, 1e6
LARGEST_FACTOR = 20.0
# A pair is the best of hundreds, and what is chosen so looks larger than it is: its weight is drawn to this one, which
# counts like so many of its cells.
PAIR, WEIGHT_OF_PAIRS, LENT_TO_PAIRS = "pair", 200.0, 10.0
LEAST_COMMON, MOST_COMMON = 1e-4, 1.0
SETTLED = 0.02  # of the logarithm of a weight
ROWS = 256  # of a matrix that are inverted together
# Of a number: rounds in which its residual variance settles, and those of the smoothing in each.
ROUNDS_OF_NUMBER, SMOOTHED_AT_ONCE, SETTLED_VARIANCE = 10, 3, 1e-3


@dataclass
class Penalised:
    """One term in a fit: its penalties, each with a weight, and where its cells are. `common` is the weight that all
    terms share, and `told` what patients tell of each cell, by which it counts."""

    cells: Cells
    start: int
    size: int
    kind: str
    penalties: list[Matrix]
    weights: list[float] = field(default_factory=list)
    common: float = FIRST_DRAWN
    told: Vector = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.weights = self.weights or [START] * len(self.penalties)
        self.told = self.told if len(self.told) else np.zeros(self.size)

    @property
    def own(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def penalty(self) -> Matrix:
        total = np.diag(RIDGE + self.common * self.told)
        for weight, penalty in zip(self.weights, self.penalties, strict=True):
            total += weight * penalty
        return total


def penalise(terms: Sequence[Cells], attributes: Sequence[Attribute]) -> list[Penalised]:
    """The terms with their penalties, at the weights where a fit begins."""
    found = []
    for term, start in zip(terms, find_starts(terms, attributes), strict=False):
        own = [attributes[index] for index in term.attributes]
        if term.rule:
            listed, kind = [np.eye(2)], "rule"
        elif len(own) == 1:
            listed = _penalise_number(own[0]) if own[0].numeric else [np.eye(own[0].size)]
            kind = f"{'number' if own[0].numeric else 'category'} {len(listed)}"
        else:
            listed, kind = [np.eye(term.count(attributes))], PAIR
        found.append(Penalised(term, start, term.count(attributes), kind, listed))
    return found


def _penalise_number(attribute: Attribute) -> list[Matrix]:
    """Neighbouring intervals differ little, and the curve bends little; what is missing is near the mean."""
    size, first = attribute.size, attribute.first
    listed = [_differ(size, first, 1)]
    if size - first > 3:
        listed.append(_differ(size, first, 2) * (size - first))
    if first:
        missing = np.zeros((size, size))
        missing[0, 0] = 1.0
        listed.append(missing)
    return listed


def _differ(size: int, first: int, order: int) -> Matrix:
    """The squares of differences between neighbours, from a cell on."""
    penalty = np.zeros((size, size))
    steps = np.diff(np.eye(size - first), n=order, axis=0)
    penalty[first:, first:] = steps.T @ steps
    return penalty


@dataclass(frozen=True)
class Solved:
    """The coefficients, intercept first, and their covariance."""

    beta: Vector
    covariance: Matrix


def solve(terms: Sequence[Penalised], gram: Matrix, target: Vector, rounds: int) -> Solved:
    """The minimum of the penalised quadratic; `target` is H beta + g. Weights move for at most so many rounds, and
    after the last one for the next quadratic."""
    for one in terms:
        one.told = np.diag(gram)[one.own].copy()
    for _ in range(rounds):
        covariance = _invert(terms, gram)
        if _move_weights(terms, covariance, target) < SETTLED:
            break
    return Solved(covariance @ target, covariance)


def is_positive(terms: Sequence[Penalised], gram: Matrix) -> bool:
    """Whether the penalised quadratic has a minimum."""
    try:
        np.linalg.cholesky(add_penalties(terms, gram))
    except np.linalg.LinAlgError:
        return False
    return True


def add_penalties(terms: Sequence[Penalised], gram: Matrix) -> Matrix:
    """The Gram with the penalties of all terms."""
    total = gram.copy()
    total[0, 0] += 1e-8
    for term in terms:
        total[term.own, term.own] += term.penalty
    return total


def _invert(terms: Sequence[Penalised], gram: Matrix) -> Matrix:
    covariance = invert(add_penalties(terms, gram))
    return (covariance + covariance.T) / 2


def invert(matrix: Matrix) -> Matrix:
    """The inverse of a positive definite matrix by Cholesky's factor, in blocks of rows: about three quarters of the
    time of a general inverse at a thousand rows."""
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:  # weights have moved since it was positive
        return np.linalg.inv(matrix).astype(np.float64)
    inverse, product = np.zeros_like(factor), np.zeros_like(factor)
    for start in range(0, len(factor), ROWS):
        rows, before = slice(start, start + ROWS), slice(start)
        own = np.linalg.inv(factor[rows, rows])
        inverse[rows, rows] = own
        inverse[rows, before] = -own @ (factor[rows, before] @ inverse[before, before])
        known = inverse[rows, : start + ROWS]
        product[: start + ROWS, : start + ROWS] += known.T @ known
    return product


def _move_weights(terms: Sequence[Penalised], covariance: Matrix, target: Vector) -> float:
    """One step of all weights; the largest change of a logarithm. Terms of a kind lend each other a unit of evidence,
    so that a shape of which little is known is as smooth as the others."""
    beta = covariance @ target
    logs: dict[tuple[str, int], list[float]] = {}
    for term in terms:
        for place, weight in enumerate(term.weights):
            logs.setdefault((term.kind, place), []).append(float(np.log(weight)))
    typical = {key: float(np.exp(np.mean(values))) for key, values in logs.items()}
    moved = tied = variation = 0.0
    for term in terms:
        inverse = np.linalg.inv(term.penalty)
        own, heights = covariance[term.own, term.own], beta[term.own]
        weights = []
        for place, (weight, penalty) in enumerate(zip(term.weights, term.penalties, strict=True)):
            freedom = max(weight * float(np.sum((inverse - own) * penalty)), 0.0)
            rough = float(heights @ penalty @ heights)
            lent, drawn_to = (
                (LENT_TO_PAIRS, WEIGHT_OF_PAIRS) if term.kind == PAIR else (1.0, typical[term.kind, place])
            )
            new = (freedom + lent) / (rough + lent / drawn_to)
            new = min(max(new, weight / LARGEST_FACTOR), weight * LARGEST_FACTOR)
            weights.append(min(max(new, LEAST_WEIGHT), MOST_WEIGHT))
            moved = max(moved, abs(float(np.log(weights[-1] / weight))))
        term.weights = weights
        tied += term.common * float((np.diag(inverse) - np.diag(own)) @ term.told)
        variation += float(heights**2 @ term.told)
    common = min(max(max(tied, 0.0) / max(variation, 1e-12), LEAST_COMMON), MOST_COMMON)
    for term in terms:
        moved = max(moved, abs(math.log(common / term.common)))
        term.common = common
    return moved


def solve_number(
    terms: Sequence[Penalised],
    gram: Matrix,
    gradient: Vector,
    at: Vector,
    squares: float,
    patients: int,
    rising: Sequence[tuple[int, int]],
) -> tuple[Solved, float]:
    """The penalised least squares of a number and its residual deviation, in units of which coefficients are.

    `gradient` and `squares` are sums of residuals in cells and of squared residuals at the coefficients `at`. What they
    are elsewhere follows from the Gram, so that nothing more is asked for.
    """
    variance, least = squares / patients, 1e-9 * squares / patients
    for number in range(ROUNDS_OF_NUMBER):
        scale = math.sqrt(variance)
        target = (gram @ at + gradient) / scale
        solved = solve(terms, gram, target, SMOOTHED_AT_ONCE)
        if number == ROUNDS_OF_NUMBER - 1:
            break
        moved = scale * hold_directions(solved, rising) - at
        left = squares - 2 * float(gradient @ moved) + float(moved @ gram @ moved)
        freedom = min(float(np.sum(solved.covariance * gram)), 0.9 * patients)
        before, variance = variance, max(left / (patients - freedom), least)
        if abs(math.log(variance / before)) < SETTLED_VARIANCE:
            break
    # At the weights that were reached: what is told is the minimum for them.
    covariance = _invert(terms, gram)
    solved = Solved(covariance @ target, covariance)
    return Solved(hold_directions(solved, rising), covariance), scale


def hold_directions(solved: Solved, rising: Sequence[tuple[int, int]]) -> Vector:
    """The coefficients of the same quadratic where for each pair of cells (lower, upper) the upper is not below.

    The dual has one multiplier for each pair; those above zero are found by an active set (Lawson and Hanson, 1974).
    """
    if not rising:
        return solved.beta
    lower, upper = np.array(rising).T
    steps = solved.covariance[:, upper] - solved.covariance[:, lower]
    curve = steps[upper] - steps[lower] + 1e-12 * np.eye(len(lower))
    pull = -(solved.beta[upper] - solved.beta[lower])
    active = np.zeros(len(lower), dtype=np.bool_)
    weights = np.zeros(len(lower))
    for _ in range(3 * len(lower)):
        slope = np.where(active, -np.inf, pull - curve @ weights)
        if slope.max() <= 1e-9:
            break
        active[int(np.argmax(slope))] = True
        while True:
            wanted = np.zeros(len(lower))
            wanted[active] = np.linalg.solve(curve[np.ix_(active, active)], pull[active])
            low = active & (wanted <= 0)
            if not low.any():
                weights = wanted
                break
            length = float(np.min(weights[low] / np.maximum(weights[low] - wanted[low], 1e-300)))
            weights = weights + length * (wanted - weights)
            active &= weights > 1e-12
            weights[~active] = 0.0
    return solved.beta + steps @ weights
