"""Expressions: exactly one is true for any patient, and it says what the tree says."""

from __future__ import annotations

import pytest
from evaluate_cql import evaluate
from hypothesis import assume, given, settings
from test_pmml import CARD
from tree_bodies import EDGES, bodies, patients

import concilium as cc
from concilium.models.cql import write_literal, write_name
from concilium.trees.body import TreeBody, TreeBranch, TreeNode
from concilium.trees.exports import to_expressions
from concilium.trees.tree import DecisionTree


@given(bodies(), patients())
@settings(max_examples=300)
def test_exactly_one_expression_is_true_and_says_what_the_tree_says(body, patient):
    tree = DecisionTree.of(body, CARD)
    true = [one for one in tree.to_expressions() if evaluate(one.text, patient)]
    assert len(true) == 1
    (shares,) = tree.predict_proba(cc.Records.from_rows([patient]))
    assert true[0].prediction == tree.predict(cc.Records.from_rows([patient])).tolist()[0]
    assert true[0].probability == pytest.approx(shares[tree.classes_.index(true[0].prediction)])


@given(bodies())
def test_every_leaf_has_its_expression(body):
    # A branch for all other values beside branches for every bin and for gaps is one that nobody takes.
    assume(all(node.other is None or node.attribute not in EDGES for node in body.nodes))
    leaves = [node for node in body.nodes if node.attribute is None]
    found = [one for one in to_expressions(body) if one.leaf]
    assert sorted(sum(leaf.counts) for leaf in leaves) == sorted(one.patients for one in found)


def test_expressions_read_like_cql():
    body = TreeBody(
        target="death",
        classes=["no", "yes"],
        query="",
        bins={"age": [40, 60]},
        nodes=[
            TreeNode([6, 4], "smoker", [TreeBranch("y", 1), TreeBranch(None, 2)]),
            TreeNode([2, 4], "age", [TreeBranch(0, 3), TreeBranch(1, 4)]),
            TreeNode([4, 0]),
            TreeNode([2, 0]),
            TreeNode([0, 4]),
        ],
    )
    assert [(str(one), one.prediction, one.patients, one.leaf) for one in to_expressions(body)] == [
        ("not (\"smoker\" in {'y'})", "no", 10, False),
        ('"smoker" = \'y\' and ("age" is null or ("age" >= 60))', "yes", 6, False),
        ('"smoker" = \'y\' and "age" < 40', "no", 2, True),
        ('"smoker" = \'y\' and "age" >= 40 and "age" < 60', "yes", 4, True),
        ('"smoker" is null', "no", 4, True),
    ]


def test_a_single_leaf_is_for_everyone():
    body = TreeBody(target="y", classes=[0, 1], query="", bins={}, nodes=[TreeNode([0, 0])])
    (one,) = to_expressions(body)
    assert (one.text, one.prediction, one.probability) == ("true", 0, 0.5)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (3, "3"),
        (3.0, "3"),
        (2.5, "2.5"),
        (1e-7, "0.0000001"),
        ("it's\n\\", "'it\\'s\\n\\\\'"),
    ],
)
def test_literals(value, written):
    assert write_literal(value) == written


def test_names_are_quoted():
    assert write_name('a "b" \\') == '"a \\"b\\" \\\\"'
