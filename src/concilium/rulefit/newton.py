"""Working-set proximal Newton: L1-penalised regression over sites in about ten questions (docs/methods.md, 2.7).

Minimises the mean loss over all patients + penalty x |coefficients|, the intercept not penalised. Each question asks
for the loss at steps of several lengths, and for the gradient of all columns and the Hessian of the working ones at
the full step, which is nearly always taken: one question is one step. The working columns are those that are in the
model or near to it, and those that violate the optimality conditions most, not all of them of one family: of rules
about the same attributes the first few say what the others would say again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError
from concilium.protocol.conversation import Conversation
from concilium.rulefit.descent import minimise
from concilium.rulefit.fitting import MOST_WORKING, Coefficients, Sums
from concilium.rulefit.terms import RuleTerms

# The losses of candidates; the gradient, and the Hessian of working columns, at the first of them.
AskSums = Callable[[tuple[Coefficients, ...], tuple[int, ...]], Conversation[Sums]]

STEPS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
MOST_QUESTIONS = 100
# By how many columns the working set may grow at a time: as many as the model has by then, within these bounds.
GROWTH = 50
MOST_GROWTH = 150
# A working column whose gradient is below this share of the penalty, and that is not in the model, is let go.
NEAR = 0.97
# The violation of the k-th worst of a family counts for itself over k to this power.
CROWDING = 0.5


@dataclass(frozen=True)
class Columns:
    """What is known of the columns before the first question: how many there are, the family of each (columns of one
    are likely to be alike), and those to work on from the start."""

    count: int
    families: NDArray[np.intp]
    first: tuple[int, ...] = ()

    @classmethod
    def of(cls, terms: RuleTerms) -> Columns:
        """Rules about the same attributes are a family, every other term is its own; linear terms come first."""
        places: dict[tuple[int, ...], int] = {}
        families = [places.setdefault(tuple(map(itemgetter(0), rule)), len(places)) for rule in terms.rules]
        others = len(terms) - len(families)
        first = range(len(families), min(len(families) + GROWTH, len(terms)))
        return cls(
            len(terms),
            np.array([*families, *range(len(places), len(places) + others)], dtype=np.intp),
            tuple(first),
        )


@dataclass
class Point:
    """Where the fit stands: mean loss, gradient and Hessian of the working columns, intercept first."""

    w: NDArray[np.float64]
    loss: float
    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]
    working: list[int]


@dataclass(frozen=True)
class NewtonFit:
    """Coefficients with the intercept first, the objective there, and how many questions it took."""

    w: NDArray[np.float64]
    objective: float
    gap: float
    questions: int
    converged: bool
    point: Point


def fit(
    ask: AskSums,
    columns: Columns,
    penalty: float,
    *,
    tolerance: float = 1e-8,
    start: Point | None = None,
    near: Point | None = None,
) -> Conversation[NewtonFit]:
    """The optimum, to about `tolerance` of the objective; `start` is where a fit with another penalty ended, `near` one
    to other patients."""
    questions = 0

    def look(
        candidates: list[NDArray[np.float64]], working: list[int]
    ) -> Conversation[tuple[NDArray[np.float64], Point]]:
        nonlocal questions
        questions += 1
        sums = yield from ask(tuple(map(Coefficients.of, candidates)), tuple(working))
        if sums.patients <= 0 or sums.gradient is None or sums.hessian is None:
            raise HouseError("no patients to fit a model to")
        n = sums.patients
        point = Point(
            candidates[0], float(sums.losses[0] / n), sums.gradient / n, sums.hessian / n, list(working)
        )
        return sums.losses / n, point

    def objective(w: NDArray[np.float64], loss: float) -> float:
        return loss + penalty * float(np.abs(w[1:]).sum())

    point = start
    if point is None:
        begin = (np.zeros(columns.count + 1), list(columns.first)) if near is None else (near.w, near.working)
        _, point = yield from look([begin[0]], begin[1])
    gap, stuck = np.inf, False
    while questions < MOST_QUESTIONS:
        now = objective(point.w, point.loss)
        # The small problem is solved as well as the large one deserves by now.
        target, promised = propose(point, penalty, 1e-2 * float(np.sqrt(np.clip(gap, tolerance * now, 1e-4))))
        outside = violations(point, penalty)
        # No optimum has coefficients that add up to more than the objective of now / penalty (it would cost more), so
        # that columns which are not worked on cannot help by more than that times the worst violation.
        gap = promised + float(outside.max(initial=0.0)) * now / penalty
        if gap <= tolerance * max(1e-3, now):
            return NewtonFit(point.w, now, gap, questions, True, point)
        growth = int(np.clip(np.count_nonzero(target[1:]), GROWTH, MOST_GROWTH))
        worst = find_worst(outside, columns.families, growth)
        working = grow(point, target, worst, penalty, MOST_WORKING)
        step = target - point.w
        losses, full = yield from look([point.w + length * step for length in STEPS], working)
        values = [
            objective(point.w + length * step, loss) for length, loss in zip(STEPS, losses, strict=True)
        ]
        if values[0] <= now - 1e-4 * promised or promised <= tolerance * 1e-2 * now:
            point, stuck = full, False
            continue
        best = int(np.argmin(values))
        stuck, before = values[best] >= now - 1e-12 * abs(now), stuck
        if stuck and (before or not worst):
            return NewtonFit(point.w, now, gap, questions, False, point)
        # Where no step helps, rounding has hidden what the working columns could still do; others may yet help.
        _, point = yield from look([point.w if stuck else point.w + STEPS[best] * step], working)
    return NewtonFit(point.w, objective(point.w, point.loss), gap, questions, False, point)


def propose(point: Point, penalty: float, tolerance: float) -> tuple[NDArray[np.float64], float]:
    """The Newton step from here, over the working columns, and by how much the quadratic says it helps."""
    index = np.array([0, *(column + 1 for column in point.working)])
    at, gradient = point.w[index], point.gradient[index]
    penalties = np.full(len(index), penalty)
    penalties[0] = 0
    # A ridge far below the precision that is asked for: equal columns have no single solution.
    hessian = point.hessian + 1e-10 * np.eye(len(index))
    solution = minimise(gradient, hessian, at, penalties, tolerance)
    step = solution - at
    helps = -(gradient @ step + 0.5 * step @ hessian @ step)
    helps -= penalty * float(np.abs(solution[1:]).sum() - np.abs(at[1:]).sum())
    target = point.w.copy()
    target[index] = solution
    return target, max(0.0, float(helps))


def violations(point: Point, penalty: float) -> NDArray[np.float64]:
    """By how much each column that is not worked on breaks the optimality conditions."""
    w, gradient = point.w[1:], point.gradient[1:]
    outside = np.where(
        w == 0, np.maximum(np.abs(gradient) - penalty, 0.0), np.abs(gradient + penalty * np.sign(w))
    )
    outside[point.working] = 0.0
    return outside


def find_worst(outside: NDArray[np.float64], families: NDArray[np.intp], most: int) -> list[int]:
    """The columns that violate most, at most so many of them; members of one family crowd each other out."""
    violating = np.flatnonzero(outside)
    order = violating[np.lexsort((violating, -outside[violating], families[violating]))]
    # Within a family they stand behind each other now, the worst first.
    fresh = np.flatnonzero(np.diff(families[order], prepend=-1))
    behind = np.arange(len(order)) - np.repeat(fresh, np.diff(fresh, append=len(order)))
    score = outside[order] / (1.0 + behind) ** CROWDING
    worst: list[int] = order[np.lexsort((order, -score))][:most].tolist()
    return worst


def grow(point: Point, target: NDArray[np.float64], worst: list[int], penalty: float, most: int) -> list[int]:
    """The columns to work on next: those in the model or near to it, and the worst violators."""
    near = (target[1:] != 0) | (point.w[1:] != 0) | (np.abs(point.gradient[1:]) > NEAR * penalty)
    kept = [column for column in point.working if near[column]]
    if len(kept) + len(worst) > most:
        kept = [column for column in kept if target[1 + column] != 0]
    return [*kept, *worst][:most]
