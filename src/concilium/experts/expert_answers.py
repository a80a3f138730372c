"""What ensembles are asked: about public stays, about one step of a stay, and (grown ones) without a claim.

Claims. `experts.counts` and `experts.labels`: protected is every patient of every hospital, from the house and as many
colluding hospitals as the manifest tolerates, at the price that is charged. One patient more or less moves a count by
one, and one expert in the sum (site_experts.py): with a `share` by at most sqrt(T) B/8 in L2 over the T steps asked
about, without one by at most B in each. `experts.grown`: no claim that a ledger could hold; where the study asks for
`conditional` noise, members are protected at that epsilon on condition of the choice. docs/methods.md, section 8.6.

The private average. Protected: the patient of any one expert, from whoever sees the noisy averages. Each expert's
answer to each step is held to [0, B] and rounded to a grid of 2^-BINARY_PLACES by itself, before anything is added; one
expert more, less, or replaced by another patient's moves the sum of a step by at most B, and of T steps by at most
sqrt(T) B in L2.
- one step: discrete Laplace of scale B/e on the sum, so B/(N e) on the average: pure e
- a course of T steps: discrete Gaussian, sigma^2 = T B^2/(2 rho) on the sums: rho
Assumptions: weights are uniform and N is public (what the study says, not how many there are); which experts answer is
decided by each patient's own data and a public seed (site_experts.py). For an ensemble that was grown, whom else the
choice would have fallen on is not covered: the claim holds on condition of the choice, and is not entered as
differential privacy. Weights by history move a step by up to B alpha, many times B/N, and optimal weights depend on
everybody: there is no noisy answer with them. docs/methods.md, section 8.4.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, MissingExtra, StudyError
from concilium.experts.expert import average
from concilium.experts.expert_task import MOST_EXPERTS, WEIGHTS, ExpertTask
from concilium.experts.network import open_network
from concilium.experts.patient_windows import SPREAD, PublicStays
from concilium.experts.site_experts import THOUSAND, count_informative, open_drawn, open_grown, open_ranked
from concilium.privacy.accounting import Number as Exact
from concilium.privacy.accounting import epsilon_from_rho, rho_for_epsilon, say_epsilon, sigma_squared_for
from concilium.privacy.mechanisms import add_gaussian
from concilium.protocol.attributes import CALL, SLOWEST_OPERATION, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import PLAIN, PRIVATE, Sensitivity, Summed, is_positive
from concilium.protocol.sums import Array, unpack

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release


BINARY_PLACES = 10
GRID = 1 << BINARY_PLACES
WIDEST = Fraction(1, 4)
"""Of the bound: noise of a larger standard deviation tells hardly anything of one answer."""
SHARE_OF_COUNTS = Fraction(1, 10)
"""Of a private student's price: what the count of patients whose outcome changes costs."""
LEAST_SIGNAL = 100
"""Informative experts times mu (mu^2 = 2 rho) that a student needs: with fewer it learns noise (docs/methods.md,
section 8.5)."""


def _sum_on_grid(answers: NDArray[np.floating], bound: int) -> NDArray[np.int64]:
    """The sums over experts of [expert, step], each held to [0, B] and rounded by itself, in steps of the grid."""
    # What is no number is nothing: no patient's broken network decides whether there is an answer.
    held = np.nan_to_num(np.clip(answers, 0, bound), nan=0.0)
    sums: NDArray[np.int64] = np.rint(held * GRID).astype(np.int64).sum(axis=0)
    return sums


def _sum_centred(answers: NDArray[np.floating], bound: int) -> NDArray[np.int64]:
    """The sums over experts of [expert, step], in steps of the grid: what each says around its own mean over the steps
    asked about, shrunk by itself to a spread of at most B/8.

    A student learns from differences between hours alone, so that an expert's level is no loss. The L2 norm of one
    expert is at most sqrt(T) B/8: rounding is towards zero.
    """
    held = np.nan_to_num(np.clip(answers, 0, bound), nan=0.0).astype(np.float64)
    centred = held - held.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    # A hair below one: what the root is rounded by must not count.
    shrunk = centred * np.minimum(1.0, (1 - 1e-9) * bound * float(SPREAD) / np.maximum(spread, 1e-12))
    sums: NDArray[np.int64] = np.trunc(shrunk * GRID).astype(np.int64).sum(axis=0)
    return sums


