"""Dated codes from a long table: a row for each code of a patient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from concilium.errors import RecordsError
from concilium.records.coding import ReadingKind
from concilium.records.columns import Coded
from concilium.records.sequence_lists import CLOCKS, count_days
from concilium.records.sequences import Sequences
from concilium.records.series_columns import Measurements, Roles, find_column
from concilium.records.series_times import NUMBER, read_moments
from concilium.records.sources import is_frame, read_columns
from concilium.records.text_columns import distinct_texts


def read_sequences(
    source: Any,
    table: str | None,
    *,
    patient: str | None,
    code: str | None,
    time: str | None,
    missing: Iterable[str] | None,
) -> Sequences:
    """The sequences of a table; `Sequences.read` says what the arguments mean."""
    rows = _read(source, table, {"patient": patient, "code": code, "time": time}, missing)
    patients = rows.columns[rows.roles.patient]
    (code_column,) = rows.roles.measured
    assert isinstance(patients, Coded)
    if np.any(patients.codes == 0):
        raise rows.refuse(f"column {rows.roles.patient!r} names no patient", patients.codes == 0)
    try:
        codes = distinct_texts(rows.columns[code_column])
    except RecordsError as fault:
        raise RecordsError(f"{rows.name}: in column {code_column!r} {fault}") from None
    times, kind = read_moments(rows, rows.roles.time)
    lacking_code, lacking_time = codes.codes == 0, np.isnan(times)
    if np.any(lacking_code & ~lacking_time):
        advice = (
            "; fill it in or leave the row out (a patient without codes has one row without code and time)"
        )
        raise rows.refuse(f"there is no code in column {code_column!r}", lacking_code & ~lacking_time, advice)
    if np.any(lacking_time & ~lacking_code):
        raise rows.refuse(f"there is no time in column {rows.roles.time!r}", lacking_time & ~lacking_code)
    present, row_of = np.unique(patients.codes, return_inverse=True)
    events = np.flatnonzero(~lacking_code)
    events = events[np.argsort(row_of[events], kind="stable")]
    counts = np.bincount(row_of[events], minlength=len(present))
    days = times[events] if kind in (NUMBER, None) else count_days(times[events])
    return Sequences.from_arrays(
        np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
        codes.codes[events].astype(np.int64) - 1,
        days,
        [str(text) for text in codes.values],
        ids=[patients.values[code - 1] for code in present.tolist()],
        clock=CLOCKS[NUMBER if kind is None else kind],
    )


def _read(
    source: Any, table: str | None, named: Mapping[str, str | None], missing: Iterable[str] | None
) -> Measurements:
    found: list[tuple[Roles, str]] = []

    def choose(names: Sequence[str], name: str) -> Mapping[str, ReadingKind | None]:
        chosen = {role: find_column(role, column, names, name) for role, column in named.items()}
        if len(set(chosen.values())) < len(chosen):
            raise RecordsError(
                f"{name}: patient, code and time must be three columns; they are "
                f"{', '.join(map(repr, chosen.values()))}"
            )
        found.append((Roles(chosen["patient"], chosen["time"], None, None, (chosen["code"],), None), name))
        return {chosen["patient"]: "code", chosen["code"]: "text", chosen["time"]: "time"}

    columns = read_columns(source, table, choose, missing)
    roles, name = found[-1]
    return Measurements(None if is_frame(source) else source, name, roles, columns)
