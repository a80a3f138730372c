"""The private fit of a tree: everything that is asked follows from the study and from noisy counts.

Who is protected, from whom and at what price is said in private_growing.py, which grows the tree; here are the
questions it puts to the sites, and the words for plan and card.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from concilium.federation.run import Run
from concilium.federation.schema import GlobalSchema, stated_schema
from concilium.privacy.accounting import Plan, PlannedQuestion, epsilon_from_rho, say_epsilon
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split
from concilium.trees.growing import Counts, finish
from concilium.trees.plain_tree import HELD_OUT, Learned, ask_cutoffs
from concilium.trees.private_growing import SCREENED, grow_privately
from concilium.trees.pruning import prune_with
from concilium.trees.settings import Settings

# Below this epsilon the one-level model predicts better than a private tree (METHODS.md, section 1).
TINY_EPSILON = Fraction(3, 10)
ONE_LEVEL = (
    "below an epsilon of 0.3 noise leaves little of a tree: method naive-bayes usually predicts better"
)


def plan(settings: Settings) -> Plan:
    """Every question, with what it costs."""
    budget = settings.budget
    attributes = len(settings.stated_schema.attributes)
    first = f"all {attributes} attributes at the root"
    if epsilon_from_rho(budget.rho, settings.delta) < TINY_EPSILON:
        first += f" ({ONE_LEVEL})"
    later = f"the {min(SCREENED, attributes)} best attributes (or more, if free) at level"
    notes = [
        first,
        *(f"{later} {level}" for level in range(1, budget.depth)),
        "class counts of the leaves, and what levels that are not reached leave over",
    ]
    questions = [PlannedQuestion("tree.crosstables", budget.share(i), note) for i, note in enumerate(notes)]
    if settings.prune is not None:
        questions.append(PlannedQuestion("tree.crosstables", budget.share_of_pruning, HELD_OUT))
    if settings.cutoffs is not None:
        note = f"histograms of {len(settings.bins)} attributes, for cutoffs"
        questions.insert(0, PlannedQuestion("histograms", budget.share_of_cutoffs, note))
    return Plan("rho", tuple(questions))


def learn(settings: Settings, run: Run) -> Learned:
    """Grow a tree from sums with noise."""
    budget = dataclasses.replace(settings.budget, least=run.masked.least_variance)
    values, bins = settings.stated
    if settings.cutoffs is not None and bins:
        bins = ask_cutoffs(settings, run, bins, budget.variance_of_cutoffs(len(bins)))

    def count(
        asked: GlobalSchema,
        tree: list[Split],
        nodes: list[int],
        counted: list[int],
        variance: Fraction,
        held: bool = False,
    ) -> Counts:
        question = AskCrosstables(
            query=settings.query,
            target=settings.target,
            classes=len(asked.classes),
            attributes=[AskedAttribute(a.name, a.size, list(a.edges)) for a in asked.attributes],
            tree=tree,
            nodes=nodes,
            counted=counted,
            schema=asked.common,
            variance=str(variance),
            part=settings.part(held=held),
        )
        return run.add_up("tree.crosstables", question, (len(nodes), question.cells, question.classes))

    schema = stated_schema(values, bins, settings.target)
    asked, grown = grow_privately(schema, count, budget, settings.group)
    said = [say_price(settings)]
    if epsilon_from_rho(budget.rho, settings.delta) < TINY_EPSILON:
        said.append(ONE_LEVEL)
    if settings.prune is not None:
        variance = budget.variance_of_pruning
        grown, told = prune_with(
            grown, lambda splits, nodes: count(asked, splits, nodes, [], variance, held=True), noisy=True
        )
        said.append(told)
    return Learned(finish(settings.target, settings.query, asked, grown), {}, said)


def say_price(settings: Settings) -> str:
    """What the card says first of a private model."""
    epsilon = say_epsilon(epsilon_from_rho(settings.rho, settings.delta))
    return f"differential privacy per patient: epsilon = {epsilon} at delta = {settings.delta}"
