"""Outcomes by a horizon, for methods that learn yes or no, where some patients were not followed so long.

The target says whether the event happened, another column when. A patient with the event before the horizon has it,
one who was followed to the horizon has not, and of one who was censored before nobody knows: such a patient is left
out. What remains would overstate risks, since of those with the event nobody is left out. So of patients with the event
in a cell of time the share `kept` stays: that of all patients who, in that cell, were still to be followed to the
horizon. Those left are as if nobody had been censored (inverse probability of censoring, by thinning rather than by
weights: every kind of question, release and model works as it does for any other target). Assumption: being censored
says nothing about the event. docs/methods.md, section 9.7.

Whom a site keeps follows from the patient's own record, the site's key and the public `kept` alone, as with patients
who are held out (held_out.py): one patient more or fewer changes nobody else's outcome, so that the price of a private
question covers the same. Under `exact` and `masked` nobody is protected who would not be by a query of these times.
"""

from __future__ import annotations

from itertools import pairwise
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import Attribute, recode
from concilium.protocol.cohort import View
from concilium.protocol.held_out import recall_tickets, share_tickets
from concilium.records.blocks import fill_room, read_block
from concilium.records.columns import Coded, label
from concilium.records.row_hashes import mix

MOST_CELLS = 100
APART_FROM_HELD_OUT = 3000
NO_EVENT, EVENT = 1, 2

_followed: WeakKeyDictionary[View, tuple[tuple[FollowedOutcome, str], View]] = WeakKeyDictionary()


class FollowedOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The event is the `positive` value of the target at a `time`, in cells that end at `times`, at the horizon the
    last; `rest` stands for patients without it."""

    time: str
    positive: str | int | float | bool
    rest: str | int | float | bool
    times: tuple[float, ...]
    kept: tuple[float, ...]

    @property
    def attribute(self) -> Attribute:
        """The time in its cells: missing, below zero, those of follow-up, from the horizon on."""
        return Attribute(self.time, (0.0, *self.times))

    def check(self) -> None:
        """MessageError unless times and shares fit together."""
        if not 1 <= len(self.times) <= MOST_CELLS or len(self.kept) != len(self.times):
            raise MessageError(
                f"an outcome by a horizon has 1 to {MOST_CELLS} cells of time, a share for each"
            )
        if any(not low < high for low, high in pairwise((0.0, *self.times))):
            raise MessageError("the cells of an outcome by a horizon must rise from zero")
        if not all(0 <= low <= high <= 1 for low, high in pairwise((*self.kept, 1.0))):
            raise MessageError(
                "of patients with a later event no smaller share stays, and never more than all"
            )
        if label(self.positive) == label(self.rest) or self.time == "":
            raise MessageError("an outcome by a horizon has a time, and two values")

    def see(self, view: View, target: str) -> View:
        """The same patients with this outcome as their target, missing where it is not known, and without the time."""
        asked = (self, target)
        last = _followed.get(view)
        if last is None or last[0] != asked:
            codes, cells = recode(self.attribute, view)
            column = view.coded(target)
            events = np.array([False, *(label(one) == label(self.positive) for one in column.values)])
            tickets = recall_tickets(view)

            def place(block: slice) -> NDArray[np.uint8]:
                own = read_block(column.codes, block)
                placed = self.place(
                    cells[read_block(codes, block)] - 2, events[own], read_block(tickets, block)
                )
                return np.where(own == 0, np.uint8(0), placed)

            placed = fill_room(len(codes), np.uint8, view.room, place)
            outcome = Coded.trust(placed, (self.rest, self.positive))
            last = asked, share_tickets(view, view.with_outcome(target, outcome, self.time))
            _followed[view] = last
        return last[1]

    def place(
        self, cell: NDArray[np.integer], events: NDArray[np.bool_], tickets: NDArray[np.uint64]
    ) -> NDArray[np.uint8]:
        """For each patient no event, the event, or 0: not known, or left out. `cell` is that of the time, below zero
        where there is none."""
        last = len(self.times)
        inside = (cell >= 0) & (cell < last)
        drawn = mix(tickets, APART_FROM_HELD_OUT).astype(np.float64) / 2.0**64
        stays = drawn < np.array([*self.kept, 0.0])[np.where(inside, cell, last)]
        outcome = np.where(cell >= last, NO_EVENT, 0) + np.where(inside & events & stays, EVENT, 0)
        return outcome.astype(np.uint8)


def find_kept(events: NDArray[np.float64], censored: NDArray[np.float64], followed: float) -> list[float]:
    """The share of patients with the event that stays in each cell: how likely a patient who is followed to the middle
    of that cell is to be followed to the horizon (life table: of those with the event, half are at risk)."""
    left = np.cumsum(events + censored)
    at_risk = followed + left[-1] - left + censored + events / 2
    on = 1 - np.clip(np.divide(censored, at_risk, where=at_risk > 0, out=np.zeros_like(at_risk)), 0.0, 1.0)
    ends = np.cumprod(on)
    middles = np.sqrt(ends * np.concatenate([[1.0], ends[:-1]]))
    shares = np.divide(ends[-1], middles, where=middles > 0, out=np.zeros_like(middles))
    kept: list[float] = np.maximum.accumulate(np.clip(shares, 0.0, 1.0)).tolist()
    return kept
