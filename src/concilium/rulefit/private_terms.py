"""The terms of a private fit, from noisy tables that are paid for already: nothing here looks at a patient or costs.

- Shapes (docs/methods.md, 2.12): the log odds of each code of an attribute, smoothed as far as the noise asks for. A
  table holds, for each code, how many patients are negative and positive, each count with noise of known variance. The
  log odds of the codes are the mode of a Gaussian posterior: neighbouring intervals of a number differ little (a random
  walk), values of a category and missing ones lie around the common log odds. How little is chosen by the evidence, so
  that an attribute that cannot be told from noise gets a flat shape.
- Rules (docs/methods.md, 2.11): two or three conditions at the cutoffs, drawn by hashing from a public seed, on the
  attributes whose shapes say most.
- Second moments of the columns. A noisy gradient says where to go, and not how far; asking for a Hessian would cost as
  much again. The tables hold each attribute's distribution, and taking attributes for independent gives every product
  of two columns in closed form. The error in that changes the way to the optimum, never the optimum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.models.threshold import probability
from concilium.protocol.attributes import MISSING, Attribute
from concilium.rulefit.terms import Rule, RuleTerms, tabulate, write_rule

Vector = NDArray[np.float64]

# How far log odds may wander over an attribute's whole range: the candidates among which the evidence chooses.
SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
MOST_ROUNDS = 50
# Noise can leave no patient of a class at all.
LEAST_PATIENTS = 1.0
BEST_ATTRIBUTES = 10
# A condition that nearly everybody or hardly anybody fulfils, and a rule that hardly anybody does, separate nobody.
LEAST_SHARE = 0.15
LEAST_SUPPORT = 0.08
MOST_TRIES = 50
# A column as a product of functions of single attributes; an attribute that it does not look at has no factor.
Product = dict[int, NDArray[np.float64]]


@dataclass(frozen=True)
class Shape:
    """An attribute with its noisy table: the share of the patients with each code, and the log odds of each code as the
    distance from what is common to all, with its standard error. `deviation` is the standard deviation of these
    distances."""

    attribute: Attribute
    shares: Vector
    heights: Vector
    errors: Vector

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
    heights, errors = _smooth(table.astype(np.float64), patients.log_odds, attribute.numeric, variance)
    return Shape(attribute, shares, heights - shares @ heights, errors)


def _smooth(
    table: NDArray[np.float64], log_odds: float, numeric: bool, variance: Vector
) -> tuple[Vector, Vector]:
    """The distance of each code's log odds from the common one: the mode for the spread of the best evidence, and the
    standard deviation of the posterior there."""
    roughness = _penalise(len(table), numeric)
    heights = np.zeros(len(table))
    slope, curve = _linearise(table, log_odds + heights, variance)
    best = max(SPREADS, key=lambda spread: _find_evidence(slope, curve, roughness / spread**2))
    precision = roughness / best**2
    for _ in range(MOST_ROUNDS):
        step = np.linalg.solve(np.diag(curve) + precision, slope - precision @ heights)
        # Far from the mode the quadratic overshoots.
        heights += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
        slope, curve = _linearise(table, log_odds + heights, variance)
    return heights, np.sqrt(np.diag(np.linalg.inv(np.diag(curve) + precision)))


def _penalise(codes: int, numeric: bool) -> NDArray[np.float64]:
    """The precision of heights at spread 1: a random walk over intervals, and all of them around zero."""
    precision = np.eye(codes)
    if numeric:
        intervals = codes - 1
        steps = np.diff(np.eye(codes)[1:], axis=0)
        precision += intervals * steps.T @ steps
        precision[1:, 1:] -= (1 - 1 / intervals) * np.eye(intervals)
    return precision


def _linearise(table: NDArray[np.float64], log_odds: Vector, variance: Vector) -> tuple[Vector, Vector]:
    """Slope and curvature of the log likelihood at these log odds.

    Noise makes counts worth less: q x positive - p x negative has variance npq + (p^2 + q^2) x that of the noise."""
    chance = probability(log_odds)
    spread = np.maximum(table.sum(axis=1), 0.0) * chance * (1 - chance)
    worth = spread / (spread + variance * (chance**2 + (1 - chance) ** 2))
    return worth * ((1 - chance) * table[:, 1] - chance * table[:, 0]), worth * spread


def _find_evidence(slope: Vector, curve: Vector, precision: NDArray[np.float64]) -> float:
    """The log evidence, up to a constant, of a quadratic likelihood around zero under a Gaussian prior."""
    both = np.diag(curve) + precision
    (_, before), (_, after) = np.linalg.slogdet(precision), np.linalg.slogdet(both)
    return 0.5 * float(slope @ np.linalg.solve(both, slope) + before - after)


def draw_rules(shapes: Sequence[Shape], count: int, seed: int) -> list[Rule]:
    """At most so many different rules, in canonical order; attributes stand a chance as large as their deviation."""
    conditions = {index: _list_conditions(each) for index, each in enumerate(shapes)}
    able = [index for index in conditions if conditions[index] and shapes[index].deviation > 0]
    best = sorted(able, key=lambda index: (-shapes[index].deviation, index))[:BEST_ATTRIBUTES]
    sizes = [each.attribute.size for each in shapes]
    rules: set[Rule] = set()
    for turn in range(count * MOST_TRIES):
        if len(rules) >= count or len(best) < 2:
            break
        wanted = min(len(best), 2 + (_hash_uniform(seed, turn, "length") < 0.3))
        left, allowed, support = list(best), {}, 1.0
        for place in range(wanted):
            weights = np.cumsum([shapes[index].deviation for index in left])
            drawn = _hash_uniform(seed, turn, f"attribute {place}") * weights[-1]
            index = left.pop(int(np.searchsorted(weights, drawn)))
            listed = conditions[index]
            codes = listed[int(_hash_uniform(seed, turn, f"condition {place}") * len(listed))]
            allowed[index] = codes
            support *= float(shapes[index].shares[sorted(codes)].sum())
        if support >= LEAST_SUPPORT:
            rules.add(write_rule(allowed, sizes))
    return sorted(rules)


def _list_conditions(shape: Shape) -> list[set[int]]:
    """The codes of every condition on an attribute that separates a fair share of patients: on one side of a cutoff,
    one value or any other; with the missing ones and about them only where they are many."""
    size = shape.attribute.size
    present = set(range(size)) - {MISSING}
    if shape.attribute.numeric:
        one_side = [set(range(1, code)) for code in range(2, size)]
    else:
        one_side = [{code} for code in present]
    conditions = [codes for side in one_side for codes in (side, present - side)]
    if shape.shares[MISSING] >= LEAST_SHARE:
        conditions += [*(codes | {MISSING} for codes in conditions), {MISSING}, present]
    shares = [float(shape.shares[sorted(codes)].sum()) for codes in conditions]
    return [c for c, share in zip(conditions, shares, strict=True) if LEAST_SHARE <= share <= 1 - LEAST_SHARE]


def _hash_uniform(seed: int, turn: int, what: str) -> float:
    """A number from 0 to 1 that follows from the seed."""
    digest = hashlib.sha256(f"{seed}\n{turn}\n{what}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def find_products(terms: RuleTerms, middles: Sequence[NDArray[np.float64]]) -> list[Product]:
    """Every column as a product, the intercept first. `middles`: the value of each code of each attribute."""
    products: list[Product] = [{}]
    for rule in terms.rules:
        products.append(
            {c[0]: tabulate([c], terms.attributes[c[0]].size)[0].astype(np.float64) for c in rule}
        )
    for line in terms.lines:
        held = np.clip(middles[line.attribute], line.low, line.high)
        distance = np.where(np.isnan(held), 0.0, line.scale * (held - line.center))
        products.append({line.attribute: distance})
    products += [{steps.attribute: np.array(steps.heights)} for steps in terms.steps]
    return products


def multiply(products: Sequence[Product], shares: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of each product of two columns under these shares."""
    size = len(products)
    moments = np.ones((size, size))
    for attribute, share in enumerate(shares):
        factors = np.ones((size, len(share)))
        for column, product in enumerate(products):
            if attribute in product:
                factors[column] = product[attribute]
        moments *= (factors * share) @ factors.T
    return moments
