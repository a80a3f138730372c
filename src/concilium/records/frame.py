"""A pandas DataFrame as columns, by the methods of the frame itself, so that pandas is never imported here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from concilium.errors import RecordsError
from concilium.records.coding import (
    Kind,
    Place,
    ReadingKind,
    Schema,
    code_dictionary,
    code_natural,
    code_numbers,
    code_values,
    code_whole,
    drop_texts,
    natural_value,
    plan_reading,
    stated_kind,
    unify,
)
from concilium.records.columns import EXACT, Column, Moments, keep_raw, label
from concilium.records.grammar import DEFAULT_MISSING

SOURCE = "the DataFrame"


def read_frame(frame: Any, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a DataFrame; its index is not a column."""
    names = [str(name) for name in frame.columns]
    kinds = plan_reading(schema, names, SOURCE)
    if not len(frame):
        raise RecordsError(f"{SOURCE} holds no patients")
    return {
        name: _code(series, kinds[name], Place(SOURCE, name), missing)
        for name, (_, series) in zip(names, frame.items(), strict=True)
        if name in kinds
    }


def _code(series: Any, reading: ReadingKind | None, place: Place, missing: frozenset[str]) -> Column:
    form = series.dtype.kind
    if reading == "time" and form == "M":
        return _code_moments(series)
    kind = stated_kind(reading)
    if hasattr(series.dtype, "categories"):
        return _code_distinct(series.cat.codes.to_numpy(), series.cat.categories, kind, place, missing)
    if form == "b":
        truth = series.to_numpy(dtype=np.float64, na_value=np.nan)
        codes = np.nan_to_num(truth + 1).astype(np.uint8)
        return code_dictionary(codes, (False, True), kind, place)
    if isinstance(series.dtype, np.dtype) and form in "iu":
        numbers = series.to_numpy()
        if kind == "number" or (int(numbers.max()) < EXACT and int(numbers.min()) > -EXACT):
            return code_whole(numbers, kind)
    elif form == "f" or (form in "iu" and (kind == "number" or not _large(series))):
        return code_numbers(series.to_numpy(dtype=np.float64, na_value=np.nan), kind)
    if form in "Mm" or "string" in type(series.dtype).__name__.lower():
        codes, distinct = series.factorize()
        return _code_distinct(codes, distinct, kind, place, missing)
    return code_values(series.astype(object).tolist(), kind, place, missing)


def _code_moments(series: Any) -> Moments:
    zoned = getattr(series.dtype, "tz", None) is not None
    if zoned:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = series.to_numpy(dtype="datetime64[us]")
    missing = np.isnat(moments)
    return Moments(np.where(missing, np.nan, moments.astype(np.int64).astype(np.float64)), zoned=zoned)


def _large(series: Any) -> bool:
    """Whether some whole number, of a type of pandas' own, would lose digits as a float64."""
    present = series.dropna()
    return len(present) > 0 and (int(present.max()) >= EXACT or int(present.min()) <= -EXACT)


def _code_distinct(
    codes: Any, distinct: Any, kind: Kind | None, place: Place, missing: frozenset[str]
) -> Column:
    """A column that pandas has already numbered; there -1 is missing."""
    values = [natural_value(value, row, place) for row, value in enumerate(distinct.tolist())]
    kept, codes = drop_texts(values, missing), codes.astype(np.int64) + 1
    column = code_natural(codes, unify(kept), kind, place)
    if kept is values or missing <= set(DEFAULT_MISSING):
        return column
    return replace(column, raw=keep_raw(codes, [label(value) for value in values]))
