"""Measurements in a table, long (patient, time, variable, value) or wide (patient, time, one column per variable), as a
series on a regular grid.

Everything here looks at one patient's rows alone: how a cell is read, where a patient's time begins, and how many steps
the stay has. The order of the rows never matters. What cannot be read is refused with its place, not guessed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.coding import ReadingKind
from concilium.records.cohort_file import MEASUREMENTS, CohortFile, is_cohort_file
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.grammar import BLANKS, TRUTH, read_number
from concilium.records.series import Series
from concilium.records.series_columns import ColumnChoice, Measurements, Roles
from concilium.records.series_description import OddValues
from concilium.records.series_times import find_cells, find_origins, read_duration, read_times
from concilium.records.sources import is_frame, read_columns

Within: TypeAlias = Literal["last", "first", "mean", "min", "max"]


class _Placing:
    """Measurements into the cells of a grid; `cells` and `times` are those of all rows of the table."""

    def __init__(
        self, size: int, within: Within, cells: NDArray[np.int64], times: NDArray[np.float64]
    ) -> None:
        self._size, self._within, self._cells, self._times = size, within, cells, times
        self._shared = self._at_once = 0

    def place(self, rows: NDArray[np.intp], numbers: NDArray[np.float64]) -> NDArray[np.float32]:
        """One variable: the value of each cell, NaN where there is none."""
        present = ~np.isnan(numbers)
        values, cells = numbers[present], self._cells[rows[present]]
        grid = np.full(self._size, np.nan, dtype=np.float32)
        grid[cells] = values
        alone = np.zeros(self._size, dtype=bool)
        alone[cells] = True
        if int(alone.sum()) < len(cells):
            times = self._times[rows[present]]
            self._unite(grid, cells, times, values)
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
) -> Series:
    """The series of a table; `Series.read` says what the arguments mean."""
    _check_word("within", within, get_args(Within))
    _check_word("outside", outside, get_args(Outside))
    read_duration(step, "step")
    if is_cohort_file(source):
        named = tuple(one.name for one in CohortFile.read(source).series)
        table, choice = table or MEASUREMENTS, replace(choice, variables=choice.variables or named)
    measurements = _read(source, table, choice)
    ids, patient_of = _number_patients(measurements, patients)
    rows = np.flatnonzero(patient_of >= 0)
    times = read_times(measurements, time_unit)
    origins = find_origins(measurements, patient_of, len(ids), times, origin)
    since = times.numbers - origins[patient_of]
    cells = find_cells(since, times.unit, step)
    rows, notes = _keep_inside(measurements, rows, cells, outside, longest)
    lengths = np.ones(len(ids), dtype=np.int32)
    np.maximum.at(lengths, patient_of[rows], cells[rows].astype(np.int32) + 1)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    size = int(lengths.sum(dtype=np.int64))
    names = _name_variables(measurements, choice)
    _check_memory(measurements.name, len(ids), size, len(names), gigabytes)
    markers = _read_markers(missing, names, measurements.name)
    flat = np.full(len(cells), -1, dtype=np.int64)
    flat[rows] = starts[patient_of[rows]] + cells[rows].astype(np.int64)
    placing = _Placing(size, within, flat, since)
    texts = _find_texts(measurements, choice, rows, markers)
    stays = {
        name: placing.place(places, numbers)
        for name, places, numbers in _each_variable(measurements, names, rows, markers, texts)
    }
    notes += placing.notes
    if texts:
        notes.append(f"text and no numbers, so that it counts as missing: {', '.join(map(repr, texts))}")
    stated = measurements.roles.variable is None or choice.variables is not None
    return Series.from_stays(
        stays, lengths, step=step, ids=ids, notes=notes, stated=stated, static=choice.static
    )


def _read(source: Any, table: str | None, choice: ColumnChoice) -> Measurements:
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

    columns = read_columns(source, table, choose, None)
    return Measurements(source if not is_frame(source) else None, choices[-1][1], choices[-1][0], columns)


def _number_patients(
    measurements: Measurements, patients: Sequence[Value] | None
) -> tuple[list[Value], NDArray[np.int64]]:
    """The patients, and for each row the number of its patient (-1: one who is not asked for)."""
    column = measurements.columns[measurements.roles.patient]
    assert isinstance(column, Coded)
    if np.any(column.codes == 0):
        raise measurements.refuse(
            f"column {measurements.roles.patient!r} names no patient", column.codes == 0
        )
    used = np.unique(column.codes)
    present = [column.values[code - 1] for code in used.tolist()]
    ids = present if patients is None else list(patients)
    if not ids:
        raise RecordsError("patients names nobody; leave it out to read all of them")
    row_of = {label(patient): row for row, patient in enumerate(ids)}
    if len(row_of) < len(ids):
        raise RecordsError("patients names somebody more than once")
    number = np.full(len(column.values) + 1, -1, dtype=np.int64)
    number[used] = [row_of.get(label(patient), -1) for patient in present]
    return ids, number[column.codes]


def _keep_inside(
    measurements: Measurements,
    rows: NDArray[np.intp],
    cells: NDArray[np.float64],
    outside: Outside,
    longest: int,
) -> tuple[NDArray[np.intp], list[str]]:
    """The rows that have a place on the grid, and a sentence for each kind of row that was left out."""
    if isinstance(longest, bool) or not isinstance(longest, int) or not 1 <= longest < 2**31:
        raise RecordsError(f"longest must be a whole number of steps, at least 1; got {longest!r}")
    here = cells[rows]
    kinds = {
        f"no time in column {measurements.roles.time!r}": np.isnan(here),
        "a time before the patient's time begins": here < 0,
        f"a time beyond the {longest} steps that longest={longest} allows": here >= longest,
    }
    notes = []
    for kind, faulty in kinds.items():
        if faulty.any() and outside == "refuse":
            advice = '; correct it, or read the other rows with outside="leave out"'
            raise measurements.refuse(f"there is {kind}", rows[faulty], advice)
        if faulty.any():
            notes.append(f"left out: {int(faulty.sum())} of {len(rows)} rows, with {kind}")
    with np.errstate(invalid="ignore"):
        return rows[(here >= 0) & (here < longest)], notes


def _name_variables(measurements: Measurements, choice: ColumnChoice) -> list[str]:
    """The variables that are stated, whether a row names them or not; without a statement, those in the rows. Static
    columns are always there."""
    roles = measurements.roles
    if roles.variable is None:
        return list(roles.measured)
    column = measurements.columns[roles.variable]
    assert isinstance(column, Coded)
    present = [label(column.values[code - 1]) for code in np.unique(column.codes).tolist() if code]
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
    rows: NDArray[np.intp],
    markers: Callable[[str], _Markers],
) -> list[str]:
    """The columns of a wide table that hold text throughout, of those that nobody named."""
    if measurements.roles.variable is not None or choice.variables is not None:
        return []
    texts = []
    for name in measurements.roles.measured:
        column = measurements.columns[name]
        if isinstance(column, Coded) and name not in choice.static:
            used = [code for code in np.unique(column.codes[rows]).tolist() if code]
            read = [_read_measurement(column.values[code - 1], markers(name)) for code in used]
            if read and all(number is None for number in read):
                texts.append(name)
    return texts


def _each_variable(
    measurements: Measurements,
    names: Sequence[str],
    rows: NDArray[np.intp],
    markers: Callable[[str], _Markers],
    texts: Sequence[str],
) -> Iterable[tuple[str, NDArray[np.intp], NDArray[np.float64]]]:
    """For each variable the rows that may hold a value of it, and the numbers there."""
    roles = measurements.roles
    if roles.variable is None or roles.value is None:
        for name in names:
            if name in texts:
                yield name, rows[:0], np.zeros(0)
            else:
                yield name, rows, _read_numbers(measurements, name, name, rows, markers(name))
        return
    column = measurements.columns[roles.variable]
    assert isinstance(column, Coded)
    codes = column.codes[rows]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(column.values) + 1))
    nameless = rows[order[: ends[0]]]
    if (
        nameless.size
        and not np.isnan(_read_numbers(measurements, roles.value, "(none)", nameless, _collect(()))).all()
    ):
        raise measurements.refuse(f"column {roles.variable!r} names no variable for a value", nameless)
    code_of = {label(value): code for code, value in enumerate(column.values, start=1)}
    for name in names:
        code = code_of.get(name)
        places = rows[:0] if code is None else rows[order[ends[code - 1] : ends[code]]]
        yield name, places, _read_numbers(measurements, roles.value, name, places, markers(name))


def _read_numbers(
    measurements: Measurements, column_name: str, variable: str, rows: NDArray[np.intp], markers: _Markers
) -> NDArray[np.float64]:
    """The numbers in these rows of a column, NaN where missing; a text that is no number is refused."""
    column = measurements.columns[column_name]
    if isinstance(column, Numbers):
        numbers = column.numbers[rows]
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
    if wrong.any():
        raise _refuse_values(measurements, column, column_name, variable, rows[wrong])
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
    measurements: Measurements, column: Column, column_name: str, variable: str, rows: NDArray[np.intp]
) -> RecordsError:
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
