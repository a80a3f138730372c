"""The first question of chapter 7 of the thesis: how many patients have the positive class, how many do not?

A site opts out by itself where an expert would learn from fewer than four of its patients, or where it has no positive
one (7.3): statistics of so few can be traced back to people, and there is nothing rare to learn. It then tells that,
and no count. Under `exact` the house sees the counts of every other site.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np

from concilium.federation.cohort import Cohort
from concilium.federation.questions import Gathered
from concilium.federation.schema import list_classes
from concilium.records.table import Value, label
from concilium.trees.layout import LEAST_PATIENTS, Sample, is_positive

TOO_FEW = f"fewer than {LEAST_PATIENTS} patients to learn from"
NO_POSITIVE = "no positive patient"
WITHHELD = "its policy does not let such counts out"


def name_rest(positive: Value) -> str:
    """What all other values of a target are called together."""
    return f"not {label(positive)}"


class ClassCounts(Gathered, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site's patients by class, or why it opts out. `values` are those of the target that occur."""

    negatives: Annotated[int, msgspec.Meta(ge=0)] = 0
    positives: Annotated[int, msgspec.Meta(ge=0)] = 0
    values: tuple[str | int | float | bool, ...] = ()
    opts_out: str | None = None

    @property
    def numbers(self) -> int:
        """Two counts, and each value that is told to occur."""
        return 2 + len(self.values)


class AskClassCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients of this query are positive, how many are not?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact"})
    additive: ClassVar[bool] = False

    query: str
    target: str
    sample: Sample

    def check(self, release: str) -> None:
        self.sample.check()

    def compute(self, cohort: Cohort, template: bytes) -> ClassCounts:
        positives = int(is_positive(cohort, self.target, self.sample.positive).sum())
        negatives = len(cohort) - positives
        learning = self.sample.choose(cohort, self.query, self.target) if positives else cohort
        if len(learning) < LEAST_PATIENTS:
            return ClassCounts(opts_out=TOO_FEW)
        if cohort.guard.on and cohort.guard.withholds_classes(np.array([negatives, positives])):
            return ClassCounts(opts_out=WITHHELD)
        present = tuple(list_classes(cohort, self.target))
        if not positives:
            return ClassCounts(values=present, opts_out=NO_POSITIVE)
        return ClassCounts(negatives=negatives, positives=positives, values=present)
