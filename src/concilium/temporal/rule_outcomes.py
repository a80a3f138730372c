"""What the rules that were found say about the outcome: noisy counts, one window of each client.

Claim. Protected: each client, from the house and as many colluding hospitals as the manifest tolerates, at the rho that
is charged. A client has one window, and adds 1 to at most one of the four counts of each rule: the squared L2
sensitivity is the number of rules.

docs/methods.md, section 6.12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import FormulaError, MessageError
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PRIVATE, Sensitivity, Summed
from concilium.protocol.work import CALL, Workload
from concilium.records.series_outcomes import find_windows
from concilium.records.time_grid import read_step
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import parse
from concilium.temporal.rule_counts import find_parts
from concilium.temporal.rule_part import MOST_PARENTS, check_task
from concilium.temporal.rule_patients import count_points
from concilium.temporal.rule_task import RuleTask
from concilium.temporal.site_rules import prepare

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_CHARACTERS = 1_000
# For each patient and rule; for each patient, whose window is found.
JUDGE, FIND_WINDOW = 400, 2_000


class AskRuleOutcomes(Summed, frozen=True, kw_only=True):
    """For each rule, how many clients with the outcome fulfil and break it, and how many without, with noise?

    By the window in which a client first has the outcome, or its last one where it never has.
    """

    kind: ClassVar[str] = "rules.outcomes"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: RuleTask
    rules: tuple[str, ...]

    @property
    def reads(self) -> frozenset[str]:
        return find_parts(self.task)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task}

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rules), 4)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(len(self.rules))

    def check(self, release: Release) -> None:
        check_task(self.task)
        if self.task.learning is None or not 1 <= len(self.rules) <= MOST_PARENTS:
            raise MessageError(f"1 to {MOST_PARENTS} rules are judged, on series")
        for text in self.rules:
            check_rule(read_rule(text), self.task)

    def estimate(self, patients: int, columns: int) -> Workload:
        assert self.task.learning is not None
        steps, names = self.task.learning.steps, len(self.task.variables)
        each = JUDGE * len(self.rules) * steps + FIND_WINDOW
        held = 12 * names * steps + 8 * len(self.rules) + 128
        return Workload(each * patients + CALL * len(self.rules), held * patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        assert self.task.learning is not None
        series = prepare(cohort.take_part("series"), self.task)
        ends, positive = find_windows(series, self.task.learning.outcome, self.task.learning.steps)
        there = np.flatnonzero(ends)
        windows = series.choose(self.task.names).cut(ends[there], self.task.learning.steps, there)
        counts = np.zeros(self.shape, dtype=np.int64)
        if len(there):
            truths = satisfied_all([read_rule(text) for text in self.rules], windows, absent=True)
            known = ~np.ma.getmaskarray(truths)
            for place, (with_outcome, holds) in enumerate(CELLS):
                who = known & (truths.data == holds) & (positive[there] == with_outcome)
                counts[:, place] = who.sum(axis=1)
        return counts


CELLS = ((True, True), (True, False), (False, True), (False, False))
"""Whether a client has the outcome, and whether it fulfils the rule."""


def check_rule(rule: Formula, task: RuleTask) -> None:
    """MessageError unless a rule is about the study's variables, within a window."""
    assert task.learning is not None
    if not rule.variables <= set(task.names):
        raise MessageError("a rule that is judged is about variables of its study")
    if not is_within_window(rule, task):
        raise MessageError(f"a rule that is judged looks at {task.learning.steps} points in time at most")


def is_within_window(rule: Formula, task: RuleTask) -> bool:
    """Whether a rule looks at no more points in time than the window has that it would be judged by."""
    assert task.learning is not None
    return count_points(rule, read_step(task.learning.step)) <= task.learning.steps


def read_rule(text: str) -> Formula:
    """A rule without holes; MessageError where it is none."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise MessageError(f"a rule may have at most {MOST_CHARACTERS} characters")
        rule = parse(text)
    except FormulaError as error:
        raise MessageError(f"this is no rule: {str(error).splitlines()[0]}") from None
    if rule.open_places:
        raise MessageError("a rule that is judged has no holes")
    return rule
