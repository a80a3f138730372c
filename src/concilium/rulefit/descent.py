"""The small problem that each Newton step solves: an L1-penalised quadratic, by coordinate descent."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

MOST_SWEEPS = 2000


def minimise(
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    at: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.float64]:
    """The w of least g.(w - at) + (w - at).H.(w - at)/2 + sum of penalty x |w|; a penalty of 0 leaves one free."""
    found = at.astype(np.float64).copy()
    _sweep(gradient.copy(), np.ascontiguousarray(hessian), found, penalties, tolerance, MOST_SWEEPS)
    return found


@numba.njit(nogil=True, cache=True)
def _sweep(
    slope: NDArray[np.float64],
    hessian: NDArray[np.float64],
    w: NDArray[np.float64],
    penalties: NDArray[np.float64],
    tolerance: float,
    most: int,
) -> None:
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
                return
            everything = True
        else:
            # What is not zero is settled first: a full sweep is only there to find what must come in.
            everything = False
