"""Public stays that ensembles are asked about: scaled by public ranges at the house, and sent as whole numbers.

They are nobody's secret: who answers them is protected, not who is in them. What they are is agreed to by their digest.
docs/methods.md, section 8.5.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.experts.expert_task import ExpertTask
from concilium.experts.patient_windows import FARTHEST, LaidOut, lay_out
from concilium.protocol.arrays import Array, pack, unpack
from concilium.records.series import Series
from concilium.records.time_grid import count_steps

STEPS_OF_ONE = 8192
MOST_CELLS, MOST_ASKED = 2_000_000, 100_000
DIGEST = "sha256:"


class PublicStays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`inputs` [cell, variable] in steps of 1/8192, stays of these `lengths` one after the other, and the numbers of
    the cells that are `asked` about, rising."""

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
