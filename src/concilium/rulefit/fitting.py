"""What a site adds to a fit: loss, gradient and Hessian at coefficients that the house proposes (docs/methods.md, 2.6);
and in the end what became of the patients of each term.

One question does a whole step: the loss at several candidates (steps of different length), and the gradient of all
columns and the Hessian of the working columns at the first of them. All are sums over patients, so that the house adds
them up over sites, and they are the same under `exact` and `masked` to the last bit: numbers travel in fixed point.

Neither release protects a patient: enough exact gradients give back every outcome. `masked` hides which hospital a
number comes from, and nothing else; the card says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.models.outcome import Outcome
from concilium.models.threshold import (
    BINS,
    LEARNED_FROM,
    LEFT_OUT_FIRST,
    Tally,
    count_chances,
    find_edges,
    read_chances,
)
from concilium.protocol.attributes import CALL, Attribute, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import FOLDS, Folds, Part
from concilium.protocol.questions import PLAIN, Summed
from concilium.protocol.sums import MOST_PLACES, bound_reals, read_reals, write_reals
from concilium.records.blocks import each_block, list_blocks
from concilium.rulefit.design import (
    MANY_PATIENTS,
    PATIENTS_AT_ONCE,
    Design,
    build_at_site,
    estimate_design,
    goes_by_parts,
    recall_at_site,
    unfold,
)
from concilium.rulefit.terms import RuleTerms, find_ends, read_terms

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_CANDIDATES = 100
MOST_WORKING = 2000
# So many columns at a time are held as numbers: bits take a sixty-fourth of the memory.
BLOCK = 64


class Coefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The coefficients that are not zero."""

    intercept: float = 0.0
    columns: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, w: NDArray[np.float64]) -> Self:
        """Those of a vector, intercept first."""
        columns = np.flatnonzero(w[1:])
        return cls(float(w[0]), tuple(columns.tolist()), tuple(w[1:][columns].tolist()))

    def find_reach(self, terms: RuleTerms) -> tuple[float, float]:
        """The least and the greatest that a patient's terms can come to with these."""
        low = high = self.intercept
        for column, value in zip(self.columns, self.values, strict=True):
            ends = [value * end for end in find_ends(terms.in_order[column])]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def check_terms(self, terms: int) -> None:
        """MessageError unless they belong to so many terms, and are of bearable size."""
        _check_columns(self.columns, terms)
        values = (self.intercept, *self.values)
        if len(self.values) != len(self.columns) or not all(abs(value) <= 1e6 for value in values):
            raise MessageError("a fit proposes coefficients that are out of range")


class AskReals(Summed, frozen=True, kw_only=True):
    """What the plain questions of a fit have in common: sums of reals with so many binary places, about an outcome."""

    releases: ClassVar[frozenset[str]] = PLAIN
    rows_at_once: ClassVar[int] = PATIENTS_AT_ONCE
    one_block: ClassVar[int] = MANY_PATIENTS

    outcome: Outcome
    places: int = 24

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"positive": self.outcome.positive}

    @property
    def binary_places(self) -> int:
        return self.places

    @property
    def counts(self) -> bool:
        return False

    @property
    def goes_by_blocks(self) -> bool:
        return True

    @property
    def largest(self) -> int:
        return bound_reals(self.places)

    def check(self, release: Release) -> None:
        self.outcome.check()
        if not 0 <= self.places <= MOST_PLACES:
            raise MessageError(f"numbers travel with 0 to {MOST_PLACES} binary places")


