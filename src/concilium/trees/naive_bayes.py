"""`NaiveBayes`: the one-level model. Every attribute by itself says how it moves the class shares; all are added up.

METHODS.md, section 1: below an epsilon of about 0.3 noise leaves little of a tree, but one question for the class
tables of all attributes still teaches this. With `release="exact"` and `"masked"` it is the naive Bayes model of the
pooled table. With `"private"` every patient of every site is protected from the house and up to t colluding sites at
the price of epsilon and delta: one patient adds 1 to the class counts and to each of A tables, so the one question
has squared L2 sensitivity A + 1 and takes the whole budget; what is made of its noisy answer is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.federation.card import Card
from concilium.federation.house import House
from concilium.federation.messages import Release, encode
from concilium.federation.patients import as_records, codes_and_names, read_patient
from concilium.federation.run import Run
from concilium.federation.schema import GlobalSchema, merge, name_of
from concilium.model import Fitted
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.records.table import Records, Value, label
from concilium.trees.body import Node, TreeBody
from concilium.trees.cautions import find_oddities
from concilium.trees.crosstables import AskCrosstables, AskedAttribute
from concilium.trees.growing import Counts, GrowingNode, finish
from concilium.trees.plain_tree import ASK_SCHEMA, ask_schemas
from concilium.trees.private_estimates import estimate
from concilium.trees.private_tree import say_price
from concilium.trees.routing import STAYS
from concilium.trees.settings import Stated, state
from concilium.trees.weighing import Weighing, weigh

if TYPE_CHECKING:
    from pandas import DataFrame

# Patients that every value is given beforehand, with the class shares of all: a value that nobody has moves nothing.
BEFOREHAND = 1.0


class NaiveBayesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the model file holds: class counts, and for every attribute a tree of one level with the same root."""

    target: str
    classes: list[str | int | float | bool]
    query: str
    bins: dict[str, list[float]]
    counts: list[int]
    attributes: list[list[Node]]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.classes) or min(self.counts, default=-1) < 0:
            raise ValueError("there must be one count for each class")
        for number, nodes in enumerate(self.attributes):
            body = self.tree(number)
            root = body.nodes[0]
            if root.attribute is None or any(node.attribute is not None for node in nodes[1:]):
                raise ValueError(f"attribute {number + 1} must be a tree of one level")
            if root.counts != self.counts:
                raise ValueError(f"{root.attribute}: its tree must have the class counts of the model")
        if len(set(self.names)) != len(self.names):
            raise ValueError("an attribute is there twice")

    @property
    def names(self) -> list[str]:
        return [cast(str, nodes[0].attribute) for nodes in self.attributes]

    def tree(self, number: int) -> TreeBody:
        """What one attribute says, as a tree of its own."""
        nodes = self.attributes[number]
        return TreeBody(
            target=self.target, classes=list(self.classes), query=self.query, bins=self.bins, nodes=nodes
        )

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


