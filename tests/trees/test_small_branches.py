"""Rare values cost a tree nothing: they share a branch or join the commonest, as the oracle says, at every node."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tree_equals_pooled import house_of, nested, shared

import concilium as cc
from concilium.trees.grouping import _join_bins, _join_values
from pooled_id3 import c45, id3, join_neighbours, join_rare, name_group
from strategies import federations

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def as_parts(leaders, names):
    parts = {}
    for name, leader in zip(names, leaders.tolist(), strict=True):
        parts.setdefault(leader, []).append(name)
    assert all(leader == min(map(names.index, part)) for leader, part in parts.items())
    return {name_group(part) for part in parts.values()}


@given(COUNTS, st.booleans(), st.integers(1, 12))
@settings(max_examples=400)
def test_values_are_joined_as_the_oracle_joins_them(counts, missing, min_leaf):
    names = [*range(len(counts) - missing), *([None] if missing else [])]
    groups = {name: [name] * count for name, count in zip(names, counts, strict=True)}
    found = as_parts(_join_values(np.array(counts), min_leaf), names)
    assert found == set(join_rare(groups, min_leaf))


@given(COUNTS, st.booleans(), st.integers(1, 12))
@settings(max_examples=400)
def test_bins_are_joined_as_the_oracle_joins_them(counts, missing, min_leaf):
    names = [*range(len(counts) - missing), *([None] if missing else [])]
    groups = {name: [name] * count for name, count in zip(names, counts, strict=True)}
    found = as_parts(_join_bins(np.array(counts), missing, min_leaf), names)
    assert found == set(join_neighbours(groups, min_leaf))
    sizes = [sum(len(groups[v]) for v in (p if isinstance(p, frozenset) else [p])) for p in found]
    assert min(sizes) >= min_leaf or len(found) == 1
    for part in found:  # a range, whatever else is missing
        bins = sorted(
            value for value in (part if isinstance(part, frozenset) else [part]) if value is not None
        )
        assert bins == list(range(bins[0], bins[-1] + 1)) if bins else True


AGES = st.one_of(st.none(), st.floats(0, 100).map(lambda age: age + 0.25))


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"age": AGES, "sex": st.sampled_from(["f", "m", "x", None]), "y": st.sampled_from("abc")}
        ),
        min_size=8,
        max_size=60,
    ),
    min_leaf=st.integers(1, 6),
    criterion=st.sampled_from(["entropy", "gain-ratio"]),
)
@settings(max_examples=120)
def test_trees_with_bins_equal_the_pooled_one(rows, min_leaf, criterion):
    edges = [20, 40, 50, 60, 80]
    sites = {f"s{i}": rows[i::2] for i in range(2)}
    schema = {"age": "number", "sex": "code", "y": "code"}
    house = house_of(sites, read=lambda part: cc.Records.from_rows(part, schema=schema))
    tree = cc.DecisionTree(
        "y", growth="id3", bins={"age": edges}, min_leaf=min_leaf, criterion=criterion
    ).fit(house)
    binned = [
        {**row, "age": None if row["age"] is None else int(np.searchsorted(edges, row["age"], side="right"))}
        for row in rows
    ]
    grow = id3 if criterion == "entropy" else c45
    assert nested(tree.body) == grow(binned, {"age", "sex"}, "y", min_leaf=min_leaf, lines={"age"})


@given(sites=federations(most_values=6), min_leaf=st.integers(2, 6))
@settings(max_examples=60)
def test_no_leaf_is_smaller_and_masked_trees_are_the_same(sites, min_leaf):
    there = {name: rows for name, rows in sites.items() if len(rows) >= 4}
    if len(there) < 3:
        return
    tree = cc.DecisionTree("y", growth="id3", min_leaf=min_leaf).fit(house_of(there))
    leaves = [sum(node.counts) for node in tree.body.nodes[1:]]
    assert min(leaves, default=min_leaf) >= min_leaf
    assert (
        cc.DecisionTree("y", growth="id3", min_leaf=min_leaf, release="masked").fit(house_of(there)).body
        == tree.body
    )
    pooled = [row for rows in there.values() for row in rows]
    assert nested(tree.body) == id3(pooled, shared(there), "y", min_leaf=min_leaf)


def make_rows(count=3000, seed=1):
    """Whoever has the sign is ill, but for one in twenty; of one patient it is not known."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        sign = draw.choice(["yes", "no"])
        ill = sign if draw.random() < 0.95 else draw.choice(["yes", "no"])
        rows.append({"sign": sign, "ward": draw.choice("abc"), "ill": ill})
    rows[0]["sign"] = None
    return rows


@pytest.mark.parametrize("kind", ["tree", "votes", "numbers"])
def test_one_missing_value_costs_no_accuracy(kind):
    rows = make_rows()
    schema = dict.fromkeys(("sign", "ward", "ill"), "code")
    if kind == "numbers":
        place = {"yes": 1.5, "no": 0.5, None: None}
        rows, schema = [{**row, "sign": place[row["sign"]]} for row in rows], {**schema, "sign": "number"}
    table = cc.Records.from_rows(rows, schema=schema)
    house = cc.House([cc.Site(f"s{i}", table.take(np.arange(len(rows)) % 3 == i)) for i in range(3)])
    bins = {"sign": [1.0]} if kind == "numbers" else {}
    if kind == "votes":
        model = cc.VotingTrees("ill", "yes", growth="id3", imbalance=1, min_leaf=5).fit(house)
        first = model.experts_[0].body.nodes[0]
    else:
        model = cc.DecisionTree("ill", growth="id3", min_leaf=5, max_depth=1, bins=bins).fit(house)
        first = model.body.nodes[0]
    assert first.attribute == "sign"
    assert len(first.branches) == 3
    assert len(first.children) == 2
    truth = np.array([row["ill"] for row in rows])
    assert (model.predict(table) == truth).mean() > 0.96
    assert model.explain({"ward": "a", "sign": None}).reasons
