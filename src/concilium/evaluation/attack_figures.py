"""How well an attack tells members from others: advantage, AUC, and how many members are found at few false alarms.

Scores are higher the more a patient looks like a member. The advantage is the share of members above a threshold minus
that of others (Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning, 2018). An average hides attacks
that are sure of a few patients only, so that the share of members found while 1 % and 0.1 % of the others are taken
for members counts as well (Carlini et al.: Membership Inference Attacks From First Principles, 2022). Between two
thresholds an attacker may toss a coin, so that curves are straight there, and an attack that knows nothing finds 1 %
at 1 %.

Intervals are 95 % percentiles of 1,000 resamples, members and others each drawn with replacement. They say how
much the figures would differ for other patients of the same model, not for another model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError

Floats = NDArray[np.float64]

RESAMPLES = 1000
FALSE_ALARMS = (0.01, 0.001)
TAILS = (2.5, 97.5)
ROUNDING = 1e-9


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure and where it lies at 95 %."""

    value: float
    low: float
    high: float


class AttackFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`found` are the shares of members found at so many false alarms, by that share as text; None where there are too
    few others to tell."""

    members: int
    others: int
    advantage: Estimate
    auc: Estimate
    found: dict[str, Estimate | None]


def measure_attack(
    members: Floats,
    others: Floats,
    choose_threshold: Callable[[float], float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AttackFigures:
    """The figures of an attack with these scores. `choose_threshold` is given the mean score of the members (drawn)."""
    if not len(members) or not len(others):
        raise ModelError("an attack is measured on at least one member and one other patient")
    levels, places = np.unique(-np.concatenate([members, others]), return_inverse=True)
    inside, outside = places[: len(members)], places[len(members) :]

    def look(inside: NDArray[np.intp], outside: NDArray[np.intp]) -> list[float]:
        counts = [np.bincount(drawn, minlength=len(levels)) for drawn in (inside, outside)]
        curve = Curve(*(count.cumsum() / count.sum() for count in counts))
        threshold = choose_threshold(float(-(counts[0] @ levels) / len(inside)))
        at = int(np.searchsorted(levels, -threshold, side="right")) - 1
        return [curve.advantage(at), curve.area(), *(curve.found_at(alarms) for alarms in FALSE_ALARMS)]

    measured = look(inside, outside)
    draw = np.random.default_rng(seed)
    drawn = np.array(
        [look(draw.choice(inside, len(inside)), draw.choice(outside, len(outside))) for _ in range(resamples)]
    )
    low, high = np.percentile(drawn, TAILS, axis=0)
    estimates = [
        Estimate(value, float(least), float(most))
        for value, least, most in zip(measured, low, high, strict=True)
    ]
    return AttackFigures(
        len(members),
        len(others),
        estimates[0],
        estimates[1],
        {
            str(alarms): estimate if len(others) * alarms >= 1 else None
            for alarms, estimate in zip(FALSE_ALARMS, estimates[2:], strict=True)
        },
    )


@dataclass(frozen=True)
class Curve:
    """The shares of members and of others at or above each score, the highest score first (ROC)."""

    members: Floats
    others: Floats

    def advantage(self, at: int) -> float:
        """With the threshold at one of the scores; before the first (-1) nobody is taken for a member."""
        return float(self.members[at] - self.others[at]) if at >= 0 else 0.0

    def area(self) -> float:
        """The chance that a member scores above another patient, ties counting half."""
        members, others = np.append(0.0, self.members), np.append(0.0, self.others)
        return float(np.diff(others) @ (members[1:] + members[:-1]) / 2)

    def found_at(self, alarms: float) -> float:
        """The share of members found while this share of the others is taken for members."""
        members, others = np.append(0.0, self.members), np.append(0.0, self.others)
        at = int(np.searchsorted(others, alarms, side="right")) - 1
        if at == len(others) - 1:
            return float(members[at])
        further = (alarms - others[at]) / (others[at + 1] - others[at])
        return float(members[at] + further * (members[at + 1] - members[at]))


def measure_threshold_attack(
    members: Floats, others: Floats, *, resamples: int = RESAMPLES, seed: int = 0
) -> AttackFigures:
    """Yeom's attack on these losses: whoever is predicted no worse than members are on average is taken for one."""

    def choose(mean: float) -> float:
        return mean - ROUNDING * abs(mean)  # where all members have the same loss, their mean is that

    return measure_attack(-members, -others, choose, resamples=resamples, seed=seed)