class AskFit(AskReals, frozen=True, kw_only=True):
    """Your loss at these coefficients; your gradient and the Hessian of the working columns at the first of them."""

    kind: ClassVar[str] = "rulefit.fit"

    terms: bytes
    candidates: tuple[Coefficients, ...]
    gradient: bool = True
    working: tuple[int, ...] | None = None
    part: Part | None = None

    @property
    def columns(self) -> RuleTerms:
        return read_terms(self.terms)

    @property
    def named(self) -> Sequence[Attribute]:
        return self.columns.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        working = 0 if self.working is None else len(self.working) + 1
        gradient = len(self.columns) + 1 if self.gradient else 0
        return (1 + len(self.candidates) + gradient + working * (working + 1) // 2,)

    @property
    def division(self) -> Part | None:
        return self.part

    def check(self, release: Release) -> None:
        super().check(release)
        terms = len(self.columns)
        if not 1 <= len(self.candidates) <= MOST_CANDIDATES:
            raise MessageError(f"a fit asks about 1 to {MOST_CANDIDATES} candidates")
        for candidate in self.candidates:
            candidate.check_terms(terms)
        if self.working is not None:
            _check_columns(self.working, terms)
            if len(self.working) > MOST_WORKING:
                raise MessageError(f"a fit works on at most {MOST_WORKING} columns at a time")
        if self.part is not None:
            self.part.check()

    def estimate(self, patients: int, columns: int) -> Workload:
        terms, candidates = self.columns, len(self.candidates)
        rules, dense = len(terms.rules), len(terms.lines) + len(terms.steps)
        used = min(len(terms), sum(len(candidate.columns) for candidate in self.candidates))
        working = 0 if self.working is None else len(self.working) + 1
        lines = min(dense, working) + 1
        hessian = working**2 // 12 + 2 * lines**2 + lines * (48 + working // 4) if working else 0
        return estimate_design(terms, patients) + Workload(
            (2 * used * candidates + 60 * candidates + rules // 4 + 2 * dense + 100 + hessian) * patients
            + CALL * (20 + lines)
            + 200 * used
            + 20 * working**2,
            (
                64 * candidates
                + used // 4
                + 8 * min(dense, used)
                + working // 4
                + (24 * lines if working else 0)
                + 128
            )
            * patients
            + 16 * used * candidates
            + 40 * working**2
            + 32 * self.numbers,
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)

        def add_up(part: Cohort, block: slice) -> NDArray[np.float64]:
            design = recall_at_site(self.terms, part, (self.query, self.target, self.part), block.start)
            return np.concatenate(self.add_up(design, self.outcome.at_site(part, self.target)))

        return write_reals(add_blocks(cohort, add_up), self.places)

    def add_up(
        self, design: Design, outcome: NDArray[np.float64], counted: NDArray[np.float64] | None = None
    ) -> list[Any]:
        """The numbers asked for, over all patients, or over those that are `counted` 1 and not 0."""
        weights = np.ones(len(outcome)) if counted is None else counted
        predictor = predict(design, self.candidates)
        parts: list[Any] = [[weights.sum()], weights @ self.outcome.loss(outcome, predictor)]
        first = predictor[:, 0]
        if self.gradient:
            residual = weights * self.outcome.residual(outcome, first)
            parts += [[residual @ design.ones], design.add_up(residual)]
        if self.working is not None:
            parts.append(design.cross(self.working, weights * self.outcome.curvature(first)))
        return parts


class FoldFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A fit to all patients but those of a fold: their loss at these candidates, gradient and Hessian as `AskFit` has
    them; without `working` the loss of the fold's own patients."""

    fold: int
    candidates: tuple[Coefficients, ...]
    working: tuple[int, ...] | None

    def count_numbers(self, terms: int) -> int:
        """How many numbers it asks for."""
        loss = 1 + len(self.candidates)
        if self.working is None:
            return loss
        working = len(self.working) + 1
        return loss + terms + 1 + working * (working + 1) // 2


class AskFolds(AskReals, frozen=True, kw_only=True):
    """The same for several folds at once, each with coefficients of its own: a step of every fit is one question."""

    kind: ClassVar[str] = "rulefit.folds"

    terms: bytes
    folds: Folds
    fits: tuple[FoldFit, ...]

    @property
    def dealing(self) -> Folds | None:
        return self.folds

    @property
    def columns(self) -> RuleTerms:
        return read_terms(self.terms)

    @property
    def named(self) -> Sequence[Attribute]:
        return self.columns.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(one.count_numbers(len(self.columns)) for one in self.fits),)

    def check(self, release: Release) -> None:
        super().check(release)
        self.folds.check()
        if len({one.fold for one in self.fits}) != len(self.fits) or not all(
            0 <= one.fold < len(self.folds) for one in self.fits
        ):
            raise MessageError("a fit is of a fold that there is not, or one of two is of the same")
        for one in self.fits:
            self._whole(one).check(release)

    def estimate(self, patients: int, columns: int) -> Workload:
        design = estimate_design(self.columns, patients)
        each = [self._whole(one).estimate(patients, columns) for one in self.fits]
        return Workload(
            design.operations + sum(one.operations - design.operations for one in each) + 50 * patients,
            design.memory
            + max((one.memory - design.memory for one in each), default=0)
            + 40 * patients
            + 32 * self.numbers,
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)
        dealt = self.folds.deal(cohort)

        def add_up(part: Cohort, block: slice) -> NDArray[np.float64]:
            design = recall_at_site(self.terms, part, (self.query, self.target, None), block.start)
            outcome = self.outcome.at_site(part, self.target)
            parts: list[Any] = []
            for one in self.fits:
                own = dealt[one.fold // FOLDS, block] == one.fold
                counted = own if one.working is None else ~own
                parts += self._whole(one).add_up(design, outcome, counted.astype(np.float64))
            return np.concatenate([[], *parts])

        return write_reals(add_blocks(cohort, add_up), self.places)

    def read(self, total: NDArray[np.int64]) -> list[Sums]:
        """The sums of each fit."""
        ends = np.cumsum([one.count_numbers(len(self.columns)) for one in self.fits])[:-1]
        pieces = np.split(total, ends)
        return [read_sums(self._whole(one), piece) for one, piece in zip(self.fits, pieces, strict=True)]

    def _whole(self, one: FoldFit) -> AskFit:
        """The question that asks the same of everyone."""
        return AskFit(
            query=self.query,
            target=self.target,
            outcome=self.outcome,
            places=self.places,
            terms=self.terms,
            candidates=one.candidates,
            gradient=one.working is not None,
            working=one.working,
        )


def add_blocks(cohort: Cohort, work: Callable[[Cohort, slice], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sum of what `work` makes of all patients, or block by block where there are very many: the same blocks, added
    up in the same order, whether the table is in memory or on disk."""
    blocks = list_blocks(len(cohort), PATIENTS_AT_ONCE) if goes_by_parts(len(cohort)) else []
    if not blocks:
        return work(cohort, slice(0, len(cohort)))
    return functools.reduce(np.add, each_block(blocks, lambda block: work(cohort.take_block(block), block)))


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
    reals = read_reals(total, question.places)
    count = len(question.candidates)
    at = 1 + count
    gradient = None
    if question.gradient:
        gradient = reals[at : at + len(question.columns) + 1]
        at += len(question.columns) + 1
    hessian = None
    if question.working is not None:
        hessian = unfold(reals[at:], len(question.working) + 1)
    return Sums(float(reals[0]), reals[1 : 1 + count], gradient, hessian)


def predict(design: Design, candidates: Sequence[Coefficients]) -> NDArray[np.float64]:
    """The linear predictor of each patient at each candidate."""
    named = [np.array(candidate.columns, dtype=np.intp) for candidate in candidates]
    used = np.unique(np.concatenate(named))
    weights = np.zeros((len(used), len(candidates)))
    for index, (columns, candidate) in enumerate(zip(named, candidates, strict=True)):
        weights[np.searchsorted(used, columns), index] = candidate.values
    intercepts = np.array([candidate.intercept for candidate in candidates])
    predictor: NDArray[np.float64] = design.combine(used, weights) + design.ones[:, None] * intercepts
    return predictor


def _check_columns(columns: Sequence[int], terms: int) -> None:
    if columns and (len(set(columns)) != len(columns) or min(columns) < 0 or max(columns) >= terms):
        raise MessageError("a fit names columns that the model does not have, or one twice")


class AskRates(AskReals, frozen=True, kw_only=True):
    """How many patients, with which outcomes and which spread, has each of these terms? The last question of a fit.

    For every term it asks for the number of patients (the sum of the column), their outcomes, and the spread around the
    site's mean. From these the house works out support, subgroup rates and the pooled standard deviation, the square
    root of sum (N - 1) s^2 / sum (N - 1), of which importances are made (docs/methods.md, section 2.10).

    Where the study decides by a sensitivity or by Youden, and only there (RuleFit.find_objection), the question also
    has coefficients, and asks for patients by class and predicted risk (models/threshold.py): 514 numbers more, once
    of those whom a first fit left out, and once of everybody; at no price, since neither release that it may have has a
    bound.
    """

    kind: ClassVar[str] = "rulefit.rates"

    terms: RuleTerms
    scored: Coefficients | None = None
    part: Part | None = None

    @property
    def division(self) -> Part | None:
        return self.part

    @property
    def scores(self) -> int:
        """How many numbers say what chances patients have."""
        return 0 if self.scored is None else 2 * BINS

    @property
    def edges(self) -> NDArray[np.float64]:
        """By which log odds are counted."""
        assert self.scored is not None
        return find_edges(*self.scored.find_reach(self.terms))

    @property
    def named(self) -> Sequence[Attribute]:
        return self.terms.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return (3 + 3 * len(self.terms) + self.scores,)

    def check(self, release: Release) -> None:
        super().check(release)
        self.terms.check()
        if self.part is not None:
            self.part.check()
        if self.scored is not None:
            self.scored.check_terms(len(self.terms))
            if not self.outcome.binary:
                raise MessageError("chances are asked for where a class is predicted")

    def estimate(self, patients: int, columns: int) -> Workload:
        rates = Workload(
            (14 * len(self.terms) + 300) * patients + 10 * CALL * (1 + len(self.terms) // BLOCK),
            (25 * min(BLOCK, len(self.terms)) + len(self.terms) // 4 + 128) * patients + 32 * self.numbers,
        )
        return estimate_design(self.terms, patients) + rates

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        refuse_floored(cohort)
        patients, means = len(cohort), None
        if goes_by_parts(patients):  # the spread is around the mean of all blocks

            def count(part: Cohort, _: slice) -> NDArray[np.float64]:
                return build_at_site(self.terms, part).add_up(np.ones(len(part)))

            means = add_blocks(cohort, count) / patients
        sums = add_blocks(cohort, lambda part, _: self._add_up(part, means))
        return write_reals(np.concatenate([[patients, max(0, patients - 1)], sums]), self.places)

    def _add_up(self, cohort: Cohort, means: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """The numbers asked for but the first two; the spread is around these means, or those of these patients."""
        design = build_at_site(self.terms, cohort)
        outcome = self.outcome.at_site(cohort, self.target)
        spread = np.zeros(len(self.terms))
        for start in range(0, len(self.terms) if len(cohort) else 0, BLOCK):
            block = slice(start, start + BLOCK)
            table = design.columns(range(len(self.terms))[block])
            middle = table.mean(axis=0) if means is None else means[block]
            spread[block] = ((table - middle) ** 2).sum(axis=0)
        parts: list[Any] = [
            [outcome.sum()],
            design.add_up(np.ones(len(cohort))),
            design.add_up(outcome),
            spread,
        ]
        if self.scored is not None:
            odds = predict(design, [self.scored])[:, 0]
            parts.append(count_chances(odds, outcome > 0, self.edges).ravel())
        return np.concatenate(parts)


@dataclass(frozen=True)
class Rates:
    """Over all sites: patients, their mean outcome; for each term its mean (a rule's support), the mean outcome of
    those inside and outside a rule, and its pooled standard deviation. Outcomes are in their own unit. `tally` has
    patients by class and chance, where that was asked."""

    patients: int
    mean: float
    support: NDArray[np.float64]
    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    deviation: NDArray[np.float64]
    tally: Tally | None = None


def read_rates(question: AskRates, total: NDArray[np.int64]) -> Rates:
    """What the sites' numbers, added up, say."""
    reals = read_reals(total, question.places)
    patients, free, positive = reals[:3]
    told = 3 + 3 * len(question.terms)
    column, outcomes, spread = reals[3:told].reshape(3, len(question.terms))
    own = (lambda means: means) if question.outcome.binary else question.outcome.unscale
    with np.errstate(invalid="ignore", divide="ignore"):
        return Rates(
            patients=round(patients),
            mean=float(own(positive / patients)),
            support=column / patients,
            inside=own(outcomes / column),
            outside=own((positive - outcomes) / (patients - column)),
            deviation=np.sqrt(np.maximum(spread, 0) / max(free, 1)),
            tally=None
            if question.scored is None
            else read_chances(
                np.rint(reals[told:]).astype(np.int64),
                question.edges,
                LEARNED_FROM if question.part is None else LEFT_OUT_FIRST,
            ),
        )
