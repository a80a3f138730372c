"""Nodes of boosted trees as rules: about exactly what reaches them, each once, none that nobody could fulfil."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.rulefit.boosted_trees import GAPPED, NUMBER, AttributeBins, BoostedTrees, Splits, grow_trees
from concilium.rulefit.generation import _list_rules, _write_bits
from concilium.rulefit.terms import _write_condition, write_rule

SIZES = [12, 9, 120, 4]  # two numbers; categories; few categories
NUMERIC = [True, True, False, False]


def grow(seed, *, missing=True):
    draws = np.random.default_rng(seed)
    codes = [draws.integers(0 if missing else 1, size, size=1500) for size in SIZES]
    codes[1][codes[1] == 5] = 2  # a code that does not occur here
    score = (
        1.0 * (codes[0] > 6) - (codes[0] == 0) + (codes[2] % 3 == 1) * 1.5 + (codes[3] == 2) + (codes[1] > 3)
    )
    y = (draws.random(1500) < 1 / (1 + np.exp(1 - score))).astype(float)
    return grow_trees(
        [own.astype(np.uint8) for own in codes],
        NUMERIC,
        y,
        binary=True,
        sizes=[7] * 30,
        shrinkage=0.1,
        support=10,
        sample=1.0,
        seed=seed,
    )


def find_sides(trees, split):
    """The codes of each side, one by one."""
    attribute, at = int(trees.splits.attributes[split]), int(trees.splits.at[split])
    everything, bins = set(range(SIZES[attribute])), trees.codes[attribute].tolist()
    if not NUMERIC[attribute]:
        left = {bins[place] for place in trees.splits.together[split].tolist() if place >= 0}
        return left, everything - left
    known = sorted(code for code in bins if code > 0)
    if at == 0:
        left = set()
    elif at == len(known):
        left = everything - {0}
    else:
        left = {code for code in everything - {0} if code <= (known[at - 1] + known[at]) / 2}
    right = everything - {0} - left
    if 0 in bins:
        (left if trees.splits.missing_left[split] else right).add(0)
    return left, right


def list_nodes(trees):
    """What reaches each node but the roots, as sets of codes."""
    roots = [int(begin) for begin, end in zip(trees.ends[:-1], trees.ends[1:], strict=True) if end > begin]
    waiting = [(root, {}) for root in roots]
    while waiting:
        split, allowed = waiting.pop()
        attribute = int(trees.splits.attributes[split])
        before = allowed.get(attribute, set(range(SIZES[attribute])))
        leads = (int(trees.splits.left[split]), int(trees.splits.right[split]))
        for side, lead in zip(find_sides(trees, split), leads, strict=True):
            here = {**allowed, attribute: before & side}
            yield here
            if lead >= 0:
                waiting.append((lead, here))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [True, False])
def test_rules_are_those_of_the_nodes(seed, missing):
    trees = grow(seed, missing=missing)
    nodes = list(list_nodes(trees))
    assert len(nodes) == 2 * int(trees.ends[-1])
    wanted = {write_rule(here, SIZES) for here in nodes if all(here.values())}
    found = _list_rules(trees, SIZES)
    assert found == sorted(wanted - {()})
    assert {condition[0] for rule in found for condition in rule} == {0, 1, 2, 3}


def test_trees_that_never_split_have_no_rules():
    trees = grow_trees(
        [np.full(100, 3, np.uint8)],
        [True],
        np.arange(100) % 2.0,
        binary=True,
        sizes=[4] * 3,
        shrinkage=0.1,
        support=5,
        sample=0.5,
        seed=0,
    )
    assert trees.ends.tolist() == [0, 0, 0, 0]
    assert _list_rules(trees, [9]) == []


@pytest.mark.parametrize(("kind", "with_missing"), [(NUMBER, False), (GAPPED, True)])
def test_what_nobody_could_fulfil_is_no_rule(kind, with_missing):
    """Below `x <= 3` a split at 7 has nobody on its right, but where missing values went left and then right."""
    codes = [-1, *range(1, 9)] + ([0] if with_missing else [])
    splits = Splits(
        attributes=np.array([0, 0]),
        at=np.array([3, 7]),
        missing_left=np.array([1, 0]),
        left=np.array([1, -1]),
        right=np.array([-1, -1]),
        together=np.empty((2, 0), dtype=np.int32),
    )
    layout = AttributeBins(np.array([0, len(codes)]), np.array([kind]), np.array([0]))
    bins = np.empty((0, 1), np.uint8)
    found = _list_rules(BoostedTrees(splits, np.array([0, 2]), bins, layout, [np.array(codes)]), [9])
    if with_missing:
        assert found == [((0, 0, 0),), ((0, 0, 3),), ((0, 1, 3),), ((0, 4, 8),)]
    else:
        assert found == [((0, 1, 3),), ((0, 4, 8),)]


@given(st.integers(1, 2**70 - 1))
def test_bits_are_written_as_the_codes_that_they_are(bits):
    codes = [code for code in range(bits.bit_length()) if bits >> code & 1]
    assert _write_bits(3, bits) == _write_condition(3, codes)
