"""The steps that a house takes with noisy gradients of a logistic loss, for every method that fits coefficients under
noise.

The steps (docs/methods.md, 2.13) are damped Newton steps, and the result is the average of all points on the way. The
optimum is that of the loss with a Gaussian prior around the start: what noise hides stays where it began. With a
Hessian H, noise of standard deviation s in the average of all gradients, and a doubt d about each coefficient, the best
linear estimate has the penalty s^2 H^-1 d^-2; a step is part of the Newton step for it. H is that of independent
attributes (rulefit/private_terms.py), and an error in it changes the way and hardly the end; where the gradients show
more curvature than steps of this length bear, steps get shorter. Averaging the points (Polyak and Juditsky 1992), later
ones weighing more, averages the noise of all rounds. Everything follows from noisy numbers, so that none of it costs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.questions import Conversation

Vector = NDArray[np.float64]
# The mean gradient over patients, with noise, at these coefficients.
AskMean = Callable[[Vector], Conversation[Vector]]
# The first steps are this part of a Newton step.
PACE = 0.25
# A change of the gradient by more standard deviations than this is not noise.
SIGNIFICANT = 5.0
SLOWEST = 0.01
# Equal columns have no single solution; far below any noise.
TINY = 1e-12


def descend(
    ask: AskMean,
    start: Vector,
    hessian: NDArray[np.float64],
    doubt: Vector,
    noise: float,
    rounds: int,
    signs: Vector | None = None,
) -> Conversation[Vector]:
    """The average point after so many questions. `doubt`: how far each coefficient may be from its start (a standard
    deviation); `noise`: the standard deviation of each number of one gradient; `signs`: 1 or -1 for coefficients that
    are held at 0 where they would turn, 0 for others."""
    # The prior's precision times the variance of the noise.
    held = _average(noise, rounds) / doubt**2
    system = hessian @ hessian + np.diag(held + TINY)
    w, average, pace = start, np.zeros_like(start), PACE
    before: tuple[Vector, Vector] | None = None
    for turn in range(1, rounds + 1):
        gradient = yield from ask(w)
        if before is not None:
            pace = _slow_down(pace, hessian, w - before[0], gradient - before[1], noise)
        before = w, gradient
        w = w - pace * np.linalg.solve(system, hessian @ gradient + held * (w - start))
        if signs is not None:
            w = np.where(signs * w < 0, 0.0, w)
        average = average + (w - average) * 2 / (turn + 1)
    return average


def _average(noise: float, rounds: int) -> float:
    """The variance that noise of this deviation has after averaging with weights 1, 2, 3, ..."""
    return noise**2 * 4 / (3 * rounds)


def find_covariance(
    hessian: NDArray[np.float64], doubt: Vector, noise: float, rounds: int, patients: float
) -> NDArray[np.float64]:
    """The covariance of what `descend` ends with around the optimum for all patients there might be: of the noise, of
    these patients being a sample, and of what the prior leaves open. It follows from noisy numbers and the study."""
    both = _average(noise, rounds) * np.eye(len(hessian)) + hessian / patients
    precision = hessian @ np.linalg.solve(both, hessian) + np.diag(doubt**-2.0)
    return np.linalg.inv(precision) * np.float64(1)


def _slow_down(
    pace: float, hessian: NDArray[np.float64], step: Vector, change: Vector, noise: float
) -> float:
    """The pace, or a slower one where the gradient changed by so much over a step that the next would overshoot."""
    expected = float(step @ hessian @ step)
    met = float(step @ change)
    # The step itself follows the noise of the gradient before, in all its directions.
    explained = noise * float(np.linalg.norm(step)) * (np.sqrt(len(step)) + SIGNIFICANT)
    if met <= explained or pace * met <= expected:
        return pace
    return max(expected / met, SLOWEST)
