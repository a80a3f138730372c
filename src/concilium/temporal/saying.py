"""Temporal formulas in words, for people who ask about one patient (docs/temporal-logic.md has the notation)."""

from __future__ import annotations

from concilium.temporal.formula import (
    Always,
    Conjunction,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Limit,
    Negation,
    Until,
)
from concilium.temporal.windows import Window

RELATION_WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


def say_formula(formula: Formula, step: str = "1h") -> str:
    """A formula as a clause: "in hours 0 to 5 always HR at least 90"."""
    match formula:
        case Limit(variable, relation, number):
            words = RELATION_WORDS.get(str(relation), str(relation))
            return f"{variable} {words} {_say_number(number)}"
        case Negation(inner):
            return f"not ({say_formula(inner, step)})"
        case Conjunction(parts):
            return " and ".join(_enclose(part, step) for part in parts)
        case Disjunction(parts):
            return " or ".join(_enclose(part, step) for part in parts)
        case Implication(premise, result):
            return f"if {_enclose(premise, step)}, then {_enclose(result, step)}"
        case Always(window, inner):
            return f"{say_window(window, step)} always {_enclose(inner, step)}"
        case Eventually(window, inner):
            return f"{say_window(window, step)} at some time {_enclose(inner, step)}"
        case Until(left, window, right):
            return f"{_enclose(left, step)} until, {say_window(window, step)}, {_enclose(right, step)}"
    return str(formula)


def say_window(window: Window | None, step: str) -> str:
    """An interval in words: hours where a step is one, else steps."""
    if window is None:
        return "from then on"
    unit = {"1h": "hour", "60min": "hour", "1d": "day", "24h": "day", "1min": "minute"}.get(step, "step")
    if window.low == window.high:
        return f"in {unit} {window.low}"
    return f"in {unit}s {window.low} to {window.high}"


def _say_number(number: object) -> str:
    return f"{number:g}" if isinstance(number, float | int) else str(number)


def _enclose(part: Formula, step: str) -> str:
    said = say_formula(part, step)
    return said if isinstance(part, Limit) else f"({said})"
