"""Time series of many patients on one regular grid, with missing values and stays of every length.

What is stored are the stays one after the other (float32, NaN where nothing was measured), so that a few long stays
cost nothing for the many short ones. Whoever computes takes `blocks`: arrays [time, patient] of stays of similar
length. What a cell says depends on that patient alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.blocks import gather_spans, list_blocks, list_groups, read_block
from concilium.records.columns import Value, label
from concilium.records.row_hashes import Hashes, hash_contents, hash_texts
from concilium.records.series_times import count_steps, read_step
from concilium.records.table import number_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

    from concilium.records.clinical_ranges import ClinicalRange
    from concilium.records.series_description import SeriesDescription
    from concilium.records.series_reading import Markers, Outside, Within

__all__ = ["Block", "Grid", "Series", "read_step"]

Grid = NDArray[np.float32]
"""Values [time, patient]; NaN where nothing was measured and beyond the stay."""

BLOCK_CELLS = 1 << 19  # cells of one variable in a block: two megabytes, which stay near the processor
LONGER = 1.2  # times its shortest stay is about the longest of a block


@dataclass(frozen=True, eq=False)
class Block:
    """Patients with stays of similar length: `rows` numbers them in the series, `variables` are [time, patient]."""

    rows: NDArray[np.intp]
    variables: Mapping[str, Grid]
    lengths: NDArray[np.int32]
    step_hours: float

    def __len__(self) -> int:
        return len(self.rows)


class Series:
    """`Series({"HR": array, "Temp": array}, step="1h")`: arrays [time, patient] of the same shape.

    `step` is the time between two rows ("15min", "1h", "1d"), `lengths` how many rows each patient's stay has (without
    it: up to the last row in which anything was measured, at least one), `ids` the patients (without it: 1, 2, ...).
    `series["HR"]` is such an array again; `series.blocks()` gives all variables in pieces that fit in memory.

    `stated` is true if somebody stated which variables there are: the program, the columns of a wide table, or
    `variables` of `Series.read`. In a long table that states none, the rows decide, so one patient could bring a
    variable in or take it out. Private questions are answered only where the variables are stated.

    `static` names the columns that do not change within a stay, such as age: rules over time are never about them.
    """

    part: ClassVar[str] = "series"

    def __init__(
        self,
        variables: Mapping[str, ArrayLike],
        *,
        step: str = "1h",
        lengths: ArrayLike | None = None,
        ids: Sequence[Value] | None = None,
        static: Sequence[str] = (),
    ) -> None:
        grids = {name: np.asarray(values, dtype=np.float32) for name, values in variables.items()}
        if not grids:
            raise RecordsError("a series has at least one variable, such as {'HR': array}")
        shape = next(iter(grids.values())).shape
        for name, grid in grids.items():
            if grid.ndim != 2 or grid.shape != shape:
                raise RecordsError(
                    f"variable {name!r} is of shape {grid.shape}; "
                    f"all are [time, patient] of one shape, here {shape}"
                )
        if not shape[0]:
            raise RecordsError("a series has at least one point in time")
        stays = _find_lengths(grids) if lengths is None else _check_lengths(lengths, shape)
        inside = np.arange(shape[0]) < stays[:, None]
        values = {name: grid.T[inside] for name, grid in grids.items()}
        names = range(1, shape[1] + 1) if ids is None else ids
        if len(names) != shape[1]:
            raise RecordsError(f"there are {shape[1]} patients and {len(names)} ids")
        self._set(values, stays, step, names, shape[0], (), True, static)
        self.check(self.static)

    def _set(
        self,
        stays: Mapping[str, Grid],
        lengths: NDArray[np.int32],
        step: str,
        ids: Sequence[Value | None],
        points: int,
        notes: Iterable[str],
        stated: bool,
        static: Iterable[str] = (),
        room: Path | None = None,
    ) -> None:
        # The folder for what is as long as a large series and need not stay in memory; None where all of it does.
        self.room = room
        self.stays: Mapping[str, Grid] = dict(stays)
        self.lengths = lengths
        self.step = step
        self.step_hours = read_step(step)
        self.ids = ids
        self.points = points
        self.notes = tuple(notes)
        self.stated = stated
        self.static = tuple(dict.fromkeys(static))
        self.starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    @classmethod
    def from_stays(
        cls,
        stays: Mapping[str, Grid],
        lengths: NDArray[np.int32],
        *,
        step: str,
        ids: Sequence[Value | None],
        points: int | None = None,
        notes: Iterable[str] = (),
        stated: bool = True,
        static: Iterable[str] = (),
        room: Path | None = None,
    ) -> Series:
        """The series of stays that lie one after the other: a vector of `sum(lengths)` values for each variable."""
        series = object.__new__(cls)
        longest = int(lengths.max(initial=1)) if points is None else points
        series._set(
            stays, lengths, step, ids, longest, notes, stated, (one for one in static if one in stays), room
        )
        return series

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        table: str | None = None,
        *,
        step: str = "1h",
        patient: str | None = None,
        time: str | None = None,
        variable: str | None = None,
        value: str | None = None,
        variables: Sequence[str] | None = None,
        static: Sequence[str] = (),
        leave_out: Sequence[str] = (),
        time_unit: str | None = None,
        origin: str | Mapping[Any, Any] | None = None,
        within: Within = "last",
        missing: Markers = (),
        patients: Sequence[Value] | None = None,
        outside: Outside = "refuse",
        longest: int = 10_000,
        gigabytes: float = 4.0,
        columns: str | os.PathLike[str] | None = None,
    ) -> Series:
        """Measurements from any source that `Records.read` takes, long or wide.

        A long table has a row for each measurement, in the columns `patient`, `time`, `variable` and `value`; a wide
        one has a column for each variable beside `patient` and `time`. Columns that are not named are recognised by
        their usual names. `variables` states which variables there are: in a long table one that no row names is
        missing throughout, and others are not read. `static` names columns that do not change within a stay, such as
        age, beside the variables; of several values the latest counts. `leave_out` names columns of a wide table that
        are no variables.

        Times are numbers in `time_unit` (seconds, minutes, hours, days; without it as the column's name says, else
        hours) or dates. Time 0 is `origin`: "first" (the patient's first row; so for dates unless stated), a column
        with the time of admission, or {patient: time}; without it numbers count from 0. A stay ends with the patient's
        last row, whatever it holds. Of several values in one step the `within` one is kept: last, first, mean, min or
        max; of several at the very same time, the largest.

        `missing` lists what stands for a missing value, as in ["-", -1] or {"Height": [-1]}, beside empty cells and
        what `Records.read` takes for missing in a text file; any other text is an error. `patients` are those to read,
        in this order (one without a row has one empty step). A row without a time, before time 0 or beyond `longest`
        steps is an error, or left out with `outside="leave out"`. More than so many `gigabytes` are not allocated.
        `columns` is a folder, such as `north.ledger.columns`: a large table is read into it once, as with
        `Records.read`, and so is a large series while it is in use.
        """
        from concilium.records.series_columns import ColumnChoice
        from concilium.records.series_description import warn_of_oddities, warn_of_static
        from concilium.records.series_reading import read_series
        from concilium.records.series_times import FIRST
        from concilium.records.sources import saying_memory

        choice = ColumnChoice(
            patient=patient,
            time=time,
            variable=variable,
            value=value,
            variables=None if variables is None else tuple(variables),
            static=(static,) if isinstance(static, str) else tuple(dict.fromkeys(static)),
            leave_out=(leave_out,) if isinstance(leave_out, str) else tuple(leave_out),
            origin=origin if isinstance(origin, str) and origin != FIRST else None,
        )
        with saying_memory(source):
            series = read_series(
                source,
                table=table,
                choice=choice,
                step=step,
                time_unit=time_unit,
                origin=origin,
                within=within,
                missing=missing,
                patients=patients,
                outside=outside,
                longest=longest,
                gigabytes=gigabytes,
                columns=columns,
            )
        warn_of_oddities(series)
        warn_of_static(series)
        return series

    def with_stays(self, stays: Mapping[str, Grid]) -> Series:
        """The same patients and times with these values, one vector for each variable as in `stays`."""
        return Series.from_stays(
            stays,
            self.lengths,
            step=self.step,
            ids=self.ids,
            points=self.points,
            notes=self.notes,
            stated=self.stated,
            static=self.static,
            room=self.room,
        )

    def state(self, names: Iterable[str]) -> Series:
        """Keep these variables, in this order; one that is not there is missing throughout."""
        missing = np.full(int(self.starts[-1]), np.nan, dtype=np.float32)
        stated = self.with_stays({name: self.stays.get(name, missing) for name in names})
        stated.stated = True
        return stated

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return (
            f"Series({len(self)} patients, {len(self.stays)} variables, {self.points} steps of {self.step})"
        )

    def __contains__(self, name: object) -> bool:
        return name in self.stays

    def __getitem__(self, name: str) -> Grid:
        """One variable as a new array [time, patient]."""
        self.check([name])
        return self._lay_out(np.arange(len(self)), [name], self.points)[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The variables, in order."""
        return tuple(self.stays)

    @property
    def variables(self) -> Mapping[str, Grid]:
        """The variables by name, each made an array [time, patient] when it is looked at."""
        return _Grids(self)

    def check(self, names: Iterable[str]) -> None:
        """That these variables are there."""
        for name in names:
            if name not in self.stays:
                raise RecordsError(f"there is no variable {name!r}{nearest(name, self.stays)}")

    def blocks(self, names: Iterable[str] | None = None, patients: int | None = None) -> Iterator[Block]:
        """All patients, the shortest stays first, in blocks of arrays [time, patient] for these variables.

        A block has so many patients, or as many as stay near the processor, and as many rows as the longest stay in it.
        Every patient is in one block; `out[..., block.rows] = result` brings results back into the order of patients.
        """
        chosen = list(self.names if names is None else names)
        self.check(chosen)
        order = np.argsort(self.lengths, kind="stable")
        first = 0
        while first < len(order):
            last = min(first + (patients or self._fitting(order, first)), len(order))
            rows = order[first:last]
            lengths = self.lengths[rows]
            yield Block(rows, self._lay_out(rows, chosen, int(lengths[-1])), lengths, self.step_hours)
            first = last

    def _fitting(self, order: NDArray[np.intp], first: int) -> int:
        """How many patients from this one on make a block of at most `BLOCK_CELLS` cells with little padding."""
        lengths = self.lengths[order[first : first + BLOCK_CELLS]].astype(np.int64)
        cells = lengths * np.arange(1, len(lengths) + 1)
        similar = np.searchsorted(lengths, lengths[0] * LONGER + 1, side="right")
        return max(1, min(int(similar), int(np.searchsorted(cells, BLOCK_CELLS, side="right"))))

    def _lay_out(self, rows: NDArray[np.intp], names: Sequence[str], points: int) -> dict[str, Grid]:
        """The stays of these rows as arrays [time, patient], NaN beyond each stay."""
        times = np.arange(points)[:, None]
        beyond = times >= self.lengths[rows]
        padded = bool(beyond.any())
        cells = self.starts[rows] + times
        if padded:
            cells[beyond] = 0
        grids = {}
        for name in names:
            grid = self.stays[name][cells] if cells.size else np.empty(cells.shape, np.float32)
            if padded:
                grid[beyond] = np.nan
            grids[name] = grid
        return grids

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Series:
        """The patients of a mask or of row numbers, in that order."""
        numbers = number_rows(rows, len(self))
        if len(numbers) == len(self) and np.array_equal(numbers, np.arange(len(self))):
            return self
        return self._cut(self.starts[:-1][numbers], self.lengths[numbers], numbers, self.points)

    def _cut(
        self,
        firsts: NDArray[np.int64],
        lengths: NDArray[np.int32],
        owners: NDArray[np.integer],
        points: int,
        notes: Iterable[str] = (),
    ) -> Series:
        """Parts of stays that begin in these cells, of the patients in these rows."""
        stays = {
            name: gather_spans(values, firsts, lengths, self.room) for name, values in self.stays.items()
        }
        return Series.from_stays(
            stays,
            lengths,
            step=self.step,
            ids=[self.ids[row] for row in owners.tolist()],
            points=points,
            notes=notes,
            stated=self.stated,
            static=self.static,
            room=self.room,
        )

    def choose(self, names: Iterable[str]) -> Series:
        """These variables, in this order."""
        chosen = list(names)
        self.check(chosen)
        return self.with_stays({name: self.stays[name] for name in chosen})

    def carry_forward(self, limit: str | int | Mapping[str, str | int | None] | None) -> Series:
        """Where nothing was measured, the patient's last value before, at most `limit` old.

        The limit is a time such as "6h", a number of steps, or None for the whole stay; or one for each variable, and
        those that it does not name stay as they are.
        """
        limits = limit if isinstance(limit, Mapping) else dict.fromkeys(self.names, limit)
        self.check(limits)
        cells = np.arange(self.starts[-1])
        begins = np.repeat(self.starts[:-1], self.lengths)
        stays = dict(self.stays)
        for name, longest in limits.items():
            values = self.stays[name]
            sources = np.maximum.accumulate(np.where(np.isnan(values), -1, cells))
            reach = sources >= begins
            if longest is not None:
                reach &= cells - sources <= count_steps(longest, self.step, "limit")
            stays[name] = np.where(reach, values[sources], np.float32(np.nan))
        return self.with_stays(stays)

    def fill(self, defaults: Mapping[str, float]) -> Series:
        """The public constant of its variable wherever a stay has no value, as in {"FiO2": 0.21}."""
        self.check(defaults)
        for name, default in defaults.items():
            if not np.isfinite(default):
                raise RecordsError(f"the default of {name!r} must be a finite number; got {default!r}")
        return self.with_stays(
            {
                name: np.where(np.isnan(values), np.float32(defaults[name]), values)
                if name in defaults
                else values
                for name, values in self.stays.items()
            }
        )

    def scale(
        self, ranges: Mapping[str, ClinicalRange | tuple[float, float]], keep: Iterable[str] = ()
    ) -> Series:
        """(x - low) / (high - low) by public ranges such as `CLINICAL_RANGES`; variables of `keep` stay as they are."""
        kept = list(keep)
        self.check(kept)
        without = [name for name in self.names if name not in ranges and name not in kept]
        if without:
            raise RecordsError(
                f"there is no range to scale {', '.join(map(repr, without[:5]))} by"
                f"{nearest(without[0], ranges)}; state it, or leave the variable as it is with keep=[...]"
            )
        return self.with_stays(
            {
                name: values if name in kept else _scale(name, values, ranges[name])
                for name, values in self.stays.items()
            }
        )

    def find_ranges_without_privacy(
        self, lower: float = 0.05, upper: float = 0.95
    ) -> dict[str, tuple[float, float]]:
        """For `scale`: two quantiles of each variable over these patients, which should be training patients only.

        No privacy is claimed: what is scaled by them depends on these patients. Where a client's rules must depend on
        that client alone, scale by public ranges.
        """
        if not 0 <= lower < upper <= 1:
            raise RecordsError(f"quantiles must be 0 <= lower < upper <= 1; got {lower} and {upper}")
        ranges = {}
        for name, values in self.stays.items():
            present = values[~np.isnan(values)]
            low, high = np.quantile(present, [lower, upper]).tolist() if present.size else (0.0, 0.0)
            if not low < high:
                problem = "takes no two values" if present.size else "was never measured"
                raise RecordsError(f"variable {name!r} {problem} in these patients, so that it has no range")
            ranges[name] = (low, high)
        return ranges

    def cut(self, ends: ArrayLike, length: int | str, rows: NDArray[np.integer] | None = None) -> Series:
        """For each patient the `length` steps (or a time such as "12h") before step `ends[i]`.

        With `rows`, windows of these patients (row numbers, several of one patient too). A window that begins before
        the stay begins with it, so that it is shorter; `ends` are from 1 to the length of the stay. Time 0 of the
        result is the first step of each window.
        """
        stops = np.asarray(ends)
        owners = np.arange(len(self)) if rows is None else number_rows(rows, len(self))
        if stops.shape != owners.shape or not np.issubdtype(stops.dtype, np.integer):
            raise RecordsError(f"ends are whole numbers of steps, one for each of the {len(owners)} patients")
        longest = self.lengths[owners]
        faulty = np.flatnonzero((stops < 1) | (stops > longest))
        if faulty.size:
            window = int(faulty[0])
            raise RecordsError(
                f"the window of patient {self.ids[owners[window]]!r} ends at step {stops[window]}, but it must end "
                f"from 1 to {longest[window]}, the length of the stay"
            )
        steps = count_steps(length, self.step, "length")
        if steps < 1:
            raise RecordsError(f"a window is at least one step of {self.step} long; got {length!r}")
        lengths = np.minimum(stops, steps).astype(np.int32)
        firsts = self.starts[:-1][owners] + stops - lengths
        return self._cut(firsts, lengths, owners, steps, self.notes)

    def describe(self) -> SeriesDescription:
        """What was measured and what looks odd, for the hospital's own eyes: a table when printed."""
        from concilium.records.series_description import describe

        return describe(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids, lengths and values in this order of patients."""
        content = hashlib.sha256(f"concilium/series@1\n{self.step_hours!r}\n".encode())
        for patient in self.ids:
            text = label(patient).encode("utf-8", "surrogatepass")
            content.update(len(text).to_bytes(8, "little") + text)
        content.update(self.lengths.astype("<i8").tobytes())
        for name in sorted(self.stays):
            content.update(f"{len(name)} {name}\n".encode("utf-8", "surrogatepass"))
            for block in list_blocks(len(self.stays[name])):
                values = read_block(self.stays[name], block) + np.float32(0.0)  # -0.0 becomes 0.0
                values[np.isnan(values)] = np.nan  # one bit pattern for missing
                content.update(values.astype("<f4", copy=False).data)
        return content.hexdigest()

    @cached_property
    def hashes(self) -> Hashes:
        """Of what was measured of each patient, and when."""
        hashes = hash_contents(
            self.lengths.astype(np.uint64), hash_texts(["lengths"]), np.arange(len(self)), len(self)
        )
        for group in list_groups(self.lengths):
            first, last = int(self.starts[group.start]), int(self.starts[group.stop])
            lengths = self.lengths[group]
            owners = np.repeat(np.arange(len(lengths)), lengths)
            steps = np.arange(first, last) - self.starts[group][owners]
            for name, stays in self.stays.items():
                values = read_block(stays, slice(first, last))
                known = ~np.isnan(values)
                bits = (values[known] + np.float32(0.0)).view(np.uint32).astype(np.uint64)
                cells = (steps[known].astype(np.uint64) << np.uint64(32)) | bits
                kind = hash_texts([f"variable {name}"])
                hashes[:, group] += hash_contents(cells, kind, owners[known], len(lengths))
        return hashes

    @property
    def bytes_held(self) -> int:
        """The memory that its values take; none where they are mapped from files."""
        return sum(values.nbytes for values in self.stays.values() if not isinstance(values, np.memmap))


class _Grids(Mapping[str, Grid]):
    """The variables of a series as arrays [time, patient], made when they are looked at."""

    def __init__(self, series: Series) -> None:
        self._series = series

    def __getitem__(self, name: str) -> Grid:
        if name not in self._series.stays:
            raise KeyError(name)
        return self._series[name]

    def __contains__(self, name: object) -> bool:
        return name in self._series.stays

    def __iter__(self) -> Iterator[str]:
        return iter(self._series.stays)

    def __len__(self) -> int:
        return len(self._series.stays)


def _scale(name: str, values: Grid, public: ClinicalRange | tuple[float, float]) -> Grid:
    low, high = public if isinstance(public, tuple) else (public.low, public.high)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise RecordsError(
            f"the range of {name!r} must go from a lower to a higher number; got {low} to {high}"
        )
    return ((values.astype(np.float64) - low) / (high - low)).astype(np.float32)


def _find_lengths(grids: Mapping[str, Grid]) -> NDArray[np.int32]:
    points, patients = next(iter(grids.values())).shape
    lengths = np.ones(patients, dtype=np.int32)
    for grid in grids.values():
        measured = ~np.isnan(grid)
        last = points - np.argmax(measured[::-1], axis=0)
        np.maximum(lengths, np.where(measured.any(axis=0), last, 1), out=lengths, casting="unsafe")
    return lengths


def _check_lengths(lengths: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int32]:
    numbers = np.asarray(lengths)
    if numbers.shape != (shape[1],) or not np.issubdtype(numbers.dtype, np.integer):
        raise RecordsError(f"lengths are whole numbers, one for each of the {shape[1]} patients")
    if numbers.size and not (numbers.min() >= 1 and numbers.max() <= shape[0]):
        raise RecordsError(f"each length is from 1 to {shape[0]}, the points in time that there are")
    return numbers.astype(np.int32)


def find_windows(series: Series, outcome: str, steps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the one window of each patient ends (0: it has none), and whether it has the outcome.

    A stay is judged at the first step with the outcome, or at the last without it.
    """
    values, starts = series.stays[outcome], series.starts
    cells = np.arange(len(values)) - np.repeat(starts[:-1], np.diff(starts))
    owners = np.repeat(np.arange(len(series)), np.diff(starts))
    fits = cells >= steps - 1
    ends = np.zeros(len(series), dtype=np.int64)
    never, ever = np.flatnonzero(fits & (values == 0)), np.flatnonzero(fits & (values == 1))
    ends[owners[never]] = cells[never] + 1  # the last of each stays
    first = ever[::-1]
    ends[owners[first]] = cells[first] + 1  # the first of each stays
    positive = np.zeros(len(series), dtype=np.bool_)
    positive[owners[ever]] = True
    return ends, positive
