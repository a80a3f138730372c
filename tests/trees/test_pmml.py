"""PMML: the structure of the standard, and the predictions of the tree when somebody else scores it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from score_pmml import NS, Scorer, check
from tree_bodies import bodies, patients

import concilium as cc
from concilium.models.pictures import printable
from concilium.protocol.card import Card
from concilium.records.columns import label
from concilium.trees.body import TreeBody, TreeNode
from concilium.trees.exports import to_pmml
from concilium.trees.tree import DecisionTree
from strategies import tables

CARD = Card(
    study="s",
    method="tree",
    release="exact",
    meaning="",
    sites=[],
    rounds=0,
    bytes=0,
    releases=[],
    refusals=[],
    dropouts=[],
    warnings=[],
    version="0",
)


def agree(tree, patient):
    """A patient is predicted alike by the tree and by the scorer of its document."""
    scorer = Scorer(tree.to_pmml())
    check(scorer.root)
    score, shares = scorer.score(patient)
    (expected,) = tree.predict_proba(cc.Records.from_rows([patient]))
    assert score == label(tree.predict(cc.Records.from_rows([patient])).tolist()[0])
    np.testing.assert_allclose([shares[label(value)] for value in tree.classes_], expected, atol=1e-15)


@given(bodies(), patients())
@settings(max_examples=300)
def test_the_document_predicts_what_the_tree_predicts(body, patient):
    agree(DecisionTree.of(body, CARD), patient)


@given(tables(), st.data())
@settings(max_examples=40)
def test_a_grown_tree_survives_the_journey(rows, data):
    if len(rows) < 4:
        return
    tree = cc.DecisionTree("y").fit(cc.House([cc.Site("a", cc.Records.from_rows(rows))]))
    agree(tree, data.draw(st.sampled_from(rows)))


def test_the_document_says_what_it_is_for():
    body = TreeBody(
        target="death", classes=["no", "yes"], query="age < 40", bins={}, nodes=[TreeNode([3, 1])]
    )
    scorer = Scorer(to_pmml(body))
    check(scorer.root)
    assert scorer.root.get("version") == "4.4"
    assert (
        scorer.root.find(NS + "Header").get("description")
        == "Decision tree for death, of patients with age < 40"
    )
    assert scorer.score({}) == ("no", {"no": 0.75, "yes": 0.25})
    target = scorer.fields["death"]
    assert target.get("usageType") == "target"


def test_data_types_are_those_of_the_values():
    def typed(values):
        body = TreeBody(target="y", classes=values, query="", bins={}, nodes=[TreeNode([1] * len(values))])
        return Scorer(to_pmml(body)).types["y"]

    assert typed([1, 2]) == "integer"
    assert typed([1.5, 2]) == "double"
    assert typed([True, False]) == "boolean"
    assert typed(["a", "b"]) == "string"


def test_a_deep_tree_needs_no_deep_stack():
    from concilium.trees.body import TreeBranch

    nodes = [TreeNode([1, 1], f"x{i}", [TreeBranch("a", i + 1)]) for i in range(3000)]
    body = TreeBody(target="y", classes=[0, 1], query="", bins={}, nodes=[*nodes, TreeNode([1, 0])])
    assert to_pmml(body).count("<Node") == 3001


def test_what_xml_cannot_hold_is_marked():
    assert printable("a\x00b\x0b\ufffe\n") == "a\ufffdb\ufffd\ufffd\n"
