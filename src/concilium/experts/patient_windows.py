"""A stay as networks see it: values scaled by public ranges, carried forward, and cut into overlapping windows.

Whatever a patient's windows hold depends on that patient alone: ranges are public, and what was never measured is the
middle of its range. A stay that is shorter than a window is one shorter window. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, MessageError
from concilium.experts.expert_task import ExpertTask
from concilium.protocol.sums import Array, pack, unpack
from concilium.records.columns import say_plain
from concilium.records.series import Series
from concilium.records.series_times import count_steps, read_step


def _grade(series: Series, task: ExpertTask) -> NDArray[np.float64]:
    """The severity of every cell of the stays, NaN where it is unknown.

    Where the study says that the target is a grade, as the paper's physicians gave it, severity is that grade. Where it
    is a label of 0 and 1, severity is B while it is 1, rises to B in a straight line over the `lead` before it first
    is, and is 0 elsewhere. It is unknown where the target is missing, or no such number: such a step teaches nothing.
    """
    label, bound = series.stays[task.target].astype(np.float64), task.bound
    if task.grade is not None:
        return np.where((label >= 0) & (label <= bound), label, np.nan)
    lead = count_steps(task.lead, task.step, "lead")
    cells = np.arange(len(label)) - np.repeat(series.starts[:-1], series.lengths)
    first = np.repeat(find_onsets(series, task.target), series.lengths)
    rising = 1.0 - (first - cells) / max(lead, 1)
    severity = np.where(label == 1, 1.0, np.where(cells < first, np.clip(rising, 0.0, 1.0), 0.0))
    return np.where((label == 0) | (label == 1), bound * severity, np.nan)


def check_target(series: Series, task: ExpertTask) -> None:
    """DoesNotFit where a known value of the target is neither 0 nor 1 or, of a graded one, not from 0 to B.

    It tells that there is such a value: for hospitals that answer without privacy, and for evaluation.
    """
    known = series.stays[task.target]
    known = known[~np.isnan(known)]
    fits = (known >= 0) & (known <= task.bound) if task.grade is not None else (known == 0) | (known == 1)
    if fits.all():
        return
    takes, remedy = f"a grade from 0 to {task.bound}", ""
    if task.grade is None:
        takes, remedy = (
            "0 or 1",
            ". If it is a grade, say from which grade on the outcome is there, as in grade = 3",
        )
    wrong = f"{(~fits).sum()} of {len(fits)} steps"
    raise DoesNotFit(f"{task.target!r} must be {takes} and is something else at {wrong}{remedy}")


def has_outcome(series: Series, task: ExpertTask) -> NDArray[np.float32]:
    """1 at each step with the outcome, 0 without it, NaN where that is unknown."""
    label = series.stays[task.target]
    if task.grade is None:
        return label
    return np.where(np.isnan(label), np.float32(np.nan), (label >= task.grade).astype(np.float32))


def find_onsets(
    series: Series, target: str, label: NDArray[np.floating] | None = None
) -> NDArray[np.float64]:
    """The step at which each patient's label is first 1; infinite where it never is."""
    label, starts = series.stays[target] if label is None else label, series.starts
    there = np.flatnonzero(label == 1)
    owners = np.searchsorted(starts, there, side="right") - 1
    onsets = np.full(len(series), np.inf)
    onsets[owners[::-1]] = (there - starts[owners])[::-1]  # the first of each stays
    return onsets


SPREAD = Fraction(1, 8)
"""Of the bound: the largest standard deviation of what one expert says of public hours, where a student is taught."""
FARTHEST = 4.0  # half-widths from the middle of the range: what is beyond is a slip, or far enough


@dataclass(frozen=True, eq=False)
class Windows:
    """`inputs` [window, step, variable], zero beyond each window; `targets` [window, step], NaN where unknown; `firsts`
    the step of the stay with which each window begins, where that is known."""

    inputs: NDArray[np.float32]
    targets: NDArray[np.float64]
    lengths: NDArray[np.int64]
    firsts: NDArray[np.int64] | None = None

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
    """Stays one after the other: `values` [cell, variable], and where they are known `severity` [cell]; `known` [cell,
    variable] says which values were measured, or carried forward from one that was."""

    task: ExpertTask
    values: NDArray[np.float32]
    severity: NDArray[np.float64]
    starts: NDArray[np.int64]
    known: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def changes(self) -> NDArray[np.bool_]:
        """Whose severity changes: what an expert can learn from. Each patient's own stay decides."""
        starts = self.starts[:-1]
        highest, lowest = (reduce.reduceat(self.severity, starts) for reduce in (np.fmax, np.fmin))
        return np.asarray(highest > lowest)

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
        windows = Windows(inputs, targets, sizes.astype(np.int64), firsts.astype(np.int64))
        return windows, places, cells.reshape(-1)[places]


