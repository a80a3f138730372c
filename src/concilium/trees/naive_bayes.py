"""`NaiveBayes`: the one-level model. Every attribute by itself says how it moves the class shares; all are added up.

docs/methods.md, section 1.10: below an epsilon of 0.3 noise leaves little of a tree, but one question for the class
tables of all attributes still teaches this. With `release="exact"` and `"masked"` it is the naive Bayes model of the
pooled table. With `"private"` every patient of every site is protected from the house and up to t colluding sites at
the price of epsilon and delta: one patient adds 1 to the class counts and to each of A tables, so the one question
has squared L2 sensitivity A + 1 and takes the whole budget; what is made of its noisy answer is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.method import documented
from concilium.models.prediction import AnyPatients
from concilium.models.risk_counts import read_chances
from concilium.models.threshold import (
    LEFT_OUT_FIRST,
    PERCENT_LEFT_OUT,
    CallingRule,
    Tally,
    choose_one,
    decide,
    say_decided,
)
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.held_out import Part
from concilium.protocol.questions import Gaussian, Statistic
from concilium.protocol.routing import STAYS
from concilium.protocol.schema import SharedSchema, share_schema, state_schema
from concilium.protocol.splits import Split
from concilium.records.columns import label
from concilium.trees.body import BEFOREHAND, BodyOfTrees, TreeBody, TreeNode
from concilium.trees.explanation import rank, say_reasons
from concilium.trees.growing import GrowingNode, finish, name_cell
from concilium.trees.plain_tree import PlainTables
from concilium.trees.private_growing import TreeBudget, estimate
from concilium.trees.schemas import PLAN_SCHEMA, TreeMethod, ask_schemas, find_oddities
from concilium.trees.settling import find_path, settle
from concilium.trees.votes import AskVotes, Voter

REASONS_SHOWN = 8


class NaiveBayesBody(BodyOfTrees, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the model file holds: class counts, and for every attribute a tree of one level with the same root."""

    counts: list[int]
    attributes: list[list[TreeNode]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.counts) != len(self.classes) or min(self.counts, default=-1) < 0:
            raise ValueError("there must be one count for each class")
        for number, (root, *leaves) in enumerate((tree.nodes for tree in self.trees), start=1):
            if root.attribute is None or any(node.attribute is not None for node in leaves):
                raise ValueError(f"attribute {number} must be a tree of one level")
            if root.counts != self.counts:
                raise ValueError(f"{root.attribute}: its tree must have the class counts of the model")
        if len(set(self.names)) != len(self.names):
            raise ValueError("an attribute is there twice")

    @property
    def names(self) -> list[str]:
        return [cast(str, nodes[0].attribute) for nodes in self.attributes]

    @property
    def trees(self) -> Iterator[TreeBody]:
        """What each attribute says, as a tree of its own."""
        return map(self.tree, self.attributes)

    @property
    def class_shares(self) -> NDArray[np.float64]:
        """The class shares of all patients; where noise left nobody of a class, half a patient."""
        counts = np.maximum(np.array(self.counts, dtype=np.float64), 0.5)
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    def evidence(self, number: int) -> NDArray[np.float64]:
        """For every node of an attribute's tree how far it moves the logarithm of each class share."""
        counts = np.array([node.counts for node in self.attributes[number]], dtype=np.float64)
        shares = self.class_shares
        moved: NDArray[np.float64] = (counts + BEFOREHAND * shares) / (
            counts.sum(axis=1, keepdims=True) + BEFOREHAND
        )
        evidence: NDArray[np.float64] = np.log(moved / shares)
        evidence[0] = 0  # who is at the root still has told nothing
        return evidence


