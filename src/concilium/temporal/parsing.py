"""Text to formulas and back: the grammar is `formula.lark`, and an error says where it is (docs/temporal-logic.md).

A formula is written as it reads back, with the place of each part for error messages, or in words for people.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from concilium.errors import FormulaError
from concilium.records.expression import Mistake, expected, read
from concilium.records.series_times import read_step
from concilium.temporal import formula as stl
from concilium.temporal.formula import Formula
from concilium.temporal.windows import ANY_WINDOW, HOLE, Bound, Hole, Window, check_window, read_bound

if TYPE_CHECKING:
    from lark import Lark, Token


_WORDS = frozenset({"and", "or", "not", "implies", "true", "false", "always", "eventually", "until"})
_LETTERS = frozenset("GFU")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_SYMBOLS = {stl.Always: "G", stl.Eventually: "F"}


def show(formula: Formula) -> str:
    """The text of a formula."""
    return "".join(_FormulaText(formula).pieces)


def places(formula: Formula) -> tuple[str, dict[int, int]]:
    """The text, and where in it each part has its operator or its first sign, by the part's `id`."""
    writer = _FormulaText(formula)
    return "".join(writer.pieces), writer.places


def hole_places(formula: Formula) -> list[int]:
    """Where the holes are in the text, in order."""
    return _FormulaText(formula).holes


def _show_name(name: str | Hole) -> str:
    """A variable as written: in backquotes where it has spaces or signs in it, or is a word of the language."""
    if isinstance(name, Hole):
        return "?"
    plain = _PLAIN_NAME.fullmatch(name) and name not in _LETTERS and name.lower() not in _WORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def _show_number(number: float | Hole) -> str:
    """A number as short as it can be read back."""
    if isinstance(number, Hole):
        return "?"
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


class _FormulaText:
    def __init__(self, formula: Formula) -> None:
        self.pieces: list[str] = []
        self.places: dict[int, int] = {}
        self.holes: list[int] = []
        self.length = 0
        self._write(formula)

    def _put(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)

    def _mark(self, part: Formula) -> None:
        self.places.setdefault(id(part), self.length)

    def _put_slot(self, value: object, text: str) -> None:
        if value is HOLE:
            self.holes.append(self.length)
        self._put(text)

    def _put_window(self, window: Window | None) -> None:
        if window is None:
            return
        if window.whole_hole:
            self.holes.append(self.length + 1)
            self._put("[?]")
            return
        self._put("[")
        self._put_slot(window.low, str(window.low))
        self._put(",")
        self._put_slot(window.high, str(window.high))
        self._put("]")

    def _write(self, formula: Formula) -> None:
        match formula:
            case stl.Limit(variable, relation, number):
                self._mark(formula)
                self._put_slot(variable, _show_name(variable))
                self._put(" ")
                self._put_slot(relation, str(relation))
                self._put(" ")
                self._put_slot(number, _show_number(number))
            case stl.Proposition(variable):
                self._mark(formula)
                self._put(_show_name(variable))
            case stl.Constant(value):
                self._mark(formula)
                self._put("true" if value else "false")
            case stl.OpenFormula():
                self._mark(formula)
                self._put_slot(HOLE, "?")
            case stl.Negation(inner):
                self._mark(formula)
                self._put("not")
                self._operand(inner)
            case stl.Conjunction(parts) | stl.Disjunction(parts):
                word = " and " if isinstance(formula, stl.Conjunction) else " or "
                for index, part in enumerate(parts):
                    if index == 1:
                        self.places.setdefault(id(formula), self.length + 1)
                    if index:
                        self._put(word)
                    self._wrap(part, isinstance(part, stl.Conjunction | stl.Disjunction | stl.Implication))
            case stl.Implication(premise, result):
                self._wrap(premise, isinstance(premise, stl.Implication))
                self.places.setdefault(id(formula), self.length + 1)
                self._put(" -> ")
                self._wrap(result, False)
            case stl.Always(window, inner) | stl.Eventually(window, inner):
                self._mark(formula)
                self._put(_SYMBOLS[type(formula)])
                self._put_window(window)
                self._operand(inner)
            case stl.Until(left, window, right):
                self._wrap(left, not isinstance(left, stl.Constant | stl.Proposition | stl.OpenFormula))
                self._put(" ")
                self._mark(formula)
                self._put("U")
                self._put_window(window)
                self._put(" ")
                self._wrap(right, not isinstance(right, stl.Constant | stl.Proposition | stl.OpenFormula))

    def _operand(self, inner: Formula) -> None:
        wrapped = isinstance(inner, stl.Conjunction | stl.Disjunction | stl.Implication | stl.Until)
        if not wrapped or self.pieces[-1] == "not":
            self._put(" ")
        self._wrap(inner, wrapped)

    def _wrap(self, part: Formula, wrapped: bool) -> None:
        if wrapped:
            self._put("(")
        self._write(part)
        if wrapped:
            self._put(")")


RELATION_WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


