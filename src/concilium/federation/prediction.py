"""Patients as a model reads them: from records, data frames or plain mappings, whatever stands for missing there; and
those whose outcome is known, beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.federation.cohort import bin_codes, numbers
from concilium.records.table import Coded, Column, Records, Value

if TYPE_CHECKING:
    from pandas import DataFrame

# What a model predicts for: a table, a data frame, or one mapping per patient.
AnyPatients: TypeAlias = Union[Records, "DataFrame", Sequence[Mapping[str, Any]]]


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
    """Patients to predict, column by column (a `Source` for recoding); ModelError where a column is not there."""

    def __init__(self, patients: AnyPatients) -> None:
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
        """A column as numbers, NaN where missing; RecordsError if it holds text."""
        self._find(name)
        return numbers(self.records, name)

    def coded(self, name: str) -> Coded:
        """A column as categories, numbers by their size."""
        column = self._find(name)
        if isinstance(column, Coded):
            return column
        values, codes = np.unique(column.numbers, return_inverse=True)
        measured = tuple(float(value) for value in values[~np.isnan(values)])
        return Coded(np.where(codes < len(measured), codes + 1, 0).astype(np.uint32), measured)

    def _find(self, name: str) -> Column:
        if name not in self.records:
            raise ModelError(f"the records have no attribute {name!r}, which the model asks about")
        return self.records[name]


def as_plain(value: Any) -> Any:
    """A patient's value as a plain one: numpy's scalars unwrapped; NaN, NaT and pandas' NA are missing."""
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if missing else value


def read_patient(patient: Mapping[str, Any], asked: Collection[str]) -> dict[str, Any]:
    """A patient's plain values; ModelError where there is none of those that a model asks about."""
    plain = {name: as_plain(value) for name, value in dict(patient).items()}
    if asked and not set(asked) & set(plain):
        raise ModelError(
            "the patient has none of the attributes that this model asks about: " + ", ".join(sorted(asked))
        )
    return plain
