"""Signal temporal logic, `cc.stl`: read a formula, evaluate it on the series of a whole cohort, match templates."""

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
    "Limit",
    "Negation",
    "OpenFormula",
    "Proposition",
    "Until",
    "Window",
    "bounds_all",
    "parse",
    "robustness_all",
    "satisfied_all",
]
