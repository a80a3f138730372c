"""How an ensemble of trees votes at the sites: confusion counts to be added up (docs/methods.md, section 1.13).

The question carries all experts, so that a site needs no memory of earlier ones. Under `exact` the house sees four
numbers of every site: patients by class and by the ensemble's vote; under `masked` their sums over all sites.

The patients are all of the query at the sites that take part.
Every expert has learned from all the positives among them, so that what comes out is good enough to compare ensembles
and too good for new patients. The thesis compares ensembles on bands of hospitals left out in turn, which would take as
many ensembles as bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.attributes import check_attributes
from concilium.federation.cohort import Cohort
from concilium.federation.decision import CallingRule
from concilium.federation.questions import PLAIN
from concilium.federation.work import CALL, READ_CATEGORY, Workload, estimate_columns
from concilium.trees.conditional import Conditional
from concilium.trees.layout import MOST_EXPERTS, Sample, is_positive
from concilium.trees.routing import route
from concilium.trees.site_columns import find_columns
from concilium.trees.splits import Split, check_tree, estimate_routing, find_branchings

Rule = Literal["balanced", "majority"]
# Patients by class, negative first.
Counted = Sequence[int] | NDArray[np.int64]


def is_for_positive(patients: Counted, sample: Counted, rule: Rule, lift: Fraction | None = None) -> bool:
    """Whether an expert votes positive where it knows these patients (negative, positive) of its whole sample.

    `majority` is the thesis': where most of them are positive. `balanced` is where positives are commoner than in the
    sample: what balanced accuracy asks for, in which one positive weighs as much as the sample's negatives for it. With
    a `lift` it is where the odds of being positive are at least so many times those of the sample.
    """
    weights = (1, 1) if rule == "majority" else (int(sample[1]), int(sample[0]))
    positive, negative = int(patients[1]) * weights[1], int(patients[0]) * weights[0]
    if lift is None:
        return positive > negative
    return positive > 0 and positive * lift.denominator >= negative * lift.numerator


def find_lift(decision: CallingRule, positives: int, negatives: int) -> Fraction | None:
    """How many times the odds among all patients (these many) costs make it worth to call one; None where costs have
    no say. A sample changes the odds of all its patients by one factor, so that these are its odds times that too."""
    if decision.kind != "cost" or not positives:
        return None
    return decision.amount / (1 - decision.amount) * Fraction(negatives, positives)


class Voter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A tree, and at which of its nodes a patient who comes to rest there has its vote for the positive class."""

    tree: list[Split]
    positive: list[int]


class AskVotes(Conditional, frozen=True, kw_only=True):
    """How many patients of each class does the majority of these experts call positive, and negative?

    `sample`: under masks, where nobody opts out, a site adds nothing if it could not lay it out."""

    kind: ClassVar[str] = "tree.votes"
    releases: ClassVar[frozenset[str]] = PLAIN

    positive: str | int | float | bool
    experts: list[Voter]
    sample: Sample | None = None

    @property
    def fixed(self) -> Mapping[str, Any]:
        sample = {} if self.sample is None else self.sample.fixed
        return {**sample, "positive": self.positive}

    @property
    def shape(self) -> tuple[int, ...]:
        return 2, 2

    def check(self, release: str) -> None:
        if len(self.experts) % 2 == 0:
            raise MessageError("the number of experts must be odd, so that no vote is a tie")
        if len(self.experts) > MOST_EXPERTS:
            raise MessageError(f"at most {MOST_EXPERTS} experts can vote at a time")
        self.check_told(release)
        if (self.sample is None) != (release == "exact"):
            raise MessageError(
                "under masks, and only there, votes are counted where a sample can be laid out"
            )
        if self.sample is not None:
            self.sample.check(release)
        check_attributes(self.attributes)
        for expert in self.experts:
            votes = set(expert.positive)
            if len(votes) != len(expert.positive) or not votes <= check_tree(expert.tree, self.attributes):
                raise MessageError("an expert votes at a node that its tree does not have, or twice at one")

    def estimate(self, patients: int, columns: int) -> Workload:
        work = estimate_columns(self.attributes, patients) + Workload(READ_CATEGORY * patients, 32 * patients)
        routing = [estimate_routing(expert.tree, patients) for expert in self.experts]
        votes = sum(CALL * (1 + len(expert.positive)) for expert in self.experts)
        votes += 8 * len(self.experts) * patients
        return work + Workload(
            sum(one.operations for one in routing) + votes, max((one.memory for one in routing), default=0)
        )

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        """The counts of this site, [class, vote], negative first."""
        if self.sample is not None:
            cohort = self.sample.leave_out_unfit(cohort, self.query, self.target)
        columns = find_columns(cohort, self, template if self.sample is None else None).folded
        votes = np.zeros(len(cohort.view.records), dtype=np.int32)
        for expert in self.experts:
            resting = route(cohort.rows, find_branchings(expert.tree, columns))
            for node in expert.positive:
                if node in resting:
                    votes[resting[node]] += 1
        won = 2 * votes[cohort.rows] > len(self.experts)
        truth = is_positive(cohort, self.target, self.positive)
        counts = np.bincount(2 * truth + won, minlength=4).reshape(2, 2).astype(np.uint32)
        if cohort.guard.on and cohort.guard.withholds(counts):
            counts[:] = 0
        return counts
