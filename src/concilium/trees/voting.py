"""`VotingTrees`: a rare class told from the rest by an odd number of trees with one vote each.

docs/methods.md, sections 1.11 to 1.13. Where the positive class is rare, one tree calls nearly everybody negative.
Here every expert is a distributed tree over all positives and a few times as many negatives of each site
(protocol/held_out.py). Experts are added two at a time until that no longer helps (ensemble.py). The card says what
the release protects. Experts ask more than one tree does, so sites release more numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.explanation import Explanation
from concilium.models.intervals import share_interval
from concilium.models.method import (
    Attributes,
    Bins,
    Method,
    OnMisfit,
    Positive,
    QueryText,
    ReleaseName,
    Target,
    documented,
)
from concilium.models.prediction import AnyPatients, Entries
from concilium.models.threshold import (
    CallingRule,
    Decided,
    DecisionRule,
    Tally,
    decide,
    parse,
    say_decided,
    warn_of_specificity,
)
from concilium.parameters import Parameter, choice, share, whole
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.cohort import MOST_INTEGER_VALUES
from concilium.protocol.held_out import MOST_NEGATIVES, Sample
from concilium.protocol.questions import Conversation, Learned, Partners, Statistic
from concilium.records.columns import label
from concilium.trees.body import (
    BodyOfTrees,
    TreeBody,
    TreeNode,
    find_path,
    mix_shares,
    settle,
    spread,
    translate,
)
from concilium.trees.drawing import draw
from concilium.trees.ensemble import Ensemble, Settled, Turnout, begin, experts_at
from concilium.trees.explanation import Risk, add_gains, explain, explain_votes, rank, rest_on
from concilium.trees.growing import TreeGrowth, finish
from concilium.trees.pruning import tally_leaves
from concilium.trees.schemas import FEW_VALUES, PLAN_CUTOFFS, find_oddities
from concilium.trees.tree import DecisionTree, GrowthName, MaxDepth, MinLeaf
from concilium.trees.votes import AskVotes, Rule, find_lift, is_for_positive

MOST_BANDS = 1000
FINE = 10**12  # shares are compared as whole numbers


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ensemble that was tried, and its balanced accuracy on the patients that it was grown from (votes.py), or on
    bands of sites that were left out of it."""

    experts: int
    balanced_accuracy: float


