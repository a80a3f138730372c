"""What a discovery asks of hospitals: counts with noise, randomised reports, and yes or no of each client.

A site answers for the rules that it holds, or those that its series teach, of each patient by itself. Learning is done
once for a hospital and a task, whatever is asked after; an index is kept for the patients of the last few questions.
Nothing of it leaves the site. docs/methods.md, section 6.11.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, FormulaError, MessageError
from concilium.privacy.local_reports import ListedAnswers, ReportChannel
from concilium.privacy.mechanisms import find_replacement_threshold, randomize_bits, randomize_codes
from concilium.protocol.attributes import CALL, Workload
from concilium.protocol.cohort import Cohort, LastResults
from concilium.protocol.questions import EXACT, PRIVATE, Reported, Sensitivity, Summed, is_positive
from concilium.records.columns import Value
from concilium.records.patients import PatientPart
from concilium.records.series import Series, find_windows
from concilium.records.series_description import find_constant
from concilium.records.series_times import read_step
from concilium.temporal.evaluation import count_points
from concilium.temporal.formula import Formula
from concilium.temporal.local_search import find_groups
from concilium.temporal.parsing import parse
from concilium.temporal.path_search import PATH_LENGTH
from concilium.temporal.rule_grammar import STRUCTURE, Bins, find_level
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.rule_task import (
    STAGES,
    RulePart,
    RuleTask,
    list_conditions,
    open_grammar,
    open_learner,
    open_part,
    read_template,
)
from concilium.temporal.template_index import TemplateIndex

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release


LEARNING = __name__
log = logging.getLogger(LEARNING)
log.addHandler(logging.NullHandler())

ANYBODY = "anybody"
LAST_RULES, LAST_INDEXES = LastResults[RuleSets](6), LastResults[TemplateIndex](6)


def _open_index(cohort: Cohort, task: RuleTask) -> TemplateIndex:
    """The rules of these patients, indexed."""
    part, rows = cohort.view.find_part("rules" if task.learning is None else "series"), cohort.population.rows

    def make() -> TemplateIndex:
        rule_sets = part if isinstance(part, RuleSets) else learn_rules(part, task)
        if len(rows) < len(part):
            return TemplateIndex(rule_sets.take(rows.astype(np.intp)))
        index = TemplateIndex(rule_sets)
        _warn_of_foreign(index, task)
        return index

    return LAST_INDEXES.find(part, (task, cohort.digest), make)


def prepare(part: PatientPart, task: RuleTask) -> Series:
    """The series as they are learned from and judged: the study's variables, its static columns and its outcome, values
    carried forward.

    An outcome that is neither 0 nor 1 is missing: no patient's odd value decides whether there is an answer.
    """
    check_series(part, task)
    learning = task.learning
    assert isinstance(part, Series)
    assert learning is not None
    truth = part.stays[learning.outcome]
    carried = carry_values(part, task.names, task.static_names, learning.carry)
    outcome = np.where((truth == 0) | (truth == 1), truth, np.float32(np.nan))
    return carried.with_stays({**carried.stays, learning.outcome: outcome})


def check_series(part: PatientPart, task: RuleTask) -> None:
    """DoesNotFit where series have another step, no outcome, or no variable of the task that changes over time."""
    learning = task.learning
    assert isinstance(part, Series)
    assert learning is not None
    if part.step_hours != read_step(learning.step):
        raise DoesNotFit(
            f"the series of this hospital have a step of {part.step}, and the study's is {learning.step}: read "
            f'them with step="{learning.step}"'
        )
    if stated := sorted({*part.static} & {*task.names}):
        raise DoesNotFit(
            f"this hospital states that {stated[0]!r} is static, and the study's rules are about it as a variable: "
            f"state static = [{stated[0]!r}] in the study, or take it out at the hospital"
        )
    if learning.outcome not in part or not any(name in part for name in task.names):
        raise DoesNotFit(
            f"this hospital's series have no {learning.outcome!r}, or none of the variables that the study is about"
        )


def carry_values(series: Series, names: Sequence[str], static: Sequence[str], carry: str) -> Series:
    """These variables, their values carried forward for so long, and these static columns, without an end."""
    spans: dict[str, str | None] = {**dict.fromkeys(names, carry), **dict.fromkeys(static)}
    return series.state(spans).carry_forward(spans)


def learn_rules(part: PatientPart, task: RuleTask) -> RuleSets:
    """Each patient's rules from that patient's windows alone: the limits are public, and chance is the same for all.

    (By itself the learner draws by a patient's id, or place; one who comes or goes would move all places after.)
    """

    def make() -> RuleSets:
        assert task.learning is not None
        outcome, window = task.learning.outcome, task.learning.window
        series, learner = prepare(part, task).choose([*task.names, outcome]), open_learner(task)
        _warn_of_static(part, task)
        alike = Series.from_stays(
            series.stays, series.lengths, step=series.step, ids=[ANYBODY] * len(series), points=series.points
        )
        ends, _ = find_windows(series, outcome, task.learning.steps)
        # Where nobody has a window with an outcome that is no error, or one patient would decide whether there is one.
        known = bool(ends.any())
        tell = _Progress(len(series))
        learned = RuleSets([()] * len(series))
        if known:
            learned = RuleSets.learn(alike, learner, outcome, window, progress=tell.count)
        learned.ids = part.ids
        return learned

    return LAST_RULES.find(part, task, make)


class _Progress:
    """Says in the hospital's own log how far learning has come, about every second."""

    def __init__(self, patients: int) -> None:
        self._patients, self._learned, self._said = patients, 0, time.monotonic()

    def count(self, learned: int) -> None:
        self._learned += learned
        if time.monotonic() - self._said > 1:
            self._said = time.monotonic()
            log.info("learned the rules of %s of %s patients", f"{self._learned:,}", f"{self._patients:,}")


def _warn_of_foreign(index: TemplateIndex, task: RuleTask) -> None:
    """For the hospital's own log: whether the study looks for rules of the kind that its patients have."""
    reached = index.find_reached(open_grammar(task))
    if len(reached) and not reached.any():
        log.warning(
            "no patient here has a rule that this study can find: its variables are %s, and its rules have at most %d "
            "limits",
            ", ".join(task.names[:10]),
            task.limits,
        )


def _warn_of_static(part: PatientPart, task: RuleTask) -> None:
    """For the hospital's own log: variables that never change, and static columns that it lacks."""
    assert isinstance(part, Series)
    for name in find_constant(part, task.names):
        log.warning(CONSTANT, name, name)
    for name in task.static_names:
        if name not in part or np.isnan(part.stays[name]).all():
            log.warning(
                "static column %r has no value here: its conditions are unknown of these patients", name
            )


CONSTANT = "%r has one value in each stay, so that a rule over time says nothing of it: state static = [%r]"


Most = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
"""Of the entries of a question, how many a client may count for."""
# For each template to be made; for each rule of a patient to be indexed and counted, and learned.
MAKE_TEMPLATE, INDEX_RULE, LEARN_RULES = 20_000, 100, 800_000
RULE_BYTES = 12
LEARNING_TAKES = 3600.0  # seconds, at most


class _AboutRules:
    """What questions about patients' rules have in common."""

    __slots__ = ()
    task: RuleTask

    @property
    def reads(self) -> frozenset[str]:
        """What hospitals must hold of their patients: rules, or series to learn them from."""
        return frozenset({"rules" if self.task.learning is None else "series"})

    @property
    def patience(self) -> float:
        """Where rules are learned first, that takes some milliseconds for each patient."""
        return 0.0 if self.task.learning is None else LEARNING_TAKES


class _AboutPart(_AboutRules):
    """What questions have in common for which each patient is in at most `most` of the entries of a `part`."""

    __slots__ = ()
    part: RulePart
    most: int

    @property
    def task(self) -> RuleTask:  # type: ignore[override]
        return self.part.task

    def estimate(self, patients: int, columns: int) -> Workload:
        return _estimate_rules(self.part, self.most, patients)


class AskRuleCounts(_AboutPart, Summed, frozen=True, kw_only=True):
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
    most: Most

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.part.task, "most_rules": self.most}

    @property
    def shape(self) -> tuple[int, ...]:
        return ((1 + self.by_outcome) * (open_part(self.part).size + self.counts_clients),)

    @property
    def by_outcome(self) -> bool:
        """Whether all numbers come twice, of clients with the outcome and of those without: a client is in one of them,
        so that the sensitivity is the same."""
        return self.part.task.by_outcome and self.part.stage in STAGES

    @property
    def counts_clients(self) -> bool:
        """Whether the last number is how many clients there are: not at the end, when that is known by then."""
        return self.part.stage not in ("parameters", "rules")

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(min(self.most, open_part(self.part).size) + self.counts_clients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        index, part = _open_index(cohort, self.part.task), open_part(self.part)
        listed = part.list(index, self.most)
        if not self.by_outcome:
            counts = np.bincount(listed.templates, minlength=part.size).astype(np.int64)
            return np.append(counts, len(cohort)) if self.counts_clients else counts
        ill = _find_ill(cohort, self.part.task)
        owners = np.repeat(ill, np.diff(listed.starts))
        return np.concatenate(
            [
                np.append(
                    np.bincount(listed.templates[owners == one], minlength=part.size), (ill == one).sum()
                )
                for one in (True, False)
            ]
        ).astype(np.int64)


LAST_ILL = LastResults["NDArray[np.bool_]"](6)


def _find_ill(cohort: Cohort, task: RuleTask) -> NDArray[np.bool_]:
    """Which of the clients have a window with the outcome."""
    part = cohort.view.find_part("series")

    def make() -> NDArray[np.bool_]:
        assert task.learning is not None
        return find_windows(prepare(part, task), task.learning.outcome, task.learning.steps)[1]

    return LAST_ILL.find(part, task, make)[cohort.population.rows.astype(np.intp)]


def _estimate_rules(part: RulePart, most: int, patients: int) -> Workload:
    """To make the entries, to index (and learn) so many rules of each patient, and to count them."""
    made = Workload(CALL + MAKE_TEMPLATE * (open_part(part).size + len(part.about)), 0)
    learned = LEARN_RULES if part.task.learning is not None else 0
    return made + Workload((INDEX_RULE * most + learned) * patients, RULE_BYTES * most * patients)


ASSUMED_RULES = 100
PARAMETER_SHARE = Fraction(1, 4)
"""Of the epsilon of a path, for all parameters of its structure."""


class _AlongPath(_AboutRules):
    """What questions along a path have in common: a client randomises its own answer, of the rules of `part`."""

    __slots__ = ()
    part: RulePart

    def estimate(self, patients: int, columns: int) -> Workload:
        return _estimate_rules(self.part, ASSUMED_RULES, patients) + Workload(200 * patients, 32 * patients)


class AskRuleCodes(_AlongPath, Summed, frozen=True, kw_only=True):
    """How many clients say that a parameter of their rule of this structure lies in each bin, and that they have none?

    `epsilon` is that of a whole path.

    It is the last question of a path, about a structure that passed the final check.

    Claim, and its narrow unit: as `AskRuleBits`. A client reports the bin of its first rule of the structure, or
    that it has none, by k-ary randomised response at the stated epsilon (privacy/mechanisms.py); the parameters of a
    structure share a quarter of the epsilon of a path. docs/methods.md, section 6.10.
    """

    kind: ClassVar[str] = "rules.codes"
    releases: ClassVar[frozenset[str]] = EXACT

    task: RuleTask
    structure: str
    parameter: int
    epsilon: str

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "exact_epsilon": Fraction(self.epsilon)}

    @property
    def once(self) -> tuple[str, str]:
        return self.epsilon, f"{read_template(self.structure)} {self.parameter}"

    @property
    def part(self) -> RulePart:  # type: ignore[override]
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

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        bins, size = open_part(self.part).bins[0], len(self.bins)
        first = sum(len(each) for each in bins[: self.parameter])
        listed = open_part(self.part).list(_open_index(cohort, self.task), sum(map(len, bins)))
        owners = np.repeat(np.arange(len(cohort)), np.diff(listed.starts))
        own = (listed.templates >= first) & (listed.templates < first + size)
        codes = np.full(len(cohort), size, dtype=np.int64)  # who has none
        # Of several rules the first counts: it is set last.
        codes[owners[own][::-1]] = listed.templates[own][::-1] - first
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


