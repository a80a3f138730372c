"""Rules drawn from a public seed, on the attributes whose shapes say most: no patient is looked at.

The second stage of a private fit (docs/methods.md, 2.11): two or three conditions at the cutoffs, drawn by hashing,
from noisy tables that are paid for already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from concilium.protocol.attributes import MISSING
from concilium.rulefit.rules import Rule, write_rule
from concilium.rulefit.shapes import Shape

BEST = 10
# A condition that nearly everybody or hardly anybody fulfils, and a rule that hardly anybody does, separate nobody.
LEAST_SHARE = 0.15
LEAST_SUPPORT = 0.08
MOST_TRIES = 50


def draw_rules(shapes: Sequence[Shape], count: int, seed: int) -> list[Rule]:
    """At most so many different rules, in canonical order; attributes stand a chance as large as their deviation."""
    conditions = {index: list_conditions(each) for index, each in enumerate(shapes)}
    able = [index for index in conditions if conditions[index] and shapes[index].deviation > 0]
    best = sorted(able, key=lambda index: (-shapes[index].deviation, index))[:BEST]
    sizes = [each.attribute.size for each in shapes]
    rules: set[Rule] = set()
    for turn in range(count * MOST_TRIES):
        if len(rules) >= count or len(best) < 2:
            break
        wanted = min(len(best), 2 + (hash_uniform(seed, turn, "length") < 0.3))
        left, allowed, support = list(best), {}, 1.0
        for place in range(wanted):
            weights = np.cumsum([shapes[index].deviation for index in left])
            drawn = hash_uniform(seed, turn, f"attribute {place}") * weights[-1]
            index = left.pop(int(np.searchsorted(weights, drawn)))
            listed = conditions[index]
            codes = listed[int(hash_uniform(seed, turn, f"condition {place}") * len(listed))]
            allowed[index] = codes
            support *= float(shapes[index].shares[sorted(codes)].sum())
        if support >= LEAST_SUPPORT:
            rules.add(write_rule(allowed, sizes))
    return sorted(rules)


def list_conditions(shape: Shape) -> list[set[int]]:
    """The codes of every condition on an attribute that separates a fair share of patients: on one side of a cutoff,
    one value or any other; with the missing ones and about them only where they are many."""
    size = shape.attribute.size
    present = set(range(size)) - {MISSING}
    if shape.attribute.numeric:
        one_side = [set(range(1, code)) for code in range(2, size)]
    else:
        one_side = [{code} for code in present]
    conditions = [codes for side in one_side for codes in (side, present - side)]
    if shape.shares[MISSING] >= LEAST_SHARE:
        conditions += [*(codes | {MISSING} for codes in conditions), {MISSING}, present]
    shares = [float(shape.shares[sorted(codes)].sum()) for codes in conditions]
    return [c for c, share in zip(conditions, shares, strict=True) if LEAST_SHARE <= share <= 1 - LEAST_SHARE]


def hash_uniform(seed: int, turn: int, what: str) -> float:
    """A number from 0 to 1 that follows from the seed."""
    digest = hashlib.sha256(f"{seed}\n{turn}\n{what}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
