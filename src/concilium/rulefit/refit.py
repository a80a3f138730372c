"""The selected terms fitted again without penalty, for odds ratios that are not shrunk and their intervals.

A few Newton steps over the summed Hessian (docs/methods.md, 2.8). The covariance of the coefficients is the inverse
Hessian; for a number, times the variance of what is left. It is that of a model whose terms were fixed beforehand: here
the same patients selected them, so that intervals are too narrow, which the model's text says.

Terms that hold for the same patients, or for all others, are one: the Hessian tells, since sum w (x - z)^2 is zero for
no other terms. A term that nearly follows from others (variance inflation above ten) is left out. A rule with no
outcome inside has no finite coefficient: a prior of standard deviation 100 on every coefficient keeps it finite, and
changes others by less than their rounding.

A term whose coefficient turns its sign without the penalty only corrects others that overlap with it: read by itself,
its odds ratio would say the opposite of what patients show. Such terms are left out, and the others fitted again.

Few patients for many terms, or terms that separate the outcome, do not determine odds ratios. Where a standard error
exceeds 2 (an interval of a factor of 50 to either side), every coefficient has a weak prior: log odds ratios of mean 0
and standard deviation 1, so that 95 % of odds ratios lie between 0.14 and 7 (compare Gelman et al., Ann. Appl. Stat. 2,
2008). Covariance and intervals are then those of the posterior.

Terms that were selected by the same patients look stronger than they are. All coefficients are therefore multiplied by
one factor, which cross-validation chose (uniform shrinkage: van Houwelingen and Le Cessie, Stat. Med. 9, 1990), and the
intercept is settled again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.questions import Conversation
from concilium.rulefit.fitting import Coefficients, Sums
from concilium.rulefit.newton import AskSums, Point, Q

PRIOR_DEVIATION = 100.0
# Where patients do not determine the coefficients: what a standard error may be, and the prior of those that may not.
LARGEST_ERROR = 2.0
WEAK_DEVIATION = 1.0
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.01)
MOST_STEPS = 20
# Of the quadratic's gain, against the loss.
SETTLED = 1e-10
# What is left of a column when those before it are taken off, in shares of its own variance: a term of which less is
# left has a variance inflation factor above ten, and says what others say.
DEPENDENT = 0.1
LONGEST_STEP = 2.0
# Terms that hold for nearly the same patients: correlated by so much.
ALIKE = 0.8


def relax(point: Point) -> NDArray[np.float64]:
    """Coefficients without penalty for the terms of a penalised fit, by one Newton step."""
    active = np.flatnonzero(point.w[1:])
    place = {column: 1 + index for index, column in enumerate(point.working)}
    inside = [0, *(place[column] for column in active.tolist() if column in place)]
    index = [0, *(1 + column for column in active.tolist() if column in place)]
    own = point.hessian[np.ix_(inside, inside)]
    gradient, hessian = _hold(point.gradient[index], own, point.w[index], point.patients)
    w = point.w.copy()
    step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
    w[index] -= np.clip(step, -LONGEST_STEP, LONGEST_STEP)
    return w


def shrink(w: NDArray[np.float64], mean: float, factor: float) -> NDArray[np.float64]:
    """Coefficients times a factor, with an intercept that leaves the mean prediction where it was."""
    shrunk = factor * w
    shrunk[0] = w[0] + (1 - factor) * mean
    return shrunk


def _hold(
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    w: NDArray[np.float64],
    patients: float,
    deviation: float = PRIOR_DEVIATION,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradient and Hessian of the mean loss with the prior; the intercept has none."""
    precision = np.full(len(w), deviation**-2 / patients)
    precision[0] = 0.0
    return gradient + precision * w, hessian + np.diag(precision)


@dataclass(frozen=True)
class Refitted:
    """The terms that are left, of those given, by their places; coefficients and covariance have the intercept first.
    `shares` says for each in how many folds a term that holds for nearly the same patients was selected, and `held`
    whether a weak prior holds the coefficients."""

    kept: list[int]
    w: NDArray[np.float64]
    covariance: NDArray[np.float64]
    shares: list[float] | None
    held: bool


def refit(
    ask: AskSums,
    start: NDArray[np.float64],
    folds: Sequence[Sequence[int]],
    simple: Sequence[int],
    factor: float,
    *,
    binary: bool,
) -> Conversation[Refitted]:
    """Fit the columns that are not zero in `start` (intercept first) without penalty, and shrink them by a factor.
    `folds` has the columns that each fold selected, and `simple` says of each column how hard it is to read: of two
    that are one, the simpler stays."""
    given = np.flatnonzero(start[1:]).tolist()
    looked_at = [*given, *sorted({column for fold in folds for column in fold} - set(given))]
    sums = yield from ask((Coefficients.of(start),), tuple(looked_at))
    assert sums.hessian is not None
    order = sorted(range(len(given)), key=lambda i: (-abs(start[1 + given[i]]), simple[given[i]], i))
    kept = sorted(_find_independent(sums.hessian, [1 + i for i in order]))
    columns = [looked_at[i - 1] for i in kept]
    while True:
        index = [0, *(1 + column for column in columns)]
        first = np.zeros_like(start)
        first[index] = start[index]
        best = yield from descend(ask, first, columns, binary=binary)
        held = binary and bool(columns) and np.sqrt(best.covariance.diagonal()[1:].max()) > LARGEST_ERROR
        if held:
            factor = 1.0  # the prior shrinks them
            best = yield from descend(ask, first, columns, binary=binary, deviation=WEAK_DEVIATION)
        turned = {column for column in columns if best.w[1 + column] * start[1 + column] < 0}
        if not turned:
            break
        columns = [column for column in columns if column not in turned]
    shares = _find_shares(sums.hessian, looked_at, columns, folds) if folds else None
    w = shrink(best.w, float(best.means @ best.w[index][1:]), factor)
    w[0] = yield from _settle_intercept(ask, w)
    moved = np.diag([1.0, *(factor for _ in columns)])
    moved[0, 1:] = (1 - factor) * best.means
    return Refitted(columns, w, moved @ best.covariance @ moved.T, shares, held)


