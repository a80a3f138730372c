"""The nodes of boosted trees as rules.

A set of codes is the bits of a number, and what a node says of all attributes is one number, each attribute with bits
of its own: going down a branch is one bitwise and. Nodes that say the same are one before a rule is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from concilium.protocol.attributes import MISSING
from concilium.rulefit.boosted_trees import GAPPED, NUMBER, BoostedTrees
from concilium.rulefit.rules import Condition, Rule


def list_rules(trees: BoostedTrees, sizes: Sequence[int]) -> list[Rule]:
    """The different rules of all nodes but the roots, in canonical order, but none that nobody could fulfil; `sizes`
    says how many codes each attribute has."""
    starts = [0, *accumulate(sizes)]
    everything = (1 << starts[-1]) - 1
    sides_of: dict[tuple[int, ...], tuple[int, int]] = {}
    distinct: set[int] = set()
    splits = trees.splits
    nodes = [everything] * len(splits.attributes)
    columns = (splits.attributes, splits.at, splits.missing_left, splits.together, splits.left, splits.right)
    for split, (attribute, at, missing_left, together, to_left, to_right) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        asked = attribute, at, missing_left, *together
        sides = sides_of.get(asked)
        if sides is None:
            own, start = (1 << sizes[attribute]) - 1, starts[attribute]
            others = everything ^ own << start
            left, right = _split(trees, split, own)
            sides = sides_of[asked] = left << start | others, right << start | others
        here, (left, right) = nodes[split], sides
        left &= here
        right &= here
        distinct.add(left)
        distinct.add(right)
        if to_left >= 0:
            nodes[to_left] = left
        if to_right >= 0:
            nodes[to_right] = right
    return _write_rules(distinct - {everything}, sizes, starts)


def _split(trees: BoostedTrees, split: int, everything: int) -> tuple[int, int]:
    """The codes that go left and those that go right at a split. A number is cut in the middle between two codes that
    occur at the site; categories that do not occur there go where all go that are not named."""
    attribute, at = int(trees.splits.attributes[split]), int(trees.splits.at[split])
    codes, kind = trees.codes[attribute].tolist(), trees.layout.kinds[attribute]
    if kind not in (NUMBER, GAPPED):
        left = sum(1 << codes[place] for place in trees.splits.together[split].tolist() if place >= 0)
        return left, everything & ~left
    last = len(codes) - 1 - (kind == GAPPED)
    highest = 0 if at == 0 else (codes[at] + codes[at + 1]) // 2 if at < last else everything.bit_length()
    missing = 1 << MISSING
    left = (1 << (highest + 1)) - 1 & everything & ~missing
    right = everything & ~left & ~missing
    # Without missing values at this site it has not learned where they belong: they fulfil neither side.
    if kind == GAPPED:
        return (left | missing, right) if trees.splits.missing_left[split] else (left, right | missing)
    return left, right


def _write_rules(nodes: set[int], sizes: Sequence[int], starts: Sequence[int]) -> list[Rule]:
    """What each node says, attribute after attribute; nothing of those whose every code it allows."""
    owner = [index for index, size in enumerate(sizes) for _ in range(size)]
    everything = (1 << len(owner)) - 1
    own = [(1 << size) - 1 << start for size, start in zip(sizes, starts, strict=False)]
    written: dict[tuple[int, int], Condition] = {}
    rules = []
    for node in nodes:
        conditions = []
        excluded = everything ^ node
        while excluded:
            attribute = owner[(excluded & -excluded).bit_length() - 1]
            codes = node & own[attribute]
            if not codes:  # nobody
                break
            condition = written.get((attribute, codes))
            if condition is None:
                condition = written[attribute, codes] = write_bits(attribute, codes >> starts[attribute])
            conditions.append(condition)
            excluded &= ~own[attribute]
        else:
            rules.append(tuple(conditions))
    return sorted(rules)


def write_bits(attribute: int, codes: int) -> Condition:
    """The condition that the codes of these bits fulfil."""
    ends, at = [attribute], 0
    while codes:
        ends.append(at + (codes & -codes).bit_length() - 1)
        codes >>= ends[-1] - at
        length = (~codes & codes + 1).bit_length() - 1  # of the run that begins with the lowest bit
        ends.append(ends[-1] + length - 1)
        codes >>= length
        at = ends[-1] + 1
    return tuple(ends)