class VotingBody(BodyOfTrees, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an ensemble's model file holds. `classes` are negative and positive; `negatives` is how many an expert has
    for each positive, None where one ordinary tree of all patients does; `stages` are all that were tried, on so many
    bands left out in turn (None: on those learned from). `called` are these patients by class and by the class that is
    called, [class][called]: what share of those who are called positive are so."""

    classes: tuple[str | int | float | bool, str | int | float | bool]
    patients: int
    positives: int
    negatives: int | None
    vote: Rule
    stages: list[Stage]
    experts: list[list[TreeNode]]
    bands: int | None = None
    called: tuple[tuple[int, int], tuple[int, int]] | None = None

    def _translate(self, dictionary: Entries) -> dict[str, Any]:
        return {"experts": [translate(nodes, dictionary) for nodes in self.experts]}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.called is not None and min(map(min, self.called)) < 0:
            raise ValueError("counts of patients must not be negative")
        if len(self.experts) % 2 == 0:
            raise ValueError("the number of experts must be odd, so that no vote is a tie")
        if self.negatives is None and len(self.experts) > 1:
            raise ValueError("an ordinary tree is one expert")
        for number, nodes in enumerate(self.experts, start=1):
            try:
                self.tree(nodes)
            except ValueError as error:
                raise ValueError(f"expert {number}: {error}") from None

    @cached_property
    def trees(self) -> list[TreeBody]:
        """The experts, each as a tree of its own; the one ordinary tree decides as the model does."""
        return [self.tree(nodes, self.decided if self.negatives is None else None) for nodes in self.experts]

    @property
    def lift(self) -> Fraction | None:
        """From which odds on experts vote for the positive class, where the study has costs (votes.py)."""
        rule = None if self.decided is None else parse(self.decided.rule)
        return None if rule is None else find_lift(rule, self.positives, self.patients - self.positives)


@documented
@dataclass(eq=False, repr=False)
class VotingTrees(Method[VotingBody]):
    """`VotingTrees(target="bleeding", positive="yes", query="age > 20 and age < 41").fit(house)`."""

    method: ClassVar[str] = "voting-trees"
    called: ClassVar[str] = "VotingTrees"
    description: ClassVar[str] = "decision trees over all sites for a rare class, each with one vote"
    body_type: ClassVar[type[VotingBody]] = VotingBody
    releases: ClassVar[tuple[str, ...]] = ("exact", "masked")
    instead: ClassVar[str] = "; naive-bayes, rulefit and tree can be private"
    against_rest: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    differs_from_pooled: ClassVar[str] = (
        "is not the model of the pooled table where it is an ensemble: which negatives an expert sees is settled "
        "inside each site, so that another split of the patients over sites draws others"
    )

    target: Target
    positive: Positive
    query: QueryText = ""
    release: ReleaseName = "exact"
    _: KW_ONLY
    imbalance: Annotated[
        float | str | Fraction,
        Parameter(
            "a number from 0 to 1",
            share,
            "a share of positives below this starts the ensemble; otherwise there is one ordinary tree",
        ),
    ] = 0.025
    negatives: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_NEGATIVES}",
            whole(1, MOST_NEGATIVES),
            "how many negatives an expert has for each positive of a site",
        ),
    ] = 3
    delta: Annotated[
        float | str | Fraction,
        Parameter(
            "a number from 0 to 1",
            share,
            "two more experts must raise the balanced accuracy by more than this, or the two after them",
        ),
    ] = 0.001
    bins: Bins = field(default_factory=dict)
    attributes: Attributes = None
    on_misfit: OnMisfit = "attribute"
    vote: Annotated[
        Rule,
        Parameter(
            "'balanced' or 'majority'",
            choice("balanced", "majority"),
            '"balanced": an expert votes positive where positives are commoner than in its whole sample; "majority": '
            "where they are more than half",
        ),
    ] = "balanced"
    growth: GrowthName = "readable"
    max_depth: MaxDepth = 4
    min_leaf: MinLeaf = 5
    bands: Annotated[
        int | None,
        Parameter(
            f"a whole number from 2 to {MOST_BANDS}",
            whole(2, MOST_BANDS),
            "exact: how many experts vote is settled on so many bands of sites, each left out in turn (the thesis has "
            "10): as many ensembles are grown; None: on the patients learned from",
        ),
    ] = None
    threshold: DecisionRule = "majority"

    @property
    def growing(self) -> TreeGrowth:
        """How its experts are grown."""
        readable = self.growth == "readable"
        values = FEW_VALUES if readable else MOST_INTEGER_VALUES
        return TreeGrowth(self.max_depth, self.min_leaf, halves=readable, most_values=values)

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.kind in ("prevalence", "cost") and self.vote == "majority":
            return "vote = 'majority' says how experts vote already"
        return None

    def find_objection(self, question: Statistic) -> str | None:
        if isinstance(question, AskVotes) and question.by != "majority":
            if question.by == "odds":
                return "it asks what chances patients have, and experts vote"
            if not self.rule.tallied:
                return "it asks how many votes patients have, and the study's decision does not need that"
        return super().find_objection(question)

    @property
    def decided(self) -> Decided | None:
        """Of the one ordinary tree, or from how many votes on an ensemble calls the positive class; by costs and by
        prevalence experts decide each for themselves, and most of them together."""
        decided = self.body.decided
        if decided is None or self.body.negatives is None or decided.votes is not None:
            return decided
        return None

    def check(self) -> None:
        if self.bands is not None and not self.way_out.comparable:
            raise StudyError(
                "'bands' of VotingTrees are left out in turn, and under masks the sum with a hospital minus the sum "
                "without it is that hospital's whole answer: leave 'bands' out, or ask exact"
            )

    def plan(self) -> Plan:
        """What a fit will ask; nothing bounds what it tells."""
        first, then = ("tree.classes", "opts out") if self.way_out.by_site else ("counts", "adds nothing")
        votes = "class by vote of every ensemble tried: four numbers each"
        if self.rule.tallied:
            votes += "; of the last one, patients by class and number of votes, for the decision"
        notes = (
            (first, f"patients by class; a site without a positive patient, or with too few, {then}"),
            ("tree.schema", "which attributes and values there are"),
            (PLAN_CUTOFFS.kind, PLAN_CUTOFFS.note),
            ("counts", "counts of all attributes in every expert's sample, once per level of each expert"),
            ("tree.votes", votes),
        )
        return Plan("rho", tuple(PlannedQuestion(kind, None, note) for kind, note in notes))

    def converse(self, partners: Partners) -> Conversation[Learned[VotingBody]]:
        sample = Sample(positive=self.positive, negatives=self.negatives)
        turnout, rare, ensemble = yield from begin(self, sample)
        if rare:
            settled = yield from self._grow(ensemble, turnout)
        else:
            expert = yield from ensemble.grow_expert(0)
            settled = Settled([expert], [], None, np.zeros((2, 2), dtype=np.int64))
        grown, measures, tally, votes = settled
        trees = [finish(self.target, self.query, ensemble.schema, expert) for expert in grown]
        if not rare:
            tally = tally_leaves(trees[0].leaves, 1)
        decided, said = decide(
            self.threshold, turnout.classes[1], turnout.positives / turnout.patients, tally
        )
        if rare and self.rule.tallied and decided is not None:
            decided, said = _count_as_votes(decided, len(grown))
            if decided is not None and tally is not None:
                votes = _count_called(tally, decided.threshold)
        body = VotingBody(
            target=self.target,
            classes=turnout.classes,
            decided=decided,
            query=self.query,
            bins=trees[0].bins,
            dates=trees[0].dates,
            patients=turnout.patients,
            positives=turnout.positives,
            negatives=self.negatives if rare else None,
            vote=self.vote,
            stages=[Stage(experts_at(stage), float(one)) for stage, one in enumerate(measures)],
            experts=[tree.nodes for tree in trees],
            bands=self.bands if rare else None,
            called=_as_table(votes) if rare else None,
        )
        warnings = [*self._tell(body), *find_oddities(self, ensemble.schema, ensemble.seen)]
        if said and rare and not self.rule.tallied:
            said = f"{said}; each expert decides so, and most of them together"
        warnings = [*warnings, *warn_of_specificity(body.decided)]
        return Learned(body, {**turnout.by_site}, warnings, said)

    def _grow(self, ensemble: Ensemble, turnout: Turnout) -> Conversation[Settled]:
        """Grow the experts, as many as help by the patients learned from, or by bands of sites."""
        if self.bands is None:
            return (yield from ensemble.grow())
        sizes = {site: patients or 0 for site, patients in turnout.by_site.items()}
        return (yield from ensemble.grow_on_bands(sizes, self.bands))

    def _tell(self, body: VotingBody) -> list[str]:
        """What a reader of the card must know of how many trees there are, and why."""
        limit = f"{float(self.imbalance):.2%}"
        share = (
            f"{body.positives} of {body.patients} patients ({body.positives / body.patients:.2%}) "
            f"have {body.target} = {label(body.classes[1])}"
        )
        if body.negatives is None:
            return [f"{share}, which is not below {limit}: the model is one ordinary tree"]
        score = next(s.balanced_accuracy for s in body.stages if s.experts == len(body.experts))
        return [
            f"{share}, which is below {limit}: {_count(len(body.experts), 'expert')} "
            f"{'votes' if len(body.experts) == 1 else 'vote'}, each grown on all of them and {body.negatives} times as "
            "many others of every site",
            f"the number of experts was settled by balanced accuracy on the patients learned from ({score:.3f}): "
            "expect less of others"
            if body.bands is None
            else f"the number of experts was settled by balanced accuracy on {body.bands} bands of sites left out in "
            f"turn ({score:.3f}); it is the best of those tried on the same bands, so expect a little less of others",
        ]

    @property
    def attributes_(self) -> list[str]:
        """The attributes that the experts ask about."""
        return sorted({name for tree in self.body.trees for name in tree.asked})

    @property
    def experts_(self) -> list[DecisionTree]:
        """The experts, each a model of its own (whose shares are those of its sample)."""
        return [DecisionTree.of(tree, self.card) for tree in self.body.trees]

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """For each patient the shares of the votes, negative and positive; of one ordinary tree, its own shares.

        Votes say how sure the ensemble is, not how likely the patient is to be positive: experts learned from
        samples in which positives are common.
        """
        table = self.read(patients)
        trees = self.body.trees
        if self.body.negatives is None:
            shares: NDArray[np.float64] = trees[0].shares[settle(trees[0], table)]
            return shares
        votes = np.zeros(len(table))
        for tree in trees:
            votes += np.array(self._votes(tree))[settle(tree, table)]
        share = votes / len(trees)
        return np.column_stack([1 - share, share])

    @property
    def tells_risks(self) -> bool:
        """Votes are no risks; the shares of one ordinary tree are."""
        return self.body.negatives is None

    def soft_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """With half a vote more on either side."""
        trees = self.body.trees
        if self.body.negatives is None:
            soft: NDArray[np.float64] = trees[0].soft_shares[settle(trees[0], self.read(patients))]
            return soft
        return (self.predict_proba(patients) * len(trees) + 0.5) / (len(trees) + 1)

    def soften(self, said: Explanation) -> NDArray[np.float64]:
        trees = self.body.trees
        shares = super().soften(said)
        if self.body.negatives is None:
            return trees[0].soften(shares, rest_on(said))
        return (shares * len(trees) + 0.5) / (len(trees) + 1)

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        """How the experts vote on this patient, and the reasons of one who prevails."""
        trees, known = self.body.trees, self.card.dictionary
        paths = [find_path(tree, patient, known) for tree in trees]
        if self.body.negatives is None:
            return explain(trees[0], paths[0], patient, dictionary=known)
        votes = [
            explain(tree, path, patient, self._vote(tree, patient), known)
            for tree, path in zip(trees, paths, strict=True)
        ]
        words = self.body.in_words(known).classes
        nothing = not any(name in patient for name in self.attributes_)

        def find_risk(called: int) -> Risk | None:
            return self._find_risk(called, of_everyone=nothing)

        return explain_votes(votes, self.body.classes, words, self._say_vote(), self.decided, find_risk)

    def _find_risk(self, called: int, *, of_everyone: bool) -> Risk | None:
        """What share of those for whom this class is called have it, or of all; None where nobody was counted."""
        counted = self.body.called
        if counted is None:
            return None
        everyone = sum(map(sum, counted)) if of_everyone else sum(row[called] for row in counted)
        if not everyone:
            return None
        overall = sum(counted[called]) / sum(map(sum, counted))
        right = sum(counted[called]) if of_everyone else counted[called][called]
        who = "the patients learned from" if self.body.bands is None else "patients of hospitals left out"
        return Risk(right / everyone, share_interval(right, everyone), everyone, who, overall, of_everyone)

    def _say_vote(self) -> str:
        """When an expert votes for a class."""
        if self.body.decided is not None and self.body.decided.votes is None:
            said = say_decided(self.body.decided)
            return f"An expert decides, by the odds of a hospital: {said}."
        where = "commoner than in its whole sample" if self.body.vote == "balanced" else "the commonest"
        return f"An expert votes for the class that is {where}."

    def _vote(self, tree: TreeBody, patient: Mapping[str, Any]) -> int:
        """What an expert votes on a patient, weighed where something was not entered."""
        resting = spread(tree, patient, self.card.dictionary)
        if not any(
            node.attribute in patient for node in tree.nodes
        ):  # rounding must not decide between equal shares
            resting = {0: 1.0}
        if len(resting) == 1:
            return int(self._votes(tree)[next(iter(resting))])
        shares = [round(share * FINE) for share in mix_shares(tree, resting).tolist()]
        return int(is_for_positive(shares, tree.nodes[0].counts, self.body.vote, self.body.lift))

    def _votes(self, tree: TreeBody) -> list[bool]:
        """For each node of an expert whether it votes positive where a patient comes to rest there."""
        sample, lift = tree.nodes[0].counts, self.body.lift
        return [is_for_positive(node.counts, sample, self.body.vote, lift) for node in tree.nodes]

    def importances(self) -> dict[str, float]:
        return rank(add_gains(self.body.trees))

    def _text(self) -> str:
        """The experts drawn with lines, one after the other."""
        body = self.body.in_words(self.card.dictionary)
        if body.negatives is None:
            return draw(body.trees[0])
        lines = [
            f"{body.target} = {label(body.classes[1])}: {_count(len(body.experts), 'expert')} with one vote each "
            f"({body.positives} of {body.patients} patients are positive)"
        ]
        if self.decided is not None:
            lines.append(say_decided(self.decided))
        tried = ", ".join(f"{stage.experts}: {stage.balanced_accuracy:.4f}" for stage in body.stages)
        on_whom = "the patients learned from" if body.bands is None else f"{body.bands} bands left out"
        lines.append(f"balanced accuracy on {on_whom}, by number of experts: {tried}")
        for number, tree in enumerate(body.trees, start=1):
            lines += ["", f"expert {number}", draw(tree)]
        return "\n".join(lines)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Every expert as a picture; the ordinary tree, where there is one."""
        drawn = [expert.pictures(whole=whole)["tree"] for expert in self.experts_]
        if self.body.negatives is None:
            return {"tree": drawn[0]}
        return {f"expert {number} of {len(drawn)}": picture for number, picture in enumerate(drawn, start=1)}

    @classmethod
    def parameters_in(cls, body: VotingBody) -> dict[str, Any]:
        stored = {**super().parameters_in(body), "positive": body.classes[1]}
        return {name: value for name, value in stored.items() if value is not None}

    def _summary(self) -> str:
        return _count(len(self.body.experts), "expert")


def _as_table(votes: NDArray[np.int64]) -> tuple[tuple[int, int], tuple[int, int]]:
    (spared, alarmed), (missed, found) = votes.tolist()
    return (spared, alarmed), (missed, found)


def _count_called(tally: Tally, threshold: float) -> NDArray[np.int64]:
    """Patients by class and by whether they are called positive, from this share of the votes."""
    chances, counted = tally.count()
    called = chances >= threshold
    return np.stack([counted[:, ~called].sum(axis=1), counted[:, called].sum(axis=1)], axis=1)


def _count_as_votes(decided: Decided, experts: int) -> tuple[Decided | None, str]:
    """A decision by the share of votes, as what the model stores and what the card says: the threshold lies between two
    numbers of votes, so that a half more or less on either side (`soft_proba`) calls the same patients. Where there was
    nothing to choose by, most votes decide."""
    if decided.sensitivity is None:
        return None, f"by most votes: those counted for {decided.rule!r} are all of one class"
    least = max(decided.threshold - 0.5 / experts, 0.0)
    by_votes = msgspec.structs.replace(decided, threshold=least, votes=experts)
    return by_votes, say_decided(by_votes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
