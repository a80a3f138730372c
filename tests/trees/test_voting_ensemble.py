"""Experts, votes and balanced accuracies of a house against the same worked out patient by patient on plain lists."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.trees.voting import VotingTrees
from pooled_id3 import decide, id3, name_group
from strategies import rare_houses

MASK = 2**64 - 1


def laid_out(rows, positive, negatives, expert, query=""):
    """A site's patients for one expert, from the definition: a circle of negatives in SplitMix64's order."""
    words = "".join(f"{len(word)}:{word}" for word in (query, "y", str(positive)))
    key = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little")

    def mix(row):
        z = (row * 0x9E3779B97F4A7C15 + key) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    own = [row for row in rows if row["y"] == positive]
    others = sorted((i for i, row in enumerate(rows) if row["y"] != positive), key=mix)
    helping = negatives * len(own)
    if helping < len(others):
        others = [others[(expert * helping + place) % len(others)] for place in range(helping)]
    return [*own, *(rows[i] for i in others)]


def binary(rows, positive):
    return [{**row, "y": row["y"] == positive} for row in rows]


def nested(nodes, node=0):
    """An expert in the oracle's form."""
    here = nodes[node]
    counts = {c: n for c, n in zip((False, True), here.counts, strict=True) if n}
    if here.attribute is None:
        return (counts, None)
    below = {name_group(group.values): nested(nodes, group.node) for group in here.groups}
    return (counts, (here.attribute, below))


def is_for(expert, row, vote):
    """An expert's vote: positives over negatives, against one or against what they are in its whole sample."""
    here, sample = decide(expert, row), expert[0]
    if not here.get(False, 0) or not here.get(True, 0):
        # Nobody of one class: more than one, and more than in the sample unless all of that is of this class too.
        return bool(here.get(True, 0)) and (vote == "majority" or bool(sample.get(False, 0)))
    limit = 1 if vote == "majority" else Fraction(sample[True], sample[False])
    return Fraction(here[True], here[False]) > limit


def majority(experts, row, vote):
    return 2 * sum(is_for(expert, row, vote) for expert in experts) > len(experts)


def balanced(experts, rows, vote):
    """Balanced accuracy of the experts' majority on these patients (whose y is a bool)."""
    right = {True: 0, False: 0}
    for row in rows:
        right[row["y"]] += majority(experts, row, vote) == row["y"]
    return sum(Fraction(right[c], sum(row["y"] == c for row in rows)) for c in right) / 2


def taking_part(sites, negatives):
    """Sites with a positive patient and at least four for an expert (the gate wants four as well)."""
    return {
        name: rows
        for name, rows in sites.items()
        if any(row["y"] == 1 for row in rows) and len(laid_out(rows, 1, negatives, 0)) >= 4
    }


@given(
    sites=rare_houses(),
    negatives=st.integers(1, 3),
    max_depth=st.sampled_from([None, 1, 2]),
    min_leaf=st.sampled_from([1, 1, 2, 3]),
    vote=st.sampled_from(["balanced", "majority"]),
)
@settings(max_examples=150)
def test_experts_and_votes_are_those_of_the_definition(sites, negatives, max_depth, min_leaf, vote):
    there = taking_part(sites, negatives)
    pooled = binary([row for rows in there.values() for row in rows], 1)
    if not there or all(row["y"] for row in pooled):
        return
    house = cc.House([cc.Site(name, cc.Records.from_rows(rows)) for name, rows in sites.items()])
    model = VotingTrees(
        "y",
        1,
        growth="id3",
        imbalance=1,
        negatives=negatives,
        vote=vote,
        max_depth=max_depth,
        min_leaf=min_leaf,
    ).fit(house)
    assert {site.name for site in model.card.sites} == set(there)
    attributes = set(pooled[0]) - {"y"}
    experts = []
    for number in range(model.body.stages[-1].experts):
        sample = [row for rows in there.values() for row in laid_out(rows, 1, negatives, number)]
        experts.append(id3(binary(sample, 1), attributes, "y", max_depth, min_leaf))
    assert [nested(nodes) for nodes in model.body.experts] == experts[: len(model.body.experts)]
    for stage in model.body.stages:
        assert stage.balanced_accuracy == float(balanced(experts[: stage.experts], pooled, vote))
    patients = [{name: row[name] for name in attributes} for row in pooled]
    predicted = model.predict(cc.Records.from_rows(patients)) == model.classes_[1]
    chosen = experts[: len(model.body.experts)]
    np.testing.assert_array_equal(predicted, [majority(chosen, row, vote) for row in patients])


@given(sites=rare_houses())
@settings(max_examples=60)
def test_where_positives_are_common_it_is_the_ordinary_tree_of_the_same_sites(sites):
    there = taking_part(sites, 3)
    pooled = [row for rows in there.values() for row in rows]
    if not there or all(row["y"] == 1 for row in pooled):
        return
    house = cc.House([cc.Site(name, cc.Records.from_rows(rows)) for name, rows in sites.items()])
    model = VotingTrees("y", 1, growth="id3", imbalance=0, min_leaf=1).fit(house)
    assert [nested(nodes) for nodes in model.body.experts] == [
        id3(binary(pooled, 1), set(pooled[0]) - {"y"}, "y")
    ]
    assert not model.body.stages
    assert any("the model is one ordinary tree" in warning for warning in model.card.warnings)
    if {row["y"] for row in pooled} == {0, 1}:
        plain = cc.DecisionTree("y", growth="id3").fit(
            cc.House([cc.Site(name, cc.Records.from_rows(rows)) for name, rows in there.items()])
        )
        assert model.body.experts[0] == plain.body.nodes
        np.testing.assert_array_equal(model.predict_proba(pooled), plain.predict_proba(pooled))