def _find_sensitivity(bound: int) -> int:
    """What one expert can change of the sum of a step, in steps of the grid."""
    return bound * GRID


def _find_squared_sensitivity(bound: int, steps: int) -> Fraction:
    """The squared L2 norm of what one expert can change of the sums of so many steps."""
    return Fraction(steps * _find_sensitivity(bound) ** 2)


def _find_step_deviation(experts: int, bound: int, epsilon: float) -> float:
    """Of the noise on one step: sqrt(2) B/(N e)."""
    return math.sqrt(2) * bound / (experts * epsilon)


def _find_label_sensitivity(bound: int, steps: int) -> Fraction:
    """The same where what experts say is centred and shrunk: of one expert who comes or goes."""
    return steps * (_find_sensitivity(bound) * SPREAD) ** 2


def find_course_deviation(experts: int, bound: int, steps: int, rho: Fraction) -> float:
    """Of the noise on each step of a course: sqrt(T) B/(N mu)."""
    return math.sqrt(steps / float(2 * rho)) * bound / experts


def check_step(experts: int, bound: int, epsilon: Fraction) -> None:
    """StudyError where a private answer for one step would be noise, with what would do."""
    deviation = _find_step_deviation(experts, bound, float(epsilon))
    widest = bound * float(WIDEST)
    if deviation > widest:
        factor = deviation / widest
        raise StudyError(
            f"{experts} experts are too few for a private answer: its noise would have a deviation of {deviation:.3g} "
            f"on a scale of 0 to {bound}. {math.ceil(experts * factor)} experts would do, or "
            f"epsilon = {say_epsilon(float(epsilon) * factor)}"
        )


def check_course(experts: int, bound: int, steps: int, epsilon: Exact, delta: Exact) -> None:
    """The same for a course of so many steps."""
    rho = rho_for_epsilon(epsilon, delta)
    deviation = find_course_deviation(experts, bound, steps, rho)
    widest = bound * float(WIDEST)
    if deviation > widest:
        factor = Fraction(deviation / widest)
        enough = say_epsilon(epsilon_from_rho(rho * factor**2, delta))
        raise StudyError(
            f"{experts} experts are too few to answer {steps} steps privately: the noise of each would have a "
            f"deviation of {deviation:.3g} on a scale of 0 to {bound}. {math.ceil(experts * factor)} experts would "
            f"do, or epsilon = {enough}; a student of public stays costs once, however often it is asked"
        )


def check_student(experts: int, rho: Fraction, delta: Exact, counted: str = "") -> None:
    """The same for labels that a student is to learn from: what counts is experts times mu, not how many labels.
    `rho` is the price of the study; `counted` says whose experts these are, where that was asked."""
    of_labels = 1 - SHARE_OF_COUNTS
    signal = experts * math.sqrt(2 * rho * of_labels)
    if signal < LEAST_SIGNAL:
        least = Fraction(LEAST_SIGNAL**2, 2 * max(experts, 1) ** 2) / of_labels
        enough = epsilon_from_rho(least, delta)
        needed = math.ceil(LEAST_SIGNAL / math.sqrt(2 * rho * of_labels))
        raise StudyError(
            f"{experts} experts are too few to teach a student at this epsilon: it would learn noise{counted}. "
            f"{needed} experts would do, or epsilon = {say_epsilon(enough)}"
        )


Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_EXPERTS)]
TRAINING_TAKES = 7200.0  # seconds, at most
# For each patient: to lay out and hash a stay; windows that a stay is taken to have.
READ_STAY, STAY_BYTES, ASSUMED_WINDOWS = 50_000, 20_000, 10
BESIDES = 3
"""Numbers beside the answers of a grown ensemble: one for the hospital, its size, and how many had the outcome."""


