"""A tree drawn with lines, for terminals, logs and reports."""

from __future__ import annotations

from concilium.models.threshold import say_decided
from concilium.records.columns import label
from concilium.trees.body import TreeBody


def draw(body: TreeBody) -> str:
    """One line a node: how it is reached, and for a leaf its class, share and patients."""
    lines = [f"{body.target} ({sum(body.nodes[0].counts)} patients)" + ending(body, 0)]
    # Depth first without recursion: trees over long-tailed codes can be deeper than Python's stack.
    waiting = [(*way, "") for way in branches(body, 0)]
    while waiting:
        node, reached, last, indent = waiting.pop()
        lines.append(f"{indent}{'└─' if last else '├─'} {reached}{ending(body, node)}")
        below = indent + ("   " if last else "│  ")
        waiting += [(*way, below) for way in branches(body, node)]
    if body.decided is not None:
        lines.append(say_decided(body.decided))
    return "\n".join(lines)


def branches(body: TreeBody, node: int) -> list[tuple[int, str, bool]]:
    """A node's ways, last first (for a stack), each with whether it is the last."""
    ways = body.nodes[node].ways(body.bins)
    return [(child, reached, index == len(ways) - 1) for index, (child, reached) in enumerate(ways)][::-1]


def ending(body: TreeBody, node: int) -> str:
    """What a leaf says; nothing for a node that asks on."""
    if body.nodes[node].attribute is not None:
        return ""
    counts = body.nodes[node].counts
    best = body.call(counts)
    return f": {label(body.classes[best])} ({counts[best]} of {sum(counts)})"
