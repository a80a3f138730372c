"""The small problem that each Newton step solves: an L1-penalised quadratic, by coordinate descent.

Coordinate descent finds soon which coefficients are not zero, and then crawls where columns are nearly alike; so the
coefficients it has found are solved for as a whole, up to where the first of them would change its sign.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

MOST_ROUNDS = 100
SWEEPS = 100
MOST_ZEROS = 10


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
        gained = 0.0
        for _ in range(MOST_ZEROS):
            helped, whole = _solve(slope, hessian, found, penalties)
            gained += helped
            slope = gradient + hessian @ (found - at)
            if whole:
                break
        if settled and gained <= tolerance**2:
            break
    return found


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
    try:
        step = np.linalg.solve(curve, pull)
    except np.linalg.LinAlgError:
        return 0.0, True
    turning = np.flatnonzero((penalties[free] > 0) & (w[free] * step < 0))
    ends = -w[free][turning] / step[turning]
    length = min(1.0, float(ends.min(initial=1.0)))
    gained = length * float(pull @ step) - 0.5 * length**2 * float(step @ curve @ step)
    if not gained >= 0:
        return 0.0, True
    moved = w[free] + length * step
    moved[turning[ends <= length]] = 0.0
    w[free] = moved
    return gained, not np.any(ends <= length)
