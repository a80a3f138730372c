"""How much of a rule a template shows: levels of abstraction, from its skeleton to its whole structure.

    rule                            G[0,5](HR < 110 and HR >= 60)
    3 structure, the rule without numbers and intervals   G[?](HR < ? and HR >= ?)
    2 variables, the structure without relations          G[?](HR ? ? and HR ? ?)
    1 skeleton, without variables                         G[?](? ? ? and ? ? ?)

Every rule has exactly one template on each level, which matches it, so the templates of a level divide all rules:
a client with at most R rules matches at most R templates of a level, however many are asked. Sensitivities rest on
that (discovery_search.py). The parameters left open by a structure are the last level, one distribution for each
(rule_grammar.py).

docs/methods.md, section 6.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from concilium.temporal.canonical import order
from concilium.temporal.formula import (
    Always,
    Conjunction,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Limit,
    Negation,
    OpenFormula,
    Until,
)
from concilium.temporal.windows import ANY_WINDOW, HOLE

SKELETON: Final = 1
VARIABLES: Final = 2
STRUCTURE: Final = 3
LEVELS: Final = (SKELETON, VARIABLES, STRUCTURE)


def abstract(rule: Formula, level: int) -> Formula:
    """The template of a level that stands for a rule, canonical; rules of one canonical form have the same.

    Of a template, the template of a level above it: the skeleton of a rule's structure is the rule's skeleton.
    """
    return arrange(rule.canonical(), level)[0]


def structure(rule: Formula) -> Formula:
    """The rule with its numbers and intervals left open."""
    return abstract(rule, STRUCTURE)


def arrange(rule: Formula, level: int) -> tuple[Formula, tuple[Any, ...]]:
    """The template of a canonical rule, and what fills its holes, in the order written: `template.fill(*values)` has
    the rule's canonical form.

    Where the template cannot tell parts of `and` or `or` apart, their values come in the order of the canonical rule,
    so that equal rules have equal values.
    """
    match rule:
        case Limit(variable, relation, number):
            if level == STRUCTURE:
                return Limit(variable, relation, HOLE), (number,)
            if level == VARIABLES:
                return Limit(variable, HOLE, HOLE), (relation, number)
            return Limit(HOLE, HOLE, HOLE), (variable, relation, number)
        case Conjunction(parts) | Disjunction(parts):
            arranged = [(*arrange(part, level), part) for part in parts]
            arranged.sort(key=lambda one: (order(one[0]), order(one[2])))
            return type(rule)(one[0] for one in arranged), sum((one[1] for one in arranged), ())
        case Always(window, inner) | Eventually(window, inner):
            template, values = arrange(inner, level)
            return type(rule)(ANY_WINDOW, template), (window, *values)
        case Until(left, window, right):
            first, before = arrange(left, level)
            second, after = arrange(right, level)
            return Until(first, ANY_WINDOW, second), (*before, window, *after)
        case Implication(premise, result):
            first, before = arrange(premise, level)
            second, after = arrange(result, level)
            return Implication(first, second), before + after
        case Negation(inner):
            template, values = arrange(inner, level)
            return Negation(template), values
    return rule, ()


def find_level(templates: Iterable[Formula]) -> int | None:
    """The level that all these canonical templates are of; None where there is none."""
    levels = set(LEVELS)
    for template in templates:
        for level in LEVELS:
            if level in levels and not _is_of(template, level):
                levels.discard(level)
        if not levels:
            return None
    return min(levels)


def _is_of(template: Formula, level: int) -> bool:
    for part in template.walk():
        if isinstance(part, Limit):
            opened = (part.variable is HOLE, part.relation is HOLE, part.number is HOLE)
            if opened != (level < VARIABLES, level < STRUCTURE, True):
                return False
        elif isinstance(part, OpenFormula) or getattr(part, "window", ANY_WINDOW) != ANY_WINDOW:
            return False
    return True
