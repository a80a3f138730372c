"""Rules of one site: boosted trees that split only at shared cutoffs, every node a rule (docs/methods.md, 2.3).

Trees see codes, not values (boosted_trees.py), so that no cut is finer than the shared cutoffs; the number of leaves of
each is 2 + floor(Exponential) with mean `leaves` - 2, drawn by hashing, since all of it follows from the question. No
rule is told that fewer than `support` patients fulfil, or fail: a rule is never about three people. That is a courtesy,
not privacy: the rules still depend on every patient.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.protocol.work import CALL, Workload
from concilium.rulefit.boosted_trees import grow_trees
from concilium.rulefit.nodes import list_rules
from concilium.rulefit.packed import BLOCK, list_conditions, pack_rules
from concilium.rulefit.rules import Rule


def boost(
    codes: Sequence[NDArray[np.unsignedinteger]],
    outcome: NDArray[np.float64],
    attributes: Sequence[Attribute],
    *,
    binary: bool,
    trees: int,
    leaves: float,
    shrinkage: float,
    support: int,
    seed: int,
    sample: float = 0.5,
) -> list[Rule]:
    """The different rules of a site's boosted trees, in canonical order; none where there is nothing to learn."""
    patients = len(outcome)
    if patients < 2 * support or outcome.min() == outcome.max() or not attributes:
        return []
    # Where too few patients would be left to make two groups of, every tree learns from all of them.
    grown = grow_trees(
        codes,
        [attribute.numeric for attribute in attributes],
        outcome,
        binary=binary,
        sizes=count_all_leaves(leaves, seed, trees),
        shrinkage=shrinkage,
        support=support,
        sample=sample if sample * patients >= 2 * support else 1.0,
        seed=seed,
    )
    rules = list_rules(grown, [attribute.size for attribute in attributes])
    supports = count_patients(rules, codes, attributes)
    return [
        rule for rule, count in zip(rules, supports, strict=True) if support <= count <= patients - support
    ]


def estimate_boosting(attributes: Sequence[Attribute], patients: int, trees: int, leaves: float) -> Workload:
    """What boosting takes, and reading the rules off the trees."""
    cells = sum(attribute.size + 1 for attribute in attributes)
    # The number of leaves is drawn; 2^-64 is the least that its uniform number can be.
    most_leaves = min(2 + math.ceil(45 * (leaves - 2)), patients + 2)
    depth = math.ceil(leaves).bit_length() + 1
    rules = 2 * trees * math.ceil(leaves)
    tree = (depth * len(attributes) + 40) * patients + math.ceil(leaves) * (20 * cells + 4 * CALL)
    return Workload(
        trees * tree + (len(attributes) * 10 + rules * 2) * patients + rules * (2 * CALL + cells),
        (14 * len(attributes) + BLOCK + BLOCK // 8 + rules // 4 + 128) * patients
        + 32 * cells * most_leaves
        + rules * (cells // 4 + 2_000),
    )


@functools.lru_cache(maxsize=8)
def count_all_leaves(mean: float, seed: int, trees: int) -> tuple[int, ...]:
    """How many leaves each of so many trees has: the same at all sites that are asked the same."""
    return tuple(count_leaves(mean, seed, tree) for tree in range(trees))


def count_leaves(mean: float, seed: int, tree: int) -> int:
    """2 + floor(w), w exponential with mean `mean` - 2, the `tree`-th draw of this seed."""
    if mean <= 2:
        return 2
    digest = hashlib.sha256(f"{seed}\n{tree}".encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") + 0.5) / 2**64
    return 2 + math.floor(-math.log(uniform) * (mean - 2))


def count_patients(
    rules: Sequence[Rule], codes: Sequence[NDArray[np.unsignedinteger]], attributes: Sequence[Attribute]
) -> NDArray[np.intp]:
    """How many patients fulfil each rule."""
    conditions = list_conditions(rules, [attribute.size for attribute in attributes])
    bits = pack_rules(conditions, codes.__getitem__, len(codes[0]))
    counts: NDArray[np.intp] = np.bitwise_count(bits).sum(axis=0, dtype=np.intp)
    return counts