# So many experts answer at a time, however many are drawn.
TOGETHER = 64


class _AboutExperts:
    """What questions to experts about public stays have in common."""

    __slots__ = ()
    reads_part: ClassVar[str] = "series"
    task: ExpertTask
    experts: int
    stays: PublicStays

    @property
    def patience(self) -> float:
        return TRAINING_TAKES

    @property
    def binary_places(self) -> int:
        return BINARY_PLACES

    def check(self, release: Release) -> None:
        """MessageError unless the network is there, and the stays are of this task."""
        try:
            open_network(self.task.network, len(self.task.variables))
        except MissingExtra as error:
            raise MessageError(str(error)) from None
        self.stays.open(self.task)

    def estimate(self, patients: int, columns: int) -> Workload:
        """To lay out all stays, to train the experts, and to have them answer."""
        task, cells, names = self.task, self.stays.inputs.shape[0], len(self.task.variables)
        network = open_network(task.network, names)
        training = network.estimate_seconds(ASSUMED_WINDOWS, task.steps) / SLOWEST_OPERATION
        windows = 1 + 2 * cells // task.steps
        running = network.estimate_seconds(windows, task.steps) / task.network.epochs / SLOWEST_OPERATION
        held = 12 * names * cells * 3 + 8 * self.experts * cells
        return Workload(
            int((training + running + CALL) * self.experts) + READ_STAY * patients + 100 * cells * names,
            held + STAY_BYTES * patients // 8,
        )


class AskExpertCounts(Summed, frozen=True, kw_only=True):
    """How many patients have a severity that changes, which is what an expert can learn from, and how many are there?

    One patient adds at most 1 to each of the two.
    """

    kind: ClassVar[str] = "experts.counts"
    releases: ClassVar[frozenset[str]] = PRIVATE
    reads_part: ClassVar[str] = "series"

    task: ExpertTask

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task}

    @property
    def shape(self) -> tuple[int, ...]:
        return (2,)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(2)

    def estimate(self, patients: int, columns: int) -> Workload:
        return Workload(READ_STAY * patients, STAY_BYTES * patients // 8)

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        return np.array(count_informative(cohort, self.task), dtype=np.int64)


class AskExpertLabels(_AboutExperts, Summed, frozen=True, kw_only=True):
    """What do experts of patients of each hospital, drawn before anybody knows what they will say, tell of public
    stays, summed, with noise?

    With `share`: of so many in a thousand of the patients whose severity changes, each expert around its own mean, to
    teach a student. Without: of the first `experts` patients, as they are, of the steps of one stay; of one step the
    noise may be Laplace.
    """

    kind: ClassVar[str] = "experts.labels"
    releases: ClassVar[frozenset[str]] = PRIVATE

    task: ExpertTask
    experts: Size
    stays: PublicStays
    share: Annotated[int, msgspec.Meta(ge=1, le=THOUSAND)] | None = None

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"task": self.task, "experts": self.experts, "asked_about": self.stays.digest}

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stays.steps,)

    @property
    def sensitivity(self) -> Sensitivity:
        bound, steps = self.task.bound, self.stays.steps
        if self.share is not None:
            return Sensitivity(_find_label_sensitivity(bound, steps))
        return Sensitivity(
            _find_squared_sensitivity(bound, steps), _find_sensitivity(bound) if steps == 1 else None
        )

    @property
    def largest(self) -> int:
        most = self.experts if self.share is None else MOST_EXPERTS
        return most * _find_sensitivity(self.task.bound)

    def check(self, release: Release) -> None:
        super().check(release)
        if self.share is None and open_network(self.task.network, len(self.task.variables)).compares:
            raise MessageError(
                "experts that are told from public stays teach a student, and answer nothing else"
            )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        laid, asked = self.stays.open(self.task)
        if self.share is None:
            answers = open_ranked(cohort, self.task, self.experts).tell(laid)
            return _sum_on_grid(answers[:, asked], self.task.bound)
        ensemble = open_drawn(cohort, self.task, self.share, laid, self.stays.digest)
        sums = np.zeros(self.shape, dtype=np.int64)
        for first in range(0, len(ensemble), TOGETHER):
            part = ensemble.take(range(first, min(first + TOGETHER, len(ensemble))))
            sums += _sum_centred(part.tell(laid)[:, asked], self.task.bound)
        return np.clip(sums, -self.largest, self.largest)


