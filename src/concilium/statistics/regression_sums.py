"""What a hospital adds to a regression: likelihood, score and information at the house's coefficients.

All of it are sums over patients, so that Newton's steps over the sums of all hospitals are those of the pooled table.

With intercepts of the hospitals' own, each hospital finds its intercept itself at the coefficients asked about, and
adds the *profile* likelihood: its score, and its information less what the intercept explains (the Schur complement).
Coefficients and standard errors are then those of the pooled regression with one indicator per hospital, and no
hospital tells its intercept; sums of intercepts, weighted by patients, tell their mean and spread. A hospital where
everybody, or nobody, has the outcome has no finite intercept, and adds nothing, as in the pooled fit.

With random intercepts, b + t u at a hospital whose u is standard normal, the hospital adds the likelihood of its
patients over all u (Gauss and Hermite's rule about the likeliest u, exact for `gaussian`). Hospitals are independent,
so that it is a sum over them. Score and information, of t as of any coefficient, are means over u (Fisher's and Louis'
identities). No hospital tells its u.

Counts of the family `negative-binomial` have the variance m + a m^2; log a is the last coefficient, with its part of
score and information.

Under `private` the claim is as for any noisy sum: each patient is protected, from everybody outside the hospital, at
the price that the site works out from the question. A patient's row is at most sqrt(`squared_norm`) long, its residual
and its weight lie within the family's reach, so that score and scaled information together move by at most
`bound`; every share is rounded to the grid by itself and added up in whole numbers (`widen_sensitivity`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import CALL, LABELLING, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, PRIVATE, Sensitivity
from concilium.records.blocks import Passes, make_room, read_block, write_block
from concilium.records.columns import label
from concilium.statistics.columns import (
    ROWS_OF_MATRIX,
    Column,
    build_at_site,
    check_columns,
    pack_triangle,
    refuse_endless,
    squared_norm,
    unpack_triangle,
)
from concilium.statistics.families import (
    COUNTS,
    FAMILIES,
    LARGEST_COUNT,
    LARGEST_LOG,
    NEGATIVE_BINOMIAL,
    OutcomeFamily,
    Vector,
)
from concilium.statistics.wide_sums import (
    LARGEST,
    WideSum,
    hold_overflow,
    read_wide,
    refuse_floored,
    write_wide,
)

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_PLACES = 20
MOST_PATIENTS = 1 << 26
FIRST = 9  # numbers before the columns' sums
LARGEST_REACH, LEAST_REACH = 1e6, 1e-9
INTERCEPT_STEPS = 100
# Of log a: beyond, counts follow Poisson's law, or none.
LARGEST_SPREAD = 12.0
# Nodes of Gauss and Hermite's rule: more change no estimate in its seventh digit.
NODES = 25


class AskRegression(WideSum, frozen=True, kw_only=True):
    """Your likelihood, score and information at these coefficients, intercept first unless it is your own.

    `robust`: and the outer products of scores, by patient and of the whole hospital. `inverse`: of the information of
    all hospitals, for Firth's correction of the score. `random`: intercepts are random, and the coefficients end with
    their deviation, and with the logarithm of that of residuals where they have one. Of a negative binomial they end
    with log a.
    """

    kind: ClassVar[str] = "statistics.regression"
    rows_at_once: ClassVar[int] = ROWS_OF_MATRIX
    releases: ClassVar[frozenset[str]] = PLAIN | PRIVATE

    attributes: tuple[Attribute, ...]
    columns: tuple[Column, ...]
    family: str
    at: tuple[float, ...]
    positive: str | int | float | bool | None = None
    own_intercepts: bool = False
    random: bool = False
    robust: bool = False
    inverse: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 1.0
    places: int = 0

    @property
    def size(self) -> int:
        """How many coefficients there are, with the intercept and deviations."""
        more = self.random * (1 + (self.family == "gaussian")) + (self.family == NEGATIVE_BINOMIAL)
        return len(self.columns) + (not self.own_intercepts) + more

    @property
    def _triangle(self) -> int:
        return self.size * (self.size + 1) // 2

    @property
    def count(self) -> int:
        return FIRST + len(self.columns) + self.size + self._triangle * (3 if self.robust else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.noise is None:
            return super().shape
        return (self.size + self._triangle + (self.family == "gaussian"),)

    @property
    def binary_places(self) -> int:
        return super().binary_places if self.noise is None else self.places

    @property
    def largest(self) -> int:
        if self.noise is None:
            return LARGEST
        return math.ceil(float(self.bound) * (1 << self.places) + 1) * MOST_PATIENTS

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"family": self.family, "positive": self.positive}

    @property
    def shrinks(self) -> tuple[float, float]:
        """What information and squared residual are multiplied by under noise: each weighs half of what the score
        does."""
        residual, weight = FAMILIES[self.family].reach(self.low, self.high)
        return residual / (2 * weight * math.sqrt(squared_norm(self.columns))), math.sqrt(
            squared_norm(self.columns)
        ) / (2 * residual)

    @property
    def bound(self) -> Fraction:
        """How far one patient can move the noisy answer (L2)."""
        residual = Fraction(FAMILIES[self.family].reach(self.low, self.high)[0])
        parts = Fraction(5, 4) + (Fraction(1, 4) if self.family == "gaussian" else 0)
        squared = residual**2 * squared_norm(self.columns) * parts
        # Of the factors above, floats: a trifle more for their rounding.
        return Fraction(math.sqrt(squared) * (1 + 1e-9))

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(widen_sensitivity(self.bound**2, self.numbers, self.places))

    def check(self, release: Release) -> None:
        check_columns(self.attributes, self.columns)
        if self.family not in FAMILIES:
            raise MessageError(f"a regression is of a family among {', '.join(FAMILIES)}")
        if (self.family == "binomial") != (self.positive is not None):
            raise MessageError("a binomial regression has a positive value, and no other has")
        if len(self.at) != self.size or not np.isfinite(self.at).all():
            raise MessageError("a regression has a finite coefficient for each column")
        if self.inverse and (len(self.inverse) != self._triangle or self.own_intercepts or self.noise):
            raise MessageError("Firth's correction needs the inverse information, and one intercept for all")
        if self.random and (self.own_intercepts or self.robust or self.inverse or self.noise):
            raise MessageError("random intercepts have errors by the model, and no noise")
        plain = not (self.own_intercepts or self.random or self.robust or self.inverse or self.noise)
        if self.family == NEGATIVE_BINOMIAL and not plain:
            raise MessageError(
                "a negative binomial has one intercept for all, errors by the model, and no noise"
            )
        if not 0 <= self.places <= MOST_PLACES:
            raise MessageError(f"a private regression has 0 to {MOST_PLACES} binary places")
        if not (-LARGEST_REACH < self.low < self.high < LARGEST_REACH):
            raise MessageError("the ends of an outcome must rise, and be no further than a million")
        if self.high - self.low < LEAST_REACH:  # what is divided by it would overflow
            raise MessageError("the ends of an outcome must be apart")
        if self.family in COUNTS and self.low < 0:
            raise MessageError("a count is never below zero")
        if self.noise is not None:
            if self.own_intercepts or self.robust:
                raise MessageError("a private regression has one intercept for all, and model-based errors")
            refuse_endless(self.columns)

    @property
    def adds_blocks(self) -> bool:
        return self.noise is not None

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        size, factors = self.size, sum(len(column.factors) for column in self.columns)
        work = estimate_columns(self.attributes, patients, each_by_itself=self.noise is not None)
        triangles = 12 if self.noise is not None else 4 * (3 if self.robust else 1)
        per_patient = 40 * factors + triangles * size * size + 8 * size + 400 + READ_LABEL
        steps = 60 * INTERCEPT_STEPS * (self.own_intercepts or self.random) + 60 * NODES * self.random
        if self.family == NEGATIVE_BINOMIAL:
            work += Workload(100 * LARGEST_COUNT, 64 * LARGEST_COUNT)
        return work + Workload(
            (per_patient + steps) * patients + CALL * (40 + 2 * factors + 2 * size * size),
            (24 * (len(self.columns) + factors) + 24 * size + 256 + LABELLING) * patients + 64 * self.numbers,
        )

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if self.noise is not None:
            return self._compute_shares(cohort)
        refuse_floored(cohort)
        patients = Passes(len(cohort), lambda rows: self._read(cohort.take_block(rows)), self.rows_at_once)
        site = _SiteFit(FAMILIES[self.family], patients, self, len(cohort), cohort.view.room)
        if self.random:
            return write_wide(site.add_up_random())
        if self.family == NEGATIVE_BINOMIAL:
            return write_wide(site.add_up_counts())
        return write_wide(site.add_up_around() if self.own_intercepts else site.add_up())

    def _read(self, cohort: Cohort) -> _Cases:
        matrix, rows, left_out = build_at_site(self.attributes, self.columns, cohort)
        y = self._find_outcome(cohort, rows)
        known = FAMILIES[self.family].is_outcome(y)
        if not known.all():
            matrix, y = matrix[known], y[known]
        return _Cases(matrix, y, left_out + int((~known).sum()))

    def _find_outcome(self, cohort: Cohort, rows: NDArray[np.int32]) -> Vector:
        if self.positive is None:
            return cohort.view.measured(self.target, rows)
        column = cohort.view.coded(self.target)
        name = label(self.positive)
        is_positive = np.array([0.0, *(float(label(value) == name) for value in column.values)])
        return np.take(is_positive, column.codes[rows])

    def _compute_shares(self, cohort: Cohort) -> NDArray[np.integer]:
        """Score, information and squared residual of each patient, on the grid. No matrix product: it may round a
        patient's numbers by how many others there are."""
        family = FAMILIES[self.family]
        matrix, rows, _ = build_at_site(self.attributes, self.columns, cohort)
        y = self._find_outcome(cohort, rows)
        known = family.is_outcome(y)
        matrix, y = matrix[known], np.clip(y[known], self.low, self.high)
        columns = [np.ones(len(y)), *matrix.T]
        eta = np.zeros(len(y))
        for value, column in zip(self.at, columns, strict=True):
            eta += value * column
        mean = np.clip(family.mean(eta), self.low, self.high)
        residual = y - mean
        weight = np.clip(family.weight(mean), 0, family.reach(self.low, self.high)[1])
        steps, (shrink, shrink_squares) = 2.0**self.places, self.shrinks

        def add(shares: Vector) -> int:
            return int(np.rint(shares * steps).astype(np.int64).sum())

        words = [add(residual * column) for column in columns]
        for place, one in enumerate(columns):
            scaled = weight * one * shrink
            words += [
                add(scaled * other * (1.0 if other is one else math.sqrt(2))) for other in columns[place:]
            ]
        if self.family == "gaussian":
            words.append(add(residual**2 * shrink_squares))
        return np.array(words, dtype=np.int64)

    def read(self, total: NDArray[np.int64], variance: float) -> NoisySums:
        """What the sum says under noise; `variance` is that of the noise in a word, as it was really added."""
        reals = np.ldexp(total.astype(np.float64), -self.places)
        deviation = math.ldexp(math.sqrt(variance), -self.places)
        shrink, shrink_squares = self.shrinks
        packed = reals[self.size : self.size + self._triangle] / shrink
        rows, across = np.triu_indices(self.size)
        packed = np.where(rows == across, packed, packed / math.sqrt(2))
        squares = float(reals[-1] / shrink_squares) if self.family == "gaussian" else 0.0
        information = unpack_triangle(packed, self.size)
        return NoisySums(reals[: self.size], information, squares, deviation, deviation / shrink)


