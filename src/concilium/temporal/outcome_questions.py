"""What a discovery asks about the outcome: when it begins, how the rules stand to it, and gradients of a fit on rules.

A hospital's votes of rules on windows are kept for the last few questions; nothing of them leaves the site.

Every patient is judged by one window: where the outcome begins, and of patients without it at a matched time. A patient
without the outcome who is judged at the end of the stay is judged when things are best, or worst. So controls get a
window at a random time, and the times follow the hours since admission at which the outcome begins in others: these are
counted with noise over public hours, once, for a price of their own (`AskOutcomeHours`).

Claim. A patient's window depends on that patient alone: on its own stay, on public hours and weights, and on chance
that is drawn from what was measured of it. docs/methods.md, section 6.12.
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
from concilium.records.series import Series, find_windows
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.local_search import find_groups
from concilium.temporal.rule_questions import check_rule, prepare, read_rule
from concilium.temporal.rule_task import MOST_PARENTS, RuleTask, hold_latest

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release


HOURS = (6, 12, 18, 24, 36, 48, 72, 96, 144, 240)
"""Public: since admission, the hours up to which windows end that are taken for alike."""
HOUR_BINS = len(HOURS) + 1
ROUNDS = 300
STEEPEST = 100.0
EVENLY = (1.0,) * HOUR_BINS
"""Any time of the stay, where nobody knows when the outcome begins."""


def find_judged_windows(
    series: Series, outcome: str, steps: int, weights: Sequence[float] = ()
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the one window of each patient ends (0: it has none), and whether it has the outcome.

    That is the first window that ends with the outcome; of patients who never have it, one that is drawn with these
    `weights` of `HOURS`, or the last one without weights.
    """
    ends, positive = find_windows(series, outcome, steps)
    if not len(weights) or positive.all():
        return ends, positive
    starts, owners = series.starts, np.repeat(np.arange(len(series)), np.diff(series.starts))
    cells = np.arange(len(owners)) - starts[:-1][owners]
    free = np.flatnonzero((cells >= steps - 1) & (series.stays[outcome] == 0) & ~positive[owners])
    if not len(free):
        return ends, positive
    own, bins = owners[free], _find_bins(cells[free] + 1, series.step_hours)
    # The weight of an hour is shared by the patient's own windows in it.
    alike = np.bincount(own * HOUR_BINS + bins, minlength=len(series) * HOUR_BINS)
    chance = np.asarray(weights, dtype=np.float64)[bins] / alike[own * HOUR_BINS + bins]
    chance = np.where(chance > 0, chance, 1e-12)
    reached = np.cumsum(chance)
    begins = np.flatnonzero(np.diff(own, prepend=-1))
    before = np.concatenate(([0.0], reached[np.concatenate((begins[1:] - 1, [len(own) - 1]))]))
    turn = before[:-1] + _draw_turns(series)[own[begins]] * np.diff(before)
    chosen = np.clip(
        np.searchsorted(reached, turn, side="right"), begins, np.concatenate((begins[1:], [len(own)])) - 1
    )
    ends[own[begins]] = cells[free[chosen]] + 1
    return ends, positive


def _find_bins(ends: NDArray[np.int64], step_hours: float) -> NDArray[np.intp]:
    return np.searchsorted(np.array(HOURS), ends * step_hours, side="left")


def _draw_turns(series: Series) -> NDArray[np.float64]:
    """A number from 0 to 1 for each patient, from what was measured of it: nobody else's coming or going moves it."""
    turns: NDArray[np.float64] = (series.hashes[0] >> np.uint64(11)).astype(np.float64) / 2.0**53
    return turns


def count_hours(series: Series, outcome: str, steps: int) -> NDArray[np.int64]:
    """[2, hours]: how many patients have the outcome first at these hours, and how many never do and have their last
    window there."""
    ends, positive = find_windows(series, outcome, steps)
    there = ends > 0
    bins = _find_bins(ends, series.step_hours)
    return np.array(
        [
            np.bincount(bins[there & (positive == ill)], minlength=HOUR_BINS).astype(np.int64)
            for ill in (True, False)
        ]
    )


def match_controls(counts: NDArray[np.int64], deviation: float) -> tuple[float, ...]:
    """With which weights controls draw their hours, so that they end as those of cases do, as nearly as stays allow.

    A control whose last window is in one bin can draw from all bins up to it; the weights are found by fitting the
    shares that follow to those of cases, bin by bin, again and again.
    """
    last = np.maximum(counts[1], 0) + 1e-9
    at_risk = np.cumsum(last[::-1])[::-1]
    # What noise alone could have made of nobody is nobody.
    seen = (counts[0] > 2 * deviation) & (at_risk > 3 * deviation * math.sqrt(HOUR_BINS))
    cases = np.where(seen, counts[0], 0).astype(np.float64)
    if cases.sum() <= 3 * deviation * math.sqrt(HOUR_BINS):
        return EVENLY
    wanted = cases / cases.sum()
    weights = wanted.copy()
    for _ in range(ROUNDS):
        reach = np.maximum(np.cumsum(weights), 1e-12)
        drawn = weights * np.cumsum((last / reach)[::-1])[::-1]
        share = drawn / max(drawn.sum(), 1e-12)
        weights = weights * np.sqrt(wanted / np.maximum(share, 1e-9))
        weights = np.minimum(weights / weights.sum(), STEEPEST * wanted)
    return tuple(round(float(weight), 6) for weight in weights / weights.max())


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
            return _judge_rules(
                prepare(cohort.take_part("series"), task),
                task,
                list(map(read_rule, self.rules)),
                self.weights,
            )

        return LAST_VOTES.find(part, (task, self.rules, self.weights, cohort.digest), make)


def _judge_rules(
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
