"""What a study may say, its hospitals let it ask: parameters that change what a method asks, through the real gate."""

from __future__ import annotations

import random

import pytest

import concilium as cc
from contract.patients import SCHEMA, make, make_rows, method_types

SAID = [
    ("tree", "exact", {"cutoffs": 2}),
    ("tree", "masked", {"cutoffs": 2, "prune": 0.3}),
    ("tree", "private", {"cutoffs": 2, "prune": 0.3}),
    # What is predicted needs no other statement, and is the same value however it is written.
    ("rulefit", "private", {"values": {"sex": ["f", "m"]}}),
    ("rulefit", "private", {"values": {"sex": ["f", "m"], "y": ["TRUE", "FALSE"]}, "positive": True}),
    ("rulefit", "private", {"values": {"sex": ["f", "m"], "y": [True, False]}, "positive": "TRUE"}),
]


@pytest.mark.parametrize(("name", "release", "more"), SAID)
def test_what_the_parameters_have_a_method_ask_is_answered(name, release, more):
    def rename(row):
        return {**row, "y": row["y"] == "yes"} if "TRUE" in str(more) else row

    sites = [
        cc.Site(site, cc.Records.from_rows([*map(rename, make_rows(30, seed))], schema=SCHEMA))
        for seed, site in enumerate("abc")
    ]
    model = make(method_types()[name], release, **more).fit(cc.House(sites))
    assert model.card.refusals == []


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_rules_cut_whole_numbers_that_hospitals_list_without_bins(release):
    def draw(dice):
        children = dice.randrange(4)
        return {"children": children, "y": "yes" if dice.random() < 0.1 + 0.25 * children else "no"}

    sites = []
    for seed, name in enumerate("abc"):
        dice = random.Random(seed)
        sites.append(cc.Site(name, cc.Records.from_rows([draw(dice) for _ in range(60)])))
    model = cc.RuleFit("y", positive="yes", trees=5, release=release).fit(cc.House(sites))
    assert model.attributes_ == ["children"]
