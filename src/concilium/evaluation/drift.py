"""Whether a model still is what it was: its figures on patients of a later time beside those of its card.

Calibration (intercept, slope, observed over expected outcomes), discrimination (AUC) and case mix: the mean predicted
risk, and the shares of patients by predicted risk. Of these the population stability index is the sum of the
divergences in both directions (Kullback and Leibler 1951). All of it follows from tables of predicted risk by outcome,
which were paid for, and tells no more.

A change has the interval of a difference of two estimates with intervals of their own (Newcombe, Statistics in
Medicine 17, 1998, method 10), which include the noise. It raises an alarm where an interval of 99.5 % leaves zero out,
since several figures are looked at, and the change is one that matters: with many patients the smallest one is sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from concilium.evaluation.risk_tables import measure_table
from concilium.models.intervals import WITHIN_95
from concilium.models.measuring import RiskTable
from concilium.protocol.card import Performance

# From which change on a figure matters: in log odds, as a slope, as an area, and as a share of what it was.
MATTERS = {"intercept": 0.2, "slope": 0.2, "auc": 0.05, "mean_risk": 0.2}
NAMES = {
    "auc": "AUC",
    "intercept": "calibration intercept",
    "slope": "calibration slope",
    "observed_expected": "observed / expected",
    "mean_risk": "mean predicted risk",
    "brier": "Brier score",
}
GROUPS = 5
UNSTABLE = 0.25  # the usual rule of thumb for the index
DEVIATIONS = 3.0
SURE = NormalDist().inv_cdf(0.9975) / WITHIN_95


def describe_performance(table: RiskTable, evaluation: str) -> Performance | None:
    """What a model's card keeps of a table: figures with intervals, and shares by predicted risk; None where it cannot
    tell. No group has much less than a fifth of the patients, so that the card shows no small count."""
    figures, intervals = measure_table(table, table.counts)
    if figures["auc"] is None:
        return None
    everyone = np.maximum(np.array(table.counts, dtype=np.float64).sum(axis=1), 0.0)
    reached = np.cumsum(everyone) / everyone.sum()
    wanted = np.arange(1, GROUPS) / GROUPS
    ends = sorted({int(place) for place in np.searchsorted(reached, wanted) if place < len(table.edges)})
    edges = [table.edges[place] for place in ends]
    known = {name: between for name in NAMES if (between := intervals.get(name)) is not None}
    return Performance(
        evaluation=evaluation,
        patients=int(everyone.sum()),
        figures={name: value for name in NAMES if (value := figures[name]) is not None},
        intervals=known,
        edges=edges,
        shares=_share(table, edges).tolist(),
        noise=_find_noise(table),
    )


def find_drift(before: Performance, table: RiskTable) -> dict[str, Any] | None:
    """How the figures of a later table differ from those of the card, and what to be alarmed about; None where the
    table cannot tell."""
    now = describe_performance(table, "")
    if now is None:
        return None
    changes = {name: change for name in NAMES if (change := _compare(name, before, now)) is not None}
    shares = _share(table, before.edges)
    index, by_chance = _find_instability(before, now, shares)
    return {
        "before": before.evaluation,
        "figures": changes,
        "edges": list(before.edges),
        "shares": {"before": list(before.shares), "now": shares.tolist()},
        "stability_index": index,
        "alarms": [*_judge(changes), *_judge_mix(before, shares, index, by_chance)],
    }


def _compare(name: str, before: Performance, now: Performance) -> dict[str, Any] | None:
    then, later = before.figures.get(name), now.figures.get(name)
    if then is None or later is None:
        return None
    interval = None
    if name in before.intervals and name in now.intervals:
        (low, high), (later_low, later_high) = before.intervals[name], now.intervals[name]
        below, above = math.hypot(later - later_low, high - then), math.hypot(later_high - later, then - low)
        interval = [later - then - below, later - then + above]
    return {"before": then, "now": later, "change": later - then, "interval": interval}


def _judge(changes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What has changed by more than chance, and by so much that it matters."""
    for name, matters in MATTERS.items():
        one = changes.get(name)
        if one is None or one["interval"] is None or not _is_sure(one["change"], *one["interval"]):
            continue
        least = matters * one["before"] if name == "mean_risk" else matters
        if abs(one["change"]) < least:
            continue
        low, high = one["interval"]
        yield (
            f"{NAMES[name]} {one['now']:.2f}, where it was {one['before']:.2f} (change {one['change']:+.2f}, "
            f"95% interval {low:+.2f} to {high:+.2f}): {_explain(name, one['change'])}"
        )


def _is_sure(change: float, low: float, high: float) -> bool:
    """Whether the 95 % interval leaves zero out when it is widened to 99.5 %."""
    return change - SURE * (change - low) > 0 or change + SURE * (high - change) < 0


def _explain(name: str, change: float) -> str:
    if name == "intercept":
        return f"predicted risks are too {'low' if change > 0 else 'high'} now; recalibrate it"
    if name == "slope":
        return (
            f"predicted risks are {'not extreme enough' if change > 0 else 'too extreme'} now; recalibrate it"
        )
    if name == "auc":
        return f"it tells patients apart {'better' if change > 0 else 'worse'} than it did"
    return f"patients have a {'higher' if change > 0 else 'lower'} risk than those it was measured on"


def _judge_mix(
    before: Performance, shares: np.ndarray[Any, Any], index: float, by_chance: float
) -> Iterator[str]:
    if index < UNSTABLE or index <= by_chance:
        return
    most = int(np.argmax(np.abs(shares - np.array(before.shares))))
    ends = [0.0, *before.edges, 1.0]
    yield (
        f"other patients than before (stability index {index:.2f}, {UNSTABLE} is too much): {shares[most]:.0%} have a "
        f"predicted risk of {ends[most]:.2g} to {ends[most + 1]:.2g}, where it was {before.shares[most]:.0%}"
    )


def _share(table: RiskTable, edges: Sequence[float]) -> np.ndarray[Any, Any]:
    """The share of patients between each two edges, by what stands for each bin."""
    patients = np.array(table.counts, dtype=np.float64).sum(axis=1)
    places = np.searchsorted(edges, table.risks, side="right")
    groups = np.maximum(np.bincount(places, weights=patients, minlength=len(edges) + 1), 0.0)
    shares: np.ndarray[Any, Any] = groups / max(groups.sum(), 1.0)
    return shares


def _find_noise(table: RiskTable) -> float:
    """What the noise of all cells adds to the variance of a share, of one of which nobody is."""
    everyone = max(1.0, float(np.sum(table.counts)))
    return 2 * len(table.risks) * table.variance / everyone**2


def _find_instability(
    before: Performance, now: Performance, shares: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """The population stability index, and what it would be by chance at most: its mean and three standard deviations
    where nothing has changed (Yurdakul and Naranjo, Journal of Risk Model Validation 14, 2020), and the noise."""
    least = 0.5 / max(1, min(before.patients, now.patients))
    then, later = np.maximum(before.shares, least), np.maximum(shares, least)
    index = float(((later - then) * np.log(later / then)).sum())
    free = max(1, len(then) - 1)
    scale = 1 / max(1, before.patients) + 1 / max(1, now.patients) + before.noise + now.noise
    return index, (free + DEVIATIONS * (2 * free) ** 0.5) * scale
