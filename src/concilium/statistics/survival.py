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

from concilium.models.explanation import say_risk
from concilium.models.intervals import WITHIN_95
from concilium.models.prediction import Entries
from concilium.statistics.distributions import chi_squared_tail
from concilium.statistics.results import TermTest

Vector = NDArray[np.float64]
Table = NDArray[np.float64]  # [cell, kind of end]; the event first, then competing ones, censored last
DRAWS = 200
LEAST_FALL = 1e-9
# Curves, and risks of who states no horizon, are read where this share of the patients is still followed.
STILL_FOLLOWED = 0.1
# Where an interval of survival is wider, that of the mean is everything: its error would be a guess.
WIDEST = 0.8


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

    def find_free(self, *, competing: bool) -> FreeShares:
        """The share without the event after each cell. Beside competing ends it is what the cumulative incidence
        leaves, with an interval that is symmetric for log(-log) of the incidence (Kalbfleisch and Prentice)."""
        if not competing:
            return FreeShares(np.array(self.survival), _fill(self.low), _fill(self.high))
        risk, error = np.array(self.incidence), np.array(self.incidence_error)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = _log_log(risk, error / np.abs(risk * np.log(risk)))
        return FreeShares(1 - risk, 1 - _fill(high), 1 - _fill(low))


def choose_horizon(times: Sequence[float], followed: Vector) -> float:
    """The last of these times, in two digits, to which a tenth of the patients are followed; `followed`: how many, or
    their weights, reach each time."""
    enough = np.flatnonzero(followed >= STILL_FOLLOWED * followed[0])
    last = times[int(enough[-1])]
    if last <= 0:
        return float(times[min(1, len(times) - 1)])
    unit = 10.0 ** max(math.floor(math.log10(last)) - 1, 0 if float(last).is_integer() else -9)
    short = round(math.floor(last / unit + 1e-9) * unit, 9)
    return float(short if short > 0 else last)


def say_time(time: str, horizon: float, dictionary: Entries) -> str:
    """A horizon with its unit, where the dictionary has one."""
    entry = dictionary.get(time)
    return f"{time} = {horizon:g}{f' {entry.unit}' if entry is not None and entry.unit else ''}"


def say_survival(when: str, risk: float, interval: tuple[float, float]) -> str:
    """The share without the event by then, as a publication says it."""
    within = f", {say_risk(1 - interval[1])} to {say_risk(1 - interval[0])}" if interval != (0.0, 1.0) else ""
    return f"Survival at {when}: {say_risk(1 - risk)}{within}."


def _fill(listed: Sequence[float | None]) -> Vector:
    return np.array([math.nan if one is None else one for one in listed], dtype=np.float64)


@dataclass(frozen=True)
class FreeShares:
    """The share of patients without the event at some times, with the ends of its interval; NaN where there is none."""

    value: Vector
    low: Vector
    high: Vector

    def at(self, times: Sequence[float], time: float, *, cut: bool) -> tuple[float, float, float]:
        """At one time. `cut`: times are the ends of wide cells, within which the share falls steadily."""
        if cut:
            known = [0.0, *times]
            value, low, high = (
                float(np.interp(time, known, [1.0, *one])) for one in (self.value, self.low, self.high)
            )
            return value, low, high
        place = int(np.searchsorted(times, time, side="right")) - 1
        if place < 0:
            return 1.0, math.nan, math.nan
        return float(self.value[place]), float(self.low[place]), float(self.high[place])

    def find_median(self, times: Sequence[float], *, cut: bool) -> tuple[float | None, ...]:
        """The first time at which the share is one half, and the ends of its interval; None where it is not reached."""
        return tuple(_find_half(times, one, cut=cut) for one in (self.value, self.low, self.high))

    def find_restricted_mean(
        self, times: Sequence[float], horizon: float, *, cut: bool
    ) -> tuple[float, float, float]:
        """The mean time without the event up to a horizon: the area below the curve, with its interval.

        Shares at two times vary together as those of independent increments do: cov(S(s), S(t)) = S(s) S(t) G(s) for
        s < t, where G is what the interval says of S(s). For Kaplan and Meier's curve G is Greenwood's sum.
        """
        starts = np.array([0.0, *(time for time in times if 0 < time < horizon)])
        ends = np.array([*starts[1:], horizon])
        place = np.searchsorted(times, starts, side="right")
        curves = [np.array([1.0, *self.value]), np.array([0.0, *self._find_spread()])]
        shares, spread = (curve[place] for curve in curves)
        if cut:
            after = [np.interp(ends, [0.0, *times], curve) for curve in curves]
            # As with a constant hazard: the mean of an exponential between two values.
            fall = np.log(np.maximum(shares, 1e-9) / np.maximum(after[0], 1e-9))
            steady = (shares - after[0]) / np.where(fall > LEAST_FALL, fall, 1.0)
            shares, spread = np.where(fall > LEAST_FALL, steady, shares), (spread + after[1]) / 2
        areas = shares * (ends - starts)
        later = areas.sum() - np.cumsum(areas)
        variance = 2 * float((spread * areas * (later + areas / 2)).sum())
        mean, reach = float(areas.sum()), WITHIN_95 * math.sqrt(max(variance, 0.0))
        if np.any(self.high[: place[-1] + 1] - self.low[: place[-1] + 1] > WIDEST):
            return mean, 0.0, horizon
        return mean, max(mean - reach, 0.0), min(mean + reach, horizon)

    def _find_spread(self) -> Vector:
        """G: the variance of the logarithm of each share, which does not fall over time."""
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.log(-np.log(self.low)) - np.log(-np.log(self.high))
            spread = (np.log(self.value) * width / (2 * WITHIN_95)) ** 2
        return np.maximum.accumulate(np.where(np.isfinite(spread), spread, 0.0))


def _find_half(times: Sequence[float], shares: Vector, *, cut: bool) -> float | None:
    reached = np.flatnonzero(shares <= 0.5)
    if not len(reached):
        return None
    place = int(reached[0])
    if not cut:
        return float(times[place])
    before, start = (shares[place - 1], times[place - 1]) if place else (1.0, 0.0)
    if math.isnan(before):
        return float(times[place])
    return float(start + (times[place] - start) * (before - 0.5) / (before - shares[place]))


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