def lay_out(series: Series, task: ExpertTask, *, labelled: bool = True) -> LaidOut:
    """The stays of a series for a task; DoesNotFit where they do not fit it."""
    check_series(series, task, labelled=labelled)
    size = int(series.starts[-1])
    known = [name for name in task.names if name in series]
    carried = series.choose(known).carry_forward(task.carry)
    values = np.zeros((size, len(task.variables)), dtype=np.float32)
    measured = np.zeros(values.shape, dtype=np.bool_)
    for place, variable in enumerate(task.variables):
        if variable.name in carried:
            middle, half = (variable.low + variable.high) / 2, (variable.high - variable.low) / 2
            with np.errstate(over="ignore"):
                scaled = (carried.stays[variable.name].astype(np.float64) - middle) / half
            measured[:, place] = ~np.isnan(scaled)
            values[:, place] = np.nan_to_num(np.clip(scaled, -FARTHEST, FARTHEST) / 2, nan=0.0)
    severity = np.full(size, np.nan)
    if labelled:
        severity = _grade(series, task)
    return LaidOut(task, values, severity, series.starts, measured)


def find_beyond(series: Series, task: ExpertTask) -> Iterator[str]:
    """Which values of one stay are further out than networks see, a sentence each variable."""
    for variable in task.variables:
        if variable.name not in series:
            continue
        reach = FARTHEST * (variable.high - variable.low) / 2
        middle, values = (variable.low + variable.high) / 2, series.stays[variable.name].astype(np.float64)
        for value in values[np.abs(values - middle) > reach][:1]:
            end = middle + math.copysign(reach, value - middle)
            yield f"{variable.name} = {say_plain(value)} counts as {say_plain(end)}: experts tell nothing apart beyond."


def check_series(series: Series, task: ExpertTask, *, labelled: bool = True) -> None:
    """DoesNotFit where a series has another step, no target, or none of the variables."""
    if series.step_hours != read_step(task.step):
        raise DoesNotFit(
            f"these series have a step of {series.step}, and experts were asked for with {task.step}: read them with "
            f'step="{task.step}"'
        )
    if (labelled and task.target not in series) or not any(name in series for name in task.names):
        lacking = f"no {task.target!r}, or none" if labelled else "none"
        raise DoesNotFit(f"these series have {lacking} of the variables that experts learn from")


STEPS_OF_ONE = 8192
MOST_CELLS, MOST_ASKED = 2_000_000, 100_000
DIGEST = "sha256:"


class PublicStays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`inputs` [cell, variable] in steps of 1/8192, stays of these `lengths` one after the other, and the numbers of
    the cells that are `asked` about, rising.

    The house scales them by public ranges and sends them as whole numbers. They are nobody's secret: who answers
    them is protected, not who is in them. Hospitals agree to them by their digest. docs/methods.md, section 8.5.
    """

    inputs: Array
    lengths: Array
    asked: Array

    @property
    def steps(self) -> int:
        """How many steps are asked about."""
        return self.asked.shape[0] if self.asked.shape else 0

    @property
    def digest(self) -> str:
        content = hashlib.sha256(b"concilium/public-stays@1")
        for array in (self.inputs, self.lengths, self.asked):
            content.update(f"{array.dtype} {array.shape} ".encode())
            content.update(array.data)
        return DIGEST + content.hexdigest()

    def open(self, task: ExpertTask) -> tuple[LaidOut, NDArray[np.int64]]:
        """The stays, and the cells that are asked about; MessageError where they are none of this task."""
        lengths = unpack(self.lengths).astype(np.int64)
        inputs, asked = unpack(self.inputs), unpack(self.asked).astype(np.int64)
        size = int(lengths.sum())
        fits = (
            self.inputs.dtype == "i2"
            and inputs.shape == (size, len(task.variables))
            and 1 <= size <= MOST_CELLS
            and lengths.ndim == 1
            and bool((lengths >= 1).all())
            and asked.ndim == 1
            and 1 <= len(asked) <= MOST_ASKED
            and bool((np.diff(asked) > 0).all())
            and int(asked[0]) >= 0
            and int(asked[-1]) < size
        )
        if not fits:
            raise MessageError(
                f"public stays have at least one step each and {MOST_CELLS} together, of which 1 to {MOST_ASKED} are "
                "asked about, each once"
            )
        farthest = int(FARTHEST / 2 * STEPS_OF_ONE)
        values = np.clip(inputs, -farthest, farthest).astype(np.float32) / STEPS_OF_ONE
        starts = np.concatenate(([0], np.cumsum(lengths)))
        return LaidOut(task, values, np.full(size, np.nan), starts), asked


def lay_public(series: Series, task: ExpertTask, every: str) -> PublicStays:
    """Public stays for a task, asked about in one step of `every`, and in the last of each stay."""
    laid = lay_out(series, task, labelled=False)
    stride = max(1, count_steps(every, task.step, "every"))
    cells = np.arange(len(laid.values)) - np.repeat(laid.starts[:-1], series.lengths)
    chosen = cells % stride == stride - 1
    chosen[laid.starts[1:] - 1] = True
    inputs = np.rint(laid.values.astype(np.float64) * STEPS_OF_ONE).astype("<i2")
    return PublicStays(
        pack(inputs), pack(series.lengths.astype("<u4")), pack(np.flatnonzero(chosen).astype("<u4"))
    )


def lay_course(series: Series, task: ExpertTask, *, whole: bool) -> PublicStays:
    """One stay, asked about in all of its steps or in the last."""
    return lay_public(series, task, task.step if whole else f"{int(series.lengths.max()) + 1}d")
