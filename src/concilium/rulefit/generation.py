"""The question for a site's own rules (docs/methods.md, 2.3): every site boosts trees on its patients alone.

Who is protected: nobody. Rules depend on every patient of the site, and the house sees which site sent which, under
`masked` as well. What holds: no rule is about fewer patients than `support`, or leaves fewer than that out, so that a
rule is never about three people (under `masked` the hospital's policy says how many, not the house); and a rule holds
cutoffs and values that all sites were told, never a patient's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from concilium.errors import MessageError
from concilium.policy.policy import LEAST_SUPPORT
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, Gathered, Reply
from concilium.protocol.work import Workload, estimate_columns
from concilium.rulefit.boosting import boost, estimate_boosting
from concilium.rulefit.design import find_codes
from concilium.rulefit.outcome import Outcome
from concilium.rulefit.rules import Rule, check_coded, check_rules

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_TREES = 10_000
MOST_LEAVES = 100


class Rules(Reply, frozen=True):
    """The different rules of a site, in canonical order."""

    rules: tuple[Rule, ...]

    @property
    def numbers(self) -> int:
        """Each condition is something told about the site's patients."""
        return sum(len(rule) for rule in self.rules)


class AskRules(Gathered[Rules], frozen=True, kw_only=True):
    """Which rules tell your patients apart, with cuts at these cutoffs only?"""

    kind: ClassVar[str] = "rulefit.rules"
    releases: ClassVar[frozenset[str]] = PLAIN
    reply: ClassVar[type[Rules]] = Rules

    outcome: Outcome
    attributes: tuple[Attribute, ...]
    trees: int
    leaves: float
    shrinkage: float
    support: int
    seed: int

    @property
    def fixed(self) -> Mapping[str, Any]:
        names = ("trees", "leaves", "shrinkage", "support", "seed")
        return {"positive": self.outcome.positive, **{name: getattr(self, name) for name in names}}

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    def check(self, release: Release) -> None:
        self.outcome.check()
        check_coded(self.attributes)
        if not 1 <= self.trees <= MOST_TREES or not 2 <= self.leaves <= MOST_LEAVES:
            raise MessageError(
                f"rules come of 1 to {MOST_TREES} trees with 2 to {MOST_LEAVES} leaves on average"
            )
        if not 0 < self.shrinkage <= 1 or not 0 <= self.seed < 2**63:
            raise MessageError("the shrinkage of boosted trees is above 0 and at most 1")
        if self.support < LEAST_SUPPORT:
            raise MessageError(f"a rule is about at least {LEAST_SUPPORT} patients")

    def estimate(self, patients: int, columns: int) -> Workload:
        return estimate_columns(self.attributes, patients) + estimate_boosting(
            self.attributes, patients, self.trees, self.leaves
        )

    def compute(self, cohort: Cohort) -> Rules:
        rows = None if cohort.everyone else cohort.rows
        codes = [find_codes(attribute, cohort.view, rows) for attribute in self.attributes]
        support = self.support if cohort.support is None else cohort.support
        rules = boost(
            codes,
            self.outcome.at_site(cohort, self.target),
            self.attributes,
            binary=self.outcome.binary,
            trees=self.trees,
            leaves=self.leaves,
            shrinkage=self.shrinkage,
            support=max(support, cohort.branch_floor, cohort.guard.minimum_cell),
            seed=self.seed,
        )
        return Rules(tuple(rules))

    def read(self, data: bytes) -> Rules:
        reply = super().read(data)
        check_rules(reply.rules, self.attributes)
        return reply

    def unite(self, replies: Sequence[Rules]) -> Rules:
        """The different rules of all sites of a region."""
        # Each site's are in order already, so that they are merged rather than sorted.
        in_order = sorted(chain.from_iterable(reply.rules for reply in replies))
        return Rules(tuple(dict.fromkeys(in_order)))
