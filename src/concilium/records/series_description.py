"""What a series holds and what looks odd in it: values that no patient has, and codes that are no measurement.

This is for the hospital that reads its own data. Nothing is changed: a value that is implausible stays until the
hospital corrects its table or lists it as missing.

A column that does not change within a stay, such as age and sex, is static. Which columns are, a person states, or a
public list of names says. It never follows from patients: whether a column changes is something that one patient could
decide. Warnings here are for the hospital's own eyes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.records.clinical_ranges import find_range
from concilium.records.series import Grid, Series

SHOWN = 5  # variables that a warning names
FAHRENHEIT = (86.0, 113.0)  # what a patient's temperature is there


class OddValues(UserWarning):
    """A series with values that no patient has: the hospital's coding may differ from what is assumed."""


@dataclass(frozen=True)
class _VariableDescription:
    """One variable: how much of it there is, its extremes, and what is odd."""

    name: str
    patients: int
    values: int
    missing: float
    lowest: float
    highest: float
    below: int
    above: int
    oddity: str

    @property
    def implausible(self) -> int:
        """How many values are outside what is plausible; 0 where no range is public for this name."""
        return self.below + self.above


@dataclass(frozen=True)
class SeriesDescription:
    """All variables, and what happened while the table was read; prints as a table."""

    patients: int
    steps: int
    step: str
    empty: int
    variables: tuple[_VariableDescription, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.patients} patients, {self.steps} steps of {self.step}, {self.empty} patients without a value"
        width = max(8, *(len(one.name) for one in self.variables))
        title = f"{'variable':<{width}}  patients    values  missing     lowest    highest  implausible"
        lines = [
            f"{one.name:<{width}}  {one.patients:>8}  {one.values:>8}  {one.missing:>6.1%}  {one.lowest:>9.6g}  "
            f"{one.highest:>9.6g}  {one.implausible:>11}" + (f"  {one.oddity}" if one.oddity else "")
            for one in self.variables
        ]
        return "\n".join([head, *self.notes, title, *lines])

    __repr__ = __str__


def describe(series: Series) -> SeriesDescription:
    """What a series holds; `Series.describe` says more."""
    measured = np.zeros(len(series), dtype=bool)
    variables = []
    for name, values in series.stays.items():
        counts = (
            np.add.reduceat(~np.isnan(values), series.starts[:-1], dtype=np.int64)
            if len(series)
            else np.zeros(0)
        )
        measured |= counts > 0
        variables.append(_describe(name, values, int((counts > 0).sum())))
    return SeriesDescription(
        len(series),
        int(series.starts[-1]),
        series.step,
        int((~measured).sum()),
        tuple(variables),
        series.notes,
    )


def _describe(name: str, values: Grid, patients: int) -> _VariableDescription:
    present = values[~np.isnan(values)]
    plausible = find_range(name)
    below = above = 0
    if plausible is not None:
        below, above = int((present < plausible.lowest).sum()), int((present > plausible.highest).sum())
    return _VariableDescription(
        name,
        patients,
        int(present.size),
        1 - present.size / values.size if values.size else 1.0,
        float(present.min()) if present.size else float("nan"),
        float(present.max()) if present.size else float("nan"),
        below,
        above,
        _explain(name, present) if below or above else "",
    )


def _explain(name: str, present: Grid) -> str:
    """What the implausible values may be, in words."""
    plausible = find_range(name)
    assert plausible is not None
    outside = (present < plausible.lowest) | (present > plausible.highest)
    odd = present[outside]
    reasons = []
    for marker in (-1.0, -9.0, -99.0, -999.0, 999.0, 9999.0):
        count = int((odd == marker).sum())
        if count:
            reasons.append(f"{count} are {marker:g}, which may stand for missing")
    fahrenheit = int(((odd >= FAHRENHEIT[0]) & (odd <= FAHRENHEIT[1])).sum())
    if plausible.unit == "°C" and fahrenheit:
        reasons.append(f"{fahrenheit} look like Fahrenheit")
    zeros = int((odd == 0).sum())
    if zeros:
        reasons.append(f"{zeros} are 0")
    return f"(plausible: {plausible.lowest:g} to {plausible.highest:g} {plausible.unit})" + "".join(
        f"; {reason}" for reason in reasons
    )


def warn_of_oddities(series: Series) -> None:
    """A warning where values are outside what is plausible: they are kept, but not in silence."""
    odd = []
    for name, values in series.stays.items():
        plausible = find_range(name)
        if plausible is not None:
            count = int(((values < plausible.lowest) | (values > plausible.highest)).sum())
            if count:
                odd.append((name, count))
    if odd:
        listing = ", ".join(f"{name} {count}" for name, count in odd[:SHOWN]) + (
            ", ..." if len(odd) > SHOWN else ""
        )
        warnings.warn(
            f"values outside what is plausible are kept as they are ({listing}); print(series.describe()) shows them, "
            f"missing=... lists what stands for a missing value",
            OddValues,
            stacklevel=3,
        )


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
