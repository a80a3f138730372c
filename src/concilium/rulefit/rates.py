"""Last question of a fit: how many patients each term of the model is about, and what became of them.

For every term the number of patients (the sum of the column), their outcomes, and the spread around the site's mean,
so that the house can work out support, subgroup rates and the pooled standard deviation, the square root of
sum (N - 1) s^2 / sum (N - 1), of which importances are made (docs/methods.md, section 2.10).

Where the study decides by a sensitivity or by Youden, and only there (RuleFit.find_objection), the question also has
coefficients, and asks for patients by class and chance (models/risk_counts.py): 514 numbers more, once of those
whom a first fit left out, and once of everybody; at no price, since neither release that it may have has a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.models.risk_counts import BINS, count_chances, find_edges, read_chances
from concilium.models.threshold import LEARNED_FROM, LEFT_OUT_FIRST, Tally
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import Part
from concilium.protocol.sums import read_reals, write_reals
from concilium.protocol.work import CALL, Workload
from concilium.rulefit.design import build_at_site, estimate_design
from concilium.rulefit.fitting import AskReals, Coefficients, predict, refuse_floored
from concilium.rulefit.terms import RuleTerms

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

# So many columns at a time are held as numbers: bits take a sixty-fourth of the memory.
BLOCK = 64


class AskRates(AskReals, frozen=True, kw_only=True):
    """How many patients, with which outcomes and which spread, has each of these terms?"""

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
        design = build_at_site(self.terms, cohort)
        outcome = self.outcome.at_site(cohort, self.target)
        spread = np.zeros(len(self.terms))
        for start in range(0, len(self.terms) if len(cohort) else 0, BLOCK):
            table = design.columns(range(len(self.terms))[start : start + BLOCK])
            spread[start : start + BLOCK] = ((table - table.mean(axis=0)) ** 2).sum(axis=0)
        parts: list[Any] = [
            [len(cohort), max(0, len(cohort) - 1), outcome.sum()],
            design.add_up(np.ones(len(cohort))),
            design.add_up(outcome),
            spread,
        ]
        if self.scored is not None:
            odds = predict(design, [self.scored])[:, 0]
            parts.append(count_chances(odds, outcome > 0, self.edges).ravel())
        return write_reals(np.concatenate(parts), self.places)


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
