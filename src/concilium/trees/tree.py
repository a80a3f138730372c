"""`DecisionTree`: an ID3 tree grown over all sites of a house, and the model it leaves.

Chapter 2 of the thesis (DIDT). With `release="exact"` and `"masked"` it equals the tree of the pooled table; what a
release does and does not protect is said on the card.
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
from concilium.federation.messages import Release
from concilium.federation.patients import as_records, codes_and_names, read_patient
from concilium.federation.run import Run
from concilium.federation.schema import name_of
from concilium.model import Fitted
from concilium.privacy.accounting import Plan
from concilium.records.table import Records, Value
from concilium.trees import plain_tree, private_tree
from concilium.trees.body import TreeBody
from concilium.trees.drawing import draw
from concilium.trees.explanation import Explanation, explain
from concilium.trees.expressions import LeafExpression, to_expressions
from concilium.trees.growing import Criterion
from concilium.trees.pmml import to_pmml
from concilium.trees.routing import STAYS, Branching, route
from concilium.trees.settings import Stated, state
from concilium.trees.svg import to_svg

if TYPE_CHECKING:
    from pandas import DataFrame


LEAVES_SHOWN = 24
LEAVES_DRAWN = 1000


class DecisionTree(Stated, Fitted[TreeBody]):
    """`DecisionTree(target="death", query="age > 20").fit(house)`.

    target      the attribute to predict; patients for whom it is missing are left out
    query       attributes of interest: the patients to learn from; empty: everyone
    release     "exact": the house sees each site's counts; "masked": sums over all sites only (three at least);
                "private": sums with noise, at the price of `epsilon` and `delta` per patient, for which the study
                must state `values` (of codes, and the classes) or `bins` (of numbers) for all it asks about
    bins        public cutoffs of numeric attributes, {"age": [40, 60]}; a number without bins is left out
    cutoffs     choose so many of the `bins`' edges, at even quantiles of a shared histogram; None: take all of them
    attributes  the attributes to consider; None: all that every site has
    max_depth   how many questions a patient is asked at most; None: as many as help
    min_leaf    no branch with fewer patients than this, over all sites
    criterion   "entropy": the split of least weighted entropy (ID3); "gain-ratio": of best gain ratio (C4.5)
    reduce      auto-reduction: below the root, leave out attributes of which at most this share of the patients has
                another than the commonest value; 0 leaves out what is constant and changes no tree
    prune       reduced-error pruning: every site holds out this share of its patients, in whole percent (0.3), and a
                split that makes no fewer errors on them than none is taken back; None: no pruning
    group       group the values of attributes, so that one branch may hold several (C4.5)
    """

    method: ClassVar[str] = "tree"

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
        max_depth: int | None = None,
        min_leaf: int = 1,
        cutoffs: int | None = None,
        criterion: Criterion = "entropy",
        reduce: float | None = None,
        prune: float | None = None,
        group: bool = False,
    ) -> None:
        self.settings = state(
            "a DecisionTree",
            target,
            query,
            release,
            epsilon=epsilon,
            delta=delta,
            values=values,
            bins=bins,
            attributes=attributes,
            max_depth=max_depth,
            min_leaf=min_leaf,
            cutoffs=cutoffs,
            criterion=criterion,
            reduce=reduce,
            prune=prune,
            group=group,
        )
        self.release = release

    def fit(self, house: House) -> Self:
        """Grow the tree with the sites of this house; returns itself."""
        house.converse(self.method, self.release, self.settings.parameters, self._learn)
        return self

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        plan = private_tree.plan if self.settings.release == "private" else plain_tree.plan
        return plan(self.settings)

    def _learn(self, run: Run) -> None:
        learn = private_tree.learn if self.settings.release == "private" else plain_tree.learn
        learned = learn(self.settings, run)
        self._body = learned.body
        self._card = run.finish(learned.patients, learned.said)

    @property
    def classes_(self) -> list[Value]:
        return list(self.body.classes)

    @property
    def attributes_(self) -> list[str]:
        """The attributes that the model asks about."""
        return sorted({node.attribute for node in self.body.nodes if node.attribute is not None})

    @property
    def depth(self) -> int:
        """The most questions a patient is asked."""
        depth = [0] * len(self.body.nodes)
        for index, node in enumerate(self.body.nodes):
            for child in node.children:
                depth[child] = depth[index] + 1
        return max(depth)

    def predict(self, records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> NDArray[Any]:
        """The most frequent class of the leaf that each patient reaches."""
        best = np.argmax(self.predict_proba(records), axis=1)
        labels: NDArray[Any] = np.array(self.classes_).take(best)
        return labels

    def predict_proba(
        self, records: Records | DataFrame | Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """For each patient the shares of the classes among the patients of the leaf; columns as in classes_."""
        counts = np.array([node.counts for node in self.body.nodes], dtype=np.float64)
        counts[counts.sum(axis=1) == 0] = 1  # noise left nothing: no class is likelier than another
        shares = counts / counts.sum(axis=1, keepdims=True)
        result: NDArray[np.float64] = shares[self.settle(as_records(records))]
        return result

    def settle(self, table: Records) -> NDArray[np.intp]:
        """For each patient the node where it comes to rest."""
        nodes = np.zeros(len(table), dtype=np.intp)
        for node, rows in route(np.arange(len(table), dtype=np.int32), self._branchings(table)).items():
            nodes[rows] = node
        return nodes

    def explain(self, patient: Mapping[str, Any]) -> Explanation:
        """Why this patient gets this prediction: prints as sentences, `.reasons` is data."""
        patient = read_patient(patient, self.attributes_)
        return explain(self.body, self.find_path(patient), patient)

    def find_path(self, patient: Mapping[str, Any]) -> list[int]:
        """The nodes that a patient (of plain values) passes, the root first."""
        branchings = {}
        if asked := self.attributes_:
            branchings = self._branchings(Records.from_rows([{name: patient.get(name) for name in asked}]))
        path = [0]
        while (branching := branchings.get(path[-1])) is not None:
            child = int(branching.child[branching.codes[0]])
            if child == STAYS:
                break
            path.append(child)
        return path

    def text(self) -> str:
        """The tree drawn with lines."""
        return draw(self.body)

    def to_svg(self, *, most_leaves: int | None = None) -> str:
        """The tree as a picture; with `most_leaves`, the branches with fewest patients are left folded."""
        return to_svg(self.body, most_leaves=most_leaves)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """The tree as a picture for a page, or with nearly all its leaves."""
        return {"tree": self.to_svg(most_leaves=LEAVES_DRAWN if whole else LEAVES_SHOWN)}

    def to_pmml(self) -> str:
        """The tree as a PMML 4.4 document."""
        return to_pmml(self.body)

    def to_expressions(self) -> list[LeafExpression]:
        """One boolean expression, in the style of CQL, for every place where a patient can come to rest."""
        return to_expressions(self.body)

    @classmethod
    def from_body(cls, raw: bytes, card: Card) -> Self:
        """The model that a file holds."""
        return cls.of(msgspec.json.decode(raw, type=TreeBody), card)

    @classmethod
    def of(cls, body: TreeBody, card: Card) -> Self:
        """The model that a body and a card make."""
        tree = cls(body.target, body.query, bins=body.bins)
        tree.release = cast(Release, card.release)
        tree._body, tree._card = body, card
        return tree

    def _branchings(self, table: Records) -> dict[int, Branching]:
        coded: dict[str, tuple[NDArray[np.integer], list[str | int | None]]] = {}
        branchings = {}
        for index, node in enumerate(self.body.nodes):
            if node.attribute is None:
                continue
            if node.attribute not in coded:
                coded[node.attribute] = codes_and_names(
                    table, node.attribute, self.body.bins.get(node.attribute)
                )
            codes, names = coded[node.attribute]
            binned = node.attribute in self.body.bins
            goes = {b.value if binned else name_of(b.value): b.node for b in node.branches}
            elsewhere = STAYS if node.other is None else node.other
            child = np.array([goes.get(name, elsewhere) for name in names], dtype=np.int32)
            branchings[index] = Branching(codes, child)
        return branchings

    def __repr__(self) -> str:
        fitted = "" if self._body is None else f", {len(self._body.nodes)} nodes, depth {self.depth}"
        return f"DecisionTree(target={self.target!r}, query={self.query!r}{fitted})"
