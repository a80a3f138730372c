"""Patients as a model reads them: from records, data frames or plain mappings, whatever stands for missing there; and
those whose outcome is known, beside it.

There is one way to read a cell, to predict and to explain, and it looks at no other cell: a category is the value of
its own label, if the model knows that; else what the dictionary of the model's study makes of its text; else, where
there is none, what the text stands for (records/grammar.py): `True` is true, `5.0` is 5. A number may be written as
text too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, RecordsError
from concilium.protocol.grid import bin_codes
from concilium.records.coding import Place, natural_value
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.dictionary import DictionaryEntry
from concilium.records.grammar import canonical, measure_or_day
from concilium.records.series import Series
from concilium.records.table import Records

if TYPE_CHECKING:
    from pandas import DataFrame

# What a model predicts for: a table, a data frame, or one mapping per patient.
AnyPatients: TypeAlias = Union[Records, "DataFrame", Sequence[Mapping[str, Any]]]

Entries: TypeAlias = Mapping[str, DictionaryEntry]
NO_ENTRIES: Entries = MappingProxyType({})


@dataclass(frozen=True)
class KnownOutcomes:
    """What happened to patients, beside what a model can be asked about them.

    `asked` is what `predict` takes; `truth` are the outcomes, in its order; `rows` tell which patient of the population
    each is about: a patient may be asked about more than once, or not at all.
    """

    asked: Any
    truth: Sequence[Value]
    rows: NDArray[np.intp]


class NewPatients:
    """Patients to predict, column by column (a `Source` for recoding); ModelError where a column is not there.
    `dictionary` is that of the model's study, as its card has it. `by_itself`: the model was learned from cells that
    were each read by itself, so that text among numbers was missing, and is so here."""

    def __init__(
        self, patients: AnyPatients, dictionary: Entries = NO_ENTRIES, *, by_itself: bool = False
    ) -> None:
        self.dictionary, self._by_itself = dictionary, by_itself
        if isinstance(patients, Records):
            self.records = patients
        elif isinstance(patients, Sequence):
            self.records = Records.from_rows(patients)
        else:
            self.records = Records.read(patients)

    def __len__(self) -> int:
        return len(self.records)

    def binned(self, name: str, edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
        """A number as codes: 0 missing, then 1 + the number of edges at or below it."""
        return bin_codes(self.measured(name), edges)

    def measured(self, name: str, rows: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """A column, or some rows of it, as numbers, NaN where missing; RecordsError where a cell is no number."""
        if rows is not None:
            some: NDArray[np.float64] = self.measured(name)[rows]
            return some
        column = self._find(name)
        if isinstance(column, Numbers):
            return column.numbers
        sizes = np.array([np.nan, *map(measure_or_day, column.values)])
        wrong = np.flatnonzero(np.isnan(sizes[column.codes]) & (column.codes != 0))
        if len(wrong) and not self._by_itself:
            held = column.values[int(column.codes[wrong[0]]) - 1]
            raise RecordsError(
                f"the model takes attribute {name!r} as a number, but row {wrong[0] + 1} holds {held!r}; give a "
                "number, or None where it is missing"
            )
        measured: NDArray[np.float64] = np.take(sizes, column.codes)
        return measured

    def coded(self, name: str) -> Coded:
        """A column as categories, numbers by their size."""
        column = self._find(name)
        if isinstance(column, Coded):
            return column
        values, codes = np.unique(column.numbers, return_inverse=True)
        measured = tuple(float(value) for value in values[~np.isnan(values)])
        return Coded(np.where(codes < len(measured), codes + 1, 0).astype(np.uint32), measured)

    def reread(self, name: str) -> Callable[[Value], str]:
        """What else a category may be the label of, where the model does not know its own."""
        entry = self.dictionary.get(name)
        if entry is None or entry.type == "number":
            return canonical
        read = entry.reader()
        return lambda value: label(read(label(value)))

    def _find(self, name: str) -> Column:
        if name not in self.records:
            raise ModelError(f"the records have no attribute {name!r}, which the model asks about")
        return self.records[name]


def as_plain(value: Any) -> Any:
    """A patient's value as a table would have it: numpy's scalars unwrapped, dates as text; NaN, NaT and pandas' NA are
    missing. What is no cell of a table, such as a list, stays as it is."""
    if hasattr(value, "item") and not isinstance(value, str | bytes | np.generic):
        value = value.item()
    try:
        return natural_value(value, 0, Place("patient", "value"))
    except RecordsError:
        return value


def read_patient(patient: Mapping[str, Any]) -> dict[str, Any]:
    """A patient's plain values."""
    return {name: as_plain(value) for name, value in dict(patient).items()}


AnySeries: TypeAlias = Any
"""`Series`; or for each patient a mapping from variables to their values in order, one step apart; or a table, whose
cells are series of one step."""


def _list_rows(patients: AnySeries, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """What is given of each patient of these variables."""
    if isinstance(patients, Sequence):
        return patients
    records = patients if isinstance(patients, Records) else NewPatients(patients).records
    known = [name for name in names if name in records]
    columns = {name: records.values(name) for name in known}
    return [{name: columns[name][row] for name in known} for row in range(len(records))]


def lay_out_courses(patients: AnySeries, names: Sequence[str], step: str) -> Series:
    """The courses of these variables as a series; ModelError where there is none. The last value of each variable is
    the latest, so that shorter lists end with the longest one."""
    courses = [
        {name: _read_course(name, row[name]) for name in names if name in row}
        for row in map(dict, _list_rows(patients, names))
    ]
    lengths = [max([len(values) for values in row.values()], default=1) for row in courses]
    longest = max(lengths, default=1)
    grids = {}
    for name in names:
        if any(name in row for row in courses):
            grid = np.full((longest, len(courses)), np.nan, dtype=np.float32)
            for patient, row in enumerate(courses):
                values = row.get(name, [])
                grid[lengths[patient] - len(values) : lengths[patient], patient] = values
            grids[name] = grid
    if not grids:
        raise ModelError(
            "the patients have none of the attributes that this model asks about: " + ", ".join(sorted(names))
        )
    return Series(grids, step=step, lengths=lengths)


def _read_course(name: str, values: Any) -> list[float]:
    """One variable of one patient: a number, or numbers in order; missing ones as None or NaN."""
    if isinstance(values, str | bytes) or not (isinstance(values, Sequence) or hasattr(values, "__array__")):
        values = [values]
    course = []
    for value in list(values) or [None]:
        plain = as_plain(value)
        if plain is None:
            course.append(float("nan"))
        elif isinstance(plain, int | float) and not isinstance(plain, bool):
            course.append(float(plain))
        else:
            raise ModelError(f"{name!r} is a number, or a list of numbers in order; got {value!r}")
    return course


def match_controls(ends: NDArray[np.int64], positive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where stays without the outcome are judged: at a time since admission at which some stay with it is.

    `ends` is how many steps of each stay count: up to the outcome, or all that are known without it (0: none). At its
    last hour a stay without the outcome is about to leave, which a model would learn to see. A time is drawn evenly
    from those of the stays with the outcome that the stay reaches; a stay that reaches none is judged at its end. Draws
    have a fixed seed.
    """
    times = np.sort(ends[positive & (ends > 0)])
    reached = np.searchsorted(times, ends, side="right")
    drawn = (np.random.default_rng(1).random(len(ends)) * reached).astype(np.int64)
    moved = ~positive & (reached > 0)
    matched = ends.copy()
    matched[moved] = times[drawn[moved]]
    return matched