def say_formula(formula: Formula, step: str = "1h", window: int | None = None) -> str:
    """A formula as a clause: "in hours 0 to 5 always HR at least 90".

    Of a `window` of so many steps that ends now, intervals are said from its end: "in the latest 3 hours".
    """
    match formula:
        case stl.Limit(variable, relation, number):
            words = RELATION_WORDS.get(str(relation), str(relation))
            return f"{variable} {words} {_say_number(number)}"
        case stl.Negation(inner):
            return f"not ({say_formula(inner, step, window)})"
        case stl.Conjunction(parts):
            return " and ".join(_enclose(part, step, window) for part in parts)
        case stl.Disjunction(parts):
            return " or ".join(_enclose(part, step, window) for part in parts)
        case stl.Implication(premise, result):
            return f"if {_enclose(premise, step, window)}, then {_enclose(result, step, window)}"
        case stl.Always(interval, inner):
            return f"{_say_window(interval, step, window)} always {_enclose(inner, step)}"
        case stl.Eventually(interval, inner):
            return f"{_say_window(interval, step, window)} at some time {_enclose(inner, step)}"
        case stl.Until(left, interval, right):
            when = _say_window(interval, step, window)
            return f"{_enclose(left, step)} until, {when}, {_enclose(right, step)}"
    return str(formula)


UNITS = {"1h": "hour", "60min": "hour", "1d": "day", "24h": "day", "1min": "minute"}


def _say_window(interval: Window | None, step: str, window: int | None) -> str:
    """An interval in words: hours where a step is one, else steps."""
    if interval is None:
        return "from then on"
    low, high = interval.low, interval.high
    if window is not None and isinstance(low, int) and isinstance(high, int) and high < window:
        return _say_from_end(low, high, step, window)
    unit = UNITS.get(step, "step")
    if low == high:
        return f"in {unit} {low}"
    return f"in {unit}s {low} to {high}"


def _say_from_end(low: int, high: int, step: str, window: int) -> str:
    before = window - 1 - high
    if low == high and before:
        return f"{say_time(before, step)} ago"
    length = say_time(high - low + 1, step)
    latest = f"in the latest {length.removeprefix('1 ')}"
    return latest if not before else f"in the {length} that ended {say_time(before, step)} ago"


def say_time(steps: int, step: str) -> str:
    """So many steps as a time: "3 hours", "45 minutes"."""
    minutes = round(steps * read_step(step) * 60)
    for size, unit in ((60, "hour"), (1, "minute")):
        if minutes % size == 0:
            count = minutes // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{steps} steps"


def _say_number(number: object) -> str:
    return f"{number:g}" if isinstance(number, float | int) else str(number)


def _enclose(part: Formula, step: str, window: int | None = None) -> str:
    said = say_formula(part, step, window)
    return said if isinstance(part, stl.Limit) else f"({said})"


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


class _FormulaBuilder:
    """Makes the formula while the text is read; one method per rule, so that no nesting can exhaust the stack."""

    def start(self, children: list[_Written]) -> Formula:
        return children[0].formula

    def implies(self, children: list[_Written]) -> _Written:
        return self._make(stl.Implication, children)

    def any(self, children: list[_Written]) -> _Written:
        return self._make(lambda *parts: stl.Disjunction(parts), children)

    def all(self, children: list[_Written]) -> _Written:
        return self._make(lambda *parts: stl.Conjunction(parts), children)

    def holds_until(self, children: list[Any]) -> _Written:
        left, right, window = children[0], children[-1], _window(children)
        return self._make(lambda one, other: stl.Until(one, window, other), [left, right])

    def denial(self, children: list[Any]) -> _Written:
        return self._make(stl.Negation, [children[-1]], _start(children[0]))

    def always(self, children: list[Any]) -> _Written:
        window = _window(children)
        return self._make(lambda inner: stl.Always(window, inner), [children[-1]], _start(children[0]))

    def eventually(self, children: list[Any]) -> _Written:
        window = _window(children)
        return self._make(lambda inner: stl.Eventually(window, inner), [children[-1]], _start(children[0]))

    def group(self, children: list[Any]) -> _Written:
        place, inner = _start(children[0]), children[-1]
        if inner.parentheses >= stl.DEEPEST:
            raise Mistake(f"parentheses are nested more than {stl.DEEPEST} deep here", place)
        return _Written(inner.formula, place, inner.parentheses + 1)

    def constant(self, children: list[Token]) -> _Written:
        return _Written(stl.Constant(str(children[0]).lower() in {"true", "⊤"}), _start(children[0]))

    def open_formula(self, children: list[Token]) -> _Written:
        return _Written(stl.OpenFormula(), _start(children[0]))

    def proposition(self, children: list[_Side]) -> _Written:
        return _Written(stl.Proposition(children[0].value), children[0].place)

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
        return _Written(stl.Limit(variable.value, relation, number.value), left.place)

    def side(self, children: list[Any]) -> _Side:
        child = children[0]
        if isinstance(child, _Side):
            return child
        if child.type == "HOLE":
            return _Side(HOLE, _start(child))
        number = float(child)
        if not abs(number) <= stl.LARGEST_NUMBER:
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

    def window(self, children: list[tuple[Bound, int]]) -> Window:
        (low, place), (high, _) = children
        try:
            return check_window(low, high)
        except ValueError as error:
            raise Mistake(f"the interval {error}", place) from None

    def open_window(self, children: list[Token]) -> Window:
        return ANY_WINDOW

    def bound(self, children: list[Token]) -> tuple[Bound, int]:
        try:
            return read_bound(str(children[0])), _start(children[0])
        except ValueError as error:
            raise Mistake(f"the bound {error}", _start(children[0])) from None

    def _make(self, kind: Any, children: list[_Written], place: int | None = None) -> _Written:
        place = children[0].place if place is None else place
        if max(child.formula.depth for child in children) >= stl.DEEPEST:
            raise Mistake(f"the formula is nested more than {stl.DEEPEST} deep here", place)
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
    return next((child for child in children if isinstance(child, Window)), None)


def _start(token: Token) -> int:
    return token.start_pos or 0