@dataclass(frozen=True)
class _Cases:
    """Some patients of the hospital; others have a value missing."""

    matrix: NDArray[np.float64]
    y: Vector
    left_out: int

    @property
    def design(self) -> NDArray[np.float64]:
        """The columns after an intercept."""
        return np.column_stack([np.ones(len(self.y)), self.matrix])

    @property
    def counts(self) -> list[float]:
        return [len(self.y), self.left_out, self.y.sum(), (self.y**2).sum()]


def _start(counts: Vector, likelihood: float, own: Sequence[float]) -> list[float]:
    """The first numbers of an answer."""
    return [counts[0], counts[1], likelihood, counts[2], counts[3], *own]


@dataclass(frozen=True)
class _SiteFit:
    """The patients of one hospital at the coefficients of a question, `rows` at most."""

    family: OutcomeFamily
    patients: Passes[_Cases]
    question: AskRegression
    rows: int
    room: Path | None

    def add_up(self) -> Vector:
        """Sums with one intercept for all."""
        at, size = np.array(self.question.at), self.question.size

        def add(one: _Cases) -> Vector:
            eta = one.matrix @ at[1:] + at[0]
            mean = self.family.mean(eta)
            likelihood = self.family.log_likelihood(one.y, eta, mean)
            sums = self._add_scores(one.design, one.y - mean, mean)
            return np.concatenate([[*one.counts, likelihood], one.matrix.sum(axis=0), sums])

        return self._close(self.patients.add(add), [0.0] * 4, size)

    def add_up_around(self) -> Vector:
        """The same around the intercept that the hospital finds itself."""
        at, size = np.array(self.question.at), self.question.size
        offset, y, counts = self._keep(at)
        intercept = self._find_intercept(offset, y)
        if not math.isfinite(intercept):  # of a certain outcome: it adds nothing but its patients
            nothing = np.zeros(self.question.count - FIRST - len(at))
            return np.concatenate([_start(counts, 0.0, [0.0] * 4), counts[4:], nothing])

        def weigh(one: _Cases) -> Vector:
            weight = self.family.weight(self.family.mean(one.matrix @ at + intercept))
            return np.concatenate([[weight.sum()], weight @ one.matrix])

        weights = self.patients.add(weigh)
        # What is left of each column once the hospital's own intercept is taken out.
        mean_row = weights[1:] / weights[0] if weights[0] else np.zeros(len(at))

        def add(one: _Cases) -> Vector:
            eta = one.matrix @ at + intercept
            mean = self.family.mean(eta)
            likelihood = self.family.log_likelihood(one.y, eta, mean)
            sums = self._add_scores(one.matrix - mean_row, one.y - mean, mean)
            return np.concatenate([[*one.counts, likelihood], one.matrix.sum(axis=0), sums])

        count = counts[0]
        return self._close(
            self.patients.add(add), [1.0, count, count * intercept, count * intercept**2], size
        )

    def _add_scores(self, design: NDArray[np.float64], residual: Vector, mean: Vector) -> Vector:
        """Score and information, and outer products of scores where they are asked for."""
        question, weight = self.question, self.family.weight(mean)
        if question.inverse:
            inverse = unpack_triangle(question.inverse, question.size)
            leverage = weight * np.einsum("ij,ij->i", design @ inverse, design)
            residual = residual + leverage * (0.5 - mean)
        parts = [residual @ design, pack_triangle(design.T @ (design * weight[:, None]))]
        if question.robust:
            by_patient = design * residual[:, None]
            parts.append(pack_triangle(by_patient.T @ by_patient))
        return np.concatenate(parts)

    def _close(self, sums: Vector, own: Sequence[float], size: int) -> Vector:
        """The answer, from what was added up over patients."""
        columns = len(self.question.columns)
        score = sums[5 + columns : 5 + columns + size]
        parts: list[Any] = [_start(sums, sums[4], own), sums[5:]]
        parts += [pack_triangle(np.outer(score, score))] if self.question.robust else []
        return np.concatenate(parts)

    def _keep(self, at: Vector) -> tuple[Vector, Vector, Vector]:
        """The linear predictor and outcome of each patient, without an intercept; and counts, and sums of columns."""
        offset, y = (make_room(self.rows, np.float64, self.room) for _ in range(2))
        counts = np.zeros(4 + len(self.question.columns))
        for one, own in self.patients.map(lambda one: (one, one.matrix @ at)):
            here = slice(int(counts[0]), int(counts[0]) + len(own))
            write_block(offset, here, own)
            write_block(y, here, one.y)
            counts += np.concatenate([one.counts, one.matrix.sum(axis=0)])
        count = int(counts[0])
        return offset[:count], y[:count], counts

    def add_up_random(self) -> Vector:
        """The same over all intercepts that the hospital may have."""
        question, family = self.question, self.family
        *b, deviation = question.at[: len(question.columns) + 2]
        error = math.exp(np.clip(question.at[-1], -50, 50)) if family.name == "gaussian" else 1.0
        precision = error**-2
        offset, y, counts = self._keep(np.array(b[1:]))
        nodes, likelihood, posterior = self._integrate(offset, y, b[0], deviation, error)
        size, count = len(question.columns) + 1, counts[0]
        first = size + 1 + (family.name == "gaussian")

        def add(one: _Cases) -> Vector:
            design, y = one.design, one.y
            own = design @ np.array(b)
            scores, weights = np.zeros((len(nodes), first)), np.zeros((3, len(y)))
            for node, share, score in zip(nodes.tolist(), posterior.tolist(), scores, strict=True):
                mean = family.mean(own + deviation * node)
                residual, weight = (y - mean) * precision, share * precision * family.weight(mean)
                score[:size], score[size] = residual @ design, node * residual.sum()
                weights += weight * np.array([1.0, node, node**2])[:, None]
                if first > size + 1:
                    score[-1] = (residual**2).sum() / precision - len(y)
            information = np.zeros((first, first))
            information[:size, :size] = design.T @ (design * weights[0][:, None])
            information[size, :size] = information[:size, size] = weights[1] @ design
            information[size, size] = weights[2].sum()
            return np.concatenate([scores.ravel(), information.ravel()])

        sums = self.patients.add(add)
        scores = sums[: len(nodes) * first].reshape(len(nodes), first)
        information = sums[len(nodes) * first :].reshape(first, first)
        if first > size + 1:
            information[-1, :-1] = information[:-1, -1] = 2 * posterior @ scores[:, :-1]
            information[-1, -1] = 2 * posterior @ (scores[:, -1] + count)
        average = posterior @ scores
        apart = scores - average
        information = information - apart.T @ (apart * posterior[:, None])
        start = _start(counts, likelihood, [bool(count), 0.0, 0.0, 0.0])
        return np.concatenate([start, counts[4:], average, pack_triangle(information)])

    def add_up_counts(self) -> Vector:
        """The same of a negative binomial with 1/a = r. Gammas of counts are sums over the whole numbers below."""
        question = self.question
        r = math.exp(-np.clip(question.at[-1], -LARGEST_SPREAD, LARGEST_SPREAD))
        size = len(question.columns) + 1

        def add(one: _Cases) -> Vector:
            design, y = one.design, one.y
            eta = np.clip(design @ np.array(question.at[:-1]), -LARGEST_LOG, LARGEST_LOG)
            mean, below = np.exp(eta), np.arange(y.max(initial=0.0))
            often = np.bincount(y.astype(np.int64), minlength=len(below) + 1)[::-1].cumsum()[::-1][1:]
            rising, falling, bending, constant = (
                float(often @ one)
                for one in (np.log1p(below / r), 1 / (r + below), -((r + below) ** -2.0), np.log1p(below))
            )
            away, all_ = y - mean, r + mean
            likelihood = rising + float(y @ eta - (y + r) @ np.log1p(mean / r)) - constant
            slope = falling - float(np.log1p(mean / r).sum() + (away / all_).sum())
            bend = bending + float((mean / (r * all_)).sum() + (away / all_**2).sum())
            information = np.zeros((size + 1, size + 1))
            information[:size, :size] = design.T @ (design * (mean * r * (r + y) / all_**2)[:, None])
            information[:size, size] = r * (away * mean / all_**2) @ design
            information[size, size] = -(r * slope + r**2 * bend)
            score = [*((away * r / all_) @ design), -r * slope]
            return np.concatenate(
                [[*one.counts, likelihood], one.matrix.sum(axis=0), score, pack_triangle(information)]
            )

        sums = self.patients.add(add)
        return np.concatenate([_start(sums, sums[4], [bool(sums[0]), 0.0, 0.0, 0.0]), sums[5:]])

    def _integrate(
        self, offset: Vector, y: Vector, intercept: float, deviation: float, error: float
    ) -> tuple[Vector, float, Vector]:
        """Intercepts in their deviations, the logarithm of the likelihood over all of them, and the share of each."""
        family, count = self.family, len(y)
        rows = Passes(count, lambda block: (read_block(offset, block) + intercept, read_block(y, block)))

        def find_height(node: float) -> float:
            def add(one: tuple[Vector, Vector]) -> Vector:
                eta = one[0] + deviation * node
                return np.array([family.log_likelihood(one[1], eta, family.mean(eta))])

            return float(rows.add(add)[0]) / error**2 - count * math.log(error) - node**2 / 2

        def find_slope(node: float) -> tuple[float, float]:
            def add(one: tuple[Vector, Vector]) -> Vector:
                mean = family.mean(one[0] + deviation * node)
                return np.array([(one[1] - mean).sum(), family.weight(mean).sum()])

            away, weight = rows.add(add).tolist()
            return deviation * away / error**2 - node, 1 + deviation**2 * weight / error**2

        mode, height = 0.0, find_height(0.0)
        for _ in range(INTERCEPT_STEPS):
            slope, bend = find_slope(mode)
            step = slope / bend
            while (there := find_height(mode + step)) < height and abs(step) > 1e-12:
                step /= 2
            mode, height = mode + step, max(height, there)
            if abs(step) <= 1e-12:
                break
        bend = find_slope(mode)[1]
        points, weights = np.polynomial.hermite.hermgauss(NODES)
        nodes = mode + points * math.sqrt(2 / bend)
        heights = np.array([find_height(node) for node in nodes.tolist()])
        logs = np.log(weights) + points**2 + heights - 0.5 * math.log(math.pi * bend)
        likelihood = float(np.logaddexp.reduce(logs))
        return nodes, likelihood, np.exp(logs - likelihood)

    def _find_intercept(self, offset: Vector, y: Vector) -> float:
        """The intercept at which the hospital's residuals add up to zero; infinite where all outcomes are alike."""
        rows = Passes(len(y), lambda block: (read_block(offset, block), read_block(y, block)))
        count, total = len(y), float(rows.add(lambda one: np.array([one[1].sum()]))[0])
        if not count:
            return -math.inf
        if self.family.name == "gaussian":
            return float(rows.add(lambda one: np.array([(one[1] - one[0]).sum()]))[0]) / count
        if total == 0 or (self.family.name == "binomial" and total == count):
            return -math.inf if total == 0 else math.inf
        if self.family.name == "poisson":
            return math.log(total) - float(
                np.logaddexp.reduce([*rows.map(lambda one: np.logaddexp.reduce(one[0]))])
            )
        # Bracketed: Newton alone may run away where nearly all outcomes are alike.
        share = math.log(total / (count - total))
        ends = np.array([*rows.map(lambda one: (one[0].min(), one[0].max()))])
        low, high = share - float(ends[:, 1].max()), share - float(ends[:, 0].min())
        intercept = (low + high) / 2
        for _ in range(INTERCEPT_STEPS):

            def add(one: tuple[Vector, Vector], here: float = intercept) -> Vector:
                mean = self.family.mean(one[0] + here)
                return np.array([mean.sum(), self.family.weight(mean).sum()])

            expected, curve = rows.add(add).tolist()
            excess = expected - total
            low, high = (low, intercept) if excess > 0 else (intercept, high)
            step = intercept - excess / curve if curve > 0 else low
            step = step if low <= step <= high else (low + high) / 2
            if abs(step - intercept) <= 1e-14 * max(1.0, abs(step)):
                return step
            intercept = step
        return intercept


