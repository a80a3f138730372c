"""What a discovery asks about the outcome: when it begins, how the rules stand to it, and gradients of a fit on rules.

Every patient is in one window (outcome_windows.py). A hospital's votes of rules on windows are kept for the last few
questions; nothing of them leaves the site. docs/methods.md, section 6.12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.local_reports import ListedAnswers, ReportChannel
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import CALL, Workload
from concilium.protocol.cohort import Cohort, LastResults
from concilium.protocol.questions import PRIVATE, Reported, Sensitivity, Summed
from concilium.records.columns import Value
from concilium.records.series import Series
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.local_search import find_groups
from concilium.temporal.outcome_windows import EVENLY, HOUR_BINS, count_hours, find_judged_windows
from concilium.temporal.rule_questions import check_rule, prepare, read_rule
from concilium.temporal.rule_task import MOST_PARENTS, RuleTask
from concilium.temporal.static_conditions import hold_latest

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

# For each patient and rule; for each patient, whose window is found.
JUDGE, FIND_WINDOW = 400, 2_000
WINDOW_BYTES = 512  # for each patient, whose window is drawn
MOST_PATIENTS = 1 << 26
MOST_PLACES = 24
LAST_VOTES = LastResults["tuple[NDArray[np.int8], NDArray[np.bool_]]"](6)
CELLS = ((True, True), (True, False), (False, True), (False, False))
"""Whether a client has the outcome, and whether it fulfils the rule."""

Weights = tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...]


class _AboutOutcome:
    """What questions about the outcome have in common: they are about a task, and read series."""

    __slots__ = ()
    reads_part: ClassVar[str] = "series"
    task: RuleTask

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task}


class _AboutWindows(_AboutOutcome):
    """What questions about rules have in common that are judged on series, in windows of these hours."""

    __slots__ = ()
    rules: tuple[str, ...]
    weights: Weights

    def estimate(self, patients: int, columns: int) -> Workload:
        assert self.task.learning is not None
        steps, names = self.task.learning.steps, len(self.task.variables) + len(self.task.static)
        each = JUDGE * len(self.rules) * steps + FIND_WINDOW
        held = 12 * names * steps + 8 * len(self.rules) + (WINDOW_BYTES if self.weights else 128)
        return Workload(each * patients + CALL * max(len(self.rules), 1), held * patients)

    def check_windows(self) -> None:
        """MessageError unless hospitals can judge these rules."""
        if self.task.learning is None or not 1 <= len(self.rules) <= MOST_PARENTS:
            raise MessageError(f"1 to {MOST_PARENTS} rules are judged, on series")
        if len(self.weights) not in (0, HOUR_BINS) or not all(map(math.isfinite, self.weights)):
            raise MessageError(f"hours have {HOUR_BINS} weights, or none")
        for text in self.rules:
            check_rule(read_rule(text), self.task)

    def judge(self, cohort: Cohort) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """[patient, rule]: 1 where a rule holds in the patient's window, 0 where it fails, -1 where that is unknown;
        and whether the patient has the outcome. Patients without a window are left out."""
        part, task = cohort.view.find_part("series"), self.task

        def make() -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
            return judge_rules(
                prepare(cohort.take_part("series"), task),
                task,
                list(map(read_rule, self.rules)),
                self.weights,
            )

        return LAST_VOTES.find(part, (task, self.rules, self.weights, cohort.digest), make)


def judge_rules(
    series: Series, task: RuleTask, rules: Sequence[Any], weights: Sequence[float]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """As `_AboutWindows.judge`, of series that are prepared."""
    assert task.learning is not None
    ends, positive = find_judged_windows(series, task.learning.outcome, task.learning.steps, weights)
    there = np.flatnonzero(ends)
    votes = np.zeros((len(there), len(rules)), dtype=np.int8)
    if len(there):
        names = [*task.names, *task.static_names]
        windows = series.choose(names).cut(ends[there], task.learning.steps, there)
        windows = hold_latest(windows, task.static_names)
        truths = satisfied_all(list(rules), windows, absent=True)
        votes[:] = np.where(np.ma.getmaskarray(truths), -1, truths.data).T
    return votes, positive[there]


class AskOutcomeHours(_AboutOutcome, Summed, frozen=True, kw_only=True):
    """How many clients have the outcome first at each of the public hours, and how many never and stay until then?

    Claim. Protected: each client, from the house and as many colluding hospitals as the manifest tolerates, at the rho
    that is charged. A client is in one cell at most: the squared L2 sensitivity is 1.
    """

    kind: ClassVar[str] = "rules.hours"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: RuleTask

    @property
    def shape(self) -> tuple[int, ...]:
        return (2, HOUR_BINS)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(1)

    def check(self, release: Release) -> None:
        if self.task.learning is None:
            raise MessageError("the hours of an outcome are counted on series")

    def estimate(self, patients: int, columns: int) -> Workload:
        return Workload(FIND_WINDOW * patients + CALL, 128 * patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        assert self.task.learning is not None
        series = prepare(cohort.take_part("series"), self.task)
        return count_hours(series, self.task.learning.outcome, self.task.learning.steps)


class AskRuleOutcomes(_AboutWindows, Summed, frozen=True, kw_only=True):
    """For each rule, how many clients with the outcome fulfil and break it, and how many without, with noise?

    By the window in which a client first has the outcome, or one at a matched time where it never has.

    Claim. Protected: each client, from the house and as many colluding hospitals as the manifest tolerates, at the
    rho that is charged. A client has one window, and adds 1 to at most one of the four counts of each rule: the
    squared L2 sensitivity is the number of rules. A condition on a static column is a rule here, and counts as one.
    docs/methods.md, section 6.12.
    """

    kind: ClassVar[str] = "rules.outcomes"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: RuleTask
    rules: tuple[str, ...]
    weights: Weights = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rules), 4)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(len(self.rules))

    def check(self, release: Release) -> None:
        self.check_windows()

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        votes, positive = self.judge(cohort)
        counts = np.zeros(self.shape, dtype=np.int64)
        for place, (with_outcome, holds) in enumerate(CELLS):
            counts[:, place] = (votes[positive == with_outcome] == holds).sum(axis=0)
        return counts


class AskRuleGradient(_AboutWindows, Summed, frozen=True, kw_only=True):
    """In which direction does the loss of your clients grow at these coefficients of the rules?

    A client's row is 1 and, for each rule, 1 or 0 less the rule's public `centre`; where a rule is unknown it is 0. A
    row longer than `norm` is scaled down to it. Coefficients `at` have the intercept first.

    Claim. Protected: each client, from the house and as many colluding hospitals as the manifest tolerates, at the rho
    that is charged. A client's row is at most `norm` long and its residual lies between -1 and 1, so that it moves the
    gradient by at most `norm` (L2). Its share is rounded to the grid by itself; `widen_sensitivity` allows for that.
    """

    kind: ClassVar[str] = "rules.gradient"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: RuleTask
    rules: tuple[str, ...]
    centres: Weights
    at: tuple[float, ...]
    norm: Annotated[float, msgspec.Meta(gt=0, le=100)]
    places: Annotated[int, msgspec.Meta(ge=0, le=MOST_PLACES)]
    weights: Weights = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rules) + 1,)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(widen_sensitivity(Fraction(self.norm) ** 2, self.numbers, self.places))

    @property
    def binary_places(self) -> int:
        return self.places

    @property
    def largest(self) -> int:
        return math.ceil(self.norm * (1 << self.places) + 1) * MOST_PATIENTS

    def check(self, release: Release) -> None:
        self.check_windows()
        if len(self.centres) != len(self.rules) or len(self.at) != len(self.rules) + 1:
            raise MessageError("a gradient has a centre and a coefficient for each rule, and an intercept")
        if not all(math.isfinite(one) and abs(one) <= 1e4 for one in self.at):
            raise MessageError("the coefficients of a gradient are numbers of at most 10,000")

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        votes, positive = self.judge(cohort)
        rows = np.ones((len(self.rules) + 1, len(positive)))
        for place, centre in enumerate(self.centres):
            own = votes[:, place]
            rows[place + 1] = np.where(own < 0, 0.0, own - centre)
        # Number by number: a product of matrices may round a patient's numbers by how many others there are.
        length, predictor = np.zeros(len(positive)), np.zeros(len(positive))
        for row in rows:
            length += row * row
        rows *= np.minimum(1.0, self.norm / np.sqrt(length))
        for row, coefficient in zip(rows, self.at, strict=True):
            predictor += coefficient * row
        residual = 0.5 * (1 + np.tanh(0.5 * predictor)) - positive
        shares = np.rint(rows * residual * 2.0**self.places).astype(np.int64)
        total: NDArray[np.int64] = shares.sum(axis=1)
        return total


class AskOutcomeReports(_AboutWindows, Reported, frozen=True, kw_only=True):
    """Of which rule does each client of a group report whether it holds, and whether the client has the outcome?

    Claim: as protocol/releases/local.py says. A client's list has one entry for each rule that is known in its window,
    one of four; one of them is picked, and randomised (privacy/local_reports.py). docs/methods.md, section 6.12.
    """

    kind: ClassVar[str] = "rules.outcome-reports"

    task: RuleTask
    rules: tuple[str, ...]

    @property
    def weights(self) -> Weights:  # type: ignore[override]
        return EVENLY

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "exact_epsilon": self.price}

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return find_groups(self.task.learning is not None)

    @property
    def channel(self) -> ReportChannel:
        return ReportChannel(4 * len(self.rules), len(self.rules), self.price)

    def check(self, release: Release) -> None:
        super().check(release)
        self.check_windows()

    def list_ids(self, cohort: Cohort) -> Sequence[Value | None]:
        return cohort.take_part("series").ids

    def list_answers(self, cohort: Cohort) -> ListedAnswers:
        assert self.task.learning is not None
        series = prepare(cohort.take_part("series"), self.task)
        ends, _ = find_judged_windows(series, self.task.learning.outcome, self.task.learning.steps, EVENLY)
        votes, positive = self.judge(cohort)
        everyone = np.full((len(series), len(self.rules)), -1, dtype=np.int8)
        everyone[ends > 0] = votes
        ill = np.zeros(len(series), dtype=np.bool_)
        ill[ends > 0] = positive
        known = everyone >= 0
        cells = 4 * np.arange(len(self.rules), dtype=np.int32) + np.where(ill, 0, 2).astype(np.int32)[:, None]
        cells += everyone == 0
        starts = np.concatenate(([0], np.cumsum(known.sum(axis=1), dtype=np.int64)))
        return ListedAnswers(starts, cells[known])
