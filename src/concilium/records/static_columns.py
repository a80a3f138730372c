"""Columns of a series that do not change within a stay, such as age and sex: a public list of names, and what a
hospital should know of its own.

Which columns are static is stated by a person, or follows from this list of names. It never follows from patients:
whether a column changes is something that one patient could decide. Warnings here are for the hospital's own eyes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.records.series import Grid, Series
from concilium.records.series_description import OddValues

LEAST_PATIENTS = 10
"""With two values or more, for a column to be taken for one that never changes."""


@dataclass(frozen=True)
class _PublicStatic:
    """Where a static column may be cut (`edges`), or which values it has (`values`, the first to compare with)."""

    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


_BINARY = _PublicStatic(values=(0.0, 1.0))
_BY_NAME: Mapping[str, _PublicStatic] = {
    "age": _PublicStatic((45.0, 65.0, 80.0)),
    "sex": _BINARY,
    "gender": _BINARY,
    "height": _PublicStatic((160.0, 175.0)),
    "unit1": _BINARY,
    "unit2": _BINARY,
    "hospadmtime": _PublicStatic((-72.0, -24.0, -6.0)),
    "icutype": _PublicStatic(values=(1.0, 2.0, 3.0, 4.0)),
}


def find_static(name: str) -> _PublicStatic | None:
    """What is public of a column that is static by its name, whatever its capitals and blanks; None of others."""
    return _BY_NAME.get(re.sub(r"[\s_\-]", "", name).casefold())


def find_constant(series: Series, names: Iterable[str]) -> list[str]:
    """Which of these variables have one value in each stay, although at least ten patients have two or more."""
    found = []
    for name in names:
        if name in series:
            several, changing = _count_changes(series, series.stays[name])
            if several.sum() >= LEAST_PATIENTS and not changing.any():
                found.append(name)
    return found


def warn_of_static(series: Series) -> None:
    """Warn of stated static columns that change within a stay, or that nobody has."""
    for name in series.static:
        values = series.stays[name]
        changing = int(_count_changes(series, values)[1].sum())
        if changing:
            warnings.warn(
                f"static column {name!r} changes within {changing} of {len(series)} stays: the latest value that was "
                "recorded counts",
                OddValues,
                stacklevel=3,
            )
        if np.isnan(values).all():
            warnings.warn(
                f"static column {name!r} has no value here: nothing that is said of it will be known of these patients",
                OddValues,
                stacklevel=3,
            )


def _count_changes(series: Series, values: Grid) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each patient: whether there is more than one value, and whether they differ."""
    if not len(series):
        nobody = np.zeros(0, dtype=np.bool_)
        return nobody, nobody
    known, first = ~np.isnan(values), series.starts[:-1]
    counts = np.add.reduceat(known, first, dtype=np.int64)
    highest = np.maximum.reduceat(np.where(known, values, -np.inf), first)
    lowest = np.minimum.reduceat(np.where(known, values, np.inf), first)
    return counts > 1, (counts > 1) & (highest > lowest)
