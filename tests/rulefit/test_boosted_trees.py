"""Boosted trees are LightGBM's, split by split, over tables of any kind; and go on where LightGBM fails."""

from __future__ import annotations

from typing import NamedTuple

import lightgbm
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from concilium.rulefit.boosted_trees import GAPPED, NUMBER, ONE, SOME, _find_bins, grow_trees

ALL = 1.0
HALF = 0.5


class Patients(NamedTuple):
    """Codes of patients (0: missing), which of them are numbers, and an outcome."""

    codes: list[np.ndarray]
    numeric: list[bool]
    sizes: list[int]
    outcome: np.ndarray
    binary: bool


def draw_patients(seed, patients, width, *, binary=True):
    """Numbers and categories with few or many codes, common or rare, with or without missing values."""
    draws = np.random.default_rng(seed)
    codes, numeric, sizes, score = [], [], [], np.zeros(patients)
    for _ in range(width):
        size = int(draws.choice([3, 4, 6, 10, 22, 61]))
        shares = draws.dirichlet(np.full(size - 1, draws.choice([0.3, 1.0, 5.0])))
        own = draws.choice(np.arange(1, size), p=shares, size=patients)
        if draws.random() < 0.4:
            own = np.where(draws.random(patients) < draws.choice([0.01, 0.2, 0.8]), 0, own)
        codes.append(own.astype(np.uint8))
        numeric.append(bool(draws.random() < 0.6))
        sizes.append(size)
        score += draws.normal() * (own > draws.integers(0, size))
    if binary:
        outcome = (draws.random(patients) < 1 / (1 + np.exp(-score))).astype(float)
    else:
        outcome = score + draws.normal(size=patients)
    return Patients(codes, numeric, sizes, outcome, binary)


def grow_ours(drawn, sizes, shrinkage, support, sample, seed):
    """Each tree as its splits: attribute, the codes that go left (of those that occur), and where both sides lead."""
    trees = grow_trees(
        drawn.codes,
        drawn.numeric,
        drawn.outcome,
        binary=drawn.binary,
        sizes=sizes,
        shrinkage=shrinkage,
        support=support,
        sample=sample,
        seed=seed,
    )
    splits, told = trees.splits, []
    for begin, end in zip(trees.ends[:-1], trees.ends[1:], strict=True):
        tree = []
        for split in range(begin, end):
            attribute = int(splits.attributes[split])
            codes, kind = trees.codes[attribute], trees.layout.kinds[attribute]
            if kind in (NUMBER, GAPPED):
                last = len(codes) - (kind == GAPPED)
                left = set(codes[1:last].tolist()[: splits.at[split]])
                left |= {0} if kind == GAPPED and splits.missing_left[split] else set()
            else:
                left = {int(codes[place]) for place in splits.together[split] if place >= 0}
            leads = [int(side[split]) - int(begin) if side[split] >= 0 else None for side in splits[3:5]]
            tree.append((attribute, frozenset(left), *leads))
        told.append(tree)
    return told


def grow_theirs(drawn, sizes, shrinkage, support, sample, seed):
    """The same of LightGBM, from its JSON; trees that it could not split at all have no splits."""
    parameters = {
        "objective": "binary" if drawn.binary else "regression",
        "learning_rate": shrinkage,
        "max_bin": max(drawn.sizes) + 1,
        "min_data_in_leaf": support,
        "min_data_per_group": support,
        "seed": seed % 2**31,
        "min_data_in_bin": 1,
        "min_sum_hessian_in_leaf": 0.0,
        "max_cat_to_onehot": 4,
        "cat_smooth": 1.0,
        "cat_l2": 0.0,
        "feature_pre_filter": False,
        "enable_bundle": False,
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": 1,
        "verbosity": -1,
        "num_leaves": sizes[0],
    }
    if sample < ALL:
        parameters |= {"bagging_fraction": sample, "bagging_freq": 1}
    table = np.column_stack(drawn.codes).astype(float)
    for column, is_number in enumerate(drawn.numeric):
        if is_number:
            table[table[:, column] == 0, column] = np.nan
    categories = [column for column, is_number in enumerate(drawn.numeric) if not is_number]
    data = lightgbm.Dataset(table, drawn.outcome, params=parameters, categorical_feature=categories)
    booster = lightgbm.Booster(parameters, data)
    for size in sizes:
        booster.reset_parameter({"num_leaves": size})
        booster.update()
    present = [set(np.unique(own).tolist()) for own in drawn.codes]
    return [tell_tree(tree["tree_structure"], present) for tree in booster.dump_model()["tree_info"]]


def tell_tree(root, present):
    splits, waiting = {}, [root]
    while waiting:
        node = waiting.pop()
        if "split_index" not in node:
            continue
        attribute = node["split_feature"]
        if node["decision_type"] == "==":
            left = {int(code) for code in node["threshold"].split("||")}
        else:
            left = {code for code in present[attribute] - {0} if code <= node["threshold"]}
            left |= {0} if node["missing_type"] == "NaN" and node["default_left"] else set()
        sides = [node["left_child"], node["right_child"]]
        splits[node["split_index"]] = (
            attribute,
            frozenset(left),
            *(side.get("split_index") for side in sides),
        )
        waiting += sides
    return [splits[place] for place in sorted(splits)]


