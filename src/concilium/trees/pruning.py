"""What held-out patients are for: reduced-error pruning, and the threshold of a tree.

Pruning (docs/methods.md, section 1.8; Quinlan 1987): every site holds out some of its patients (protocol/held_out.py);
the tree is grown from the others. One further question then counts the classes of the held-out patients wherever they
come to rest, and from the bottom up a split is taken back where its node alone, as a leaf, makes no more errors on them
than all that hangs on it. What a node says, and the counts that it keeps, are those of the patients that the tree was
grown from.

Errors weigh as the study's decision has it (models/threshold.py): each the same under `majority`; by prevalence as
balanced accuracy weighs them, so that a rare class does not have all splits taken back.

All of it is a function of sums over sites: under `exact` and `masked` the tree is the one that pooling the two parts
would give. Under `private` the held-out counts have noise and are charged like the counts of the leaves (one patient
is in one place); errors are added up as they come, below zero too, since clipping would add to small places.

A threshold (docs/methods.md, section 1.18) is chosen by the patients held out for pruning, by those whom a first tree
left out, or by the patients by class in the tree's own leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from concilium.models.threshold import LEARNED_FROM, LEFT_OUT_FIRST, ErrorCosts, Tally, decide
from concilium.protocol.counts import Counts
from concilium.protocol.questions import MOST_NUMBERS, Conversation
from concilium.protocol.splits import STAYS, Split, distinct
from concilium.records.columns import label
from concilium.trees.body import TreeBody, TreeNode, class_shares
from concilium.trees.growing import GrowingNode

# Given splits and leaves: the class counts of held-out patients there, [node, 1, class].
CountHeldOut = Callable[[list[Split], list[int]], Conversation[Counts]]


@dataclass(frozen=True)
class _Pruned:
    """What is left of a tree, what the card says of it, and the classes of held-out patients where they rest, by the
    number that a node has in `nodes`; none where nobody was held out."""

    nodes: list[GrowingNode]
    note: str
    held: Mapping[int, Counts]


def _resting_places(nodes: Sequence[GrowingNode]) -> tuple[list[Split], dict[int, int]]:
    """The tree with one more node under every split whose values do not all have a branch, for patients with the other
    values; and the node that each leaf of it stands for, which is the leaf itself or the node where such patients rest.
    """
    splits: list[Split] = []
    rests: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if node.attribute is None:
            rests[index] = index
            continue
        beside = len(nodes) + index
        if STAYS in node.children:
            rests[beside] = index
        children = [beside if child == STAYS else child for child in node.children]
        splits.append(Split(index, node.attribute, children))
    return splits, rests


def count_resting(nodes: Sequence[GrowingNode], count: CountHeldOut) -> Conversation[dict[int, Counts]]:
    """The classes of held-out patients by the node where they rest."""
    splits, rests = _resting_places(nodes)
    places = list(rests)
    batch = max(1, MOST_NUMBERS // len(nodes[0].counts))
    tables = []
    for start in range(0, len(places), batch):
        tables.append((yield from count(splits, places[start : start + batch])))
    return dict(zip(rests.values(), np.concatenate(tables)[:, 0, :], strict=True))


def prune_with(
    nodes: Sequence[GrowingNode], count: CountHeldOut, costs: ErrorCosts, noisy: bool = False
) -> Conversation[_Pruned]:
    """The tree pruned by counts of held-out patients."""
    held = yield from count_resting(nodes, count)
    everyone = sum(int(counts.sum()) for counts in held.values())
    if not noisy and not everyone:
        return _Pruned(list(nodes), "not pruned: no site has patients enough to hold some out", {})
    pruned, by_node = _prune(nodes, held, costs)
    who = "held-out patients" if noisy else f"{everyone} held-out patients"
    note = (
        f"pruned by the errors on {who}: {len(nodes)} nodes became {len(pruned)}; the counts of the tree are those of "
        "the other patients, from whom it was grown"
    )
    return _Pruned(pruned, note, by_node)


def _prune(
    nodes: Sequence[GrowingNode], held: Mapping[int, Counts], costs: ErrorCosts
) -> tuple[list[GrowingNode], dict[int, Counts]]:
    """The tree without the splits that do not help those held out, of whom `held` has the classes by where they rest;
    and the same by where they rest then."""
    classes = len(nodes[0].counts)
    weights = np.array(costs.weights, dtype=object)
    here = {index: held.get(index, np.zeros(classes, dtype=np.int64)) for index in range(len(nodes))}
    errors: dict[int, int] = {}
    leaves = set()
    for index in reversed(range(len(nodes))):
        wrong = weights.copy()
        wrong[costs.call(nodes[index].counts.tolist())] = 0
        below = int((here[index] * wrong).sum())
        for child in distinct(nodes[index].children):
            below += errors[child]
            here[index] = here[index] + here[child]
        alone = int((here[index] * wrong).sum())
        if alone <= below:
            leaves.add(index)
        errors[index] = min(alone, below)
    number = _find_numbers(nodes, leaves)
    rest = {
        place: here[index] if index in leaves else held[index]
        for index, place in number.items()
        if index in leaves or index in held
    }
    return _cut(nodes, leaves, number), rest


def _find_numbers(nodes: Sequence[GrowingNode], leaves: set[int]) -> dict[int, int]:
    """The numbers of the nodes that are left where these are leaves, in the same order."""
    kept = {0}
    for index, node in enumerate(nodes):
        if index in kept and index not in leaves:
            kept.update(distinct(node.children))
    return {index: place for place, index in enumerate(sorted(kept))}


def _cut(nodes: Sequence[GrowingNode], leaves: set[int], numbers: Mapping[int, int]) -> list[GrowingNode]:
    """The tree in which these nodes are leaves, numbered anew."""
    number = {**numbers, STAYS: STAYS}
    return [
        replace(nodes[index], attribute=None, children=[])
        if index in leaves
        else replace(nodes[index], children=[number[child] for child in nodes[index].children])
        for index in numbers
    ]


def decide_tree(
    body: TreeBody, decision: str, positive: int | None, tally: Tally | None
) -> tuple[TreeBody, str]:
    """The tree with its decision, and what the card says of that; the tally is of those held out, or of a first tree.
    Without it the tree's own leaves choose."""
    if positive is None:
        return body, ""
    prevalence = class_shares(body.nodes[0].counts)[positive]
    own = tally_leaves(body.leaves, positive)
    first = tally is not None and tally.who == LEFT_OUT_FIRST
    decided, said = decide(decision, body.classes[positive], prevalence, tally or own, own if first else None)
    return msgspec.structs.replace(body, decided=decided), said


