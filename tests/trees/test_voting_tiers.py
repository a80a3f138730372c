"""Voting trees through regions are those of one house: the same experts, opt-outs, charges, and bad news."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import deliver
from concilium.errors import HouseError
from concilium.protocol.held_out import Sample
from concilium.protocol.messages import Refusal, decode, encode, open_reply
from concilium.trees.ensemble import AskClassCounts, ClassCounts
from concilium.trees.voting import VotingTrees
from protocol.conversation import wrap
from strategies import deal_tiers, rare_houses


def open_sites(tables):
    return [cc.Site(name, cc.Records.from_rows(rows)) for name, rows in tables.items()]


def fit(members, **options):
    return VotingTrees("y", 1, **{"growth": "id3", "imbalance": 1, "min_leaf": 1, **options}).fit(
        cc.House(members)
    )


def fit_or_say(members, **options):
    try:
        return fit(members, **options)
    except HouseError as error:
        return str(error)


def released(card):
    """Numbers by kind, over all sites."""
    kinds = {release.kind for release in card.releases}
    return {kind: sum(r.numbers for r in card.releases if r.kind == kind) for kind in kinds}


@given(rare_houses(most_sites=6), st.data(), st.integers(1, 3), st.sampled_from([0, 1]))
@settings(max_examples=50)
def test_voting_trees_through_tiers_are_those_of_one_house(tables, data, negatives, imbalance):
    members = deal_tiers(data, open_sites(tables))
    options = {"negatives": negatives, "imbalance": imbalance}
    flat, tiered = fit_or_say(open_sites(tables), **options), fit_or_say(members, **options)
    if isinstance(flat, str):
        # Who is behind a region is not told above it; what is wrong is.
        for problem in ("no site that could take part", "every patient has", "opted out", "too few patients"):
            assert (problem in flat) <= (problem in tiered)
        return
    assert tiered.body == flat.body
    assert tiered.card.rounds == flat.card.rounds
    assert released(tiered.card) == released(flat.card)
    assert sum(site.patients for site in tiered.card.sites) == flat.body.patients


ROWS = [{"x": "ab"[i % 5 < 2], "z": "pqr"[i * 7 % 3], "y": int(i % 9 == 0)} for i in range(90)]
NEGATIVE = [row for row in ROWS if row["y"] == 0]


def test_a_site_that_opts_out_leaves_its_region_and_a_region_of_such_opts_out():
    tables = {"a": ROWS[:40], "b": ROWS[40:], "c": NEGATIVE[:30], "d": NEGATIVE[30:60], "e": NEGATIVE[60:75]}
    a, b, c, d, e = open_sites(tables)
    north, south = cc.Region("north", cc.House([a, c])), cc.Region("south", cc.House([d, e]))
    model = fit([north, south, b])
    assert model.body == fit(open_sites(tables)).body
    assert [site.name for site in model.card.sites] == ["north", "b"]
    said = [warning for warning in model.card.warnings if "opted out" in warning]
    assert said == ["opted out: south: no positive patient"]
    assert any("the regions north (1 hospital)" in warning for warning in model.card.warnings)
    below = north.card(model.card.study)
    assert [site.name for site in below.sites] == ["a"]
    assert "opted out: c: no positive patient" in below.warnings
    assert [entry.kind for entry in c.ledger.entries() if entry.mode == "exact"] == ["tree.classes"]


def test_why_a_region_opts_out_names_no_hospital():
    small = [{"x": "a", "z": "p", "y": int(i == 0)} for i in range(9)]
    region = cc.Region("r", cc.House(open_sites({"secret one": small, "secret two": NEGATIVE})))
    question = AskClassCounts(query="", target="y", sample=Sample(positive=1, negatives=1))
    reply = open_reply(deliver(region, encode(wrap("tree.classes", question))))
    assert b"secret" not in encode(reply)
    counts = decode(reply.body, ClassCounts)
    assert counts.opts_out == "fewer than 4 patients to learn from, no positive patient"
    assert (counts.negatives, counts.positives, counts.values) == (0, 0, (0,))
    assert reply.charge.numbers == 5  # two counts of each, and the value that one of them told to occur


class Crashing:
    """A site that answers some questions and then is gone."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("gone")
        return self._site.answer(message)


@pytest.mark.parametrize("answers", [1, 2, 4])
def test_a_region_that_loses_a_site_is_left_out_of_the_ensemble(answers):
    tables = {"a": ROWS[:30], "b": ROWS[30:60], "c": ROWS[60:], "d": NEGATIVE}
    a, b, c, d = open_sites(tables)
    model = fit([cc.Region("r", cc.House([a, Crashing(b, 1 + answers), d])), c])
    assert model.body == fit(open_sites({"c": tables["c"]})).body
    assert [(refusal.site, refusal.rule) for refusal in model.card.refusals] == [("r", "lost")]


def test_a_region_asked_for_votes_out_of_the_blue_asks_its_sites_what_they_know():
    """Started again in the middle of a study, it takes it up with the same sites."""
    messages = []

    class Noting(cc.Region):
        def answer(self, message):
            messages.append(message)
            return super().answer(message)

    sites = open_sites({"a": ROWS[:50], "b": ROWS[50:]})
    identity = cc.Region("r", cc.House(sites)).identity
    first = Noting("r", cc.House(sites), identity=identity)
    fit([first])
    votes = messages[-1]
    again = cc.Region("r", cc.House(sites), identity=identity)
    one, other = (open_reply(deliver(region, votes)) for region in (first, again))
    assert not isinstance(other, Refusal)
    assert other.body == one.body
