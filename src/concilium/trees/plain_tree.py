"""The plain fit of a tree, `exact` or `masked`: schemas, cutoffs if they are to be chosen, and one round of counts for
every level; the tree is that of the pooled table (docs/methods.md, section 1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from concilium.federation.attributes import Attribute
from concilium.federation.conversation import Asked, Conversation, Learned, Partners, ToEach
from concilium.federation.edges import choose_cutoffs
from concilium.federation.histograms import AskHistograms, AskNoisyHistograms, split_histograms
from concilium.federation.messages import encode
from concilium.federation.schema import SchemaSeen, SharedSchema, share_schema
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.trees.body import TreeBody
from concilium.trees.cautions import find_constant, find_lonely_classes, find_oddities, say_constant
from concilium.trees.crosstables import AskCrosstables
from concilium.trees.growing import Counts, finish, grow
from concilium.trees.pruning import prune_with
from concilium.trees.schemas import PLAN_SCHEMA, TreeStudy, ask_schemas
from concilium.trees.splits import Split, cells_of_node

if TYPE_CHECKING:
    from concilium.trees.tree import DecisionTree

HELD_OUT = "class counts of held-out patients, for pruning"


def plan(tree: DecisionTree) -> Plan:
    """What a fit asks; none of it is bounded."""
    tables = "counts of all attributes, once per level of the tree"
    questions = [PLAN_SCHEMA, PlannedQuestion("tree.crosstables", None, tables)]
    if tree.cutoffs is not None:
        note = f"histograms of {len(tree.bins)} attributes, for cutoffs"
        questions.insert(1, PlannedQuestion("histograms", None, note))
    if tree.prune is not None:
        questions.append(PlannedQuestion("tree.crosstables", None, HELD_OUT))
    return Plan("rho", tuple(questions))


def converse(tree: DecisionTree, partners: Partners) -> Conversation[Learned[TreeBody]]:
    """Grow a tree over the sites."""
    seen = yield from ask_schemas(tree)
    schema = share_schema(seen, (yield from choose_bins(tree, seen)), tree.target)
    tables = PlainTables(tree, schema, seen)
    everything = cells_of_node(schema.attributes, range(len(schema.attributes)))
    floored = [site for site, own in seen.items() if own.floored]
    pruning = tree.prune is not None and not floored
    constant: list[str] = []
    saved = 0.0

    def count(splits: list[Split], nodes: list[int], counted: list[int]) -> Conversation[Counts]:
        nonlocal saved
        before = partners.bytes
        part = tree.part(held=False) if pruning else None
        total: Counts = yield tables.ask(tree=splits, nodes=nodes, counted=counted, part=part)
        if not splits:
            constant[:] = find_constant(total[0], schema.attributes)
        saved += (partners.bytes - before) * (everything / total.shape[1] - 1)
        return total

    def count_held_out(splits: list[Split], nodes: list[int]) -> Conversation[Counts]:
        total: Counts = yield tables.ask(tree=splits, nodes=nodes, counted=[], part=tree.part(held=True))
        return total

    grown, counted = yield from grow(
        schema,
        count,
        max_depth=tree.max_depth,
        min_leaf=tree.min_leaf,
        subtract=not floored,
        criterion=tree.criterion,
        reduce=tree.reduce,
        group=tree.group,
    )
    warnings = [
        *find_oddities(tree, schema, seen),
        *find_lonely_classes(tree.target, {site: own.classes for site, own in seen.items()}),
        *say_constant(constant),
    ]
    if pruning:
        grown, note = yield from prune_with(grown, count_held_out)
        warnings.append(note)
    elif tree.prune is not None:
        warnings.append(
            f"not pruned: {', '.join(floored)} leave{'s' if len(floored) == 1 else ''} small counts out, and would "
            "tell them by telling some patients apart from the others"
        )
    if tree.reduce is not None:
        everyone = len(schema.attributes)
        warnings.append(
            f"auto-reduction: {everyone - len(counted)} of {everyone} attributes are left out below "
            f"the root, which saved about {saved / 1000:.1f} kB of {(partners.bytes + saved) / 1000:.1f} kB"
        )
    body = finish(tree.target, tree.query, schema, grown)
    return Learned(body, {site: own.patients for site, own in seen.items()}, warnings)


class PlainTables:
    """The crosstables of one study, as its sites are asked for them: under `exact` each is told its own values."""

    def __init__(self, study: TreeStudy, schema: SharedSchema, seen: Mapping[str, SchemaSeen]) -> None:
        by_site = study.way_out.by_site
        public = schema.hidden if by_site else schema
        self._root = AskCrosstables(
            query=study.query,
            target=study.target,
            classes=public.classes,
            attributes=public.attributes,
            tree=[],
            nodes=[0],
        )
        self._templates = tell_each(schema, seen) if by_site else None

    def ask(self, **changes: Any) -> Asked:
        """The root's tables, or with these changes others."""
        question = msgspec.structs.replace(self._root, **changes)
        if question.counted is not None and len(question.counted) == len(question.attributes):
            question = msgspec.structs.replace(question, counted=None)
        return question if self._templates is None else ToEach(question, self._templates)


def tell_each(schema: SharedSchema, seen: Mapping[str, SchemaSeen]) -> dict[str, bytes]:
    """What each site is told of the values: where its own stand."""
    return {site: encode(schema.conditional(own)) for site, own in seen.items()}


def choose_bins(
    tree: DecisionTree, seen: Mapping[str, SchemaSeen]
) -> Conversation[Mapping[str, Sequence[float]]]:
    """The cutoffs of every numeric attribute: its bins, or the quantiles that a shared histogram tells."""
    shared = set.intersection(*({attribute.name for attribute in own.attributes} for own in seen.values()))
    numbers = tuple(Attribute(name, tuple(edges)) for name, edges in tree.bins.items() if name in shared)
    if tree.cutoffs is None or not numbers:
        return tree.bins
    question = AskHistograms(query=tree.query, target=tree.target, attributes=numbers)
    return {**tree.bins, **(yield from ask_cutoffs(question, tree.cutoffs))}


def ask_cutoffs(
    question: AskHistograms | AskNoisyHistograms, cutoffs: int
) -> Conversation[dict[str, list[float]]]:
    """So many of each attribute's edges, at even quantiles of a histogram."""
    counts = yield question
    histograms = split_histograms(question.attributes, counts.reshape(-1))
    # An attribute whose patients all lie in one bin keeps an edge: it separates nobody, and that is cheap to see.
    return {
        a.name: choose_cutoffs(histograms[a.name], a.edges, cutoffs) or list(a.edges[:1])
        for a in question.attributes
    }