@documented
@dataclass(eq=False, repr=False)
class NaiveBayes(TreeMethod[NaiveBayesBody]):
    """`NaiveBayes(target="death", release="private", epsilon=0.1, values={...}, bins={...}).fit(house)`."""

    method: ClassVar[str] = "naive-bayes"
    called: ClassVar[str] = "a NaiveBayes"
    description: ClassVar[str] = (
        "one level over all sites (naive Bayes): what each attribute says by itself, added up"
    )
    body_type: ClassVar[type[NaiveBayesBody]] = NaiveBayesBody

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.tallied and self.way_out.bounded:
            return (
                "what a private one is told does not say how many patients have which chance, and its tables, taken "
                "as independent, promise up to 15 in 100 more than they keep (experiments/implied_thresholds.py); take "
                "'prevalence', where they say that Youden's is, or a cost, or a tree"
            )
        return None

    def find_objection(self, question: Statistic) -> str | None:
        if isinstance(question, AskVotes) and question.by != "odds":
            return "it asks how experts vote, and the study has none"
        if isinstance(question, AskCounts) and question.tree:
            return "it asks about nodes of a tree, and the study has none"
        return super().find_objection(question)

    @property
    def percent_held_out(self) -> int | None:
        return PERCENT_LEFT_OUT if self.rule.tallied else None

    @property
    def budget(self) -> TreeBudget:
        return TreeBudget(self.rho, depth=1)

    def plan(self) -> Plan:
        if not self.way_out.bounded:
            tables = PlannedQuestion("counts", None, "counts of all attributes")
            chances = PlannedQuestion(
                "tree.votes",
                None,
                f"for the decision: {PERCENT_LEFT_OUT} % of the patients, after tables of the rest, and all of them "
                "by class and chance",
            )
            return Plan("rho", (PLAN_SCHEMA, tables, *([chances] if self.rule.tallied else [])))
        attributes = state_schema(*self.stated, self.target).attributes
        note = f"class tables of all {len(attributes)} attributes, once"
        return Plan("rho", (PlannedQuestion("counts", self.rho, note),))

    def converse(self, partners: Partners) -> Conversation[Learned[NaiveBayesBody]]:
        if self.way_out.bounded:
            return self._converse_privately(partners)
        return self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[NaiveBayesBody]]:
        seen = yield from ask_schemas(self)
        schema = share_schema(seen, self.bins, self.target)
        self.find_positive(schema.classes.values)
        tables = PlainTables(self, schema)
        tallied = self.rule.tallied and self.find_positive(schema.classes.values) is not None
        tally = None
        if tallied and not any(own.floored for own in seen.values()):
            learning, left_out = (Part(percent=PERCENT_LEFT_OUT, held=held) for held in (False, True))
            counts = yield from tables.count(part=learning)
            question = self._ask_chances(schema, self._finish(schema, counts[0]), left_out)
            tally = read_chances((yield question), question.edges, LEFT_OUT_FIRST)
        counts = yield from tables.count()
        patients = {site: own.patients for site, own in seen.items()}
        body = self._finish(schema, counts[0])
        own = None
        if tallied:
            question = self._ask_chances(schema, body)
            own = read_chances((yield question), question.edges)
        if tally is None or not tally.tells:
            tally, own = own, None
        body, said = self._decide(body, tally, own)
        return Learned(body, patients, find_oddities(self, schema, seen), said)

    def _ask_chances(self, schema: SharedSchema, body: NaiveBayesBody, part: Part | None = None) -> AskVotes:
        """How many patients of each class have which chance: every attribute moves the log odds by itself."""
        positive = self.find_positive(body.classes)
        assert positive is not None
        place = {attribute.name: index for index, attribute in enumerate(schema.attributes)}
        experts = []
        for number, nodes in enumerate(body.attributes):
            index = place[body.names[number]]
            moved = body.evidence(number) @ np.where(np.arange(2) == positive, 1.0, -1.0)
            children = _lead(nodes[0], schema.attributes[index])
            experts.append(Voter([Split(0, index, children)], list(range(1, len(nodes))), moved[1:].tolist()))
        shares = body.class_shares
        return AskVotes(
            query=self.query,
            target=self.target,
            attributes=schema.attributes,
            positive=body.classes[positive],
            experts=experts,
            by="odds",
            start=float(np.log(shares[positive] / shares[1 - positive])),
            part=part,
        )

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[NaiveBayesBody]]:
        schema = state_schema(*self.stated, self.target)
        sizes = [attribute.size for attribute in schema.attributes]
        variance = partners.variance(self.rho, len(sizes) + 1)
        noisy: Counts = yield AskCounts(
            query=self.query,
            target=self.target,
            classes=schema.classes,
            attributes=schema.attributes,
            noise=Gaussian(str(variance)),
        )
        tables = estimate(noisy[0], sizes, float(variance)).tables
        body, said = self._decide(self._finish(schema, np.rint(tables).astype(np.int64)))
        return Learned(body, {}, [self.say_price()], said)

    def _finish(self, schema: SharedSchema, table: Counts) -> NaiveBayesBody:
        """The model of a table, [1 + cell, class]; a value that nobody has gets a branch only if the study names it."""
        trees, start = [], 1
        for index, attribute in enumerate(schema.attributes):
            nodes = [GrowingNode(0, table[0], 0, [STAYS] * attribute.size)]
            for cell in attribute.in_branch_order:
                if self.way_out.bounded or table[start + cell].any():
                    nodes[0].children[cell] = len(nodes)
                    nodes.append(GrowingNode(1, table[start + cell]))
            start += attribute.size
            if len(nodes) > 1:
                trees.append(finish(self.target, self.query, schema.keep([index]), nodes))
        return NaiveBayesBody(
            target=self.target,
            classes=list(schema.classes.values),
            query=self.query,
            bins={name: edges for tree in trees for name, edges in tree.bins.items()},
            counts=[int(count) for count in table[0]],
            attributes=[tree.nodes for tree in trees],
        )

    def _decide(
        self, body: NaiveBayesBody, tally: Tally | None = None, own: Tally | None = None
    ) -> tuple[NaiveBayesBody, str]:
        """The model with its decision, and what the card says of that."""
        positive = self.find_positive(body.classes)
        if positive is None:
            return body, ""
        prevalence = float(body.class_shares[positive])
        decided, said = decide(self.decision, body.classes[positive], prevalence, tally, own)
        return msgspec.structs.replace(body, decided=decided), said

    @property
    def attributes_(self) -> list[str]:
        return sorted(self.body.names)

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """For each patient how likely each class is; columns as in classes_. What attributes say is multiplied as if
        they were independent: patients are ranked well by that, but extreme shares are too sure of themselves."""
        table = self.read(patients)
        score = np.tile(np.log(self.body.class_shares), (len(table), 1))
        for number, tree in enumerate(self.body.trees):
            score += self.body.evidence(number)[settle(tree, table)]
        score -= score.max(axis=1, keepdims=True)
        likely: NDArray[np.float64] = np.exp(score)
        likely /= likely.sum(axis=1, keepdims=True)
        return likely

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        """What each attribute of this patient moved, the strongest first."""
        # What was not entered is no evidence, not even that of patients for whom it is missing.
        reached = [
            find_path(tree, patient, self.card.dictionary)[-1] if name in patient else 0
            for name, tree in zip(self.body.names, self.body.trees, strict=True)
        ]
        return _explain_evidence(self.body, reached)

    def importances(self) -> dict[str, float]:
        body = self.body
        return rank({name: max(self._information(number), 0.0) for number, name in enumerate(body.names)})

    def text(self) -> str:
        """The class shares, and for every attribute those of its values, the attribute that tells most first."""
        body = self.body
        lines = [f"{body.target}: {_tell_shares(body, body.counts)}; each attribute moves these by itself"]
        for number in sorted(
            range(len(body.attributes)), key=lambda n: (-self._information(n), body.names[n])
        ):
            lines.append(body.names[number])
            ways = body.attributes[number][0].ways(body.bins)
            for place, (node, reached) in enumerate(ways, start=1):
                shares = _tell_shares(body, body.attributes[number][node].counts)
                lines.append(f"{'└─' if place == len(ways) else '├─'} {reached}: {shares}")
        if body.decided is not None:
            lines.append(say_decided(body.decided))
        return "\n".join(lines)

    def _information(self, number: int) -> float:
        """How much an attribute tells of the class, per patient (nats)."""
        counts = np.array([node.counts for node in self.body.attributes[number]], dtype=np.float64)[1:]
        evidence = self.body.evidence(number)[1:]
        return float((counts * evidence).sum() / max(counts.sum(), 1))

    def _summary(self) -> str:
        return f"{len(self.body.attributes)} attributes"


