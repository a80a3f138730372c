"""The plain fit of a tree, `exact` or `masked`: schemas, cutoffs if they are to be chosen, and one round of counts for
every level; the tree is that of the pooled table (chapter 2 of the thesis)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from concilium.federation.histograms import AskHistograms, choose_cutoffs
from concilium.federation.messages import encode
from concilium.federation.run import Run
from concilium.federation.schema import AskSchema, SchemaSeen, merge, read_schema
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.trees.body import TreeBody
from concilium.trees.cautions import find_constant, find_lonely_classes, find_oddities, say_constant
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split
from concilium.trees.growing import Counts, finish, grow
from concilium.trees.pruning import prune_with
from concilium.trees.settings import Settings

ASK_SCHEMA = PlannedQuestion("tree.schema", None, "which attributes, values and classes there are")
HELD_OUT = "class counts of held-out patients, for pruning"


@dataclass(frozen=True)
class Learned:
    """A tree, how many patients each site says it has, and what the card has to say."""

    body: TreeBody
    patients: dict[str, int | None]
    said: list[str]


def plan(settings: Settings) -> Plan:
    """What a fit asks; none of it is bounded."""
    tables = "counts of all attributes, once per level of the tree"
    questions = [ASK_SCHEMA, PlannedQuestion("tree.crosstables", None, tables)]
    if settings.prune is not None:
        questions.append(PlannedQuestion("tree.crosstables", None, HELD_OUT))
    return Plan("rho", tuple(questions))


def learn(settings: Settings, run: Run) -> Learned:
    """Grow a tree over the sites of a run."""
    masked = settings.release == "masked"
    seen = ask_schemas(settings, run)
    schema = merge(seen, choose_bins(settings, run, seen), settings.target)
    templates = {site: encode(schema.conditional(known)) for site, known in seen.items()}
    attributes = [AskedAttribute(a.name, a.size, list(a.edges)) for a in schema.attributes]
    floored = [site for site, known in seen.items() if known.floored]
    pruning = settings.prune is not None and not floored
    saved = 0.0
    constant: list[str] = []

    def count(tree: list[Split], nodes: list[int], counted: list[int], held: bool = False) -> Counts:
        nonlocal saved
        before = run.bytes
        question = AskCrosstables(
            query=settings.query,
            target=settings.target,
            classes=len(schema.classes),
            attributes=attributes,
            tree=tree,
            nodes=nodes,
            counted=None if len(counted) == len(attributes) else counted,
            schema=schema.common if masked else None,
            part=settings.part(held=held) if pruning else None,
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
        max_depth=settings.max_depth,
        min_leaf=settings.min_leaf,
        subtract=not floored,
        criterion=settings.criterion,
        reduce=settings.reduce,
        group=settings.group,
    )
    classes = {site: known.classes for site, known in seen.items()}
    said = [
        *find_oddities(settings, schema, seen),
        *find_lonely_classes(settings.target, classes),
        *say_constant(constant),
    ]
    if pruning:
        grown, told = prune_with(grown, lambda splits, nodes: count(splits, nodes, [], held=True))
        said.append(told)
    elif settings.prune is not None:
        said.append(
            f"not pruned: {', '.join(floored)} leave{'s' if len(floored) == 1 else ''} small counts out, and would "
            "tell them by telling some patients apart from the others"
        )
    if settings.reduce is not None:
        said.append(
            f"auto-reduction: {len(attributes) - len(counted)} of {len(attributes)} attributes are left out below "
            f"the root, which saved about {saved / 1000:.1f} kB of {(run.bytes + saved) / 1000:.1f} kB"
        )
    body = finish(settings.target, settings.query, schema, grown)
    return Learned(body, {site: known.patients for site, known in seen.items()}, said)


def ask_schemas(settings: Settings, run: Run) -> dict[str, SchemaSeen]:
    """What every site can be asked about; under masks it does not say how many patients it has."""
    asked = AskSchema(
        query=settings.query,
        target=settings.target,
        bins=settings.bins,
        attributes=settings.attributes,
        count_patients=settings.release != "masked",
    )
    return {site: read_schema(body) for site, body in run.gather("tree.schema", asked).items()}


def choose_bins(settings: Settings, run: Run, seen: Mapping[str, SchemaSeen]) -> dict[str, list[float]]:
    """The cutoffs of every numeric attribute: its bins, or the quantiles that a shared histogram tells."""
    common = set.intersection(
        *({attribute.name for attribute in known.attributes} for known in seen.values())
    )
    edges = {name: listed for name, listed in settings.bins.items() if name in common}
    if settings.cutoffs is None or not edges:
        return settings.bins
    return {**settings.bins, **ask_cutoffs(settings, run, edges, None)}


def ask_cutoffs(
    settings: Settings, run: Run, edges: Mapping[str, list[float]], variance: Fraction | None
) -> dict[str, list[float]]:
    """So many of the edges as the settings say, at even quantiles of a histogram, with noise of this variance."""
    assert settings.cutoffs is not None
    question = AskHistograms(
        query=settings.query,
        target=settings.target,
        edges=dict(edges),
        variance=None if variance is None else str(variance),
    )
    histograms = question.split(run.add_up("histograms", question, (question.numbers,)))
    # An attribute whose patients all lie in one bin keeps an edge: it separates nobody, and that is cheap to see.
    return {n: choose_cutoffs(histograms[n], e, settings.cutoffs) or e[:1] for n, e in edges.items()}
