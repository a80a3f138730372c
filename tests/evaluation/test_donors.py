"""Donor models: the thesis' own tables, the rules where it is silent, and the path through the gate."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.evaluation.alone import cross_validate, fit_alone
from concilium.evaluation.comparison import compare, estimate_difference, learn_in_every_way
from concilium.evaluation.donors import (
    OwnModels,
    Ranking,
    _Candidate,
    _rank_donors,
    _weigh,
    count_own,
    describe,
)
from concilium.evaluation.leave_out import Predictions, figures, predict_at
from concilium.models.validation import Validation
from concilium.privacy.accounting import rho_from_pure
from concilium.protocol.cohort import View
from concilium.protocol.region import Region
from concilium.study.donating import _count_wrong

TABLE_6_9 = [
    _Candidate("12323", 0.9643, 549, 0.67),
    _Candidate("36194", 0.9763, 385, 0.66),
    _Candidate("6558", 0.9512, 312, 0.76),
    _Candidate("6577", 0.9548, 238, 0.69),
]


def test_table_6_9_of_the_thesis():
    ranked = _rank_donors(TABLE_6_9)
    assert {donor.site: donor.weight for donor in ranked} == pytest.approx(
        {"12323": 0.9, "36194": 0.8, "6558": 0.9, "6577": 0.8}
    )
    # The thesis leaves ties open; the one with more positive patients is taken.
    assert [donor.site for donor in ranked] == ["12323", "6558", "36194", "6577"]


def test_only_above_the_threshold():
    at_it = _Candidate("at", 0.95, 9999, 1.0)
    assert [donor.site for donor in _rank_donors([*TABLE_6_9, at_it])] == [
        d.site for d in _rank_donors(TABLE_6_9)
    ]
    assert _rank_donors(TABLE_6_9, threshold=0.97)[0].site == "36194"
    assert _rank_donors([]) == []


def test_beyond_the_fifth_rank_nothing_counts_and_equals_rank_alike():
    assert _weigh([60, 50, 40, 30, 20, 10]) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.0])
    assert _weigh([5, 7, 7, 1]) == pytest.approx([0.8, 1.0, 1.0, 0.7])


@given(
    st.lists(
        st.builds(
            _Candidate,
            st.text("abc", min_size=1, max_size=4),
            st.floats(0, 1),
            st.integers(0, 30),
            st.floats(0, 1),
        ),
        max_size=12,
    )
)
def test_the_winner_has_the_best_mean_of_two_ranks(candidates):
    ranked = _rank_donors(candidates)
    able = [c for c in candidates if c.accuracy > 0.95]
    assert len(ranked) == len(able)
    for donor in ranked:
        first = 1 + sum(c.positives > donor.positives for c in able)
        second = 1 + sum(c.auc > donor.auc for c in able)
        points = [11 - place if place <= 5 else 0 for place in (first, second)]
        assert donor.weight == pytest.approx(sum(points) / 20)
        assert donor.weight <= ranked[0].weight + 1e-9


def hospital(count, noise=0):
    """Patients whose outcome follows from x, except for some."""
    return cc.Records.from_rows(
        [
            {"x": "ab"[i % 4 == 0], "z": i % 3, "y": int((i % 4 == 0) != (i % 20 < noise))}
            for i in range(count)
        ]
    )


TABLES = {"large": hospital(200), "small": hospital(40), "noisy": hospital(200, noise=5), "tiny": hospital(6)}


def make():
    return cc.DecisionTree("y", max_depth=2, growth="id3")


def open_sites(tables: Any = None, **policy: Any) -> list[cc.Site]:
    return [cc.Site(name, table, cc.Policy(**policy)) for name, table in (tables or TABLES).items()]


def simulate(tables: Any) -> tuple[Any, Any]:
    """What the simulation says: ways of learning, where all other hospitals together stand for the federation."""
    federated = {
        site: predict_at(
            site,
            make().fit(cc.House(open_sites({n: t for n, t in tables.items() if n != site}))),
            table,
            [0, 1],
        )
        for site, table in tables.items()
    }
    ways, donors = learn_in_every_way(make, tables, federated, positive=1, classes=[0, 1])
    return ways, donors


def test_table_6_9_by_the_gate_is_that_of_the_simulation() -> None:
    ranked = OwnModels.of(make(), positive=1).fit(cc.House(open_sites()))
    _, donors = simulate(TABLES)
    assert [{**vars_of(donor)} for donor in ranked.rank().donors] == donors
    assert [donor["site"] for donor in donors] == ["large", "small"]
    assert ranked.rank().others("large") == ["small"]
    for site, counts in ranked.body.sites.items():
        said = cross_validate(make, site, TABLES[site], classes=[0, 1])
        if said is None:
            assert (site, counts) == ("tiny", [0, 0, 0, 0])
            continue
        exact = figures([said], 1)
        assert describe(site, counts).accuracy == exact["accuracy"]
        assert describe(site, counts).auc == pytest.approx(exact["auc"], abs=1e-12)
    released = {(one.kind, one.numbers, one.cost) for one in ranked.card.releases}
    assert released == {("model.own", 4, None)}  # nothing of a model


def vars_of(donor: Any) -> dict[str, Any]:
    return {name: getattr(donor, name) for name in donor.__struct_fields__}


def test_table_6_11_by_the_gate_is_that_of_the_simulation() -> None:
    """The donor lends by a study of its own, each borrower counts its wrongly diagnosed through its gate; the interval
    beside the federated model is the simulation's."""
    tables = {**TABLES, "odd": hospital(60, noise=9)}
    ways, _ = simulate(tables)
    sites = {site.name: site for site in open_sites(tables, minimum_patients=0)}
    ranking = OwnModels.of(make(), positive=1).fit(cc.House(list(sites.values()))).rank()
    differences, patients = [], []
    for name, site in sites.items():
        donor = ranking.others(name)[0]
        lent = make().fit(cc.House([sites[donor]]))
        assert lent.body == fit_alone(make, donor, tables[donor]).body
        assert [one.name for one in lent.card.sites] == [donor]
        table = Validation.of(lent, positive=1).fit(cc.House([site])).body
        said = ways["donor"][name]
        assert _count_wrong(table) == sum(a != b for a, b in zip(said.truth, said.predicted, strict=True))
        federated = ways["federated"][name]
        wrong = sum(a != b for a, b in zip(federated.truth, federated.predicted, strict=True))
        patients.append(sum(map(sum, table.counts)))
        differences.append((_count_wrong(table) - wrong) / patients[-1])
    interval = estimate_difference(differences, patients)
    expected = compare(ways, 1)["intervals"]["donor"]
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (expected["mean"], expected["low"], expected["high"])
    )


