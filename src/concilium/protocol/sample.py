"""Who one expert learns from, laid out inside a site (docs/methods.md, section 1.11).

Every expert has all positives of the site and `negatives` times as many negatives. The negatives stand in a circle,
in an order that hashing gives, and each expert takes the next ones: none is used again before all were used, and
the last turn is filled up from the first. The thesis draws at random; here the order follows from the question (query,
target and positive value) and from the row in the site's table, so that a repeated question finds the same patients, a
site needs no memory of earlier ones, and the house cannot aim at anyone: all it can do is ask in other words. It can
ask for two turns that differ by one patient, though, and differencing (protocol/disclosure.py) does not look at
samples, since honest turns of a site with few positives differ by few patients as well: a sample is told as `exact`
only, which protects nobody.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import Cohort
from concilium.protocol.work import Workload
from concilium.records.columns import Coded, Value, label
from concilium.records.row_hashes import mix

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_NEGATIVES = 1_000_000
# Statistics of fewer can be traced back to people, so that such a site opts out.
LEAST_PATIENTS = 4
# An ensemble stops long before; each expert goes over all patients.
MOST_EXPERTS = 1001


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All patients with the positive value, and the `expert`-th helping of `negatives` others for each of them.

    It is nobody where that would be fewer than four; without `negatives` it is everyone. Either way there are two
    classes: 0, not positive, and 1, positive. `everyone`: all patients, but nobody where that sample would be nobody;
    so under masks a site that would opt out of an `exact` study adds nothing, and nobody sees that it did.
    """

    positive: str | int | float | bool
    negatives: int | None = None
    expert: int = 0
    everyone: bool = False

    @property
    def fixed(self) -> dict[str, Any]:
        """What must be as the study's parameters say."""
        return {"positive": self.positive, "negatives": self.negatives}

    def check_release(self, release: Release) -> None:
        """MessageError where this release shows no such sample. One patient more changes who else is drawn, which the
        noise of a count would not cover."""
        if release.bounded:
            raise MessageError("a sample of patients is counted without noise only")
        if release.by_site:
            return
        if self.negatives is None:
            raise MessageError("under masks a sample says how many negatives an expert takes")
        if self.expert >= MOST_EXPERTS:
            raise MessageError(f"under masks experts are numbered 0 to {MOST_EXPERTS - 1}")

    def tells_apart(self, classes: Attribute) -> bool:
        """Whether these are its two classes."""
        named = [label(value) for value in classes.values]
        return named in ([label(self.positive)], []) and classes.inner == 1 and classes.other

    def check(self) -> None:
        if self.negatives is not None and not 1 <= self.negatives <= MOST_NEGATIVES:
            raise MessageError(f"an expert takes 1 to {MOST_NEGATIVES} negatives for each positive")
        if not 0 <= self.expert <= MOST_NEGATIVES:
            raise MessageError(f"experts are numbered 0 to {MOST_NEGATIVES}")

    def estimate(self, patients: int) -> Workload:
        """What choosing them takes."""
        return Workload(250 * patients, 96 * patients)

    def choose(self, cohort: Cohort, query: str, target: str) -> Cohort:
        """The patients of the cohort that the expert learns from, in table order."""
        if self.negatives is None:
            return cohort
        if self.everyone:
            return self.leave_out_unfit(cohort, query, target)
        positive = is_positive(cohort, target, self.positive)
        key = order_key(query, target, self.positive)
        others = take_turn(
            in_circle(cohort.rows[~positive], key), self.negatives * int(positive.sum()), self.expert
        )
        rows = np.sort(np.concatenate([cohort.rows[positive], others]))
        return replace(cohort, rows=rows if len(rows) >= LEAST_PATIENTS else rows[:0])

    def leave_out_unfit(self, cohort: Cohort, query: str, target: str) -> Cohort:
        """The cohort, or nobody of it where an expert could not learn from it (trees/ensemble.py)."""
        laid_out = msgspec.structs.replace(self, everyone=False).choose(cohort, query, target)
        return cohort if len(laid_out) else laid_out


def positive_codes(column: Coded, positive: Value) -> NDArray[np.bool_]:
    """For each code of a column whether it stands for the value (5 and '5' are one, as everywhere between sites)."""
    name = label(positive)
    return np.array([False, *(label(value) == name for value in column.values)])


def is_positive(cohort: Cohort, target: str, positive: Value) -> NDArray[np.bool_]:
    """For each patient of the cohort whether the target, which must be a category, has the value."""
    column = cohort.view.records[target]
    if not isinstance(column, Coded):
        raise DoesNotFit(f"the target {target!r} is a number; a tree predicts categories")
    positives: NDArray[np.bool_] = positive_codes(column, positive)[column.codes[cohort.rows]]
    return positives


def take_turn(circle: NDArray[np.int32], count: int, turn: int) -> NDArray[np.int32]:
    """The patients of a turn: `count` of the circle (all, where there are no more), after those of the turns before."""
    if count >= len(circle):
        return circle
    return circle[(turn * count + np.arange(count)) % len(circle)]


def in_circle(rows: NDArray[np.int32], key: int) -> NDArray[np.int32]:
    """The rows in the order of their hashes: SplitMix64's output function on row and key, which never ties."""
    return rows[np.argsort(mix(rows.astype(np.uint64), key))]


def order_key(query: str, target: str, positive: Value) -> int:
    """What the order of the negatives depends on, besides their rows."""
    words = "".join(f"{len(word)}:{word}" for word in (query, target, label(positive)))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little")
