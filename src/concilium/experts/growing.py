"""Growing an ensemble: the paper's greedy choice of experts, and weights for those chosen (its algorithm 2).

What is looked at are errors on validation patients, whose covariance is computed once: C[i, j] is the mean of the
product of two experts' errors, the mean squared error of weights w is w' C w. An expert is added exactly where the
uniform error of the ensemble with it is below that without it; those whose patient had the outcome come first, each
group by its own error. Who is chosen depends on candidates and validation patients alike, so that noise on a grown
ensemble protects a member only on condition of that choice. docs/methods.md, section 8.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError

Reals = NDArray[np.float64]


def find_covariance(told: NDArray[np.floating], truth: Reals) -> Reals:
    """C of [expert, cell] answers over the cells whose severity is known."""
    known = ~np.isnan(truth)
    if not known.any():
        raise StudyError("an ensemble is grown on validation patients, and none of them has a known severity")
    errors = told[:, known].astype(np.float64) - truth[known]
    covariance: Reals = errors @ errors.T / errors.shape[1]
    return covariance


@dataclass
class Growth:
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
        grown: Reals = (self._total + 2 * self._shared[candidates] + own) / size**2
        return grown

    def add(self, candidate: int) -> None:
        self.errors.append(float(self.would_be(np.array([candidate]))[0]))
        self._total += 2 * float(self._shared[candidate]) + float(self.covariance[candidate, candidate])
        self._shared += self.covariance[candidate]
        self.members.append(int(candidate))

    def grow(self) -> Growth:
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


def weigh_uniformly(members: int) -> Reals:
    return np.full(members, 1.0 / members)


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


def weigh_by_history(told: NDArray[np.floating], truth: Reals, starts: NDArray[np.integer]) -> Reals:
    """For every cell [expert, cell] how well each expert told the earlier steps of the same stay: in proportion to
    1 + the sum of 1 / (1 + error^2) over known steps before. Weights begin at 1, or the first step would be 0/0.

    Whoever uses them knows the truth of those steps; never released with a claim (docs/methods.md, section 8.4).
    """
    gains = np.where(np.isnan(truth), 0.0, 1.0 / (1.0 + (told - np.nan_to_num(truth)) ** 2))
    before = np.cumsum(gains, axis=1, dtype=np.float64) - gains
    begins = np.repeat(np.asarray(starts[:-1]), np.diff(starts))
    weights: Reals = 1.0 + before - before[:, begins]
    weights /= weights.sum(axis=0)
    return weights


def list_sizes(septic: Sequence[bool] | NDArray[np.bool_]) -> tuple[int, int, int]:
    """How many experts there are, without the outcome and with it."""
    flags = np.asarray(septic, dtype=np.bool_)
    return len(flags), int((~flags).sum()), int(flags.sum())
