"""The plain fit of a tree, `exact` or `masked`: schemas, cutoffs if they are to be chosen, and one round of counts for
every level; the tree is that of the pooled table (docs/methods.md, section 1.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from concilium.models.threshold import (
    HELD_OUT,
    LEFT_OUT_FIRST,
    PERCENT_LEFT_OUT,
    warn_of_specificity,
    weigh_errors,
)
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.held_out import Part
from concilium.protocol.messages import encode
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.protocol.schema import SharedSchema
from concilium.protocol.splits import Split
from concilium.protocol.sums import write_sum
from concilium.trees.body import TreeBody
from concilium.trees.growing import GrowingNode, finish, grow
from concilium.trees.pruning import count_resting, decide_tree, prune_with, tally_held_out, warn_of_one_class
from concilium.trees.schemas import (
    PLAN_CUTOFFS,
    PLAN_SCHEMA,
    TreeStudy,
    ask_schemas,
    find_constant,
    find_lonely_classes,
    find_oddities,
    say_constant,
    settle_schema,
)

if TYPE_CHECKING:
    from concilium.trees.tree import DecisionTree

HELD_OUT_COUNTS = "class counts of held-out patients, for pruning"
FIRST_TREE = (
    f"for the decision: the same before, without {PERCENT_LEFT_OUT} % of the patients, and where these rest"
)


def plan(tree: DecisionTree) -> Plan:
    """What a fit asks; none of it is bounded."""
    tables = "counts of all attributes, once per level of the tree"
    questions = [PLAN_SCHEMA, PLAN_CUTOFFS, PlannedQuestion("counts", None, tables)]
    if tree.cutoffs is not None:
        note = f"histograms of {len(tree.bins)} attributes, for cutoffs"
        questions.insert(2, PlannedQuestion("counts", None, note))
    if tree.prune is not None:
        questions.append(PlannedQuestion("counts", None, HELD_OUT_COUNTS))
    elif tree.rule.tallied:
        questions.append(PlannedQuestion("counts", None, FIRST_TREE))
    return Plan("rho", tuple(questions))


def converse(tree: DecisionTree, partners: Partners) -> Conversation[Learned[TreeBody]]:
    """Grow a tree over the sites."""
    seen = yield from ask_schemas(tree)
    schema = yield from settle_schema(
        tree,
        seen,
        cutoffs=tree.cutoffs,
        most_values=tree.growing.most_values,
        constants=tree.growth == "id3",  # the thesis counts them, and its auto-reduction takes them out
    )
    positive = tree.find_positive(schema.classes.values)
    tables = PlainTables(tree, schema, len(seen), partners)
    floored = [site for site, own in seen.items() if own.floored]
    pruning = tree.prune is not None and not floored
    constant: list[str] = []

    def grow_from(part: Part | None) -> Conversation[tuple[list[GrowingNode], list[int]]]:
        def count(splits: list[Split], nodes: list[int], counted: list[int]) -> Conversation[Counts]:
            total = yield from tables.count(splits, nodes, counted, part)
            if not splits:
                constant[:] = find_constant(total[0], schema.attributes)
            return total

        return grow(
            schema,
            count,
            tree.growing,
            subtract=not floored,
            reduce=tree.reduce,
        )

    def count_held_out(splits: list[Split], nodes: list[int]) -> Conversation[Counts]:
        total = yield from tables.count(splits, nodes, [], tree.part(held=True))
        return total

    tally = None
    if tree.rule.tallied and positive is not None and tree.prune is None and not floored:
        first, _ = yield from grow_from(tree.part(held=False))
        resting = yield from count_resting(first, count_held_out)
        body = finish(tree.target, tree.query, schema, first)
        tally = tally_held_out(body, positive, resting, LEFT_OUT_FIRST)
    grown, counted = yield from grow_from(tree.part(held=False) if pruning else None)
    saved = tables.saved
    warnings = [
        *find_oddities(tree, schema, seen),
        *find_lonely_classes(tree.target, {site: own.classes for site, own in seen.items()}),
        *say_constant(constant),
    ]
    if pruning:
        costs = weigh_errors(tree.threshold, grown[0].counts.tolist(), positive)
        pruned = yield from prune_with(grown, count_held_out, costs)
        grown = pruned.nodes
        tally = tally_held_out(
            finish(tree.target, tree.query, schema, grown), positive, pruned.held, HELD_OUT
        )
        warnings.append(pruned.note)
    elif tree.prune is not None:
        warnings.append(
            f"not pruned: {', '.join(floored)} leave{'s' if len(floored) == 1 else ''} small counts out, and would "
            "tell them by telling some patients apart from the others"
        )
    if tree.reduce is not None:
        left_out = len(schema.attributes) - len(counted)
        warnings.append(_say_reduced(tree, left_out, len(schema.attributes), saved, partners.bytes))
    body = finish(tree.target, tree.query, schema, grown)
    body, said = decide_tree(body, tree.threshold, positive, tally if tally and tally.tells else None)
    warnings += [*warn_of_specificity(body.decided), *warn_of_one_class(body)]
    return Learned(body, {site: own.patients for site, own in seen.items()}, warnings, said)


def _say_reduced(tree: DecisionTree, left_out: int, attributes: int, saved: int, sent: int) -> str:
    """Say what auto-reduction left out and how many bytes that saved, besides those that were sent."""
    return (
        f"auto-reduction: {left_out} of {attributes} attributes were counted at the root only, which "
        f"saved {saved / 1000:.1f} kB of the {(sent + saved) / 1000:.1f} kB that the same questions "
        "would have taken with all attributes in them"
        + ("; without it the tree, and so its questions, may be others" if tree.reduce else "")
    )


class PlainTables:
    """The crosstables of one study, as its sites are asked for them.

    A question lists the attributes that it counts and those that its tree asks about, and no others. `saved` are the
    bytes that this spared, of questions and of answers, where not all attributes were counted: what the same questions
    would have been with all of them, as they would have been written.
    """

    def __init__(
        self, study: TreeStudy, schema: SharedSchema, sites: int = 0, partners: Partners | None = None
    ) -> None:
        self._study, self._schema, self._sites, self._partners = study, schema, sites, partners
        self.saved = 0

    def count(
        self,
        splits: Sequence[Split] = (),
        nodes: Sequence[int] = (0,),
        counted: Sequence[int] | None = None,
        part: Part | None = None,
    ) -> Conversation[Counts]:
        """The counts of these attributes (all of them by default) at the nodes of a partial tree."""
        everything = range(len(self._schema.attributes))
        counting = list(everything) if counted is None else list(counted)
        listed = tuple(sorted({*counting, *(split.attribute for split in splits)}))
        before = 0 if self._partners is None else self._partners.answered
        question = self._write(listed, splits, nodes, counting, part)
        total: Counts = yield question
        if len(listed) < len(everything) and self._partners is not None:
            answers = self._partners.answered - before
            whole = self._write(tuple(everything), splits, nodes, list(everything), part)
            if answers:  # folds that share a conversation ask nothing themselves
                spared = len(encode(whole)) - len(encode(question))
                word = self._study.way_out.word or self._find_word(answers, question.shape)
                more = math.prod(whole.shape) - math.prod(question.shape)
                self.saved += self._sites * round(spared * self._study.way_out.sendings + word * more)
        return total

    def _write(
        self,
        listed: tuple[int, ...],
        splits: Sequence[Split],
        nodes: Sequence[int],
        counting: Sequence[int],
        part: Part | None,
    ) -> AskCounts:
        """The question about these attributes, which are numbered anew in it."""
        place = {attribute: number for number, attribute in enumerate(listed)}
        schema = self._schema.keep(listed)
        return AskCounts(
            query=self._study.query,
            target=self._study.target,
            classes=schema.classes,
            attributes=schema.attributes,
            tree=[Split(split.node, place[split.attribute], split.children) for split in splits],
            nodes=list(nodes),
            counted=None if len(counting) == len(listed) else [place[index] for index in counting],
            part=part,
        )

    def _find_word(self, answers: int, shape: tuple[int, ...]) -> float:
        """How many bytes a number took on average in answers of this shape. With all attributes it would be as many:
        the class counts of the nodes, which are in both, are the largest numbers."""
        around = len(encode(write_sum(np.zeros(shape, dtype=np.uint8), 0))) - math.prod(shape)
        return (answers / self._sites - around) / math.prod(shape)
