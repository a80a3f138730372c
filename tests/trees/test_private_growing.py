"""Growing from noisy counts: the exact tree where noise vanishes, what the budget allows, what one question may ask."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from drain import at_once, drain
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.protocol.schema import state_schema
from concilium.protocol.splits import STAYS
from concilium.trees import private_growing
from concilium.trees.growing import TreeGrowth, finish
from concilium.trees.private_growing import ExpectedCounts, TreeBudget, _take_largest, grow_privately

VALUES = {"a": ["0", "1"], "b": ["x", "y", "z"], "c": ["k", "l"], "y": ["n", "p", "q"]}
LIMITLESS = TreeBudget(Fraction(10**12), depth=3)


def counter(rows, asked=None):
    """Counts of a pooled table without any noise, one patient at a time."""

    def place(attribute, value):
        return attribute.values.index(value) if value in attribute.values else attribute.other_cell

    def count(schema, splits, nodes, counted, variance):
        if asked is not None:
            asked.append((len(nodes), len(counted), variance))
        by_node = {split.node: split for split in splits}
        cells = 1 + sum(schema.attributes[index].size for index in counted)
        table = np.zeros((len(nodes), cells, schema.classes.size), dtype=np.int64)
        for row in rows:
            node = 0
            while (split := by_node.get(node)) is not None:
                attribute = schema.attributes[split.attribute]
                node = split.children[place(attribute, row[attribute.name])]
            if node not in nodes:
                continue
            where, outcome, start = nodes.index(node), schema.classes.values.index(row["y"]), 1
            table[where, 0, outcome] += 1
            for index in counted:
                attribute = schema.attributes[index]
                table[where, start + place(attribute, row[attribute.name]), outcome] += 1
                start += attribute.size
        return table

    return at_once(count)


tables = st.lists(
    st.fixed_dictionaries({n: st.sampled_from(v[:2] if n == "b" else v) for n, v in VALUES.items()}),
    min_size=8,
    max_size=60,
)


@given(rows=tables, depth=st.integers(1, 4), group=st.booleans())
@settings(max_examples=60)
def test_where_noise_vanishes_a_private_tree_predicts_what_the_exact_one_does(rows, depth, group):
    house = cc.House([cc.Site("s", cc.Records.from_rows(rows))])
    exact = cc.DecisionTree("y", growth="id3", max_depth=depth, group=group).fit(house)
    budget = TreeBudget(Fraction(10**12), depth)
    asked, grown = drain(
        grow_privately(
            state_schema(VALUES, {}, "y"), counter(rows), budget, TreeGrowth(None, 1, groups=group)
        )
    )
    unlimited = cc.DecisionTree.of(finish(exact.target, exact.query, asked, grown), exact.card)
    everyone = [dict(zip("abc", v, strict=True)) for v in itertools.product(*(VALUES[n] for n in "abc"))]
    ours, theirs = unlimited.predict_proba(everyone), exact.predict_proba(everyone)
    for index, outcome in enumerate(exact.classes_):
        assert np.array_equal(ours[:, unlimited.classes_.index(outcome)], theirs[:, index])
    root = unlimited.body.nodes[0]
    assert root.attribute == exact.body.nodes[0].attribute
    assert root.counts == [sum(row["y"] == c for row in rows) for c in VALUES["y"]]


def make_rows(count=400):
    return [
        {"a": "01"[i % 2], "b": "xyz"[i % 3], "c": "kl"[i // 7 % 2], "y": "nnp"[i % 2 + (i % 5 > 0)]}
        for i in range(count)
    ]


def test_levels_that_are_not_reached_leave_their_budget_to_the_leaves():
    asked = []
    budget = TreeBudget(Fraction(1, 50), depth=5)
    _, grown = drain(grow_privately(state_schema(VALUES, {}, "y"), counter(make_rows(), asked), budget))
    levels = len(asked) - 1
    assert levels < 5
    assert max(node.depth for node in grown) <= levels
    _, attributes, variance = asked[-1]
    assert attributes == 0
    spent = sum(Fraction(count + 1) / (2 * noise) for _, count, noise in asked)
    assert Fraction(999, 1000) * budget.rho < spent <= budget.rho
    assert variance < budget.variance(5, 0)


@given(
    rho=st.fractions(Fraction(1, 1000), 100),
    depth=st.integers(1, 8),
    cutoffs=st.booleans(),
    prune=st.booleans(),
)
def test_all_questions_of_a_budget_cost_no_more_than_it(rho, depth, cutoffs, prune):
    budget = TreeBudget(rho, depth, cutoffs, prune)
    for levels in range(depth + 1):
        cost = sum(Fraction(6) / (2 * budget.variance(level, 5)) for level in range(levels))
        cost += Fraction(1) / (2 * budget.variance_of_leaves(levels))
        if cutoffs:
            cost += Fraction(7) / (2 * budget.variance_of_cutoffs(7))
        if prune:
            cost += Fraction(1) / (2 * budget.variance_of_pruning)
        assert cost < rho


def test_only_the_best_attributes_go_on_unless_more_of_them_are_free():
    asked = []
    schema = state_schema(VALUES, {}, "y")
    tight = TreeBudget(Fraction(100), depth=3, screened=1)
    kept, _ = drain(grow_privately(schema, counter(make_rows(), asked), tight))
    assert [count for _, count, _ in asked] == [3, 1, 0]  # nothing is left to ask about below
    assert [attribute.name for attribute in kept.attributes] == ["a"]
    free = TreeBudget(Fraction(100), depth=3, screened=1, least=Fraction(4))
    assert free.most_screened > 3
    assert len(drain(grow_privately(schema, counter(make_rows()), free))[0].attributes) == 3
    assert all(free.variance(level, 3) == 4 for level in range(3))


def test_a_level_that_is_too_large_for_one_question_goes_on_with_its_largest_nodes(monkeypatch):
    rows = make_rows()
    schema = state_schema(VALUES, {}, "y")
    whole, cut = [], []
    drain(grow_privately(schema, counter(rows, whole), LIMITLESS))
    room = 3 * (1 + sum(attribute.size for attribute in schema.attributes)) * 3
    monkeypatch.setattr(private_growing, "MOST_NOISY_NUMBERS", room)
    _, nodes = drain(grow_privately(schema, counter(rows, cut), LIMITLESS))
    assert max(count for count, *_ in whole[:-1]) > 3
    assert all(count <= 3 for count, *_ in cut[:-1])
    leaves = sum(node.attribute is None for node in nodes)
    assert leaves * 3 <= room
    known = {
        n: ExpectedCounts(np.array([n % 5, 1.0]), 1.0, np.array([0.5, 0.5]), np.empty((0, 2)))
        for n in range(9)
    }
    assert _take_largest(list(range(9)), known, 4) == [2, 3, 4, 8]
    assert _take_largest([2, 0], known, 4) == [2, 0]


def test_nobody_is_split_where_patients_cannot_be_told_from_noise():
    asked = []
    few = TreeBudget(Fraction(1, 10**6), depth=3)
    _, nodes = drain(grow_privately(state_schema(VALUES, {}, "y"), counter(make_rows(40), asked), few))
    assert len(nodes) == 1
    assert [nodes_ for nodes_, *_ in asked] == [1, 1]


def test_a_pure_node_is_not_split():
    rows = [{**row, "y": "p"} for row in make_rows()]
    _, nodes = drain(grow_privately(state_schema(VALUES, {}, "y"), counter(rows), LIMITLESS))
    assert [node.counts.tolist() for node in nodes] == [[0, 400, 0]]


@pytest.mark.parametrize("depth", [1, 5])
def test_a_leaf_of_noise_alone_keeps_the_shares_that_are_expected_of_it(depth):
    draw = np.random.default_rng(depth)
    exact = counter(make_rows(4000))

    @at_once
    def noisy(schema, splits, nodes, counted, variance):
        table = drain(exact(schema, splits, nodes, counted, variance))
        return table + np.rint(draw.normal(0, float(variance) ** 0.5, table.shape)).astype(np.int64)

    budget = TreeBudget(Fraction(1, 20), depth)
    _, nodes = drain(grow_privately(state_schema(VALUES, {}, "y"), noisy, budget))
    for node in nodes:
        assert node.counts.sum() > 0
        assert node.counts.min() >= 0


def test_a_readable_tree_has_hardly_a_branch_of_noise_alone():
    """Half of all values occur at no hospital. ID3 makes a leaf of each; a readable tree parts patients in two."""
    wide = {name: [*own, *(f"{name}{place}" for place in own)] for name, own in VALUES.items() if name != "y"}
    schema = state_schema({**wide, "y": VALUES["y"]}, {}, "y")
    exact, draw = counter(make_rows(4000)), np.random.default_rng(1)

    @at_once
    def noisy(schema, splits, nodes, counted, variance):
        table = drain(exact(schema, splits, nodes, counted, variance))
        return table + np.rint(draw.normal(0, float(variance) ** 0.5, table.shape)).astype(np.int64)

    def count_alone(schema, grown):
        """Branches without a value that anybody has."""
        alone = 0
        for node in grown:
            if node.attribute is not None:
                attribute = schema.attributes[node.attribute]
                real = {
                    to for value, to in zip(attribute.values, node.children, strict=False) if len(value) < 2
                }
                alone += len({*node.children} - {*real, STAYS})
        return alone

    found = {"readable": 0, "id3": 0}
    for _ in range(5):
        for name, growth in (("readable", TreeGrowth(None, 20, halves=True)), ("id3", private_growing.ID3)):
            asked, nodes = drain(grow_privately(schema, noisy, TreeBudget(Fraction(1, 20), 3), growth))
            found[name] += count_alone(asked, nodes)
            if name == "readable":
                assert nodes[0].attribute is not None
                assert all(len({*node.children} - {STAYS}) in (0, 2) for node in nodes)
    assert found["readable"] * 10 < found["id3"], found
