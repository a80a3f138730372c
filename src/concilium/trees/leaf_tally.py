"""What a tree's threshold is chosen by (docs/methods.md, section 1.18): patients held out for pruning, those whom a
first tree left out, or the patients by class in its own leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from concilium.models.threshold import LEARNED_FROM, LEFT_OUT_FIRST, Tally, decide
from concilium.protocol.counts import Counts
from concilium.trees.body import TreeBody, TreeNode
from concilium.trees.shares import class_shares


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
