"""A stay as networks see it: values scaled by public ranges, carried forward, and cut into overlapping windows.

Whatever a patient's windows hold depends on that patient alone: ranges are public, and what was never measured is the
middle of its range. A stay that is shorter than a window is one shorter window. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit
from concilium.experts.expert_task import ExpertTask
from concilium.experts.severity import grade
from concilium.records.series import Series
from concilium.records.time_grid import count_steps, read_step

FARTHEST = 4.0  # half-widths from the middle of the range: what is beyond is a slip, or far enough


@dataclass(frozen=True, eq=False)
class Windows:
    """`inputs` [window, step, variable], zero beyond each window; `targets` [window, step], NaN where unknown."""

    inputs: NDArray[np.float32]
    targets: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def constant(self) -> float | None:
        """The one severity that a patient had in all known steps (0 where none is known); None where it changed."""
        known = self.targets[~np.isnan(self.targets)]
        if not known.size:
            return 0.0
        return float(known[0]) if (known == known[0]).all() else None

    @property
    def digest(self) -> str:
        """Of everything that a network learns from."""
        content = hashlib.sha256(repr(self.inputs.shape).encode())
        content.update(np.ascontiguousarray(self.inputs, dtype="<f4").data)
        content.update(np.ascontiguousarray(self.targets + 0.0, dtype="<f8").data)
        content.update(np.ascontiguousarray(self.lengths, dtype="<i8").data)
        return content.hexdigest()


@dataclass(frozen=True, eq=False)
class LaidOut:
    """Stays one after the other: `values` [cell, variable], and where they are known `severity` [cell]."""

    task: ExpertTask
    values: NDArray[np.float32]
    severity: NDArray[np.float64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def cut(self, patient: int) -> Windows:
        """The windows of one patient."""
        return self.gather(np.array([patient]))[0]

    def gather(self, patients: NDArray[np.intp]) -> tuple[Windows, NDArray[np.intp], NDArray[np.intp]]:
        """The windows of several patients; which step of which windows ([window, step] flattened) tells each cell of
        their stays, and which cells these are."""
        steps, stride = self.task.steps, self.task.stride
        begins, lengths = self.starts[patients], np.diff(self.starts)[patients]
        counts = 1 + np.maximum(0, -(-(lengths - steps) // stride))
        owners = np.repeat(np.arange(len(patients)), counts)
        nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts = nth * stride
        sizes = np.minimum(lengths[owners] - firsts, steps)
        inside = np.arange(steps) < sizes[:, None]
        cells = (begins[owners] + firsts)[:, None] + np.arange(steps)
        cells = np.where(inside, cells, 0)
        inputs = np.where(inside[:, :, None], self.values[cells], np.float32(0))
        targets = np.where(inside, self.severity[cells], np.nan)
        # Every cell is told by the window in which it has the most before it: the first half by the one before.
        tells = inside & ((np.arange(steps) >= steps - stride) | (nth == 0)[:, None])
        places = np.flatnonzero(tells)
        return Windows(inputs, targets, sizes.astype(np.int64)), places, cells.reshape(-1)[places]


def lay_out(series: Series, task: ExpertTask, *, labelled: bool = True) -> LaidOut:
    """The stays of a series for a task; DoesNotFit where it has another step, no target, or none of the variables."""
    if series.step_hours != read_step(task.step):
        raise DoesNotFit(
            f"these series have a step of {series.step}, and experts were asked for with {task.step}: read them with "
            f'step="{task.step}"'
        )
    if (labelled and task.target not in series) or not any(name in series for name in task.names):
        lacking = f"no {task.target!r}, or none" if labelled else "none"
        raise DoesNotFit(f"these series have {lacking} of the variables that experts learn from")
    size = int(series.starts[-1])
    known = [name for name in task.names if name in series]
    carried = series.choose(known).carry_forward(task.carry)
    values = np.zeros((size, len(task.variables)), dtype=np.float32)
    for place, variable in enumerate(task.variables):
        if variable.name in carried:
            middle, half = (variable.low + variable.high) / 2, (variable.high - variable.low) / 2
            with np.errstate(over="ignore"):
                scaled = (carried.stays[variable.name].astype(np.float64) - middle) / half
            values[:, place] = np.nan_to_num(np.clip(scaled, -FARTHEST, FARTHEST) / 2, nan=0.0)
    severity = np.full(size, np.nan)
    if labelled:
        lead = count_steps(task.lead, task.step, "lead")
        severity = grade(series, task.target, lead, task.bound)
    return LaidOut(task, values, severity, series.starts)
