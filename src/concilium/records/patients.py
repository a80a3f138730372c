"""A hospital's one population: a table and whatever else is told of the same patients, joined by their ids.

After the join one row number means one patient in every part, so that one query on the table selects patients for all
of them. The errors here name ids: they are for the hospital that brings its own parts together, before any question.

Which columns number or name patients is found by their names alone, and by what they hold.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import fill_room, is_large, list_blocks, make_room, read_block, split_hashes
from concilium.records.clinical_ranges import find_range
from concilium.records.columns import EXACT, Coded, Column, Numbers, Value, label, take_block
from concilium.records.row_hashes import Hashes, count_before, hash_labels
from concilium.records.table import Records, number_rows

PARTS = ("table", "series", "codes", "rules")
SHOWN = 3  # ids that an error names


class PatientPart(Protocol):
    """What a hospital holds of its patients beside the table.

    `ids` names the patients in the part's own order, each once; `digest` is hex text over ids and content in that
    order; `hashes` are of what is held of each patient (row_hashes.py); `take` gives the part for these rows in this
    order. A type whose parts may be all that a hospital holds says which part it is, `part = "series"`.
    """

    @property
    def ids(self) -> Sequence[Value | None]: ...

    @property
    def digest(self) -> str: ...

    @property
    def hashes(self) -> Hashes: ...

    def take(self, rows: NDArray[np.intp]) -> PatientPart: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Owners:
    """Whose each row is: a number for each row, into the patients' labels."""

    codes: NDArray[np.integer]
    labels: Sequence[str]

    def take(self, rows: NDArray[np.integer]) -> Owners:
        return Owners(self.codes[rows], self.labels)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Patients:
    """One population in one or more parts, all of the same patients in the same order.

    `by` names the table's column of patient ids, needed as soon as there is more than a table; the other parts bring
    their own. Ids are compared by their labels, so that 5 and '5' are one patient. The order is the table's, or that
    of the first part where there is none.

    A price holds for one row. So without `by`, a table has one row for each patient: whoever hands it to a `Site` in
    Python states that, and a study or site file states it (`one_row_per_patient = true`). With
    `one_row_per_patient=False` nobody has, and no private question is answered. With `by` an id that comes twice is
    refused here, before any question; unless `encounters` says that a row of the table, which is then all there is, is
    an encounter and a patient has as many as there are (protocol/cohort.py).
    """

    table: Records | None = None
    series: PatientPart | None = None
    codes: PatientPart | None = None
    rules: PatientPart | None = None
    by: str | None = None
    one_row_per_patient: bool = True
    encounters: bool = False

    def __post_init__(self) -> None:
        _check_parts(self.parts, self.by)
        if self.encounters:
            if self.by is None or self.reads != ("table",):
                raise RecordsError(
                    "one row is one encounter only in a table alone, whose column of patient ids by names"
                )
            if not self._are_many:
                _read_ids("table", self.parts["table"], self.by, once=False)
        if self.reads == ("table",) and (self.encounters or self.by is None or self._are_many):
            if self._are_many and self.by is not None:
                _check_many(self.table, self.by, self._id_hashes, once=not self.encounters)
            return
        ids = {name: _read_ids(name, part, self.by) for name, part in self.parts.items()}
        _check_same(ids)
        order = ids[self.reads[0]]
        for name in self.reads[1:]:
            row_of = {patient: row for row, patient in enumerate(ids[name])}
            rows = np.array([row_of[patient] for patient in order], dtype=np.intp)
            if np.any(rows[1:] < rows[:-1]):
                object.__setattr__(self, name, self.parts[name].take(rows))

    def __len__(self) -> int:
        return len(self.parts[self.reads[0]])

    @cached_property
    def owners(self) -> Owners | None:
        """Whose each row is, where a patient may have several; None where one row is one patient."""
        if not self.encounters:
            return None
        if self._are_many:
            return _number_owners(self.table, self.by, self._id_hashes)
        labels, codes = np.unique(np.array(self._ids, dtype=object), return_inverse=True)
        return Owners(codes.reshape(-1).astype(np.intp), labels.tolist())

    @property
    def people(self) -> int:
        """How many patients there are, by ids where a patient may have several rows."""
        return len(self) if self.owners is None else len(self.owners.labels)

    def __repr__(self) -> str:
        return f"Patients({self.people} patients: {', '.join(self.reads)})"

    @classmethod
    def read(cls, path: str | os.PathLike[str], step: str = "1d") -> Patients:
        """The patients of a cohort file, in one reading of its database: the table, codes where the file has [codes],
        and series on a grid of this step where it has [series]."""
        from concilium.records.cohort_file import CODES, MEASUREMENTS, PATIENT, PATIENTS, CohortFile
        from concilium.records.omop import read_tables
        from concilium.records.relation import scan_table
        from concilium.records.sequences import Sequences
        from concilium.records.series import Series

        file = CohortFile.read(path)
        names = [PATIENTS, *([CODES] if file.codes else []), *([MEASUREMENTS] if file.series else [])]
        tables = read_tables(file, names)
        parts: dict[str, Any] = {}
        if file.codes:
            parts["codes"] = Sequences.read(tables[CODES])
        if file.series:
            stated = [one.name for one in file.series]
            parts["series"] = Series.read(tables[MEASUREMENTS], step=step, variables=stated)
        table = Records(scan_table(tables[PATIENTS], str(path), {PATIENT: "code"}, frozenset()))
        return cls(table=table, by=PATIENT, encounters=file.cohort.every, **parts)

    @classmethod
    def of(cls, data: object) -> Patients | None:
        """Patients of a table, or of another part that says which one it is, alone; None where this is neither."""
        if isinstance(data, Patients):
            return data
        name = "table" if isinstance(data, Records) else getattr(type(data), "part", None)
        parts: dict[str, Any] = {name: data} if name in PARTS else {}
        return cls(**parts) if parts else None

    @cached_property
    def selectable(self) -> Records:
        """The table by which queries select patients; without one, a list of them that says nothing of anybody."""
        if self.table is not None:
            return self.table
        return Records({"patient": Coded(np.ones(len(self), dtype=np.uint8), ("here",), stated=True)})

    @property
    def bytes_held(self) -> int:
        """The memory that the rows of all parts take; none where they are mapped from files."""
        return sum(getattr(part, "bytes_held", 0) for part in self.parts.values())

    @property
    def parts(self) -> Mapping[str, Records | PatientPart]:
        """The parts there are, joined, by name."""
        return MappingProxyType({name: part for name in PARTS if (part := getattr(self, name)) is not None})

    @property
    def rows_are_patients(self) -> bool:
        """Whether one row is one patient: ids say so, or somebody stated it."""
        return self.by is not None or self.table is None or self.one_row_per_patient

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the parts there are."""
        return tuple(self.parts)

    @cached_property
    def digest(self) -> str:
        """What a ledger is bound to: of a table alone its own digest, otherwise SHA-256 over all parts.

        The order in which the patients come does not matter, in the table as in any other part.
        """
        if self.table is not None and self.reads == ("table",):
            return self.table.digest
        order = sorted(range(len(self)), key=self._ids.__getitem__)
        ordered = self.take(np.array(order, dtype=np.intp))
        return _digest_parts("concilium/patients@2", ordered)

    @property
    def _are_many(self) -> bool:
        """Whether there are too many to hold their ids as text."""
        return self.reads == ("table",) and is_large(len(self))

    @cached_property
    def _id_hashes(self) -> Hashes:
        assert self.table is not None
        assert self.by is not None
        return _hash_ids(self.table, self.by)

    @property
    def _ids(self) -> list[str]:
        name = self.reads[0]
        return _read_ids(name, self.parts[name], self.by, once=not self.encounters)

    def tell_apart(self, columns: Sequence[str] | None) -> Hashes:
        """A hash for each patient: of all that these columns of the table say, or of the id where they are None."""
        if columns is None:
            return self._id_hashes if self._are_many else hash_labels(self._ids)
        if self.table is None:
            raise RecordsError("there is no table, so that patients are told apart by their ids only")
        return self.table.tell_apart(columns)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Patients:
        """The patients of a mask or of row numbers in every part; nobody may be among them."""
        numbers = number_rows(rows, len(self))
        selection = object.__new__(Patients)  # joined and checked already
        vars(selection).update(dict.fromkeys(PARTS), by=self.by, encounters=self.encounters)
        vars(selection).update(one_row_per_patient=self.one_row_per_patient)
        vars(selection).update({name: part.take(numbers) for name, part in self.parts.items()})
        return selection


def _digest_parts(form: str, patients: Patients) -> str:
    lines = [f"{name} {part.digest}\n" for name, part in sorted(patients.parts.items())]
    return hashlib.sha256((f"{form}\n" + "".join(lines)).encode()).hexdigest()


def _check_parts(parts: Mapping[str, Records | PatientPart], by: str | None) -> None:
    """Parts that can be joined at all, and the column to join the table by."""
    if not parts:
        raise RecordsError("there are no patients: give at least one of table, series, codes and rules")
    table = parts.get("table")
    if table is not None and not isinstance(table, Records):
        raise RecordsError(
            f"the table must be Records, not {type(table).__name__}; read it with Records.read(...)"
        )
    for name, part in parts.items():
        if name != "table" and not (hasattr(part, "ids") and hasattr(part, "take")):
            raise RecordsError(
                f"the {name} must tell the ids of their patients; {type(part).__name__} does not"
            )
        # A table alone may be that of a hospital without patients; there is nothing to join.
        if len(part) == 0 and not (name == "table" and by is None and len(parts) == 1):
            raise RecordsError(f"there is no patient in the {name}; fill it in or leave it out")
    if table is None and by is not None:
        raise RecordsError(f"by names {by!r}, a column of the table, but there is no table; leave it out")
    if table is not None and by is None and len(parts) > 1:
        others = " and ".join(f"the {name}" for name in parts if name != "table")
        raise RecordsError(f"by must name the table's column of patient ids, to join it with {others}")
    if table is not None and by is not None and not (isinstance(by, str) and by in table):
        raise RecordsError(f"by names {by!r}, which is no column of the table{nearest(str(by), table.names)}")


def _read_ids(name: str, part: Records | PatientPart, by: str | None, *, once: bool = True) -> list[str]:
    """The labels of a part's patients, once everybody has an id, and (`once`) one of their own."""
    where = f"the {name}" if by is None or name != "table" else f"column {by!r} of the table"
    if isinstance(part, Records):
        assert by is not None
        column = part[by]
        if isinstance(column, Numbers) and np.any(np.abs(column.numbers) >= EXACT):
            raise _refuse_long(where, by)
        values: Sequence[Value | None] = part.values(by)
    else:
        values = part.ids
    missing = [row for row, value in enumerate(values, start=1) if value is None or value != value]
    if missing:
        raise _refuse_missing(where, len(missing), missing[0])
    ids = [label(value) for value in values]
    twice = [] if not once else [patient for patient, times in Counter(ids).items() if times > 1]
    if twice:
        raise _refuse_twice(where, len(twice), _name(twice))
    return ids


