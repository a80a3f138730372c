"""What a tree's threshold is chosen by: the patients by class in its leaves, or those held out for pruning.

Both are counts that the tree was made of (docs/methods.md, sections 1.8 and 1.18): nothing is asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from concilium.federation.decision import HELD_OUT, LEARNED_FROM, Tally, decide
from concilium.trees.body import TreeBody, TreeNode
from concilium.trees.growing import Counts
from concilium.trees.shares import class_shares


def decide_tree(
    body: TreeBody, decision: str, positive: int | None, held: Mapping[int, Counts]
) -> tuple[TreeBody, str]:
    """The tree with its decision, and what the card says of that; `held` are the classes of held-out patients by where
    they rest, if some were."""
    if positive is None:
        return body, ""
    prevalence = class_shares(body.nodes[0].counts)[positive]
    tally = tally_held_out(body, positive, held) if held else tally_leaves(body.leaves, positive)
    decided, said = decide(decision, body.classes[positive], prevalence, tally)
    return msgspec.structs.replace(body, decided=decided), said


def tally_leaves(leaves: Sequence[TreeNode], positive: int) -> Tally:
    """The patients in the leaves, who are all that the tree was grown from."""
    return Tally(
        [class_shares(leaf.counts)[positive] for leaf in leaves],
        [leaf.counts[1 - positive] for leaf in leaves],
        [leaf.counts[positive] for leaf in leaves],
        LEARNED_FROM,
    )


def tally_held_out(body: TreeBody, positive: int, held: Mapping[int, Counts]) -> Tally:
    """The held-out patients wherever they rest."""
    return Tally(
        [class_shares(body.nodes[node].counts)[positive] for node in held],
        [int(counts[1 - positive]) for counts in held.values()],
        [int(counts[positive]) for counts in held.values()],
        HELD_OUT,
    )
