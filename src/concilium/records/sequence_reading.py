"""Dated codes from lists of (time, code), a long table, or FHIR Condition resources of a Bundle or one in each line
(NDJSON); and dated codes as a long table.

A long table has a row for each code of a patient. A condition is read by itself: whose it is (`subject`), what it is
(`code.coding`), and when it began (`onsetDateTime`, `onsetPeriod`) or else was recorded (`recordedDate`). Errors name
the entry or line, and no patient.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import count_codes, make_room, read_block, split_owners, write_block
from concilium.records.coding import ReadingKind
from concilium.records.cohort_file import CODES, is_cohort_file
from concilium.records.columns import Coded, Value, distinct_texts, label
from concilium.records.grammar import iso_text
from concilium.records.relation import identifier, in_one_sentence, literal, scratch_database
from concilium.records.sequences import Sequences
from concilium.records.series_columns import Measurements, Roles, find_column
from concilium.records.series_times import (
    NAIVE,
    NO_TIME,
    NUMBER,
    TIME_KINDS,
    ZONED,
    read_moment,
    read_moments,
)
from concilium.records.sources import is_frame, read_long

if TYPE_CHECKING:
    from concilium.records.sequences import Clock, Sequences


def read_sequences(
    source: Any,
    table: str | None,
    *,
    patient: str | None,
    code: str | None,
    time: str | None,
    missing: Iterable[str] | None,
    columns: str | os.PathLike[str] | None,
) -> Sequences:
    """The sequences of a table; `Sequences.read` says what the arguments mean."""
    rows = _read(source, table, {"patient": patient, "code": code, "time": time}, missing, columns)
    folder = None if columns is None else Path(columns)
    patients = rows.columns[rows.roles.patient]
    (code_column,) = rows.roles.measured
    assert isinstance(patients, Coded)
    counted = count_codes(patients.codes, len(patients.values) + 1)
    if counted[0]:
        nobody = rows.find(lambda block: read_block(patients.codes, block) == 0)
        raise rows.refuse(f"column {rows.roles.patient!r} names no patient", nobody)
    try:
        codes = distinct_texts(rows.columns[code_column], folder)
    except RecordsError as fault:
        raise RecordsError(f"{rows.name}: in column {code_column!r} {fault}") from None
    times = read_moments(rows, rows.roles.time)

    def find_lacking(block: slice) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return read_block(codes.codes, block) == 0, np.isnan(times.take(block))

    if len(found := rows.find(lambda block: np.greater(*find_lacking(block)))):
        advice = (
            "; fill it in or leave the row out (a patient without codes has one row without code and time)"
        )
        raise rows.refuse(f"there is no code in column {code_column!r}", found, advice)
    if len(found := rows.find(lambda block: np.less(*find_lacking(block)))):
        raise rows.refuse(f"there is no time in column {rows.roles.time!r}", found)
    present = np.flatnonzero(counted)
    row_of = np.full(len(counted), -1, dtype=np.int32)
    row_of[present] = np.arange(len(present))

    def find_owners(block: slice) -> NDArray[np.integer]:
        return np.where(
            read_block(codes.codes, block) == 0, np.int32(-1), row_of[read_block(patients.codes, block)]
        )

    events = len(rows) - int(count_codes(codes.codes, 1 + len(codes.values))[0])
    days, kinds = make_room(events, np.float64, folder), make_room(events, np.int32, folder)
    counts = np.zeros(len(present), dtype=np.int64)
    done = 0
    for group, places, owners in split_owners(len(rows), len(present), find_owners):
        own = times.take(places)
        own = own if times.kind in (NUMBER, None) else _count_days(own)
        order = np.lexsort((own, owners))  # stable
        here = slice(done, done + len(order))
        write_block(days, here, own[order])
        write_block(kinds, here, codes.codes[places[order]].astype(np.int32) - 1)
        counts[group] = np.bincount(owners - group.start, minlength=group.stop - group.start)
        done = here.stop
    return Sequences.from_arrays(
        np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
        kinds,
        days,
        [str(text) for text in codes.values],
        ids=[patients.values[code - 1] for code in present.tolist()],
        clock=CLOCKS[NUMBER if times.kind is None else times.kind],
        room=folder,
    )


def _read(
    source: Any,
    table: str | None,
    named: Mapping[str, str | None],
    missing: Iterable[str] | None,
    folder: str | os.PathLike[str] | None,
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

    table = CODES if table is None and is_cohort_file(source) else table
    columns = read_long(source, table, choose, missing, folder, sorted(named.items()))
    roles, name = found[-1]
    return Measurements(None if is_frame(source) else source, name, roles, columns)


SYSTEMS = {
    "icd-9-cm": ("http://hl7.org/fhir/sid/icd-9-cm", "urn:oid:2.16.840.1.113883.6.103"),
    "icd-10-cm": ("http://hl7.org/fhir/sid/icd-10-cm", "urn:oid:2.16.840.1.113883.6.90"),
    "icd-10": ("http://hl7.org/fhir/sid/icd-10", "urn:oid:2.16.840.1.113883.6.3"),
}
"""The classifications of diagnoses, and how FHIR calls them."""

NO_DIAGNOSES = {"refuted", "entered-in-error"}

_MOMENT = re.compile(r"([0-9]{4})(-[0-9]{2})?(-[0-9]{2})?(T[0-9:.]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?")


def _collect(
    file: Path,
) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str], list[tuple[str, dict[str, Any]]]]:
    """The patients of a file, without conditions yet; who has which address; and the conditions with their places."""
    patients: dict[str, list[tuple[str, str]]] = {}
    known_as: dict[str, str] = {}
    conditions = []
    for place, address, resource in _each_resource(file):
        kind = resource.get("resourceType")
        if kind == "Patient":
            patient = str(resource.get("id") or _last_part(address or "", file, place))
            patients.setdefault(patient, [])
            if address is not None:
                known_as[address] = patient
        elif kind == "Condition":
            conditions.append((place, resource))
    return patients, known_as, conditions


def read_conditions(path: str | os.PathLike[str], system: str | None, others: str) -> Sequences:
    """The sequences of a file; `Sequences.read_fhir` says what the arguments mean."""
    if others not in ("refuse", "leave out"):
        raise RecordsError(f"others must be refuse or leave out; got {others!r}")
    if system is not None and system not in SYSTEMS and ":" not in system:
        raise RecordsError(
            f"system must be one of {', '.join(SYSTEMS)}, or an address; got {system!r}{nearest(system, SYSTEMS)}"
        )
    file = Path(path)
    patients, known_as, conditions = _collect(file)
    seen: dict[str, str] = {}
    for place, resource in conditions:
        if _status(resource) in NO_DIAGNOSES:
            continue
        found = _find_code(resource, system)
        if found is None:
            if others == "leave out":
                continue
            raise RecordsError(f"{file}, {place}: {_say_codes(resource, system)}")
        name, code = found
        seen.setdefault(name, place)
        if len(seen) > 1:
            mixed = " and ".join(f"{one} (first in {where})" for one, where in seen.items())
            raise RecordsError(
                f'{file}: {mixed} are mixed; choose one with system="{name}" and others="leave out"'
            )
        reference = _dig(resource, "subject", "reference")
        if not isinstance(reference, str):
            raise RecordsError(
                f"{file}, {place}: the condition has no subject.reference, so that it is nobody's"
            )
        patient = known_as.get(reference) or _last_part(reference, file, place)
        patients.setdefault(patient, []).append((_find_time(resource, file, place), code))
    if not patients:
        raise RecordsError(f"{file} holds no Condition and no Patient")
    return Sequences(patients.values(), list(patients))


def _each_resource(file: Path) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Where a resource is, its full address, and the resource itself."""
    name = file.name.lower().removesuffix(".gz")
    if name.endswith((".ndjson", ".jsonl")):
        for line, text in enumerate(_read_text(file).splitlines(), start=1):
            if text.strip():
                yield (
                    f"line {line}",
                    None,
                    _check_resource(_parse(text, file, f"line {line}"), file, f"line {line}"),
                )
        return
    content = _check_resource(_parse(_read_text(file), file, "its text"), file, "its text")
    if content.get("resourceType") != "Bundle":
        yield "its resource", None, content
        return
    entries = content.get("entry") or []
    if not isinstance(entries, list):
        raise RecordsError(f"{file}: the entries of a bundle are a list")
    for number, entry in enumerate(entries, start=1):
        place = f"entry {number}"
        address = _dig(entry, "fullUrl")
        yield (
            place,
            address if isinstance(address, str) else None,
            _check_resource(_dig(entry, "resource"), file, place),
        )


