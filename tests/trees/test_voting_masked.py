"""`VotingTrees` under masks: the ensemble of `exact`, also where hospitals could not take part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_voting import ROWS, fitted, sites_of

import concilium as cc
from agreed import set_up_masks
from concilium.errors import HouseError
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import MOST_EXPERTS, Sample
from concilium.protocol.messages import Refusal
from concilium.trees.ensemble import _name_positive
from concilium.trees.votes import AskVotes, Voter
from concilium.trees.voting import VotingTrees


@pytest.mark.parametrize("imbalance", [0.06, 0])
def test_masked_is_exact(imbalance):
    exact, masked = (fitted(imbalance=imbalance, release=release) for release in ("exact", "masked"))
    assert masked.body == exact.body
    assert (len(masked.experts_) > 1) == (imbalance > 0)
    assert {site.patients for site in masked.card.sites} == {None}
    assert {release.kind for release in masked.card.releases} == {"tree.schema", "mask.open"}
    planned = VotingTrees("bleeding", "yes", release="masked").plan().questions
    assert {question.kind for question in planned} == {"tree.schema", "counts", "tree.votes"}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 5), st.sampled_from(["balanced", "majority"]))
def test_masked_is_exact_however_patients_are_dealt(seed, count, vote):
    draw = np.random.default_rng(seed)
    rows = [ROWS[at] for at in draw.choice(len(ROWS), 400, replace=False)]
    owners = draw.integers(0, count, len(rows))
    tables = [
        [row for row, owner in zip(rows, owners, strict=True) if owner == site] for site in range(count)
    ]

    def sites():
        return [cc.Site(f"s{place}", cc.Records.from_rows(own)) for place, own in enumerate(tables)]

    bodies = []
    for release in ("exact", "masked"):
        options = {"release": release, "vote": vote, "min_leaf": 2, "max_depth": 3}
        bodies.append(fitted(sites=sites(), **options).body)
    assert bodies[0] == bodies[1]


def test_hospitals_that_would_opt_out_add_nothing_and_nobody_sees_it():
    """One without a positive patient, and one with three for an expert: `exact` names them, `masked` cannot."""
    healthy = [{**row, "bleeding": "no"} for row in ROWS[:40]]
    few = [{**ROWS[0], "bleeding": "yes"}, *({**row, "bleeding": "no"} for row in ROWS[1:9])]

    def sites():
        return [*sites_of(), *(cc.Site(n, cc.Records.from_rows(r)) for n, r in (("x", healthy), ("y", few)))]

    for imbalance in (0.06, 0):
        exact = fitted(sites=sites(), imbalance=imbalance, negatives=2)
        masked = fitted(sites=sites(), imbalance=imbalance, negatives=2, release="masked")
        assert [site.name for site in exact.card.sites] == ["east", "north", "south", "west"]
        assert [site.name for site in masked.card.sites] == ["east", "north", "south", "west", "x", "y"]
        assert masked.body == exact.body
        assert not any("opted out" in warning for warning in masked.card.warnings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bleeding": "no"}, "no site that could take part has a patient"),
        ({"bleeding": "yes"}, "every patient"),
    ],
)
def test_what_cannot_be_learned_is_said(change, said):
    with pytest.raises(HouseError, match=said):
        fitted(rows=[row | change for row in ROWS[:200]], release="masked")


def test_under_masks_all_are_told_the_same_and_no_turn_far_away_is_asked_for():
    """Of each question only what a masked study may ask: stated values, a sample with its negatives, few turns."""
    sites = sites_of()
    agreed = set_up_masks(sites, target="bleeding")
    stated = Attribute("drug", (), ("n", "y"), missing=False, other=False)
    hidden = stated.narrow({"n"})
    about = {"query": "", "target": "bleeding"}
    classes = _name_positive("bleeding", "yes")
    sample = Sample(positive="yes", negatives=3)
    far = Sample(positive="yes", negatives=3, expert=MOST_EXPERTS)
    voters = [Voter([], [0])]
    refused = [
        AskCounts(**about, attributes=(hidden,), classes=classes, sample=sample),
        AskCounts(**about, attributes=(stated,), classes=classes, sample=far),
        AskCounts(**about, attributes=(stated,), classes=classes, sample=Sample(positive="yes")),
        AskVotes(**about, positive="yes", attributes=(stated,), experts=voters),
        AskVotes(**about, positive="yes", attributes=(hidden,), experts=voters, sample=sample),
        AskCounts(**about, classes=classes, sample=Sample(positive="yes")),
    ]
    for question in refused:
        reply = agreed.put(sites[0], question)
        assert isinstance(reply, Refusal)
        assert reply.rule == "message"
    for question in (
        AskCounts(**about, attributes=(stated,), classes=classes, sample=sample),
        AskVotes(**about, positive="yes", attributes=(stated,), experts=voters, sample=sample),
        AskCounts(**about, classes=classes, sample=sample),
    ):
        assert not isinstance(agreed.put(sites[0], question), Refusal)
