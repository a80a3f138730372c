"""The one window by which a patient is judged: where the outcome begins, and of patients without it at a matched time.

A patient without the outcome who is judged at the end of the stay is judged when things are best, or worst. So controls
get a window at a random time, and the times follow the hours since admission at which the outcome begins in others:
these are counted with noise over public hours, once, for a price of their own (`AskOutcomeHours`).

Claim. A patient's window depends on that patient alone: on its own stay, on public hours and weights, and on chance
that is drawn from what was measured of it. docs/methods.md, section 6.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.records.series import Series, find_windows

HOURS = (6, 12, 18, 24, 36, 48, 72, 96, 144, 240)
"""Public: since admission, the hours up to which windows end that are taken for alike."""
HOUR_BINS = len(HOURS) + 1
ROUNDS = 300
STEEPEST = 100.0
EVENLY = (1.0,) * HOUR_BINS
"""Any time of the stay, where nobody knows when the outcome begins."""


def find_judged_windows(
    series: Series, outcome: str, steps: int, weights: Sequence[float] = ()
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the one window of each patient ends (0: it has none), and whether it has the outcome.

    That is the first window that ends with the outcome; of patients who never have it, one that is drawn with these
    `weights` of `HOURS`, or the last one without weights.
    """
    ends, positive = find_windows(series, outcome, steps)
    if not len(weights) or positive.all():
        return ends, positive
    starts, owners = series.starts, np.repeat(np.arange(len(series)), np.diff(series.starts))
    cells = np.arange(len(owners)) - starts[:-1][owners]
    free = np.flatnonzero((cells >= steps - 1) & (series.stays[outcome] == 0) & ~positive[owners])
    if not len(free):
        return ends, positive
    own, bins = owners[free], _find_bins(cells[free] + 1, series.step_hours)
    # The weight of an hour is shared by the patient's own windows in it.
    alike = np.bincount(own * HOUR_BINS + bins, minlength=len(series) * HOUR_BINS)
    chance = np.asarray(weights, dtype=np.float64)[bins] / alike[own * HOUR_BINS + bins]
    chance = np.where(chance > 0, chance, 1e-12)
    reached = np.cumsum(chance)
    begins = np.flatnonzero(np.diff(own, prepend=-1))
    before = np.concatenate(([0.0], reached[np.concatenate((begins[1:] - 1, [len(own) - 1]))]))
    turn = before[:-1] + _draw_turns(series)[own[begins]] * np.diff(before)
    chosen = np.clip(
        np.searchsorted(reached, turn, side="right"), begins, np.concatenate((begins[1:], [len(own)])) - 1
    )
    ends[own[begins]] = cells[free[chosen]] + 1
    return ends, positive


def _find_bins(ends: NDArray[np.int64], step_hours: float) -> NDArray[np.intp]:
    return np.searchsorted(np.array(HOURS), ends * step_hours, side="left")


def _draw_turns(series: Series) -> NDArray[np.float64]:
    """A number from 0 to 1 for each patient, from what was measured of it: nobody else's coming or going moves it."""
    turns: NDArray[np.float64] = (series.hashes[0] >> np.uint64(11)).astype(np.float64) / 2.0**53
    return turns


def count_hours(series: Series, outcome: str, steps: int) -> NDArray[np.int64]:
    """[2, hours]: how many patients have the outcome first at these hours, and how many never do and have their last
    window there."""
    ends, positive = find_windows(series, outcome, steps)
    there = ends > 0
    bins = _find_bins(ends, series.step_hours)
    return np.array(
        [
            np.bincount(bins[there & (positive == ill)], minlength=HOUR_BINS).astype(np.int64)
            for ill in (True, False)
        ]
    )


def match_controls(counts: NDArray[np.int64], deviation: float) -> tuple[float, ...]:
    """With which weights controls draw their hours, so that they end as those of cases do, as nearly as stays allow.

    A control whose last window is in one bin can draw from all bins up to it; the weights are found by fitting the
    shares that follow to those of cases, bin by bin, again and again.
    """
    last = np.maximum(counts[1], 0) + 1e-9
    at_risk = np.cumsum(last[::-1])[::-1]
    # What noise alone could have made of nobody is nobody.
    seen = (counts[0] > 2 * deviation) & (at_risk > 3 * deviation * math.sqrt(HOUR_BINS))
    cases = np.where(seen, counts[0], 0).astype(np.float64)
    if cases.sum() <= 3 * deviation * math.sqrt(HOUR_BINS):
        return EVENLY
    wanted = cases / cases.sum()
    weights = wanted.copy()
    for _ in range(ROUNDS):
        reach = np.maximum(np.cumsum(weights), 1e-12)
        drawn = weights * np.cumsum((last / reach)[::-1])[::-1]
        share = drawn / max(drawn.sum(), 1e-12)
        weights = weights * np.sqrt(wanted / np.maximum(share, 1e-9))
        weights = np.minimum(weights / weights.sum(), STEEPEST * wanted)
    return tuple(round(float(weight), 6) for weight in weights / weights.max())