def _read_text(file: Path) -> str:
    try:
        raw = file.read_bytes()
        return (gzip.decompress(raw) if file.suffix.lower() == ".gz" else raw).decode("utf-8-sig")
    except FileNotFoundError:
        raise RecordsError(f"there is no file {file}") from None
    except UnicodeDecodeError:
        raise RecordsError(f"{file} is not UTF-8; save it as UTF-8") from None
    except (gzip.BadGzipFile, EOFError):
        raise RecordsError(f"{file} is not a complete gzip file; compress it anew") from None
    except OSError as fault:
        raise RecordsError(
            f"{file} cannot be opened: {(fault.strerror or 'unknown reason').lower()}"
        ) from None


def _parse(text: str, file: Path, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordsError(f"{file}: {place} is not JSON") from None


def _check_resource(content: Any, file: Path, place: str) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("resourceType"), str):
        raise RecordsError(f"{file}: {place} is no FHIR resource; it says no resourceType")
    return content


def _status(resource: Mapping[str, Any]) -> str | None:
    """Of `verificationStatus`, in any version of FHIR."""
    status = resource.get("verificationStatus")
    if isinstance(status, str):
        return status
    codings = _dig(status, "coding")
    return (
        next((str(_dig(coding, "code")) for coding in codings), None) if isinstance(codings, list) else None
    )


