"""Time series of many patients: one array [time, patient] for each variable, on one regular grid.

A patient's stay has a length of its own; beyond it, and where nothing was measured, a cell is NaN. What a cell says
depends on that patient alone.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.columns import Value, label
from concilium.records.table import number_rows

Grid = NDArray[np.float32]
"""Values [time, patient]; NaN where nothing is known."""

_STEP = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d)")
_HOURS = {"min": 1 / 60, "h": 1.0, "d": 24.0}


class Series:
    """`Series({"HR": array, "Temp": array}, step="1h")`: arrays [time, patient] of the same shape.

    `step` is the time between two rows ("15min", "1h", "1d"), `lengths` how many rows each patient's stay has (without
    it: up to the last row in which anything was measured, at least one), `ids` the patients (without it: 1, 2, ...).
    """

    def __init__(
        self,
        variables: Mapping[str, ArrayLike],
        *,
        step: str = "1h",
        lengths: ArrayLike | None = None,
        ids: Sequence[Value] | None = None,
    ) -> None:
        grids = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in variables.items()}
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
        self.variables: Mapping[str, Grid] = MappingProxyType(grids)
        self.step = step
        self.step_hours = read_step(step)
        self.lengths = _find_lengths(grids) if lengths is None else _check_lengths(lengths, shape)
        beyond = np.arange(shape[0])[:, None] >= self.lengths
        for name, grid in grids.items():
            if not np.isnan(grid[beyond]).all():
                grids[name] = np.where(beyond, np.float32(np.nan), grid)
        self.ids: Sequence[Value | None] = range(1, shape[1] + 1) if ids is None else ids
        if len(self.ids) != shape[1]:
            raise RecordsError(f"there are {shape[1]} patients and {len(self.ids)} ids")

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        points = len(next(iter(self.variables.values())))
        return f"Series({len(self)} patients, {len(self.variables)} variables, {points} steps of {self.step})"

    def __getitem__(self, name: str) -> Grid:
        """One variable, [time, patient]."""
        try:
            return self.variables[name]
        except KeyError:
            raise RecordsError(f"there is no variable {name!r}{nearest(name, self.variables)}") from None

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Series:
        """The patients of a mask or of row numbers, in that order."""
        numbers = number_rows(rows, len(self))
        part = object.__new__(Series)
        part.variables = MappingProxyType(
            {name: np.ascontiguousarray(grid[:, numbers]) for name, grid in self.variables.items()}
        )
        part.step, part.step_hours, part.lengths = self.step, self.step_hours, self.lengths[numbers]
        part.ids = [self.ids[row] for row in numbers]
        return part

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids, lengths and values in this order of patients."""
        content = hashlib.sha256(f"concilium/series@1\n{self.step_hours!r}\n".encode())
        for patient in self.ids:
            content.update(f"{label(patient) if patient is not None else ''}\n".encode())
        content.update(self.lengths.astype("<i8").tobytes())
        for name in sorted(self.variables):
            grid = self.variables[name]
            content.update(f"{name}\n{grid.shape[0]}\n".encode())
            content.update(np.where(np.isnan(grid), np.float32(np.nan), grid).astype("<f4").tobytes())
        return content.hexdigest()


def read_step(step: str) -> float:
    """The hours of a step such as "15min", "1h" or "1d"."""
    match = _STEP.fullmatch(step.strip()) if isinstance(step, str) else None
    hours = float(match[1]) * _HOURS[match[2]] if match else 0.0
    if not (hours > 0 and math.isfinite(hours)):
        raise RecordsError(f"step {step!r} is no time; write 15min, 1h or 1d")
    return hours


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
