"""Which bin a parameter of one rule lies in, told by each client through a randomised response: the last question of a
path, about a structure that passed the final check.

Claim, and its narrow unit: as rule_bits.py. A client reports the bin of its first rule of the structure, or that it has
none, by k-ary randomised response at the stated epsilon (privacy/bits.py); the parameters of a structure share a
quarter of the epsilon of a path.

docs/methods.md, section 6.10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.bits import find_replacement_threshold, randomize_codes
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import EXACT, Summed, is_positive
from concilium.protocol.work import Workload
from concilium.temporal.rule_counts import estimate_rules, find_parts, find_patience
from concilium.temporal.rule_grammar import Bins
from concilium.temporal.rule_part import RulePart, open_part, read_template
from concilium.temporal.rule_task import RuleTask
from concilium.temporal.site_rules import open_index

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

ASSUMED_RULES = 100
PARAMETER_SHARE = Fraction(1, 4)
"""Of the epsilon of a path, for all parameters of its structure."""


class AskRuleCodes(Summed, frozen=True, kw_only=True):
    """How many clients say that a parameter of their rule of this structure lies in each bin, and that they have none?

    `epsilon` is that of a whole path.
    """

    kind: ClassVar[str] = "rules.codes"
    releases: ClassVar[frozenset[str]] = EXACT

    task: RuleTask
    structure: str
    parameter: int
    epsilon: str

    @property
    def reads(self) -> frozenset[str]:
        return find_parts(self.task)

    @property
    def patience(self) -> float:
        return find_patience(self.task)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "exact_epsilon": Fraction(self.epsilon)}

    @property
    def once(self) -> tuple[str, str]:
        return self.epsilon, f"{read_template(self.structure)} {self.parameter}"

    @property
    def part(self) -> RulePart:
        return RulePart(self.task, "parameters", (), (self.structure,))

    @property
    def bins(self) -> Bins:
        return open_part(self.part).bins[0][self.parameter]

    @property
    def own_epsilon(self) -> Fraction:
        """Of this question."""
        return Fraction(self.epsilon) * PARAMETER_SHARE / len(open_part(self.part).bins[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.bins) + 1,)

    def check(self, release: Release) -> None:
        if not is_positive(self.epsilon):
            raise MessageError("a question along a path says the epsilon of a path")
        if not 0 <= self.parameter < len(open_part(self.part).bins[0]):
            raise MessageError("this structure has no such parameter")

    def estimate(self, patients: int, columns: int) -> Workload:
        return estimate_rules(self.part, ASSUMED_RULES, patients) + Workload(200 * patients, 32 * patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        bins, size = open_part(self.part).bins[0], len(self.bins)
        first = sum(len(each) for each in bins[: self.parameter])
        listed = open_part(self.part).list(open_index(cohort, self.task), sum(map(len, bins)))
        owners = np.repeat(np.arange(len(cohort)), np.diff(listed.starts))
        own = (listed.templates >= first) & (listed.templates < first + size)
        codes = np.full(len(cohort), size, dtype=np.int64)  # who has none
        codes[owners[own][::-1]] = (
            listed.templates[own][::-1] - first
        )  # of several the first, which is set last
        said = randomize_codes(codes, size + 1, self.own_epsilon)
        return np.bincount(said, minlength=size + 1).astype(np.uint32)


def estimate_codes(said: NDArray[np.int64], epsilon: Fraction) -> tuple[NDArray[np.int64], float]:
    """How many clients have each bin, from how many said so, without bias and never clipped; and the deviation of that
    where nobody has it."""
    answers = len(said)
    replaced = find_replacement_threshold(answers, epsilon) / 2**64
    clients, otherwise = int(said.sum()), replaced / answers
    counts = (said[:-1] - clients * otherwise) / (1 - replaced)
    deviation = math.sqrt(clients * otherwise * (1 - otherwise)) / (1 - replaced)
    return np.rint(counts).astype(np.int64), deviation
