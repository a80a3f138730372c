"""Measurements into the cells of a grid, where several may meet in one."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Within: TypeAlias = Literal["last", "first", "mean", "min", "max"]


class Placing:
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
