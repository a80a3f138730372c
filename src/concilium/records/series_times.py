"""When each row of a table of measurements was, counted from where that patient's time begins.

A time is a number, or a date with or without a time zone; a column holds one of these. Where a patient's time begins
depends on that patient alone.

The steps of a regular grid are exact fractions of an hour. Where times are decimal numbers, a time up to a millionth of
a step before a cell belongs to that cell already: 0.1 h is not one binary number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import count_codes, list_blocks, read_block, read_rows
from concilium.records.coding import Place, code_values
from concilium.records.columns import Moments, Numbers, Value, label
from concilium.records.grammar import BLANKS, read_number
from concilium.records.series_columns import Measurements, tell_unit

HOURS = {
    "seconds": Fraction(1, 3600),
    "minutes": Fraction(1, 60),
    "hours": Fraction(1),
    "days": Fraction(24),
}
MICROSECOND = Fraction(1, 3_600_000_000)
NEAR = 1e-6  # of a step

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")
_LETTERS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def read_step(step: str) -> float:
    """The hours of a step such as "15min", "1h" or "1d"."""
    return float(read_duration(step, "step"))


def read_duration(text: object, name: str) -> Fraction:
    """The exact hours of a positive time such as "15min", "1h" or "1d"; `name` is what the error calls it."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    hours = Fraction(match[1]) * HOURS[_LETTERS[match[2]]] if match else Fraction(0)
    if not 0 < hours < 10**9:
        raise RecordsError(f"{name} {text!r} is no time; write 15min, 1h or 1d")
    return hours


def count_steps(limit: str | int, step: str, name: str) -> int:
    """How many whole steps fit in a time such as "6h"; a whole number is a number of steps already."""
    if isinstance(limit, int) and not isinstance(limit, bool):
        if limit < 0:
            raise RecordsError(f"{name} {limit} is negative; write a number of steps, or a time such as 6h")
        return limit
    return int(read_duration(limit, name) / read_duration(step, "step"))


def find_cells(times: NDArray[np.float64], unit: Fraction, step: str) -> NDArray[np.float64]:
    """The number of the cell that each time falls in, cell 0 starting at time 0; NaN where the time is.

    `unit` is the exact hours of one unit of the times.
    """
    ratio = unit / read_duration(step, "step")
    with np.errstate(over="ignore"):  # what is that far away is refused, or left out
        return np.floor(times * ratio.numerator / ratio.denominator + NEAR)


FIRST = "first"  # as an origin: a patient's own first row
SHOWN = 3  # patients that an error names
NUMBER, NAIVE, ZONED, NO_TIME = range(4)
TIME_KINDS = ("numbers", "dates without a time zone", "dates with a time zone", "no times")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeColumn:
    """The times of all rows, dates in microseconds, and what they are (None: all are missing). `table`: the number of
    each code, where the column is one of codes."""

    rows: NDArray[Any]
    table: NDArray[np.float64] | None
    kind: int | None

    def take(self, rows: slice | NDArray[np.integer]) -> NDArray[np.float64]:
        """The times of some rows, NaN where missing."""
        own = read_rows(self.rows, rows)
        return own if self.table is None else self.table[own]

    @property
    def dated(self) -> bool:
        return self.kind in (NAIVE, ZONED)


def read_times(measurements: Measurements, time_unit: str | None) -> tuple[TimeColumn, Fraction]:
    """The column of times: numbers in this unit, or dates; and the exact hours of one."""
    name = measurements.roles.time
    moments = read_moments(measurements, name)
    if moments.dated and time_unit is not None:
        raise RecordsError(
            f"{measurements.name}: column {name!r} holds dates, so time_unit has no meaning; leave it out"
        )
    unit = time_unit or tell_unit(name)
    if unit not in HOURS:
        raise RecordsError(f"time_unit {unit!r} is none of {', '.join(HOURS)}{nearest(str(unit), HOURS)}")
    return moments, MICROSECOND if moments.dated else HOURS[unit]


