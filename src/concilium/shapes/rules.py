"""Rules of two attributes, found in what curves leave over (docs/methods.md, 10.4).

One question gives residuals and weights in the cells of all pairs of attributes. In each of these tables the house
looks for corners: one attribute below or above a cutoff, or with one value, and the other too. Of the best corners
of all pairs a second question says how they overlap with the curves and with each other. The rules are then taken one
after the other, each by what those before it leave over.

All of it is sums over hospitals: rules are those of the pooled patients, however these are split over hospitals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.shapes.cells import Cells, Vector
from concilium.shapes.pairs import Matrix, Table

FINE = 12  # groups of an attribute's codes among which rules are cut
OF_PAIR = 3  # corners of one table that may become rules
LEAST_SHARE, FEWEST = 0.01, 20  # of the patients a rule holds for, and does not hold for
SURE_OF_CORNER = 3.0  # standard deviations of what chance makes of one corner
DISTINCT = 0.25  # of a rule's information, which curves and other rules must leave


@dataclass(frozen=True)
class Corner:
    """A rule that may join: its cells, and how far residuals are from none, in standard deviations."""

    cells: Cells
    score: float


def list_sides(attribute: Attribute, groups: Sequence[int]) -> NDArray[np.int64]:
    """The conditions on one attribute, [condition, group]: below or above a cutoff, one value, missing."""
    size = max(groups) + 1
    apart = int(attribute.missing and groups.count(0) == 1 and groups[0] == 0)
    singles = np.eye(size, dtype=np.int64)
    if not attribute.numeric:
        return singles
    inner = np.arange(size)
    lower = [(inner >= apart) & (inner < end) for end in range(apart + 1, size)]
    upper = [inner >= start for start in range(apart + 1, size)]
    return np.array([*singles[:apart], *lower, *upper], dtype=np.int64).reshape(-1, size)


def find_corners(
    pair: Cells, attributes: Sequence[Attribute], gradient: Matrix, weight: Matrix, counts: Matrix
) -> list[Corner]:
    """The corners of a table of two attributes in which residuals are furthest from what its rows and columns explain;
    what one explains is taken out before the next is looked for."""
    one, other = (
        list_sides(attributes[index], groups)
        for index, groups in zip(pair.attributes, pair.groups, strict=True)
    )
    if not len(one) or not len(other):
        return []
    table = Table(gradient, weight)
    left = table.left
    # Of each corner the information, and what rows and columns have of it.
    inside = one @ weight @ other.T
    sides = np.concatenate(
        [
            (one[:, None, :] * (weight @ other.T).T[None, :, :]).reshape(-1, len(weight)),
            (other[None, :, :] * (one @ weight)[:, None, :]).reshape(-1, weight.shape[1]),
        ],
        axis=1,
    )
    shared = table.explain(sides).reshape(inside.shape)
    own = np.maximum(inside - shared, 0.0)
    held = one @ counts @ other.T
    total = counts.sum()
    least = max(LEAST_SHARE * total, FEWEST)
    allowed = (
        (held >= least) & (held <= total - least) & (own > DISTINCT * inside * (1 - inside / weight.sum()))
    )
    found = []
    for _ in range(OF_PAIR):
        pull = one @ left @ other.T
        scores = np.where(allowed, pull / np.sqrt(np.maximum(own, 1e-12)), 0.0)
        place = np.unravel_index(int(np.argmax(np.abs(scores))), scores.shape)
        score = float(scores[place])
        if abs(score) < SURE_OF_CORNER:
            break
        a, b = one[place[0]], other[place[1]]
        found.append(Corner(_write(pair, a, b), score))
        left = left - table.take_out(np.outer(a, b) * weight) * float(pull[place] / own[place])
        allowed[place] = False
    return found


def _write(pair: Cells, *sides: NDArray[np.int64]) -> Cells:
    groups = tuple(
        tuple(int(side[group]) for group in codes) for side, codes in zip(sides, pair.groups, strict=True)
    )
    return Cells(pair.attributes, groups, rule=True)


def choose_rules(information: Matrix, pull: Vector, most: int, least: float) -> list[int]:
    """The rules that are taken one after the other while what is left of one is at least so many standard deviations.
    `information` and `pull` are of the coefficients of rules beside those of the curves."""
    chosen: list[int] = []
    own = np.diag(information).copy()
    while len(chosen) < most:
        variance, left = own.copy(), pull.copy()
        if chosen:
            solved = np.linalg.solve(
                information[np.ix_(chosen, chosen)], np.column_stack([pull[chosen], information[chosen]])
            )
            left = pull - information[:, chosen] @ solved[:, 0]
            variance = own - np.einsum("ij,ji->i", information[:, chosen], solved[:, 1:])
        score = np.abs(left) / np.sqrt(np.maximum(variance, 1e-12))
        score[variance < DISTINCT * own] = 0.0
        score[chosen] = 0.0
        best = int(np.argmax(score)) if len(score) else 0
        if not len(score) or score[best] < least:
            break
        chosen.append(best)
    return chosen