def _find_shares(
    hessian: NDArray[np.float64], looked_at: list[int], columns: list[int], folds: Sequence[Sequence[int]]
) -> list[float]:
    """In which share of the folds each column was selected, or one that is nearly the same."""
    correlated = np.abs(_correlate(hessian)) >= ALIKE
    place = {column: i for i, column in enumerate(looked_at)}
    return [
        float(np.mean([any(correlated[place[column], place[one]] for one in fold) for fold in folds]))
        for column in columns
    ]


def _settle_intercept(ask: AskSums, w: NDArray[np.float64]) -> Conversation[float]:
    """The intercept at which the mean prediction is the mean outcome."""
    at = w.copy()
    for _ in range(MOST_STEPS):
        sums = yield from ask((Coefficients.of(at),), ())
        assert sums.gradient is not None
        assert sums.hessian is not None
        step = float(sums.gradient[0] / sums.hessian[0, 0])
        at[0] -= max(-1.0, min(step, 1.0))
        if abs(step) < 1e-6:
            break
    return float(at[0])


@dataclass(frozen=True)
class Optimum:
    """Coefficients without penalty, intercept first, and their covariance; the weighted means of the columns, the mean
    loss, the mean weight of a patient, and the variance that an outcome has against its weight (1: yes or no)."""

    w: NDArray[np.float64]
    covariance: NDArray[np.float64]
    means: NDArray[np.float64]
    loss: float
    weight: float
    scale: float


def descend(
    ask: Callable[[tuple[Coefficients, ...], tuple[int, ...]], Generator[Q, Any, Sums]],
    w: NDArray[np.float64],
    columns: Sequence[int],
    *,
    binary: bool,
    most_steps: int = MOST_STEPS,
    deviation: float = PRIOR_DEVIATION,
) -> Generator[Q, Any, Optimum]:
    """The optimum over these columns."""
    index = [0, *(1 + column for column in columns)]
    candidates = [w]
    loss = np.inf
    for _ in range(most_steps):
        sums = yield from ask(tuple(map(Coefficients.of, candidates)), tuple(columns))
        n = sums.patients
        assert sums.gradient is not None
        assert sums.hessian is not None
        losses = [
            one / n + 0.5 * float(c[1:] @ c[1:]) * deviation**-2 / n
            for one, c in zip(sums.losses, candidates, strict=True)
        ]
        best = int(np.argmin(losses))
        if best > 0:  # a shorter step was better: gradient and Hessian are asked for there
            candidates = [candidates[best]]
            continue
        w = candidates[0]
        gradient, hessian = _hold(sums.gradient[index] / n, sums.hessian / n, w[index], n, deviation)
        step = -np.linalg.solve(hessian, gradient)
        gain, loss = 0.5 * float(step @ hessian @ step), losses[0]
        if gain <= SETTLED * max(loss, 1e-3):
            break
        candidates = []
        for length in LENGTHS:
            moved = w.copy()
            moved[index] += length * step
            candidates.append(moved)
    scale = 1.0 if binary else 2 * float(sums.losses[0]) / max(1.0, n - len(index))
    covariance = np.linalg.inv(hessian) * np.float64(scale / n)
    return Optimum(w, covariance, hessian[0, 1:] / hessian[0, 0], float(loss), float(hessian[0, 0]), scale)


def _find_independent(hessian: NDArray[np.float64], order: Sequence[int]) -> list[int]:
    """The columns that do not follow, all but, from the intercept and those before them in this order."""
    chosen: list[int] = [0]
    for column in order:
        inside = hessian[np.ix_(chosen, chosen)]
        across = hessian[chosen, column]
        left = hessian[column, column] - across @ np.linalg.lstsq(inside, across, rcond=None)[0]
        own = hessian[column, column] - hessian[0, column] ** 2 / hessian[0, 0]
        if left > DEPENDENT * own > 1e-6 * DEPENDENT * hessian[column, column]:
            chosen.append(column)
    return chosen[1:]


def _correlate(hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlations of the columns, patients weighed as in the regression."""
    centred = hessian[1:, 1:] - np.outer(hessian[0, 1:], hessian[0, 1:]) / max(hessian[0, 0], 1e-300)
    deviation = np.sqrt(np.maximum(np.diag(centred), 1e-300))
    correlation: NDArray[np.float64] = centred / np.outer(deviation, deviation)
    return correlation
