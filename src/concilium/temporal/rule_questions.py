"""What a discovery asks of hospitals: counts with noise, randomised reports, and yes or no of each client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import FormulaError, MessageError
from concilium.privacy.bits import find_replacement_threshold, randomize_bits, randomize_codes
from concilium.privacy.local_reports import ListedAnswers, ReportChannel
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import EXACT, PRIVATE, Reported, Sensitivity, Summed, is_positive
from concilium.protocol.work import CALL, Workload
from concilium.records.columns import Value
from concilium.records.series_outcomes import find_windows
from concilium.records.time_grid import read_step
from concilium.temporal.evaluation import satisfied_all
from concilium.temporal.formula import Formula
from concilium.temporal.local_search import GROUPS
from concilium.temporal.parsing import parse
from concilium.temporal.path_search import PATH_LENGTH
from concilium.temporal.rule_grammar import STRUCTURE, Bins, find_level
from concilium.temporal.rule_task import (
    MOST_PARENTS,
    RulePart,
    RuleTask,
    check_task,
    open_part,
    read_template,
)
from concilium.temporal.site_rules import count_points, open_index, prepare

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

    For a discovery that trusts sums over hospitals (docs/methods.md, sections 6.8 and 6.11).

    Claim. Protected: each client, all its rules at once, from the house and as many colluding hospitals as the
    manifest tolerates, at the rho that is charged. One client, added or removed, adds 1 to n and to at most `most`
    of the entries, whatever its rules (template_index.py): the squared L2 sensitivity is min(most, entries) + 1,
    without n one less.
    """

    kind: ClassVar[str] = "rules.counts"
    releases: ClassVar[frozenset[str]] = PRIVATE

    part: RulePart
    most: int

    @property
    def reads(self) -> frozenset[str]:
        return _find_parts(self.part.task)

    @property
    def patience(self) -> float:
        return _find_patience(self.part.task)

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
        _check_most(self.most)
        open_part(self.part)

    def estimate(self, patients: int, columns: int) -> Workload:
        return _estimate_rules(self.part, self.most, patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        index, part = open_index(cohort, self.part.task), open_part(self.part)
        listed = part.list(index, self.most)
        counts = np.bincount(listed.templates, minlength=part.size).astype(np.int64)
        return np.append(counts, len(cohort)) if self.counts_clients else counts


def _find_parts(task: RuleTask) -> frozenset[str]:
    """What hospitals must hold of their patients: rules, or series to learn them from."""
    return frozenset({"rules" if task.learning is None else "series"})


def _find_patience(task: RuleTask) -> float:
    """Where rules are learned first, that takes some milliseconds for each patient."""
    return 0.0 if task.learning is None else LEARNING_TAKES


def _check_most(most: int) -> None:
    if not 1 <= most <= MOST_ENTRIES:
        raise MessageError(f"a client counts for 1 to {MOST_ENTRIES} entries of a question; got {most}")


def _estimate_rules(part: RulePart, most: int, patients: int) -> Workload:
    """To make the entries, to index (and learn) so many rules of each patient, and to count them."""
    made = Workload(CALL + MAKE_TEMPLATE * (open_part(part).size + len(part.about)), 0)
    learned = LEARN_RULES if part.task.learning is not None else 0
    return made + Workload((INDEX_RULE * most + learned) * patients, RULE_BYTES * most * patients)


ASSUMED_RULES = 100
PARAMETER_SHARE = Fraction(1, 4)
"""Of the epsilon of a path, for all parameters of its structure."""


class AskRuleCodes(Summed, frozen=True, kw_only=True):
    """How many clients say that a parameter of their rule of this structure lies in each bin, and that they have none?

    `epsilon` is that of a whole path.

    It is the last question of a path, about a structure that passed the final check.

    Claim, and its narrow unit: as `AskRuleBits`. A client reports the bin of its first rule of the structure, or
    that it has none, by k-ary randomised response at the stated epsilon (privacy/bits.py); the parameters of a
    structure share a quarter of the epsilon of a path. docs/methods.md, section 6.10.
    """

    kind: ClassVar[str] = "rules.codes"
    releases: ClassVar[frozenset[str]] = EXACT

    task: RuleTask
    structure: str
    parameter: int
    epsilon: str

    @property
    def reads(self) -> frozenset[str]:
        return _find_parts(self.task)

    @property
    def patience(self) -> float:
        return _find_patience(self.task)

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
        return _estimate_rules(self.part, ASSUMED_RULES, patients) + Workload(200 * patients, 32 * patients)

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


# For each patient: to find its group, and to draw its report.
REPORT = 2_000


class AskRuleReports(Reported, frozen=True, kw_only=True):
    """Which entry of a part of the rules does each client of a group report?

    At most so many (`most`) are on its list.

    Claim: as protocol/releases/local.py says. What a client reports is drawn from the entries of the question that
    are true of its own rules, padded and randomised (privacy/local_reports.py). docs/methods.md, sections 6.9 and
    6.11.
    """

    kind: ClassVar[str] = "rules.reports"

    part: RulePart
    most: int

    @property
    def reads(self) -> frozenset[str]:
        return _find_parts(self.part.task)

    @property
    def patience(self) -> float:
        return _find_patience(self.part.task)

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
        _check_most(self.most)
        open_part(self.part)

    def estimate(self, patients: int, columns: int) -> Workload:
        return _estimate_rules(self.part, self.most, patients) + Workload(REPORT * patients, 64 * patients)

    def list_ids(self, cohort: Cohort) -> Sequence[Value | None]:
        (name,) = self.reads
        return cohort.take_part(name).ids

    def list_answers(self, cohort: Cohort) -> ListedAnswers:
        index = open_index(cohort, self.part.task)
        return open_part(self.part).list(index, self.channel.entries)


MOST_CHARACTERS = 1_000
# For each patient and rule; for each patient, whose window is found.
JUDGE, FIND_WINDOW = 400, 2_000


class AskRuleOutcomes(Summed, frozen=True, kw_only=True):
    """For each rule, how many clients with the outcome fulfil and break it, and how many without, with noise?

    By the window in which a client first has the outcome, or its last one where it never has.

    Claim. Protected: each client, from the house and as many colluding hospitals as the manifest tolerates, at the
    rho that is charged. A client has one window, and adds 1 to at most one of the four counts of each rule: the
    squared L2 sensitivity is the number of rules. docs/methods.md, section 6.12.
    """

    kind: ClassVar[str] = "rules.outcomes"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: RuleTask
    rules: tuple[str, ...]

    @property
    def reads(self) -> frozenset[str]:
        return _find_parts(self.task)

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
            _check_rule(_read_rule(text), self.task)

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
            truths = satisfied_all([_read_rule(text) for text in self.rules], windows, absent=True)
            known = ~np.ma.getmaskarray(truths)
            for place, (with_outcome, holds) in enumerate(CELLS):
                who = known & (truths.data == holds) & (positive[there] == with_outcome)
                counts[:, place] = who.sum(axis=1)
        return counts


CELLS = ((True, True), (True, False), (False, True), (False, False))
"""Whether a client has the outcome, and whether it fulfils the rule."""


def _check_rule(rule: Formula, task: RuleTask) -> None:
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


def _read_rule(text: str) -> Formula:
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


class AskRuleBits(Summed, frozen=True, kw_only=True):
    """How many clients say that they have a rule which this template matches, each by a coin of its own?

    A question of a path has the epsilon `each`, the last one (`final`) has `last`.

    Claim, and its narrow unit. Protected: one rule of one client, from everybody, at the epsilon of a path. It is
    no claim about a client, so that these answers are released, charged and called as `exact` is, without a bound;
    what the coins add is said on the card, with its unit. Only templates of a level are asked about, of which a
    rule has one each: once, however they are written, and structures once more at the end. All questions of a study
    have one epsilon, and the last one of a path what is left, which sites hold to. docs/methods.md, section 6.10.
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
        return _find_parts(self.task)

    @property
    def patience(self) -> float:
        return _find_patience(self.task)

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
        return _estimate_rules(part, ASSUMED_RULES, patients) + Workload(200 * patients, 32 * patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        matched = open_index(cohort, self.task).match(read_template(self.template))
        said = randomize_bits(matched, Fraction(self.last if self.final else self.each))
        return np.array([np.count_nonzero(said)], dtype=np.uint32)
