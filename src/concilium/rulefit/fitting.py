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
from fractions import Fraction
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.shuffling import mix
from concilium.rulefit.design import Design, Terms, build_at_site, read_terms
from concilium.rulefit.outcome import Outcome

MOST_CANDIDATES = 100
MOST_WORKING = 2000
# Sums are held to this; with the binary places below, the sum over all sites fits 63 bits.
BOUND = 2.0**30
MOST_PLACES = 32
HELD_OUT = 0.3
LEAST_PART = 4
# So many columns at a time are held as numbers: bits take a sixty-fourth of the memory.
BLOCK = 500


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
    def noise(self) -> Fraction:
        return Fraction(0)

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(0)

    @property
    def numbers(self) -> int:
        working = 0 if self.working is None else len(self.working) + 1
        return (
            1
            + len(self.candidates)
            + (len(self.columns) + 1 if self.gradient else 0)
            + working * (working + 1) // 2
        )

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

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        if cohort.guard.on:
            raise MessageError(
                "this site leaves small counts out of what it tells exactly, and a gradient cannot do that: ask masked"
            )
        design = build_at_site(self.terms, cohort, self.query, self.target)
        outcome = self.outcome.at_site(cohort, self.target)
        weight = np.ones(len(cohort)) if self.part is None else self.part.weigh(cohort)
        predictor = predict(design, self.candidates)
        parts: list[Any] = [[weight.sum()], weight @ self.outcome.loss(outcome, predictor)]
        first = predictor[:, 0]
        if self.gradient:
            residual = weight * self.outcome.residual(outcome, first)
            parts += [[residual @ design.ones], design.add_up(residual)]
        if self.working is not None:
            working = np.column_stack([design.ones, design.columns(self.working)])
            curved = working * np.sqrt(weight * self.outcome.curvature(first))[:, None]
            parts.append((curved.T @ curved)[np.triu_indices(working.shape[1])])
        return write_reals(np.concatenate(parts), self.places)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Three in ten patients are held out, to choose a penalty: the question is about these, or about the others.

    Who is held out follows from the patients that the question selects, by their rows in the site's table. The house
    has no say in it, not by asking for the same patients in other words either: if it had, it could ask about two parts
    that one patient tells apart. Where a few patients more are selected, all parts are different.
    """

    held_out: bool

    def weigh(self, cohort: Cohort) -> NDArray[np.float64]:
        """1 for each patient that the question is about, 0 for the others."""
        key = int.from_bytes(cohort.population.digest[:8], "little")
        held_out: NDArray[np.bool_] = mix(cohort.population.rows, key) < np.uint64(HELD_OUT * 2**64)
        if not LEAST_PART <= int(held_out.sum()) <= len(cohort) - LEAST_PART:
            raise MessageError(
                f"a penalty can only be chosen where at least {LEAST_PART} patients are held out"
            )
        asked: NDArray[np.bool_] = held_out == self.held_out
        return asked.astype(np.float64)


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
    predictor: NDArray[np.float64] = design.ones[:, None] * intercepts
    for start in range(0, len(used), BLOCK):
        predictor += design.columns(used[start : start + BLOCK]) @ weights[start : start + BLOCK]
    return predictor


def write_reals(reals: NDArray[np.float64], places: int) -> NDArray[np.unsignedinteger]:
    """Reals in fixed point, as words modulo 2^64."""
    held = np.clip(np.nan_to_num(reals, nan=BOUND, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)
    return np.rint(np.ldexp(held, places)).astype(np.int64).view(np.uint64)


def choose_places(sites: int) -> int:
    """As many binary places as sums over so many sites have room for."""
    return MOST_PLACES - max(0, sites - 1).bit_length()


def check_columns(columns: Sequence[int], terms: int) -> None:
    if len(set(columns)) != len(columns) or any(not 0 <= column < terms for column in columns):
        raise MessageError("a fit names columns that the model does not have, or one twice")


def check_coefficients(coefficients: Coefficients, terms: int) -> None:
    check_columns(coefficients.columns, terms)
    values = (coefficients.intercept, *coefficients.values)
    if len(coefficients.values) != len(coefficients.columns) or not all(abs(v) <= 1e6 for v in values):
        raise MessageError("a fit proposes coefficients that are out of range")