def read_moments(measurements: Measurements, name: str) -> TimeColumn:
    """A column of times."""
    column, table = measurements.columns[name], None
    if isinstance(column, Numbers):
        rows: NDArray[Any] = column.numbers
        present = [NUMBER]
        if isinstance(column, Moments):
            present = [ZONED if column.zoned else NAIVE]
    else:
        rows = column.codes
        read = [read_moment(value) for value in column.values]
        table = np.array([np.nan, *(number for number, _ in read)])
        kinds = np.array([NUMBER, *(kind for _, kind in read)], dtype=np.uint8)
        used = count_codes(rows, len(kinds)) > 0
        used[0] = False
        present = np.unique(kinds[used]).tolist()
        if NO_TIME in present:
            faulty = measurements.find(lambda block: kinds[read_block(rows, block)] == NO_TIME)
            text = column.values[int(rows[faulty[0]]) - 1]
            raise measurements.refuse(
                f"column {name!r} holds {text!r}, which is no time,",
                faulty,
                "; write numbers, or dates such as 2024-05-01 13:30",
            )
    if len(present) > 1:
        raise RecordsError(
            f"{measurements.name}: column {name!r} holds {' and '.join(TIME_KINDS[kind] for kind in present)}; "
            f"write all its times in one way"
        )
    moments = TimeColumn(rows, table, present[0] if present else None)
    infinite = measurements.find(lambda block: np.isinf(moments.take(block)))
    if len(infinite):
        raise measurements.refuse(f"column {name!r} holds an infinite time", infinite)
    return moments


def read_moment(value: Value) -> tuple[float, int]:
    """The number or the microseconds of one time, by itself, and what it is."""
    if isinstance(value, bool):
        return np.nan, NO_TIME
    if not isinstance(value, str):
        return float(value), NUMBER
    number = read_number(value)
    if number is not None:
        return number, NUMBER
    try:
        moment = datetime.fromisoformat(value.strip(BLANKS))
    except ValueError:
        return np.nan, NO_TIME
    zoned = moment.tzinfo is not None
    span = (moment if zoned else moment.replace(tzinfo=UTC)) - EPOCH
    microseconds = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    return float(microseconds), ZONED if zoned else NAIVE


def find_origins(
    measurements: Measurements,
    find_owners: Callable[[slice], NDArray[np.integer]],
    ids: Sequence[Value],
    times: TimeColumn,
    origin: str | Mapping[Any, Any] | None,
) -> NDArray[np.float64]:
    """When each patient's time begins; one more entry at the end for rows of patients who are not asked for."""
    if origin is None and not times.dated:
        return np.zeros(len(ids) + 1)
    if isinstance(origin, Mapping):
        return _read_origins(measurements, find_owners, ids, times, origin)
    firsts = origin is None or origin == FIRST
    starts = times if firsts else read_moments(measurements, str(origin))
    low, high = np.full(len(ids) + 1, np.inf), np.full(len(ids) + 1, -np.inf)
    for block in list_blocks(len(measurements)):
        owners, own = find_owners(block), starts.take(block)
        np.fmin.at(low, owners, own)
        np.fmax.at(high, owners, own)
    if not firsts:
        _check_alike(measurements, times.kind, starts.kind)

        def look_up(patients: NDArray[np.bool_]) -> NDArray[np.integer]:
            patients[-1] = False
            return measurements.find(lambda block: patients[find_owners(block)])

        differing = look_up(low < high)
        if len(differing):
            raise measurements.refuse(
                f"column {origin!r} must hold one time for each patient, but it differs for the patients",
                differing,
            )
        lacking = look_up(np.isinf(low))
        if len(lacking):
            raise measurements.refuse(f"column {origin!r} holds no time for the patients", lacking)
        low[-1] = 0.0
    return np.where(np.isinf(low), 0.0, low)


def _read_origins(
    measurements: Measurements,
    find_owners: Callable[[slice], NDArray[np.integer]],
    ids: Sequence[Value],
    times: TimeColumn,
    origin: Mapping[Any, Any],
) -> NDArray[np.float64]:
    origin_of = {label(patient): start for patient, start in origin.items()}
    origins, here = np.zeros(len(ids) + 1), np.zeros(len(ids) + 1, dtype=np.bool_)
    for block in list_blocks(len(measurements)):
        here[find_owners(block)] = True
    rows = np.flatnonzero(here[:-1]).tolist()
    names = [label(ids[row]) for row in rows]
    absent = [name for name in names if origin_of.get(name) is None]
    if absent:
        raise RecordsError(
            f"origin has no time for {len(absent)} of {len(names)} patients ({', '.join(map(repr, absent[:SHOWN]))})"
        )
    starts = code_values([origin_of[name] for name in names], None, Place("origin", "time"))
    own = Measurements(None, "origin", measurements.roles, {"time": starts})
    moments = read_moments(own, "time")
    _check_alike(measurements, times.kind, moments.kind)
    origins[rows] = moments.take(slice(0, len(rows)))
    return origins


def _check_alike(measurements: Measurements, kind: int | None, kind_of_origins: int | None) -> None:
    if kind is not None and kind_of_origins is not None and kind != kind_of_origins:
        raise RecordsError(
            f"{measurements.name}: the times are {TIME_KINDS[kind]}, but the origins are "
            f"{TIME_KINDS[kind_of_origins]}; write both in one way"
        )
