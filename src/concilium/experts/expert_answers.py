"""What ensembles are asked: about public stays, about one step of a stay, and (grown ones) without a claim.

Claims. `experts.labels` and `experts.step`: protected is every patient of every hospital, from the house and as many
colluding hospitals as the manifest tolerates, at the price that is charged; one patient more, less or in place of
another moves one expert in the sum (site_experts.py), and that by at most B in each step asked about (averaging.py).
`experts.grown`: no claim that a ledger could hold; where the study asks for `conditional` noise, members are protected
at that epsilon on condition of the choice. docs/methods.md, section 8.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, MissingExtra
from concilium.experts.averaging import (
    BINARY_PLACES,
    GRID,
    find_sensitivity,
    find_squared_sensitivity,
    sum_on_grid,
)
from concilium.experts.expert import ExpertEnsemble
from concilium.experts.expert_task import ExpertTask, check_task
from concilium.experts.network import open_network
from concilium.experts.patient_windows import PublicStays
from concilium.experts.site_experts import open_grown, open_unselected
from concilium.privacy.accounting import rho_for_epsilon, sigma_squared_for
from concilium.privacy.mechanisms import add_gaussian
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, PRIVATE, Sensitivity, Summed, is_positive
from concilium.protocol.work import CALL, SLOWEST_OPERATION, Workload

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_EXPERTS = 10_000
TRAINING_TAKES = 7200.0  # seconds, at most
# For each patient: to lay out and hash a stay; windows that a stay is taken to have.
READ_STAY, STAY_BYTES, ASSUMED_WINDOWS = 50_000, 20_000, 10
SERIES = frozenset({"series"})
BESIDES = 3
"""Numbers beside the answers of a grown ensemble: one for the hospital, its size, and how many had the outcome."""


class AskExpertLabels(Summed, frozen=True, kw_only=True):
    """What do experts of so many patients of each hospital, drawn before anybody knows what they will say, tell of
    public stays, summed, with noise? Of one step of one stay the noise may be Laplace."""

    kind: ClassVar[str] = "experts.labels"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: ExpertTask
    experts: int
    stays: PublicStays

    @property
    def reads(self) -> frozenset[str]:
        return SERIES

    @property
    def patience(self) -> float:
        return TRAINING_TAKES

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "experts": self.experts, "asked_about": self.stays.digest}

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stays.steps,)

    @property
    def sensitivity(self) -> Sensitivity:
        squared = find_squared_sensitivity(self.task.bound, self.stays.steps)
        return Sensitivity(squared, find_sensitivity(self.task.bound) if self.stays.steps == 1 else None)

    @property
    def binary_places(self) -> int:
        return BINARY_PLACES

    @property
    def largest(self) -> int:
        return self.experts * find_sensitivity(self.task.bound)

    def check(self, release: Release) -> None:
        _check_asked(self.task, self.experts, self.stays)

    def estimate(self, patients: int, columns: int) -> Workload:
        return _estimate_experts(self.task, self.experts, self.stays, patients)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        laid, asked = self.stays.open(self.task)
        told = open_unselected(cohort, self.task, self.experts).tell(laid)
        return sum_on_grid(told[:, asked], self.task.bound)


class AskGrownExperts(Summed, frozen=True, kw_only=True):
    """What does the grown ensemble of each hospital say of public stays on average, how large is it, and how many of
    its experts' patients had the outcome?

    `conditional` is the epsilon of noise that the hospital adds to its own average, at `delta`, or empty.
    """

    kind: ClassVar[str] = "experts.grown"
    releases: ClassVar[frozenset[str]] = PLAIN

    task: ExpertTask
    experts: int
    limit: int | None
    stays: PublicStays
    conditional: str = ""
    delta: str = ""

    @property
    def reads(self) -> frozenset[str]:
        return SERIES

    @property
    def patience(self) -> float:
        return TRAINING_TAKES

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {
            "task": self.task,
            "experts": self.experts,
            "limit_agreed": (self.limit, self.conditional, self.delta),
            "asked_about": self.stays.digest,
        }

    @property
    def once(self) -> tuple[str, str] | None:
        if not self.conditional:
            return None
        content = hashlib.sha256(msgspec.json.encode((self.query, self.task, self.experts, self.limit)))
        return self.conditional, f"{content.hexdigest()} {self.stays.digest}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stays.steps + BESIDES,)

    @property
    def binary_places(self) -> int:
        return BINARY_PLACES

    @property
    def largest(self) -> int:
        return max(self.experts, 64 * self.task.bound) * GRID

    def check(self, release: Release) -> None:
        _check_asked(self.task, self.experts, self.stays)
        if self.limit is not None and self.limit < 1:
            raise MessageError("a grown ensemble has at least one expert")
        if self.conditional and not (is_positive(self.conditional) and _is_delta(self.delta)):
            raise MessageError(
                "conditional noise has an epsilon such as '1/2', and a delta such as '1/100000'"
            )

    def estimate(self, patients: int, columns: int) -> Workload:
        grown = _estimate_experts(self.task, self.experts, self.stays, patients)
        told = Workload(20 * self.experts * patients * self.task.steps, 64 * self.experts * patients)
        return grown + told

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        laid, asked = self.stays.open(self.task)
        ensemble = open_grown(cohort, self.task, self.experts, self.limit)
        average = self.average(ensemble, ensemble.tell(laid)[:, asked])
        besides = [1, len(ensemble), int(ensemble.septic.sum())]
        return np.concatenate([average, np.array(besides, dtype=np.int64) * GRID])

    def average(self, ensemble: ExpertEnsemble, told: NDArray[np.float32]) -> NDArray[np.int64]:
        """In steps of the grid, with the noise that was asked for, within what a sum can hold."""
        sums, bound = sum_on_grid(told, self.task.bound), self.task.bound
        if self.conditional:
            rho = rho_for_epsilon(self.conditional, self.delta)
            sums = add_gaussian(sums, sigma_squared_for(rho, find_squared_sensitivity(bound, sums.size)))
        average = np.rint(sums / len(ensemble)).astype(np.int64)
        return np.clip(average, -self.largest, self.largest)


def _is_delta(delta: str) -> bool:
    return is_positive(delta) and Fraction(delta) < 1


def _check_asked(task: ExpertTask, experts: int, stays: PublicStays) -> None:
    """MessageError unless the question is of bearable size, about a network that is there."""
    check_task(task)
    if not 1 <= experts <= MOST_EXPERTS:
        raise MessageError(f"a hospital answers with 1 to {MOST_EXPERTS} experts; got {experts}")
    try:
        open_network(task.network, len(task.variables))
    except MissingExtra as error:
        raise MessageError(str(error)) from None
    stays.open(task)


def _estimate_experts(task: ExpertTask, experts: int, stays: PublicStays, patients: int) -> Workload:
    """To lay out all stays, to train so many experts, and to have them answer."""
    network = open_network(task.network, len(task.variables))
    training = network.estimate_seconds(ASSUMED_WINDOWS, task.steps) / SLOWEST_OPERATION
    cells, names = stays.inputs.shape[0], len(task.variables)
    windows = 1 + 2 * cells // task.steps
    running = network.estimate_seconds(windows, task.steps) / task.network.epochs / SLOWEST_OPERATION
    held = 12 * names * cells * 3 + 8 * experts * cells
    return Workload(
        int((training + running + CALL) * experts) + READ_STAY * patients + 100 * cells * names,
        held + STAY_BYTES * patients // 8,
    )