def _lead(root: TreeNode, attribute: Attribute) -> list[int]:
    """For each cell of an attribute the node of its tree that it leads to, as `settle` does."""
    elsewhere = STAYS if root.other is None else root.other
    goes = {None if one.value is None else label(one.value): one.node for one in root.branches}
    children = [elsewhere] * attribute.size
    for cell in attribute.in_branch_order:
        if cell != attribute.other_cell:
            name = name_cell(attribute, cell)
            children[cell] = goes.get(None if name is None else label(name), elsewhere)
    return children


def _tell_shares(body: NaiveBayesBody, counts: Sequence[int]) -> str:
    """Class shares in words, with the number of patients."""
    everyone = sum(counts)
    if not everyone:
        return "nobody"
    shares = (
        f"{label(name)} {count / everyone:.0%}" for name, count in zip(body.classes, counts, strict=True)
    )
    return f"{', '.join(shares)} of {everyone} patient{'' if everyone == 1 else 's'}"


def _explain_evidence(body: NaiveBayesBody, reached: Sequence[int]) -> Explanation:
    """Explain a prediction by what each attribute moved, for a patient who reaches these nodes of the attributes' trees
    (0: of none).

    It begins with the share of the predicted class among all patients. The reasons move it one after the other, the
    strongest first.
    """
    evidence = [body.evidence(number)[node] for number, node in enumerate(reached)]
    start = np.log(body.class_shares)
    end = start + sum(evidence, np.zeros_like(start))
    best = choose_one([_share(end, index) for index in range(len(end))], body.classes, body.decided)
    speaking = [number for number, node in enumerate(reached) if node]
    # How far the attribute alone would move the odds of the predicted class.
    alone = {number: _odds(start + evidence[number], best) - _odds(start, best) for number in speaking}
    reasons, score = [], start
    for number in sorted(speaking, key=lambda n: (-abs(alone[n]), body.names[n])):
        before, score = _share(score, best), score + evidence[number]
        nodes = body.attributes[number]
        reasons.append(
            Reason(
                attributes=(body.names[number],),
                condition=dict(nodes[0].ways(body.bins))[reached[number]],
                before=before,
                after=_share(score, best),
                patients=sum(nodes[reached[number]].counts),
            )
        )
    silent = [name for name, node in zip(body.names, reached, strict=True) if not node]
    notes = (f"Not known here, or not seen before: {', '.join(silent)}.",) if silent else ()
    named, patients = label(body.classes[best]), sum(body.counts)
    first = (
        f"{body.target} = {named} ({_share(score, best):.0%} likely; {_share(start, best):.0%} of all "
        f"{patients} patients)."
    )
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=_share(score, best),
        base=_share(start, best),
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(first, *_say_evidence(named, reasons), *notes),
        chances=tuple(_share(score, place) for place in range(len(body.classes))),
    )


def _say_evidence(named: str, reasons: Sequence[Reason]) -> list[str]:
    """The strongest reasons, a sentence each, and one for all others."""
    lines = say_reasons(named, reasons[:REASONS_SHOWN])
    rest = reasons[REASONS_SHOWN:]
    if rest:
        lines.append(
            f"{len(rest)} more attribute{'' if len(rest) == 1 else 's'}, each of which says less: {named} goes "
            f"from {rest[0].before:.0%} to {rest[-1].after:.0%}."
        )
    return lines


def _share(score: NDArray[np.float64], best: int) -> float:
    """The share of one class by the logarithms of all, up to a constant."""
    likely = np.exp(score - score.max())
    return float(likely[best] / likely.sum())


def _odds(score: NDArray[np.float64], best: int) -> float:
    """The logarithm of the odds of one class."""
    others = np.delete(score, best)
    return float(score[best] - np.logaddexp.reduce(others)) if len(others) else 0.0
