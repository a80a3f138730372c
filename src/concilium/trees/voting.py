"""`VotingTrees`: a rare class told from the rest by an odd number of trees with one vote each.

Chapter 7 of the thesis. Where the positive class is rare, one tree over all patients calls nearly everybody negative.
Here every expert is a distributed tree over all positives and a few times as many negatives of each site (layout.py),
and experts are added two at a time until that no longer helps (stopping.py). What `exact` does and does not protect is
said on the card; experts ask more than one tree does, so sites release more numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.federation.card import Card
from concilium.federation.house import House
from concilium.federation.messages import Release
from concilium.federation.patients import as_records, read_patient
from concilium.federation.run import Run
from concilium.model import Fitted
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.records.table import Records, Value, label
from concilium.trees.ballot import Rule, is_for_positive
from concilium.trees.body import Node, TreeBody
from concilium.trees.cautions import find_oddities
from concilium.trees.council import Council, count_classes
from concilium.trees.drawing import draw
from concilium.trees.explanation import Explanation, explain
from concilium.trees.growing import GrowingNode
from concilium.trees.layout import MOST_NEGATIVES, Sample
from concilium.trees.settings import Stated, state
from concilium.trees.stopping import experts_at, grow_until_settled
from concilium.trees.tree import DecisionTree
from concilium.trees.verdict import Verdict, pronounce

if TYPE_CHECKING:
    from pandas import DataFrame


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ensemble that was tried, and its balanced accuracy on the patients that it was grown from (ballot.py)."""

    experts: int
    balanced_accuracy: float


class VotingBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an ensemble's model file holds. `classes` are negative and positive; `negatives` is how many an expert has
    for each positive, None where one ordinary tree of all patients does; `stages` are all that were tried."""

    target: str
    classes: tuple[str | int | float | bool, str | int | float | bool]
    query: str
    bins: dict[str, list[float]]
    patients: int
    positives: int
    negatives: int | None
    vote: Rule
    stages: list[Stage]
    experts: list[list[Node]]

    def __post_init__(self) -> None:
        if len(self.experts) % 2 == 0:
            raise ValueError("the number of experts must be odd, so that no vote is a tie")
        if self.negatives is None and len(self.experts) > 1:
            raise ValueError("an ordinary tree is one expert")
        for number in range(len(self.experts)):
            try:
                self.tree(number)
            except ValueError as error:
                raise ValueError(f"expert {number + 1}: {error}") from None

    def tree(self, number: int) -> TreeBody:
        """An expert as a tree of its own."""
        return TreeBody(
            target=self.target,
            classes=list(self.classes),
            query=self.query,
            bins=self.bins,
            nodes=self.experts[number],
        )


class VotingTrees(Stated, Fitted[VotingBody]):
    """`VotingTrees(target="bleeding", positive="yes", query="age > 20 and age < 41").fit(house)`.

    target      the attribute to predict; patients for whom it is missing are left out
    positive    the rare value of it; all its other values together are the other class
    query       attributes of interest: the patients to learn from; empty: everyone
    release     "exact": the house sees each site's counts
    imbalance   a share of positives below this starts the ensemble; otherwise there is one ordinary tree
    negatives   how many negatives an expert has for each positive of a site
    delta       two more experts must raise the balanced accuracy by more than this, or the two after them
    bins        public cutoffs of numeric attributes, {"age": [40, 60]}; a number without bins is left out
    attributes  the attributes to consider; None: all that every site has
    vote        "balanced": an expert votes positive where positives are commoner than in its whole sample; "majority",
                as in the thesis: where they are more than half
    max_depth   how many questions an expert asks at most; None, as in the thesis: as many as help
    min_leaf    no branch with fewer patients than this, over the samples of all sites; 1 in the thesis

    The same house with the same records gives the same model. It is not the model of the pooled table: which
    negatives an expert sees is settled inside each site, so another split of the patients over sites draws others.
    """

    method: ClassVar[str] = "voting-trees"

    def __init__(
        self,
        target: str,
        positive: Value,
        query: str = "",
        release: Release = "exact",
        *,
        imbalance: float | str | Fraction = 0.025,
        negatives: int = 3,
        delta: float | str | Fraction = 0.001,
        bins: Mapping[str, Sequence[float]] | None = None,
        attributes: Sequence[str] | None = None,
        vote: Rule = "balanced",
        max_depth: int | None = 4,
        min_leaf: int = 5,
    ) -> None:
        if release != "exact":
            raise StudyError(f"the 'release' of VotingTrees must be 'exact'; got {release!r}")
        if not isinstance(positive, str | int | float) or label(positive) in ("", label(None)):
            raise StudyError(
                f"the 'positive' of VotingTrees must be a value of the target, such as 'yes'; got {positive!r}"
            )
        if not isinstance(negatives, int) or not 1 <= negatives <= MOST_NEGATIVES:
            raise StudyError(
                f"the 'negatives' of VotingTrees must be a whole number, 1 or more; got {negatives!r}"
            )
        if vote not in get_args(Rule):
            raise StudyError(f"the 'vote' of VotingTrees must be 'balanced' or 'majority'; got {vote!r}")
        self.vote: Rule = vote
        self.positive = positive
        self.imbalance = as_share("imbalance", imbalance)
        self.negatives = negatives
        self.delta = as_share("delta", delta)
        # What every expert is, apart from the patients it learns from.
        self.settings = state(
            "VotingTrees",
            target,
            query,
            release,
            bins=bins,
            attributes=attributes,
            max_depth=max_depth,
            min_leaf=min_leaf,
        )
        self.release = release

    def fit(self, house: House) -> Self:
        """Grow the ensemble with the sites of this house; returns itself."""
        parameters = {
            "target": self.target,
            "positive": self.positive,
            "query": self.query,
            "imbalance": str(self.imbalance),
            "negatives": self.negatives,
            "delta": str(self.delta),
            "vote": self.vote,
            "bins": self.settings.bins,
            "attributes": self.settings.attributes,
            "max_depth": self.settings.max_depth,
            "min_leaf": self.settings.min_leaf,
        }
        house.converse(self.method, self.release, parameters, self._convene)
        return self

    def _convene(self, run: Run) -> None:
        sample = Sample(positive=self.positive, negatives=self.negatives)
        turnout = count_classes(run, self.settings, sample)
        rare = turnout.share < self.imbalance
        everyone = Sample(positive=self.positive)
        council = Council(run, self.settings, sample if rare else everyone, turnout.classes, self.vote)
        grown, stages = self._grow_ensemble(council) if rare else ([council.grow(0)], [])
        bodies = [council.body(expert) for expert in grown]
        self._body = VotingBody(
            target=self.target,
            classes=turnout.classes,
            query=self.query,
            bins=bodies[0].bins,
            patients=turnout.patients,
            positives=turnout.positives,
            negatives=self.negatives if rare else None,
            vote=self.vote,
            stages=stages,
            experts=[body.nodes for body in bodies],
        )
        said = [*self._tell(self._body), *find_oddities(self.settings, council.schema, council.seen)]
        self._card = run.finish(turnout.patients_by_site, said)

    def _grow_ensemble(self, council: Council) -> tuple[list[list[GrowingNode]], list[Stage]]:
        """Experts two at a time, until more do not help: those of the best ensemble, and all that were tried."""
        grown: list[list[GrowingNode]] = []

        def measure(stage: int) -> Fraction:
            while len(grown) < experts_at(stage):
                grown.append(council.grow(len(grown)))
            return council.measure(grown)

        best, tried = grow_until_settled(measure, self.delta)
        stages = [Stage(experts_at(stage), float(score)) for stage, score in enumerate(tried)]
        return grown[: experts_at(best)], stages

    def _tell(self, body: VotingBody) -> list[str]:
        """What a reader of the card must know of how many trees there are, and why."""
        limit = f"{float(self.imbalance):.2%}"
        share = (
            f"{body.positives} of {body.patients} patients ({body.positives / body.patients:.2%}) "
            f"have {body.target} = {label(body.classes[1])}"
        )
        if body.negatives is None:
            said = [f"{share}, which is not below {limit}: the model is one ordinary tree"]
        else:
            score = next(s.balanced_accuracy for s in body.stages if s.experts == len(body.experts))
            said = [
                f"{share}, which is below {limit}: {count(len(body.experts), 'expert')} vote, each grown on all of "
                f"them and {body.negatives} times as many others of every site",
                f"the number of experts was settled by balanced accuracy on the patients learned from ({score:.3f}): "
                "expect less of others",
            ]
        return said

    @property
    def classes_(self) -> list[Value]:
        """Negative, then positive."""
        return list(self.body.classes)

    @property
    def attributes_(self) -> list[str]:
        """The attributes that the experts ask about."""
        return sorted({name for expert in self.experts_ for name in expert.attributes_})

    @property
    def experts_(self) -> list[DecisionTree]:
        """The experts, each a model of its own (whose shares are those of its sample)."""
        return [
            DecisionTree.of(self.body.tree(number), self.card) for number in range(len(self.body.experts))
        ]

    def predict(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[Any]:
        """The class that most experts vote for."""
        best = np.argmax(self.predict_proba(records), axis=1)
        labels: NDArray[Any] = np.array(self.classes_).take(best)
        return labels

    def predict_proba(
        self, records: Records | DataFrame | Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """For each patient the shares of the votes, negative and positive; of one ordinary tree, its own shares.

        Votes say how sure the ensemble is, not how likely the patient is to be positive: experts learned from
        samples in which positives are common.
        """
        table = as_records(records)
        experts = self.experts_
        if self.body.negatives is None:
            return experts[0].predict_proba(table)
        votes = np.zeros(len(table))
        for expert in experts:
            votes += np.array(self._votes(expert))[expert.settle(table)]
        share = votes / len(experts)
        return np.column_stack([1 - share, share])

    def explain(self, patient: Mapping[str, Any]) -> Verdict | Explanation:
        """How the experts vote on this patient, and the reasons of one who prevails; `.reasons` is data."""
        patient = read_patient(patient, self.attributes_)
        experts = self.experts_
        paths = [expert.find_path(patient) for expert in experts]
        if self.body.negatives is None:
            return explain(experts[0].body, paths[0], patient)
        votes = [
            explain(expert.body, path, patient, said=int(self._votes(expert)[path[-1]]))
            for expert, path in zip(experts, paths, strict=True)
        ]
        return pronounce(votes, self.body.classes[1], self.body.vote)

    def _votes(self, expert: DecisionTree) -> list[bool]:
        """For each node of an expert whether it votes positive where a patient comes to rest there."""
        nodes = expert.body.nodes
        return [is_for_positive(node.counts, nodes[0].counts, self.body.vote) for node in nodes]

    def text(self) -> str:
        """The experts drawn with lines, one after the other."""
        body = self.body
        if body.negatives is None:
            return draw(body.tree(0))
        lines = [
            f"{body.target} = {label(body.classes[1])}: {count(len(body.experts), 'expert')} with one vote each "
            f"({body.positives} of {body.patients} patients are positive)"
        ]
        tried = ", ".join(f"{stage.experts}: {stage.balanced_accuracy:.4f}" for stage in body.stages)
        lines.append(f"balanced accuracy on the patients learned from, by number of experts: {tried}")
        for number in range(len(body.experts)):
            lines += ["", f"expert {number + 1}", draw(body.tree(number))]
        return "\n".join(lines)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Every expert as a picture; the ordinary tree, where there is one."""
        drawn = [expert.pictures(whole=whole)["tree"] for expert in self.experts_]
        if self.body.negatives is None:
            return {"tree": drawn[0]}
        return {f"expert {number} of {len(drawn)}": picture for number, picture in enumerate(drawn, start=1)}

    def plan(self) -> Plan:
        """What a fit will ask; all of it is exact, so nothing bounds what it tells."""
        notes = {
            "tree.classes": "patients by class; a site without a positive patient, or with too few, opts out",
            "tree.schema": "which attributes and values there are",
            "tree.crosstables": "counts of all attributes in every expert's sample, once per level of each expert",
            "tree.votes": "class by vote of every ensemble tried: four numbers each",
        }
        return Plan("rho", tuple(PlannedQuestion(kind, None, note) for kind, note in notes.items()))

    @classmethod
    def from_body(cls, raw: bytes, card: Card) -> Self:
        """The model that a file holds."""
        body = msgspec.json.decode(raw, type=VotingBody)
        fitted = cls(body.target, body.classes[1], body.query, bins=body.bins, vote=body.vote)
        fitted._body, fitted._card = body, card
        return fitted

    def __repr__(self) -> str:
        fitted = "" if self._body is None else f", {count(len(self._body.experts), 'expert')}"
        return (
            f"VotingTrees(target={self.target!r}, positive={self.positive!r}, query={self.query!r}{fitted})"
        )


def as_share(name: str, value: float | str | Fraction) -> Fraction:
    """A parameter between 0 and 1, as it is written: 0.025 is 25 in a thousand, exactly."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise StudyError(f"the {name!r} of VotingTrees must be between 0 and 1; got {value!r}")
    return share


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
