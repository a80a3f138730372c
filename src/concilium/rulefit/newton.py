"""Working-set proximal Newton: L1-penalised regression over sites in about ten questions (docs/methods.md, 2.7).

Minimises the mean loss over all patients + penalty x |coefficients|, the intercept not penalised. Each question asks
for the loss at steps of several lengths, and for the gradient of all columns and the Hessian of the working ones at
the full step, which is nearly always taken: one question is one step. The working columns are those that are in the
model or near to it, and those that violate the optimality conditions most, not all of them of one family: of rules
about the same attributes the first few say what the others would say again.

Each step solves a small problem: an L1-penalised quadratic. Coordinate descent finds soon which coefficients are not
zero, and then crawls where columns are nearly alike; so these coefficients are solved for as a whole, each time up to
where the first of them would change its sign. It may also crawl in finding them: then they come in one at a time, the
one that helps most first, and the others are solved for in between (an active-set method; the objective falls with
every step, so that no set comes twice).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import HouseError
from concilium.protocol.questions import Conversation
from concilium.rulefit.fitting import MOST_WORKING, Coefficients, Sums
from concilium.rulefit.terms import RuleTerms

# The losses of candidates; the gradient, and the Hessian of working columns, at the first of them.
AskSums = Callable[[tuple[Coefficients, ...], tuple[int, ...]], Conversation[Sums]]
Q = TypeVar("Q")  # what stands for a question

STEPS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
MOST_QUESTIONS = 100
# By how many columns the working set may grow at a time: as many as the model has by then, within these bounds.
GROWTH = 50
MOST_GROWTH = 150
# A working column whose gradient is below this share of the penalty, and that is not in the model, is let go.
NEAR = 0.97
# The violation of the k-th worst of a family counts for itself over k to this power.
CROWDING = 0.5
MOST_ROUNDS = 100
SWEEPS = 100
# Sums come rounded, and rounding may bend the parabola of columns that are alike the wrong way round: then it is bent
# back by as little of its greatest curvature as does.
RIDGES = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


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
    patients: float = 1.0


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
    ask: Callable[[tuple[Coefficients, ...], tuple[int, ...]], Generator[Q, Any, Sums]],
    columns: Columns,
    penalty: float,
    *,
    tolerance: float = 1e-8,
    start: Point | None = None,
    near: Point | None = None,
) -> Generator[Q, Any, NewtonFit]:
    """The optimum, to about `tolerance` of the objective; `start` is where a fit with another penalty ended, `near` one
    to other patients."""
    questions = 0

    def look(
        candidates: list[NDArray[np.float64]], working: list[int]
    ) -> Generator[Q, Any, tuple[NDArray[np.float64], Point]]:
        nonlocal questions
        questions += 1
        sums = yield from ask(tuple(map(Coefficients.of, candidates)), tuple(working))
        if sums.patients <= 0 or sums.gradient is None or sums.hessian is None:
            raise HouseError("no patients to fit a model to")
        n = sums.patients
        point = Point(
            candidates[0], float(sums.losses[0] / n), sums.gradient / n, sums.hessian / n, list(working), n
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
        target, promised = _propose(
            point, penalty, 1e-2 * float(np.sqrt(np.clip(gap, tolerance * now, 1e-4)))
        )
        outside = _violations(point, penalty)
        # No optimum has coefficients that add up to more than the objective of now / penalty (it would cost more), so
        # that columns which are not worked on cannot help by more than that times the worst violation.
        gap = promised + float(outside.max(initial=0.0)) * now / penalty
        if gap <= tolerance * max(1e-3, now):
            return NewtonFit(point.w, now, gap, questions, True, point)
        growth = int(np.clip(np.count_nonzero(target[1:]), GROWTH, MOST_GROWTH))
        worst = _find_worst(outside, columns.families, growth)
        working = _grow(point, target, worst, penalty, MOST_WORKING)
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


def _propose(point: Point, penalty: float, tolerance: float) -> tuple[NDArray[np.float64], float]:
    """The Newton step from here, over the working columns, and by how much the quadratic says it helps."""
    index = np.array([0, *(column + 1 for column in point.working)])
    at, gradient = point.w[index], point.gradient[index]
    penalties = np.full(len(index), penalty)
    penalties[0] = 0
    # A ridge far below the precision that is asked for: equal columns have no single solution.
    hessian = point.hessian + 1e-10 * np.eye(len(index))
    solution = _minimise(gradient, hessian, at, penalties, tolerance)
    step = solution - at
    helps = -(gradient @ step + 0.5 * step @ hessian @ step)
    helps -= penalty * float(np.abs(solution[1:]).sum() - np.abs(at[1:]).sum())
    target = point.w.copy()
    target[index] = solution
    return target, max(0.0, float(helps))


def _violations(point: Point, penalty: float) -> NDArray[np.float64]:
    """By how much each column that is not worked on breaks the optimality conditions."""
    w, gradient = point.w[1:], point.gradient[1:]
    outside = np.where(
        w == 0, np.maximum(np.abs(gradient) - penalty, 0.0), np.abs(gradient + penalty * np.sign(w))
    )
    outside[point.working] = 0.0
    return outside


def _find_worst(outside: NDArray[np.float64], families: NDArray[np.intp], most: int) -> list[int]:
    """The columns that violate most, at most so many of them; members of one family crowd each other out."""
    violating = np.flatnonzero(outside)
    order = violating[np.lexsort((violating, -outside[violating], families[violating]))]
    # Within a family they stand behind each other now, the worst first.
    fresh = np.flatnonzero(np.diff(families[order], prepend=-1))
    behind = np.arange(len(order)) - np.repeat(fresh, np.diff(fresh, append=len(order)))
    score = outside[order] / (1.0 + behind) ** CROWDING
    worst: list[int] = order[np.lexsort((order, -score))][:most].tolist()
    return worst


def _grow(
    point: Point, target: NDArray[np.float64], worst: list[int], penalty: float, most: int
) -> list[int]:
    """The columns to work on next: those in the model or near to it, and the worst violators."""
    near = (target[1:] != 0) | (point.w[1:] != 0) | (np.abs(point.gradient[1:]) > NEAR * penalty)
    kept = [column for column in point.working if near[column]]
    if len(kept) + len(worst) > most:
        kept = [column for column in kept if target[1 + column] != 0]
    return [*kept, *worst][:most]


def _minimise(
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    at: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.float64]:
    """The w of least g.(w - at) + (w - at).H.(w - at)/2 + sum of penalty x |w|; a penalty of 0 leaves one free."""
    problem = _Problem(gradient, np.ascontiguousarray(hessian), at, penalties)
    w = at.astype(np.float64).copy()
    for _ in range(MOST_ROUNDS):
        settled = _sweep(problem.slope(w), problem.hessian, w, penalties, tolerance, SWEEPS)
        gained = problem.solve_all(w)
        if settled and gained <= tolerance**2:
            break
        if not settled and problem.let_in(w, tolerance):
            break
    return w


@dataclass(frozen=True)
class _Problem:
    """The quadratic around `at`, and the penalties; its methods move a w in place, and only ever down."""

    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]
    at: NDArray[np.float64]
    penalties: NDArray[np.float64]

    def slope(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient of the quadratic at w."""
        slope: NDArray[np.float64] = self.gradient + self.hessian @ (w - self.at)
        return slope

    def let_in(self, w: NDArray[np.float64], tolerance: float) -> bool:
        """One coefficient after another; whether none is left that would move by more than the tolerance."""
        curve = np.diagonal(self.hessian)
        root = np.sqrt(np.where(curve > 0, curve, np.inf))
        for _ in range(2 * len(w)):
            slope = self.slope(w)
            pull = np.where(w == 0, np.maximum(np.abs(slope) - self.penalties, 0.0), 0.0) / root
            best = int(np.argmax(pull))
            if pull[best] <= tolerance:
                return True
            w[best] = -np.sign(slope[best]) * pull[best] / root[best]
            self.solve_all(w)
        return False

    def solve_all(self, w: NDArray[np.float64]) -> float:
        """Solve for what is not zero, without what becomes zero on the way: by how much that helped."""
        gained = 0.0
        for _ in range(len(w)):
            helped, whole = self.solve(w)
            gained += helped
            if whole:
                break
        return gained

    def solve(self, w: NDArray[np.float64]) -> tuple[float, bool]:
        """Move what is not zero to where it would be best with the signs it has, or to the first zero on the way: by
        how much that helped, and whether it went all the way. It is a parabola up to there, so that it only falls."""
        free = np.flatnonzero((w != 0) | (self.penalties == 0))
        pull = -(self.slope(w)[free] + self.penalties[free] * np.sign(w[free]))
        curve = self.hessian[np.ix_(free, free)]
        for ridge in RIDGES:
            bent = curve + ridge * curve.max() * np.eye(len(free)) if ridge else curve
            try:
                step = np.linalg.solve(bent, pull)
            except np.linalg.LinAlgError:
                continue
            turning = np.flatnonzero((self.penalties[free] > 0) & (w[free] * step < 0))
            ends = -w[free][turning] / step[turning]
            length = min(1.0, float(ends.min(initial=1.0)))
            gained = length * float(pull @ step) - 0.5 * length**2 * float(step @ curve @ step)
            if gained >= 0 and pull @ step >= 0:
                moved = w[free] + length * step
                moved[turning[ends <= length]] = 0.0
                w[free] = moved
                return gained, not np.any(ends <= length)
        return 0.0, True


@compiled()
def _sweep(
    slope: NDArray[np.float64],
    hessian: NDArray[np.float64],
    w: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
    most: int,
) -> bool:
    """Coordinate descent, until nothing moves or for so many sweeps; whether nothing moves."""
    size = len(w)
    everything = True
    for _ in range(most):
        largest = 0.0
        for j in range(size):
            curve = hessian[j, j]
            if curve <= 0.0 or (not everything and w[j] == 0.0):
                continue
            pull = w[j] - slope[j] / curve
            least = penalties[j] / curve
            new = pull - least if pull > least else (pull + least if pull < -least else 0.0)
            step = new - w[j]
            if step != 0.0:
                for k in range(size):
                    slope[k] += step * hessian[k, j]
                w[j] = new
                largest = max(largest, abs(step) * np.sqrt(curve))
        if largest <= tolerance:
            if everything:
                return True
            everything = True
        else:
            # What is not zero is settled first: a full sweep is only there to find what must come in.
            everything = False
    return False
