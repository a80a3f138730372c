"""The optimum of a pooled L1-penalised regression, certified: nothing of the solver under test is in it.

An interior-point method (Koh, Kim, Boyd 2007) walks to the optimum; Fenchel duality certifies it: residuals that add
up to zero and correlate with no column by more than the penalty prove that no coefficients whatever have a lower
objective than theirs. What is returned is that bound, not a solver's word.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, xlogy

from concilium.protocol.sums import read_reals, write_reals
from concilium.rulefit.fitting import Sums
from concilium.rulefit.newton import Columns


def objective(design, outcome, intercept, coefficients, penalty, *, binary=True):
    """Mean loss + penalty x |coefficients|."""
    predictor = design @ coefficients + intercept
    if binary:
        loss = np.mean(np.logaddexp(0, predictor) - outcome * predictor)
    else:
        loss = np.mean((outcome - predictor) ** 2) / 2
    return loss + penalty * np.abs(coefficients).sum()


def bound_below(design, outcome, penalty, coefficients, *, binary=True):
    """The dual objective at the residuals of these coefficients, made feasible."""
    predictor = design @ coefficients
    if binary:
        far = np.abs(predictor).max() + 60
        free = brentq(lambda b: np.sum(expit(predictor + b) - outcome), -far, far, xtol=1e-14)
        residual = expit(predictor + free) - outcome
    else:
        residual = predictor - outcome
    residual = residual - residual.mean()
    steepest = np.abs(design.T @ residual).max(initial=0.0) / len(outcome)
    residual = residual * min(1.0, penalty / steepest if steepest else 1.0)
    if not binary:
        return -np.mean(residual**2 / 2 + residual * outcome)
    chance = np.clip(residual + outcome, 0, 1)
    return -np.mean(xlogy(chance, chance) + xlogy(1 - chance, 1 - chance))


def find_optimum(design, outcome, penalty, *, binary=True, precision=1e-9):
    """A number that no objective is below, and that some coefficients come within `precision` of."""
    patients, columns = design.shape
    if binary and outcome.min() == outcome.max():
        return 0.0  # which no finite intercept reaches
    wide = np.column_stack([np.ones(patients), design])
    b, w, u, t = 0.0, np.zeros(columns), np.ones(columns), 1 / penalty

    def barrier(b, w, u):
        inside = u**2 - w**2
        if np.any(inside <= 0) or np.any(u <= 0):
            return np.inf
        smooth = objective(design, outcome, b, w, 0.0, binary=binary) + penalty * u.sum()
        return t * smooth - np.log(inside).sum()

    for _ in range(500):
        gap = objective(design, outcome, b, w, penalty, binary=binary)
        bound = bound_below(design, outcome, penalty, w, binary=binary)
        gap -= bound
        if gap <= precision:
            return bound
        predictor = design @ w + b
        residual = (expit(predictor) if binary else predictor) - outcome
        curve = expit(predictor) * expit(-predictor) if binary else np.ones(patients)
        slope = t * wide.T @ residual / patients
        inside = u**2 - w**2
        slope[1:] += 2 * w / inside
        slope_u = t * penalty - 2 * u / inside
        d1, d2 = 2 * (u**2 + w**2) / inside**2, -4 * u * w / inside**2
        hessian = t * (wide.T * curve) @ wide / patients
        hessian[np.diag_indices(columns + 1)] += np.concatenate([[1e-14 * t], 2 / (u**2 + w**2)])
        slope[1:] -= d2 * slope_u / d1
        step = np.linalg.solve(hessian, -slope)
        step_u = (-slope_u - d2 * step[1:]) / d1
        # What was eliminated is put back for the decrease that the line search looks for.
        slope[1:] += d2 * slope_u / d1
        decrease = slope @ step + slope_u @ step_u
        length, now = 1.0, barrier(b, w, u)
        while length > 1e-12:
            new = b + length * step[0], w + length * step[1:], u + length * step_u
            # Where the step helps by less than the barrier is rounded, it is as good as any.
            if barrier(*new) <= now + 0.01 * length * decrease + 1e-13 * abs(now):
                break
            length /= 2
        b, w, u = new
        if length >= 0.5:
            t = max(t, min(2 * t, 2 * columns / gap) if length < 1 else min(10 * t, 20 * columns / gap))
    raise AssertionError(f"the oracle came no nearer than {gap:.1e}")


def is_optimal(design, outcome, w, penalty, within):
    """Whether no objective is lower than that of these coefficients by more than so much: their own residuals may prove
    it, and where they do not, the optimum is looked for."""
    reached = objective(design, outcome, w[0], w[1:], penalty)
    return (
        reached <= bound_below(design, outcome, penalty, w[1:]) + within
        or reached <= find_optimum(design, outcome, penalty) + within
    )


def unlike(count):
    """Columns of which nothing is known: each is a family of its own."""
    return Columns(count, np.arange(count))


PLACES = 30


def fixed(reals, places=PLACES):
    """Numbers as they travel."""
    return read_reals(write_reals(np.asarray(reals, float), places), places)


class Pooled:
    """Answers what a fit asks from one table, in the fixed point that sites use, and remembers every objective."""

    def __init__(self, design, outcome, *, binary=True):
        self.design, self.outcome, self.binary = design, outcome, binary
        self.first, self.asked = [], 0

    def __call__(self, candidates, working):
        self.asked += 1
        losses = []
        for candidate in candidates:
            candidate.check_terms(self.design.shape[1])
            w = np.zeros(self.design.shape[1])
            w[list(candidate.columns)] = candidate.values
            losses.append(
                len(self.outcome)
                * objective(self.design, self.outcome, candidate.intercept, w, 0.0, binary=self.binary)
            )
            if len(losses) == 1:
                predictor = self.design @ w + candidate.intercept
                self.first.append((candidate.intercept, w))
        chance = 1 / (1 + np.exp(-np.clip(predictor, -700, 700)))
        residual = (chance if self.binary else predictor) - self.outcome
        curve = chance * (1 - chance) if self.binary else np.ones(len(self.outcome))
        wide = np.column_stack([np.ones(len(self.outcome)), self.design])
        inside = wide[:, [0, *(column + 1 for column in working)]]
        sums = Sums(
            float(len(self.outcome)),
            fixed(losses),
            fixed(wide.T @ residual),
            fixed((inside.T * curve) @ inside),
        )
        return answer(sums)


def answer(value):
    """A conversation that asks nobody, and ends with this."""
    yield from ()
    return value


def end(conversation):
    """What a conversation ends with that asks nobody."""
    try:
        asked = next(conversation)
    except StopIteration as last:
        return last.value
    raise AssertionError(f"it asked {asked}")
