"""Formulas as text: as it reads back, with the place of each part for error messages, and in words for people."""

from __future__ import annotations

import re

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
from concilium.temporal.windows import HOLE, Hole, Window

_WORDS = frozenset({"and", "or", "not", "implies", "true", "false", "always", "eventually", "until"})
_LETTERS = frozenset("GFU")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_SYMBOLS = {Always: "G", Eventually: "F"}


def show(formula: Formula) -> str:
    """The text of a formula."""
    return "".join(_Writer(formula).pieces)


def places(formula: Formula) -> tuple[str, dict[int, int]]:
    """The text, and where in it each part has its operator or its first sign, by the part's `id`."""
    writer = _Writer(formula)
    return "".join(writer.pieces), writer.places


def hole_places(formula: Formula) -> list[int]:
    """Where the holes are in the text, in order."""
    return _Writer(formula).holes


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


class _Writer:
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
            case Limit(variable, relation, number):
                self._mark(formula)
                self._put_slot(variable, _show_name(variable))
                self._put(" ")
                self._put_slot(relation, str(relation))
                self._put(" ")
                self._put_slot(number, _show_number(number))
            case Proposition(variable):
                self._mark(formula)
                self._put(_show_name(variable))
            case Constant(value):
                self._mark(formula)
                self._put("true" if value else "false")
            case OpenFormula():
                self._mark(formula)
                self._put_slot(HOLE, "?")
            case Negation(inner):
                self._mark(formula)
                self._put("not")
                self._operand(inner)
            case Conjunction(parts) | Disjunction(parts):
                word = " and " if isinstance(formula, Conjunction) else " or "
                for index, part in enumerate(parts):
                    if index == 1:
                        self.places.setdefault(id(formula), self.length + 1)
                    if index:
                        self._put(word)
                    self._wrap(part, isinstance(part, Conjunction | Disjunction | Implication))
            case Implication(premise, result):
                self._wrap(premise, isinstance(premise, Implication))
                self.places.setdefault(id(formula), self.length + 1)
                self._put(" -> ")
                self._wrap(result, False)
            case Always(window, inner) | Eventually(window, inner):
                self._mark(formula)
                self._put(_SYMBOLS[type(formula)])
                self._put_window(window)
                self._operand(inner)
            case Until(left, window, right):
                self._wrap(left, not isinstance(left, Constant | Proposition | OpenFormula))
                self._put(" ")
                self._mark(formula)
                self._put("U")
                self._put_window(window)
                self._put(" ")
                self._wrap(right, not isinstance(right, Constant | Proposition | OpenFormula))

    def _operand(self, inner: Formula) -> None:
        wrapped = isinstance(inner, Conjunction | Disjunction | Implication | Until)
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
            return f"{_say_window(window, step)} always {_enclose(inner, step)}"
        case Eventually(window, inner):
            return f"{_say_window(window, step)} at some time {_enclose(inner, step)}"
        case Until(left, window, right):
            return f"{_enclose(left, step)} until, {_say_window(window, step)}, {_enclose(right, step)}"
    return str(formula)


def _say_window(window: Window | None, step: str) -> str:
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
