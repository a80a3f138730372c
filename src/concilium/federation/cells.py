"""Reading each cell by itself, whatever the others hold: how columns are read for private questions.

Whether a column was read as numbers, as integer codes or as text is found out from all its values together: one
patient with an odd value changes it for everybody. Differential privacy allows one patient to change one patient's
share of a count, so under `private` a value is a number if it is one or reads as one, and its label is that of the
number; no refusal and no other patient's count depends on it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.expression import literals, predicates
from concilium.records.query import Query
from concilium.records.table import Records

# A number as it is commonly written; what has leading zeros (0389) is a code.
NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]{1,3})?")


def as_number(value: Value) -> float:
    """The number that a value is or reads as, NaN if none."""
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else float("nan")
    return float(value) if not isinstance(value, bool) else float("nan")


def read_as_numbers(column: Column) -> NDArray[np.float64]:
    """A column as numbers, NaN where a value is missing or is none."""
    if isinstance(column, Numbers):
        return column.numbers
    sizes: NDArray[np.float64] = np.array([np.nan, *map(as_number, column.values)], dtype=np.float64)
    return np.take(sizes, column.codes)


def read_as_labels(column: Column) -> Coded:
    """A column as categories that are all text: the label of the value, or of the number that it reads as."""
    if isinstance(column, Numbers):
        found, codes = np.unique(column.numbers, return_inverse=True)
        known = found[~np.isnan(found)]
        names = [label(float(number)) for number in known.tolist()]
        codes = np.where(codes < len(known), codes + 1, 0)
    else:
        names, codes = [canonical(value) for value in column.values], column.codes.astype(np.int64)
    ordered = sorted(set(names))
    place = {name: index + 1 for index, name in enumerate(ordered)}
    new = np.array([0, *(place[name] for name in names)], dtype=np.int64)
    return Coded(new[codes].astype(np.uint32), tuple(ordered), stated=True)


def canonical(value: Value) -> str:
    number = as_number(value)
    return label(value) if np.isnan(number) else label(number)


def read_as_asked(records: Records, query: Query) -> Records:
    """The columns of a query as it speaks of them: numbers where it compares with one, otherwise categories."""
    if query.condition is None:
        return records
    with_numbers = {
        predicate.name.attribute
        for predicate in predicates(query.condition)
        if any(literal.kind == "number" for literal in literals(predicate))
    }
    columns: dict[str, Column] = {}
    for name in records.names:
        if name not in query.attributes:
            columns[name] = records[name]
        elif name in with_numbers:
            columns[name] = Numbers(read_as_numbers(records[name]))
        else:
            columns[name] = read_as_labels(records[name])
    return Records(columns)
