"""Patients as a model reads them: from records, data frames or plain mappings, whatever stands for missing there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.federation.cohort import bin_codes, numbers
from concilium.records.table import Coded, Records, label

if TYPE_CHECKING:
    from pandas import DataFrame


def known(value: Any) -> Any:
    """A patient's value as a plain one: numpy's scalars unwrapped; NaN, NaT and pandas' NA are missing."""
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if missing else value


def read_patient(patient: Mapping[str, Any], asked: Collection[str]) -> dict[str, Any]:
    """A patient's plain values; ModelError where there is none of those that a model asks about."""
    plain = {name: known(value) for name, value in dict(patient).items()}
    if asked and not set(asked) & set(plain):
        raise ModelError(
            "the patient has none of the attributes that this model asks about: " + ", ".join(sorted(asked))
        )
    return plain


def as_records(records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> Records:
    """Records from anything that holds patients."""
    if isinstance(records, Records):
        return records
    if isinstance(records, Sequence):
        return Records.from_rows(records)
    return Records.read(records)


def codes_and_names(
    table: Records, name: str, edges: Sequence[float] | None
) -> tuple[NDArray[np.integer], list[str | int | None]]:
    """A column's codes, and for each code what a branch calls it: a label, the number of a bin, None if missing."""
    if name not in table:
        raise ModelError(f"the records have no attribute {name!r}, which the model asks about")
    if edges is not None:
        return bin_codes(numbers(table, name), tuple(edges)), [None, *range(len(edges) + 1)]
    column = table[name]
    if isinstance(column, Coded):
        return column.codes, [None, *(label(value) for value in column.values)]
    values, codes = np.unique(column.numbers, return_inverse=True, equal_nan=True)
    return codes.astype(np.int64), [None if np.isnan(value) else label(float(value)) for value in values]
