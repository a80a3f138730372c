"""ID3 on one pooled table, written from the textbook and apart from the product, of which it uses nothing.

The oracle of the tree tests, and the central trees of Tables 3.1 and 3.2 (`tables_3_1_and_3_2.py`). Entropies are
compared exactly: n times the weighted entropy is the logarithm of a quotient of integers.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import log2, prod


def id3(rows, attributes, target, max_depth=None, min_leaf=1, depth=0, merge=None, lines=()):
    """(counts, None) for a leaf, (counts, (attribute, {value: subtree})) for a split.

    `merge` may make groups of values (as frozensets) of the rows by value, given the attribute; without it values of
    fewer than `min_leaf` patients are joined, those of attributes in `lines` with their neighbours.
    """
    counts = Counter(row[target] for row in rows)
    leaf = (dict(counts), None)
    if len(counts) < 2 or depth == max_depth:
        return leaf
    best = None
    for attribute in sorted(attributes):
        groups = {}
        for row in rows:
            groups.setdefault(row[attribute], []).append(row)
        if merge is not None:
            groups = merge(attribute, groups)
        elif attribute in lines:
            groups = join_neighbours(groups, min_leaf)
        else:
            groups = join_rare(groups, min_leaf)
        if len(groups) < 2 or any(len(group) < min_leaf for group in groups.values()):
            continue
        impurity = spread(groups.values(), target)
        if best is None or impurity < best[0]:
            best = (impurity, attribute, groups)
    if best is None:
        return leaf
    _, attribute, groups = best
    below = {
        value: id3(group, attributes, target, max_depth, min_leaf, depth + 1, merge, lines)
        for value, group in groups.items()
    }
    return (dict(counts), (attribute, below))


def c45(rows, attributes, target, max_depth=None, min_leaf=1, depth=0, merge=None, lines=()):
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
        if merge is not None:
            groups = merge(attribute, groups)
        elif attribute in lines:
            groups = join_neighbours(groups, min_leaf)
        else:
            groups = join_rare(groups, min_leaf)
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
        value: c45(group, attributes, target, max_depth, min_leaf, depth + 1, merge, lines)
        for value, group in groups.items()
    }
    return (dict(counts), (attribute, below))


def join_rare(groups, min_leaf):
    """Rows by value in; values of fewer than `min_leaf` rows out as one group, with the commonest where they are too
    few together. A group of several values is a frozenset of them."""
    rare = [value for value, rows in groups.items() if len(rows) < min_leaf]
    if not rare:
        return groups
    order = sorted(groups, key=lambda value: (value is None, value))
    commonest = max(order, key=lambda value: len(groups[value]))  # the first of the longest
    joined = {value: rows for value, rows in groups.items() if value not in rare}
    pool = [row for value in rare for row in groups[value]]
    if len(pool) >= min_leaf and commonest not in rare:
        return {**joined, name_group(rare): pool}
    joined.pop(commonest, None)
    names = {*rare, commonest}
    return {**joined, name_group(names): [row for value in names for row in groups[value]]}


def name_group(values):
    """One value as it is, several as a frozenset."""
    return next(iter(values)) if len(values) == 1 else frozenset(values)


def join_neighbours(groups, min_leaf):
    """The same for bins: from both ends towards the commonest, bins are joined until they are enough; what is left over
    is the commonest's, which joins a neighbour if it is too small even so. Missing (None) is a group of its own or goes
    with the commonest."""
    if all(len(rows) >= min_leaf for rows in groups.values()):
        return groups
    order = sorted(value for value in groups if value is not None)
    if not order:
        return groups
    middle = order.index(max(order, key=lambda value: len(groups[value])))

    def gather(values):
        whole, part = [], []
        for value in values:
            part = [*part, value]
            if sum(len(groups[one]) for one in part) >= min_leaf:
                whole, part = [*whole, part], []
        return whole, part

    before, rest_before = gather(order[:middle])
    after, rest_after = gather(order[:middle:-1])
    own = [*rest_before, order[middle], *rest_after]
    lone = None in groups and len(groups[None]) >= min_leaf
    if None in groups and not lone:
        own.append(None)
    if sum(len(groups[one]) for one in own) < min_leaf:
        if before:
            own += before.pop()
        elif after:
            own += after.pop()
        elif lone:
            own, lone = [*own, None], False
    parts = [*before, own, *after, *([[None]] if lone else [])]
    return {name_group(part): [row for value in part for row in groups[value]] for part in parts}


def bits(values):
    """The entropy of a list of classes."""
    return -sum(n / len(values) * log2(n / len(values)) for n in Counter(values).values())


def spread(groups, target):
    """2 to the power of n times the weighted entropy, exactly."""
    above = prod(len(group) ** len(group) for group in groups)
    below = prod(n**n for group in groups for n in Counter(row[target] for row in group).values())
    return Fraction(above, below)


def merge_values(groups, target, min_leaf=1, in_line=False):
    """Grouping by least loss, every merger tried from scratch: rows by value in, rows by group of values out.

    Values `in_line` are numbers of bins: only neighbours among those that occur are merged, and None with anyone.
    """
    values = sorted(groups, key=lambda value: (value is None, value))
    merged = [([value], groups[value]) for value in values]
    rank = {value: place for place, value in enumerate(values)}

    def may_join(one, other):
        spans = [[rank[value] for value in names if value is not None] for names in (one, other)]
        if not in_line or not all(spans):
            return True
        low, high = sorted(spans)
        return max(low) + 1 == min(high)

    while len(merged) > 1:
        forced = any(len(rows) < min_leaf for _, rows in merged)
        if len(merged) == 2 and not forced:
            break
        tried = {}
        for i, (one, here) in enumerate(merged):
            for j, (other, there) in enumerate(merged[i + 1 :], start=i + 1):
                if forced and len(here) >= min_leaf and len(there) >= min_leaf:
                    continue
                if may_join(one, other):
                    rest = [rows for k, (_, rows) in enumerate(merged) if k not in (i, j)]
                    tried[i, j] = [*rest, here + there]
        lost = {pair: entropy(split, target) for pair, split in tried.items()}
        if not lost:
            break
        i, j = min(pair for pair, found in lost.items() if found <= min(lost.values()) + 1e-9)
        if not forced and ratio(tried[i, j], target) < ratio([r for _, r in merged], target) - 1e-9:
            break
        merged[i] = (merged[i][0] + merged[j][0], merged[i][1] + merged[j][1])
        del merged[j]
    return {frozenset(names): rows for names, rows in merged}


def ratio(groups, target):
    """The gain ratio of a split, in floating point; below all others where it is none."""
    everyone = [row[target] for rows in groups for row in rows]
    if len(groups) == 1:
        return -1.0
    shares = [len(rows) / len(everyone) for rows in groups]
    return (bits(everyone) - entropy(groups, target)) / -sum(share * log2(share) for share in shares)


def entropy(groups, target):
    """The weighted entropy after a split."""
    everyone = sum(map(len, groups))
    return sum(len(rows) / everyone * bits([row[target] for row in rows]) for rows in groups)


def prune(tree, held, target, classes):
    """Reduced-error pruning by sending the held-out patients down the tree, again for every node."""
    counts, split = tree
    if split is None:
        return tree
    attribute, below = split
    pruned = {
        value: prune(child, [row for row in held if matches(value, row[attribute])], target, classes)
        for value, child in below.items()
    }
    whole, leaf = (counts, (attribute, pruned)), (counts, None)
    return leaf if errors(leaf, held, target, classes) <= errors(whole, held, target, classes) else whole


def errors(tree, rows, target, classes):
    """How many of these patients get another class than theirs."""
    said = [decide(tree, row) for row in rows]
    return sum(
        row[target] != max(classes, key=lambda c: counts.get(c, 0))
        for row, counts in zip(rows, said, strict=True)
    )


def matches(branch, value):
    return value in branch if isinstance(branch, frozenset) else value == branch


def rest(tree, row):
    """The node where a patient comes to rest: a leaf, or a split that has no branch for the patient's value."""
    while tree[1] is not None:
        attribute, below = tree[1]
        ways = [child for branch, child in below.items() if matches(branch, row.get(attribute))]
        if not ways:
            break
        tree = ways[0]
    return tree


def decide(tree, row):
    """The class counts of that node."""
    return rest(tree, row)[0]