class AskRuleReports(_AboutPart, Reported, frozen=True, kw_only=True):
    """Which entry of a part of the rules does each client of a group report?

    At most so many (`most`) are on its list.

    Claim: as protocol/releases/local.py says. What a client reports is drawn from the entries of the question that
    are true of its own rules, padded and randomised (privacy/local_reports.py). docs/methods.md, sections 6.9 and
    6.11.
    """

    kind: ClassVar[str] = "rules.reports"

    part: RulePart
    most: Most

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.part.task, "exact_epsilon": self.price}

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return find_groups(self.part.task.learning is not None)

    @property
    def channel(self) -> ReportChannel:
        return ReportChannel(max(open_part(self.part).size, 1), self.most, self.price)

    def estimate(self, patients: int, columns: int) -> Workload:
        return super().estimate(patients, columns) + Workload(REPORT * patients, 64 * patients)

    def list_ids(self, cohort: Cohort) -> Sequence[Value | None]:
        (name,) = self.reads
        return cohort.take_part(name).ids

    def list_answers(self, cohort: Cohort) -> ListedAnswers:
        index = _open_index(cohort, self.part.task)
        return open_part(self.part).list(index, self.channel.entries)


MOST_CHARACTERS = 1_000


def check_rule(rule: Formula, task: RuleTask) -> None:
    """MessageError unless a rule is about the study's variables, within a window."""
    assert task.learning is not None
    if not rule.variables <= set(task.names) and str(rule.canonical()) not in list_conditions(task.static):
        raise MessageError(
            "a rule that is judged is about variables of its study, or one of its static conditions"
        )
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


class AskRuleBits(_AlongPath, Summed, frozen=True, kw_only=True):
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
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "exact_epsilon": self.path_epsilon}

    @property
    def part(self) -> RulePart:  # type: ignore[override]
        return RulePart(self.task, "clients")

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
        if not is_positive(self.each) or not is_positive(self.last):
            raise MessageError("a question along a path says its epsilon, and that of the last one")
        # A rule has one template on each level, and changes no other answer: that is all that a path costs.
        level = find_level([read_template(self.template)])
        if level is None or (self.final and level != STRUCTURE):
            raise MessageError(
                "a question along a path is about a template of a level, the last one a structure"
            )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        matched = _open_index(cohort, self.task).match(read_template(self.template))
        said = randomize_bits(matched, Fraction(self.last if self.final else self.each))
        return np.array([np.count_nonzero(said)], dtype=np.uint32)