def test_without_a_donor_the_best_is_named() -> None:
    ranked = OwnModels.of(make(), positive=1).fit(cc.House(open_sites({"noisy": TABLES["noisy"]})))
    assert "more than 95% of its patients (the best, noisy, reaches 75.0%)" in ranked.rank().why_none()
    assert ranked.rank(0.7).others("tiny") == ["noisy"]
    assert "none has a model of its own" in Ranking(()).why_none()
    both = OwnModels.of(make(), positive=1).fit(cc.House(open_sites())).rank(0.999)
    best = max(both.candidates, key=lambda one: one.accuracy).site
    assert f"the best, {best}," in both.why_none("another")
    assert f"the best, {best}," not in both.why_none(best)  # no hospital borrows from itself
    assert Ranking((_Candidate("large", 1.0, 5, 1.0),)).others("large") == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.1, 0.4, 0.5, 0.9])), min_size=1, max_size=12))
def test_the_counts_are_those_of_every_pair(patients):
    truth = [int(has) for has, _ in patients]
    said = Predictions(
        "n",
        (0, 1),
        truth,
        [int(risk > 0.5) for _, risk in patients],
        [[1 - risk, risk] for _, risk in patients],
    )
    pairs = itertools.product(
        [risk for has, risk in patients if has], [risk for has, risk in patients if not has]
    )
    twice = sum(2 * (one > other) + (one == other) for one, other in pairs)
    right = sum(has == (risk > 0.5) for has, risk in patients)
    assert count_own(said, 1) == (len(patients), right, sum(truth), twice)
    assert describe("n", count_own(said, 1)).auc == (figures([said], 1)["auc"] or 0.0)


STATED: dict[str, Any] = {"values": {"x": ["a", "b"], "z": [0, 1, 2], "y": [0, 1]}}
SCHEMA = {"x": "code", "z": "code", "y": "code"}
KEY = b"the division key of these tests"


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        x = "ab"[chance.integers(2)]
        rows.append({"x": x, "z": int(chance.integers(3)), "y": int((x == "a") != (chance.random() < 0.1))})
    return rows


