"""Text to formulas: the grammar is `formula.lark`, and an error says where it is (docs/temporal-logic.md)."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from concilium.errors import FormulaError
from concilium.records.expression import Mistake, expected, read
from concilium.temporal.formula import (
    DEEPEST,
    LARGEST_NUMBER,
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
from concilium.temporal.windows import ANY_WINDOW, HOLE, Bound, Window, check_window, read_bound

if TYPE_CHECKING:
    from lark import Lark, Token

_SIGNS = {"==": "=", "<>": "!=", "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "≠": "!="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

_EXPECTED = (
    expected(
        "ALWAYS NOT PLAIN",
        "a formula, such as HR >= 90 or G[0,6](HR >= 90)",
        "EVENTUALLY BACKQUOTED NUMERAL HOLE TRUTH LPAR LSQB",
    ),
    expected("COMPARISON", "a comparison, such as < or =", "HOLE"),
    expected("DURATION", "a bound, such as 6 or 6h", "NUMERAL HOLE"),
    expected("NUMERAL", "a number or ?", "HOLE PLAIN BACKQUOTED"),
    expected("PLAIN", "a name", "BACKQUOTED HOLE NUMERAL"),
    expected("COMMA", "a comma"),
    expected("RSQB", "a closing bracket"),
    expected("RPAR", "a closing parenthesis"),
    expected("LSQB", "an interval, such as [0,6]"),
    expected("UNTIL", "'U'"),
    expected("_AND", "'and'"),
    expected("_OR", "'or'"),
    expected("_IMPLIES", "'->'"),
    expected("$END", "the end"),
)


class _Written(NamedTuple):
    """A formula with where it begins, and how deep it is in parentheses, which leave no trace in the formula."""

    formula: Formula
    place: int
    parentheses: int = 0


class _Side(NamedTuple):
    value: Any
    place: int


class _PlacedWindow(NamedTuple):
    window: Window


class _FormulaBuilder:
    """Makes the formula while the text is read; one method per rule, so that no nesting can exhaust the stack."""

    def start(self, children: list[_Written]) -> Formula:
        return children[0].formula

    def implies(self, children: list[_Written]) -> _Written:
        return self._make(Implication, children)

    def any(self, children: list[_Written]) -> _Written:
        return self._make(lambda *parts: Disjunction(parts), children)

    def all(self, children: list[_Written]) -> _Written:
        return self._make(lambda *parts: Conjunction(parts), children)

    def holds_until(self, children: list[Any]) -> _Written:
        left, right, window = children[0], children[-1], _window(children)
        return self._make(lambda one, other: Until(one, window, other), [left, right])

    def denial(self, children: list[Any]) -> _Written:
        return self._make(Negation, [children[-1]], _start(children[0]))

    def always(self, children: list[Any]) -> _Written:
        window = _window(children)
        return self._make(lambda inner: Always(window, inner), [children[-1]], _start(children[0]))

    def eventually(self, children: list[Any]) -> _Written:
        window = _window(children)
        return self._make(lambda inner: Eventually(window, inner), [children[-1]], _start(children[0]))

    def group(self, children: list[Any]) -> _Written:
        place, inner = _start(children[0]), children[-1]
        if inner.parentheses >= DEEPEST:
            raise Mistake(f"parentheses are nested more than {DEEPEST} deep here", place)
        return _Written(inner.formula, place, inner.parentheses + 1)

    def constant(self, children: list[Token]) -> _Written:
        return _Written(Constant(str(children[0]).lower() in {"true", "⊤"}), _start(children[0]))

    def open_formula(self, children: list[Token]) -> _Written:
        return _Written(OpenFormula(), _start(children[0]))

    def proposition(self, children: list[_Side]) -> _Written:
        return _Written(Proposition(children[0].value), children[0].place)

    def limit(self, children: list[_Side]) -> _Written:
        left, sign, right = children
        relation = sign.value
        if isinstance(left.value, float) or (left.value is HOLE and isinstance(right.value, str)):
            variable, number = right, left
            relation = _MIRRORED.get(relation, relation)
        else:
            variable, number = left, right
        if isinstance(variable.value, float):
            raise Mistake("this compares two numbers; one side must name a variable", left.place)
        if isinstance(number.value, str):
            raise Mistake("this compares two variables; one side must be a number", number.place)
        return _Written(Limit(variable.value, relation, number.value), left.place)

    def side(self, children: list[Any]) -> _Side:
        child = children[0]
        if isinstance(child, _Side):
            return child
        if child.type == "HOLE":
            return _Side(HOLE, _start(child))
        number = float(child)
        if not abs(number) <= LARGEST_NUMBER:
            raise Mistake("this number is too large", _start(child))
        return _Side(number, _start(child))

    def relation(self, children: list[Token]) -> _Side:
        text = str(children[0])
        return _Side(HOLE if text == "?" else _SIGNS.get(text, text), _start(children[0]))

    def name(self, children: list[Token]) -> _Side:
        text = str(children[0])
        if children[0].type == "BACKQUOTED":
            text = text[1:-1].replace("``", "`")
        return _Side(text, _start(children[0]))

    def window(self, children: list[tuple[Bound, int]]) -> _PlacedWindow:
        (low, place), (high, _) = children
        try:
            return _PlacedWindow(check_window(low, high))
        except ValueError as error:
            raise Mistake(f"the interval {error}", place) from None

    def open_window(self, children: list[Token]) -> _PlacedWindow:
        return _PlacedWindow(ANY_WINDOW)

    def bound(self, children: list[Token]) -> tuple[Bound, int]:
        try:
            return read_bound(str(children[0])), _start(children[0])
        except ValueError as error:
            raise Mistake(f"the bound {error}", _start(children[0])) from None

    def _make(self, kind: Any, children: list[_Written], place: int | None = None) -> _Written:
        place = children[0].place if place is None else place
        if max(child.formula.depth for child in children) >= DEEPEST:
            raise Mistake(f"the formula is nested more than {DEEPEST} deep here", place)
        formula = kind(*[child.formula for child in children])
        return _Written(formula, place, max(child.parentheses for child in children))


def parse(text: str) -> Formula:
    """The formula that a text says, or the template, if something in it is left open as `?`."""
    if not isinstance(text, str):
        raise FormulaError(f"a formula is a text, not {type(text).__name__}", "")
    try:
        formula: Formula = read(_parser(), text, _EXPECTED)
    except Mistake as mistake:
        error = point_at(mistake.problem, text, mistake.place)
    else:
        return formula
    raise error


def point_at(problem: str, text: str, place: int) -> FormulaError:
    """The error with the line and column of a place in the text."""
    lines = (text[:place] + ".").splitlines()
    return FormulaError(problem, text, len(lines), len(lines[-1]))


@cache
def _parser() -> Lark:
    from lark import Lark

    grammar = resources.files("concilium.temporal").joinpath("formula.lark").read_text(encoding="utf-8")
    transformer: Any = _FormulaBuilder()
    return Lark(grammar, parser="lalr", transformer=transformer)


def _window(children: list[Any]) -> Window | None:
    for child in children:
        if isinstance(child, _PlacedWindow):
            return child.window
    return None


def _start(token: Token) -> int:
    return token.start_pos or 0
