"""Grouping of values: the federated tree is that of a brute-force pooled one, and says what its branches hold."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tree_equals_pooled import house_of, shared

import concilium as cc
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.protocol.splits import Split, check_tree
from concilium.trees.body import _say_branch
from concilium.trees.grouping import group_values
from pooled_id3 import c45, id3, merge_values
from side_door import UNLIMITED, state
from strategies import federations


def category(name, size):
    return Attribute(name, of=size, missing=False, other=False)


LIMITS = {
    "max_depth": st.one_of(st.none(), st.integers(0, 3)),
    "min_leaf": st.integers(1, 4),
}


def nested(body, node=0):
    """A model's tree in the oracle's form, by groups of values."""
    here = body.nodes[node]
    counts = {c: n for c, n in zip(body.classes, here.counts, strict=True) if n}
    if here.attribute is None:
        return (counts, None)
    below = {frozenset(group.values): nested(body, group.node) for group in here.groups}
    return (counts, (here.attribute, below))


def merging(min_leaf, lines=()):
    return lambda attribute, groups: merge_values(groups, "y", min_leaf, attribute in lines)


@given(
    sites=federations(most_values=8, most_columns=3),
    criterion=st.sampled_from(["entropy", "gain-ratio"]),
    **LIMITS,
)
@settings(max_examples=100)
def test_a_grouped_tree_equals_the_pooled_one(sites, criterion, max_depth, min_leaf):
    taking_part = {name: rows for name, rows in sites.items() if len(rows) >= 4}
    if not taking_part:
        return
    limits = {"max_depth": max_depth, "min_leaf": min_leaf}
    tree = cc.DecisionTree("y", growth="id3", criterion=criterion, group=True, **limits).fit(house_of(sites))
    pooled = [row for rows in taking_part.values() for row in rows]
    grow = id3 if criterion == "entropy" else c45
    assert nested(tree.body) == grow(pooled, shared(taking_part), "y", **limits, merge=merging(min_leaf))


AGES = st.one_of(st.none(), st.floats(0, 100).map(lambda age: age + 0.25))


@given(
    rows=st.lists(
        st.fixed_dictionaries({"age": AGES, "sex": st.sampled_from("fm"), "y": st.sampled_from("abc")}),
        min_size=8,
        max_size=60,
    ),
    min_leaf=st.integers(1, 3),
)
@settings(max_examples=80)
def test_bins_are_grouped_with_their_neighbours(rows, min_leaf):
    edges = [20, 40, 50, 60, 80]
    sites = {f"s{i}": rows[i::2] for i in range(2)}
    records = {
        name: cc.Records.from_rows(part, schema={"age": "number", "sex": "code", "y": "code"})
        for name, part in sites.items()
    }
    house = cc.House([cc.Site(name, table) for name, table in records.items()])
    tree = cc.DecisionTree("y", growth="id3", bins={"age": edges}, group=True, min_leaf=min_leaf).fit(house)
    binned = [
        {**row, "age": None if row["age"] is None else int(np.searchsorted(edges, row["age"], side="right"))}
        for row in rows
    ]
    assert nested(tree.body) == id3(
        binned, {"age", "sex"}, "y", min_leaf=min_leaf, merge=merging(min_leaf, {"age"})
    )


@given(sites=federations(most_values=6))
@settings(max_examples=60)
def test_no_split_has_more_branches_than_values_and_off_nothing_changes(sites):
    if all(len(rows) < 4 for rows in sites.values()):
        return
    plain = cc.DecisionTree("y", growth="id3").fit(house_of(sites))
    grouped = cc.DecisionTree("y", growth="id3", group=True).fit(house_of(sites))
    assert cc.DecisionTree("y", growth="id3", group=False).fit(house_of(sites)).body == plain.body
    for node in plain.body.nodes:
        assert len(node.children) == len(node.branches)
    for node in grouped.body.nodes:
        assert len(node.children) <= len(node.branches)
    assert grouped.card.rounds <= grouped.depth + 2


def test_grouping_joins_what_behaves_alike_and_says_so(tmp_path):
    rows = [
        {"ward": ward, "sex": "fm"[i % 2], "y": int(ward in "bde")} for i in range(12) for ward in "abcdef"
    ]
    house = cc.House([cc.Site(f"s{i}", cc.Records.from_rows(rows[i::3])) for i in range(3)])
    tree = cc.DecisionTree("y", growth="id3", group=True).fit(house)
    assert tree.text() == (
        "y (72 patients)\n├─ ward in {a, c, f}: 0 (36 of 36)\n└─ ward in {b, d, e}: 1 (36 of 36)"
    )
    assert tree.explain({"ward": "d"}).reasons[0].condition == "ward in {b, d, e}"
    assert "ward in {a, c, f}" in tree.to_svg()
    assert [one.text for one in tree.to_expressions() if one.leaf] == [
        "\"ward\" in {'a', 'c', 'f'}",
        "\"ward\" in {'b', 'd', 'e'}",
    ]
    assert '<CompoundPredicate booleanOperator="or">' in tree.to_pmml()
    unseen = tree.explain({"ward": "z"})
    assert (unseen.prediction, len(unseen.notes)) == (0, 1)
    assert tree.predict([{"ward": "z"}, {"ward": "e"}]).tolist() == [0, 1]
    tree.save(tmp_path / "tree.json")
    loaded = cc.load(tmp_path / "tree.json")
    assert loaded.body == tree.body
    assert loaded.depth == 1
    assert json.loads((tmp_path / "tree.json").read_text())["body"]["nodes"][0]["branches"][0] == ["a", 1]


@pytest.mark.parametrize("release", ["masked", "private"])
def test_under_masks_and_without_noise_the_groups_are_the_same(monkeypatch, release):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    rows = [
        {"ward": "abcdef"[i % 6], "sex": "fm"[i * i % 7 % 2], "y": int(i % 6 in (1, 3, 4)) ^ (i % 17 == 0)}
        for i in range(
            36_000
        )  # so many that what the noise could have been moves no estimate by half a patient
    ]
    house = partial(house_of, {f"s{i}": rows[i::3] for i in range(3)}, UNLIMITED, read=state)
    options = {"group": True, "max_depth": 1}
    exact = cc.DecisionTree("y", growth="id3", **options).fit(house())
    if release == "private":
        options |= {"epsilon": 10**6, "values": {"ward": list("abcdef"), "sex": ["f", "m"], "y": [0, 1]}}
    with zero_noise():
        tree = cc.DecisionTree("y", growth="id3", release=release, **options).fit(house())
    assert nested(tree.body) == nested(exact.body)
    assert len(tree.body.nodes) == 3


def test_without_a_branch_of_its_own_a_private_value_rests_where_it_is(monkeypatch):
    """What by the (noisy) counts nobody has is no reason for a branch: `other` and 'q' here."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    rows = [{"ward": "abc"[i % 3], "y": int(i % 3 == 1)} for i in range(300)]
    house = house_of({f"s{i}": rows[i::3] for i in range(3)}, UNLIMITED, read=state)
    values = {"ward": ["a", "b", "c", "q"], "y": [0, 1]}
    with zero_noise():
        tree = cc.DecisionTree("y", release="private", epsilon=10**6, values=values, group=True).fit(house)
    root = tree.body.nodes[0]
    assert [group.values for group in root.groups] == [["a", "c"], ["b"]]
    assert root.other is None
    assert tree.predict([{"ward": "q"}, {"ward": "new"}]).tolist() == [0, 0]


