"""Which patients a study is about: a query over a site's records, such as `age > 20 and race = 5`.

The query by attributes of interest of distributed trees (docs/methods.md, section 1.1). A missing value
makes a comparison neither true nor false (Kleene's three values); a patient is selected where the whole is
definitely true.

For private questions each cell is read by itself, whatever the others hold (`read_as_asked`). Differential privacy
allows one patient to change one patient's share of a count. So under `private` only columns are asked about of which
each cell has a label of its own (`by_itself`, records/columns.py): stated ones, and those whose type in a database
leaves nothing to guess. As what they are stored together (numbers, codes or text) may still depend on all of them: here
a value is a number if it is one or reads as one, and has one label, so that no refusal and no other patient's count
depends on it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import nearest
from concilium.records.blocks import look_up
from concilium.records.columns import Coded, Column, Numbers, Value, label, map_values, narrowest
from concilium.records.expression import (
    FALSE,
    TRUE,
    UNKNOWN,
    And,
    AttributeComparison,
    Builder,
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
    literals,
    make_parser,
    point_at,
    predicates,
    read,
    tester,
)
from concilium.records.grammar import all_labels, canonical, measure
from concilium.records.table import Records

if TYPE_CHECKING:
    from lark import Lark

    from concilium.records.table import Records

# For each column of categories, the codes of each label: found once for all conditions of a query, of which a house may
# write thousands.
Labels = dict[str, dict[str, list[int]]]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Query:
    """A condition that selects patients. Queries are equal if they say the same, however it was written."""

    condition: Expression | None
    text: str = field(default="", compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read a query; a blank text selects everyone."""
        if not text:  # most studies are about everyone, and need no parser
            return cls(None)
        try:
            return cls(read(_parser(), text), text)
        except Mistake as mistake:
            raise point_at(mistake, text) from None

    def mask(self, records: Records) -> NDArray[np.bool_]:
        """True for every patient who is definitely meant."""
        return np.asarray(self.truth(records) == TRUE)

    def truth(self, records: Records) -> NDArray[np.uint8]:
        """For every patient TRUE, FALSE, or UNKNOWN where a missing value decides it."""
        if self.condition is None:
            return np.full(len(records), TRUE, dtype=np.uint8)
        try:
            return _truth(self.condition, records, {})
        except Mistake as mistake:
            raise point_at(mistake, self.text or str(self)) from None

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that the query mentions."""
        if self.condition is None:
            return frozenset()
        return frozenset(predicate.name.attribute for predicate in predicates(self.condition))

    def __str__(self) -> str:
        return "" if self.condition is None else str(self.condition)


@functools.cache
def _parser() -> Lark:
    return make_parser(Builder(), "query")


def _truth(expression: Expression, records: Records, labels: Labels) -> NDArray[np.uint8]:
    match expression:
        case Not(inner):
            return np.subtract(TRUE, _truth(inner, records, labels), dtype=np.uint8)
        case And(parts):
            return functools.reduce(np.minimum, (_truth(part, records, labels) for part in parts))
        case Or(parts):
            return functools.reduce(np.maximum, (_truth(part, records, labels) for part in parts))
        case AttributeComparison(left=left):
            raise Mistake("a query compares attributes with values, not with each other", left.place)
        case _:
            name = expression.name
            if name.attribute not in records:
                problem = f"there is no attribute {name}{nearest(name.attribute, records.names)}"
                raise Mistake(problem, name.place)
            return _judge(expression, records[name.attribute], labels)


def _judge(predicate: Predicate, column: Column, labels: Labels) -> NDArray[np.uint8]:
    """The predicate's truth for every row of the column."""
    if isinstance(column, Numbers):
        return _judge_numbers(predicate, column.numbers)
    if isinstance(predicate, Missing):
        return np.where(column.codes == 0, TRUE, FALSE).astype(np.uint8)
    _require_order(predicate, column)
    # Decided once per category and then looked up, whatever the number of rows.
    if bounds(predicate):
        holds = tester(predicate)
        verdicts = np.array(
            [UNKNOWN, *(TRUE if holds(value) else FALSE for value in column.values)], np.uint8
        )
        return np.take(verdicts, column.codes)
    denied = isinstance(predicate, Comparison) and predicate.operator == "!="
    verdicts = np.full(len(column.values) + 1, TRUE if denied else FALSE, dtype=np.uint8)
    codes = labels.setdefault(predicate.name.attribute, {})
    if not codes:
        for code, value in enumerate(column.values, start=1):
            codes.setdefault(label(value), []).append(code)
    for name in all_labels(literal.value for literal in literals(predicate)):
        verdicts[codes.get(name, [])] = FALSE if denied else TRUE
    verdicts[0] = UNKNOWN
    return np.take(verdicts, column.codes)