def rank_with_noise(**changes: Any) -> OwnModels:
    tree = cc.DecisionTree("y", growth="id3", max_depth=2, release="private", epsilon=1, **STATED)
    return OwnModels.of(tree, **{"positive": 1, "epsilon": 1, "blocks": 4, **changes})


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 59), st.integers(0, 10**6))
def test_one_patient_moves_noisy_figures_by_no_more_than_is_charged_for(place, seed):
    """From rows: with and without one patient, of any value; what is computed before the noise."""
    question = rank_with_noise().question
    rows = make_rows(60, seed)
    if seed % 2:
        rows[place] = {"x": "a rare value", "z": 77, "y": "neither"}
    answers = []
    for table in (rows, rows[:place] + rows[place + 1 :]):
        view = View(cc.Records.from_rows(table, schema=SCHEMA), cc.Policy(), division_key=KEY).each_by_itself
        answers.append(question.compute(view.select("", "y").telling_all()))
    moved = np.abs(answers[0] - answers[1])
    assert moved.sum() <= question.sensitivity.l1
    assert (moved**2).sum() <= question.sensitivity.squared


def test_noisy_figures_are_charged_and_near_the_truth() -> None:
    rows = {
        "good": make_rows(2000, 1),
        "poor": [{**row, "y": i % 2} for i, row in enumerate(make_rows(900, 2))],
    }
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    sites = [
        cc.Site(name, cc.Records.from_rows(one, schema=SCHEMA), policy, division_key=KEY)
        for name, one in rows.items()
    ]
    ranked = rank_with_noise(epsilon=100, blocks=10).fit(cc.House(sites))
    good, poor = ranked.rank(0.8).candidates
    assert ranked.rank(0.8).others() == ["good"]
    positives = sum(row["y"] for row in rows["good"])
    # Laplace noise is beyond 20 standard deviations once in e^28.
    deviations = ranked.deviations
    assert abs(good.positives - positives) <= 20 * deviations["positives"] + 1
    assert abs(good.accuracy - 0.9) < 20 * deviations["accuracy"] + 0.04
    assert poor.accuracy < 0.7
    for site in sites:
        assert site.ledger.spent() == rho_from_pure(100) == ranked.plan().total
    assert {one.kind for one in ranked.card.releases} == {"model.own"}


def test_a_hospital_that_leaves_small_counts_out_or_a_region_does_not_answer() -> None:
    sites = [*open_sites({"large": TABLES["large"]}), *open_sites({"small": TABLES["small"]}, minimum_cell=3)]
    ranked = OwnModels.of(make(), positive=1).fit(cc.House(sites))
    assert set(ranked.body.sites) == {"large"}
    assert "small counts" in ranked.card.refusals[0].reason
    region = Region("west", cc.House(open_sites({"small": TABLES["small"]})))
    with pytest.raises(HouseError, match=r"a region cannot answer a question of kind 'model\.own'"):
        OwnModels.of(make(), positive=1).fit(cc.House([region]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": None}, "an epsilon and blocks where its figures have noise"),
        ({"blocks": None}, "an epsilon and blocks where its figures have noise"),
        ({"settings": {"max_depth": 2}}, "names the 'attributes'"),
        ({"settings": {"leaves": 3}}, "has no parameter 'leaves'"),
        ({"learned_by": "cox"}, "'learned_by'"),
    ],
)
def test_what_is_no_ranking_is_refused(changes: dict[str, Any], words: str) -> None:
    valid = rank_with_noise().get_params()
    with pytest.raises(StudyError, match=words):
        OwnModels(**{**valid, **changes})
    with pytest.raises(StudyError, match="donors lend models that were learned by"):
        OwnModels.of(cc.Describe(target="y"), positive=1)  # type: ignore[arg-type]


def test_a_question_that_is_not_the_study_s_is_refused() -> None:
    ranked = OwnModels.of(make(), positive=1)
    other = OwnModels.of(cc.DecisionTree("y", max_depth=5), positive=1)
    assert ranked.find_objection(ranked.question) is None
    assert "'encoded' is not that of the study" in (ranked.find_objection(other.question) or "")
