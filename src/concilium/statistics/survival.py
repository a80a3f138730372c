"""Survival from one table of counts (time cell x kind of end, by group): Kaplan-Meier, Aalen-Johansen, log-rank.

A cell of the grid has everybody whose time lies in it. Those who are censored in a cell leave after its events. Where
each cell has one time (whole days), estimates, intervals and tests are those of the single patients; elsewhere those of
times cut to the grid.

Under `private` counts have noise of known variance. At-risk counts and events are made monotone first (isotonic
regression), which costs nothing; intervals come from a parametric bootstrap of patients and noise together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.intervals import WITHIN_95
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.results import TermTest

Vector = NDArray[np.float64]
Table = NDArray[np.float64]  # [cell, kind of end]; the event first, then competing ones, censored last
DRAWS = 200


class SurvivalSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One group: in each cell the patients at risk at its start, events, competing events and censored ones; survival
    after it with its interval, and the cumulative incidence of the event (with competing ones, it is not the rest)."""

    group: str
    at_risk: list[float]
    events: list[float]
    competing: list[float]
    censored: list[float]
    survival: list[float]
    low: list[float | None]
    high: list[float | None]
    incidence: list[float]
    incidence_error: list[float]

    @property
    def patients(self) -> float:
        return self.at_risk[0] if self.at_risk else 0.0


@dataclass(frozen=True)
class _Estimates:
    at_risk: Vector
    survival: Vector
    greenwood: Vector
    incidence: Vector
    incidence_error: Vector


