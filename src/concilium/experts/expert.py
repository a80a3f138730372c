"""One patient's expert: a trained network, or the one severity that the patient ever had; how it is trained and kept.

A patient whose severity never changes teaches nothing but that number, and a network would only come near it: such an
expert is the number itself. An expert is as private as the stay it learned: it does not leave the hospital.

The experts of many patients are trained each from its own windows, a few at a time, and never twice. An expert is kept
under the digest of the task and of all that it learns from, so that training goes on where it was interrupted, and so
that a patient who comes later costs one expert. Which thread trains it, and beside whom, changes nothing.
docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import MessageError, RecordsError, StudyError
from concilium.experts.expert_task import ExpertTask
from concilium.experts.network import Network, Weights, open_network
from concilium.experts.patient_windows import LaidOut, Windows, lay_out
from concilium.protocol.cohort import SiteCache
from concilium.protocol.sums import Array, pack, unpack
from concilium.records.series import Series


@dataclass(frozen=True, eq=False)
class Expert:
    """`weights` of its network, or None and a `constant`; `septic`: its patient had the outcome."""

    weights: Weights | None
    constant: float
    septic: bool


class _KeptExpert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expert as it is written."""

    constant: float
    septic: bool
    arrays: dict[str, Array] | None


def _write_expert(expert: Expert) -> bytes:
    arrays = None
    if expert.weights is not None:
        arrays = {name: pack(values) for name, values in expert.weights.items()}
    return msgspec.msgpack.encode(_KeptExpert(expert.constant, expert.septic, arrays))


def _read_expert(data: bytes) -> Expert:
    """The expert in these bytes; RecordsError where there is none."""
    try:
        kept = msgspec.msgpack.decode(data, type=_KeptExpert)
        weights = None
        if kept.arrays is not None:
            weights = {name: unpack(array).astype(np.float64) for name, array in kept.arrays.items()}
    except (msgspec.DecodeError, MessageError) as error:
        raise RecordsError(f"this is no expert ({error})") from None
    return Expert(weights, kept.constant, kept.septic)


PATIENTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class ExpertEnsemble:
    """`ExpertEnsemble(task, experts).predict(series)`: the severity at every step of every stay.

    Each expert's answer is held to [0, B], and averaged with weights that sum to one. Nothing here protects
    anybody: a hospital computes it for itself. What may leave is in expert_answers.py. docs/methods.md, section 8.2.
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
        answers = np.zeros((len(self.experts), len(laid.values)), dtype=np.float32)
        for members, cells, values in self._run(laid):
            answers[np.ix_(members, cells)] = values
        for place, expert in enumerate(self.experts):
            if expert.weights is None:
                answers[place] = expert.constant
        return np.clip(answers, 0, self.task.bound, out=answers)

    def _run(self, laid: LaidOut) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]]:
        learned = [expert.weights for expert in self.experts if expert.weights is not None]
        if not learned:
            return
        trained = np.flatnonzero([expert.weights is not None for expert in self.experts])
        network = open_network(self.task.network, len(self.task.variables))
        for first in range(0, len(laid), PATIENTS_AT_ONCE):
            patients = np.arange(first, min(first + PATIENTS_AT_ONCE, len(laid)))
            windows, places, cells = laid.gather(patients)
            answers = network.run(learned, windows)
            yield trained, cells, answers.reshape(len(learned), -1)[:, places]

    def predict(self, series: Series | LaidOut, weights: ArrayLike | None = None) -> NDArray[np.float64]:
        """The severity of every cell: the average with these weights, one for each expert (None: uniform)."""
        return average(self.tell(series), weights)


def average(answers: NDArray[np.floating], weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """The weighted average over experts of [expert, cell]; StudyError unless the weights are one for each, sum 1."""
    if not len(answers):
        raise StudyError("an ensemble without an expert says nothing")
    if weights is None:
        uniform: NDArray[np.float64] = answers.mean(axis=0, dtype=np.float64)
        return uniform
    given = np.asarray(weights, dtype=np.float64)
    if given.shape not in ((len(answers),), answers.shape):
        raise StudyError(f"there is one weight for each of the {len(answers)} experts; got {given.shape}")
    sums = given.sum(axis=0)
    if not np.allclose(sums, 1.0, rtol=0, atol=1e-9):
        raise StudyError(f"the weights of an ensemble must sum to 1; got {float(np.ravel(sums)[0]):.6g}")
    return (given @ answers) if given.ndim == 1 else (given * answers).sum(axis=0)


WORKERS = 2

Report = Callable[[int, int], None]


def train_experts(
    laid: LaidOut,
    patients: Sequence[int],
    cache: SiteCache | None = None,
    *,
    public: LaidOut | None = None,
    workers: int = WORKERS,
    on_progress: Report | None = None,
) -> list[Expert]:
    """The experts of these patients, in order; `on_progress` is called with how many are ready, and of how many.

    `public` are the stays that experts are told from, where their kind compares.
    """
    cache, report = cache or SiteCache(), on_progress or (lambda ready, of: None)
    task = laid.task
    network = open_network(task.network, len(task.variables))
    beside = b""
    if network.compares:
        if public is None:
            raise StudyError(f"experts of the kind {task.network.kind!r} need public stays to be told from")
        windows, _, _ = public.gather(np.arange(len(public)))
        network.against(windows, task.bound)
        beside = windows.digest.encode()
    experts: dict[int, Expert] = {}
    missing: list[tuple[int, str, Windows]] = []
    for place, patient in enumerate(patients):
        windows = laid.cut(patient)
        name = _name_expert(task, windows, beside)
        expert = _find_expert(windows, cache, name)
        if expert is None:
            missing.append((place, name, windows))
        else:
            experts[place] = expert
    report(len(experts), len(patients))

    def train(one: tuple[int, str, Windows]) -> tuple[int, Expert]:
        place, name, windows = one
        expert = _train_one(network, windows)
        cache.keep(name, _write_expert(expert))
        return place, expert

    workers = min(workers, os.cpu_count() or 1) if network.shares_a_process else 1
    with ThreadPoolExecutor(workers) as pool:
        for place, expert in pool.map(train, missing):
            experts[place] = expert
            report(len(experts), len(patients))
    return [experts[place] for place in range(len(patients))]


def _find_expert(windows: Windows, cache: SiteCache, name: str) -> Expert | None:
    """The expert that needs no training: a constant, or one that was trained before and can be read."""
    if windows.constant is not None:
        return Expert(None, windows.constant, windows.constant > 0)
    kept = cache.find(name)
    try:
        return None if kept is None else _read_expert(kept)
    except RecordsError:
        return None


def _name_expert(task: ExpertTask, windows: Windows, beside: bytes = b"") -> str:
    """What it is kept under: by the network, the bound and the windows, which hold all the rest, and public stays."""
    content = msgspec.json.encode((task.network, task.bound, windows.digest)) + beside
    return f"expert-{hashlib.sha256(content).hexdigest()}"


def _train_one(network: Network, windows: Windows) -> Expert:
    return Expert(network.train(windows), 0.0, bool(np.nanmax(windows.targets) > 0))
