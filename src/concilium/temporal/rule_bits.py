"""Yes or no of each client, flipped by a coin of its own: the questions of a search along paths.

Claim, and its narrow unit. Protected: one rule of one client, from everybody, at the epsilon of a path. It is no claim
about a client, so that these answers are released, charged and called as `exact` is, without a bound; what the coins
add is said on the card, with its unit. Only templates of a level are asked about, of which a rule has one each: once,
however they are written, and structures once more at the end. All questions of a study have one epsilon, and the last
one of a path what is left, which sites hold to.

docs/methods.md, section 6.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.bits import randomize_bits
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import EXACT, Summed, is_positive
from concilium.protocol.work import Workload
from concilium.temporal.path_search import PATH_LENGTH
from concilium.temporal.rule_codes import PARAMETER_SHARE
from concilium.temporal.rule_counts import estimate_rules, find_parts, find_patience
from concilium.temporal.rule_levels import STRUCTURE, find_level
from concilium.temporal.rule_part import RulePart, check_task, read_template
from concilium.temporal.rule_task import RuleTask
from concilium.temporal.site_rules import open_index

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

ASSUMED_RULES = 100


class AskRuleBits(Summed, frozen=True, kw_only=True):
    """How many clients say that they have a rule which this template matches, each by a coin of its own?

    A question of a path has the epsilon `each`, the last one (`final`) has `last`.
    """

    kind: ClassVar[str] = "rules.bits"
    releases: ClassVar[frozenset[str]] = EXACT

    task: RuleTask
    template: str
    each: str
    last: str
    final: bool = False

    @property
    def reads(self) -> frozenset[str]:
        return find_parts(self.task)

    @property
    def patience(self) -> float:
        return find_patience(self.task)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "exact_epsilon": self.path_epsilon}

    @property
    def path_epsilon(self) -> Fraction:
        """What all questions of a path cost together, those about parameters included."""
        search = (PATH_LENGTH - 1) * Fraction(self.each) + Fraction(self.last)
        return search / (1 - PARAMETER_SHARE)

    @property
    def once(self) -> tuple[str, str]:
        return f"{self.each} {self.last}", f"{read_template(self.template)} {self.final}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (1,)

    def check(self, release: Release) -> None:
        check_task(self.task)
        if not is_positive(self.each) or not is_positive(self.last):
            raise MessageError("a question along a path says its epsilon, and that of the last one")
        # A rule has one template on each level, and changes no other answer: that is all that a path costs.
        level = find_level([read_template(self.template)])
        if level is None or (self.final and level != STRUCTURE):
            raise MessageError(
                "a question along a path is about a template of a level, the last one a structure"
            )

    def estimate(self, patients: int, columns: int) -> Workload:
        part = RulePart(self.task, "clients")
        return estimate_rules(part, ASSUMED_RULES, patients) + Workload(200 * patients, 32 * patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        matched = open_index(cohort, self.task).match(read_template(self.template))
        said = randomize_bits(matched, Fraction(self.last if self.final else self.each))
        return np.array([np.count_nonzero(said)], dtype=np.uint32)
