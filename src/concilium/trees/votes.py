"""How several trees vote at the sites: patients by class and by what the trees say of them together, to be added up
(docs/methods.md, sections 1.13 and 1.18).

The question carries all experts, so that a site needs no memory of earlier ones. Under `exact` the house sees the
numbers of every site, under `masked` their sums over all sites. Of an ensemble there are four: by class and by what
most experts say. A study that decides by a sensitivity or by Youden, and no other, also asks for patients by class and
number of votes, or, of a one-level model, whose trees each move the log odds, by class and predicted risk
(models/threshold.py). Such finer counts leave out those below the least branch that a hospital's policy has.

The patients are all of the query at the sites that take part.
Every expert has learned from all the positives among them, so that what comes out is good enough to compare ensembles
and too good for new patients. The thesis compares ensembles on bands of hospitals left out in turn, which would take as
many ensembles as bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.models.threshold import BINS, CallingRule, count_chances, find_edges
from concilium.protocol.attributes import CALL, READ_CATEGORY, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import MOST_EXPERTS, Part, Sample, is_positive
from concilium.protocol.questions import PLAIN, Summed
from concilium.protocol.splits import (
    AskedColumns,
    Split,
    check_tree,
    estimate_routing,
    find_branchings,
    find_columns,
    route,
)
from concilium.records.blocks import each_block, list_blocks

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

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


# By what patients are counted: by whether most experts vote for them, by how many do, or by their log odds.
Counting = Literal["majority", "votes", "odds"]
MOST_ODDS = 1e6


class Voter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A tree, and at which of its nodes a patient who comes to rest there has its vote for the positive class; or by
    how much each of these nodes moves the log odds."""

    tree: list[Split]
    positive: list[int]
    odds: list[float] = []


class AskVotes(Summed, frozen=True, kw_only=True):
    """How many patients of each class does the majority of these experts call positive, and negative? Or: how many have
    so many votes; or which log odds, which begin with `start` and are moved by every tree?

    `sample`: of an ensemble under masks, where nobody opts out, a site adds nothing if it could not lay it out."""

    kind: ClassVar[str] = "tree.votes"
    releases: ClassVar[frozenset[str]] = PLAIN

    attributes: tuple[Attribute, ...]
    positive: str | int | float | bool
    experts: list[Voter]
    sample: Sample | None = None
    by: Counting = "majority"
    start: float = 0.0
    part: Part | None = None

    @property
    def division(self) -> Part | None:
        return self.part

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def fixed(self) -> Mapping[str, Any]:
        sample = {} if self.sample is None else self.sample.fixed
        return {**sample, "positive": self.positive}

    @property
    def shape(self) -> tuple[int, ...]:
        return 2, {"majority": 2, "votes": len(self.experts) + 1, "odds": BINS}[self.by]

    @property
    def edges(self) -> NDArray[np.float64]:
        """By which log odds are counted: a tree moves them by what one of its nodes says, or not at all."""
        moved = [[0.0, *expert.odds] for expert in self.experts]
        return find_edges(self.start + sum(map(min, moved)), self.start + sum(map(max, moved)))

    def check(self, release: Release) -> None:
        if len(self.experts) % 2 == 0 and self.by != "odds":
            raise MessageError("the number of experts must be odd, so that no vote is a tie")
        most = len(self.attributes) if self.by == "odds" else MOST_EXPERTS
        if len(self.experts) > most:
            raise MessageError(f"at most {most} experts can vote at a time")
        self._check_odds()
        if (self.sample is None) != (release.by_site or self.by == "odds"):
            raise MessageError(
                "under masks, and only there, votes are counted where a sample can be laid out"
            )
        if self.sample is not None:
            self.sample.check_release(release)
        for expert in self.experts:
            votes = set(expert.positive)
            if len(votes) != len(expert.positive) or not votes <= check_tree(expert.tree, self.attributes):
                raise MessageError("an expert votes at a node that its tree does not have, or twice at one")

    def _check_odds(self) -> None:
        """MessageError unless log odds are told where they are asked for, one for each node, and of bearable size."""
        moved = [self.start, *(one for expert in self.experts for one in expert.odds)]
        told = [len(expert.odds) for expert in self.experts]
        hoped = [len(expert.positive) if self.by == "odds" else 0 for expert in self.experts]
        if told != hoped or (self.start and self.by != "odds"):
            raise MessageError("log odds are told for every node that moves them, where they are asked for")
        if not all(abs(one) <= MOST_ODDS for one in moved):
            raise MessageError("log odds are out of range")

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        work = estimate_columns(self.attributes, patients) + Workload(READ_CATEGORY * patients, 48 * patients)
        routing = [estimate_routing(expert.tree, patients) for expert in self.experts]
        votes = sum(CALL * (1 + len(expert.positive)) for expert in self.experts)
        votes += 8 * len(self.experts) * patients
        return work + Workload(
            sum(one.operations for one in routing) + votes, max((one.memory for one in routing), default=0)
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        """The counts of this site, [class, what the experts say], negative first."""
        if self.sample is not None:
            cohort = self.sample.leave_out_unfit(cohort, self.query, self.target)
        columns, size = find_columns(cohort.view, self.attributes), len(cohort.view.records)
        counts = np.zeros(self.shape, dtype=np.intp)
        for one in each_block(list_blocks(size), lambda block: self._count_in(block, columns, cohort)):
            counts += one
        return counts.astype(np.uint32)

    def _count_in(self, block: slice, columns: AskedColumns, cohort: Cohort) -> NDArray[np.intp]:
        """The counts of those of the cohort who are in a block of the table."""
        part, rows = columns.at(block, cohort.rows, len(cohort.view.records))
        said = np.full(block.stop - block.start, self.start)
        for expert in self.experts:
            resting = route(rows, find_branchings(expert.tree, part.folded))
            for node, weight in zip(expert.positive, expert.odds or repeat(1.0), strict=False):
                if node in resting:
                    said[resting[node]] += weight
        here = replace(cohort, rows=rows + np.int32(block.start))
        return self._count(said[rows], is_positive(here, self.target, self.positive))

    def suppress(self, words: NDArray[np.integer], cohort: Cohort) -> None:
        if cohort.guard.on and cohort.guard.withholds(words):
            words[:] = 0
        if self.by != "majority":
            words[words < cohort.branch_floor] = 0

    def _count(self, said: NDArray[np.float64], truth: NDArray[np.bool_]) -> NDArray[np.intp]:
        if self.by == "odds":
            return count_chances(said, truth, self.edges)
        votes = said.astype(np.intp)
        column = 2 * votes > len(self.experts) if self.by == "majority" else votes
        size = self.shape[1]
        return np.bincount(truth * size + column, minlength=2 * size).reshape(2, size)