def _refuse_long(where: str, by: str) -> RecordsError:
    return RecordsError(
        f"{where} holds numbers so long that digits of an id may be lost; "
        f'read the table with schema={{{by!r}: "code"}}'
    )


def _refuse_missing(where: str, count: int, first: int) -> RecordsError:
    return RecordsError(
        f"{_count(count)} without an id in {where}, first in row {first}; fill it in or leave them out"
    )


def _refuse_twice(where: str, count: int, names: str) -> RecordsError:
    return RecordsError(
        f"{_count(count)} more than once in {where} ({names}); keep one row for each patient, or state "
        "that one row is one encounter: encounters = true"
    )


def _hash_ids(table: Records, by: str) -> Hashes:
    """The hashes of the ids in a large table (`hash_labels`), zero where there is none."""
    column = table[by]

    def make(block: slice) -> Hashes:
        part = take_block(column, block)
        if isinstance(part, Numbers):
            if np.any(np.abs(part.numbers) >= EXACT):
                raise _refuse_long(f"column {by!r} of the table", by)
            hashes = hash_labels([label(number) for number in part.numbers.tolist()])
            hashes[:, np.isnan(part.numbers)] = 0
            return hashes
        own = hash_labels([label(value) for value in part.values])
        return np.concatenate([np.zeros((2, 1), dtype=np.uint64), own], axis=1)[:, part.codes]

    found: Hashes = fill_room((2, len(table)), np.uint64, table.room, make)
    return found


