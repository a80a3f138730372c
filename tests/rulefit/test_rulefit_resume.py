"""A fit that breaks off in the middle is resumed: the same model, and nothing is asked or charged twice."""

from __future__ import annotations

import numpy as np
import pytest
from rule_patients import deal, draw, small_rulefit

import concilium as cc
from concilium.errors import HouseError
from concilium.rulefit import fedda


class Dying:
    """A site that answers so many questions and is then gone."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        if self._left <= 0:
            raise ConnectionError("the wire is cut")
        self._left -= 1
        return self._site.answer(message)


class Counting:
    def __init__(self, site):
        self.name, self._site, self.asked = site.name, site, 0
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self.asked += 1
        return self._site.answer(message)


@pytest.fixture(scope="module")
def patients():
    return draw(210, 6)


def open_sites(patients, count=3):
    """Sites that hold out the same patients each time they are opened."""
    return [
        cc.Site(f"s{part}", records, division_key=f"the key of s{part}".encode())
        for part, records in enumerate(deal(*patients, count))
    ]


def questions(site):
    return [entry.question for entry in site.ledger.entries() if entry.question]


OPTIONS = {
    "one penalty": {"penalty": 0.005},
    "a path": {"penalty": [0.003, 0.03]},
    "dual averaging": {"penalty": 0.01, "solver": "fedda", "trees": 4},
}


@pytest.fixture(scope="module")
def whole(patients):
    return {
        name: small_rulefit(**options).fit(cc.House(open_sites(patients)))
        for name, options in OPTIONS.items()
        if name != "dual averaging"
    }


@pytest.mark.parametrize("answers", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("name", ["one penalty", "a path"])
def test_an_interrupted_fit_resumes_to_the_same_model_without_new_charges(
    patients, whole, tmp_path, name, answers
):
    sites, journal = open_sites(patients), tmp_path / "run.journal"
    model = small_rulefit(**OPTIONS[name])
    with pytest.raises(HouseError, match=r"stopped in round \d+: s1: .*the wire is cut"):
        model.fit(
            cc.House([sites[0], Dying(sites[1], answers + 1), sites[2]], on_loss="stop", journal=journal)
        )
    before = [len(questions(site)) for site in sites]
    assert before[1] == answers
    counting = [Counting(site) for site in sites]
    resumed = small_rulefit(**OPTIONS[name]).fit(cc.House(counting, on_loss="stop", journal=journal))
    assert resumed.body == whole[name].body
    assert resumed.card.rounds == whole[name].card.rounds
    assert resumed.card.releases == whole[name].card.releases
    for site, counted, had in zip(sites, counting, before, strict=True):
        asked = questions(site)
        assert len(asked) == len(set(asked)) == whole[name].card.rounds
        assert counted.asked == whole[name].card.rounds - had + 1  # and the study was proposed again


def test_dual_averaging_is_resumable(patients, tmp_path, monkeypatch):
    monkeypatch.setattr(fedda.fit, "__kwdefaults__", {**fedda.fit.__kwdefaults__, "rounds": 12})
    options = OPTIONS["dual averaging"]
    straight = small_rulefit(**options).fit(cc.House(open_sites(patients)))
    sites, journal = open_sites(patients), tmp_path / "run.journal"
    house = cc.House([sites[0], Dying(sites[1], 9), sites[2]], on_loss="stop", journal=journal)
    with pytest.raises(HouseError, match="stopped in round"):
        small_rulefit(**options).fit(house)
    resumed = small_rulefit(**options).fit(cc.House(sites, on_loss="stop", journal=journal))
    assert resumed.body == straight.body
    assert all(len(questions(site)) == straight.card.rounds for site in sites)


@pytest.mark.parametrize("answers", [5, 10, 16])
def test_a_masked_fit_resumes_with_the_same_masks(patients, whole, tmp_path, answers):
    """Each sum is opened once: what was opened before the break is not opened, and not charged, again."""
    sites, journal = open_sites(patients), tmp_path / "run.journal"
    options = {**OPTIONS["one penalty"], "release": "masked", "epsilon": None}
    with pytest.raises(HouseError, match="resume it when all are back"):
        small_rulefit(**options).fit(
            cc.House([sites[0], Dying(sites[1], answers), sites[2]], journal=journal)
        )
    resumed = small_rulefit(**options).fit(cc.House(sites, journal=journal))
    assert resumed.body == whole["one penalty"].body
    straight = open_sites(patients)
    small_rulefit(**options).fit(cc.House(straight))
    for site, other in zip(sites, straight, strict=True):
        assert len(questions(site)) == len(set(questions(site))) == len(questions(other))


def test_a_finished_fit_is_had_again_for_nothing(patients, whole, tmp_path):
    sites, journal = open_sites(patients), tmp_path / "run.journal"
    small_rulefit(**OPTIONS["one penalty"]).fit(cc.House(sites, journal=journal))
    counting = [Counting(site) for site in sites]
    again = small_rulefit(**OPTIONS["one penalty"]).fit(cc.House(counting, journal=journal))
    assert again.body == whole["one penalty"].body
    assert [site.asked for site in counting] == [1, 1, 1]  # to propose it


def test_a_journal_of_other_settings_is_refused(patients, tmp_path):
    journal = tmp_path / "run.journal"
    small_rulefit(**OPTIONS["one penalty"]).fit(cc.House(open_sites(patients), journal=journal))
    changes = (
        {"trees": 14},
        {"penalty": 0.006},
        {"seed": 1},
        {"support": 11},
        {"leaves": 5},
        {"cutoffs": 19},
    )
    for change in changes:
        model = small_rulefit(**{**OPTIONS["one penalty"], **change})
        with pytest.raises(HouseError, match="belongs to another study"):
            model.fit(cc.House(open_sites(patients), journal=journal))


def test_a_site_lost_on_the_way_leaves_the_model_of_the_rest(patients):
    sites = open_sites(patients)
    found = small_rulefit().fit(cc.House([sites[0], Dying(sites[1], 4), sites[2]]))
    rest = small_rulefit().fit(cc.House([sites[0], sites[2]]))
    assert found.body == rest.body
    assert any("lost on the way: s1;" in warning for warning in found.card.warnings)


def test_numpy_settings_can_be_resumed(patients, tmp_path):
    model = small_rulefit(positive=np.int64(1), bins={"a": np.linspace(-2, 2, 9)})
    fitted = model.fit(cc.House(open_sites(patients), journal=tmp_path / "run.journal"))
    assert fitted.classes_ == [0, 1]
