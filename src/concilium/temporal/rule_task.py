"""What a discovery is about, as a study states it and every question repeats it: variables, forms of rules, and how a
hospital learns them where it holds series. All of it is public; nothing here depends on a patient.

docs/methods.md, section 6.11.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from concilium.records.clinical_ranges import CLINICAL_RANGES
from concilium.records.time_grid import count_steps
from concilium.temporal.learning import RuleLearner
from concilium.temporal.rule_grammar import RuleGrammar
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.windows import Window

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
    intervals within a `horizon` of so many steps. `learning` where hospitals hold series, and not rules."""

    variables: tuple[PublicLimits, ...]
    horizon: int
    limits: int
    learning: LearningTask | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The variables."""
        return tuple(variable.name for variable in self.variables)

    @property
    def edges(self) -> dict[str, tuple[float, ...]]:
        """The limits of each variable."""
        return {variable.name: variable.edges for variable in self.variables}


@lru_cache(maxsize=8)
def open_grammar(task: RuleTask, names: tuple[str, ...] = ()) -> RuleGrammar:
    """The forms that rules of a task may have, with all variables or with these; the grammar of what the local learner
    breeds, or a wide one for rules that were given."""
    if names:
        return open_grammar(task).restrict(names)
    if task.learning is not None:
        return RuleGrammar.from_space(open_space(task), task.limits)
    last = task.horizon
    intervals = [Window(first, end) for first in range(last + 1) for end in range(first, last + 1)]
    return RuleGrammar(task.edges, (None, *intervals), relations=ALL_RELATIONS, limits=task.limits, wide=True)


@lru_cache(maxsize=8)
def open_space(task: RuleTask) -> SearchSpace:
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
    """The local learner of a task: the same at every hospital."""
    assert task.learning is not None
    return RuleLearner(space=open_space(task), rules=task.learning.rules, seed=1)
