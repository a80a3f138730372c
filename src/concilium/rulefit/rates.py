"""Last question of a fit: how many patients each term of the model is about, and what became of them.

For every term the number of patients (the sum of the column), their outcomes, and the spread around the site's mean,
so that the house can work out support, subgroup rates (Figure 3) and the pooled standard deviation, the square root of
sum (N - 1) s^2 / sum (N - 1), of which importances are made (the paper's formula forgets the square).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.rulefit.design import build, codes_at_site
from concilium.rulefit.fitting import MOST_PLACES, bound_reals, refuse_floored, write_reals
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.terms import Terms

# So many columns at a time are held as numbers: bits take a sixty-fourth of the memory.
BLOCK = 500


class AskRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients, with which outcomes and which spread, has each of these terms?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked"})
    additive: ClassVar[bool] = True

    query: str
    target: str
    outcome: Outcome
    terms: Terms
    places: int = 24

    @property
    def numbers(self) -> int:
        return 3 + 3 * len(self.terms)

    @property
    def largest(self) -> int:
        return bound_reals(self.places)

    def check(self, release: str) -> None:
        self.terms.check()
        self.outcome.check()
        if not 0 <= self.places <= MOST_PLACES:
            raise MessageError("numbers travel with 0 to 32 binary places")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        refuse_floored(cohort)
        design = build(
            self.terms,
            len(cohort),
            lambda attribute: codes_at_site(attribute, cohort),
            lambda name: cohort.view.measured(name)[cohort.rows],
        )
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
        return write_reals(np.concatenate(parts), self.places)


@dataclass(frozen=True)
class Rates:
    """Over all sites: patients, their mean outcome; for each term its mean (a rule's support), the mean outcome of
    those inside and outside a rule, and its pooled standard deviation. Outcomes are in their own unit."""

    patients: int
    mean: float
    support: NDArray[np.float64]
    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    deviation: NDArray[np.float64]


def read_rates(question: AskRates, total: NDArray[np.int64]) -> Rates:
    """What the sites' numbers, added up, say."""
    reals = np.ldexp(total.astype(np.float64), -question.places)
    patients, free, positive = reals[:3]
    column, outcomes, spread = reals[3:].reshape(3, len(question.terms))
    own = (lambda means: means) if question.outcome.binary else question.outcome.unscale
    with np.errstate(invalid="ignore", divide="ignore"):
        return Rates(
            patients=round(patients),
            mean=float(own(positive / patients)),
            support=column / patients,
            inside=own(outcomes / column),
            outside=own((positive - outcomes) / (patients - column)),
            deviation=np.sqrt(np.maximum(spread, 0) / max(free, 1)),
        )
