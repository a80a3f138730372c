"""ID3 on one pooled table, written from the textbook and apart from the product: the oracle of the tree tests.

Entropies are compared exactly: n times the weighted entropy is the logarithm of a quotient of integers.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import log2, prod


def id3(rows, attributes, target, max_depth=None, min_leaf=1, depth=0):
    """(counts, None) for a leaf, (counts, (attribute, {value: subtree})) for a split."""
    counts = Counter(row[target] for row in rows)
    leaf = (dict(counts), None)
    if len(counts) < 2 or depth == max_depth:
        return leaf
    best = None
    for attribute in sorted(attributes):
        groups = {}
        for row in rows:
            groups.setdefault(row[attribute], []).append(row)
        if len(groups) < 2 or any(len(group) < min_leaf for group in groups.values()):
            continue
        impurity = spread(groups.values(), target)
        if best is None or impurity < best[0]:
            best = (impurity, attribute, groups)
    if best is None:
        return leaf
    _, attribute, groups = best
    below = {
        value: id3(group, attributes, target, max_depth, min_leaf, depth + 1)
        for value, group in groups.items()
    }
    return (dict(counts), (attribute, below))


def c45(rows, attributes, target, max_depth=None, min_leaf=1, depth=0):
    """As id3, by gain ratio among the attributes of at least average gain, in floating point."""
    counts = Counter(row[target] for row in rows)
    leaf = (dict(counts), None)
    if len(counts) < 2 or depth == max_depth:
        return leaf
    found = []
    for attribute in sorted(attributes):
        groups = {}
        for row in rows:
            groups.setdefault(row[attribute], []).append(row)
        if len(groups) < 2 or any(len(group) < min_leaf for group in groups.values()):
            continue
        shares = [len(group) / len(rows) for group in groups.values()]
        after = sum(
            share * bits([row[target] for row in group])
            for share, group in zip(shares, groups.values(), strict=True)
        )
        found.append(
            (
                bits([row[target] for row in rows]) - after,
                -sum(s * log2(s) for s in shares),
                attribute,
                groups,
            )
        )
    if not found:
        return leaf
    average = sum(gain for gain, *_ in found) / len(found)
    worth = [one for one in found if one[0] >= average - 1e-9]
    best = max(gain / width for gain, width, *_ in worth)
    _, _, attribute, groups = next(one for one in worth if one[0] / one[1] >= best - 1e-9)
    below = {
        value: c45(group, attributes, target, max_depth, min_leaf, depth + 1)
        for value, group in groups.items()
    }
    return (dict(counts), (attribute, below))


def bits(values):
    """The entropy of a list of classes."""
    return -sum(n / len(values) * log2(n / len(values)) for n in Counter(values).values())


def spread(groups, target):
    """2 to the power of n times the weighted entropy, exactly."""
    above = prod(len(group) ** len(group) for group in groups)
    below = prod(n**n for group in groups for n in Counter(row[target] for row in group).values())
    return Fraction(above, below)


def decide(tree, row):
    """The class counts of the node where a patient comes to rest."""
    counts, split = tree
    while split is not None:
        attribute, below = split
        if row.get(attribute) not in below:
            break
        counts, split = below[row.get(attribute)]
    return counts
