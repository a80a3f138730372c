"""The experts that a site answers for: so many of its patients, chosen by a hash of their own stays, or grown.

Claim. Whether a patient's expert answers depends on the patient's own stay, the study's public seed and, by rank, on
who else is there: one patient who comes or goes brings at most one expert in and puts at most one out. Experts are
trained once for a hospital and a task, and kept on its shelf; nothing of them leaves. docs/methods.md, sections 8.3 and
8.4.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit
from concilium.experts.expert import Expert
from concilium.experts.expert_ensemble import ExpertEnsemble
from concilium.experts.expert_task import ExpertTask
from concilium.experts.growing import Growth, find_covariance
from concilium.experts.patient_windows import LaidOut, lay_out
from concilium.experts.training import train_experts
from concilium.protocol.cohort import Cohort
from concilium.records.patients import PatientPart
from concilium.records.series import Series

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

REMEMBERED = 4
Make = Callable[[LaidOut], ExpertEnsemble]
VALIDATION = 3  # one in so many patients is for validation where an ensemble is grown

_lock = threading.RLock()
LAST_ENSEMBLES: WeakKeyDictionary[PatientPart, OrderedDict[Hashable, ExpertEnsemble]] = WeakKeyDictionary()


def open_unselected(cohort: Cohort, task: ExpertTask, size: int) -> ExpertEnsemble:
    """The experts of the patients who come first by their hash, at most so many."""

    def make(laid: LaidOut) -> ExpertEnsemble:
        chosen = rank(laid)[:size].tolist()
        if len(chosen) < size:
            log.warning("the study counts on %d experts here, and there are %d", size, len(chosen))
        return ExpertEnsemble(task, train(cohort, laid, chosen))

    return _open(cohort, task, ("unselected", size), make)


def open_grown(cohort: Cohort, task: ExpertTask, size: int, limit: int | None) -> ExpertEnsemble:
    """The ensemble grown from at most so many candidates, on other patients; DoesNotFit where there are too few."""

    def make(laid: LaidOut) -> ExpertEnsemble:
        order = rank(laid)
        validation = order[: len(order) // VALIDATION]
        candidates = order[len(validation) :][:size]
        known = ~np.isnan(laid.severity)
        cells = np.concatenate(
            [np.arange(laid.starts[one], laid.starts[one + 1]) for one in validation] or [np.zeros(0, int)]
        )
        if not len(candidates) or not known[cells].any():
            raise DoesNotFit("this hospital has too few patients to grow an ensemble of experts")
        ensemble = ExpertEnsemble(task, train(cohort, laid, candidates.tolist()))
        told, truth = ensemble.tell(take_stays(laid, validation)), laid.severity[cells]
        growth = Growth(find_covariance(told, truth), ensemble.septic, limit).grow()
        log.info("an ensemble of %d experts was grown from %d", len(growth.members), len(ensemble))
        return ensemble.take(growth.members)

    return _open(cohort, task, ("grown", size, limit), make)


def rank(laid: LaidOut) -> NDArray[np.intp]:
    """The patients in an order that each one's own stay and the public seed decide."""
    seed = f"concilium/experts@1 {laid.task.network.seed} ".encode()
    digests = []
    for first, last in zip(laid.starts[:-1].tolist(), laid.starts[1:].tolist(), strict=True):
        content = hashlib.sha256(seed)
        content.update(laid.values[first:last].tobytes())
        content.update(laid.severity[first:last].tobytes())
        digests.append(content.digest())
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.intp)


def train(cohort: Cohort, laid: LaidOut, patients: list[int]) -> list[Expert]:
    """Their experts, from the shelf or trained now; the hospital's own log tells how far it is."""
    tenth = max(1, len(patients) // 10)

    def tell(ready: int, of: int) -> None:
        if ready % tenth == 0 or ready == of:
            log.info("%d of %d experts are trained", ready, of)

    return train_experts(laid, patients, cohort.view.shelf, on_progress=tell)


def take_stays(laid: LaidOut, patients: NDArray[np.intp]) -> LaidOut:
    """Some of the stays, in this order."""
    lengths = np.diff(laid.starts)[patients]
    cells = np.concatenate(
        [np.arange(laid.starts[one], laid.starts[one + 1]) for one in patients] or [np.zeros(0, int)]
    )
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return LaidOut(laid.task, laid.values[cells], laid.severity[cells], starts)


def _open(cohort: Cohort, task: ExpertTask, way: tuple[Hashable, ...], make: Make) -> ExpertEnsemble:
    part, rows = cohort.view.find_part("series"), cohort.population.rows
    key = (way, task, hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int64).tobytes()).digest())
    with _lock:
        own = LAST_ENSEMBLES.setdefault(part, OrderedDict())
        ensemble = own.get(key)
        if ensemble is None:
            series = cohort.take_part("series")
            assert isinstance(series, Series)
            ensemble = own[key] = make(lay_out(series, task))
            while len(own) > REMEMBERED:
                own.popitem(last=False)
        own.move_to_end(key)
        return ensemble
