"""The house's side of voting trees: who takes part, one expert after the other, and how they vote together.

An expert is an ordinary distributed tree over the samples of its turn (docs/methods.md, 1.11: a column of all sites'
layouts). The house learns of patients only what sites answer to three kinds of question: class counts, crosstables of
a sample, and the votes of an ensemble.

The stop rule (docs/methods.md, 1.13) says how many experts vote. Ensembles of 1, 3, 5, ... experts are measured in
turn. The best so far is final once neither of the next two beats it by more than `delta`; otherwise the better of the
two takes its place. The best then rises by more than `delta` each time and cannot exceed 1, so that this ends. (The
thesis, 7.5.2, names 11 experts where its own table and this rule give 13.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from concilium.errors import HouseError, nearest
from concilium.models.threshold import HELD_OUT, LEARNED_FROM, Tally
from concilium.protocol.attributes import READ_CATEGORY, READING, Attribute, Workload, present
from concilium.protocol.cohort import Cohort
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.held_out import LEAST_PATIENTS, Sample, is_positive
from concilium.protocol.questions import EXACT, Among, Conversation, Gathered, Reply
from concilium.protocol.run import together
from concilium.protocol.schema import (
    MOST_LISTED,
    SchemaSeen,
    SharedSchema,
    list_classes,
    set_against_rest,
)
from concilium.protocol.splits import Split
from concilium.records.columns import Value, label
from concilium.trees.growing import GrowingNode, grow
from concilium.trees.schemas import ask_schemas, settle_schema
from concilium.trees.votes import AskVotes, Counting, Rule, Voter, find_lift, is_for_positive

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release
    from concilium.trees.voting import VotingTrees

TOO_FEW = f"fewer than {LEAST_PATIENTS} patients to learn from"
NO_POSITIVE = "no positive patient"
WITHHELD = "its policy does not let such counts out"


class Settled(NamedTuple):
    """The experts that vote, the measures of all ensembles that were tried, what a threshold is chosen by, and patients
    by class and what most of these experts say, [class, vote]."""

    experts: list[list[GrowingNode]]
    measures: list[Fraction]
    tally: Tally | None
    votes: Counts


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
    """How many patients of this query are positive, how many are not (docs/methods.md, section 1.11)?

    A site opts out by itself where an expert would learn from fewer than four of its patients, or where it has no
    positive one: statistics of so few can be traced back to people, and there is nothing rare to learn. It then
    reports that, and no count. Under `exact` the house sees the counts of every other site. Under `masked` nobody opts
    out: such a site adds nothing to any sum, and the house sees the sum of all class counts.
    """

    kind: ClassVar[str] = "tree.classes"
    releases: ClassVar[frozenset[str]] = EXACT
    reply: ClassVar[type[ClassCounts]] = ClassCounts

    sample: Sample

    @property
    def fixed(self) -> Mapping[str, Any]:
        return self.sample.fixed

    def check(self, release: Release) -> None:
        self.sample.check_release(release)

    @property
    def goes_by_blocks(self) -> bool:
        return True

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


def deal_bands(sizes: Mapping[str, int], bands: int) -> list[tuple[str, ...]]:
    """Deal sites into bands of nearly the same size ("mega-hospitals", 7.5 of the thesis), to leave out in turn.

    The thesis draws bands at random. Here sites are sorted by their number of patients, largest first (by name where
    equal), and dealt one by one: the same bands for everyone who repeats the study. No band may stay empty.
    """
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [tuple(sorted(order[band::bands])) for band in range(bands)]


def _find_final(measures: Sequence[Fraction], delta: Fraction) -> int | None:
    """The stage that is final by the measures of stages 0, 1, ...; None where the next one must be measured."""
    best = 0
    while best + 2 < len(measures):
        first, second = measures[best + 1 : best + 3]
        if max(first, second) <= measures[best] + delta:
            return best
        best += 2 if second > first else 1
    return None


def experts_at(stage: int) -> int:
    """How many experts vote at a stage: always odd, so that no vote is a tie."""
    return 2 * stage + 1


def _balanced_accuracy(confusion: list[list[int]]) -> Fraction:
    """Mean of sensitivity and specificity, exactly, from counts [truth][vote]; 0 where a class has nobody."""
    shares = [
        Fraction(row[index], sum(row)) if sum(row) else Fraction(0) for index, row in enumerate(confusion)
    ]
    return sum(shares, Fraction(0)) / 2


@dataclass(frozen=True)
class Turnout:
    """The patients of the sites that take part, by class, and how many each site has, where that is told."""

    negatives: int
    positives: int
    classes: tuple[Value, Value]
    by_site: Mapping[str, int | None]

    @property
    def patients(self) -> int:
        return self.negatives + self.positives


def _count_classes(study: VotingTrees, sample: Sample) -> Conversation[Turnout]:
    """Ask for the class counts, of classes as the sites write them; sites that opt out are not asked again."""
    replies: dict[str, ClassCounts] = yield AskClassCounts(
        query=study.query, target=study.target, sample=sample
    )
    staying = {site: counts for site, counts in replies.items() if counts.opts_out is None}
    values = present(value for counts in (staying or replies).values() for value in counts.values)
    if not staying:
        raise HouseError(_say_nobody(study, replies, [label(value) for value in values]))
    negatives = sum(counts.negatives for counts in staying.values())
    positives = sum(counts.positives for counts in staying.values())
    by_site = {site: counts.negatives + counts.positives for site, counts in staying.items()}
    return Turnout(negatives, positives, _name_both(study, values, negatives), by_site)


def _say_nobody(study: VotingTrees, replies: Mapping[str, ClassCounts], values: Sequence[str]) -> str:
    """Say why no site takes part. A site that could, but has no positive patient, reports `values` without counts."""
    if not values:
        reasons = [(site, str(counts.opts_out)) for site, counts in replies.items()]
        return f"every site opted out: {together(reasons)}"
    positive = label(study.positive)
    listed = f"its values there are {', '.join(values[:10])}{nearest(positive, values)}"
    return f"no site that could take part has a patient with {study.target} = {positive}; {listed}"


def _add_up_classes(
    study: VotingTrees, sample: Sample, seen: Mapping[str, SchemaSeen]
) -> Conversation[Turnout]:
    """The same under masks, where the values are those of the schemas and nobody is seen to opt out."""
    counts: Counts = yield AskCounts(
        query=study.query,
        target=study.target,
        classes=_name_positive(study.target, sample.positive),
        sample=msgspec.structs.replace(sample, everyone=True),
    )
    positives, negatives = counts.reshape(2).tolist()
    if not positives:
        raise HouseError(
            f"no site that could take part has a patient with {study.target} = {label(sample.positive)}"
        )
    values = present(value for own in seen.values() for value in own.classes)
    return Turnout(negatives, positives, _name_both(study, values, negatives), dict.fromkeys(seen))


def _name_both(study: VotingTrees, values: Sequence[Value | None], negatives: int) -> tuple[Value, Value]:
    """The two classes of a target with these values, negative first."""
    positive = label(study.positive)
    own = next((value for value in values if value is not None and label(value) == positive), study.positive)
    others = [value for value in values if value is not None and label(value) != positive]
    if not others or not negatives:
        raise HouseError(
            f"every patient has {study.target} = {positive}: there is nothing to tell apart; widen the query"
        )
    return set_against_rest(own, others)


@dataclass(frozen=True)
class Ensemble:
    """What the experts have in common: the sample that they take turns in, and the schema of the sites that take part;
    `lift` is from which odds on they vote for the positive class, where the study has costs."""

    study: VotingTrees
    sample: Sample
    seen: Mapping[str, SchemaSeen]
    schema: SharedSchema
    lift: Fraction | None = None

    def grow(self) -> Conversation[Settled]:
        """Experts two at a time, until more do not help: those of the best ensemble, the measures of all that were
        tried, and by how many votes patients have, where the study decides by that."""
        grown: list[list[GrowingNode]] = []
        votes: list[Counts] = []
        measures: list[Fraction] = []
        while (final := _find_final(measures, Fraction(self.study.delta))) is None:
            while len(grown) < experts_at(len(measures)):
                grown.append((yield from self.grow_expert(len(grown))))
            votes.append((yield from self.count_votes(grown)))
            measures.append(_balanced_accuracy(votes[-1].tolist()))
        best, tally = grown[: experts_at(final)], None
        if self.study.rule.tallied:
            tally = _read_votes((yield from self.count_votes(best, by="votes")), LEARNED_FROM)
        return Settled(best, measures, tally, votes[final])

    def grow_on_bands(self, sizes: Mapping[str, int], bands: int) -> Conversation[Settled]:
        """The same, as 7.5 of the thesis settles how many: ensembles are measured on bands of sites that had no part in
        them, every band in turn, and the votes on all of them count together. The experts are then grown from all
        sites."""
        if bands > len(sizes):
            raise HouseError(
                f"'bands' of {bands} need as many sites that take part, and there are {len(sizes)}: take fewer"
            )
        left_out = deal_bands(sizes, bands)
        grown: list[list[list[GrowingNode]]] = [[] for _ in left_out]
        counted_votes: list[Counts] = []
        measures: list[Fraction] = []
        while (final := _find_final(measures, Fraction(self.study.delta))) is None:
            votes = np.zeros((2, 2), dtype=np.int64)
            for band, experts in zip(left_out, grown, strict=True):
                others = [site for site in sizes if site not in band]
                while len(experts) < experts_at(len(measures)):
                    experts.append((yield from self.grow_expert(len(experts), others)))
                votes += yield from self.count_votes(experts, band)
            counted_votes.append(votes)
            measures.append(_balanced_accuracy(votes.tolist()))
        tally = None
        if self.study.rule.tallied:
            counted = np.zeros((2, experts_at(final) + 1), dtype=np.int64)
            for band, experts in zip(left_out, grown, strict=True):
                counted += yield from self.count_votes(experts[: experts_at(final)], band, by="votes")
            tally = _read_votes(counted, HELD_OUT)
        experts = []
        for number in range(experts_at(final)):
            experts.append((yield from self.grow_expert(number)))
        return Settled(experts, measures, tally, counted_votes[final])

    def grow_expert(
        self, number: int, among: Collection[str] | None = None
    ) -> Conversation[list[GrowingNode]]:
        """The tree over what the sites (or those among them) lay out for this expert (over everyone, without negatives
        to count off)."""
        sample = msgspec.structs.replace(self.sample, expert=number)

        def count(tree: list[Split], nodes: list[int], counted: list[int]) -> Conversation[Counts]:
            question = AskCounts(
                query=self.study.query,
                target=self.study.target,
                attributes=self.schema.attributes,
                classes=_name_positive(self.study.target, sample.positive),
                tree=tree,
                nodes=nodes,
                sample=sample,
            )
            total: Counts = yield question if among is None else Among(question, among)
            return total[:, :, ::-1]

        nodes, _ = yield from grow(
            self.schema,
            count,
            self.study.growing,
            subtract=not any(own.floored for own in self.seen.values()),
        )
        return nodes

    def count_votes(
        self,
        experts: Sequence[list[GrowingNode]],
        among: Collection[str] | None = None,
        by: Counting = "majority",
    ) -> Conversation[Counts]:
        """What these experts' majority says of the patients of all sites, or of those among them, [class, vote]; or how
        many of them vote for each."""
        question = AskVotes(
            query=self.study.query,
            target=self.study.target,
            positive=self.sample.positive,
            attributes=self.schema.attributes,
            experts=[_as_voter(expert, self.study.vote, self.lift) for expert in experts],
            sample=None if self.study.way_out.by_site else self.sample,
            by=by,
        )
        votes: Counts = yield question if among is None else Among(question, among)
        return votes


def _read_votes(counted: Counts, who: str) -> Tally:
    """What patients by class and number of votes tell; a chance is a share of the votes."""
    experts = counted.shape[1] - 1
    negatives, positives = counted.tolist()
    return Tally([votes / experts for votes in range(experts + 1)], negatives, positives, who)


def begin(study: VotingTrees, sample: Sample) -> Conversation[tuple[Turnout, bool, Ensemble]]:
    """Ask who takes part and what those can be asked about; whether positives are rare among their patients."""
    masked = not study.way_out.by_site
    if masked:
        seen = yield from ask_schemas(study)
        turnout = yield from _add_up_classes(study, sample, seen)
    else:
        turnout = yield from _count_classes(study, sample)
        seen = yield from ask_schemas(study)
    # The share of positives among all patients (docs/methods.md, section 1.11).
    rare = Fraction(turnout.positives, turnout.patients) < Fraction(study.imbalance)
    if not rare:
        everyone = msgspec.structs.replace(sample, everyone=True)
        sample = everyone if masked else Sample(positive=sample.positive)
    schema = yield from settle_schema(study, seen, most_values=study.growing.most_values)
    both = Attribute(study.target, (), turnout.classes, missing=False, other=False)
    lift = find_lift(study.rule, turnout.positives, turnout.negatives)
    return turnout, rare, Ensemble(study, sample, seen, replace(schema, classes=both), lift)


def _name_positive(target: str, positive: Value) -> Attribute:
    """Two classes of a target: the positive value, and any other."""
    return Attribute(target, (), (positive,), missing=False)


def _as_voter(grown: Sequence[GrowingNode], rule: Rule, lift: Fraction | None = None) -> Voter:
    """A grown tree as a question carries it: where it splits, and where it votes for the positive class."""
    splits = [
        Split(index, node.attribute, node.children)
        for index, node in enumerate(grown)
        if node.attribute is not None
    ]
    sample = grown[0].counts
    return Voter(
        splits,
        [index for index, node in enumerate(grown) if is_for_positive(node.counts, sample, rule, lift)],
    )