def test_hundreds_of_values_are_grouped_as_by_brute_force():
    draw = np.random.default_rng(7)
    chance = draw.random(300)
    table = np.stack([draw.binomial(40, 1 - chance), draw.binomial(40, chance)], axis=1)
    stacked = np.vstack([table.sum(axis=0, keepdims=True), table])
    grouped = group_values(stacked, [category("x", 300)])
    leaders = np.unique(grouped.first[1:])
    assert 2 <= len(leaders) < 300
    for leader in leaders:  # a group counts what its values count, and loses nobody
        assert (grouped.table[leader] == stacked[1:][grouped.first[1:] == leader].sum(axis=0)).all()
    few = stacked[:13]
    rows = {value: [{"y": c} for c in (0, 1) for _ in range(few[1 + value, c])] for value in range(12)}
    expected = merge_values(rows, "y")
    found = group_values(few, [category("x", 12)]).first[1:] - 1
    assert {frozenset(np.flatnonzero(found == leader).tolist()) for leader in set(found.tolist())} == set(
        expected
    )


def test_values_that_nobody_has_are_in_no_group():
    table = np.array([[6, 6], [3, 0], [0, 0], [3, 0], [0, 6]])
    grouped = group_values(table, [category("x", 4)])
    assert grouped.first.tolist() == [0, 1, 2, 1, 4]
    assert grouped.table.tolist() == [[6, 6], [6, 0], [0, 0], [0, 0], [0, 6]]


@pytest.mark.parametrize(
    ("values", "edges", "rest", "said"),
    [
        (["f"], None, False, "x = f"),
        ([1, 2, 5], None, False, "x in {1, 2, 5}"),
        ([1, None], None, False, "x = 1 or missing"),
        ([1, 2, None], None, True, "x in {1, 2} or missing or anything else"),
        ([None], None, False, "x is missing"),
        ([], None, True, "x is anything else"),
        ([None], None, True, "x is missing or anything else"),
        ([0, 1], [20, 40, 60], False, "x < 40"),
        ([1, 2], [20, 40, 60], False, "20 <= x < 60"),
        ([2, 3, None], [20, 40, 60], False, "x >= 40 or missing"),
        ([0, 3], [20, 40, 60], False, "x < 20 or x >= 60"),
        ([0, 1, 2, 3], [20, 40, 60], False, "x is known"),
    ],
)
def test_a_branch_in_words(values, edges, rest, said):
    assert _say_branch("x", values, edges, rest) == said


def test_a_split_may_lead_several_values_to_one_node_but_never_two_splits():
    attributes = [category("a", 3), category("b", 2)]
    assert check_tree([Split(0, 0, [1, 2, 1]), Split(1, 1, [3, 3])], attributes) == {0, 1, 2, 3}
    with pytest.raises(cc.errors.MessageError, match="reached twice"):
        check_tree([Split(0, 0, [1, 2, 1]), Split(1, 1, [2, 3])], attributes)
    with pytest.raises(cc.errors.MessageError, match="reached twice"):
        check_tree([Split(0, 0, [1, 2, 1]), Split(1, 1, [0, 3])], attributes)
