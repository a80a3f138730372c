"""A formula with some of its parts changed."""

from __future__ import annotations

from collections.abc import Callable

from concilium.temporal.formula import (
    Always,
    Conjunction,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Negation,
    Until,
)


def rebuild(formula: Formula, change: Callable[[Formula], Formula]) -> Formula:
    """The formula with `change` made to each of its parts, from the leaves upwards."""
    parts = formula.children
    if parts:
        changed = tuple(rebuild(part, change) for part in parts)
        if any(new is not old for new, old in zip(changed, parts, strict=True)):
            formula = with_children(formula, changed)
    return change(formula)


def replace_part(formula: Formula, place: int, part: Formula) -> Formula:
    """The formula with one part replaced, counted in the order of `walk` (0 is the whole)."""
    if place == 0:
        return part
    place -= 1
    children = list(formula.children)
    for index, child in enumerate(children):
        count = sum(1 for _ in child.walk())
        if place < count:
            children[index] = replace_part(child, place, part)
            return with_children(formula, tuple(children))
        place -= count
    raise IndexError("a formula has no such part")


def with_children(formula: Formula, children: tuple[Formula, ...]) -> Formula:
    """The same operator about other formulas."""
    match formula:
        case Conjunction() | Disjunction():
            return type(formula)(children)
        case Negation():
            return Negation(*children)
        case Implication():
            return Implication(*children)
        case Always() | Eventually():
            return type(formula)(formula.window, *children)
        case Until():
            return Until(children[0], formula.window, children[1])
    return formula