class AskGrownExperts(_AboutExperts, Summed, frozen=True, kw_only=True):
    """What does the grown ensemble of each hospital say of public stays on average, how large is it, and how many of
    its experts' patients had the outcome?

    `conditional` is the epsilon of noise that the hospital adds to its own average, at `delta`, or empty. `weights` by
    history need the severity of the public stays, `truth`, in steps of the grid (below 0: unknown).
    """

    kind: ClassVar[str] = "experts.grown"
    releases: ClassVar[frozenset[str]] = PLAIN

    task: ExpertTask
    experts: Size
    limit: Size | None
    stays: PublicStays
    conditional: str = ""
    delta: str = ""
    weights: str = "uniform"
    truth: Array | None = None

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {
            "task": self.task,
            "experts": self.experts,
            "limit_agreed": (self.limit, self.conditional, self.delta, self.weights),
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
    def largest(self) -> int:
        return max(self.experts, 64 * self.task.bound) * GRID

    def check(self, release: Release) -> None:
        super().check(release)
        if self.weights not in WEIGHTS or (self.weights == "history") != (self.truth is not None):
            raise MessageError(
                "weights are uniform, optimal, or by history, which needs the truth of public stays"
            )
        if self.truth is not None and self.truth.shape != self.stays.inputs.shape[:1]:
            raise MessageError("the truth of public stays is one number for each step")
        if self.weights != "uniform" and self.conditional:
            raise MessageError("conditional noise is for uniform weights: others tell more than it covers")
        if self.conditional and not (is_positive(self.conditional) and _is_delta(self.delta)):
            raise MessageError(
                "conditional noise has an epsilon such as '1/2', and a delta such as '1/100000'"
            )

    def estimate(self, patients: int, columns: int) -> Workload:
        grown = super().estimate(patients, columns)
        answers = Workload(20 * self.experts * patients * self.task.steps, 64 * self.experts * patients)
        return grown + answers

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        laid, asked = self.stays.open(self.task)
        grown = open_grown(cohort, self.task, self.experts, self.limit)
        members = grown.members
        answers = members.tell(laid)
        if self.weights == "uniform":
            averaged = self.average(len(members), answers[:, asked])
        else:
            severity = np.full(len(laid.values), np.nan)
            if self.truth is not None:
                severity = unpack(self.truth).astype(np.float64) / GRID
                severity[severity < 0] = np.nan
            weighed = average(answers, grown.weigh(self.weights, answers, severity, laid.starts))[asked]
            averaged = np.clip(np.rint(weighed * GRID).astype(np.int64), -self.largest, self.largest)
        besides = [1, len(members), int(members.septic.sum())]
        return np.concatenate([averaged, np.array(besides, dtype=np.int64) * GRID])

    def average(self, members: int, answers: NDArray[np.float32]) -> NDArray[np.int64]:
        """In steps of the grid, with the noise that was asked for, within what a sum can hold."""
        sums, bound = _sum_on_grid(answers, self.task.bound), self.task.bound
        if self.conditional:
            rho = rho_for_epsilon(self.conditional, self.delta)
            sums = add_gaussian(sums, sigma_squared_for(rho, _find_squared_sensitivity(bound, sums.size)))
        average = np.rint(sums / members).astype(np.int64)
        return np.clip(average, -self.largest, self.largest)


def _is_delta(delta: str) -> bool:
    return is_positive(delta) and Fraction(delta) < 1
