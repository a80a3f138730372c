"""Whether a condition holds: its verdict on the attributes of one node or edge, or of several that it compares.

Kleene's three values (docs/methods.md, section 1.1): a comparison with a missing value is neither true nor false. Of a
list of values one must do. `x.a = y.b` compares what two tags have (section 3.1): equal are values of one label, an
order is that of numbers where both read as numbers, and of text where both are text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from concilium.records.columns import label
from concilium.records.expression import (
    FALSE,
    ORDERINGS,
    TRUE,
    UNKNOWN,
    And,
    AttributeComparison,
    Comparison,
    Expression,
    ListMembership,
    Missing,
    Not,
    Or,
    Predicate,
    Range,
    bounds,
    literals,
    tester,
)
from concilium.records.grammar import all_labels, canonical

Attributes = Mapping[str, Any]
Judge = Callable[[Attributes], int]
Placed = Mapping[str, Attributes]

_DENIED = frozenset({"", "0", "false", "no"})


class Unfit(Exception):
    """A value that cannot be compared as the policy asks; says which attribute, never which value."""

    def __init__(self, attribute: str, kind: str) -> None:
        self.attribute, self.kind = attribute, kind
        super().__init__(f"{attribute} cannot be compared with {kind}")


def judge(condition: Expression) -> Judge:
    """The function that tells whether a condition about one tag holds for the attributes of a node or edge."""
    return _judge(condition, _judge_term)


def judge_placed(condition: Expression) -> Callable[[Placed], int]:
    """The same for a condition that compares several: it takes the attributes of each by its tag."""
    return _judge(condition, _judge_placed_term)


def is_missing(value: Any) -> bool:
    """Whether there is no value: none given, not a number, or a list of nothing."""
    return value is None or value != value or value == []


def _judge(expression: Expression, judge_term: Callable[[Any], Callable[[Any], int]]) -> Callable[[Any], int]:
    match expression:
        case Not(inner):
            denied = _judge(inner, judge_term)
            return lambda given: TRUE - denied(given)
        case And(parts):
            return judge_parts([_judge(part, judge_term) for part in parts], min, TRUE)
        case Or(parts):
            return judge_parts([_judge(part, judge_term) for part in parts], max, FALSE)
        case _:
            return judge_term(expression)


def judge_parts(
    judges: Sequence[Callable[[Any], int]], combine: Callable[[int, int], int], start: int
) -> Callable[[Any], int]:
    """`and`: the least verdict from TRUE on; `or`: the greatest from FALSE on. The opposite of the start settles it."""
    end = TRUE - start

    def judge_all(given: Any) -> int:
        verdict = start
        for judge_part in judges:
            verdict = combine(verdict, judge_part(given))
            if verdict == end:
                break
        return verdict

    return judge_all


def _judge_term(term: Predicate | AttributeComparison) -> Judge:
    if not isinstance(term, AttributeComparison):
        return judge_predicate(term)
    left, right = term.left.attribute, term.right.attribute
    compare = comparer(term)
    return lambda node: compare(node.get(left), node.get(right))


def _judge_placed_term(term: Predicate | AttributeComparison) -> Callable[[Placed], int]:
    if not isinstance(term, AttributeComparison):
        judge_one, tag = judge_predicate(term), term.name.tag or ""
        return lambda placed: judge_one(placed[tag])
    left, right, compare = term.left, term.right, comparer(term)
    return lambda placed: compare(
        placed[left.tag or ""].get(left.attribute), placed[right.tag or ""].get(right.attribute)
    )


def comparer(term: AttributeComparison) -> Callable[[Any, Any], int]:
    """The verdict on two values of any kind; of lists, one item of each must do."""
    if term.operator == "!=":
        # "Not any" rather than "any not", so that != stays the opposite of = for lists of values.
        same = comparer(AttributeComparison(term.left, "=", term.right))
        return lambda left, right: TRUE - same(left, right)

    def compare(left: Any, right: Any) -> int:
        if is_missing(left) or is_missing(right):
            return UNKNOWN
        if term.operator == "=":
            return FALSE if canonical_labels(left).isdisjoint(canonical_labels(right)) else TRUE
        return _order(left, right, term)

    return compare


def _order(left: Any, right: Any, term: AttributeComparison) -> int:
    """Whether one item of each side is in order: the least of one and the greatest of the other decide."""
    holds = ORDERINGS[term.operator]
    ends: tuple[Callable[..., Any], Callable[..., Any]] = (
        (min, max) if term.operator in ("<", "<=") else (max, min)
    )
    one, other = _Comparables(left), _Comparables(right)
    for lefts, rights in (
        (one.numbers, other.numbers),
        (one.words, other.texts),
        (one.texts, other.words),
    ):
        if lefts and rights and holds(ends[0](lefts), ends[1](rights)):
            return TRUE
    if one.cannot_meet(other) or other.cannot_meet(one):
        raise Unfit(term.left.attribute, str(term.right))
    return FALSE


class _Comparables:
    """Values by how they can be compared: what reads as a number, text, and of that what does not read as one."""

    def __init__(self, value: Any) -> None:
        items = [item for item in (value if isinstance(value, list) else (value,)) if not is_missing(item)]
        pairs = [(item, _read_number(item)) for item in items]
        self.numbers = [number for _, number in pairs if number is not None]
        self.texts = [item for item in items if isinstance(item, str)]
        self.words = [item for item, number in pairs if number is None and isinstance(item, str)]
        self._only_numbers = any(number is not None and not isinstance(item, str) for item, number in pairs)
        self._nothing = any(number is None and not isinstance(item, str) for item, number in pairs)
        self._any = bool(items)

    def cannot_meet(self, other: _Comparables) -> bool:
        """Whether one of these can be compared with none, or is a number where the other has words."""
        return (self._nothing and other._any) or (self._only_numbers and bool(other.words))


def canonical_labels(value: Any) -> frozenset[str]:
    """What values must share to be equal: 5, 5.0, '5' and '5.0' are one; of a list, those of its items."""
    items = value if isinstance(value, list) else (value,)
    return frozenset(canonical(item) for item in items if not is_missing(item))


def _read_number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return None if math.isnan(number) else number


def judge_predicate(predicate: Predicate) -> Judge:
    """The function that tells whether one predicate holds for a node."""
    attribute = predicate.name.attribute
    if isinstance(predicate, Missing):
        return lambda node: TRUE if is_missing(node.get(attribute)) else FALSE
    if isinstance(predicate, Comparison) and predicate.operator == "!=":
        # "Not any" rather than "any not", so that != stays the opposite of = for a list of values.
        same = judge_predicate(Comparison(predicate.name, "=", predicate.literal))
        return lambda node: TRUE - same(node)
    limits = bounds(predicate)
    if not limits:
        return _judge_equality(predicate)
    # Text is never missing and a whole number never NaN: the kinds that need no further look.
    holds, usual = tester(predicate), int if limits[0].kind == "number" else str
    convert = _as_number if usual is int else _as_text

    def judge_value(node: Attributes) -> int:
        value = node.get(attribute)
        if value.__class__ is usual:
            return TRUE if holds(value) else FALSE
        return _judge_any_of(value, lambda item: holds(convert(item, attribute)))

    return judge_value


def _judge_equality(predicate: Comparison | ListMembership | Range) -> Judge:
    attribute, holds = predicate.name.attribute, tester(predicate)
    labels = all_labels(literal.value for literal in literals(predicate))

    def judge_value(node: Attributes) -> int:
        value = node.get(attribute)
        if value.__class__ is str:
            return TRUE if value in labels else FALSE
        return _judge_any_of(value, holds)

    return judge_value


def _judge_any_of(value: Any, holds: Callable[[Any], bool]) -> int:
    """The verdict on a value of any kind; of a list, one item must do."""
    if is_missing(value):
        return UNKNOWN
    if isinstance(value, list):
        return TRUE if any(not is_missing(item) and holds(item) for item in value) else FALSE
    return TRUE if holds(value) else FALSE


def _as_number(value: Any, attribute: str) -> float:
    """The value as a number; text that reads as one counts, since messages often carry numbers as text."""
    number = _read_number(value)
    if number is None:
        raise Unfit(attribute, "a number")
    return number


def _as_text(value: Any, attribute: str) -> str:
    if not isinstance(value, str):
        raise Unfit(attribute, "text")
    return value


def judge_listed(words: frozenset[str]) -> Judge:
    """`[a, b, c]`: the node has one of them, as its id, as a value, or as an attribute that is not denied."""

    def items(value: Any) -> Iterator[Any]:
        return (item for item in (value if isinstance(value, list) else (value,)) if not is_missing(item))

    def judge_value(node: Attributes) -> int:
        # Values and the names that are words apart: a path of a bundle stands for all that lies beneath it.
        found = any(label(item) in words for value in node.values() for item in items(value)) or any(
            is_listed(name, item, words) for name in words for item in items(node.get(name))
        )
        return TRUE if found else FALSE

    return judge_value


def is_listed(name: str, value: Any, words: frozenset[str]) -> bool:
    """Whether an attribute with this value makes its node one of the listed."""
    text = label(value)
    return text in words or (name in words and text.lower() not in _DENIED)