class NaiveBayes(Stated, Fitted[NaiveBayesBody]):
    """`NaiveBayes(target="death", release="private", epsilon=0.1, values={...}, bins={...}).fit(house)`.

    target      the attribute to predict; patients for whom it is missing are left out
    query       attributes of interest: the patients to learn from; empty: everyone
    release     "exact", "masked" or "private", as for a DecisionTree
    epsilon, delta, values, bins, attributes    as for a DecisionTree
    """

    method: ClassVar[str] = "naive-bayes"

    def __init__(
        self,
        target: str,
        query: str = "",
        release: Release = "exact",
        *,
        epsilon: float | str | Fraction | None = None,
        delta: float | str | Fraction = "1/1000000",
        values: Mapping[str, Sequence[Value]] | None = None,
        bins: Mapping[str, Sequence[float]] | None = None,
        attributes: Sequence[str] | None = None,
    ) -> None:
        # What is asked of whom is asked as for a tree of one level.
        self.settings = state(
            "a NaiveBayes",
            target,
            query,
            release,
            epsilon=epsilon,
            delta=delta,
            values=values,
            bins=bins,
            attributes=attributes,
            max_depth=1,
        )
        self.release = release

    def fit(self, house: House) -> Self:
        """Learn with the sites of this house; returns itself."""
        learn = self._learn_privately if self.release == "private" else self._learn
        house.converse(self.method, self.release, self.settings.parameters, learn)
        return self

    def _learn(self, run: Run) -> None:
        masked = self.release == "masked"
        seen = ask_schemas(self.settings, run)
        schema = merge(seen, self.settings.bins, self.target)
        question = self._ask(schema, schema.common if masked else None)
        templates = None if masked else {s: encode(schema.conditional(own)) for s, own in seen.items()}
        shape = (1, question.cells, question.classes)
        counts = run.add_up("tree.crosstables", question, shape, templates)[0]
        self._body = self._finish(schema, counts)
        said = find_oddities(self.settings, schema, seen)
        self._card = run.finish({site: own.patients for site, own in seen.items()}, said)

    def _learn_privately(self, run: Run) -> None:
        schema = self.settings.stated_schema
        sizes = [attribute.size for attribute in schema.attributes]
        variance = run.masked.variance(self.settings.rho, len(sizes) + 1)
        question = msgspec.structs.replace(self._ask(schema, schema.common), variance=str(variance))
        noisy = run.add_up("tree.crosstables", question, (1, question.cells, question.classes))[0]
        found = estimate(noisy, sizes, float(variance))
        self._body = self._finish(schema, np.rint(found.tables).astype(np.int64))
        self._card = run.finish({}, [say_price(self.settings)])

    def _ask(self, schema: GlobalSchema, common: Any) -> AskCrosstables:
        return AskCrosstables(
            query=self.query,
            target=self.target,
            classes=len(schema.classes),
            attributes=[AskedAttribute(a.name, a.size, list(a.edges)) for a in schema.attributes],
            tree=[],
            nodes=[0],
            schema=common,
        )

    def _finish(self, schema: GlobalSchema, table: Counts) -> NaiveBayesBody:
        """The model of a table, [1 + cell, class]; a value that nobody has gets a branch only if the study names it."""
        trees, start = [], 1
        for index, attribute in enumerate(schema.attributes):
            cells = table[start : start + attribute.size]
            start += attribute.size
            nodes = [GrowingNode(0, table[0], 0)]
            for counts in cells:
                named = self.release == "private" or bool(counts.any())
                nodes[0].children.append(len(nodes) if named else STAYS)
                if named:
                    nodes.append(GrowingNode(1, counts))
            if len(nodes) > 1:
                trees.append(finish(self.target, self.query, schema.keep([index]), nodes))
        return NaiveBayesBody(
            target=self.target,
            classes=list(schema.classes),
            query=self.query,
            bins={name: edges for tree in trees for name, edges in tree.bins.items()},
            counts=[int(count) for count in table[0]],
            attributes=[tree.nodes for tree in trees],
        )

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        if self.release != "private":
            tables = PlannedQuestion("tree.crosstables", None, "counts of all attributes")
            return Plan("rho", (ASK_SCHEMA, tables))
        note = f"class tables of all {len(self.settings.stated_schema.attributes)} attributes, once"
        return Plan("rho", (PlannedQuestion("tree.crosstables", self.settings.rho, note),))

    @property
    def classes_(self) -> list[Value]:
        return list(self.body.classes)

    @property
    def attributes_(self) -> list[str]:
        """The attributes that the model asks about."""
        return sorted(self.body.names)

    def predict(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[Any]:
        """The likeliest class of each patient."""
        best = np.argmax(self.predict_proba(records), axis=1)
        labels: NDArray[Any] = np.array(self.classes_).take(best)
        return labels

    def predict_proba(
        self, records: Records | DataFrame | Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """For each patient how likely each class is; columns as in classes_. What attributes say is multiplied as if
        they were independent: patients are ranked well by that, but extreme shares are too sure of themselves."""
        table = as_records(records)
        score = np.tile(np.log(self.body.class_shares), (len(table), 1))
        for number in range(len(self.body.attributes)):
            score += self.body.evidence(number)[self._nodes(number, table)]
        score -= score.max(axis=1, keepdims=True)
        likely: NDArray[np.float64] = np.exp(score)
        likely /= likely.sum(axis=1, keepdims=True)
        return likely

    def explain(self, patient: Mapping[str, Any]) -> Weighing:
        """What each attribute of this patient moved, the strongest first: prints as sentences, `.reasons` is data."""
        asked = self.attributes_
        patient = read_patient(patient, asked)
        reached = []
        if asked:
            table = Records.from_rows([{name: patient.get(name) for name in asked}])
            reached = [int(self._nodes(number, table)[0]) for number in range(len(self.body.attributes))]
        return weigh(self.body, reached)

    def _nodes(self, number: int, table: Records) -> NDArray[np.int64]:
        """For each patient the node of an attribute's tree; 0 where the value has no branch."""
        root = self.body.attributes[number][0]
        assert root.attribute is not None
        edges = self.body.bins.get(root.attribute)
        codes, names = codes_and_names(table, root.attribute, edges)
        goes = {b.value if edges is not None else name_of(b.value): b.node for b in root.branches}
        child = np.array([goes.get(name, root.other or 0) for name in names], dtype=np.int64)
        nodes: NDArray[np.int64] = child[codes]
        return nodes

    def text(self) -> str:
        """The class shares, and for every attribute those of its values, the attribute that tells most first."""
        body = self.body
        lines = [f"{body.target}: {tell_shares(body, body.counts)}; each attribute moves these by itself"]
        for number in sorted(
            range(len(body.attributes)), key=lambda n: (-self._information(n), body.names[n])
        ):
            lines.append(body.names[number])
            ways = body.attributes[number][0].ways(body.bins)
            for place, (node, reached) in enumerate(ways, start=1):
                said = tell_shares(body, body.attributes[number][node].counts)
                lines.append(f"{'└─' if place == len(ways) else '├─'} {reached}: {said}")
        return "\n".join(lines)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """None: what it is, its text tells."""
        return {}

    def _information(self, number: int) -> float:
        """How much an attribute tells of the class, per patient (nats)."""
        counts = np.array([node.counts for node in self.body.attributes[number]], dtype=np.float64)[1:]
        evidence = self.body.evidence(number)[1:]
        return float((counts * evidence).sum() / max(counts.sum(), 1))

    @classmethod
    def from_body(cls, raw: bytes, card: Card) -> Self:
        """The model that a file holds."""
        body = msgspec.json.decode(raw, type=NaiveBayesBody)
        fitted = cls(body.target, body.query, bins=body.bins)
        fitted.release = cast(Release, card.release)
        fitted._body, fitted._card = body, card
        return fitted

    def __repr__(self) -> str:
        fitted = "" if self._body is None else f", {len(self._body.attributes)} attributes"
        return f"NaiveBayes(target={self.target!r}, query={self.query!r}{fitted})"


def tell_shares(body: NaiveBayesBody, counts: Sequence[int]) -> str:
    """Class shares in words, with the number of patients."""
    everyone = sum(counts)
    if not everyone:
        return "nobody"
    shares = (
        f"{label(name)} {count / everyone:.0%}" for name, count in zip(body.classes, counts, strict=True)
    )
    return f"{', '.join(shares)} of {everyone} patient{'' if everyone == 1 else 's'}"