def _check_many(table: Records | None, by: str, hashes: Hashes, *, once: bool) -> None:
    """`_read_ids` of a large table: RecordsError unless everybody has an id, and (`once`) one of their own."""
    assert table is not None
    where = f"column {by!r} of the table"
    count, first = 0, 0
    for block in list_blocks(len(table)):
        absent = np.flatnonzero(~read_block(hashes, block).any(axis=0))
        first = first or (block.start + int(absent[0]) + 1 if len(absent) else 0)
        count += len(absent)
    if count:
        raise _refuse_missing(where, count, first)
    twice: list[int] = []
    for rows in split_hashes(hashes[0]) if once else ():
        before = count_before(hashes[:, rows])
        if before is not None:
            second = hashes[:, rows[before == 1]]
            twice += [int(rows[(hashes[:, rows] == one[:, None]).all(axis=0)][0]) for one in second.T[:SHOWN]]
            count += second.shape[1]
    if count:
        shown = [label(_find_value(table[by], row)) for row in sorted(twice)[:SHOWN]]
        raise _refuse_twice(where, count, ", ".join(map(repr, shown)) + (", ..." if count > SHOWN else ""))


def _find_value(column: Column, row: int) -> Value:
    """The value of one row."""
    part = take_block(column, slice(row, row + 1))
    return float(part.numbers[0]) if isinstance(part, Numbers) else part.values[int(part.codes[0]) - 1]


