"""`DecisionTree`: an ID3 tree grown over all sites of a house, and the model it leaves.

Chapter 2 of the thesis (DIDT). With `release="exact"` and `"masked"` it equals the tree of the pooled table; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, StudyError
from concilium.federation.card import Card
from concilium.federation.held_out import MOST_PERCENT, Part
from concilium.federation.histograms import AskHistograms, check_edges, choose_cutoffs
from concilium.federation.house import House
from concilium.federation.messages import Release, encode
from concilium.federation.patients import as_records, codes_and_names, read_patient
from concilium.federation.run import Run
from concilium.federation.schema import (
    AskSchema,
    GlobalSchema,
    SchemaSeen,
    merge,
    name_of,
    read_schema,
    stated_schema,
)
from concilium.model import Fitted
from concilium.privacy.accounting import Plan, PlannedQuestion, epsilon_from_rho, rho_for_epsilon, say_epsilon
from concilium.records.query import Query
from concilium.records.table import Records, Value, label
from concilium.trees.body import Branch, Node, TreeBody
from concilium.trees.cautions import find_constant, find_lonely_classes, say_constant
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split
from concilium.trees.drawing import draw
from concilium.trees.explanation import Explanation, explain
from concilium.trees.expressions import LeafExpression, to_expressions
from concilium.trees.growing import Counts, Criterion, GrowingNode, grow
from concilium.trees.pmml import to_pmml
from concilium.trees.private_growing import SCREENED, Budget, grow_privately
from concilium.trees.pruning import prune_with
from concilium.trees.routing import STAYS, Branching, route
from concilium.trees.svg import to_svg

if TYPE_CHECKING:
    from pandas import DataFrame


PRIVATE_DEPTH = 5
# Below this epsilon the one-level model predicts better than a private tree (METHODS.md, section 1).
TINY_EPSILON = Fraction(3, 10)
ONE_LEVEL = (
    "below an epsilon of 0.3 noise leaves little of a tree: method naive-bayes usually predicts better"
)
LEAVES_SHOWN = 24
LEAVES_DRAWN = 1000
HELD_OUT = "class counts of held-out patients, for pruning"


class DecisionTree(Fitted[TreeBody]):
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
        if not isinstance(target, str) or not target:
            raise StudyError(f"the 'target' of a DecisionTree must be an attribute's name; got {target!r}")
        if not isinstance(query, str):
            raise StudyError(f"the 'query' of a DecisionTree must be text; got {query!r}")
        if isinstance(attributes, str):
            raise StudyError(
                f"the 'attributes' of a DecisionTree must be a list of names; got {attributes!r}"
            )
        if release not in ("exact", "masked", "private"):
            raise StudyError(
                f"the 'release' of a DecisionTree must be 'exact', 'masked' or 'private'; got {release!r}"
            )
        if max_depth is not None and (not is_count(max_depth) or max_depth < 0):
            raise StudyError(
                f"the 'max_depth' of a DecisionTree must be 0 or more, or None; got {max_depth!r}"
            )
        if not is_count(min_leaf) or min_leaf < 1:
            raise StudyError(f"the 'min_leaf' of a DecisionTree must be 1 or more; got {min_leaf!r}")
        Query.parse(query)
        self.target = target
        self.query = query
        self.release: Release = release
        try:
            self.bins = {name: [float(edge) for edge in edges] for name, edges in (bins or {}).items()}
            for name, edges in self.bins.items():
                check_edges(name, edges)
        except MessageError as error:
            raise StudyError(str(error)) from None
        except (TypeError, ValueError):
            raise StudyError(f"the 'bins' of a DecisionTree must be lists of numbers; got {bins!r}") from None
        if criterion not in ("entropy", "gain-ratio"):
            raise StudyError(
                f"the 'criterion' of a DecisionTree must be 'entropy' or 'gain-ratio'; got {criterion!r}"
            )
        if reduce is not None and not 0 <= reduce < 1:
            raise StudyError(
                f"the 'reduce' of a DecisionTree must be a share from 0 to below 1; got {reduce!r}"
            )
        if cutoffs is not None and (not is_count(cutoffs) or cutoffs < 1):
            raise StudyError(f"the 'cutoffs' of a DecisionTree must be 1 or more, or None; got {cutoffs!r}")
        if cutoffs is not None and not self.bins:
            raise StudyError(
                "the 'cutoffs' of a DecisionTree are chosen among the edges of its 'bins'; give these"
            )
        self.prune = None if prune is None else check_share(prune)
        if not isinstance(group, bool):
            raise StudyError(f"the 'group' of a DecisionTree must be True or False; got {group!r}")
        self.group = group
        self.cutoffs = cutoffs
        self.criterion: Criterion = criterion
        self.reduce = reduce
        self.attributes = None if attributes is None else list(attributes)
        self.max_depth = None if max_depth is None else int(max_depth)
        self.min_leaf = int(min_leaf)
        self.values = {name: list(listed) for name, listed in (values or {}).items()}
        # As it is written: a float stands for its shortest decimal, 0.1 for one tenth.
        self.epsilon = str(epsilon) if isinstance(epsilon, float) else epsilon
        self.delta = str(delta) if isinstance(delta, float) else delta
        if release == "private":
            self._check_private()

    def fit(self, house: House) -> Self:
        """Grow the tree with the sites of this house; returns itself."""
        parameters = {
            "target": self.target,
            "query": self.query,
            "bins": self.bins,
            "attributes": self.attributes,
            "max_depth": self.max_depth,
            "min_leaf": self.min_leaf,
            "cutoffs": self.cutoffs,
            "criterion": self.criterion,
            "reduce": self.reduce,
            "prune": self.prune,
            "group": self.group,
            "values": self.values,
            "epsilon": str(self.epsilon),
            "delta": str(self.delta),
        }
        grow = self._grow_privately if self.release == "private" else self._grow
        house.converse(self.method, self.release, parameters, grow)
        return self

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
        bins = self._choose_cutoffs(run, seen)
        schema = merge(seen, bins, self.target)
        templates = {site: encode(schema.conditional(known)) for site, known in seen.items()}
        attributes = [AskedAttribute(a.name, a.size, list(a.edges)) for a in schema.attributes]

        floored = [site for site, known in seen.items() if known.floored]
        pruning = self.prune is not None and not floored
        saved = 0.0
        constant: list[str] = []

        def count(tree: list[Split], nodes: list[int], counted: list[int], held: bool = False) -> Counts:
            nonlocal saved
            before = run.bytes
            question = AskCrosstables(
                query=self.query,
                target=self.target,
                classes=len(schema.classes),
                attributes=attributes,
                tree=tree,
                nodes=nodes,
                counted=None if len(counted) == len(attributes) else counted,
                schema=schema.common if masked else None,
                part=self._part(held) if pruning else None,
            )
            shape = (len(nodes), question.cells, question.classes)
            total = run.add_up("tree.crosstables", question, shape, None if masked else templates)
            cells = 1 + sum(attribute.size for attribute in attributes)
            if not tree and not held:
                constant[:] = find_constant(total[0], attributes)
            if not held:
                saved += (run.bytes - before) * (cells / question.cells - 1)
            return total

        grown, counted = grow(
            schema,
            count,
            max_depth=self.max_depth,
            min_leaf=self.min_leaf,
            subtract=not floored,
            criterion=self.criterion,
            reduce=self.reduce,
            group=self.group,
        )
        classes = {site: known.classes for site, known in seen.items()}
        said = [
            *cautions(self, schema, seen),
            *find_lonely_classes(self.target, classes),
            *say_constant(constant),
        ]
        if pruning:
            grown, told = prune_with(grown, lambda splits, nodes: count(splits, nodes, [], held=True))
            said.append(told)
        elif self.prune is not None:
            said.append(
                f"not pruned: {', '.join(floored)} leave{'s' if len(floored) == 1 else ''} small counts out, and would "
                "tell them by telling some patients apart from the others"
            )
        self._body = finish(self, schema, grown)
        if self.reduce is not None:
            said.append(
                f"auto-reduction: {len(attributes) - len(counted)} of {len(attributes)} attributes are left out below "
                f"the root, which saved about {saved / 1000:.1f} kB of {(run.bytes + saved) / 1000:.1f} kB"
            )
        self._card = run.finish({site: known.patients for site, known in seen.items()}, said)

    def _part(self, held: bool) -> Part | None:
        """Those of the patients who are held out for pruning, or the others; everyone without pruning."""
        return None if self.prune is None else Part(percent=round(100 * self.prune), held=held)

    def _choose_cutoffs(self, run: Run, seen: Mapping[str, SchemaSeen]) -> dict[str, list[float]]:
        """The cutoffs of every numeric attribute: its bins, or the quantiles that a shared histogram tells."""
        common = set.intersection(
            *({attribute.name for attribute in known.attributes} for known in seen.values())
        )
        edges = {name: listed for name, listed in self.bins.items() if name in common}
        if self.cutoffs is None or not edges:
            return self.bins
        return {**self.bins, **self._ask_cutoffs(run, edges, None)}

    def _ask_cutoffs(
        self, run: Run, edges: Mapping[str, list[float]], variance: Fraction | None
    ) -> dict[str, list[float]]:
        assert self.cutoffs is not None
        question = AskHistograms(
            query=self.query,
            target=self.target,
            edges=dict(edges),
            variance=None if variance is None else str(variance),
        )
        counts = run.add_up("histograms", question, (question.numbers,))
        histograms = question.split(counts)
        # An attribute whose patients all lie in one bin keeps an edge: it separates nobody, and that is cheap to see.
        return {n: choose_cutoffs(histograms[n], e, self.cutoffs) or e[:1] for n, e in edges.items()}

    def plan(self) -> Plan:
        """What a fit will ask, what each question costs, and all of it together."""
        if self.release != "private":
            schema = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")
            tables = PlannedQuestion(
                "tree.crosstables", None, "counts of all attributes, once per level of the tree"
            )
            questions = [schema, tables]
            if self.prune is not None:
                questions.append(PlannedQuestion("tree.crosstables", None, HELD_OUT))
            return Plan("rho", tuple(questions))
        budget = self._budget()
        stated = stated_schema(*self.stated, self.target)
        first = f"all {len(stated.attributes)} attributes at the root"
        if epsilon_from_rho(budget.rho, self.delta) < TINY_EPSILON:
            first += f" ({ONE_LEVEL})"
        later = f"the {min(SCREENED, len(stated.attributes))} best attributes (or more, if free) at level"
        notes = [
            first,
            *(f"{later} {level}" for level in range(1, budget.depth)),
            "class counts of the leaves, and what levels that are not reached leave over",
        ]
        questions = [
            PlannedQuestion("tree.crosstables", budget.share(i), note) for i, note in enumerate(notes)
        ]
        if self.prune is not None:
            questions.append(PlannedQuestion("tree.crosstables", budget.share_of_pruning, HELD_OUT))
        if self.cutoffs is not None:
            first = f"histograms of {len(self.bins)} attributes, for cutoffs"
            questions.insert(0, PlannedQuestion("histograms", budget.share_of_cutoffs, first))
        return Plan("rho", tuple(questions))

    def _grow_privately(self, run: Run) -> None:
        budget = dataclasses.replace(self._budget(), least=run.masked.least_variance)
        values, bins = self.stated
        if self.cutoffs is not None and bins:
            bins = self._ask_cutoffs(run, bins, budget.variance_of_cutoffs(len(bins)))
        schema = stated_schema(values, bins, self.target)

        def count(
            asked: GlobalSchema,
            tree: list[Split],
            nodes: list[int],
            counted: list[int],
            variance: Fraction,
            held: bool = False,
        ) -> Counts:
            question = AskCrosstables(
                query=self.query,
                target=self.target,
                classes=len(asked.classes),
                attributes=[AskedAttribute(a.name, a.size, list(a.edges)) for a in asked.attributes],
                tree=tree,
                nodes=nodes,
                counted=counted,
                schema=asked.common,
                variance=str(variance),
                part=self._part(held),
            )
            return run.add_up("tree.crosstables", question, (len(nodes), question.cells, question.classes))

        asked, grown = grow_privately(schema, count, budget, self.group)
        epsilon = epsilon_from_rho(budget.rho, self.delta)
        said = [f"differential privacy per patient: epsilon = {say_epsilon(epsilon)} at delta = {self.delta}"]
        if epsilon < TINY_EPSILON:
            said.append(ONE_LEVEL)
        if self.prune is not None:
            variance = budget.variance_of_pruning
            grown, told = prune_with(
                grown, lambda splits, nodes: count(asked, splits, nodes, [], variance, held=True), noisy=True
            )
            said.append(told)
        self._body = finish(self, asked, grown)
        self._card = run.finish({}, said)

    @property
    def stated(self) -> tuple[dict[str, list[Value]], dict[str, list[float]]]:
        """The values and bins of a private study, of the chosen attributes if some are."""
        chosen = {*self.values, *self.bins} if self.attributes is None else {*self.attributes, self.target}
        values = {name: listed for name, listed in self.values.items() if name in chosen}
        return values, {name: edges for name, edges in self.bins.items() if name in chosen}

    def _budget(self) -> Budget:
        assert self.epsilon is not None
        rho = rho_for_epsilon(self.epsilon, self.delta)
        depth = PRIVATE_DEPTH if self.max_depth is None else self.max_depth
        return Budget(rho, depth, cutoffs=self.cutoffs is not None, prune=self.prune is not None)

    def _check_private(self) -> None:
        """A private tree learns nothing from the data but noisy counts: the study must say all the rest."""
        if self.epsilon is None:
            raise StudyError("a private DecisionTree needs an 'epsilon', such as 1.0")
        if self.target not in self.values:
            raise StudyError(f"a private DecisionTree needs the classes: values = {{{self.target!r}: [...]}}")
        values, bins = self.stated
        unsaid = sorted(set(self.attributes or ()) - {*values, *bins})
        if unsaid:
            raise StudyError(
                f"a private DecisionTree needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}"
            )
        if not {*values, *bins} - {self.target}:
            raise StudyError(
                "a private DecisionTree needs its attributes: give 'values' of codes, 'bins' of numbers"
            )
        if self.max_depth == 0:
            raise StudyError("a private DecisionTree must have a 'max_depth' of 1 or more")
        if self.min_leaf != 1 or self.criterion != "entropy" or self.reduce is not None:
            raise StudyError(
                "a private DecisionTree has no 'min_leaf', 'criterion' or 'reduce': it screens attributes and stops "
                "where counts cannot be told from noise"
            )
        if self._budget().too_small:
            raise StudyError(f"an 'epsilon' of {self.epsilon} is too small for any question to be answered")

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


def finish(tree: DecisionTree, schema: GlobalSchema, grown: list[GrowingNode]) -> TreeBody:
    """The model of a grown tree."""
    bins = {attribute.name: list(attribute.edges) for attribute in schema.attributes if attribute.edges}
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
        other = node.children[-1] if attribute.other and node.children[-1] != STAYS else None
        nodes.append(Node(counts, attribute.name, branches, other))
    return TreeBody(
        target=tree.target, classes=list(schema.classes), query=tree.query, bins=bins, nodes=nodes
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
        whose = f" of the query {tree.query!r}" if tree.query else ""
        said.append(
            f"every patient{whose} has {tree.target} = {label(schema.classes[0])}: there is nothing to learn"
        )
    floored = [site for site, known in seen.items() if known.floored]
    if floored:
        said.append(
            f"{', '.join(floored)}: small counts are left out there, so the tree is not that of the pooled patients"
        )
    return said


def names(schema: SchemaSeen) -> set[str]:
    return {attribute.name for attribute in schema.attributes} | set(schema.unbinned)


def check_share(prune: Any) -> float:
    """The share of patients to hold out; in whole percent, for there to be few ways to divide the same patients."""
    number = isinstance(prune, int | float | np.number) and not isinstance(prune, bool)
    percent = round(100 * prune) if number and 0 < prune < 1 else 0
    if not 1 <= percent <= MOST_PERCENT or abs(percent / 100 - prune) > 1e-9:
        raise StudyError(
            f"the 'prune' of a DecisionTree must be a share in whole percent, from 0.01 to {MOST_PERCENT / 100:g}, or "
            f"None; got {prune!r}"
        )
    return percent / 100


def is_count(value: Any) -> bool:
    """Whether this is a whole number, numpy's among them, and not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
