"""The first question (docs/methods.md, section 1.11): how many patients have the positive class, how many do not?

A site opts out by itself where an expert would learn from fewer than four of its patients, or where it has no positive
one: statistics of so few can be traced back to people, and there is nothing rare to learn. It then tells that,
and no count. Under `exact` the house sees the counts of every other site. Under `masked` nobody opts out: such a site
adds nothing to any sum, and the house sees the sum of all class counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from concilium.protocol.attributes import present
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import EXACT, Gathered, Reply
from concilium.protocol.sample import LEAST_PATIENTS, Sample, is_positive
from concilium.protocol.schema import MOST_LISTED, list_classes
from concilium.protocol.work import READ_CATEGORY, READING, Workload

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

TOO_FEW = f"fewer than {LEAST_PATIENTS} patients to learn from"
NO_POSITIVE = "no positive patient"
WITHHELD = "its policy does not let such counts out"


class ClassCounts(Reply, frozen=True, kw_only=True):
    """A site's patients by class, or why it opts out. `values` are those of the target that occur."""

    negatives: Annotated[int, msgspec.Meta(ge=0)] = 0
    positives: Annotated[int, msgspec.Meta(ge=0)] = 0
    values: tuple[str | int | float | bool, ...] = ()
    opts_out: str | None = None

    @property
    def numbers(self) -> int:
        """Two counts, and each value that is told to occur."""
        return 2 + len(self.values)

    @property
    def leaves(self) -> str | None:
        return self.opts_out


class AskClassCounts(Gathered[ClassCounts], frozen=True, kw_only=True):
    """How many patients of this query are positive, how many are not?"""

    kind: ClassVar[str] = "tree.classes"
    releases: ClassVar[frozenset[str]] = EXACT
    reply: ClassVar[type[ClassCounts]] = ClassCounts

    sample: Sample

    @property
    def fixed(self) -> Mapping[str, Any]:
        return self.sample.fixed

    def check(self, release: Release) -> None:
        self.sample.check_release(release)

    def estimate(self, patients: int, columns: int) -> Workload:
        return self.sample.estimate(patients) + Workload(
            READ_CATEGORY * patients, READING * patients + 16 * min(patients, MOST_LISTED)
        )

    def compute(self, cohort: Cohort) -> ClassCounts:
        positives = int(is_positive(cohort, self.target, self.sample.positive).sum())
        negatives = len(cohort) - positives
        learning = self.sample.choose(cohort, self.query, self.target) if positives else cohort
        if len(learning) < LEAST_PATIENTS:
            return ClassCounts(opts_out=TOO_FEW)
        if cohort.guard.on and cohort.guard.withholds_classes(np.array([negatives, positives])):
            return ClassCounts(opts_out=WITHHELD)
        values = tuple(list_classes(cohort, self.target))
        if not positives:
            return ClassCounts(values=values, opts_out=NO_POSITIVE)
        return ClassCounts(negatives=negatives, positives=positives, values=values)

    def unite(self, replies: Sequence[ClassCounts]) -> ClassCounts:
        """The patients of a region by class, or why it opts out: the reasons of its sites, without their names."""
        staying = [counts for counts in replies if counts.opts_out is None]
        return ClassCounts(
            negatives=sum(counts.negatives for counts in staying),
            positives=sum(counts.positives for counts in staying),
            values=present(value for counts in staying or replies for value in counts.values),
            opts_out=None if staying else ", ".join(sorted({str(counts.opts_out) for counts in replies})),
        )
