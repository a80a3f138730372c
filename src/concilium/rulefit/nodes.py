"""The nodes of boosted trees as rules: LightGBM's trees are read from the text in which it saves a model.

A set of codes is the bits of a number, and what a node says of all attributes is one number, each attribute with bits
of its own: going down a branch is one bitwise and. Nodes that say the same are one before a rule is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from concilium.federation.attributes import MISSING
from concilium.rulefit.rules import Condition, Rule

# How LightGBM writes a split's `decision_type`: a bit each, and two bits for what counts as missing (2: NaN).
CATEGORICAL, DEFAULT_LEFT, MISSING_TYPE, NAN = 1, 2, 12, 8
WORD = 32  # bits in a word of LightGBM's sets of categories

SPLITS = re.compile(
    r"\nnum_cat=(.*)\n(?:.*\n)*?split_feature=(.*)\n(?:.*\n)*?threshold=(.*)\n(?:.*\n)*?decision_type=(.*)\n"
    r"(?:.*\n)*?left_child=(.*)\n(?:.*\n)*?right_child=(.*)\n"
)
SETS = re.compile(r"\ncat_boundaries=(.*)\n(?:.*\n)*?cat_threshold=(.*)\n")


class BoostedTree(NamedTuple):
    """The splits of a tree, parents before children: what each asks, and where it leads (below 0: to a leaf). Of
    categories a threshold is the place in `sets` of those that go left, a bit each."""

    attributes: list[int]
    thresholds: list[str]
    decisions: list[int]
    left: list[int]
    right: list[int]
    sets: list[int]


def read_trees(model: str) -> Iterator[BoostedTree]:
    """The trees of a saved model."""
    sets = SETS.finditer(model)
    for categorical, attributes, thresholds, decisions, left, right in SPLITS.findall(model):
        yield BoostedTree(
            list(map(int, attributes.split())),
            thresholds.split(),
            list(map(int, decisions.split())),
            list(map(int, left.split())),
            list(map(int, right.split())),
            [] if categorical == "0" else _read_sets(*next(sets).groups()),
        )


def _read_sets(boundaries: str, words: str) -> list[int]:
    numbers = [int(word) for word in words.split()]
    return [
        sum(word << WORD * place for place, word in enumerate(numbers[start:end]))
        for start, end in pairwise(map(int, boundaries.split()))
    ]


def list_rules(model: str, sizes: Sequence[int]) -> list[Rule]:
    """The different rules of all nodes but the roots, in canonical order, but none that nobody could fulfil; `sizes`
    says how many codes each attribute has."""
    starts = [0, *accumulate(sizes)]
    everything = (1 << starts[-1]) - 1
    sides_of: dict[tuple[int, str, int], tuple[int, int]] = {}
    distinct: set[int] = set()
    for tree in read_trees(model):
        nodes = [everything] * len(tree.attributes)
        splits = zip(tree.attributes, tree.thresholds, tree.decisions, strict=True)
        for node, split in enumerate(splits):
            sides = sides_of.get(split)
            if sides is None:
                attribute, threshold, decision = split
                categorical = decision & CATEGORICAL
                at = tree.sets[int(threshold)] if categorical else float(threshold)
                own, start = (1 << sizes[attribute]) - 1, starts[attribute]
                others = everything ^ own << start
                left, right = _split(at, decision, own)
                sides = left << start | others, right << start | others
                if not categorical:  # a set has its place in this tree only
                    sides_of[split] = sides
            here, (left, right) = nodes[node], sides
            left &= here
            right &= here
            distinct.add(left)
            distinct.add(right)
            if tree.left[node] >= 0:
                nodes[tree.left[node]] = left
            if tree.right[node] >= 0:
                nodes[tree.right[node]] = right
    return _write_rules(distinct - {everything}, sizes, starts)


def _split(at: float, decision: int, everything: int) -> tuple[int, int]:
    """The codes that go left and those that go right at a node, which asks for a set of categories or a threshold."""
    if decision & CATEGORICAL:
        return int(at) & everything, everything & ~int(at)
    missing = 1 << MISSING
    # A split of the known from the missing has a threshold far beyond all codes.
    highest = math.floor(min(at, everything.bit_length()))
    left = (1 << (highest + 1)) - 1 & everything & ~missing
    right = everything & ~left & ~missing
    # Without missing values at this site it has not learned where they belong: they fulfil neither side.
    if decision & MISSING_TYPE == NAN:
        return (left | missing, right) if decision & DEFAULT_LEFT else (left, right | missing)
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
