"""`NaiveBayes`: the one-level model. Every attribute by itself says how it moves the class shares; all are added up.

docs/methods.md, section 1.10: below an epsilon of 0.3 noise leaves little of a tree, but one question for the class
tables of all attributes still teaches this. With `release="exact"` and `"masked"` it is the naive Bayes model of the
pooled table. With `"private"` every patient of every site is protected from the house and up to t colluding sites at
the price of epsilon and delta: one patient adds 1 to the class counts and to each of A tables, so the one question
has squared L2 sensitivity A + 1 and takes the whole budget; what is made of its noisy answer is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import name_some
from concilium.models.explanation import Explanation, Reason, say_risk, say_risk_interval, say_share
from concilium.models.intervals import WITHIN_95, Interval, log_odds_interval, share_interval
from concilium.models.method import documented
from concilium.models.outcome import warn_of_few
from concilium.models.prediction import AnyPatients, Entries
from concilium.models.private_start import plan_start, start, states_attributes
from concilium.models.risk_by_horizon import RiskByHorizon, RiskHorizon, Time
from concilium.models.threshold import (
    LEFT_OUT_FIRST,
    PERCENT_LEFT_OUT,
    CallingRule,
    Tally,
    choose_one,
    decide,
    read_chances,
    say_decided,
    warn_of_specificity,
)
from concilium.parameters import MOST_COUNTED, Parameter, whole
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.held_out import Part
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners, Statistic
from concilium.protocol.schema import SharedSchema
from concilium.protocol.splits import STAYS, Split
from concilium.records.columns import label
from concilium.trees.body import BEFOREHAND, BodyOfTrees, TreeBody, TreeNode, find_path, settle, translate
from concilium.trees.evidence_drawing import draw_evidence
from concilium.trees.explanation import rank, say_moved, say_noise, say_reasons, tells_noise
from concilium.trees.grouping import join_small, ungrouped
from concilium.trees.growing import GrowingNode, finish, name_cell
from concilium.trees.plain_tree import PlainTables
from concilium.trees.private_growing import TreeBudget, estimate
from concilium.trees.schemas import (
    PLAN_CUTOFFS,
    PLAN_SCHEMA,
    TreeMethod,
    ask_schemas,
    find_constant,
    find_oddities,
    say_constant,
    settle_schema,
)
from concilium.trees.votes import AskVotes, Voter

REASONS_SHOWN = 8
MOST_NAMED = 10
INDEPENDENT = (
    "The risk takes attributes as independent. Where they repeat each other, it is too extreme: the interval reaches "
    "to the risk if they all said the same."
)
INDEPENDENT_WITHOUT_INTERVAL = (
    "The risk takes attributes as independent. Where they repeat each other, it is too extreme."
)


class NaiveBayesBody(BodyOfTrees, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the model file holds: class counts, and for every attribute a tree of one level with the same root;
    `beforehand`: the patients whom each node counts beside its own, by class; one with everybody's shares where it does
    not say."""

    counts: list[int]
    attributes: list[list[TreeNode]]
    beforehand: list[list[list[float]]] = msgspec.field(default_factory=list)

    def _translate(self, dictionary: Entries) -> dict[str, Any]:
        return {"attributes": [translate(nodes, dictionary) for nodes in self.attributes]}

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
        more = self._find_beforehand(number)
        moved: NDArray[np.float64] = (counts + more) / (counts + more).sum(axis=1, keepdims=True)
        evidence: NDArray[np.float64] = np.log(moved / shares)
        evidence[0] = 0  # who is at the root still has told nothing
        evidence[~self.speaks(number)] = 0
        return evidence

    def _find_beforehand(self, number: int) -> NDArray[np.float64]:
        """The patients, by class, whom each node of an attribute's tree counts beside its own."""
        if self.beforehand:
            return np.array(self.beforehand[number])
        return np.tile(BEFOREHAND * self.class_shares, (len(self.attributes[number]), 1))

    def speaks(self, number: int) -> NDArray[np.bool_]:
        """For every node of an attribute's tree whether more patients are counted there than noise alone would be."""
        nodes = self.attributes[number]
        found = [
            sum(node.counts) > WITHIN_95 * math.sqrt(node.variance * len(self.classes)) for node in nodes
        ]
        return np.array(found)

    def find_interval(self, reached: Sequence[int], best: int) -> Interval:
        """The 95 % interval of a class, for a patient who reaches these nodes (0: of none), by the delta method.

        The logarithm of a class is (1 - J) log n + sum of log n_j: n of its patients, n_j with the value of each of J
        attributes. If attributes are independent within a class, its variance is sum 1 / n_j - (J - 1) / n. Noise of
        variance v on a count n adds v / n^2, of the class counts (1 - J)^2 times that. Stated shares of a private model
        are drawn towards those of everybody: the interval reaches from them and from the measured ones. It also reaches
        to the odds of attributes that repeat each other, as nobody counted whether they do.
        """
        if len(self.classes) == 1:
            return share_interval(self.counts[0], self.counts[0])
        nodes = [self.attributes[number][node] for number, node in enumerate(reached) if node]
        shares, others = self.class_shares, np.arange(len(self.classes)) != best
        root = self.attributes[0][0] if self.attributes else TreeNode(self.counts)
        more = [self._find_beforehand(number)[node] for number, node in enumerate(reached) if node]
        drawn = _Logarithms.of([self.counts, *(node.counts for node in nodes)], shares, root.variance, more)
        variances = [root.variance, *(node.variance for node in nodes)]
        measured = drawn
        if root.measured:
            measured = _Logarithms.of(
                [root.measured, *(node.measured for node in nodes)],
                shares,
                nodes[0].variance if nodes else 0.0,
                more,
            )
        weights = np.exp(drawn.scores - drawn.scores.max()) * others
        weights /= weights.sum() or 1.0
        spread = measured.find_variance(variances)
        variance = float(spread[best] + (weights**2 * spread).sum())
        odds = [
            float(one.scores[best] - np.log(np.exp(one.scores[others]).sum())) for one in (drawn, measured)
        ]
        low, high = log_odds_interval(min(odds), max(odds), variance)
        times = self.count_repeated(reached, best)
        base = _odds(np.log(shares), best)
        once = [base + (one - base) / times for one in odds]
        least, most = log_odds_interval(min(once), max(once), variance / times)
        return min(low, least), max(high, most)

    def count_repeated(self, reached: Sequence[int], best: int) -> float:
        """How many attributes speak of this patient: (sum |e|)^2 / sum e^2 of what each says, e, so that those which
        say nothing do not count. If all of them repeated each other, what they say would count that many times too
        often."""
        start = np.log(self.class_shares)
        base = _odds(start, best)
        alone = np.array(
            [_odds(start + self.evidence(number)[node], best) - base for number, node in enumerate(reached)]
        )
        squares = float((alone**2).sum())
        return float(np.abs(alone).sum()) ** 2 / squares if squares else 1.0


STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def choose_beforehand(table: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """By how many patients with the shares of everybody each value of an attribute is drawn towards them.

    It is what makes the counts of a `table`, [value, class], likeliest, if values differ as such draws do (empirical
    Bayes, Dirichlet-multinomial). Where they differ no more than by chance, few patients of one say next to nothing.
    """
    of_values = table.sum(axis=1)

    def weigh(strength: float) -> float:
        each = _log_gamma(strength * shares + table) - _log_gamma(strength * shares)
        return float((math.lgamma(strength) - _log_gamma(strength + of_values)).sum() + each.sum())

    return max(STRENGTHS, key=weigh)


class _Logarithms(NamedTuple):
    """Class counts of everybody and of each value that a patient has, [1 + attribute, class], none below a floor."""

    counts: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        counts: Sequence[Sequence[int]],
        shares: NDArray[np.float64],
        noise: float,
        more: Sequence[NDArray[np.float64]],
    ) -> _Logarithms:
        """Counts with so many patients `more` of each value; what noise may have made small, or less than none, counts
        as half its deviation."""
        held = np.array(counts, dtype=np.float64)
        if more:
            held[1:] += more
        return cls(np.maximum(held, max(0.5 * noise**0.5, 0.25)))

    @property
    def scores(self) -> NDArray[np.float64]:
        """The logarithm of each class, up to a constant."""
        logarithms = np.log(self.counts)
        scores: NDArray[np.float64] = logarithms[0] + (logarithms[1:] - logarithms[0]).sum(axis=0)
        return scores

    def find_variance(self, noise: Sequence[float]) -> NDArray[np.float64]:
        """The variance of each score; `noise` is that of each row's counts."""
        attributes = len(self.counts) - 1
        everyone, values = self.counts[0], self.counts[1:]
        sampling = (1 / values).sum(axis=0) - (attributes - 1) / everyone
        added = (np.array(noise)[1:, None] / values**2).sum(axis=0)
        found: NDArray[np.float64] = (
            np.maximum(sampling, 1 / everyone) + added + (1 - attributes) ** 2 * noise[0] / everyone**2
        )
        return found


