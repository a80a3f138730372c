"""Reduced-error pruning from held-out counts (docs/methods.md, section 1.8; Quinlan 1987).

Every site holds out some of its patients (federation/held_out.py); the tree is grown from the others. One further
question then counts the classes of the held-out patients wherever they come to rest, and from the bottom up a split is
taken back where its node alone, as a leaf, makes no more errors on them than all that hangs on it. What a node says,
and the counts that it keeps, are those of the patients that the tree was grown from.

All of it is a function of sums over sites: under `exact` and `masked` the tree is the one that pooling the two parts
would give. Under `private` the held-out counts have noise and are charged like the counts of the leaves (one patient
is in one place); errors are added up as they come, below zero too, since clipping would add to small places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from concilium.federation.conversation import Conversation
from concilium.trees.growing import Counts, GrowingNode
from concilium.trees.routing import STAYS
from concilium.trees.shares import predicted
from concilium.trees.splits import MOST_CELLS, Split, distinct

# Given splits and leaves: the class counts of held-out patients there, [node, 1, class].
CountHeldOut = Callable[[list[Split], list[int]], Conversation[Counts]]


def resting_places(nodes: Sequence[GrowingNode]) -> tuple[list[Split], dict[int, int]]:
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


def prune_with(
    nodes: Sequence[GrowingNode], count: CountHeldOut, noisy: bool = False
) -> Conversation[tuple[list[GrowingNode], str]]:
    """The tree pruned by counts of held-out patients, and what the card says of it."""
    splits, rests = resting_places(nodes)
    places = list(rests)
    batch = max(1, MOST_CELLS // len(nodes[0].counts))
    tables = []
    for start in range(0, len(places), batch):
        tables.append((yield from count(splits, places[start : start + batch])))
    held = np.concatenate(tables)[:, 0, :]
    if not noisy and not held.any():
        return list(nodes), "not pruned: no site has patients enough to hold some out"
    by_node = dict(zip(rests.values(), held, strict=True))
    pruned = prune(nodes, by_node)
    who = "held-out patients" if noisy else f"{int(held.sum())} held-out patients"
    return pruned, (
        f"pruned by the errors on {who}: {len(nodes)} nodes became {len(pruned)}; the counts of the tree are those of "
        "the other patients, from whom it was grown"
    )


def prune(nodes: Sequence[GrowingNode], held: Mapping[int, Counts]) -> list[GrowingNode]:
    """The tree without the splits that do not help those held out; `held` has their classes by where they rest."""
    classes = len(nodes[0].counts)
    here = {index: held.get(index, np.zeros(classes, dtype=np.int64)) for index in range(len(nodes))}
    errors: dict[int, int] = {}
    leaves = set()
    for index in reversed(range(len(nodes))):
        says = predicted(nodes[index].counts.tolist())
        below = int(here[index].sum() - here[index][says])
        for child in distinct(nodes[index].children):
            below += errors[child]
            here[index] = here[index] + here[child]
        alone = int(here[index].sum() - here[index][says])
        if alone <= below:
            leaves.add(index)
        errors[index] = min(alone, below)
    return cut(nodes, leaves)


def cut(nodes: Sequence[GrowingNode], leaves: set[int]) -> list[GrowingNode]:
    """The tree in which these nodes are leaves, numbered anew in the same order."""
    kept = {0}
    for index, node in enumerate(nodes):
        if index in kept and index not in leaves:
            kept.update(distinct(node.children))
    number = {index: place for place, index in enumerate(sorted(kept))} | {STAYS: STAYS}
    return [
        replace(nodes[index], attribute=None, children=[])
        if index in leaves
        else replace(nodes[index], children=[number[child] for child in nodes[index].children])
        for index in sorted(kept)
    ]
