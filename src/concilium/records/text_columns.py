"""A column that was read as text, row by row."""

from __future__ import annotations

import numpy as np

from concilium.errors import RecordsError
from concilium.records.columns import Coded, Column, Numbers, Value, label


def distinct_texts(column: Column) -> Coded:
    """The column as codes into texts without blanks around them; numbers of a typed source as they are written.

    A fraction is refused: a number does not tell 250.1 from 250.10.
    """
    if isinstance(column, Numbers):
        present = ~np.isnan(column.numbers)
        distinct, places = np.unique(column.numbers[present], return_inverse=True)
        codes = np.zeros(len(column), dtype=np.uint32)
        codes[present] = places + 1
        column = Coded(codes, tuple(distinct.tolist()))
    texts = [_write(value) for value in column.values]
    code_of = {text: code for code, text in enumerate(sorted(set(texts) - {""}), start=1)}
    table = np.array([0, *(code_of.get(text, 0) for text in texts)], dtype=np.uint32)
    return Coded(table[column.codes], tuple(code_of))


def list_texts(column: Column) -> list[str | None]:
    """The text of each row, without blanks around it; None where there is none."""
    texts = distinct_texts(column)
    values = [None, *map(str, texts.values)]
    return [values[code] for code in texts.codes.tolist()]


def _write(value: Value) -> str:
    if isinstance(value, float) and not value.is_integer():
        raise RecordsError(
            f"{label(value)} is stored as a number, which does not tell 250.1 from 250.10; store it as text"
        )
    return label(value).strip()
