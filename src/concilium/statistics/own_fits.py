"""What each hospital finds alone: do its ratios differ from those of others by more than chance explains?

Each hospital fits the regression to its own patients and tells, for each term, the weight 1/error^2, the weight times
the coefficient, and times its square. Sums over hospitals are Cochran's Q and I^2 (Higgins and Thompson 2002). Where a
release shows each hospital's numbers, they are its coefficient and error. A hospital with few events tells nothing, and
of a term that is the same for its patients, or that separates them, nothing either.

Who is protected: nobody beyond what the release says. docs/methods.md, section 9.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import CALL, READ_LABEL, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import BySite, Conversation
from concilium.records.columns import label
from concilium.statistics.columns import (
    Column,
    Matrix,
    RegressionTerms,
    build_at_site,
    check_columns,
    find_dependent,
)
from concilium.statistics.cox_sums import LARGEST_LOG, add_efron
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

    @hold_overflow()
    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)
        matrix, rows, _ = build_at_site(self.attributes, self.columns, cohort)
        told = np.zeros((4, len(self.columns)))
        outcome, times = self._find_outcome(cohort, rows)
        fine = np.isfinite(outcome) & np.isfinite(times) & (times >= 0)
        matrix, outcome, times = matrix[fine], outcome[fine], times[fine]
        if self._are_enough(outcome):
            for place, value, error in _fit(
                matrix, self._choose_look(outcome, times), self.family != HAZARDS
            ):
                weight = error**-2
                told[:, place] = 1.0, weight, weight * value, weight * value**2
        return write_wide(told.ravel())

    def _find_outcome(self, cohort: Cohort, rows: NDArray[np.int32]) -> tuple[Vector, Vector]:
        times = cohort.view.measured(self.time, rows) if self.time else np.zeros(len(rows))
        if self.positive is None:
            return cohort.view.measured(self.target, rows), times
        column, name = cohort.view.coded(self.target), label(self.positive)
        is_positive = np.array([0.0, *(float(label(value) == name) for value in column.values)])
        return np.take(is_positive, column.codes[rows]), times

    def _are_enough(self, outcome: Vector) -> bool:
        patients, events = len(outcome), float(outcome.sum())
        if self.family == "gaussian":
            return patients >= LEAST_EVENTS + len(self.columns) + 1
        return events >= LEAST_EVENTS and (self.family != "binomial" or patients - events >= LEAST_EVENTS)

    def _choose_look(self, outcome: Vector, times: Vector) -> Callable[[Matrix, Vector], Point]:
        """Likelihood, score and information of columns at coefficients."""
        if self.family == HAZARDS:
            order = np.argsort(-times, kind="stable")
            falling, events, clock = times[order], outcome[order] > 0, np.zeros(len(times))

            def look_at_hazards(design: Matrix, at: Vector) -> Point:
                sorted_ = np.ascontiguousarray(design[order])
                eta = np.clip(sorted_ @ at, -LARGEST_LOG, LARGEST_LOG)
                likelihood, score, information, _ = add_efron(falling, clock, events, sorted_, eta)
                return likelihood, score, information + np.triu(information, 1).T

            return look_at_hazards
        family = FAMILIES[self.family]

        def look(design: Matrix, at: Vector) -> Point:
            eta = design @ at
            mean = family.mean(eta)
            score = (outcome - mean) @ design
            information: Matrix = design.T @ (design * family.weight(mean)[:, None])
            likelihood = family.log_likelihood(outcome, eta, mean)
            if family.name == "gaussian":
                # Of unknown variance: the log-likelihood at the best one, and its derivatives.
                scale = max(-2 * likelihood, 1e-300) / max(len(outcome) - design.shape[1], 1)
                return -0.5 * len(outcome) * math.log(scale), score / scale, information / scale
            return likelihood, score, information

        return look


def _fit(
    matrix: Matrix, look: Callable[[Matrix, Vector], Point], intercept: bool
) -> list[tuple[int, float, float]]:
    """The terms that a hospital can tell of, each with its coefficient and error."""
    spread = matrix.std(axis=0)
    varying = np.flatnonzero(spread > 0)
    if not len(varying):
        return []
    scaled = (matrix[:, varying] - matrix[:, varying].mean(axis=0)) / spread[varying]
    if find_dependent(scaled.T @ scaled):
        return []
    design = np.column_stack([np.ones(len(scaled)), scaled]) if intercept else scaled
    at, step = np.zeros(design.shape[1]), np.zeros(design.shape[1])
    here = look(design, at)
    for _ in range(MOST_STEPS):
        step = np.linalg.pinv(here[2], hermitian=True) @ here[1]
        if float(step @ here[1]) < CONVERGED:
            break
        there = look(design, at + step)
        while there[0] < here[0] - 1e-10 * abs(here[0]) and np.abs(step).max() > 1e-10:
            step = step / 2
            there = look(design, at + step)
        at, here = at + step, there
    errors = np.sqrt(np.maximum(np.diagonal(np.linalg.pinv(here[2], hermitian=True)), 0.0))
    first = int(intercept)
    found = zip(varying.tolist(), at[first:], step[first:], errors[first:], spread[varying], strict=True)
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
