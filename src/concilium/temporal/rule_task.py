"""What a discovery is about, as a study states it and every question repeats it: variables, forms of rules, and how a
hospital learns them where it holds series. All of it is public; nothing here depends on a patient.

Static columns, such as age and sex, are in conditions beside the rules and never variables of them. A condition
compares one static column with a public number: `Age >= 65`, or `Gender = 1` of a code. It is judged by the latest
value that was recorded until the end of a patient's window. Claim: which conditions there are follows from the study
alone, so that it costs no privacy; what they say of the outcome is counted and fitted with the rules
(outcome_questions.py), where each condition is one more rule in the sensitivity.

docs/methods.md, sections 6.11 and 6.12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from concilium.errors import FormulaError, MessageError
from concilium.privacy.local_reports import ListedAnswers
from concilium.records.clinical_ranges import CLINICAL_RANGES
from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.records.series import Series
from concilium.records.series_times import count_steps
from concilium.temporal.formula import Conjunction, Formula, Limit
from concilium.temporal.learning import RuleLearner
from concilium.temporal.parsing import parse
from concilium.temporal.rule_grammar import LEVELS, STRUCTURE, Bins, RuleGrammar, find_level
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.template_index import TemplateIndex, work_out_once
from concilium.temporal.windows import Window


class StaticColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that does not change within a stay: where it is cut (`edges`, rising), or the values of a code
    (`values`, the first of which the others are compared with)."""

    name: str
    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def conditions(self) -> tuple[Formula, ...]:
        """One for each cutoff, and for each value but the first."""
        cut = [Limit(self.name, ">=", edge) for edge in self.edges]
        coded = [
            Conjunction([Limit(self.name, ">=", value), Limit(self.name, "<=", value)])
            for value in self.values[1:]
        ]
        return tuple(one.canonical() for one in (*cut, *coded))


def list_conditions(columns: Iterable[StaticColumn]) -> tuple[str, ...]:
    """The conditions of these columns, as questions write them."""
    return tuple(str(condition) for column in columns for condition in column.conditions)


def say_condition(condition: Formula, dictionary: Mapping[str, DictionaryEntry]) -> str:
    """A condition in words, a value as the dictionary calls it."""
    (name,) = condition.variables
    limits = [part for part in condition.walk() if isinstance(part, Limit)]
    number = float(limits[0].number)  # type: ignore[arg-type]
    if len(limits) == 1:
        return f"{name} >= {number:g}"
    value = int(number) if number.is_integer() else number
    return f"{name} = {say_value(value, dictionary.get(name))}"


def hold_latest(series: Series, names: Iterable[str]) -> Series:
    """The latest value of these columns in every step of a stay, or window."""
    names = [name for name in names if name in series]
    if not names or not len(series):
        return series
    latest = series.choose(names).carry_forward(None)
    owners = np.repeat(series.starts[1:] - 1, series.lengths)
    return series.with_stays({**series.stays, **{name: latest.stays[name][owners] for name in names}})


ALL_RELATIONS = (">=", "<=", ">", "<")


class LearningTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each patient's rules are learned from its own series: windows of so long on this `step`, whose last step has
    the `outcome`; values are carried forward for `carry` at most; at most so many `rules`."""

    outcome: str
    step: str
    window: str
    carry: str
    rules: int

    @property
    def steps(self) -> int:
        """Of a window."""
        return count_steps(self.window, self.step, "window")


class PublicLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable that rules may be about, with the public edges of its limits, rising."""

    name: str
    edges: tuple[float, ...]


class RuleTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`variables` are in order of names; a rule has at most so many `limits`, and
    intervals within a `horizon` of so many steps. `learning` where hospitals hold series, and not rules; `by_outcome`
    where templates are counted with and without the outcome. `static` columns are in conditions beside the rules."""

    variables: tuple[PublicLimits, ...]
    horizon: int
    limits: int
    learning: LearningTask | None = None
    by_outcome: bool = False
    static: tuple[StaticColumn, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The variables."""
        return tuple(variable.name for variable in self.variables)

    @property
    def edges(self) -> dict[str, tuple[float, ...]]:
        """The limits of each variable."""
        return {variable.name: variable.edges for variable in self.variables}

    @property
    def static_names(self) -> tuple[str, ...]:
        """The columns of conditions beside the rules."""
        return tuple(column.name for column in self.static)

    def check(self) -> None:
        """MessageError where it is of unbearable size."""
        if not 1 <= len(self.edges) == len(self.variables) <= MOST_VARIABLES:
            raise MessageError(
                f"a discovery has 1 to {MOST_VARIABLES} different variables, each with public limits"
            )
        if not all(1 <= len(own) <= MOST_EDGES and np.isfinite(own).all() for own in self.edges.values()):
            raise MessageError(f"a variable has 1 to {MOST_EDGES} public limits")
        learning = self.learning
        if learning is not None and not (
            1 <= learning.steps <= MOST_STEPS and 1 <= learning.rules <= MOST_RULES
        ):
            raise MessageError(f"windows have 1 to {MOST_STEPS} steps, and a patient 1 to {MOST_RULES} rules")
        self._check_static()
        if self.by_outcome and learning is None:
            raise MessageError("templates are counted by outcome where hospitals hold series")
        if not 1 <= self.limits <= MOST_LIMITS or not 0 <= self.horizon <= MOST_HORIZON:
            raise MessageError(
                f"rules have 1 to {MOST_LIMITS} limits, and intervals of at most {MOST_HORIZON} steps"
            )

    def _check_static(self) -> None:
        names = set(self.static_names)
        if not self.static:
            return
        if self.learning is None or names & {*self.names, self.learning.outcome}:
            raise MessageError("static columns stand beside the variables of series, and are none of them")
        if len(names) < len(self.static) or len(names) > MOST_VARIABLES:
            raise MessageError(f"a discovery has at most {MOST_VARIABLES} different static columns")
        for column in self.static:
            few = len(column.edges) + len(column.values) <= MOST_EDGES
            try:
                fits = few and bool(column.conditions)
            except FormulaError:  # without a name, or with no number
                fits = False
            if not fits:
                raise MessageError(
                    f"a static column has public cutoffs or values, {MOST_EDGES} at most; {column.name!r} has not"
                )


@lru_cache(maxsize=8)
def open_grammar(task: RuleTask, names: tuple[str, ...] = ()) -> RuleGrammar:
    """The forms that rules of a task may have, with all variables or with these; the grammar of what the local learner
    breeds, or a wide one for rules that were given."""
    if names:
        return open_grammar(task).restrict(names)
    if task.learning is not None:
        return RuleGrammar.from_space(_open_space(task), task.limits)
    last = task.horizon
    intervals = [Window(first, end) for first in range(last + 1) for end in range(first, last + 1)]
    return RuleGrammar(task.edges, (None, *intervals), relations=ALL_RELATIONS, limits=task.limits, wide=True)


@lru_cache(maxsize=8)
def _open_space(task: RuleTask) -> SearchSpace:
    """Where the local learner looks; a unit of a variable is its reference range, where one is known."""
    assert task.learning is not None
    edges = task.edges
    widths = {
        name: CLINICAL_RANGES[name].high - CLINICAL_RANGES[name].low
        for name in edges
        if name in CLINICAL_RANGES
    }
    return SearchSpace(edges, task.learning.steps, widths or None)


def open_learner(task: RuleTask) -> RuleLearner:
    """The local learner of a task: the same at every hospital. A short search: a fifth of the time of a long one, and
    rules nearly as good."""
    assert task.learning is not None
    return RuleLearner(
        space=_open_space(task), rules=task.learning.rules, population=24, generations=8, patience=2, seed=1
    )


Stage = Literal["clients", "names", "skeletons", "variables", "structures", "parameters", "rules"]
STAGES: tuple[Stage, ...] = ("skeletons", "variables", "structures")
"""By level, the first is level 1."""

MOST_EXPANDED = 100_000
MOST_PARENTS = 5_000
MOST_VARIABLES = 1_000
MOST_EDGES = 1_000
MOST_STEPS = 1_000
MOST_RULES = 1_000
MOST_LIMITS = 4
MOST_HORIZON = 48


class RulePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`names` are the variables that are still looked at (empty: all of the task); `about` are the parents of the
    templates that are asked about, the structures whose parameters are, or the very rules.

    A question names the parents that survived so far, and both ends expand them by the public grammar, in the same
    order: thousands of templates travel as a handful of texts.
    """

    task: RuleTask
    stage: Stage
    names: tuple[str, ...] = ()
    about: tuple[str, ...] = ()

    def check(self) -> None:
        """MessageError unless it can be opened."""
        open_part(self)


@dataclass(frozen=True, eq=False)
class _OpenedPart:
    """The entries that are asked about, one count for each: variables, templates, or bins."""

    names: tuple[str, ...] = ()
    templates: tuple[Formula, ...] = ()
    bins: tuple[tuple[Bins, ...], ...] = ()

    @property
    def size(self) -> int:
        """How many entries there are."""
        if self.bins:
            return sum(len(each) for own in self.bins for each in own)
        return len(self.names) or len(self.templates)

    def list(self, index: TemplateIndex, most: int) -> ListedAnswers:
        """Which entries each client has, at most so many."""
        if self.bins:
            return index.list_parameters(self.templates, self.bins, most)
        if self.names:
            return index.list_variables(self.names, most)
        if not self.templates:
            nobody = np.zeros(len(index.rule_sets) + 1, dtype=np.int64)
            return ListedAnswers(nobody, np.zeros(0, dtype=np.int32))
        return index.list_templates(self.templates, most)


@work_out_once
def open_part(part: RulePart) -> _OpenedPart:
    """The entries of a part; MessageError where it is none, or too large."""
    if part.names and not set(part.names) <= set(part.task.names):
        raise MessageError("a question looks at variables of its own study only")
    if len(part.about) > MOST_PARENTS:
        raise MessageError(f"a question names at most {MOST_PARENTS} templates; got {len(part.about)}")
    if part.stage == "clients":
        return _OpenedPart()
    if part.stage == "names":
        return _OpenedPart(names=part.task.names)
    grammar = open_grammar(part.task, part.names)
    if part.stage == "skeletons":
        return _OpenedPart(templates=grammar.skeletons)
    about = tuple(read_template(text) for text in part.about)
    if not about:
        raise MessageError("a question about templates names their parents")
    if part.stage == "rules":
        if any(rule.open_places or not rule.variables <= set(grammar.edges) for rule in about):
            raise MessageError("rules that are counted have no holes, and are about variables of their study")
        return _OpenedPart(templates=about)
    if part.stage == "parameters":
        _check_level(about, grammar, STRUCTURE)
        return _OpenedPart(templates=about, bins=tuple(grammar.find_bins(form) for form in about))
    level = STAGES.index(part.stage) + 1
    _check_level(about, grammar, level - 1)
    return _OpenedPart(templates=_expand_all(grammar, about, level))


def _expand_all(grammar: RuleGrammar, parents: Sequence[Formula], level: int) -> tuple[Formula, ...]:
    """The templates of a level below these, in order."""
    if sum(grammar.count_children(parent, level) for parent in parents) > MOST_EXPANDED:
        raise MessageError(f"a question is about at most {MOST_EXPANDED} templates")
    return tuple(form for parent in parents for form in grammar.expand(parent, level))


def _check_level(templates: Sequence[Formula], grammar: RuleGrammar, deepest: int) -> None:
    """MessageError unless these are templates of one level, not below this one, about the grammar's variables."""
    level = find_level(templates)
    if level is None or level > deepest or (deepest == max(LEVELS) and level != deepest):
        raise MessageError("these are not templates of the level above the one that is asked about")
    for template in templates:
        for limit in template.walk():
            if (
                isinstance(limit, Limit)
                and isinstance(limit.variable, str)
                and limit.variable not in grammar.edges
            ):
                raise MessageError(f"{limit.variable!r} is no variable of this question")


@lru_cache(maxsize=1 << 14)
def read_template(text: str) -> Formula:
    """A template as it is written, canonical; MessageError where it is none."""
    try:
        return parse(text).canonical()
    except FormulaError as error:
        raise MessageError(f"this is no template: {str(error).splitlines()[0]}") from None