@dataclass(frozen=True)
class RegressionSums:
    """The sums over all hospitals. `robust` and `clustered` are outer products of scores, where they were asked."""

    patients: int
    left_out: int
    likelihood: float
    outcomes: float
    squares: float
    own_intercepts: int
    intercepts: tuple[float, float, float]
    columns: Vector
    score: Vector
    information: NDArray[np.float64]
    robust: NDArray[np.float64] | None = None
    clustered: NDArray[np.float64] | None = None


def read_regression(question: AskRegression, total: NDArray[np.int64]) -> RegressionSums:
    """What the sites' numbers, added up, say."""
    reals = read_wide(total)
    size, triangle = question.size, question.size * (question.size + 1) // 2
    ends = np.cumsum([FIRST, len(question.columns), size, *[triangle] * (3 if question.robust else 1)])
    first, columns, score, *squares = np.split(reals, ends[:-1])
    matrices = [unpack_triangle(packed, size) for packed in squares]
    return RegressionSums(
        round(first[0]),
        round(first[1]),
        float(first[2]),
        float(first[3]),
        float(first[4]),
        round(first[5]),
        (float(first[6]), float(first[7]), float(first[8])),
        columns,
        score,
        *matrices,
    )


@dataclass(frozen=True)
class NoisySums:
    """What a private question tells: score, information, squared residuals, and the standard deviations of noise in
    a score and in a number of the information."""

    score: Vector
    information: NDArray[np.float64]
    squares: float
    noise: float
    noise_of_information: float