@documented
@dataclass(eq=False, repr=False)
class NaiveBayes(TreeMethod[NaiveBayesBody], RiskByHorizon[NaiveBayesBody]):
    """`NaiveBayes(target="death", release="private", epsilon=0.1, values={...}, bins={...}).fit(house)`."""

    method: ClassVar[str] = "naive-bayes"
    called: ClassVar[str] = "a NaiveBayes"
    description: ClassVar[str] = (
        "one level over all sites (naive Bayes): what each attribute says by itself, added up"
    )
    body_type: ClassVar[type[NaiveBayesBody]] = NaiveBayesBody

    _: KW_ONLY
    time: Time = "time"
    at: RiskHorizon = None
    min_cell: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_COUNTED}",
            whole(1, MOST_COUNTED),
            "values of fewer patients than this, over all sites, are taken together with others; not under private, "
            "where noise hides them",
        ),
    ] = 5

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
        return TreeBudget(self.rho_of_fit, depth=1)

    def plan_learning(self) -> Plan:
        if not self.way_out.bounded:
            tables = PlannedQuestion("counts", None, "counts of all attributes")
            chances = PlannedQuestion(
                "tree.votes",
                None,
                f"for the decision: {PERCENT_LEFT_OUT} % of the patients, after tables of the rest, and all of them "
                "by class and chance",
            )
            last = [chances] if self.rule.tallied else []
            return Plan("rho", (PLAN_SCHEMA, PLAN_CUTOFFS, tables, *last))
        values, bins = self.stated
        known = len({*values, *bins} - {self.target}) if states_attributes(self) else ""
        note = f"class tables of all {known} attributes, once".replace("  ", " ")
        return Plan("rho", (*plan_start(self), PlannedQuestion("counts", self.rho_of_fit, note)))

    def converse_known(self, partners: Partners) -> Conversation[Learned[NaiveBayesBody]]:
        if self.way_out.bounded:
            return self._converse_privately(partners)
        return self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[NaiveBayesBody]]:
        seen = yield from ask_schemas(self)
        schema = yield from settle_schema(self, seen)
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
        constant = say_constant(find_constant(counts[0], schema.attributes))
        flagged = warn_of_specificity(body.decided)
        few = warn_of_few(self.target, body.classes, body.counts, self.horizon)
        return Learned(body, patients, [*find_oddities(self, schema, seen), *few, *constant, *flagged], said)

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
        study, warnings = yield from start(self, partners)
        schema = study.state_schema()
        sizes = [attribute.size for attribute in schema.attributes]
        variance = partners.variance(self.rho_of_fit, len(sizes) + 1)
        noisy: Counts = yield AskCounts(
            query=self.query,
            target=self.target,
            classes=schema.classes,
            attributes=schema.attributes,
            noise=Gaussian(str(variance)),
        )
        found = estimate(noisy[0], sizes, float(variance))
        measured = np.vstack([np.rint(found.counts).astype(np.int64), noisy[0][1:]])
        body = self._finish(schema, np.rint(found.tables).astype(np.int64), measured)
        body = _state_noise(body, found.variance, float(variance))
        body, said = self._decide(body)
        return Learned(body, {}, [self.say_price(), *warnings], said)

    def _finish(self, schema: SharedSchema, table: Counts, measured: Counts | None = None) -> NaiveBayesBody:
        least = 0 if self.way_out.bounded else self.min_cell
        return make_body(self.target, self.query, schema, table, measured, least)

    def _decide(
        self, body: NaiveBayesBody, tally: Tally | None = None, own: Tally | None = None
    ) -> tuple[NaiveBayesBody, str]:
        """The model with its decision, and what the card says of that."""
        positive = self.find_positive(body.classes)
        if positive is None:
            return body, ""
        prevalence = float(body.class_shares[positive])
        decided, said = decide(self.threshold, body.classes[positive], prevalence, tally, own)
        return msgspec.structs.replace(body, decided=decided), said

    @classmethod
    def parameters_in(cls, body: NaiveBayesBody) -> dict[str, Any]:
        stored = super().parameters_in(body)
        del stored["attributes"]  # those of the body are trees, not names
        return stored

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
        return explain_evidence(self.body, reached, patient, self.card.dictionary, self.way_out.bounded)

    def importances(self) -> dict[str, float]:
        body = self.body
        return rank({name: max(self._information(number), 0.0) for number, name in enumerate(body.names)})

    def _text(self) -> str:
        """The class shares, and for every attribute those of its values, the attribute that tells most first."""
        body = self.body.in_words(self.card.dictionary)
        lines = [f"{body.target}: {_tell_shares(body, body.counts)}; each attribute moves these by itself"]
        for number in self._ranked:
            lines.append(body.names[number])
            ways = body.attributes[number][0].ways(body)
            for place, (node, reached) in enumerate(ways, start=1):
                held = body.attributes[number][node]
                shares = _tell_shares(body, held.counts, held.variance)
                lines.append(f"{'└─' if place == len(ways) else '├─'} {reached}: {shares}")
        if body.decided is not None:
            lines.append(say_decided(body.decided))
        return "\n".join(lines)

    @property
    def _ranked(self) -> list[int]:
        """The attributes by their numbers, the one that tells most first."""
        names = self.body.names
        return sorted(range(len(names)), key=lambda number: (-self._information(number), names[number]))

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """What each attribute says, the one that tells most first."""
        body = self.body.in_words(self.card.dictionary)
        if not body.attributes:
            return {}
        positive = len(body.classes) - 1 if body.decided is None else body.decided.place(body.classes)
        shown = [body.attributes[number] for number in self._ranked]
        most = len(shown) if whole else None
        return {"attributes": draw_evidence(body, shown, positive, most=most)}

    def _information(self, number: int) -> float:
        """How much an attribute tells of the class, per patient (nats)."""
        counts = np.array([node.counts for node in self.body.attributes[number]], dtype=np.float64)[1:]
        evidence = self.body.evidence(number)[1:]
        return float((counts * evidence).sum() / max(counts.sum(), 1))

    def _summary(self) -> str:
        return f"{len(self.body.attributes)} attributes"