def _find_code(resource: Mapping[str, Any], system: str | None) -> tuple[str, str] | None:
    """The classification and the code of a condition in it; with none named, in the one that it has of those known."""
    chosen = SYSTEMS if system is None else {system: SYSTEMS.get(system, (system,))}
    found: dict[str, str] = {}
    codings = _dig(resource, "code", "coding")
    for coding in codings if isinstance(codings, list) else ():
        for name, addresses in chosen.items():
            code = _dig(coding, "code")
            if _dig(coding, "system") in addresses and isinstance(code, str) and code.strip():
                found.setdefault(name, code.strip())
    return next(iter(found.items())) if len(found) == 1 else None


def _say_codes(resource: Mapping[str, Any], system: str | None) -> str:
    codings = _dig(resource, "code", "coding")
    systems = sorted(
        {str(_dig(coding, "system")) for coding in codings} if isinstance(codings, list) else set()
    )
    wanted = "ICD-9-CM or ICD-10-CM" if system is None else system
    has = f"has codes of {', '.join(systems)}" if systems else "has no code"
    return (
        f"the condition {has}, of which one must be {'the only one ' if system is None else ''}of {wanted}; "
        f'choose with system=..., or leave such conditions out with others="leave out"'
    )


def _find_time(resource: Mapping[str, Any], file: Path, place: str) -> str:
    """When the condition began or was recorded, as ISO text without a zone."""
    times = (
        resource.get("onsetDateTime"),
        _dig(resource, "onsetPeriod", "start"),
        resource.get("recordedDate"),
    )
    text = next((time for time in times if isinstance(time, str)), None)
    if text is None:
        raise RecordsError(
            f"{file}, {place}: the condition has no onsetDateTime, onsetPeriod.start or recordedDate"
        )
    match = _MOMENT.fullmatch(text.strip())
    moment = f"{match[1]}{match[2] or '-01'}{match[3] or '-01'}{match[4] or ''}" if match else ""
    try:
        return datetime.fromisoformat(moment).isoformat(sep=" ")
    except ValueError:
        raise RecordsError(
            f"{file}, {place}: the condition has the time {text!r}, which is none of FHIR's"
        ) from None


def _last_part(reference: str, file: Path, place: str) -> str:
    """The id in a reference such as Patient/17, https://.../Patient/17/_history/2 or urn:uuid:..."""
    part = re.split("[:/]", reference.partition("/_history/")[0])[-1]
    if not part:
        raise RecordsError(f"{file}, {place}: a patient has no id")
    return part


def _dig(content: Any, *names: str) -> Any:
    for name in names:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


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


def _count_days(microseconds: Any) -> Any:
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
        return float(_count_days(number)), kind
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
