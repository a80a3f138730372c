"""What each hospital finds alone: do its ratios differ from those of others by more than chance explains?

Each hospital fits the regression to its own patients and tells, for each term, the weight 1/error^2, the weight times
the coefficient, and times its square. Sums over hospitals are Cochran's Q and I^2 (Higgins and Thompson 2002). Where a
release shows each hospital's numbers, they are its coefficient and error. A hospital with few events tells nothing, and
of a term that is the same for its patients, or that separates them, nothing either.

Who is protected: nobody beyond what the release says. docs/methods.md, section 9.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import BySite, Conversation
from concilium.records.blocks import Passes, read_block
from concilium.records.columns import label
from concilium.statistics.columns import (
    ROWS_OF_MATRIX,
    Column,
    Matrix,
    RegressionTerms,
    build_at_site,
    check_columns,
    find_dependent,
)
from concilium.statistics.cox_sums import LARGEST_LOG, RiskSets, order_by_time
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.families import FAMILIES, Vector
from concilium.statistics.results import TermBetween
from concilium.statistics.wide_sums import WideSum, hold_overflow, read_wide, refuse_floored, write_wide

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

HAZARDS = "hazards"
OWN_FAMILIES = ("binomial", "gaussian", "poisson", HAZARDS)
# A hospital with fewer events, or fewer patients without, finds no ratio that is worth comparing.
LEAST_EVENTS = 10
MOST_STEPS = 40
CONVERGED = 1e-10
STILL_MOVING = 1e-2
Point = tuple[float, Vector, Matrix]


class AskOwnFits(WideSum, frozen=True, kw_only=True):
    """For each term your own coefficient's weight, weight times coefficient and times its square, and whether you have
    one. `family`: of the outcome, or hazards over `time`."""

    kind: ClassVar[str] = "statistics.own-fits"
    rows_at_once: ClassVar[int] = ROWS_OF_MATRIX

    attributes: tuple[Attribute, ...]
    columns: tuple[Column, ...]
    family: str
    positive: str | int | float | bool | None = None
    time: str = ""

    @property
    def count(self) -> int:
        return 4 * len(self.columns)

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        about = {"time": self.time} if self.family == HAZARDS else {"family": self.family}
        return {"positive": self.positive, **about}

    def check(self, release: Release) -> None:
        check_columns(self.attributes, self.columns)
        if not self.columns or self.family not in OWN_FAMILIES:
            raise MessageError(f"own fits have terms, and are of {', '.join(OWN_FAMILIES)}")
        if (self.positive is None) != (self.family in ("gaussian", "poisson")):
            raise MessageError(
                "own fits of yes or no, and of hazards, have a positive value, and no other has"
            )
        if bool(self.time) != (self.family == HAZARDS):
            raise MessageError("own fits of hazards have a time, and no other has")

    def estimate(self, patients: int, columns: int) -> Workload:
        size, factors = len(self.columns) + 1, sum(len(column.factors) for column in self.columns)
        per_patient = 40 * factors + MOST_STEPS * (16 * size * size + 40 * size + 400) + READ_LABEL
        return estimate_columns(self.attributes, patients) + Workload(
            per_patient * patients + CALL * (60 + factors + MOST_STEPS * 40),
            (48 * (size + factors) + 512) * patients + 64 * self.numbers + 64 * size * size,
        )

    @property
    def goes_by_blocks(self) -> bool:
        return True

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)
        told = np.zeros((4, len(self.columns)))
        order = order_by_time(cohort, self.time) if self.family == HAZARDS else None

        def read(block: slice) -> _OwnCases:
            here = cohort.take_block(block) if order is None else cohort.take(read_block(order, block))
            return self._read(here)

        patients = Passes(len(cohort), read, self.rows_at_once)
        count, events = patients.add(lambda one: np.array([len(one.outcome), one.outcome.sum()]))
        if self._are_enough(int(count), float(events)):
            for place, value, error in _fit(patients, self.family, int(count)):
                weight = error**-2
                told[:, place] = 1.0, weight, weight * value, weight * value**2
        return write_wide(told.ravel())

    def _read(self, cohort: Cohort) -> _OwnCases:
        matrix, rows, _ = build_at_site(self.attributes, self.columns, cohort)
        outcome, times = self._find_outcome(cohort, rows)
        fine = np.isfinite(outcome) & np.isfinite(times) & (times >= 0)
        return _OwnCases(matrix[fine], outcome[fine], times[fine])

    def _find_outcome(self, cohort: Cohort, rows: NDArray[np.int32]) -> tuple[Vector, Vector]:
        times = cohort.view.measured(self.time, rows) if self.time else np.zeros(len(rows))
        if self.positive is None:
            return cohort.view.measured(self.target, rows), times
        column, name = cohort.view.coded(self.target), label(self.positive)
        is_positive = np.array([0.0, *(float(label(value) == name) for value in column.values)])
        return np.take(is_positive, column.codes[rows]), times

    def _are_enough(self, patients: int, events: float) -> bool:
        if self.family == "gaussian":
            return patients >= LEAST_EVENTS + len(self.columns) + 1
        return events >= LEAST_EVENTS and (self.family != "binomial" or patients - events >= LEAST_EVENTS)


@dataclass(frozen=True)
class _OwnCases:
    """Some patients of the hospital; for hazards their times fall."""

    matrix: Matrix
    outcome: Vector
    times: Vector


@dataclass(frozen=True)
class _OwnFit:
    """The patients of one hospital, block by block, with the columns that vary among them."""

    patients: Passes[_OwnCases]
    family: str
    count: int
    varying: NDArray[np.intp]
    mean: Vector
    spread: Vector

    def design(self, one: _OwnCases) -> Matrix:
        """Standardised columns, with an intercept unless it is about hazards."""
        scaled = (one.matrix[:, self.varying] - self.mean) / self.spread
        return scaled if self.family == HAZARDS else np.column_stack([np.ones(len(scaled)), scaled])

    def look(self, at: Vector) -> Point:
        """Likelihood, score and information at coefficients."""
        return self._look_at_hazards(at) if self.family == HAZARDS else self._look_at_outcomes(at)

    def _look_at_hazards(self, at: Vector) -> Point:
        def read(one: _OwnCases) -> tuple[_OwnCases, Matrix, Vector]:
            matrix = np.ascontiguousarray(self.design(one))
            return one, matrix, np.clip(matrix @ at, -LARGEST_LOG, LARGEST_LOG)

        risk_sets = RiskSets(len(at))
        for one, matrix, eta in self.patients.map(read):
            risk_sets.add(one.times, one.times, one.outcome > 0, matrix, eta)
        likelihood, score, information, _ = risk_sets.close()
        return likelihood, score, information + np.triu(information, 1).T

    def _look_at_outcomes(self, at: Vector) -> Point:
        family, size = FAMILIES[self.family], len(at)

        def add(one: _OwnCases) -> Vector:
            design = self.design(one)
            eta = design @ at
            mean = family.mean(eta)
            information = design.T @ (design * family.weight(mean)[:, None])
            likelihood = family.log_likelihood(one.outcome, eta, mean)
            return np.concatenate([[likelihood], (one.outcome - mean) @ design, information.ravel()])

        sums = self.patients.add(add)
        likelihood, score, information = float(sums[0]), sums[1 : size + 1], sums[size + 1 :]
        if family.name == "gaussian":
            # Of unknown variance: the log-likelihood at the best one, and its derivatives.
            scale = max(-2 * likelihood, 1e-300) / max(self.count - size, 1)
            likelihood, score, information = (
                -0.5 * self.count * math.log(scale),
                score / scale,
                information / scale,
            )
        return likelihood, score, information.reshape(size, size)


def _fit(patients: Passes[_OwnCases], family: str, count: int) -> list[tuple[int, float, float]]:
    """The terms that a hospital can tell of, each with its coefficient and error."""
    mean = patients.add(lambda one: one.matrix.sum(axis=0)) / count
    spread = np.sqrt(patients.add(lambda one: ((one.matrix - mean) ** 2).sum(axis=0)) / count)
    varying = np.flatnonzero(spread > 0)
    if not len(varying):
        return []
    own = _OwnFit(patients, family, count, varying, mean[varying], spread[varying])
    first = int(family != HAZARDS)

    def multiply(one: _OwnCases) -> Matrix:
        scaled = own.design(one)[:, first:]
        product: Matrix = scaled.T @ scaled
        return product

    if find_dependent(patients.add(multiply)):
        return []
    at = step = np.zeros(len(varying) + first)
    here = own.look(at)
    for _ in range(MOST_STEPS):
        step = np.linalg.pinv(here[2], hermitian=True) @ here[1]
        if float(step @ here[1]) < CONVERGED:
            break
        there = own.look(at + step)
        while there[0] < here[0] - 1e-10 * abs(here[0]) and np.abs(step).max() > 1e-10:
            step = step / 2
            there = own.look(at + step)
        at, here = at + step, there
    errors = np.sqrt(np.maximum(np.diagonal(np.linalg.pinv(here[2], hermitian=True)), 0.0))
    found = zip(varying.tolist(), at[first:], step[first:], errors[first:], own.spread, strict=True)
    return [
        (place, float(value / unit), float(error / unit))
        for place, value, moved, error, unit in found
        if abs(moved) < STILL_MOVING and error > 0 and math.isfinite(value)
    ]


def ask_between(
    terms: RegressionTerms, about: Mapping[str, Any], family: str, *, by_site: bool
) -> Conversation[list[TermBetween]]:
    """How much the terms' coefficients differ between hospitals; with each hospital's where the release shows them."""
    question = AskOwnFits(**about, attributes=terms.attributes, columns=terms.columns, family=family)
    answers: Mapping[str, NDArray[np.int64]] = {}
    if by_site:
        answers = yield BySite(question)
        total = sum(answers.values(), np.zeros(question.shape, dtype=np.int64))
    else:
        total = yield question
    own = {site: read_wide(answer).reshape(4, -1) for site, answer in answers.items()}
    found = []
    for place, (term, sums) in enumerate(zip(terms.names, read_wide(total).reshape(4, -1).T, strict=True)):
        hospitals, (weight, first, second) = round(sums[0]), sums[1:].tolist()
        if hospitals < 2 or weight <= 0:
            continue
        statistic = max(second - first**2 / weight, 0.0)
        found.append(
            TermBetween(
                term,
                hospitals,
                statistic,
                max(0.0, 1 - (hospitals - 1) / statistic) if statistic else 0.0,
                chi_squared_tail(statistic, hospitals - 1),
                {
                    site: (float(told[2, place] / told[1, place]), float(told[1, place] ** -0.5))
                    for site, told in own.items()
                    if told[0, place]
                },
            )
        )
    return found
