"""What a hospital changes of a model that it received, so that its risks come true there: an intercept, and a slope.

Logistic recalibration (Cox, 1958; Steyerberg et al., Statistics in Medicine 23, 2004): with p_k what the model says of
class k, the adapted chance is in proportion to exp(a_k) p_k^b, a_k = 0 for the first class. Of two classes that is the
logistic regression of the outcome on the log odds; of a number y it is a + b y. All by maximum likelihood, unpenalised.

Who decides whether there are enough patients is a rule, not the hospital's wish to see something change (the
closed test of Vergouwe et al., Statistics in Medicine 36, 2017): `a` is fitted from `LEAST` patients of every class (a
single number from five events on: Vittinghoff and McCulloch, Am J Epidemiology 165, 2007), `b` from `ENOUGH` of every
class (Vergouwe et al., J Clinical Epidemiology 58, 2005), and each is kept only if a likelihood ratio test at 5 % says
that the model as it is does not fit. Of a number it is `LEAST_NUMBERS` and `ENOUGH` patients.

Patients are not protected by this: the file that comes of it holds numbers of theirs, and stays at the hospital.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.threshold import Decided, parse
from concilium.records.columns import Value

Floats = NDArray[np.float64]

LEAST = 5
LEAST_NUMBERS = 20
ENOUGH = 100
SURE = 0.05
NEVER_SURE = 1e-6
"""No class is held to be less likely than this: the logarithm of 0 is no number."""
STEEP = 10.0
STEPS, CLOSE = 100, 1e-10


class Adaptation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was changed, where, and by how many patients.

    origin     the SHA-256 of the model file as it was received
    counts     the patients by class, in the order of the model's classes; none where a number is predicted
    shifts     a_k of each class, or `a` of a number
    slope      b
    reasons    why what was fitted was, and the rest was not, a sentence each
    """

    site: str
    origin: str
    patients: int
    counts: list[int]
    shifts: list[float]
    slope: float
    reasons: list[str]

    def __post_init__(self) -> None:
        numbers = [*self.shifts, self.slope]
        if not self.shifts or not all(map(math.isfinite, numbers)):
            raise ValueError("an adaptation has one shift for each class, and they are numbers")
        if self.counts and len(self.counts) != len(self.shifts):
            raise ValueError("an adaptation counts the patients of each class")

    @property
    def changes(self) -> bool:
        """Whether it is another model by it."""
        return self.slope != 1 or any(self.shifts)

    def apply(self, shares: Floats) -> Floats:
        """The chances of the classes, [patient, class], from what the model said."""
        return adapt_shares(shares, np.array(self.shifts), self.slope)

    def move(self, number: Floats) -> Floats:
        """The predicted number, from what the model said."""
        moved: Floats = self.shifts[0] + self.slope * number
        return moved

    def move_decision(self, decided: Decided | None, classes: Sequence[Value]) -> Decided | None:
        return move_decision(decided, classes, np.array(self.shifts), self.slope)

    def say_change(self) -> str:
        """What was changed, in words."""
        if not self.changes:
            return "nothing was changed"
        slope = "" if self.slope == 1 else f"slope {self.slope:.2f}"
        if not self.counts:
            parts = [f"{self.shifts[0]:+.4g}" if self.shifts[0] else "", slope]
        elif len(self.counts) == 2:
            parts = [f"odds multiplied by {math.exp(self.shifts[1]):.3g}" if self.shifts[1] else "", slope]
        else:
            parts = [f"log chances {', '.join(f'{shift:+.2f}' for shift in self.shifts)}", slope]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class _Fitted:
    """Shifts and slope, and why they are what they are."""

    shifts: list[float]
    slope: float
    reasons: list[str]

    @property
    def changes(self) -> bool:
        return self.slope != 1 or any(self.shifts)


