"""Reading each cell by itself, whatever the others hold: how columns are read for private questions.

Differential privacy allows one patient to change one patient's share of a count. So under `private` only columns are
asked about of which each cell has a label of its own (`by_itself`, records/columns.py): stated ones, and those whose
type in a database leaves nothing to guess. As what they are stored together (numbers, codes or text) may still depend
on all of them: here a value is a number if it is one or reads as one, and has one label, so that no refusal and no
other patient's count depends on it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.records.columns import Coded, Column, Numbers, label
from concilium.records.expression import bounds, predicates
from concilium.records.grammar import canonical, measure
from concilium.records.query import Query
from concilium.records.table import Records


def read_as_numbers(column: Column) -> NDArray[np.float64]:
    """A column as numbers, NaN where a value is missing or is none."""
    if isinstance(column, Numbers):
        return column.numbers
    sizes: NDArray[np.float64] = np.array([np.nan, *map(measure, column.values)], dtype=np.float64)
    return np.take(sizes, column.codes)


def read_as_labels(column: Column) -> Coded:
    """A column as categories that are all text: the label of the value, or of what it stands for."""
    if isinstance(column, Numbers):
        sizes, codes = np.unique(column.numbers, return_inverse=True)
        sizes = sizes[~np.isnan(sizes)]
        names = [label(float(number)) for number in sizes.tolist()]
        codes = np.where(codes < len(sizes), codes + 1, 0)
    else:
        names, codes = [canonical(value) for value in column.values], column.codes.astype(np.int64)
    ordered = sorted(set(names))
    place = {name: index + 1 for index, name in enumerate(ordered)}
    new = np.array([0, *(place[name] for name in names)], dtype=np.int64)
    return Coded(new[codes].astype(np.uint32), tuple(ordered), stated=True)


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