def make_body(
    target: str,
    query: str,
    schema: SharedSchema,
    table: Counts,
    measured: Counts | None = None,
    min_cell: int = 0,
) -> NaiveBayesBody:
    """The model of a table, [1 + cell, class], and of what was measured, where that has noise; a value that nobody has
    gets a branch only where `min_cell` is 0: then none are joined."""
    joined = join_small(table, schema.attributes, min_cell) if min_cell else ungrouped(table)
    trees, start = [], 1
    for index, attribute in enumerate(schema.attributes):
        raw = [None] * len(table) if measured is None else list(measured)
        nodes = [GrowingNode(0, table[0], 0, [STAYS] * attribute.size, raw[0])]
        born: dict[int, int] = {}
        for cell in attribute.in_branch_order:
            leader = int(joined.first[start + cell])
            if leader not in born and (not min_cell or joined.table[leader].any()):
                born[leader] = len(nodes)
                nodes.append(GrowingNode(1, joined.table[leader], measured=raw[leader]))
            nodes[0].children[cell] = born.get(leader, STAYS)
        start += attribute.size
        if len(nodes) > 1:
            trees.append(finish(target, query, schema.keep([index]), nodes))
    return NaiveBayesBody(
        target=target,
        classes=list(schema.classes.values),
        query=query,
        bins={name: edges for tree in trees for name, edges in tree.bins.items()},
        dates=sorted({name for tree in trees for name in tree.dates}),
        counts=[int(count) for count in table[0]],
        attributes=[tree.nodes for tree in trees],
    )


def _state_noise(body: NaiveBayesBody, root: float, cells: float) -> NaiveBayesBody:
    """The model with the variance of the noise of its class counts, and of those of values."""
    trees = [
        [msgspec.structs.replace(node, variance=cells if place else root) for place, node in enumerate(nodes)]
        for nodes in body.attributes
    ]
    return msgspec.structs.replace(body, attributes=trees)


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


def _tell_shares(body: NaiveBayesBody, counts: Sequence[int], variance: float = 0.0) -> str:
    """Class shares in words, with the number of patients; of no more patients than the noise of their counts, none."""
    everyone = sum(counts)
    if variance and everyone <= WITHIN_95 * math.sqrt(variance * len(counts)):
        return "no more patients than noise"
    if not everyone:
        return "nobody"
    shares = (
        f"{label(name)} {say_share(count / everyone)}"
        for name, count in zip(body.classes, counts, strict=True)
    )
    return f"{', '.join(shares)} of {everyone} patient{'' if everyone == 1 else 's'}"


