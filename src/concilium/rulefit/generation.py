"""The question for a site's own rules (step 1 and 2 of section 2.2.2): every site boosts trees on its patients alone.

Who is protected: nobody. Rules depend on every patient of the site, and the house sees which site sent which, under
`masked` as well. What holds: no rule is about fewer patients than `support`, or leaves fewer than that out, so that a
rule is never about three people; and a rule holds cutoffs and values that all sites were told, never a patient's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort
from concilium.federation.messages import decode
from concilium.federation.questions import Gathered
from concilium.rulefit.boosting import boost
from concilium.rulefit.design import codes_at_site
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rules import Attribute, Rule

MOST_TREES = 10_000
MOST_LEAVES = 100
# A rule about fewer patients than this leaves no site, whatever the study says.
LEAST_SUPPORT = 5


class Rules(Gathered, frozen=True, forbid_unknown_fields=True):
    """The different rules of a site, in canonical order."""

    rules: tuple[Rule, ...]

    @property
    def numbers(self) -> int:
        """Each condition is something told about the site's patients."""
        return sum(len(rule) for rule in self.rules)


class AskRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rules tell your patients apart, with cuts at these cutoffs only?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked"})
    additive: ClassVar[bool] = False

    query: str
    target: str
    outcome: Outcome
    attributes: tuple[Attribute, ...]
    trees: int
    leaves: float
    shrinkage: float
    support: int
    seed: int

    def check(self, release: str) -> None:
        self.outcome.check()
        for attribute in self.attributes:
            attribute.check()
        if len({attribute.name for attribute in self.attributes}) != len(self.attributes):
            raise MessageError("an attribute is named twice")
        if not 1 <= self.trees <= MOST_TREES or not 2 <= self.leaves <= MOST_LEAVES:
            raise MessageError(
                f"rules come of 1 to {MOST_TREES} trees with 2 to {MOST_LEAVES} leaves on average"
            )
        if not 0 < self.shrinkage <= 1 or not 0 <= self.seed < 2**63:
            raise MessageError("the shrinkage of boosted trees is above 0 and at most 1")
        if self.support < LEAST_SUPPORT:
            raise MessageError(f"a rule is about at least {LEAST_SUPPORT} patients")

    def compute(self, cohort: Cohort, template: bytes) -> Rules:
        codes = [codes_at_site(attribute, cohort) for attribute in self.attributes]
        found = boost(
            codes,
            self.outcome.at_site(cohort, self.target),
            self.attributes,
            binary=self.outcome.binary,
            trees=self.trees,
            leaves=self.leaves,
            shrinkage=self.shrinkage,
            support=max(self.support, cohort.branch_floor, cohort.guard.minimum_cell),
            seed=self.seed,
        )
        return Rules(tuple(found))


def unite_rules(bodies: Mapping[str, bytes]) -> Rules:
    """The different rules of all sites of a region."""
    return Rules(tuple(sorted({rule for body in bodies.values() for rule in decode(body, Rules).rules})))