def adapt_shares(shares: Floats, shifts: Floats, slope: float) -> Floats:
    """exp(a_k) p_k^b, in shares of 1."""
    score = slope * _log_shares(shares) + shifts
    score -= score.max(axis=1, keepdims=True)
    likely: Floats = np.exp(score)
    likely /= likely.sum(axis=1, keepdims=True)
    return likely


def move_decision(
    decided: Decided | None, classes: Sequence[Value], shifts: Floats, slope: float
) -> Decided | None:
    """From which adapted chance on the positive class is called. Costs of errors speak of chances as they are, and
    their threshold stays; every other rule chose a place in the order of patients, and its threshold moves with them:
    but for leaves of few patients, the same are called as before."""
    if decided is None or parse(decided.rule).kind == "cost" or (slope == 1 and not shifts.any()):
        return decided
    place = decided.place(classes)
    shares = np.full((1, 2), 1 - decided.threshold)
    shares[0, place] = decided.threshold
    moved = float(adapt_shares(shares, shifts, slope)[0, place])
    return msgspec.structs.replace(
        decided, threshold=moved, sensitivity=None, specificity=None, told_by="", votes=None
    )


def _log_shares(shares: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(shares, NEVER_SURE))
    return logs


def fit_classes(shares: Floats, truth: NDArray[np.intp], *, learned_from: bool = False) -> _Fitted:
    """The shifts and the slope for patients of whom a model said these shares and whose classes are these.

    `learned_from` says that the model has learned from them: it then looks surer on them than it is, and no slope is
    fitted. Shifts add up what is expected over all of them, which learning left nearly right.
    """
    classes = shares.shape[1]
    fewest = int(np.bincount(truth, minlength=classes).min())
    as_it_is = _Fitted([0.0] * classes, 1.0, [])
    if fewest < LEAST:
        why = f"nothing is fitted: {LEAST} patients of every class are needed, and of one there are {fewest}"
        return _Fitted(as_it_is.shifts, 1.0, [why])
    logs = _log_shares(shares)
    none = _likelihood(logs, truth, np.zeros(classes))
    shifts, one = _maximise(logs, truth, with_slope=False)
    both, two = shifts, one
    reasons = []
    if learned_from:
        reasons.append(
            "no slope is fitted: the model learned from this hospital's patients, and looks surer on them than it is"
        )
    elif fewest < ENOUGH:
        reasons.append(
            f"no slope is fitted: {ENOUGH} patients of every class are needed, and of one there are {fewest}"
        )
    else:
        both, two = _maximise(logs, truth, with_slope=True)
        if not 0 < both[-1] < STEEP:
            reasons.append(
                f"no slope is fitted: it would be {both[-1]:.2f}, so that the model tells these patients apart without "
                "a fault, or not at all"
            )
            both, two = shifts, one
    if both is not shifts:
        chance = _exceed(2 * (two - one), 1)
        if chance < SURE:
            reasons.append(f"the slope is fitted: the one of the model does not fit (p = {chance:.2g})")
            return _Fitted([0.0, *both[:-1].tolist()], float(both[-1]), reasons)
        reasons.append(f"the slope is left: that of the model fits (p = {chance:.2g})")
    return _settle_shift([0.0, *shifts.tolist()], _exceed(2 * (one - none), classes - 1), as_it_is, reasons)


def _settle_shift(shifts: list[float], chance: float, as_it_is: _Fitted, reasons: list[str]) -> _Fitted:
    """The intercept, if the model's own does not fit."""
    if chance < SURE:
        told = f"the intercept is fitted: the one of the model does not fit (p = {chance:.2g})"
        return _Fitted(shifts, 1.0, [told, *reasons])
    told = f"the intercept is left: that of the model fits (p = {chance:.2g})"
    return _Fitted(as_it_is.shifts, 1.0, [told, *reasons])


