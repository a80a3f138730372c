"""What a site adds to a fit: loss, gradient and Hessian at coefficients that the house proposes (METHODS, section 2).

One question does a whole step: the loss at several candidates (steps of different length), and the gradient of all
columns and the Hessian of the working columns at the first of them. All are sums over patients, so that the house adds
them up over sites, and they are the same under `exact` and `masked` to the last bit: numbers travel in fixed point.

Neither release protects a patient: enough exact gradients give back every outcome. `masked` hides which hospital a
number comes from, and nothing else; the card says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.held_out import Part
from concilium.rulefit.design import Design, build_at_site
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.terms import Terms, read_terms

MOST_CANDIDATES = 100
MOST_WORKING = 2000
# Sums are held to this; with the binary places below, the sum over all sites fits 63 bits.
BOUND = 2.0**30
MOST_PLACES = 32


class Coefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The coefficients that are not zero."""

    intercept: float = 0.0
    columns: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


class AskFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Your loss at these coefficients; your gradient and the Hessian of the working columns at the first of them."""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked"})
    additive: ClassVar[bool] = True

    query: str
    target: str
    outcome: Outcome
    terms: bytes
    candidates: tuple[Coefficients, ...]
    gradient: bool = True
    working: tuple[int, ...] | None = None
    places: int = 24
    part: Part | None = None

    @property
    def columns(self) -> Terms:
        return read_terms(self.terms)

    @property
    def numbers(self) -> int:
        working = 0 if self.working is None else len(self.working) + 1
        return (
            1
            + len(self.candidates)
            + (len(self.columns) + 1 if self.gradient else 0)
            + working * (working + 1) // 2
        )

    @property
    def largest(self) -> int:
        return bound_reals(self.places)

    def check(self, release: str) -> None:
        terms = len(self.columns)
        self.outcome.check()
        if not 1 <= len(self.candidates) <= MOST_CANDIDATES or not 0 <= self.places <= MOST_PLACES:
            raise MessageError(f"a fit asks about 1 to {MOST_CANDIDATES} candidates")
        for candidate in self.candidates:
            check_coefficients(candidate, terms)
        if self.working is not None:
            check_columns(self.working, terms)
            if len(self.working) > MOST_WORKING:
                raise MessageError(f"a fit works on at most {MOST_WORKING} columns at a time")
        if self.part is not None:
            self.part.check()

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        refuse_floored(cohort)
        design = build_at_site(self.terms, cohort, (self.query, self.target, self.part))
        outcome = self.outcome.at_site(cohort, self.target)
        predictor = predict(design, self.candidates)
        parts: list[Any] = [[len(cohort)], self.outcome.loss(outcome, predictor).sum(axis=0)]
        first = predictor[:, 0]
        if self.gradient:
            residual = self.outcome.residual(outcome, first)
            parts += [[residual @ design.ones], design.add_up(residual)]
        if self.working is not None:
            hessian = design.cross(self.working, self.outcome.curvature(first))
            parts.append(hessian[np.triu_indices(len(hessian))])
        return write_reals(np.concatenate(parts), self.places)


def refuse_floored(cohort: Cohort) -> None:
    """MessageError where a site leaves small counts out: a rule may hold for one of its patients, and sums over the
    patients of every rule give such counts away."""
    if cohort.branch_floor:
        raise MessageError(
            "this site leaves branches of few patients out, and sums over the patients of rules cannot do that"
        )
    if cohort.guard.on:
        raise MessageError(
            "this site leaves small counts out of what it tells exactly, and a gradient cannot do that: ask masked"
        )


@dataclass(frozen=True)
class Sums:
    """The sums over all sites."""

    patients: float
    losses: NDArray[np.float64]
    gradient: NDArray[np.float64] | None
    hessian: NDArray[np.float64] | None


def read_sums(question: AskFit, total: NDArray[np.int64]) -> Sums:
    """What the sites' numbers, added up, say; gradient and Hessian have the intercept first."""
    reals = np.ldexp(total.astype(np.float64), -question.places)
    count = len(question.candidates)
    at = 1 + count
    gradient = None
    if question.gradient:
        gradient = reals[at : at + len(question.columns) + 1]
        at += len(question.columns) + 1
    hessian = None
    if question.working is not None:
        size = len(question.working) + 1
        hessian = np.zeros((size, size))
        hessian[np.triu_indices(size)] = reals[at:]
        hessian = hessian + np.triu(hessian, 1).T
    return Sums(float(reals[0]), reals[1 : 1 + count], gradient, hessian)


def predict(design: Design, candidates: Sequence[Coefficients]) -> NDArray[np.float64]:
    """The linear predictor of each patient at each candidate."""
    used = sorted({column for candidate in candidates for column in candidate.columns})
    place = {column: index for index, column in enumerate(used)}
    weights = np.zeros((len(used), len(candidates)))
    for index, candidate in enumerate(candidates):
        weights[[place[column] for column in candidate.columns], index] = candidate.values
    intercepts = np.array([candidate.intercept for candidate in candidates])
    predictor: NDArray[np.float64] = design.combine(used, weights) + design.ones[:, None] * intercepts
    return predictor


def write_reals(reals: NDArray[np.float64], places: int) -> NDArray[np.unsignedinteger]:
    """Reals in fixed point, as words modulo 2^64."""
    held = np.clip(np.nan_to_num(reals, nan=BOUND, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)
    return np.rint(np.ldexp(held, places)).astype(np.int64).view(np.uint64)


def bound_reals(places: int) -> int:
    """The largest number that `write_reals` writes."""
    return int(BOUND) << places


def choose_places(sites: int) -> int:
    """As many binary places as sums over so many sites have room for."""
    return MOST_PLACES - max(0, sites - 1).bit_length()


def check_columns(columns: Sequence[int], terms: int) -> None:
    if columns and (len(set(columns)) != len(columns) or min(columns) < 0 or max(columns) >= terms):
        raise MessageError("a fit names columns that the model does not have, or one twice")


def check_coefficients(coefficients: Coefficients, terms: int) -> None:
    check_columns(coefficients.columns, terms)
    values = (coefficients.intercept, *coefficients.values)
    if len(coefficients.values) != len(coefficients.columns) or not all(abs(v) <= 1e6 for v in values):
        raise MessageError("a fit proposes coefficients that are out of range")
