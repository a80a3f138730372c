"""Sizes settled on bands of sites left out in turn, against the definition worked out patient by patient."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_voting_ensemble import binary, laid_out, majority, nested, taking_part

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.evaluation.leave_out import leave_bands_out
from concilium.protocol.messages import open_envelope
from concilium.trees.ensemble import _find_final, deal_bands
from concilium.trees.voting import VotingTrees
from pooled_id3 import id3
from strategies import rare_houses


@given(
    sites=rare_houses(),
    bands=st.integers(2, 3),
    negatives=st.integers(1, 3),
    max_depth=st.sampled_from([1, 2]),
    vote=st.sampled_from(["balanced", "majority"]),
)
@settings(max_examples=80, deadline=None)
def test_sizes_are_settled_on_bands_that_had_no_part(sites, bands, negatives, max_depth, vote):
    there = taking_part(sites, negatives)
    pooled = [row for rows in there.values() for row in rows]
    if len(there) < bands or all(row["y"] == 1 for row in pooled):
        return
    options = {"negatives": negatives, "max_depth": max_depth, "min_leaf": 1}
    house = cc.House([cc.Site(name, cc.Records.from_rows(rows)) for name, rows in sites.items()])
    model = VotingTrees("y", 1, growth="id3", imbalance=1, vote=vote, bands=bands, **options).fit(house)
    attributes = set(pooled[0]) - {"y"}

    def expert(among, number):
        sample = [row for name in among for row in laid_out(there[name], 1, negatives, number)]
        return id3(binary(sample, 1), attributes, "y", max_depth, 1)

    order = sorted(there, key=lambda name: (-len(there[name]), name))
    groups = [order[band::bands] for band in range(bands)]
    measures = []
    for stage in model.body.stages:
        right, everyone = {True: 0, False: 0}, {True: 0, False: 0}
        for group in groups:
            others = [name for name in there if name not in group]
            experts = [expert(others, number) for number in range(stage.experts)]
            for row in binary([row for name in group for row in there[name]], 1):
                everyone[row["y"]] += 1
                right[row["y"]] += majority(experts, row, vote) == row["y"]
        measures.append(sum(Fraction(right[c], everyone[c]) for c in right) / 2)
        assert stage.balanced_accuracy == float(measures[-1])
    final = _find_final(measures, Fraction(1, 1000))
    assert len(model.body.experts) == 2 * final + 1
    assert [nested(nodes) for nodes in model.body.experts] == [
        expert(there, number) for number in range(2 * final + 1)
    ]
    assert model.body.bands == bands
    assert f"{bands} bands" in model.text()


ROWS = [{"y": int(i % 10 == 0), "a": i % 3, "b": (i // 10) % 2} for i in range(40)]


class Recorded:
    """A site whose questions are written down."""

    def __init__(self, site, kinds):
        self.name, self.identity, self.introduce = site.name, site.identity, site.introduce
        self._site, self._kinds = site, kinds

    def answer(self, message):
        self._kinds.append((self.name, open_envelope(message).kind))
        return self._site.answer(message)


def test_a_band_is_asked_for_votes_and_the_others_for_samples():
    kinds = []
    sites = [Recorded(cc.Site(name, cc.Records.from_rows(ROWS)), kinds) for name in "abcd"]
    model = VotingTrees("y", 1, growth="id3", imbalance=1, bands=2, max_depth=1).fit(cc.House(sites))
    votes = [kind for kind in kinds if kind[1] == "tree.votes"]
    assert len(votes) == 4 * len(model.body.stages)  # each site of the four in one band of two, once a stage
    released = {(one.site, one.kind): one.answers for one in model.card.releases}
    assert {released[site, "tree.votes"] for site in "abcd"} == {len(model.body.stages)}


def test_what_bands_need_is_said_in_one_sentence():
    sites = [cc.Site(name, cc.Records.from_rows(ROWS)) for name in "ab"]
    with pytest.raises(HouseError, match="'bands' of 3 need as many sites that take part, and there are 2"):
        VotingTrees("y", 1, imbalance=1, bands=3).fit(cc.House(sites))
    with pytest.raises(StudyError, match="under masks the sum with a hospital"):
        VotingTrees("y", 1, bands=3, release="masked")
    with pytest.raises(StudyError, match="the 'bands' of VotingTrees must be"):
        VotingTrees("y", 1, bands=1)


def test_a_model_file_tells_its_bands(tmp_path):
    sites = [cc.Site(name, cc.Records.from_rows(ROWS)) for name in "abc"]
    model = VotingTrees("y", 1, growth="id3", imbalance=1, bands=3).fit(cc.House(sites))
    model.save(tmp_path / "model.json")
    again = cc.load(tmp_path / "model.json")
    assert again.bands == 3
    assert again.body == model.body
    assert any("3 bands of sites left out in turn" in warning for warning in again.card.warnings)


@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 50), min_size=2), st.integers(2, 6))
def test_bands_are_those_of_an_evaluation(sizes, bands):
    if bands > len(sizes):
        return
    dealt = deal_bands(sizes, bands)
    assert [fold.left_out for fold in leave_bands_out(sizes, bands)] == dealt
    assert sorted(name for band in dealt for name in band) == sorted(sizes)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
