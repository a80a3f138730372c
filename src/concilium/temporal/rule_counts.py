"""Noisy counts of clients, for a discovery that trusts sums over hospitals (docs/methods.md, sections 6.8 and 6.11).

Claim. Protected: each client, all its rules at once, from the house and as many colluding hospitals as the manifest
tolerates, at the rho that is charged. One client, added or removed, adds 1 to n and to at most `most` of the entries,
whatever its rules (template_index.py): the squared L2 sensitivity is min(most, entries) + 1, without n one less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.protocol.work import CALL, Workload
from concilium.temporal.rule_part import RulePart, open_part
from concilium.temporal.rule_task import RuleTask
from concilium.temporal.site_rules import open_index

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_ENTRIES = 1_000
# For each template to be made; for each rule of a patient to be indexed and counted, and learned.
MAKE_TEMPLATE, INDEX_RULE, LEARN_RULES = 20_000, 100, 800_000
RULE_BYTES = 12
LEARNING_TAKES = 3600.0  # seconds, at most


class AskRuleCounts(Summed, frozen=True, kw_only=True):
    """How many clients have each entry of a part of the rules, and how many clients are there, with noise?

    Each client is in at most so many (`most`) of the entries.
    """

    kind: ClassVar[str] = "rules.counts"
    releases: ClassVar[frozenset[str]] = PRIVATE

    part: RulePart
    most: int

    @property
    def reads(self) -> frozenset[str]:
        return find_parts(self.part.task)

    @property
    def patience(self) -> float:
        return find_patience(self.part.task)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.part.task, "most_rules": self.most}

    @property
    def shape(self) -> tuple[int, ...]:
        return (open_part(self.part).size + self.counts_clients,)

    @property
    def counts_clients(self) -> bool:
        """Whether the last number is how many clients there are: not beside parameters, when that is known by then."""
        return self.part.stage != "parameters"

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(min(self.most, open_part(self.part).size) + self.counts_clients)

    def check(self, release: Release) -> None:
        check_most(self.most)
        open_part(self.part)

    def estimate(self, patients: int, columns: int) -> Workload:
        return estimate_rules(self.part, self.most, patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        index, part = open_index(cohort, self.part.task), open_part(self.part)
        listed = part.list(index, self.most)
        counts = np.bincount(listed.templates, minlength=part.size).astype(np.int64)
        return np.append(counts, len(cohort)) if self.counts_clients else counts


def find_parts(task: RuleTask) -> frozenset[str]:
    """What hospitals must hold of their patients: rules, or series to learn them from."""
    return frozenset({"rules" if task.learning is None else "series"})


def find_patience(task: RuleTask) -> float:
    """Where rules are learned first, that takes some milliseconds for each patient."""
    return 0.0 if task.learning is None else LEARNING_TAKES


def check_most(most: int) -> None:
    if not 1 <= most <= MOST_ENTRIES:
        raise MessageError(f"a client counts for 1 to {MOST_ENTRIES} entries of a question; got {most}")


def estimate_rules(part: RulePart, most: int, patients: int) -> Workload:
    """To make the entries, to index (and learn) so many rules of each patient, and to count them."""
    made = Workload(CALL + MAKE_TEMPLATE * (open_part(part).size + len(part.about)), 0)
    learned = LEARN_RULES if part.task.learning is not None else 0
    return made + Workload((INDEX_RULE * most + learned) * patients, RULE_BYTES * most * patients)