def without_empty(trees):
    return [tree for tree in trees if tree]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    patients=st.sampled_from([60, 200, 500, 1500, 2500]),
    width=st.integers(1, 8),
    binary=st.booleans(),
    sizes=st.lists(st.integers(2, 13), min_size=1, max_size=25),
    shrinkage=st.sampled_from([0.01, 0.1, 0.3]),
    support=st.sampled_from([3, 5, 10, 20]),
    sample=st.sampled_from([ALL, HALF]),
    own_seed=st.integers(0, 2**62),
)
def test_trees_are_those_of_lightgbm(
    seed, patients, width, binary, sizes, shrinkage, support, sample, own_seed
):
    drawn = draw_patients(seed, patients, width, binary=binary)
    assume(drawn.outcome.min() < drawn.outcome.max())
    asked = (sizes, shrinkage, support, sample if patients * sample >= 2 * support else ALL, own_seed)
    try:
        theirs = grow_theirs(drawn, *asked)
    except lightgbm.basic.LightGBMError:  # below
        assume(False)
    assert without_empty(grow_ours(drawn, *asked)) == without_empty(theirs)


def test_trees_of_the_paper_s_kind_are_those_of_lightgbm():
    drawn = draw_patients(11, 400, 6)
    sizes = [2 + int(extra) for extra in np.random.default_rng(3).exponential(2, size=333)]
    ours = grow_ours(drawn, sizes, 0.01, 10, HALF, 77)
    assert ours == grow_theirs(drawn, sizes, 0.01, 10, HALF, 77)
    assert [len(tree) + 1 for tree in ours[:5]] == sizes[:5]
    assert len({attribute for tree in ours for attribute, *_ in tree}) > 3


def test_a_wide_attribute_is_cut_as_lightgbm_cuts_it():
    """More than 256 bins take wider numbers."""
    draws = np.random.default_rng(5)
    codes = [
        draws.integers(1, 700, size=3000).astype(np.uint16),
        draws.integers(0, 9, size=3000).astype(np.uint16),
    ]
    outcome = (draws.random(3000) < 0.2 + 0.5 * (codes[0] > 321) * (codes[1] > 3)).astype(float)
    drawn = Patients(codes, [True, False], [700, 9], outcome, True)
    ours = grow_ours(drawn, [5] * 20, 0.1, 10, HALF, 4)
    assert ours == grow_theirs(drawn, [5] * 20, 0.1, 10, HALF, 4)
    assert {attribute for tree in ours for attribute, *_ in tree} == {0, 1}


def find_failing():
    """The first table over which LightGBM takes a cut that has nobody on one side, and fails."""
    for seed in range(400):
        drawn = draw_patients(seed, 500, 7)
        sizes = np.random.default_rng(seed).integers(2, 14, size=40).tolist()
        try:
            grow_theirs(drawn, sizes, 0.3, 3, HALF, seed)
        except lightgbm.basic.LightGBMError:
            return drawn, sizes, seed
    pytest.fail("LightGBM has grown all trees")


def test_where_curvature_misleads_a_leaf_stays_whole_and_growing_goes_on():
    drawn, sizes, seed = find_failing()
    trees = grow_ours(drawn, sizes, 0.3, 3, HALF, seed)
    assert len(trees) == 40
    assert all(len(tree) < size for tree, size in zip(trees, sizes, strict=True))
    assert all(trees[-5:])


def test_bins_are_for_codes_that_occur_and_the_commonest_come_first():
    number = np.array([3, 7, 7, 1, 0, 7], dtype=np.uint8)
    known = np.array([3, 7, 7, 1, 1, 7], dtype=np.uint8)
    few = np.array([1, 2, 2, 2, 1, 1], dtype=np.uint8)
    many = np.array([5, 2, 4, 2, 0, 1], dtype=np.uint8)
    bins, layout, codes = _find_bins([number, known, few, many], [True, True, False, False])
    assert [one.tolist() for one in codes] == [
        [-1, 1, 3, 7, 0],
        [-1, 1, 3, 7],
        [-1, 1, 2],
        [-1, 2, 0, 1, 4, 5],
    ]
    assert layout.kinds.tolist() == [GAPPED, NUMBER, ONE, SOME]
    assert bins[:, 0].tolist() == [2, 3, 3, 1, 4, 3]
    assert bins[:, 3].tolist() == [5, 1, 4, 1, 2, 3]
    assert layout.starts.tolist() == [0, 5, 9, 12, 18]


def test_a_category_of_less_than_one_in_a_hundred_is_put_to_the_others():
    own = np.array([1] * 150 + [2] * 149 + [3], dtype=np.uint8)
    bins, _, codes = _find_bins([own], [False])
    assert codes[0].tolist() == [-1, 1, 2]
    assert bins[-1, 0] == 0