class _FirstLabels(Sequence[str]):
    """The ids of patients by the first row of each."""

    def __init__(self, column: Column, rows: NDArray[np.int64]) -> None:
        self._column, self._rows = column, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [label(_find_value(self._column, row)) for row in self._rows[place].tolist()]
        return label(_find_value(self._column, int(self._rows[place])))


def _number_owners(table: Records | None, by: str | None, hashes: Hashes) -> Owners:
    """Whose each row of a large table is; patients in the order of the hashes of their ids."""
    assert table is not None
    assert by is not None
    codes, first = make_room(len(table), np.int32, table.room), []
    count = 0
    for rows in split_hashes(hashes[0]):
        order = np.lexsort(
            (hashes[1, rows], hashes[0, rows])
        )  # stable: the first row of a patient stays first
        own = hashes[:, rows[order]]
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = (own[:, 1:] != own[:, :-1]).any(axis=0)
        codes[rows[order]] = np.cumsum(begins) - 1 + count
        first.append(rows[order[begins]])
        count += int(begins.sum())
    return Owners(codes, _FirstLabels(table[by], np.concatenate(first)))


def _check_same(ids: Mapping[str, list[str]]) -> None:
    """Every patient is in every part."""
    everybody = list(dict.fromkeys(patient for part in ids.values() for patient in part))
    lacks = []
    for name, part in ids.items():
        here = set(part)
        absent = [patient for patient in everybody if patient not in here]
        if absent:
            lacks.append(f"{_count(len(absent))} not in the {name} ({_name(absent)})")
    if lacks:
        raise RecordsError(
            f"{' and '.join(lacks)}, but all parts must have the same patients; "
            f"add them there or leave them out of the other parts"
        )


def _count(patients: int) -> str:
    return "1 patient is" if patients == 1 else f"{patients} patients are"


def _name(patients: Sequence[str]) -> str:
    return ", ".join(map(repr, patients[:SHOWN])) + (", ..." if len(patients) > SHOWN else "")


_PATTERN = re.compile(r"(?i)(^|.*_)(id|mrn|ssn|uuid|guid|name|surname|nhs_?number|patient|subject)$")
# Names of numbers that patients, cases or visits are given; a measured number may be called so, and then differs less.
_NUMBERING = re.compile(
    r"(.*[a-z]ID|(?i:.*(patient|patienten|subject|person|member|case|fall|record|chart|account|visit|admission|encounter)"
    r"[\W_]*(id|no|nr|num|number|nummer|key)))$"
)

# Ages of a dozen patients may all differ; whole numbers of half a hundred that all differ may number the patients.
LEAST_NUMBERS = 50
NEARLY_ALL = 0.9
# Whole numbers are close together if they lie within so many times their number, and long from five digits on.
CLOSE, LONG = 4, 1e4


def names_patients(column: str) -> bool:
    """Whether a column's name says that it identifies patients; no patient is looked at for it."""
    return _PATTERN.match(column) is not None


def numbers_patients(name: str, known: NDArray[np.float64]) -> bool:
    """Whether these numbers, in the order of rows, number the patients: they are whole, nearly every patient has
    another, and they rise or fall from row to row, are close together, are long, or are named so.

    Measured values that happen to differ do none of this, and lie in their clinical range where there is one.
    """
    if known.size < LEAST_NUMBERS or not np.all(known == np.floor(known)):
        return False
    distinct = len(np.unique(known))
    if distinct < max(LEAST_NUMBERS, NEARLY_ALL * known.size):
        return False
    if names_patients(name) or _NUMBERING.match(name):
        return True
    clinical = find_range(name)
    if (
        clinical is not None
        and np.mean((known >= clinical.lowest) & (known <= clinical.highest)) >= NEARLY_ALL
    ):
        return False
    steps = np.diff(known)
    ordered = max(np.mean(steps > 0), np.mean(steps < 0)) >= NEARLY_ALL
    close = np.ptp(known) < CLOSE * known.size
    long = np.mean(np.abs(known) >= LONG) >= NEARLY_ALL
    return bool(ordered or close or long)


def many_number_patients(name: str, numbers: NDArray[np.float64]) -> bool:
    """The same of a column with too many rows to hold it in memory, which nearly always is decided by its first ones:
    numbers that are not whole, or more equal ones than there may be."""
    equal, size = 0, len(numbers)
    for block in list_blocks(size):
        here = read_block(numbers, block)
        here = here[np.isfinite(here)]
        if not np.all(here == np.floor(here)):
            return False
        equal += len(here) - len(np.unique(here))
        if equal > (1 - NEARLY_ALL) * size:
            return False
    return numbers_patients(name, numbers[np.isfinite(numbers)])
