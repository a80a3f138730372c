"""What a ward asks of a score at every hour of a stay: how well it tells sepsis so many hours ahead, how many alarms
that takes, and how early they come.

AUROC at a time before onset: positive are the steps h hours (or those of an interval) before a patient's onset. They
are compared with steps of patients who have no onset, or whose onset is later than that, *at the same time since
admission*: cases come late in long stays, and a score that only counts hours would look good beside controls taken from
anywhere. Steps are matched in spans of time since admission, each pair within a span counts, spans count by their cases
(a stratified AUROC). `matched=False` is the paper's way, against all steps.

Intervals are 95 % percentiles of a bootstrap of patients. Nothing here is protected: it is for patients at hand.
docs/methods.md, section 8.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.evaluation.metrics import weighted_auc

Reals = NDArray[np.float64]

HORIZONS: Mapping[str, tuple[float, float]] = {
    "4h": (4, 4),
    "8h": (8, 8),
    "12h": (12, 12),
    "12h-8h": (8, 12),
    "24h-12h": (12, 24),
}
"""The paper's times before onset, in hours: the least and the largest."""
SPANS = (6, 12, 18, 24, 36, 48, 72, 96, 144)
"""Hours since admission at which spans begin within which steps are compared."""
DRAWS = 200
WARNED_HOURS = 48.0
"""An alarm so long before an onset, at most, is for it."""


class _HorizonAuroc(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ScoredStays:
    """`scores` of every step, stays one after the other between `starts`; `onsets` in steps from the beginning of each
    stay, infinite where there is none; `step_hours` is how long a step takes."""

    scores: Reals
    starts: NDArray[np.integer]
    onsets: Reals
    step_hours: float = 1.0

    @property
    def owners(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def steps(self) -> NDArray[np.intp]:
        """Of each cell, how many steps of its stay came before."""
        begins: NDArray[np.intp] = np.repeat(self.starts[:-1], np.diff(self.starts)).astype(np.intp)
        return np.arange(len(self.scores), dtype=np.intp) - begins


def measure_horizons(
    stays: ScoredStays, *, matched: bool = True, draws: int = DRAWS
) -> dict[str, _HorizonAuroc | None]:
    """The AUROC at each of the paper's times before onset; None where the patients cannot tell."""
    found = {}
    before = (np.repeat(stays.onsets, np.diff(stays.starts)) - stays.steps) * stays.step_hours
    for name, (last, first) in HORIZONS.items():
        counted = before >= last
        positive = counted & (before <= first)
        spans = np.searchsorted(SPANS, stays.steps * stays.step_hours, side="right") if matched else None
        found[name] = _estimate(stays, counted, positive, spans, draws)
    return found


def _estimate(
    stays: ScoredStays,
    counted: NDArray[np.bool_],
    positive: NDArray[np.bool_],
    spans: NDArray[np.intp] | None,
    draws: int,
) -> _HorizonAuroc | None:
    cells = np.flatnonzero(counted)
    spans = np.zeros(len(cells), dtype=np.intp) if spans is None else spans[cells]
    parts = [cells[spans == one] for one in np.unique(spans[positive[cells]])]
    owners, patients = stays.owners, len(stays.starts) - 1

    def weigh(times: Reals) -> float | None:
        """The mean over spans of their AUROCs, by their cases, where patients count so many times."""
        total = won = 0.0
        for part in parts:
            weights = times[owners[part]]
            own = float(weighted_auc(positive[part], stays.scores[part], weights[None])[0])
            cases = float(weights[positive[part]].sum())
            if not np.isnan(own):
                total, won = total + cases, won + cases * own
        return won / total if total else None

    value = weigh(np.ones(patients))
    if value is None:
        return None
    dice = np.random.default_rng(1)
    drawn = [
        weigh(dice.multinomial(patients, np.full(patients, 1 / patients)).astype(float)) for _ in range(draws)
    ]
    known = [one for one in drawn if one is not None] or [value]
    low, high = np.quantile(known, [0.025, 0.975])
    return _HorizonAuroc(value, float(low), float(high))


class Alarms(msgspec.Struct, frozen=True):
    """What it takes to find this share of the patients with an onset (`sensitivity`).

    Alarms ring at a `threshold`: so many in a day of a patient without onset (`per_patient_day`), and in the median so
    many `lead_hours` before one. `precision` is the share of patients with an alarm who have an onset.
    """

    sensitivity: float
    threshold: float
    per_patient_day: float
    lead_hours: float
    precision: float


def count_alarms(stays: ScoredStays, sensitivity: float, *, silent_hours: float = 6.0) -> Alarms | None:
    """Alarms at the highest threshold at which so many of the patients with an onset have one in the hours before it.

    An alarm is silent for `silent_hours` after it rang. Steps from onset on do not count, for anybody. None where no
    patient has an onset after the first step.
    """
    onsets, owners = stays.onsets, stays.owners
    before = (onsets[owners] - stays.steps) * stays.step_hours
    counted = before > 0
    warned = counted & (before <= WARNED_HOURS)
    ill = np.flatnonzero(np.bincount(owners[warned], minlength=len(onsets)) > 0)
    if not len(ill):
        return None
    highest = np.full(len(onsets), -np.inf)
    np.maximum.at(highest, owners[warned], stays.scores[warned])
    needed = max(1, int(np.ceil(sensitivity * len(ill))))
    threshold = float(np.sort(highest[ill])[::-1][needed - 1])
    silent = max(1, round(silent_hours / stays.step_hours))
    rings = _ring(counted & (stays.scores >= threshold), owners, stays.steps, silent)
    alarmed = np.zeros(len(onsets), dtype=np.bool_)
    alarmed[owners[rings]] = True
    of_others = ~np.isfinite(onsets)
    days = max(float((counted & of_others[owners]).sum()) * stays.step_hours / 24, 1e-9)
    first = np.full(len(onsets), np.inf)
    np.minimum.at(first, owners[rings & warned], stays.steps[rings & warned])
    found = ill[np.isfinite(first[ill])]
    leads = (onsets[found] - first[found]) * stays.step_hours
    return Alarms(
        float((highest[ill] >= threshold).mean()),
        threshold,
        float((rings & of_others[owners]).sum()) / days,
        float(np.median(leads)) if len(leads) else 0.0,
        float(np.isfinite(onsets[alarmed]).mean()),
    )


def _ring(
    above: NDArray[np.bool_], owners: NDArray[np.intp], steps: NDArray[np.intp], silent: int
) -> NDArray[np.bool_]:
    """At which of the steps above the threshold an alarm rings, one stay after the other."""
    rings = np.zeros(len(above), dtype=np.bool_)
    owner, quiet_until = -1, 0
    for cell in np.flatnonzero(above):
        if owners[cell] != owner:
            owner, quiet_until = int(owners[cell]), 0
        if steps[cell] >= quiet_until:
            rings[cell] = True
            quiet_until = int(steps[cell]) + silent
    return rings
