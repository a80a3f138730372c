"""What was not entered is not evidence, what is said to be missing is, and what is hardly plausible is said."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.records.dictionary import Dictionary
from concilium.trees.body import mix_shares, spread

DICTIONARY = Dictionary.parse(
    {
        "age": {"label": "age at admission", "unit": "years", "range": [0, 120]},
        "cp": {"label": "chest pain", "values": {"1": "typical", "4": "none"}},
        "ecg": {"values": ["normal", "odd"]},
        "death": {"values": [0, 1]},
    },
    "d.toml",
)


def make_rows(count=400, seed=3):
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, cp = draw.randint(30, 90), draw.choice([1, 4])
        ecg = None if draw.random() < 0.05 else draw.choice(["normal", "odd"])
        risk = 0.95 if ecg is None else 0.1 + 0.4 * (age > 60) + 0.3 * (cp == 4)
        rows.append({"age": age, "cp": cp, "ecg": ecg, "death": int(draw.random() < risk)})
    return rows


def fit(method, **parameters):
    records = cc.Records.from_rows(
        make_rows(), schema={"cp": "code", "ecg": "code", "age": "number", "death": "code"}
    )
    house = cc.House([cc.Site("north", records)], dictionary=DICTIONARY)
    return method("death", bins={"age": [45, 60, 75]}, **parameters).fit(house)


@pytest.fixture(scope="module")
def tree():
    return fit(cc.DecisionTree, max_depth=3)


@pytest.fixture(scope="module")
def bayes():
    return fit(cc.NaiveBayes)


@pytest.fixture(scope="module")
def rules():
    """With a penalty so small that what few patients have counts too."""
    return fit(cc.RuleFit, release="exact", trees=30, penalty=0.005)


@given(st.fixed_dictionaries({}, optional={"age": st.integers(0, 120), "cp": st.sampled_from([1, 4]),
                                           "ecg": st.sampled_from(["normal", "odd", None])}))  # fmt: skip
def test_a_tree_weighs_what_was_not_entered_over_its_patients(tree, patient):
    """The oracle walks every way by hand, from the counts in the model file."""

    def walk(index):
        node = tree.body.nodes[index]
        own = np.array(node.counts) / sum(node.counts)
        if node.attribute is None:
            return own
        if node.attribute not in patient:
            sizes = {child: sum(tree.body.nodes[child].counts) for child in {b.node for b in node.branches}}
            return sum(size / sum(sizes.values()) * walk(child) for child, size in sizes.items())
        value = patient[node.attribute]
        if node.attribute == "age":
            value = sum(value >= edge for edge in tree.body.bins["age"])
        ways = [b.node for b in node.branches if b.value == value]
        return walk(ways[0]) if ways else own

    found = mix_shares(tree.body, spread(tree.body, patient))
    np.testing.assert_allclose(found, walk(0), atol=1e-12)


def test_nothing_entered_is_what_everybody_has(tree):
    root = np.array(tree.body.nodes[0].counts)
    np.testing.assert_allclose(mix_shares(tree.body, spread(tree.body, {})), root / root.sum(), atol=1e-12)


def test_all_entered_is_the_prediction(tree):
    for age, cp, ecg in itertools.product((35, 50, 80), (1, 4), ("normal", "odd", None)):
        patient = {"age": age, "cp": cp, "ecg": ecg}
        shares = mix_shares(tree.body, spread(tree.body, patient))
        np.testing.assert_allclose(shares, tree.predict_proba([patient])[0])
        assert tree.explain(patient).probability == pytest.approx(shares.max())


@pytest.mark.parametrize("model", ["tree", "bayes", "rules"])
def test_one_value_entered_is_no_certainty_by_what_nobody_said(model, request):
    """That the ECG is missing speaks for death among these patients; that it was not entered does not."""
    fitted = request.getfixturevalue(model)
    entered, missing = (fitted.explain({"age": 50, **more}) for more in ({}, {"ecg": None}))
    assert not [reason for reason in entered.reasons if "ecg" in reason.condition]
    assert [reason for reason in missing.reasons if "ecg" in reason.attributes] or model == "rules"

    def risk(explanation):
        return explanation.probability if explanation.prediction == 1 else 1 - explanation.probability

    assert risk(entered) < risk(missing)
    assert entered.notes


def test_a_tree_says_what_was_not_entered(tree):
    explanation = tree.explain({"cp": 4})
    assert [reason.attributes for reason in explanation.reasons] == [("cp",)]
    assert explanation.base == pytest.approx(np.mean([row["death"] for row in make_rows()]), abs=0.5)
    assert any(
        note.startswith("Not entered, and so not counted for or against: ") for note in explanation.notes
    )


def test_votes_are_weighed_too():
    rows = make_rows()
    records = cc.Records.from_rows(rows, schema={"cp": "code", "ecg": "code", "age": "number"})
    voting = cc.VotingTrees("death", positive=1, imbalance=0.9, bins={"age": [45, 60, 75]})
    voting = voting.fit(cc.House([cc.Site("north", records)]))
    explanation = voting.explain({"age": 85})
    assert "Not entered" in str(explanation)
    assert not any(
        "ecg is missing" in reason.condition for vote in explanation.votes for reason in vote.reasons
    )


@pytest.mark.parametrize("model", ["tree", "bayes", "rules"])
def test_what_is_hardly_plausible_is_said(model, request):
    fitted = request.getfixturevalue(model)
    sane = fitted.explain({"age": 63, "cp": 4, "ecg": "odd"})
    odd = fitted.explain({"age": 163, "cp": 7, "ecg": "odd"})
    assert "Check it" not in str(sane)
    assert "age = 163 is hardly plausible: 0 to 120 years. Check it." in odd.notes
    assert "cp = 7 is no value of it: 1 (typical), 4 (none). Check it." in odd.notes
    assert "cp = none" in str(sane)
    assert "cp: chest pain." in str(sane)


def test_without_a_dictionary_public_ranges_do():
    rows = [{"age": 30 + i % 60, "ca": i % 4, "y": int(i % 60 > 30)} for i in range(200)]
    site = cc.Site("north", cc.Records.from_rows(rows))
    tree = cc.DecisionTree("y", bins={"age": [45, 60, 75]}).fit(cc.House([site]))
    assert (
        "age = 163 is hardly plausible: 0 to 120 years. Check it."
        in tree.explain({"age": 163, "ca": 0}).notes
    )
    assert not any("ca = " in note for note in tree.explain({"age": 63, "ca": 0}).notes)
