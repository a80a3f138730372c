"""Lists of (time, code) as arrays of events, and dated codes as a long table: a row for each code of a patient."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.columns import Value, label
from concilium.records.grammar import iso_text
from concilium.records.relation import identifier, in_one_sentence, literal, scratch_database
from concilium.records.series_times import NAIVE, NO_TIME, NUMBER, TIME_KINDS, ZONED, read_moment

if TYPE_CHECKING:
    from concilium.records.sequences import Clock, Sequences

MILLISECONDS = 86_400_000  # in a day
MOST_DAYS = 1e15  # whoever goes beyond counts in something else
CLOCKS: dict[int, Clock] = {NUMBER: "days", NAIVE: "dates", ZONED: "zoned dates"}


def read_lists(
    lists: Iterable[Iterable[tuple[Any, str]]], patients: Sequence[Value] | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32], list[str], Clock]:
    """How many events each patient has, of each event the time and the code, the codes there are, and the clock."""
    reading = _Events(patients)
    counts: list[int] = []
    for events in lists:
        counts.append(reading.add(events, len(counts)))
    if patients is not None and len(patients) != len(counts):
        raise RecordsError(f"there are {len(counts)} patients and {len(patients)} names of them")
    return (
        np.array(counts, dtype=np.int64),
        np.array(reading.times, dtype=np.float64),
        np.array(reading.codes, dtype=np.int32),
        list(reading.number_of),
        CLOCKS[NUMBER if reading.kind is None else reading.kind],
    )


def count_days(microseconds: Any) -> Any:
    """Days, to the millisecond, which they keep through all centuries: what is written is read back the same."""
    return np.rint(np.asarray(microseconds) / 1000) / MILLISECONDS


def _read_time(value: Any) -> tuple[float, int]:
    """The days of one time, by itself, and what it is: a number, a date without or with a zone, or no time."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, date):
        value = value.isoformat() if not isinstance(value, datetime) else iso_text(value)
    if not isinstance(value, str | int | float):
        return np.nan, NO_TIME
    if isinstance(value, int) and abs(value) >= MOST_DAYS:
        return np.nan, NO_TIME
    number, kind = read_moment(value)
    if kind != NUMBER:
        return float(count_days(number)), kind
    return (number, kind) if abs(number) < MOST_DAYS else (np.nan, NO_TIME)


class _Events:
    """Events as they come; the first that cannot be read is an error with its place."""

    def __init__(self, patients: Sequence[Value] | None) -> None:
        self.times: list[float] = []
        self.codes: list[int] = []
        self.number_of: dict[str, int] = {}
        self.kind: int | None = None
        self._patients = patients
        self._text_of: dict[str, int] = {}
        self._moment_of: dict[str, tuple[float, int]] = {}

    def add(self, events: Iterable[tuple[Any, str]], row: int) -> int:
        if isinstance(events, str) or not isinstance(events, Iterable):
            raise RecordsError(
                f"{self._name(row)} must be a list of (time, code), empty where there are none; got {events!r}"
            )
        before = len(self.codes)
        for place, event in enumerate(events, start=1):
            if not isinstance(event, tuple | list) or len(event) != 2:
                raise RecordsError(f"event {place} of {self._name(row)} must be (time, code); got {event!r}")
            time, code = event
            number = self._text_of.get(code) if isinstance(code, str) else None
            self.codes.append(self._read_code(code, place, row) if number is None else number)
            if self.kind == NUMBER and type(time) in (int, float) and abs(time) < MOST_DAYS:
                self.times.append(time)
            else:
                self.times.append(self._read_time(time, place, row))
        return len(self.codes) - before

    def _read_code(self, code: Any, place: int, row: int) -> int:
        if not isinstance(code, str) or not code.strip():
            raise RecordsError(
                f"event {place} of {self._name(row)} has the code {code!r}; a code is text, as '042', of which a "
                f"number would lose the zero"
            )
        number = self.number_of.setdefault(code.strip(), len(self.number_of))
        self._text_of[code] = number
        return number

    def _read_time(self, time: Any, place: int, row: int) -> float:
        if isinstance(time, str) and time in self._moment_of:
            days, kind = self._moment_of[time]
        else:
            days, kind = _read_time(time)
            if isinstance(time, str):
                self._moment_of[time] = days, kind
        if kind == NO_TIME:
            raise RecordsError(
                f"event {place} of {self._name(row)} has the time {time!r}; write a number of days, or a date such as "
                f"2024-05-01 or 2024-05-01 13:30"
            )
        if self.kind is not None and kind != self.kind:
            raise RecordsError(
                f"event {place} of {self._name(row)} has the time {time!r}, but times before it are "
                f"{TIME_KINDS[self.kind]}; write all times in one way"
            )
        self.kind = kind
        return days

    def _name(self, row: int) -> str:
        known = self._patients is not None and row < len(self._patients)
        return f"patient {label(self._patients[row])!r}" if known and self._patients else f"patient {row + 1}"


