"""Signal temporal logic, `cc.stl`: read a formula, evaluate it on the series of a whole cohort, match templates, learn.

What learns rules is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from concilium.temporal.evaluation import bounds_all, robustness_all, satisfied_all
from concilium.temporal.formula import (
    Always,
    Conjunction,
    Constant,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Limit,
    Negation,
    OpenFormula,
    Proposition,
    Until,
)
from concilium.temporal.parsing import parse
from concilium.temporal.windows import HOLE, Duration, Window

if TYPE_CHECKING:
    from concilium.temporal.learning import LabelledWindows as LabelledWindows
    from concilium.temporal.learning import LearnedRule as LearnedRule
    from concilium.temporal.learning import RuleLearner as RuleLearner
    from concilium.temporal.learning import RuleVote as RuleVote
    from concilium.temporal.learning import cut_windows as cut_windows
    from concilium.temporal.search_space import SearchSpace as SearchSpace
    from concilium.temporal.trajectories import draw_trajectories as draw_trajectories

_LEARNING = "LabelledWindows", "LearnedRule", "RuleLearner", "RuleVote", "cut_windows"
_PLACES = {
    **dict.fromkeys(_LEARNING, "concilium.temporal.learning"),
    "SearchSpace": "concilium.temporal.search_space",
    "draw_trajectories": "concilium.temporal.trajectories",
}

__all__ = [
    "HOLE",
    "Always",
    "Conjunction",
    "Constant",
    "Disjunction",
    "Duration",
    "Eventually",
    "Formula",
    "Implication",
    "LabelledWindows",
    "LearnedRule",
    "Limit",
    "Negation",
    "OpenFormula",
    "Proposition",
    "RuleLearner",
    "RuleVote",
    "SearchSpace",
    "Until",
    "Window",
    "bounds_all",
    "cut_windows",
    "draw_trajectories",
    "parse",
    "robustness_all",
    "satisfied_all",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
