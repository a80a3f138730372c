"""A query as people write it, read by a dictionary before it is sent: `sex = 'male'` asks for the value that means
male, `chol > '6.2 mmol/l'` is converted, and what no patient can be (`age > 500`, an unknown code) is an error at once.

*Protects:* an honest mistake from being paid for, or counted as a refusal. No patient is looked at: the dictionary is
public, so an error tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from concilium.errors import RecordsError
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import Value, label
from concilium.records.dictionary import DictionaryEntry, describe_entry
from concilium.records.expression import (
    And,
    AttributeComparison,
    Comparison,
    Expression,
    ListMembership,
    Literal,
    Missing,
    Mistake,
    Not,
    Or,
    Predicate,
    Range,
    bounds,
    point_at,
)
from concilium.records.query import Query
from concilium.records.units import read_amount


def read_query(text: str, entries: Mapping[str, DictionaryEntry]) -> str:
    """The query in the values of the dictionary; QueryError for a condition that nobody can fulfil by it."""
    query = Query.parse(text)
    if query.condition is None or not {*query.attributes} & {*entries}:
        return text
    try:
        read = _read(query.condition, entries)
    except Mistake as mistake:
        raise point_at(mistake, text) from None
    return text if read == query.condition else str(read)


def _read(condition: Expression, entries: Mapping[str, DictionaryEntry], denied: bool = False) -> Expression:
    match condition:
        case Not(inner):
            return Not(_read(inner, entries, not denied))
        case And(parts):
            return And(tuple(_read(part, entries, denied) for part in parts))
        case Or(parts):
            return Or(tuple(_read(part, entries, denied) for part in parts))
        case AttributeComparison() | Missing():
            return condition
    entry = entries.get(condition.name.attribute)
    if entry is None:
        return condition
    if entry.type != "number":
        if bounds(condition):
            if not any(entry.values.values()):  # values alone may be a number's
                return condition
            problem = (
                f"{condition.name} is a code, not a number, and has no order; compare it with = or in {{..}}"
            )
            raise Mistake(problem, condition.name.place)
        return _replace(condition, lambda literal: _read_code(condition.name.attribute, literal, entry))
    read = _replace(condition, lambda literal: _read_number(condition.name.attribute, literal, entry))
    if not denied:
        _check_plausible(read, entry)
    return read


def _replace(condition: Predicate, change: Callable[[Literal], Literal]) -> Predicate:
    match condition:
        case Comparison(name, sign, literal):
            return Comparison(name, sign, change(literal))
        case ListMembership(name, literals):
            return ListMembership(name, tuple(dict.fromkeys(map(change, literals))))
        case Range(name, low, high):
            return Range(name, change(low), change(high))
        case _:
            return condition


def _read_code(name: str, literal: Literal, entry: DictionaryEntry) -> Literal:
    value = entry.read(label(literal.value))
    if label(value) == label(literal.value) and entry.lists(value):
        return literal
    if not entry.values:
        return literal
    if not entry.lists(value):
        raise Mistake(f"{name} = {literal} is no value of it: {describe_entry(entry)}", literal.place)
    return Literal(_find_kind(value), value, literal.place)


def _find_kind(value: Value) -> str:
    return "text" if isinstance(value, str) else "truth" if isinstance(value, bool) else "number"


def _read_number(name: str, literal: Literal, entry: DictionaryEntry) -> Literal:
    if literal.kind != "text":
        return literal
    try:
        number = read_amount(str(literal.value), entry.unit, name, entry.molar_mass)
    except RecordsError as error:
        raise Mistake(str(error), literal.place) from None
    return Literal("number", int(number) if number.is_integer() else number, literal.place)


def _check_plausible(condition: Predicate, entry: DictionaryEntry) -> None:
    """Mistake where the condition holds for no plausible value, or names one that is not."""
    name, limits = condition.name.attribute, entry.range
    clinical = find_range(name) if len(name) > 2 else None
    if limits is None and clinical is not None and entry.unit in ("", clinical.unit):
        limits = clinical.lowest, clinical.highest
    if limits is None:
        return
    low, high = limits
    said = f"{low:g} to {high:g}{f' {entry.unit}' if entry.unit else ''}"

    def refuse(wrong: bool, literal: Literal, what: str = str(condition)) -> None:
        if wrong:
            raise Mistake(f"{what} holds for no patient: {name} is {said}", literal.place)

    match condition:
        case Comparison(operator=sign, literal=literal) if literal.kind == "number":
            value = float(literal.value)
            refuse(value >= high if sign == ">" else value > high if sign in (">=", "=") else False, literal)
            refuse(value <= low if sign == "<" else value < low if sign in ("<=", "=") else False, literal)
        case ListMembership(literals=members):
            for one in members:
                refuse(
                    one.kind == "number" and not low <= float(one.value) <= high,
                    one,
                    f"{condition.name} = {one}",
                )
        case Range(low=start, high=end) if start.kind == end.kind == "number":
            refuse(float(start.value) > high or float(end.value) < low, start)
