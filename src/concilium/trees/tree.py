"""`DecisionTree`: an ID3 tree grown over all sites of a house, and the model it leaves.

Chapter 2 of the thesis (DIDT). With `release="exact"` and `"masked"` it equals the tree of the pooled table; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium import model
from concilium.errors import MessageError, ModelError, StudyError
from concilium.federation.card import Card
from concilium.federation.cohort import bin_codes, numbers
from concilium.federation.house import House
from concilium.federation.messages import Release, encode
from concilium.federation.run import Run, SitesChanged
from concilium.privacy.accounting import Plan, PlannedQuestion, epsilon_from_rho, rho_for_epsilon
from concilium.privacy.shares import SMALLEST_VARIANCE
from concilium.records.query import Query
from concilium.records.table import Coded, Records, Value, label
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split
from concilium.trees.drawing import draw
from concilium.trees.explanation import Explanation, explain
from concilium.trees.growing import Counts, GrowingNode, grow
from concilium.trees.private_growing import SCREENED, Budget, grow_privately
from concilium.trees.routing import STAYS, Branching, route
from concilium.trees.schema import (
    AskSchema,
    GlobalSchema,
    SchemaSeen,
    check_edges,
    merge,
    name_of,
    read_schema,
    stated_schema,
)

if TYPE_CHECKING:
    from pandas import DataFrame


PRIVATE_DEPTH = 5


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Patients with this value (None: missing; for a binned attribute the number of the bin) go to this node."""

    value: str | int | float | bool | None
    node: int


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patients by class, and, unless it is a leaf, the attribute that is asked and where each value leads.

    `other` is the node for values that no branch names, where there is one.
    """

    counts: list[int]
    attribute: str | None = None
    branches: list[Branch] = []
    other: int | None = None

    @property
    def children(self) -> list[int]:
        return [branch.node for branch in self.branches] + ([] if self.other is None else [self.other])


class TreeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a tree's model file holds; node 0 is the root, children come after their parents."""

    target: str
    classes: list[str | int | float | bool]
    query: str
    bins: dict[str, list[float]]
    nodes: list[Node]

    def __post_init__(self) -> None:
        if not self.classes or not self.nodes:
            raise ValueError("a tree needs classes and nodes")
        reached = {0}
        for index, node in enumerate(self.nodes):
            if len(node.counts) != len(self.classes) or min(node.counts) < 0:
                raise ValueError(f"node {index} must have one count for each class")
            if (node.attribute is None) != (not node.branches):
                raise ValueError(f"node {index} must have an attribute and branches, or neither")
            for child in node.children:
                if not index < child < len(self.nodes) or child in reached:
                    raise ValueError(
                        f"node {index} has a branch that leads nowhere or to a node reached before"
                    )
                reached.add(child)
        if len(reached) != len(self.nodes):
            raise ValueError("a node is never reached")


