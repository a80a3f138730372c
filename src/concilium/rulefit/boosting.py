"""Rules of one site: boosted trees that split only at shared cutoffs, every node a rule (docs/methods.md, 2.3).

LightGBM sees codes, not values, so that no cut is finer than the shared cutoffs; the number of leaves of each tree is
2 + floor(Exponential) with mean `leaves` - 2, drawn by hashing, since everything here follows from the question. A node
with fewer than `support` patients is never made, nor is one that leaves out fewer: a rule is never about three people.
That is a courtesy, not privacy: the rules still depend on every patient.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.federation.attributes import MISSING, Attribute
from concilium.federation.work import CALL, Workload
from concilium.rulefit.nodes import list_rules
from concilium.rulefit.packed import BLOCK, list_conditions, pack_rules
from concilium.rulefit.rules import Rule

# What LightGBM is told whatever the study says.
SETTINGS: dict[str, Any] = {
    "min_data_in_bin": 1,
    "min_sum_hessian_in_leaf": 0.0,
    "max_cat_to_onehot": 4,
    "cat_smooth": 1.0,
    "cat_l2": 0.0,
    "bagging_fraction": 1.0,
    "bagging_freq": 0,
    "feature_pre_filter": False,
    "enable_bundle": False,
    "deterministic": True,
    "force_col_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


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
    settings = {
        **SETTINGS,
        "objective": "binary" if binary else "regression",
        "learning_rate": shrinkage,
        "max_bin": max(attribute.size for attribute in attributes) + 1,
        "min_data_in_leaf": support,
        "min_data_per_group": support,
        "seed": seed % 2**31,
    }
    # Where too few patients would be left to make two groups of, every tree learns from all of them.
    if sample < 1 and sample * patients >= 2 * support:
        settings |= {"bagging_fraction": sample, "bagging_freq": 1}
    sizes = count_all_leaves(leaves, seed, trees)
    table = np.empty((patients, len(codes)))
    for column, (own, attribute) in enumerate(zip(codes, attributes, strict=True)):
        table[:, column] = own
        if attribute.numeric:
            table[own == MISSING, column] = np.nan
    booster = _train(table, outcome, attributes, settings, sizes)
    rules = list_rules(booster.model_to_string(num_iteration=trees), [a.size for a in attributes])
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


def _train(
    table: NDArray[np.float64],
    outcome: NDArray[np.float64],
    attributes: Sequence[Attribute],
    settings: dict[str, Any],
    sizes: Sequence[int],
) -> Any:
    """Trees with so many leaves each; of numbers in the table what is missing is NaN."""
    import lightgbm

    categories = [index for index, attribute in enumerate(attributes) if not attribute.numeric]
    data = lightgbm.Dataset(table, outcome, params=settings, categorical_feature=categories)
    # What `lightgbm.train` does, without its callbacks and without writing the model out and reading it in again.
    booster = lightgbm.Booster({**settings, "num_leaves": sizes[0]}, data)
    before = sizes[0]
    for size in sizes:
        if size != before:
            booster.reset_parameter({"num_leaves": size})
            before = size
        booster.update()
    return booster


def count_patients(
    rules: Sequence[Rule], codes: Sequence[NDArray[np.unsignedinteger]], attributes: Sequence[Attribute]
) -> NDArray[np.intp]:
    """How many patients fulfil each rule."""
    conditions = list_conditions(rules, [attribute.size for attribute in attributes])
    bits = pack_rules(conditions, codes.__getitem__, len(codes[0]))
    counts: NDArray[np.intp] = np.bitwise_count(bits).sum(axis=0, dtype=np.intp)
    return counts