def _list_reasons(
    body: NaiveBayesBody,
    words: NaiveBayesBody,
    reached: Sequence[int],
    evidence: Sequence[NDArray[np.float64]],
    best: int,
) -> tuple[list[Reason], NDArray[np.float64]]:
    """What each attribute moves, the strongest first, and the log odds that they lead to."""
    start = np.log(body.class_shares)
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
                condition=dict(words.attributes[number][0].ways(words))[reached[number]],
                before=before,
                after=_share(score, best),
                patients=sum(nodes[reached[number]].counts),
            )
        )
    return reasons, score


def explain_evidence(
    body: NaiveBayesBody,
    reached: Sequence[int],
    patient: Mapping[str, Any],
    dictionary: Entries,
    noisy: bool,
    whom: str = "all",
    find_interval: Callable[[int], Interval] | None = None,
    patients: int | None = None,
) -> Explanation:
    """Explain a prediction by what each attribute moved, for a patient who reaches these nodes of the attributes' trees
    (0: of none); `whom` says of which patients the model is, `find_interval` the interval of a class and `patients` how
    many they are, if not the model.

    It begins with the share of the predicted class among all patients. The reasons move it one after the other, the
    strongest first.
    """
    reached = [node if body.speaks(number)[node] else 0 for number, node in enumerate(reached)]
    evidence = [body.evidence(number)[node] for number, node in enumerate(reached)]
    start = np.log(body.class_shares)
    end = start + sum(evidence, np.zeros_like(start))
    best = choose_one([_share(end, index) for index in range(len(end))], body.classes, body.decided)
    words = body.in_words(dictionary)
    reasons, score = _list_reasons(body, words, reached, evidence, best)
    notes = _say_silent(body, reached, patient, noisy)
    named = label(words.classes[best])
    patients = sum(body.counts) if patients is None else patients
    share, base = _share(score, best), _share(start, best)
    interval, between = None, ""
    if all(tells_noise(tree, noisy) for tree in body.trees):
        low, high = find_interval(best) if find_interval else body.find_interval(reached, best)
        interval = min(low, share), max(high, share)
        between = f" {say_risk_interval(interval)};"
    among = f"patients, about {patients}" if noisy else f"{patients} patients"
    of_them = base if noisy or not sum(body.counts) else body.counts[best] / sum(body.counts)
    against = f"against {say_share(of_them)} of {whom} {among}"
    first = f"{body.target} = {named} ({say_risk(share)};{between} {against})."
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=share,
        base=base,
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(
            first,
            *(
                [INDEPENDENT_WITHOUT_INTERVAL if interval is None else INDEPENDENT]
                if len(reasons) > 1
                else []
            ),
            *_say_evidence(named, reasons, noisy),
            *notes,
            *say_noise(interval, noisy),
        ),
        interval=interval,
        chances=tuple(_share(score, place) for place in range(len(body.classes))),
    )


def _say_silent(
    body: NaiveBayesBody, reached: Sequence[int], patient: Mapping[str, Any], noisy: bool
) -> tuple[str, ...]:
    """Which attributes say nothing here, and why."""
    silent = [name for name, node in zip(body.names, reached, strict=True) if not node]
    absent = [name for name in silent if name not in patient]
    missing = [name for name in silent if name in patient and patient[name] is None]
    unseen = [name for name in silent if name in patient and patient[name] is not None]
    told = []
    if absent:
        told.append(f"Not entered, and so not counted for or against: {name_some(absent, MOST_NAMED)}.")
    if noisy and (hidden := [*unseen, *missing]):
        told.append(
            f"Not counted, since noise hides whether any patient of the model was like that: {', '.join(hidden)}."
        )
    elif missing:
        told.append(f"Missing, which no patient of the model had, and so not counted: {', '.join(missing)}.")
    if unseen and not noisy:
        told.append(
            f"No patient of the model had the value given for {', '.join(unseen)}: it is not counted."
        )
    return tuple(told)


def _say_evidence(named: str, reasons: Sequence[Reason], noisy: bool) -> list[str]:
    """The strongest reasons, a sentence each, and one for all others."""
    lines = say_reasons(named, reasons[:REASONS_SHOWN], noisy, say_risk)
    rest = reasons[REASONS_SHOWN:]
    if rest:
        moved = say_moved(named, say_risk(rest[0].before or 0.0), say_risk(rest[-1].after or 0.0))
        lines.append(
            f"{len(rest)} more attribute{', which' if len(rest) == 1 else 's, each of which'} says less: {moved}."
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
