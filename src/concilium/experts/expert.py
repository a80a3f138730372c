"""One patient's expert: a trained network, or the one severity that the patient ever had; and how it is kept.

A patient whose severity never changes teaches nothing but that number, and a network would only come near it: such an
expert is the number itself. An expert is as private as the stay it learned: it does not leave the hospital.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import RecordsError, StudyError
from concilium.experts.expert_task import ExpertTask
from concilium.experts.network import Weights, open_network
from concilium.experts.patient_windows import LaidOut, lay_out
from concilium.records.series import Series


@dataclass(frozen=True, eq=False)
class Expert:
    """`weights` of its network, or None and a `constant`; `septic`: its patient had the outcome."""

    weights: Weights | None
    constant: float
    septic: bool


class _KeptExpert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expert as it is written: name, shape and little-endian numbers of each array."""

    constant: float
    septic: bool
    arrays: list[tuple[str, list[int], bytes]] | None


def write_expert(expert: Expert) -> bytes:
    arrays = None
    if expert.weights is not None:
        arrays = [
            (name, list(values.shape), np.ascontiguousarray(values, dtype="<f8").tobytes())
            for name, values in expert.weights.items()
        ]
    return msgspec.msgpack.encode(_KeptExpert(expert.constant, expert.septic, arrays))


def read_expert(data: bytes) -> Expert:
    """The expert in these bytes; RecordsError where there is none."""
    try:
        kept = msgspec.msgpack.decode(data, type=_KeptExpert)
        weights = None
        if kept.arrays is not None:
            weights = {
                name: np.frombuffer(raw, dtype="<f8").reshape(shape) for name, shape, raw in kept.arrays
            }
    except (msgspec.DecodeError, ValueError) as error:
        raise RecordsError(f"this is no expert ({error})") from None
    return Expert(weights, kept.constant, kept.septic)


PATIENTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class ExpertEnsemble:
    """`ExpertEnsemble(task, experts).predict(series)`: the severity at every step of every stay.

    Each expert's answer is held to [0, B], and averaged with weights that sum to one. Nothing here protects
    anybody: a hospital computes it for itself. What may leave is in averaging.py. docs/methods.md, section 8.2.
    """

    task: ExpertTask
    experts: Sequence[Expert]

    def __len__(self) -> int:
        return len(self.experts)

    def take(self, members: Iterable[int]) -> ExpertEnsemble:
        return ExpertEnsemble(self.task, [self.experts[place] for place in members])

    @property
    def septic(self) -> NDArray[np.bool_]:
        return np.array([expert.septic for expert in self.experts], dtype=np.bool_)

    def tell(self, stays: Series | LaidOut) -> NDArray[np.float32]:
        """What each expert says, held to [0, B]: [expert, cell], cells as in `series.stays`."""
        laid = stays if isinstance(stays, LaidOut) else lay_out(stays, self.task, labelled=False)
        told = np.zeros((len(self.experts), len(laid.values)), dtype=np.float32)
        for members, cells, values in self._run(laid):
            told[np.ix_(members, cells)] = values
        for place, expert in enumerate(self.experts):
            if expert.weights is None:
                told[place] = expert.constant
        return np.clip(told, 0, self.task.bound, out=told)

    def _run(self, laid: LaidOut) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]]:
        learned = [expert.weights for expert in self.experts if expert.weights is not None]
        if not learned:
            return
        trained = np.flatnonzero([expert.weights is not None for expert in self.experts])
        network = open_network(self.task.network, len(self.task.variables))
        for first in range(0, len(laid), PATIENTS_AT_ONCE):
            patients = np.arange(first, min(first + PATIENTS_AT_ONCE, len(laid)))
            windows, places, cells = laid.gather(patients)
            told = network.run(learned, windows)
            yield trained, cells, told.reshape(len(learned), -1)[:, places]

    def predict(self, series: Series | LaidOut, weights: ArrayLike | None = None) -> NDArray[np.float64]:
        """The severity of every cell: the average with these weights, one for each expert (None: uniform)."""
        return average(self.tell(series), weights)


def average(told: NDArray[np.floating], weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """The weighted average over experts of [expert, cell]; StudyError unless the weights are one for each, sum 1."""
    if not len(told):
        raise StudyError("an ensemble without an expert says nothing")
    if weights is None:
        uniform: NDArray[np.float64] = told.mean(axis=0, dtype=np.float64)
        return uniform
    given = np.asarray(weights, dtype=np.float64)
    if given.shape not in ((len(told),), told.shape):
        raise StudyError(f"there is one weight for each of the {len(told)} experts; got {given.shape}")
    sums = given.sum(axis=0)
    if not np.allclose(sums, 1.0, rtol=0, atol=1e-9):
        raise StudyError(f"the weights of an ensemble must sum to 1; got {float(np.ravel(sums)[0]):.6g}")
    spread: NDArray[np.float64] = (given @ told) if given.ndim == 1 else (given * told).sum(axis=0)
    return spread
