"""The private fit of a tree: everything that is asked follows from the study and from noisy counts.

Who is protected, from whom and at what price is said in private_growing.py, which grows the tree; here are the
questions it puts to the sites, and the words for plan and card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from concilium.models.private_start import plan_start, start, states_attributes
from concilium.models.threshold import HELD_OUT, warn_of_specificity, weigh_errors
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners
from concilium.protocol.schema import SharedSchema
from concilium.protocol.splits import Split
from concilium.trees.body import TreeBody
from concilium.trees.growing import finish
from concilium.trees.plain_tree import HELD_OUT_COUNTS
from concilium.trees.private_growing import SCREENED, grow_privately
from concilium.trees.pruning import decide_tree, prune_with, tally_held_out, warn_of_one_class
from concilium.trees.schemas import choose_edges

if TYPE_CHECKING:
    from concilium.trees.tree import DecisionTree

# Below this epsilon the one-level model predicts better than a private tree (docs/methods.md, section 1.10).
TINY_EPSILON = Fraction(3, 10)
NOISE_HIDES = (
    "; noise hides what a split would tell: raise epsilon, state bins and values, or try naive-bayes"
)
ONE_LEVEL = (
    "below an epsilon of 0.3 noise leaves little of a tree: method naive-bayes usually predicts better"
)


def plan(tree: DecisionTree) -> Plan:
    """Every question, with what it costs."""
    budget = tree.budget
    known = len({*tree.stated[0], *tree.stated[1]} - {tree.target}) if states_attributes(tree) else None
    first = f"all {'' if known is None else f'{known} '}attributes at the root"
    if tree.epsilon_of_rho < TINY_EPSILON:
        first += f" ({ONE_LEVEL})"
    later = f"the {SCREENED if known is None else min(SCREENED, known)} best attributes (or more, if free) at level"
    notes = [
        first,
        *(f"{later} {level}" for level in range(1, budget.depth)),
        "class counts of the leaves, and what levels that are not reached leave over",
    ]
    questions = [
        PlannedQuestion("counts", budget.share(weight), note)
        for weight, note in zip(budget.weights, notes, strict=True)
    ]
    if tree.prune is not None:
        questions.append(PlannedQuestion("counts", budget.share(), HELD_OUT_COUNTS))
    if tree.cutoffs is not None and tree.bins:
        note = f"histograms of {len(tree.bins)} attributes, for cutoffs"
        questions.insert(0, PlannedQuestion("counts", budget.share(), note))
    return Plan("rho", (*plan_start(tree), *questions))


def converse(tree: DecisionTree, partners: Partners) -> Conversation[Learned[TreeBody]]:
    """Grow a tree from sums with noise."""
    # N rows of a patient change N times as much as one: at the same price noise is N times as large.
    rho = tree.budget.rho / partners.encounters**2
    budget = dataclasses.replace(tree.budget, rho=rho, least=partners.least_variance)
    asked = tree
    tree, said_first = yield from start(tree, partners)
    bins = tree.stated[1]
    if asked.cutoffs is not None and asked.bins:
        histograms = AskCounts(
            query=tree.query,
            target=tree.target,
            attributes=tuple(Attribute(name, tuple(edges)) for name, edges in bins.items()),
            totals=False,
            noise=Gaussian(str(budget.variance_of_cutoffs(len(bins)))),
        )
        bins = {**(yield from choose_edges(histograms, asked.cutoffs))}

    def count(
        schema: SharedSchema,
        splits: list[Split],
        nodes: list[int],
        counted: list[int],
        variance: Fraction,
        held: bool = False,
    ) -> Conversation[Counts]:
        total: Counts = yield AskCounts(
            query=tree.query,
            target=tree.target,
            classes=schema.classes,
            attributes=schema.attributes,
            tree=splits,
            nodes=nodes,
            counted=counted,
            noise=Gaussian(str(variance)),
            part=tree.part(held=held),
        )
        return total

    stated = tree.stating(bins=bins).state_schema()
    positive = tree.find_positive(stated.classes.values)
    schema, grown = yield from grow_privately(stated, count, budget, tree.growing)
    warnings = [asked.say_price(), *said_first]
    if tree.epsilon_of_rho < TINY_EPSILON:
        warnings.append(ONE_LEVEL)
    held: Mapping[int, Counts] = {}
    if tree.prune is not None:
        variance = budget.variance_of_pruning
        pruned = yield from prune_with(
            grown,
            lambda splits, nodes: count(schema, splits, nodes, [], variance, held=True),
            weigh_errors(tree.threshold, grown[0].counts.tolist(), positive),
            noisy=True,
        )
        grown, held = pruned.nodes, pruned.held
        warnings.append(pruned.note)
    body = finish(tree.target, tree.query, schema, grown)
    tally = tally_held_out(body, positive, held, HELD_OUT)
    body, said = decide_tree(body, tree.threshold, positive, tally)
    warnings += [*warn_of_specificity(body.decided), *warn_of_one_class(body, NOISE_HIDES)]
    return Learned(body, {}, warnings, said)
