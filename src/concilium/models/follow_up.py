"""Outcomes by a horizon, where some patients were not followed so long.

A model of survival tells the risk of an event by a horizon. Of who was censored before, nobody knows the outcome. To
leave such patients out overstates risks, and to count them as free of the event understates them. So hospitals count
patients by when and how their follow-up ended (models/risk_counts.py). The house shares those who were censored between
both outcomes, as patients of like predicted risk fared from then to the horizon (Kaplan and Meier 1958; within groups
of risk: Heagerty, Lumley and Pepe, Biometrics 56, 2000). Assumption: among patients of like risk, being censored says
nothing about the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.prediction import KnownOutcomes, NewPatients
from concilium.protocol.attributes import Attribute, recode
from concilium.protocol.followed_outcome import FollowedOutcome, find_kept
from concilium.records.columns import label

if TYPE_CHECKING:
    from concilium.models.method import Method

Floats = NDArray[np.float64]
# Cells of time up to the horizon: without noise, and with it. Groups of risk have so many patients, and there are so
# many groups at most. Of fewer at risk than the last, all patients tell how those fare.
CELLS, NOISY_CELLS = 20, 4
IN_GROUP, MOST_GROUPS, FEW = 50, 10, 5


@dataclass(frozen=True)
class Followed:
    """Up to which `horizon` of which `time` a model tells the risk of the event; `competing` ends rule it out."""

    time: str
    horizon: float
    competing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.time} = {self.horizon:.4g}"

    def cut(self, *, noisy: bool) -> tuple[float, ...]:
        """The ends of cells of equal width up to the horizon."""
        cells = NOISY_CELLS if noisy else CELLS
        return (*(self.horizon * cell / cells for cell in range(1, cells)), self.horizon)


class FollowUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which share of measured patients was `censored` before the `horizon` of a `time`; and of pairs of patients of
    whom one had the event first, in how many that one had the higher predicted risk (`concordance`; without noise)."""

    time: str
    horizon: float
    censored: float
    concordance: float | None = None

    def say(self) -> str:
        """The same as a sentence."""
        agreed = "" if self.concordance is None else f"; concordance {self.concordance:.3f}"
        return (
            f"outcomes are those by {self.time} = {self.horizon:.4g}: {self.censored:.0%} of the patients were "
            f"censored before, and count by how patients of like risk fared{agreed}"
        )


def place_ends(
    cell: NDArray[np.int32], cells: int, events: NDArray[np.int64], competing: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each patient the column of a table of ends: censored in a cell (2 cell) or with the event there (2 cell + 1);
    last, without it at the horizon, after all cells. -1 where the cell is below zero: nothing is known of it."""
    ends = np.where((cell == cells) | (competing == 1), 2 * cells, 2 * cell + events)
    return np.where(cell < 0, -1, ends).astype(np.int64)


def know_by_horizon(model: Method[Any], followed: Followed, found: KnownOutcomes) -> KnownOutcomes:
    """Those of the patients whose outcome by the horizon counts, by how these patients themselves were followed: as
    hospitals choose whom to learn from (protocol/followed_outcome.py)."""
    times, classes = followed.cut(noisy=False), model.classes_
    positive = getattr(model, "positive", None)
    labels = [label(one) for one in classes]
    place = labels.index(label(positive)) if positive is not None and label(positive) in labels else 1
    codes, cells = recode(Attribute(followed.time, (0.0, *times)), NewPatients(found.asked))
    cell = cells[codes] - 2
    cell[(cell >= 0) & np.array([label(one) in followed.competing for one in found.truth])] = len(times)
    events = np.array([label(one) == labels[place] for one in found.truth], dtype=np.bool_)
    inside = (cell >= 0) & (cell < len(times))
    happened, censored = (
        np.bincount(cell[inside & chosen], minlength=len(times)).astype(np.float64)
        for chosen in (events, ~events)
    )
    kept = find_kept(happened, censored, float((cell == len(times)).sum()))
    values = [classes[1 - place], classes[place]]
    outcome = FollowedOutcome(
        time=followed.time, positive=values[1], rest=values[0], times=times, kept=tuple(kept)
    )
    placed = outcome.place(cell, events, np.arange(len(cell), dtype=np.uint64))
    known = np.flatnonzero(placed)
    return KnownOutcomes(
        found.asked.take(known), [values[one - 1] for one in placed[known].tolist()], found.rows[known]
    )


def share_censored(tables: Floats, whole: Floats) -> Floats:
    """Tables [..., bin, end] as tables [..., bin, outcome], by how the patients of `whole`, [bin, end], fared."""
    censored, events = tables[..., 0:-1:2], tables[..., 1::2].sum(axis=-1)
    late = (censored * _find_late_events(whole)).sum(axis=-1)
    everyone = tables.sum(axis=-1)
    return np.stack([everyone - events - late, events + late], axis=-1)


def _find_late_events(table: Floats) -> Floats:
    """For each bin of risk and cell of time, how likely the event still is by the horizon after being censored."""
    patients = np.maximum(table.sum(axis=1), 0.0)
    groups = int(np.clip(patients.sum() // IN_GROUP, 1, MOST_GROUPS))
    rank = (np.cumsum(patients) - patients / 2) / max(patients.sum(), 1.0)
    group = np.minimum((groups * rank).astype(int), groups - 1)
    sums = np.zeros((groups, table.shape[1]))
    np.add.at(sums, group, table)
    chance, at_risk = _find_hazards(np.maximum(sums, 0.0))
    of_all, _ = _find_hazards(np.maximum(table.sum(axis=0, keepdims=True), 0.0))
    survival = np.cumprod(1 - np.where(at_risk < FEW, of_all, chance), axis=1)
    before = np.concatenate([np.ones((groups, 1)), survival[:, :-1]], axis=1)
    then = np.sqrt(before * survival)
    late = 1 - np.divide(survival[:, -1:], then, where=then > 0, out=np.zeros_like(then))
    found: Floats = late[group]
    return found


def _find_hazards(ends: Floats) -> tuple[Floats, Floats]:
    """For each group and cell the chance of an event, and how many are at risk: of the censored, half."""
    censored, events = ends[:, 0:-1:2], ends[:, 1::2]
    left = np.cumsum(censored + events, axis=1)
    at_risk = ends.sum(axis=1, keepdims=True) - left + events + censored / 2
    chance = np.divide(events, at_risk, where=at_risk > 0, out=np.zeros_like(events))
    return np.clip(chance, 0.0, 1.0), at_risk


def describe_follow_up(followed: Followed, whole: Floats, *, noisy: bool) -> FollowUp:
    """What a table [bin, end] of all patients tells of their follow-up."""
    everyone = max(float(whole.sum()), 1.0)
    censored = float(np.clip(whole[:, 0:-1:2].sum() / everyone, 0.0, 1.0))
    return FollowUp(followed.time, followed.horizon, censored, None if noisy else _find_concordance(whole))


def _find_concordance(table: Floats) -> float | None:
    """Of pairs of which one has the event in an earlier cell than the other leaves, the share that risks rank rightly;
    those of one bin count half."""
    agreeing = pairs = 0.0
    for cell in range((table.shape[1] - 1) // 2):
        events, later = table[:, 2 * cell + 1], table[:, 2 * cell + 2 :].sum(axis=1)
        agreeing += float((events * (np.cumsum(later) - later / 2)).sum())
        pairs += float(events.sum() * later.sum())
    return agreeing / pairs if pairs else None