def estimate(table: Table, *, cut: bool = False) -> _Estimates:
    """Kaplan-Meier of the first kind of end (competing ones censor) with Greenwood's sum, and its cumulative incidence
    beside competing ends (Aalen and Johansen 1978; variance by the delta method).

    `cut`: cells are wide, and who leaves a cell without the event was at risk for half of it, as in an actuarial life
    table (Cutler and Ederer 1958). Taken as at risk for all of it, too few would seem to have the event.
    """
    leaving = table.sum(axis=1)
    at_risk = np.cumsum(leaving[::-1])[::-1].astype(np.float64)
    part = 0.5 if cut else 0.0
    # Of those who have the event alone, competing ends censor too.
    alone = np.maximum(at_risk - part * table[:, 1:].sum(axis=1), table[:, 0])
    alone = np.where(alone > 0, alone, 1.0).astype(np.float64)
    n = np.maximum(at_risk - part * table[:, -1], table[:, :-1].sum(axis=1))
    n = np.where(n > 0, n, 1.0)
    d = np.minimum(table[:, 0], n)
    any_event = np.minimum(table[:, :-1].sum(axis=1), n)
    survival: Vector = np.cumprod(1 - np.minimum(d, alone) / alone, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.cumsum(np.where(d > 0, d / (alone * (alone - d)), 0.0))
        alive = np.cumprod(1 - any_event / n)
        before = np.concatenate([[1.0], alive[:-1]])
        incidence = np.cumsum(before * d / n)
        gone = np.where(any_event > 0, any_event / (n * (n - any_event)), 0.0)
        gone = np.where(np.isfinite(gone), gone, 0.0)
    own, mixed = before**2 * d * (n - d) / n**3, before * d / n**2
    # Sums over s <= t of [F(t) - F(s)]^2 a_s and of [F(t) - F(s)] b_s, each from running sums.
    a, af, aff = np.cumsum(gone), np.cumsum(gone * incidence), np.cumsum(gone * incidence**2)
    b, bf = np.cumsum(mixed), np.cumsum(mixed * incidence)
    variance = incidence**2 * a - 2 * incidence * af + aff + np.cumsum(own) - 2 * (incidence * b - bf)
    return _Estimates(at_risk, survival, greenwood, incidence, np.sqrt(np.maximum(variance, 0.0)))


def make_curve(group: str, table: Table, variance: float = 0.0, *, cut: bool = False) -> SurvivalSteps:
    """The curve of a group. `variance`: of the noise in each count; `cut`: cells are wide."""
    table = settle(table) if variance else table
    found = estimate(table, cut=cut)
    if variance:
        error, incidence_error = _bootstrap(table, variance, cut)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(found.greenwood) / np.abs(np.log(found.survival))
        incidence_error = found.incidence_error
    low, high = _log_log(found.survival, error)
    return SurvivalSteps(
        group=group,
        at_risk=found.at_risk.tolist(),
        events=table[:, 0].tolist(),
        competing=table[:, 1:-1].sum(axis=1).tolist(),
        censored=table[:, -1].tolist(),
        survival=found.survival.tolist(),
        low=low,
        high=high,
        incidence=found.incidence.tolist(),
        incidence_error=incidence_error.tolist(),
    )


def _log_log(survival: Vector, error: Vector) -> tuple[list[float | None], list[float | None]]:
    """Intervals that are symmetric for log(-log S); none where S is 0 or 1."""
    low: list[float | None] = []
    high: list[float | None] = []
    for s, e in zip(survival.tolist(), error.tolist(), strict=True):
        if not 0 < s < 1 or not math.isfinite(e):
            low.append(None)
            high.append(None)
            continue
        low.append(s ** math.exp(min(WITHIN_95 * e, 50.0)))
        high.append(s ** math.exp(-WITHIN_95 * e))
    return low, high


def settle(noisy: Table) -> Table:
    """Counts that could be: how many have left, and in which way, never falls over time, and nobody is negative."""
    settled = np.zeros_like(noisy)
    for kind in range(noisy.shape[1]):
        settled[:, kind] = np.diff(rise(np.cumsum(noisy[:, kind])), prepend=0.0)
    return settled


def rise(values: Vector) -> Vector:
    """The rising sequence from zero on that is nearest to this one, by least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, size = (mean * size + before * many) / (size + many), size + many
        blocks.append((mean, size))
    risen: Vector = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
    return np.clip(risen, 0.0, None)


def _bootstrap(table: Table, variance: float, cut: bool) -> tuple[Vector, Vector]:
    """Standard deviations of log(-log S) and of the incidence, over patients drawn anew and noise drawn anew. What is
    drawn from is released already, so that any generator does."""
    draw = np.random.default_rng(0)
    total = round(float(table.sum()))
    shares = table.ravel() / max(float(table.sum()), 1e-12)
    logs, incidences = [], []
    for _ in range(DRAWS):
        patients = draw.multinomial(total, shares) if total else np.zeros(table.size)
        noisy = patients.reshape(table.shape) + draw.normal(0, math.sqrt(variance), table.shape)
        found = estimate(settle(noisy), cut=cut)
        with np.errstate(divide="ignore"):
            logs.append(np.log(-np.log(np.clip(found.survival, 1e-9, 1 - 1e-9))))
        incidences.append(found.incidence)
    return np.std(logs, axis=0), np.std(incidences, axis=0)


def compare_groups(tables: Sequence[Table]) -> TermTest | None:
    """The log-rank test of the first kind of end between groups; None where there is nothing to compare."""
    if len(tables) < 2:
        return None
    at_risk = np.array([np.cumsum(table.sum(axis=1)[::-1])[::-1] for table in tables])
    events = np.array([table[:, 0] for table in tables])
    n, d = at_risk.sum(axis=0), events.sum(axis=0)
    told = (d > 0) & (n > 1)
    at_risk, events, n, d = at_risk[:, told], events[:, told], n[told], d[told]
    share = at_risk / n
    moved = (events - d * share).sum(axis=1)
    weight = d * (n - d) / (n - 1)
    covariance = np.diag((weight * share).sum(axis=1)) - (weight * share) @ share.T
    present = [place for place in range(len(tables)) if covariance[place, place] > 0]
    if len(present) < 2:
        return None
    kept = present[:-1]
    statistic = float(
        moved[kept] @ np.linalg.pinv(covariance[np.ix_(kept, kept)], hermitian=True) @ moved[kept]
    )
    return TermTest("log-rank", "log-rank", statistic, len(kept), chi_squared_tail(statistic, len(kept)))


def find_median(times: Sequence[float], survival: Sequence[float | None]) -> float | None:
    """The first time at which survival is at most one half; None where that does not happen."""
    return next((t for t, s in zip(times, survival, strict=True) if s is not None and s <= 0.5), None)


def find_restricted_mean(times: Sequence[float], survival: Sequence[float], horizon: float) -> float:
    """The mean time without the event up to a horizon: the area below the curve, a step at each time."""
    area, before, level = 0.0, 0.0, 1.0
    for time, value in zip(times, survival, strict=True):
        if time >= horizon:
            break
        area += level * (time - before)
        before, level = time, value
    return area + level * (horizon - before)
