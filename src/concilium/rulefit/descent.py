"""The small problem that each Newton step solves: an L1-penalised quadratic, by coordinate descent.

Coordinate descent finds soon which coefficients are not zero, and then crawls where columns are nearly alike; so the
coefficients it has found are solved for as a whole, each time up to where the first of them would change its sign. It
may also crawl in finding them: then they come in one at a time, the one that helps most first, and the others are
solved for in between (an active-set method; the objective falls with every step, so that no set comes twice).
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

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
    hessian = np.ascontiguousarray(hessian)
    found = at.astype(np.float64).copy()
    for _ in range(MOST_ROUNDS):
        slope = gradient + hessian @ (found - at)
        settled = _sweep(slope, hessian, found, penalties, tolerance, SWEEPS)
        gained = _solve_all(slope, gradient, hessian, at, found, penalties)
        if settled and gained <= tolerance**2:
            break
        if not settled and _let_in(slope, gradient, hessian, at, found, penalties, tolerance):
            break
    return found


def _solve_all(
    slope: NDArray[np.float64],
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    at: NDArray[np.float64],
    w: NDArray[np.float64],
    penalties: NDArray[np.float64],
) -> float:
    """Solve for what is not zero, without what becomes zero on the way: by how much that helped. `slope` is kept."""
    gained = 0.0
    for _ in range(len(w)):
        helped, whole = _solve(slope, hessian, w, penalties)
        gained += helped
        slope[:] = gradient + hessian @ (w - at)
        if whole:
            break
    return gained


def _let_in(
    slope: NDArray[np.float64],
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    at: NDArray[np.float64],
    w: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
) -> bool:
    """One coefficient after another; whether none is left that would move by more than the tolerance."""
    curve = np.diagonal(hessian)
    root = np.sqrt(np.where(curve > 0, curve, np.inf))
    for _ in range(2 * len(w)):
        pull = np.where(w == 0, np.maximum(np.abs(slope) - penalties, 0.0), 0.0) / root
        best = int(np.argmax(pull))
        if pull[best] <= tolerance:
            return True
        w[best] = -np.sign(slope[best]) * pull[best] / root[best]
        slope += hessian[best] * w[best]
        _solve_all(slope, gradient, hessian, at, w, penalties)
    return False


@numba.njit(nogil=True, cache=True)
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


def _solve(
    slope: NDArray[np.float64],
    hessian: NDArray[np.float64],
    w: NDArray[np.float64],
    penalties: NDArray[np.float64],
) -> tuple[float, bool]:
    """Move what is not zero to where it would be best with the signs it has, or to the first zero on the way: by how
    much that helped, and whether it went all the way. It is a parabola up to there, so that it only ever falls."""
    free = np.flatnonzero((w != 0) | (penalties == 0))
    pull = -(slope[free] + penalties[free] * np.sign(w[free]))
    curve = hessian[np.ix_(free, free)]
    for ridge in RIDGES:
        try:
            step = np.linalg.solve(curve + ridge * curve.max() * np.eye(len(free)) if ridge else curve, pull)
        except np.linalg.LinAlgError:
            continue
        turning = np.flatnonzero((penalties[free] > 0) & (w[free] * step < 0))
        ends = -w[free][turning] / step[turning]
        length = min(1.0, float(ends.min(initial=1.0)))
        gained = length * float(pull @ step) - 0.5 * length**2 * float(step @ curve @ step)
        if gained >= 0 and pull @ step >= 0:
            moved = w[free] + length * step
            moved[turning[ends <= length]] = 0.0
            w[free] = moved
            return gained, not np.any(ends <= length)
    return 0.0, True
