"""The experts that a site answers for: of patients whose own outcome changes, drawn by a hash of their own stays; or
grown.

Claim. An expert whose patient's severity never changes is a constant and teaches nothing, so that patients are drawn by
their own outcome: those whose severity changes, or those first.
- Drawn by a share (`open_drawn`): a patient answers if the severity of the patient's own stay changes, and a hash of
  that stay and a public seed is below the share. Nobody else has a say in it: one patient who comes or goes brings or
  takes one expert.
- Drawn by rank (`open_ranked`): the first so many by (severity changes, hash). One patient who comes, goes or is
  another brings at most one expert in and puts at most one out.
Experts are trained once for a hospital and a task, and kept in its cache; nothing of them leaves. docs/methods.md,
sections 8.3 and 8.4.

Growing is the paper's greedy choice of experts (its algorithm 2). It looks at errors on validation patients, whose
covariance is computed once: C[i, j] is the mean of the product of two experts' errors, the mean squared error of
weights w is w' C w. An expert is added exactly where the uniform error of the ensemble with it is below that
without it; those whose patient had the outcome come first, each group by its own error. Who is chosen depends on
candidates and validation patients alike, so that noise on a grown ensemble protects a member only on condition of
that choice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, StudyError
from concilium.experts.expert import Expert, ExpertEnsemble, average, train_experts
from concilium.experts.expert_task import ExpertTask
from concilium.experts.patient_windows import LaidOut, check_target, lay_out
from concilium.protocol.cohort import Cohort, LastResults
from concilium.records.series import Series

Reals = NDArray[np.float64]


def find_covariance(answers: NDArray[np.floating], truth: Reals) -> Reals:
    """C of [expert, cell] answers over the cells whose severity is known."""
    known = ~np.isnan(truth)
    if not known.any():
        raise StudyError("an ensemble is grown on validation patients, and none of them has a known severity")
    errors = answers[:, known].astype(np.float64) - truth[known]
    covariance: Reals = errors @ errors.T / errors.shape[1]
    return covariance


@dataclass
class ExpertGrowth:
    """A growing ensemble: `members` in the order in which they came, `errors` the uniform error after each."""

    covariance: Reals
    septic: NDArray[np.bool_]
    limit: int | None = None
    members: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    _total: float = 0.0
    _shared: Reals = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        size = len(self.covariance)
        if self.covariance.shape != (size, size) or self.septic.shape != (size,) or not size:
            raise StudyError(
                "growing needs at least one candidate, with a row and a column of the covariance each"
            )
        if self.limit is not None and self.limit < 1:
            raise StudyError(f"an ensemble has at least one expert; got a limit of {self.limit}")
        self._shared = np.zeros(size)  # with all members together

    @property
    def error(self) -> float:
        """The mean squared error of the uniform ensemble; infinite while it is empty."""
        return self.errors[-1] if self.errors else float("inf")

    @property
    def order(self) -> NDArray[np.intp]:
        """The candidates as they are looked at."""
        return np.lexsort((np.diag(self.covariance), ~self.septic))

    def would_be(self, candidates: NDArray[np.intp]) -> Reals:
        """The error with each of these candidates added."""
        size = len(self.members) + 1
        own = np.diag(self.covariance)[candidates]
        return (self._total + 2 * self._shared[candidates] + own) / size**2

    def add(self, candidate: int) -> None:
        self.errors.append(float(self.would_be(np.array([candidate]))[0]))
        self._total += 2 * float(self._shared[candidate]) + float(self.covariance[candidate, candidate])
        self._shared += self.covariance[candidate]
        self.members.append(int(candidate))

    def grow(self) -> ExpertGrowth:
        """Add experts until none of the rest lowers the error, or the limit is reached."""
        order = self.order
        left = np.ones(len(order), dtype=np.bool_)
        left[np.isin(order, self.members)] = False
        while left.any() and (self.limit is None or len(self.members) < self.limit):
            candidates = order[left]
            better = np.flatnonzero(self.would_be(candidates) < self.error)
            if not len(better):
                break
            chosen = int(candidates[better[0]])
            self.add(chosen)
            left[order == chosen] = False
        return self

    def join(self, row: Reals, own_error: float, septic: bool) -> bool:
        """A new patient's expert, with its covariances to all candidates: taken in if that lowers the error.

        Nobody is trained again and nobody leaves.
        """
        size = len(self.covariance)
        wider = np.empty((size + 1, size + 1))
        wider[:size, :size], wider[size, :size], wider[:size, size] = self.covariance, row, row
        wider[size, size] = own_error
        self.covariance, self.septic = wider, np.append(self.septic, septic)
        self._shared = np.append(self._shared, row[self.members].sum())
        full = self.limit is not None and len(self.members) >= self.limit
        if full or not self.would_be(np.array([size]))[0] < self.error:
            return False
        self.add(size)
        return True


def weigh_optimally(covariance: Reals) -> Reals:
    """C^-1 1 / (1' C^-1 1), the weights of the least error; of the shortest length where several are. They may be
    negative and depend on everybody: reported without any claim, never released."""
    ones = np.ones(len(covariance))
    raw = np.linalg.lstsq(covariance, ones, rcond=1e-10)[0]
    total = raw.sum()
    if not np.isfinite(total) or abs(total) < 1e-12:
        raise StudyError("these experts have no optimal weights: their errors do not tell them apart")
    weights: Reals = raw / total
    return weights


def weigh_by_history(answers: NDArray[np.floating], truth: Reals, starts: NDArray[np.integer]) -> Reals:
    """For every cell [expert, cell] how well each expert told the earlier steps of the same stay: in proportion to
    1 + the sum of 1 / (1 + error^2) over known steps before. Weights begin at 1, or the first step would be 0/0.

    Whoever uses them knows the truth of those steps; never released with a claim (docs/methods.md, section 8.4).
    """
    gains = np.where(np.isnan(truth), 0.0, 1.0 / (1.0 + (answers - np.nan_to_num(truth)) ** 2))
    before = np.cumsum(gains, axis=1, dtype=np.float64) - gains
    begins = np.repeat(np.asarray(starts[:-1]), np.diff(starts))
    weights: Reals = 1.0 + before - before[:, begins]
    weights /= weights.sum(axis=0)
    return weights


log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

Make = Callable[[LaidOut], ExpertEnsemble]
VALIDATION = 3  # one in so many patients is for validation where an ensemble is grown

LAST_ENSEMBLES = LastResults[ExpertEnsemble](4)


def open_ranked(cohort: Cohort, task: ExpertTask, size: int) -> ExpertEnsemble:
    """The experts of the patients who come first by their own outcome and hash, at most so many."""

    def make(laid: LaidOut) -> ExpertEnsemble:
        chosen = _rank(laid)[:size].tolist()
        if len(chosen) < size:
            log.warning("the study counts on %d experts here, and there are %d", size, len(chosen))
        return ExpertEnsemble(task, _train(cohort, laid, chosen))

    return _open(cohort, task, ("ranked", size), make)


THOUSAND = 1000


def open_drawn(cohort: Cohort, task: ExpertTask, share: int, public: LaidOut, digest: str) -> ExpertEnsemble:
    """The experts of so many in a thousand of the patients whose severity changes; `digest` is that of `public`."""

    def make(laid: LaidOut) -> ExpertEnsemble:
        below = (share << 64) // THOUSAND
        drawn = [int.from_bytes(one[:8], "little") < below for one in _hash_stays(laid)]
        chosen = np.flatnonzero(laid.changes & np.array(drawn, dtype=np.bool_)).tolist()
        log.info("%d of %d patients have an expert", len(chosen), len(laid))
        return ExpertEnsemble(task, _train(cohort, laid, chosen, public))

    return _open(cohort, task, ("drawn", share, digest), make)


def count_informative(cohort: Cohort, task: ExpertTask) -> tuple[int, int]:
    """How many patients have a severity that changes, and how many there are."""
    laid = lay_out(_find_series(cohort), task)
    return int(laid.changes.sum()), len(laid)


def open_grown(cohort: Cohort, task: ExpertTask, size: int, limit: int | None) -> GrownEnsemble:
    """The ensemble grown from at most so many candidates, on other patients; DoesNotFit where there are too few."""

    def make(laid: LaidOut) -> GrownEnsemble:
        check_target(_find_series(cohort), task)
        grown = grow_ensemble(laid, size, limit, lambda patients: _train(cohort, laid, patients))
        log.info(
            "an ensemble of %d experts was grown from %d", len(grown.growth.members), len(grown.candidates)
        )
        return grown

    return LAST_GROWN.find(
        cohort.view.find_part("series"),
        (size, limit, task, cohort.digest),
        lambda: make(lay_out(_find_series(cohort), task)),
    )


@dataclass(eq=False)
class GrownEnsemble:
    """The `candidates` of a hospital, which of them are members (`growth`), and the patients who judged them."""

    candidates: ExpertEnsemble
    growth: ExpertGrowth
    validation: LaidOut

    @property
    def members(self) -> ExpertEnsemble:
        return self.candidates.take(self.growth.members)

    def weigh(
        self, way: str, answers: NDArray[np.floating], truth: Reals, starts: NDArray[np.integer]
    ) -> Reals | None:
        """The weights of the members' answers [member, cell]; None for uniform ones. By history they need the truth."""
        if way == "optimal":
            members = self.growth.members
            return weigh_optimally(self.growth.covariance[np.ix_(members, members)])
        return weigh_by_history(answers, truth, starts) if way == "history" else None

    def predict(self, stays: Series, weights: str = "uniform") -> Reals:
        """The severity of every cell, for the hospital's own eyes: nothing protects anybody."""
        laid = lay_out(stays, self.candidates.task, labelled=weights == "history")
        answers = self.members.tell(laid)
        return average(answers, self.weigh(weights, answers, laid.severity, laid.starts))

    def join(self, patient: Series) -> bool:
        """Train the expert of a new patient and take it in if that lowers the error; nobody is trained again."""
        laid = lay_out(patient, self.candidates.task)
        if len(laid) != 1:
            raise StudyError(f"one patient joins at a time; got {len(laid)}")
        expert = train_experts(laid, [0])[0]
        truth = self.validation.severity
        known = ~np.isnan(truth)
        errors = [
            one.tell(self.validation)[:, known].astype(np.float64) - truth[known]
            for one in (self.candidates, ExpertEnsemble(self.candidates.task, [expert]))
        ]
        row = errors[0] @ errors[1][0] / known.sum()
        self.candidates = ExpertEnsemble(self.candidates.task, [*self.candidates.experts, expert])
        return self.growth.join(row, float(errors[1][0] @ errors[1][0] / known.sum()), expert.septic)


LAST_GROWN = LastResults[GrownEnsemble](4)


def grow_ensemble(
    laid: LaidOut, size: int, limit: int | None, train: Callable[[list[int]], list[Expert]] | None = None
) -> GrownEnsemble:
    """An ensemble of at most so many candidates, judged on one in three of the patients, with and without change."""
    order = _rank(laid)
    validation = np.sort(order[::VALIDATION]) if len(order) > 1 else order[:0]
    candidates = order[~np.isin(order, validation)][:size]
    held = _take_stays(laid, validation)
    if not len(candidates) or np.isnan(held.severity).all():
        raise DoesNotFit("this hospital has too few patients to grow an ensemble of experts")
    train = train or (lambda patients: train_experts(laid, patients))
    ensemble = ExpertEnsemble(laid.task, train(candidates.tolist()))
    covariance = find_covariance(ensemble.tell(held), held.severity)
    return GrownEnsemble(ensemble, ExpertGrowth(covariance, ensemble.septic, limit).grow(), held)


def _rank(laid: LaidOut) -> NDArray[np.intp]:
    """The patients in an order that each one's own stay and the public seed decide: those who change first."""
    digests, changes = _hash_stays(laid), laid.changes
    return np.array(
        sorted(range(len(digests)), key=lambda one: (not changes[one], digests[one])), dtype=np.intp
    )


def _hash_stays(laid: LaidOut) -> list[bytes]:
    """For each patient the hash of its own stay, under the public seed."""
    seed = f"concilium/experts@1 {laid.task.network.seed} ".encode()
    digests = []
    for first, last in zip(laid.starts[:-1].tolist(), laid.starts[1:].tolist(), strict=True):
        content = hashlib.sha256(seed)
        content.update(laid.values[first:last].tobytes())
        content.update(laid.severity[first:last].tobytes())
        digests.append(content.digest())
    return digests


def _train(cohort: Cohort, laid: LaidOut, patients: list[int], public: LaidOut | None = None) -> list[Expert]:
    """Their experts, from the cache or trained now; the hospital's own log tells how far it is."""
    tenth = max(1, len(patients) // 10)

    def tell(ready: int, of: int) -> None:
        if ready % tenth == 0 or ready == of:
            log.info("%d of %d experts are trained", ready, of)

    return train_experts(laid, patients, cohort.view.cache, public=public, on_progress=tell)


def _take_stays(laid: LaidOut, patients: NDArray[np.intp]) -> LaidOut:
    """Some of the stays, in this order."""
    lengths = np.diff(laid.starts)[patients]
    cells = np.concatenate(
        [np.arange(laid.starts[one], laid.starts[one + 1]) for one in patients] or [np.zeros(0, int)]
    )
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return LaidOut(laid.task, laid.values[cells], laid.severity[cells], starts)


def _find_series(cohort: Cohort) -> Series:
    series = cohort.take_part("series")
    assert isinstance(series, Series)
    return series


def _open(cohort: Cohort, task: ExpertTask, way: tuple[Hashable, ...], make: Make) -> ExpertEnsemble:
    def make_from_series() -> ExpertEnsemble:
        return make(lay_out(_find_series(cohort), task))

    part = cohort.view.find_part("series")
    return LAST_ENSEMBLES.find(part, (way, task, cohort.digest), make_from_series)