def fit_numbers(predicted: Floats, truth: Floats, *, learned_from: bool = False) -> _Fitted:
    """The same for a number: least squares."""
    many = len(truth)
    if many < LEAST_NUMBERS:
        why = f"nothing is fitted: {LEAST_NUMBERS} patients are needed, and there are {many}"
        return _Fitted([0.0], 1.0, [why])
    shift = float(np.mean(truth - predicted))
    none, one = _squares(truth - predicted), _squares(truth - predicted - shift)
    reasons = []
    if learned_from:
        reasons.append(
            "no slope is fitted: the model learned from this hospital's patients, and looks surer on them than it is"
        )
    elif many < ENOUGH:
        reasons.append(f"no slope is fitted: {ENOUGH} patients are needed, and there are {many}")
    elif np.ptp(predicted) > 0:
        slope, start = np.polyfit(predicted, truth, 1).tolist()
        chance = _exceed(many * math.log(one / max(_squares(truth - start - slope * predicted), CLOSE)), 1)
        if slope > 0 and chance < SURE:
            reasons.append(f"the slope is fitted: the one of the model does not fit (p = {chance:.2g})")
            return _Fitted([start], slope, reasons)
        reasons.append(f"the slope is left: that of the model fits (p = {chance:.2g})")
    chance = _exceed(many * math.log(none / one), 1)
    return _settle_shift([shift], chance, _Fitted([0.0], 1.0, []), reasons)


def _squares(residuals: Floats) -> float:
    return max(float((residuals**2).sum()), CLOSE)


def _likelihood(logs: Floats, truth: NDArray[np.intp], shifts: Floats, slope: float = 1.0) -> float:
    """The logarithm of how likely these classes are."""
    score = slope * logs + shifts
    return float((score[np.arange(len(truth)), truth] - np.logaddexp.reduce(score, axis=1)).sum())


def _maximise(logs: Floats, truth: NDArray[np.intp], *, with_slope: bool) -> tuple[Floats, float]:
    """The shifts of all classes but the first and, if wanted, the slope at which these classes are likeliest, and how
    likely they then are: Newton's method, each step halved until it helps."""
    many, classes = logs.shape
    chosen = np.arange(many), truth
    found = np.zeros(classes - 1 + with_slope)
    if with_slope:
        found[-1] = 1.0

    def read(values: Floats) -> tuple[Floats, float]:
        return np.concatenate([[0.0], values[: classes - 1]]), float(values[-1]) if with_slope else 1.0

    best = _likelihood(logs, truth, *read(found))
    for _ in range(STEPS):
        shifts, slope = read(found)
        score = slope * logs + shifts
        likely = np.exp(score - np.logaddexp.reduce(score, axis=1)[:, None])
        design = [np.broadcast_to(np.eye(classes)[k], logs.shape) for k in range(1, classes)]
        columns = np.stack([*design, logs] if with_slope else design, axis=2)
        mean = np.einsum("ik,ikp->ip", likely, columns)
        gradient = (columns[chosen] - mean).sum(axis=0)
        curvature = np.einsum("ik,ikp,ikq->pq", likely, columns, columns) - mean.T @ mean
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        for _ in range(30):
            reached = _likelihood(logs, truth, *read(found + step))
            if reached >= best:
                break
            step = step / 2
        else:
            break
        found, best = found + step, reached
        if float(np.abs(step).max()) < CLOSE or (with_slope and abs(found[-1]) > STEEP):
            break
    return found, best


def _exceed(value: float, freedom: int) -> float:
    """The probability that a chi-squared variable exceeds this: finite sums (Abramowitz and Stegun, 26.4.4, 26.4.5)."""
    half = max(value, 0.0) / 2
    if not math.isfinite(half):
        return 0.0
    chance = math.erfc(math.sqrt(half)) if freedom % 2 else math.exp(-half)
    for below in range(1 if freedom % 2 else 2, freedom, 2):
        chance += math.exp((below / 2) * math.log(half) - half - math.lgamma(below / 2 + 1)) if half else 0.0
    return min(chance, 1.0)


def count_classes(truth: NDArray[np.intp], classes: Sequence[object]) -> list[int]:
    """How many patients have each class."""
    counts: list[int] = np.bincount(truth, minlength=len(classes)).tolist()
    return counts
