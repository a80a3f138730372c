"""Patients' courses as a model that judges courses reads them: series, or one mapping of values for each patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from concilium.errors import ModelError
from concilium.models.prediction import NewPatients, as_plain
from concilium.records.series import Series
from concilium.records.table import Records

AnySeries: TypeAlias = Any
"""`Series`; or for each patient a mapping from variables to their values in order, one step apart; or a table, whose
cells are series of one step."""


def lay_out_courses(patients: AnySeries, names: Sequence[str], step: str) -> Series:
    """The courses of these variables as a series; ModelError where there is none."""
    rows: Sequence[Mapping[str, Any]]
    if isinstance(patients, Sequence):
        rows = patients
    else:
        records = patients if isinstance(patients, Records) else NewPatients(patients).records
        known = [name for name in names if name in records]
        columns = {name: records.values(name) for name in known}
        rows = [{name: columns[name][row] for name in known} for row in range(len(records))]
    courses = [
        {name: read_course(name, row[name]) for name in names if name in row} for row in map(dict, rows)
    ]
    longest = max([len(values) for row in courses for values in row.values()], default=1)
    grids = {}
    for name in names:
        if any(name in row for row in courses):
            grid = np.full((longest, len(courses)), np.nan, dtype=np.float32)
            for patient, row in enumerate(courses):
                values = row.get(name, [])
                grid[: len(values), patient] = values
            grids[name] = grid
    if not grids:
        raise ModelError(
            "the patients have none of the attributes that this model asks about: " + ", ".join(sorted(names))
        )
    lengths = [max([len(values) for values in row.values()], default=1) for row in courses]
    return Series(grids, step=step, lengths=lengths)


def read_course(name: str, values: Any) -> list[float]:
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
