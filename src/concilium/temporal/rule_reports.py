"""One randomised report of each client, for a discovery that trusts nobody (docs/methods.md, 6.9 and 6.11).

Claim: as protocol/releases/local.py says. What a client reports is drawn from the entries of the question that are
true of its own rules, padded and randomised (privacy/local_reports.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from concilium.privacy.local_reports import ListedAnswers, ReportChannel
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import Reported
from concilium.protocol.work import Workload
from concilium.records.columns import Value
from concilium.temporal.local_search import GROUPS
from concilium.temporal.rule_counts import check_most, estimate_rules, find_parts, find_patience
from concilium.temporal.rule_part import RulePart, open_part
from concilium.temporal.site_rules import open_index

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

# For each patient: to find its group, and to draw its report.
REPORT = 2_000


class AskRuleReports(Reported, frozen=True, kw_only=True):
    """Which entry of a part of the rules does each client of a group report?

    At most so many (`most`) are on its list.
    """

    kind: ClassVar[str] = "rules.reports"

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
        return {"task": self.part.task, "exact_epsilon": self.price}

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return GROUPS

    @property
    def channel(self) -> ReportChannel:
        return ReportChannel(max(open_part(self.part).size, 1), self.most, self.price)

    def check(self, release: Release) -> None:
        super().check(release)
        check_most(self.most)
        open_part(self.part)

    def estimate(self, patients: int, columns: int) -> Workload:
        return estimate_rules(self.part, self.most, patients) + Workload(REPORT * patients, 64 * patients)

    def list_ids(self, cohort: Cohort) -> Sequence[Value | None]:
        (name,) = self.reads
        return cohort.take_part(name).ids

    def list_answers(self, cohort: Cohort) -> ListedAnswers:
        index = open_index(cohort, self.part.task)
        return open_part(self.part).list(index, self.channel.entries)