def _judge_numbers(predicate: Predicate, numbers: NDArray[np.float64]) -> NDArray[np.uint8]:
    for literal in literals(predicate):
        if literal.kind != "number":
            raise Mistake(f"{predicate.name} is a number, {_unlike(literal)}", literal.place)
    absent = np.isnan(numbers)
    match predicate:
        case Missing():
            return np.where(absent, TRUE, FALSE).astype(np.uint8)
        case Comparison(operator=sign, literal=literal):
            holds = _COMPARE[sign](numbers, float(literal.value))
        case ListMembership(literals=members):
            holds = np.isin(numbers, [float(literal.value) for literal in members])
        case Range(low=low, high=high):
            holds = (numbers >= float(low.value)) & (numbers <= float(high.value))
    return np.where(absent, UNKNOWN, np.where(holds, TRUE, FALSE)).astype(np.uint8)


def _require_order(predicate: Predicate, column: Coded) -> None:
    """Comparing by size needs a column that has an order, and values of its kind."""
    name, limits = predicate.name, bounds(predicate)
    # A code has no order even where nobody has a value: otherwise a refusal would tell that somebody has one.
    if not limits or not (column.values or column.stated):
        return
    texts = all(isinstance(value, str) for value in column.values)
    if column.stated or not (column.numeric or texts):
        problem = f"{name} is a code, not a number, and has no order; compare it with = or in {{..}}"
        raise Mistake(problem, name.place)
    for literal in limits:
        if literal.kind != ("number" if column.numeric else "text"):
            kind = "a number" if column.numeric else "text, not a number"
            raise Mistake(f"{name} is {kind}, {_unlike(literal)}", literal.place)


def _unlike(literal: Literal) -> str:
    match literal.kind:
        case "text":
            return f"but {literal} is text; write a number without quotes"
        case "number":
            return f"but {literal} is a number; write text in quotes, such as '{literal}'"
        case _:
            return (
                f"but {literal} is neither; write true and false only after = or in an {{..}} of categories"
            )


def read_as_numbers(column: Column, room: Path | None = None) -> NDArray[np.float64]:
    """A column as numbers, NaN where a value is missing or is none."""
    if isinstance(column, Numbers):
        return column.numbers
    return map_values(column, measure, room)


def read_as_labels(column: Column, room: Path | None = None) -> Coded:
    """A column as categories that are all text: the label of the value, or of what it stands for."""
    if isinstance(column, Numbers):
        sizes, places = np.unique(column.numbers, return_inverse=True)
        sizes = sizes[~np.isnan(sizes)]
        names = [label(float(number)) for number in sizes.tolist()]
        codes = np.where(places < len(sizes), places + 1, 0).astype(np.uint32)
    else:
        names, codes = [_label_alone(value) for value in column.values], column.codes
    ordered = sorted(set(names))
    place = {name: index + 1 for index, name in enumerate(ordered)}
    new = np.array([0, *(place[name] for name in names)], dtype=narrowest(len(ordered)))
    return Coded.trust(look_up(new, codes, room), tuple(ordered), stated=True)


def _label_alone(value: Value) -> str:
    """The label of a cell, whatever the others hold: a number beyond all bounds is that, as it would be among numbers
    alone."""
    number = measure(value)
    return label(number) if math.isinf(number) else canonical(value)


def read_as_asked(records: Records, query: Query) -> Records:
    """The columns of a query as it speaks of them: numbers where it compares one by size, otherwise categories."""
    if query.condition is None:
        return records
    by_size = {
        predicate.name.attribute
        for predicate in predicates(query.condition)
        if any(literal.kind == "number" for literal in bounds(predicate))
    }
    columns: dict[str, Column] = {}
    for name in records.names:
        if name not in query.attributes:
            columns[name] = records[name]
        elif name in by_size:
            columns[name] = Numbers(read_as_numbers(records[name]))
        else:
            columns[name] = read_as_labels(records[name])
    return Records(columns)