FORMS = {
    ".csv": "FORMAT csv, HEADER true",
    ".csv.gz": "FORMAT csv, HEADER true, COMPRESSION gzip",
    ".parquet": "FORMAT parquet",
}


def write_sequences(
    sequences: Sequences, path: str | os.PathLike[str], names: tuple[str, str, str], notice: str | None = None
) -> None:
    """One row for each event; `Sequences.write` says what is written."""
    target = Path(path)
    form = next((form for ending, form in FORMS.items() if target.name.lower().endswith(ending)), None)
    if form is None:
        raise RecordsError(f"{target}: codes are written to a file whose name ends in {', '.join(FORMS)}")
    if not target.absolute().parent.is_dir():
        raise RecordsError(f"there is no folder {target.absolute().parent}")
    empty = np.flatnonzero(sequences.counts == 0)
    events = {
        "owner": np.concatenate([sequences.owners, empty]),
        "place": np.concatenate([sequences.codes.astype(np.int64), np.full(len(empty), -1)]),
        "number": np.concatenate([_count(sequences), np.zeros(len(empty))]),
        "row": np.arange(len(sequences.codes) + len(empty)),
    }
    who = {"owner": np.arange(len(sequences)), "name": _texts([label(one) for one in sequences.ids])}
    what = {"place": np.arange(len(sequences.labels)), "text": _texts(sequences.labels)}
    in_text = form != FORMS[".parquet"]
    time = _write_days(in_text) if sequences.clock == "days" else _write_dates(in_text, sequences.clock)
    patient, moment, code = map(identifier, names)
    noticed = "" if notice is None else f", {literal(notice)} AS notice"
    with scratch_database() as (connection, folder), in_one_sentence(f"{target} cannot be written"):
        for table, columns in {"events": events, "who": who, "what": what}.items():
            connection.register(table, columns)
        written = folder / "written"
        connection.execute(
            f"COPY (SELECT name AS {patient}, CASE WHEN place >= 0 THEN {time} END AS {moment}, text AS {code}{noticed}"
            f" FROM events JOIN who USING (owner) LEFT JOIN what USING (place) ORDER BY owner, row)"
            f" TO {literal(str(written))} ({form})"
        )
        target.write_bytes(written.read_bytes())


def _write_days(in_text: bool) -> str:
    whole = "number = trunc(number) AND abs(number) < 1e15"
    return f"CASE WHEN {whole} THEN number::BIGINT::VARCHAR ELSE number::VARCHAR END" if in_text else "number"


def _write_dates(in_text: bool, clock: Clock) -> str:
    """Moments, in a text file a midnight as its date."""
    moment = "make_timestamp(number::BIGINT)"
    if clock == "zoned dates":
        return f"({moment} AT TIME ZONE 'UTC')"
    return f"regexp_replace({moment}::VARCHAR, ' 00:00:00$', '')" if in_text else moment


def _count(sequences: Sequences) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Days as they are, dates in microseconds."""
    return sequences.times if sequences.clock == "days" else np.rint(sequences.times * MILLISECONDS) * 1000


def _texts(texts: object) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    return np.array(texts, dtype=object)
