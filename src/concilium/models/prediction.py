"""Patients as a model reads them: from records, data frames or plain mappings, whatever stands for missing there; and
those whose outcome is known, beside it.

There is one way to read a cell, to predict and to explain, and it looks at no other cell: a category is the value of
its own label, if the model knows that; else what the dictionary of the model's study makes of its text; else, where
there is none, what the text stands for (records/grammar.py): `True` is true, `5.0` is 5. A number may be written as
text too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, RecordsError
from concilium.protocol.cohort import bin_codes
from concilium.records.coding import Place, natural_value
from concilium.records.dictionary import DictionaryEntry
from concilium.records.grammar import canonical, measure
from concilium.records.table import Coded, Column, Numbers, Records, Value, label

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
    `dictionary` is that of the model's study, as its card has it."""

    def __init__(self, patients: AnyPatients, dictionary: Entries = NO_ENTRIES) -> None:
        self.dictionary = dictionary
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

    def measured(self, name: str) -> NDArray[np.float64]:
        """A column as numbers, NaN where missing; RecordsError where a cell is no number."""
        column = self._find(name)
        if isinstance(column, Numbers):
            return column.numbers
        sizes = np.array([np.nan, *map(measure, column.values)])
        wrong = np.flatnonzero(np.isnan(sizes[column.codes]) & (column.codes != 0))
        if len(wrong):
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


def read_patient(patient: Mapping[str, Any], asked: Collection[str]) -> dict[str, Any]:
    """A patient's plain values; ModelError where there is none of those that a model asks about."""
    plain = {name: as_plain(value) for name, value in dict(patient).items()}
    if asked and not set(asked) & set(plain):
        raise ModelError(
            "the patient has none of the attributes that this model asks about: " + ", ".join(sorted(asked))
        )
    return plain
