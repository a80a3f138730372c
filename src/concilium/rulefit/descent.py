"""The small problem that each Newton step solves: an L1-penalised quadratic, by coordinate descent.

Coordinate descent finds soon which coefficients are not zero, and then crawls where columns are nearly alike; so the
coefficients it has found are solved for as a whole, each time up to where the first of them would change its sign. It
may also crawl in finding them: then they come in one at a time, the one that helps most first, and the others are
solved for in between (an active-set method; the objective falls with every step, so that no set comes twice).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled

MOST_ROUNDS = 100
SWEEPS = 100
# Sums come rounded, and rounding may bend the parabola of columns that are alike the wrong way round: then it is bent
# back by as little of its greatest curvature as does.
RIDGES = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


def minimise(
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    at: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.float64]:
    """The w of least g.(w - at) + (w - at).H.(w - at)/2 + sum of penalty x |w|; a penalty of 0 leaves one free."""
    problem = Problem(gradient, np.ascontiguousarray(hessian), at, penalties)
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
class Problem:
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
