"""LightGBM's saved text read tree by tree: the same splits as its JSON tells, and rules about what reaches a node."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.rulefit.nodes import (
    CATEGORICAL,
    DEFAULT_LEFT,
    MISSING_TYPE,
    NAN,
    list_rules,
    read_trees,
    write_bits,
)
from concilium.rulefit.rules import write_condition, write_rule

SIZES = [12, 9, 120, 4]  # two numbers; categories that need four words of 32; few categories


def grow(seed, *, trees=30, missing=True, signal=True):
    """A model over codes, with numbers, categories of many values, and missing values of numbers."""
    draws = np.random.default_rng(seed)
    codes = np.column_stack([draws.integers(0 if missing else 1, size, size=1500) for size in SIZES])
    score = 1.0 * (codes[:, 0] > 6) - (codes[:, 0] == 0) + (codes[:, 2] % 3 == 1) * 1.5 + (codes[:, 3] == 2)
    y = (draws.random(1500) < 1 / (1 + np.exp(1 - score))).astype(float) if signal else np.zeros(1500)
    table = codes.astype(float)
    table[:, :2][table[:, :2] == 0] = np.nan
    settings = {
        "objective": "binary" if signal else "regression",
        "num_leaves": 7,
        "min_data_in_leaf": 10,
        "min_data_per_group": 10,
        "max_cat_to_onehot": 4,
        "cat_smooth": 1.0,
        "cat_l2": 0.0,
        "max_bin": 200,
        "min_data_in_bin": 1,
        "num_threads": 1,
        "verbosity": -1,
        "seed": seed,
    }
    data = lightgbm.Dataset(table, y, params=settings, categorical_feature=[2, 3])
    return lightgbm.train(settings, data, num_boost_round=trees), codes


def list_nodes(node, allowed=None):
    """What reaches each node but the root, as sets of codes, read from LightGBM's JSON one node at a time."""
    if "split_feature" not in node:
        return
    attribute = node["split_feature"]
    allowed = allowed or {}
    before = allowed.get(attribute, set(range(SIZES[attribute])))
    if node["decision_type"] == "==":
        left = {int(code) for code in node["threshold"].split("||")}
        right = set(range(SIZES[attribute])) - left
    else:
        known = range(1, SIZES[attribute])
        left = {code for code in known if code <= node["threshold"]}
        right = {code for code in known if code > node["threshold"]}
        if node["missing_type"] == "NaN":
            (left if node["default_left"] else right).add(0)
    for child, side in ((node["left_child"], left), (node["right_child"], right)):
        here = {**allowed, attribute: before & side}
        yield here
        yield from list_nodes(child, here)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [True, False])
def test_rules_are_those_of_the_nodes_in_the_json(seed, missing):
    booster, _ = grow(seed, missing=missing)
    wanted = {
        write_rule(here, SIZES)
        for tree in booster.dump_model()["tree_info"]
        for here in list_nodes(tree["tree_structure"])
        if all(here.values())
    }
    found = list_rules(booster.model_to_string(), SIZES)
    assert found == sorted(wanted - {()})
    assert {condition[0] for rule in found for condition in rule} >= {0, 2}


def test_splits_are_read_as_the_json_tells_them():
    booster, _ = grow(5)
    read = list(read_trees(booster.model_to_string()))
    told = booster.dump_model()["tree_info"]
    assert len(read) == len(told) == 30
    seen = set()
    for tree, wanted in zip(read, told, strict=True):
        assert len(tree.attributes) == wanted["num_leaves"] - 1
        waiting = [wanted["tree_structure"]]
        while waiting:
            node = waiting.pop()
            if "split_index" not in node:
                continue
            place = node["split_index"]
            assert tree.attributes[place] == node["split_feature"]
            decision = tree.decisions[place]
            assert bool(decision & DEFAULT_LEFT) == node["default_left"]
            assert (decision & MISSING_TYPE == NAN) == (node["missing_type"] == "NaN")
            seen.add((node["decision_type"], node["missing_type"], node["default_left"]))
            if decision & CATEGORICAL:
                bits = tree.sets[int(tree.thresholds[place])]
                named = {int(code) for code in node["threshold"].split("||")}
                assert {code for code in range(SIZES[2]) if bits >> code & 1} == named
            else:
                assert float(tree.thresholds[place]) == pytest.approx(node["threshold"], rel=1e-12)
            for child, to in (("left_child", tree.left), ("right_child", tree.right)):
                split = node[child].get("split_index")
                assert to[place] == split if split is not None else to[place] < 0
                waiting.append(node[child])
    assert {kind for kind, _, _ in seen} == {"<=", "=="}
    assert {("<=", "NaN", True), ("<=", "NaN", False)} <= seen


def test_a_model_that_never_splits_has_no_rules():
    booster, _ = grow(1, signal=False, trees=3)
    assert all(tree["num_leaves"] == 1 for tree in booster.dump_model()["tree_info"])
    assert list_rules(booster.model_to_string(), SIZES) == []
    assert all(not tree.attributes for tree in read_trees(booster.model_to_string()))


def test_what_nobody_could_fulfil_is_no_rule():
    """Below `x <= 3` a split at 7 has nobody on its right."""
    model = "\n".join(
        (
            "tree",
            "Tree=0",
            "num_leaves=3",
            "num_cat=0",
            "split_feature=0 0",
            "split_gain=2 1",
            "threshold=3.5 7.5",
            "decision_type=2 2",
            "left_child=1 -1",
            "right_child=-2 -3",
            "end of trees",
        )
    )
    assert list_rules(model, [9]) == [((0, 1, 3),), ((0, 4, 8),)]


@given(st.integers(1, 2**70 - 1))
def test_bits_are_written_as_the_codes_that_they_are(bits):
    codes = [code for code in range(bits.bit_length()) if bits >> code & 1]
    assert write_bits(3, bits) == write_condition(3, codes)
