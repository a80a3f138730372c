"""A tree drawn with lines, for terminals, logs and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from concilium.records.table import label
from concilium.trees.conditions import condition

if TYPE_CHECKING:
    from concilium.trees.tree import TreeBody


def draw(body: TreeBody) -> str:
    """One line a node: how it is reached, and for a leaf its class, share and patients."""
    lines = [
        f"{body.target} ({sum(body.nodes[0].counts)} patients)"
        + ("" if body.nodes[0].branches else ends(body, 0))
    ]
    # Depth first without recursion: trees over long-tailed codes can be deeper than Python's stack.
    waiting = [(branch, 0, "", last) for branch, last in marked(body, 0)]
    while waiting:
        branch, parent, indent, last = waiting.pop()
        asked = body.nodes[parent].attribute
        assert asked is not None
        reached = condition(asked, branch.value, body.bins.get(asked))
        node = body.nodes[branch.node]
        lines.append(
            f"{indent}{'└─' if last else '├─'} {reached}" + ("" if node.branches else ends(body, branch.node))
        )
        below = indent + ("   " if last else "│  ")
        waiting += [(child, branch.node, below, end) for child, end in marked(body, branch.node)]
    return "\n".join(lines)


def marked(body: TreeBody, node: int) -> list[tuple[Branch, bool]]:
    """A node's branches, last first (for a stack), each with whether it is the last."""
    branches = body.nodes[node].branches
    return [(branch, index == len(branches) - 1) for index, branch in enumerate(branches)][::-1]


def ends(body: TreeBody, node: int) -> str:
    """What a leaf says."""
    counts = body.nodes[node].counts
    best = max(range(len(counts)), key=lambda index: (counts[index], -index))
    return f": {label(body.classes[best])} ({counts[best]} of {sum(counts)})"


if TYPE_CHECKING:
    from concilium.trees.tree import Branch
