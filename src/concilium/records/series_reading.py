"""Measurements in a table, long (patient, time, variable, value) or wide (patient, time, one column per variable), as a
series on a regular grid.

Everything here looks at one patient's rows alone: how a cell is read, where a patient's time begins, and how many steps
the stay has. The order of the rows never matters. What cannot be read is refused with its place, not guessed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import (
    count_codes,
    is_large,
    list_blocks,
    make_room,
    read_block,
    read_rows,
    split_owners,
    write_block,
)
from concilium.records.coding import ReadingKind
from concilium.records.cohort_file import MEASUREMENTS, CohortFile, is_cohort_file
from concilium.records.columns import Coded, Numbers, Value, label
from concilium.records.grammar import BLANKS, TRUTH, read_number
from concilium.records.series import Series
from concilium.records.series_columns import ColumnChoice, Measurements, Roles
from concilium.records.series_description import OddValues
from concilium.records.series_times import TimeColumn, find_cells, find_origins, read_duration, read_times
from concilium.records.sources import is_frame, read_long

Within: TypeAlias = Literal["last", "first", "mean", "min", "max"]


class _Placing:
    """Measurements into the cells of a grid."""

    def __init__(self, within: Within) -> None:
        self._within, self._shared, self._at_once = within, 0, 0

    def place(
        self, size: int, cells: NDArray[np.int64], times: NDArray[np.float64], numbers: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """One variable of some patients: the value of each of their cells, NaN where there is none."""
        present = ~np.isnan(numbers)
        values, cells = numbers[present], cells[present]
        grid = np.full(size, np.nan, dtype=np.float32)
        grid[cells] = values
        alone = np.zeros(size, dtype=bool)
        alone[cells] = True
        if int(alone.sum()) < len(cells):
            self._unite(grid, cells, times[present], values)
        return grid

    def _unite(
        self,
        grid: NDArray[np.float32],
        cells: NDArray[np.int64],
        times: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        """The one value of each cell; of several at one time the largest, so that the order of rows does not matter."""
        keys = {"last": (values, times, cells), "first": (values, -times, cells)}
        order = np.lexsort(keys.get(self._within, (values, cells)))
        cells, times, values = cells[order], times[order], values[order]
        last = np.append(cells[1:] != cells[:-1], True)
        first = np.append(True, last[:-1])
        self._shared += int((~(first & last)).sum())
        if self._within in keys:
            same = ~last[:-1] & (times[1:] == times[:-1]) & (values[1:] != values[:-1])
            self._at_once += int(same.sum())
        if self._within == "mean":
            begins = np.flatnonzero(first)
            sums = np.add.reduceat(values, begins)
            grid[cells[begins]] = sums / np.diff(np.append(begins, len(cells)))
        else:
            chosen = first if self._within == "min" else last
            grid[cells[chosen]] = values[chosen]

    @property
    def notes(self) -> list[str]:
        """What happened to measurements that share a cell."""
        notes = []
        if self._shared:
            notes.append(f"{self._shared} measurements share a step with others: the {self._within} is kept")
        if self._at_once:
            notes.append(
                f"{self._at_once} measurements contradict another at the same time: the largest is kept"
            )
        return notes


Outside: TypeAlias = Literal["refuse", "leave out"]
Markers: TypeAlias = Iterable[Value] | Mapping[str, Iterable[Value]]

NAMELESS = "(none)"  # the variable of rows that name none
SHOWN = 3  # texts or patients that an error names
LARGEST = float(np.finfo(np.float32).max)


def read_series(
    source: Any,
    *,
    table: str | None,
    choice: ColumnChoice,
    step: str,
    time_unit: str | None,
    origin: str | Mapping[Any, Any] | None,
    within: Within,
    missing: Markers,
    patients: Sequence[Value] | None,
    outside: Outside,
    longest: int,
    gigabytes: float,
    columns: str | os.PathLike[str] | None,
) -> Series:
    """The series of a table; `Series.read` says what the arguments mean."""
    _check_word("within", within, get_args(Within))
    _check_word("outside", outside, get_args(Outside))
    read_duration(step, "step")
    if is_cohort_file(source):
        named = tuple(one.name for one in CohortFile.read(source).series)
        table, choice = table or MEASUREMENTS, replace(choice, variables=choice.variables or named)
    measurements = _read(source, table, choice, columns)
    folder = None if columns is None else Path(columns)
    ids, number_of = _number_patients(measurements, patients)
    codes = measurements.columns[measurements.roles.patient]
    assert isinstance(codes, Coded)

    def find_owners(rows: slice | NDArray[np.integer]) -> NDArray[np.integer]:
        owners: NDArray[np.integer] = number_of[read_rows(codes.codes, rows)]
        return owners

    times, unit = read_times(measurements, time_unit)
    origins = find_origins(measurements, find_owners, ids, times, origin)
    timeline = _Timeline(times, unit, step, origins, _check_longest(longest))
    notes = _check_inside(measurements, timeline, find_owners, outside)
    lengths = np.ones(len(ids), dtype=np.int32)
    for block in list_blocks(len(measurements)):
        owners = find_owners(block)
        _, cells = timeline.find(block, owners)
        np.maximum.at(lengths, owners[cells >= 0], cells[cells >= 0].astype(np.int32) + 1)
    ends = np.cumsum(lengths, dtype=np.int64)
    size = int(ends[-1])
    names = _name_variables(measurements, choice)
    if folder is None or not is_large(size):
        _check_memory(measurements.name, len(ids), size, len(names), gigabytes)
    markers = _read_markers(missing, names, measurements.name)
    texts = _find_texts(measurements, choice, timeline, find_owners, markers)
    placing, faults = _Placing(within), _Faults(measurements)
    stays: dict[str, NDArray[np.float32]] = {name: make_room(size, np.float32, folder) for name in names}
    for group, rows, owners in split_owners(len(measurements), len(ids), find_owners):
        since, steps = timeline.find(rows, owners)
        inside = steps >= 0
        rows, owners, since, steps = rows[inside], owners[inside], since[inside], steps[inside]
        first, last = int(ends[group.start] - lengths[group.start]), int(ends[group.stop - 1])
        cells = ends[owners] - lengths[owners] - first + steps.astype(np.int64)
        for name, places, numbers in _each_variable(measurements, names, rows, markers, texts, faults):
            placed = placing.place(last - first, cells[places], since[places], numbers)
            write_block(stays[name], slice(first, last), placed)
    faults.check(names)
    notes += placing.notes
    if texts:
        notes.append(f"text and no numbers, so that it counts as missing: {', '.join(map(repr, texts))}")
    stated = measurements.roles.variable is None or choice.variables is not None
    return Series.from_stays(
        stays, lengths, step=step, ids=ids, notes=notes, stated=stated, static=choice.static, room=folder
    )


@dataclass(frozen=True)
class _Timeline:
    """Where rows are on the grid."""

    times: TimeColumn
    unit: Fraction
    step: str
    origins: NDArray[np.float64]
    longest: int

    def place(
        self, rows: slice | NDArray[np.integer], owners: NDArray[np.integer]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The times of rows since their patients' own began, and the step that each falls in, also off the grid."""
        since = self.times.take(rows) - self.origins[owners]
        return since, find_cells(since, self.unit, self.step)

    def find(
        self, rows: slice | NDArray[np.integer], owners: NDArray[np.integer]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same, with -1 for rows that have no place on the grid, or are of nobody who is asked for."""
        since, cells = self.place(rows, owners)
        with np.errstate(invalid="ignore"):
            return since, np.where((owners >= 0) & (cells >= 0) & (cells < self.longest), cells, -1.0)


def _check_longest(longest: int) -> int:
    if isinstance(longest, bool) or not isinstance(longest, int) or not 1 <= longest < 2**31:
        raise RecordsError(f"longest must be a whole number of steps, at least 1; got {longest!r}")
    return longest


def _check_inside(
    measurements: Measurements,
    timeline: _Timeline,
    find_owners: Callable[[slice], NDArray[np.integer]],
    outside: Outside,
) -> list[str]:
    """A sentence for each kind of row that has no place on the grid and is left out."""
    longest = timeline.longest
    kinds: dict[str, Callable[[NDArray[np.float64]], NDArray[np.bool_]]] = {
        f"no time in column {measurements.roles.time!r}": np.isnan,
        "a time before the patient's time begins": lambda cells: cells < 0,
        f"a time beyond the {longest} steps that longest={longest} allows": lambda cells: cells >= longest,
    }
    asked, counts = 0, dict.fromkeys(kinds, 0)
    for block in list_blocks(len(measurements)):
        owners = find_owners(block)
        cells = timeline.place(block, owners)[1][owners >= 0]
        asked += len(cells)
        for kind, is_faulty in kinds.items():
            counts[kind] += int(is_faulty(cells).sum())
    for kind, is_faulty in kinds.items():
        if counts[kind] and outside == "refuse":

            def find(
                block: slice,
                is_faulty: Callable[[NDArray[np.float64]], NDArray[np.bool_]] = is_faulty,
            ) -> NDArray[np.bool_]:
                owners = find_owners(block)
                return (owners >= 0) & is_faulty(timeline.place(block, owners)[1])

            advice = '; correct it, or read the other rows with outside="leave out"'
            raise measurements.refuse(f"there is {kind}", measurements.find(find), advice)
    return [f"left out: {count} of {asked} rows, with {kind}" for kind, count in counts.items() if count]


class _Faults:
    """What cannot be read, of all patients: an error names the first row and says how many there are."""

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements
        self._wrong: dict[str, tuple[str, list[NDArray[np.integer]]]] = {}
        self._nameless: list[NDArray[np.integer]] = []
        self._valued = False

    def add(self, column: str, variable: str, rows: NDArray[np.integer]) -> None:
        """Rows of a variable that hold no finite number."""
        if len(rows):
            self._wrong.setdefault(variable, (column, []))[1].append(rows)

    def add_nameless(self, rows: NDArray[np.integer], *, valued: bool) -> None:
        """Rows that name no variable, and whether one of them has a value."""
        self._nameless.append(rows)
        self._valued |= valued

    def check(self, names: Sequence[str]) -> None:
        """RecordsError for the first."""
        for variable in (NAMELESS, *names):
            if variable in self._wrong:
                column, rows = self._wrong[variable]
                raise _refuse_values(self._measurements, column, variable, np.sort(np.concatenate(rows)))
            if variable == NAMELESS and self._valued:
                name, rows = self._measurements.roles.variable, self._nameless
                raise self._measurements.refuse(
                    f"column {name!r} names no variable for a value", np.concatenate(rows)
                )


def _read(
    source: Any, table: str | None, choice: ColumnChoice, columns: str | os.PathLike[str] | None
) -> Measurements:
    choices: list[tuple[Roles, str]] = []

    def choose(names: Sequence[str], name: str) -> Mapping[str, ReadingKind | None]:
        roles = choice.find(names, name)
        choices.append((roles, name))
        kinds: dict[str, ReadingKind | None] = dict.fromkeys(roles.measured)
        kinds[roles.patient], kinds[roles.time] = "code", "time"
        if roles.variable is not None and roles.value is not None:
            kinds[roles.variable], kinds[roles.value] = "code", None
        if roles.origin is not None:
            kinds[roles.origin] = "time"
        return kinds

    found = read_long(source, table, choose, None, columns, choice)
    return Measurements(source if not is_frame(source) else None, choices[-1][1], choices[-1][0], found)


def _number_patients(
    measurements: Measurements, patients: Sequence[Value] | None
) -> tuple[list[Value], NDArray[np.integer]]:
    """The patients, and for each code of the column the number of its patient (-1: one who is not asked for)."""
    column = measurements.columns[measurements.roles.patient]
    assert isinstance(column, Coded)
    counts = count_codes(column.codes, len(column.values) + 1)
    if counts[0]:
        raise measurements.refuse(
            f"column {measurements.roles.patient!r} names no patient",
            measurements.find(lambda block: read_block(column.codes, block) == 0),
        )
    used = np.flatnonzero(counts)
    present = [column.values[code - 1] for code in used.tolist()]
    ids = present if patients is None else list(patients)
    if not ids:
        raise RecordsError("patients names nobody; leave it out to read all of them")
    row_of = {label(patient): row for row, patient in enumerate(ids)}
    if len(row_of) < len(ids):
        raise RecordsError("patients names somebody more than once")
    number = np.full(len(column.values) + 1, -1, dtype=np.int32)
    number[used] = [row_of.get(label(patient), -1) for patient in present]
    return ids, number


def _name_variables(measurements: Measurements, choice: ColumnChoice) -> list[str]:
    """The variables that are stated, whether a row names them or not; without a statement, those in the rows. Static
    columns are always there."""
    roles = measurements.roles
    if roles.variable is None:
        return list(roles.measured)
    column = measurements.columns[roles.variable]
    assert isinstance(column, Coded)
    counts = count_codes(column.codes, len(column.values) + 1)
    present = [label(column.values[code - 1]) for code in np.flatnonzero(counts).tolist() if code]
    for name in choice.stated or choice.static:
        if name not in present:  # for the hospital's own eyes: it may be a slip
            hint = nearest(name, present)
            warnings.warn(
                f"{measurements.name}: no row names {name!r}, so it is missing{hint}",
                OddValues,
                stacklevel=4,
            )
    if choice.stated is None and not present:
        raise RecordsError(f"{measurements.name}: column {roles.variable!r} names no variable")
    return list(dict.fromkeys(choice.stated or (*present, *choice.static)))


def _check_memory(source: str, patients: int, size: int, variables: int, gigabytes: float) -> None:
    needed = 4 * size * variables / 1e9
    if needed > gigabytes:
        raise RecordsError(
            f"{source}: the series would take {needed:.1f} GB ({patients} patients, {size} steps in all, {variables} "
            f"variables), more than the {gigabytes:g} GB allowed; take a longer step, fewer variables, or gigabytes=..."
        )


@dataclass(frozen=True)
class _Markers:
    """What stands for a missing value: texts, and numbers."""

    texts: frozenset[str]
    numbers: tuple[float, ...]

    def match_text(self, text: str) -> bool:
        bare = text.strip(BLANKS)
        return bare in self.texts or read_number(bare) in self.numbers


def _read_markers(missing: Markers, names: Sequence[str], source: str) -> Callable[[str], _Markers]:
    if isinstance(missing, Mapping):
        for name in missing:
            if name not in names:
                raise RecordsError(
                    f"{source}: missing names a variable {name!r} that is not there{nearest(name, names)}"
                )
        by_name = {name: _collect(markers) for name, markers in missing.items()}
        nothing = _collect(())
        return lambda name: by_name.get(name, nothing)
    markers = _collect(missing)
    return lambda name: markers


def _collect(markers: Iterable[Value]) -> _Markers:
    texts = [label(marker).strip(BLANKS) for marker in ((markers,) if isinstance(markers, str) else markers)]
    numbers = [number for text in texts if (number := read_number(text)) is not None]
    return _Markers(frozenset(texts), tuple(numbers))


def _find_texts(
    measurements: Measurements,
    choice: ColumnChoice,
    timeline: _Timeline,
    find_owners: Callable[[slice], NDArray[np.integer]],
    markers: Callable[[str], _Markers],
) -> list[str]:
    """The columns of a wide table that hold text throughout, of those that nobody named."""
    if measurements.roles.variable is not None or choice.variables is not None:
        return []
    texts = []
    for name in measurements.roles.measured:
        column = measurements.columns[name]
        if isinstance(column, Coded) and name not in choice.static:
            counts = np.zeros(len(column.values) + 1, dtype=np.int64)
            for block in list_blocks(len(measurements)):
                own = read_block(column.codes, block)[timeline.find(block, find_owners(block))[1] >= 0]
                counts += np.bincount(own, minlength=len(counts))
            used = [code for code in np.flatnonzero(counts).tolist() if code]
            read = [_read_measurement(column.values[code - 1], markers(name)) for code in used]
            if read and all(number is None for number in read):
                texts.append(name)
    return texts


def _each_variable(
    measurements: Measurements,
    names: Sequence[str],
    rows: NDArray[np.integer],
    markers: Callable[[str], _Markers],
    texts: Sequence[str],
    faults: _Faults,
) -> Iterable[tuple[str, NDArray[np.integer], NDArray[np.float64]]]:
    """For each variable the places, among these rows, that may hold a value of it, and the numbers there."""
    roles, every = measurements.roles, np.arange(len(rows))
    if roles.variable is None or roles.value is None:
        for name in names:
            places = every[:0] if name in texts else every
            yield name, places, _read_numbers(measurements, name, name, rows[places], markers(name), faults)
        return
    column = measurements.columns[roles.variable]
    assert isinstance(column, Coded)
    codes = column.codes[rows]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(column.values) + 1))
    nameless = rows[order[: ends[0]]]
    if nameless.size:
        numbers = _read_numbers(measurements, roles.value, NAMELESS, nameless, _collect(()), faults)
        faults.add_nameless(nameless, valued=not np.isnan(numbers).all())
    code_of = {label(value): code for code, value in enumerate(column.values, start=1)}
    for name in names:
        code = code_of.get(name)
        places = order[:0] if code is None else order[ends[code - 1] : ends[code]]
        yield (
            name,
            places,
            _read_numbers(measurements, roles.value, name, rows[places], markers(name), faults),
        )


def _read_numbers(
    measurements: Measurements,
    column_name: str,
    variable: str,
    rows: NDArray[np.integer],
    markers: _Markers,
    faults: _Faults,
) -> NDArray[np.float64]:
    """The numbers in these rows of a column, NaN where missing; a text that is no number is a fault."""
    column = measurements.columns[column_name]
    if isinstance(column, Numbers):
        numbers: NDArray[np.float64] = column.numbers[rows]
        for marker in markers.numbers:
            numbers[numbers == marker] = np.nan
        wrong = np.abs(numbers) > LARGEST
    else:
        codes = column.codes[rows]
        used = np.flatnonzero(np.bincount(codes, minlength=1))
        read = [
            _read_measurement(column.values[code - 1], markers) if code else np.nan for code in used.tolist()
        ]
        table = np.full(len(column.values) + 1, np.nan)
        table[used] = [np.nan if number is None else number for number in read]
        faulty = np.zeros(len(column.values) + 1, dtype=bool)
        faulty[used] = [number is None or abs(number) > LARGEST for number in read]
        numbers, wrong = table[codes], faulty[codes]
    faults.add(column_name, variable, rows[wrong])
    numbers[wrong] = np.nan
    return numbers


def _read_measurement(value: Value, markers: _Markers) -> float | None:
    """The number of one cell, by itself: NaN for a marker, 1 and 0 for true and false, None for other text."""
    if isinstance(value, str):
        if markers.match_text(value):
            return np.nan
        bare = value.strip(BLANKS)
        return float(TRUTH[bare]) if bare in TRUTH else read_number(value)
    return np.nan if not isinstance(value, bool) and value in markers.numbers else float(value)


def _refuse_values(
    measurements: Measurements, column_name: str, variable: str, rows: NDArray[np.integer]
) -> RecordsError:
    column = measurements.columns[column_name]
    if isinstance(column, Numbers):
        distinct = [f"{number:g}" for number in dict.fromkeys(column.numbers[rows].tolist())]
    else:
        distinct = [repr(column.values[code - 1]) for code in dict.fromkeys(column.codes[rows].tolist())]
    shown = ", ".join(distinct[:SHOWN]) + (", ..." if len(distinct) > SHOWN else "")
    advice = (
        "a static column holds numbers, such as 0 and 1 for two sexes; list what stands for a missing value in "
        "missing=..."
        if variable in measurements.roles.static
        else "list what stands for a missing value in missing=..."
        if measurements.roles.variable is not None
        else "list what stands for a missing value in missing=..., or leave the column out with leave_out=..."
    )
    return measurements.refuse(
        f"variable {variable!r} holds {shown}, which is no finite number,", rows, f"; {advice}"
    )


def _check_word(name: str, word: object, words: Sequence[str]) -> None:
    if word not in words:
        raise RecordsError(
            f"{name} must be one of {', '.join(words)}; got {word!r}{nearest(str(word), words)}"
        )
