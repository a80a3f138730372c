"""How much of what a tree tells it tells by each attribute: entropy taken away, over all patients who are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from concilium.trees.body import TreeBody
from concilium.trees.growing import xlog2x


def add_gains(trees: Iterable[TreeBody]) -> dict[str, float]:
    """By attribute the bits that asking it takes away, summed over nodes and patients; no less than none where counts
    are noisy."""
    gains: dict[str, float] = {}
    for tree in trees:
        for node in tree.nodes:
            if node.attribute is None:
                continue
            left = sum(find_entropy(tree.nodes[child].counts) for child in node.children)
            gains[node.attribute] = gains.get(node.attribute, 0.0) + max(
                find_entropy(node.counts) - left, 0.0
            )
    return gains


def find_entropy(counts: Iterable[int]) -> float:
    """The bits that it takes to tell the class of all these patients."""
    patients = np.maximum(np.array(list(counts), dtype=np.float64), 0.0)
    return float(xlog2x(patients.sum(keepdims=True))[0] - xlog2x(patients).sum())


def rank(gains: Mapping[str, float]) -> dict[str, float]:
    """The largest 100, the most important first, by name where equal."""
    most = max(gains.values(), default=0.0) or 1.0
    order = sorted(gains, key=lambda name: (-gains[name], name))
    return {name: 100 * gains[name] / most for name in order}