class DecisionTree:
    """`DecisionTree(target="death", query="age > 20").fit(house)`.

    target      the attribute to predict; patients for whom it is missing are left out
    query       attributes of interest: the patients to learn from; empty: everyone
    release     "exact": the house sees each site's counts; "masked": sums over all sites only (three at least);
                "private": sums with noise, at the price of `epsilon` and `delta` per patient, for which the study
                must state `values` (of codes, and the classes) or `bins` (of numbers) for all it asks about
    bins        public cutoffs of numeric attributes, {"age": [40, 60]}; a number without bins is left out
    attributes  the attributes to consider; None: all that every site has
    max_depth   how many questions a patient is asked at most; None: as many as help
    min_leaf    no branch with fewer patients than this, over all sites
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
    ) -> None:
        if not isinstance(target, str) or not target:
            raise StudyError(f"the 'target' of a DecisionTree must be an attribute's name; got {target!r}")
        if release not in ("exact", "masked", "private"):
            raise StudyError(
                f"the 'release' of a DecisionTree must be 'exact', 'masked' or 'private'; got {release!r}"
            )
        if max_depth is not None and (not isinstance(max_depth, int) or max_depth < 0):
            raise StudyError(
                f"the 'max_depth' of a DecisionTree must be 0 or more, or None; got {max_depth!r}"
            )
        if not isinstance(min_leaf, int) or min_leaf < 1:
            raise StudyError(f"the 'min_leaf' of a DecisionTree must be 1 or more; got {min_leaf!r}")
        Query.parse(query)
        self.target = target
        self.query = query
        self.release: Release = release
        self.bins = {name: [float(edge) for edge in edges] for name, edges in (bins or {}).items()}
        for name, edges in self.bins.items():
            try:
                check_edges(name, edges)
            except MessageError as error:
                raise StudyError(str(error)) from None
        self.attributes = None if attributes is None else list(attributes)
        self.max_depth = max_depth
        self.min_leaf = min_leaf
        self.values = {name: list(listed) for name, listed in (values or {}).items()}
        # As it is written: a float stands for its shortest decimal, 0.1 for one tenth.
        self.epsilon = str(epsilon) if isinstance(epsilon, float) else epsilon
        self.delta = str(delta) if isinstance(delta, float) else delta
        if release == "private":
            self._check_private()
        self._body: TreeBody | None = None
        self._card: Card | None = None

    def fit(self, house: House) -> Self:
        """Grow the tree with the sites of this house; returns itself."""
        parameters = {
            "target": self.target,
            "query": self.query,
            "bins": self.bins,
            "attributes": self.attributes,
            "max_depth": self.max_depth,
            "min_leaf": self.min_leaf,
            "values": self.values,
            "epsilon": str(self.epsilon),
            "delta": str(self.delta),
        }
        with house.open(self.method, self.release, parameters) as run:
            while True:
                try:
                    if self.release == "private":
                        self._grow_privately(run)
                    else:
                        self._grow(run)
                    return self
                except SitesChanged:
                    continue  # sites only ever get fewer, so this ends

    def _grow(self, run: Run) -> None:
        masked = self.release == "masked"
        asked = AskSchema(
            query=self.query,
            target=self.target,
            bins=self.bins,
            attributes=self.attributes,
            count_patients=not masked,
        )
        seen = {site: read_schema(body) for site, body in run.gather("tree.schema", asked).items()}
        schema = merge(seen, self.bins, self.target)
        templates = {site: encode(schema.conditional(known)) for site, known in seen.items()}
        attributes = [AskedAttribute(a.name, a.size, list(a.edges)) for a in schema.attributes]

        def count(tree: list[Split], nodes: list[int]) -> Counts:
            question = AskCrosstables(
                query=self.query,
                target=self.target,
                classes=len(schema.classes),
                attributes=attributes,
                tree=tree,
                nodes=nodes,
                schema=schema.common if masked else None,
            )
            shape = (len(nodes), question.cells, question.classes)
            return run.add_up("tree.crosstables", question, shape, None if masked else templates)

        floored = [site for site, known in seen.items() if known.floored]
        grown = grow(schema, count, max_depth=self.max_depth, min_leaf=self.min_leaf, subtract=not floored)
        self._body = finish(self, schema, grown)
        self._card = run.finish(
            {site: known.patients for site, known in seen.items()}, cautions(self, schema, seen)
        )

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        if self.release != "private":
            schema = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")
            tables = PlannedQuestion("tree.crosstables", None, "counts of all attributes, once per level of the tree")
            return Plan("rho", (schema, tables))
        budget = self._budget()
        stated = stated_schema(self.values, self.bins, self.target)
        first = f"all {len(stated.attributes)} attributes at the root"
        later = f"the {min(SCREENED, len(stated.attributes))} best attributes at level"
        notes = [
            first,
            *(f"{later} {level}" for level in range(1, budget.depth)),
            "class counts of the leaves",
        ]
        return Plan(
            "rho", tuple(PlannedQuestion("tree.crosstables", budget.share(i), n) for i, n in enumerate(notes))
        )

    def _grow_privately(self, run: Run) -> None:
        schema = stated_schema(self.values, self.bins, self.target)

        def count(
            asked: GlobalSchema, tree: list[Split], nodes: list[int], counted: list[int], variance: Fraction
        ) -> Counts:
            # A share below the least that adds up to a Gaussian would be refused; more noise only costs less.
            least = SMALLEST_VARIANCE * (len(run.sites) - 1)
            question = AskCrosstables(
                query=self.query,
                target=self.target,
                classes=len(asked.classes),
                attributes=[AskedAttribute(a.name, a.size, list(a.edges)) for a in asked.attributes],
                tree=tree,
                nodes=nodes,
                counted=counted,
                schema=asked.common,
                variance=str(max(variance, least)),
            )
            return run.add_up("tree.crosstables", question, (len(nodes), question.cells, question.classes))

        asked, grown = grow_privately(schema, count, self._budget())
        self._body = finish(self, asked, grown)
        shown = epsilon_from_rho(self._budget().rho, self.delta)
        said = [f"differential privacy per patient: epsilon = {shown:.3g} at delta = {self.delta}"]
        self._card = run.finish({}, said)

    def _budget(self) -> Budget:
        assert self.epsilon is not None
        rho = rho_for_epsilon(self.epsilon, self.delta)
        return Budget(rho, PRIVATE_DEPTH if self.max_depth is None else self.max_depth)

    def _check_private(self) -> None:
        """A private tree learns nothing from the data but noisy counts: the study must say all the rest."""
        if self.epsilon is None:
            raise StudyError("a private DecisionTree needs an 'epsilon', such as 1.0")
        if self.target not in self.values:
            raise StudyError(f"a private DecisionTree needs the classes: values = {{{self.target!r}: [...]}}")
        if not {*self.values, *self.bins} - {self.target}:
            raise StudyError(
                "a private DecisionTree needs its attributes: give 'values' of codes, 'bins' of numbers"
            )
        if self.max_depth == 0:
            raise StudyError("a private DecisionTree must have a 'max_depth' of 1 or more")
        self._budget()

    @property
    def body(self) -> TreeBody:
        if self._body is None:
            raise ModelError("this DecisionTree is not fitted yet; call fit(house) first")
        return self._body

    @property
    def card(self) -> Card:
        """Sites, rounds, bytes, releases with their cost, refusals, dropouts, warnings."""
        if self._card is None:
            raise ModelError("this DecisionTree is not fitted yet; call fit(house) first")
        return self._card

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
        table = as_records(records)
        counts = np.array([node.counts for node in self.body.nodes], dtype=np.float64)
        counts[counts.sum(axis=1) == 0] = 1  # noise left nothing: no class is likelier than another
        shares = counts / counts.sum(axis=1, keepdims=True)
        result = np.empty((len(table), len(self.body.classes)))
        for node, rows in route(np.arange(len(table), dtype=np.int32), self._branchings(table)).items():
            result[rows] = shares[node]
        return result

    def explain(self, patient: Mapping[str, Any]) -> Explanation:
        """Why this patient gets this prediction: prints as sentences, `.reasons` is data."""
        asked = {node.attribute for node in self.body.nodes if node.attribute is not None}
        if asked and not asked & set(patient):
            raise ModelError(
                "the patient has none of the attributes that this model asks about: "
                + ", ".join(sorted(asked))
            )
        branchings = {}
        if asked:
            branchings = self._branchings(
                Records.from_rows([{name: patient.get(name) for name in sorted(asked)}])
            )
        path = [0]
        while (branching := branchings.get(path[-1])) is not None:
            child = int(branching.child[branching.codes[0]])
            if child == STAYS:
                break
            path.append(child)
        return explain(self.body, path, patient)

    def text(self) -> str:
        """The tree drawn with lines."""
        return draw(self.body)

    def save(self, path: str | Path) -> None:
        """A model file (JSON)."""
        model.save(path, self.method, self.body, self.card)

    @classmethod
    def from_body(cls, raw: bytes, card: Card) -> Self:
        """The model that a file holds."""
        body = msgspec.json.decode(raw, type=TreeBody)
        tree = cls(body.target, body.query, bins=body.bins)
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


def finish(tree: DecisionTree, schema: GlobalSchema, grown: list[GrowingNode]) -> TreeBody:
    """The model of a grown tree."""
    nodes = []
    for node in grown:
        counts = [int(count) for count in node.counts]
        if node.attribute is None:
            nodes.append(Node(counts))
            continue
        attribute = schema.attributes[node.attribute]
        named = node.children[: len(attribute.values)]
        pairs = zip(attribute.values, named, strict=True)
        branches = [Branch(value, child) for value, child in pairs if child != STAYS]
        other = node.children[-1] if attribute.other else None
        nodes.append(Node(counts, attribute.name, branches, other))
    return TreeBody(
        target=tree.target, classes=list(schema.classes), query=tree.query, bins=tree.bins, nodes=nodes
    )


def cautions(tree: DecisionTree, schema: GlobalSchema, seen: Mapping[str, SchemaSeen]) -> list[str]:
    """What a reader of the card must be warned of, besides what every run says."""
    said = []
    if schema.left_out:
        said.append(
            "left out: " + "; ".join(f"{name} ({why})" for name, why in sorted(schema.left_out.items()))
        )
    unknown = [
        name for name in (tree.attributes or tree.bins) if all(name not in names(s) for s in seen.values())
    ]
    if unknown:
        said.append(f"no site knows {', '.join(map(repr, unknown))}")
    if not schema.attributes:
        said.append("no attribute is known at every site: the model is a single leaf")
    if len(schema.classes) == 1:
        said.append(
            f"every patient has {tree.target} = {label(schema.classes[0])}: there is nothing to learn"
        )
    floored = [site for site, known in seen.items() if known.floored]
    if floored:
        said.append(
            f"{', '.join(floored)}: branches with few patients are counted as empty there, "
            "so the tree is not that of the pooled patients"
        )
    return said


def names(schema: SchemaSeen) -> set[str]:
    return {attribute.name for attribute in schema.attributes} | set(schema.unbinned)


def as_records(records: Records | DataFrame | Sequence[Mapping[str, Any]]) -> Records:
    """Records from anything that holds patients."""
    if isinstance(records, Records):
        return records
    if isinstance(records, Sequence):
        return Records.from_rows(records)
    return Records.read(records)


def codes_and_names(
    table: Records, name: str, edges: Sequence[float] | None
) -> tuple[NDArray[np.integer], list[str | int | None]]:
    """A column's codes, and for each code what a branch calls it: a label, the number of a bin, None if missing."""
    if name not in table:
        raise ModelError(f"the records have no attribute {name!r}, which the model asks about")
    if edges is not None:
        return bin_codes(numbers(table, name), tuple(edges)), [None, *range(len(edges) + 1)]
    column = table[name]
    if isinstance(column, Coded):
        return column.codes, [None, *(label(value) for value in column.values)]
    values, codes = np.unique(column.numbers, return_inverse=True, equal_nan=True)
    return codes.astype(np.int64), [None if np.isnan(value) else label(float(value)) for value in values]