def warn_of_one_class(body: TreeBody, remedy: str = "") -> list[str]:
    """A warning where every leaf predicts the same class: nobody is flagged, or everybody. `remedy`: what else to try
    where the tree is a single leaf."""
    called = {body.call(leaf.counts) for leaf in body.leaves}
    if len(body.classes) < 2 or len(called) > 1:
        return []
    same = f"{body.target} = {label(body.classes[called.pop()])}"
    if len(body.leaves) == 1:
        return [f"the tree is a single leaf: everybody is predicted {same}, at the same risk{remedy}"]
    moved = "" if body.decided else '; threshold = "prevalence" flags whose risk is above the average'
    return [f"everybody is predicted {same}: only the risks of its leaves tell patients apart{moved}"]


def tally_leaves(leaves: Sequence[TreeNode], positive: int) -> Tally:
    """The patients in the leaves, who are all that the tree was grown from."""
    return Tally(
        [class_shares(leaf.counts)[positive] for leaf in leaves],
        [leaf.counts[1 - positive] for leaf in leaves],
        [leaf.counts[positive] for leaf in leaves],
        LEARNED_FROM,
    )


def tally_held_out(
    body: TreeBody, positive: int | None, held: Mapping[int, Counts], who: str
) -> Tally | None:
    """The held-out patients wherever they rest; None where there are none."""
    if positive is None or not held:
        return None
    return Tally(
        [class_shares(body.nodes[node].counts)[positive] for node in held],
        [int(counts[1 - positive]) for counts in held.values()],
        [int(counts[positive]) for counts in held.values()],
        who,
    )
