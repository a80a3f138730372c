"""One formula for all that mean the same: not only alike, but equal in truth and robustness on every series.

The rules, each an equality of both semantics for every series and missing value (docs/methods.md, section 6.2):

- `not not f` is f; not moves inwards through and, or, G and F (each becomes its mirror image), and turns a relation;
  before U, -> and a proposition it stays.
- and and or are flat, without duplicates, in one order; true and false vanish from them or decide them.
- `G[a,b] G[c,d] f` is `G[a+c,b+d] f`, G of the rest of the stay twice is once; the same for F.

`f -> g` stays as it is: it is how a clinician reads a rule. Two formulas that these rules make equal have one canonical
form, since each rule is applied wherever it fits, from the leaves upwards. A hole is a part like any other (and `not ?`
is `?`: whatever a hole stands for, so does its opposite), but two holes are never duplicates of each other.
"""

from __future__ import annotations

from typing import Any

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
from concilium.temporal.windows import Duration, Hole, Window, add_windows

OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "=": "!=", "!=": "="}


def canonical(formula: Formula) -> Formula:
    """The canonical form of a formula."""
    return _simplify(formula, False)


def _simplify(formula: Formula, denied: bool) -> Formula:
    match formula:
        case Negation(inner):
            return _simplify(inner, not denied)
        case Limit(variable, relation, number):
            if not denied or isinstance(relation, Hole):
                return formula
            return Limit(variable, OPPOSITE[relation], number)
        case Constant(value):
            return Constant(value is not denied)
        case OpenFormula():
            return formula
        case Proposition():
            return Negation(formula) if denied else formula
        case Conjunction(parts) | Disjunction(parts):
            together = isinstance(formula, Conjunction) is not denied
            return _join([_simplify(part, denied) for part in parts], together)
        case Always(window, inner) | Eventually(window, inner):
            kind = Always if isinstance(formula, Always) is not denied else Eventually
            return _nest(kind, window, _simplify(inner, denied))
        case Implication(premise, result):
            made: Formula = Implication(_simplify(premise, False), _simplify(result, False))
            return Negation(made) if denied else made
        case Until(left, window, right):
            made = Until(_simplify(left, False), window, _simplify(right, False))
            return Negation(made) if denied else made
    raise TypeError(f"{type(formula).__name__} is no formula")


def _join(parts: list[Formula], together: bool) -> Formula:
    kind = Conjunction if together else Disjunction
    flat: list[Formula] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    has_holes = any(part.open_places for part in flat)
    neutral, deciding = Constant(together), Constant(not together)
    if deciding in flat and not has_holes:
        return deciding
    closed = {part: None for part in flat if not part.open_places and part != neutral}
    left = [*closed, *(part for part in flat if part.open_places)]
    if not left:
        return neutral
    if len(left) == 1:
        return left[0]
    return kind(sorted(left, key=order))


def _nest(kind: type[Always] | type[Eventually], window: Window | None, inner: Formula) -> Formula:
    if window is None and isinstance(inner, Constant):
        return inner
    if isinstance(inner, kind):
        try:
            return kind(add_windows(window, inner.window), inner.inner)
        except ValueError:
            pass
    return kind(window, inner)


_RANKS = {
    kind: rank
    for rank, kind in enumerate(
        [
            Limit,
            Proposition,
            Negation,
            Constant,
            OpenFormula,
            Conjunction,
            Disjunction,
            Always,
            Eventually,
            Until,
            Implication,
        ]
    )
}


def order(formula: Formula) -> tuple[Any, ...]:
    """A key by which formulas are sorted: limits by variable and number first, then what is built from them."""
    rank = _RANKS[type(formula)]
    match formula:
        case Limit(variable, relation, number):
            return rank, _slot(variable), _slot(number), _slot(relation)
        case Proposition(variable):
            return rank, variable
        case Constant(value):
            return rank, value
        case Conjunction(parts) | Disjunction(parts):
            return rank, len(parts), *(order(part) for part in parts)
        case Always(window, inner) | Eventually(window, inner):
            return rank, order(inner), _window(window)
        case Until(left, window, right):
            return rank, order(left), order(right), _window(window)
        case _:
            return rank, *(order(child) for child in formula.children)


def _slot(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Hole):
        return (2,)
    return (1, value.minutes) if isinstance(value, Duration) else (0, value)


def _window(window: Window | None) -> tuple[Any, ...]:
    if window is None:
        return (0,)
    return 1, window.whole_hole, _slot(window.low), _slot(window.high)
