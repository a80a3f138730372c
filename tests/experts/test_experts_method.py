"""`Experts` with real sites: what is asked, charged, refused, and what the student is worth."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.errors import BudgetError, HouseError, ModelError, StudyError
from concilium.experts.expert import ExpertEnsemble, train_experts
from concilium.experts.expert_answers import (
    GRID,
    AskExpertCounts,
    AskExpertLabels,
    AskGrownExperts,
    _find_sensitivity,
)
from concilium.experts.experts import _ExpertLabels
from concilium.experts.patient_windows import lay_out
from concilium.experts.site_experts import _rank, open_drawn
from concilium.policy.policy import Policy
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from experts.expert_patients import make_series

BINS = {"HR": [60.0, 80.0, 100.0, 120.0], "Temp": [36.0, 37.0, 38.0]}
SMALL = {"bins": BINS, "units": 3, "epochs": 10, "window": "12h", "lead": "6h", "every": "2h"}
GENEROUS = Policy(budget=cc.Budget("unlimited"))


def open_sites(count=3, patients=40, ill=0.4, **options):
    return [
        cc.Site(name, make_series(patients, place, ill=ill), **{"policy": GENEROUS, **options})
        for place, name in enumerate("abcd"[:count])
    ]


def make(**more):
    return cc.Experts("sepsis", **{**SMALL, "epsilon": 8, "experts": 40, **more})


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    with zero_noise():
        yield


def look_at(series):
    return View(cc.Patients(series=series).selectable, Policy(), parts={"series": series})


def find_auc(scores, truth):
    order = np.argsort(np.argsort(scores)) + 1
    ill = truth.sum()
    return (order[truth].sum() - ill * (ill + 1) / 2) / (ill * (len(truth) - ill))


@pytest.mark.parametrize("release", ["private", "exact", "masked"])
def test_the_student_tells_who_falls_ill(release):
    sites = open_sites(patients=100, ill=0.7) if release == "private" else open_sites()
    model = make(release=release, public=make_series(60, 11), experts=100).fit(cc.House(sites))
    test = make_series(60, 12)
    severity = model.predict_severity(test, whole=True)
    assert severity.shape == test.stays["sepsis"].shape
    assert find_auc(severity, test.stays["sepsis"] == 1) > 0.85
    assert model.body.selection == ("drawn by their own outcome" if release == "private" else "grown")
    student = model.body.student
    assert len(student.features) <= 20
    assert "HR" in model.text()
    if release == "private":
        changing = sum(
            int(lay_out(make_series(100, at, ill=0.7), model.task).changes.sum()) for at in range(3)
        )
        assert abs(model.body.size - changing) < 12
        assert abs(model.body.prevalence - changing / 300) < 0.06
        assert model.body.septic is None
        assert 0 < float(model.body.deviation) < 4
        assert model.body.doubt < 1e-3
    else:
        assert 3 <= model.body.size <= 120
        assert 0 < model.body.septic <= model.body.size


def test_labels_without_noise_are_the_average_of_all_experts(without_noise):
    """Each around its own mean, held to an eighth of the bound, and only of patients whose severity changes."""
    sites, public = open_sites(patients=100, ill=0.7), make_series(5, 11)
    study = make(public=public, experts=100)
    run = cc.House(sites).open(study.draft())
    with run:
        told = run.converse(study._converse_privately(run))
    laid, asked = study.stays.open(study.task)
    answers = []
    for place in range(3):
        series = make_series(100, place, ill=0.7)
        own = lay_out(series, study.task)
        changing = [row for row in range(100) if own.cut(row).constant is None]
        ensemble = ExpertEnsemble(study.task, train_experts(own, changing, public=laid))
        answers.append(ensemble.tell(laid)[:, asked].astype(float))
    told_by_hand = np.concatenate(answers)
    off = told_by_hand - told_by_hand.mean(axis=1, keepdims=True)
    off *= np.minimum(1, 0.5 / np.sqrt((off**2).mean(axis=1, keepdims=True)))
    assert told.experts == len(off)
    np.testing.assert_allclose(told.labels, off.mean(axis=0), atol=2 / GRID)


@pytest.mark.parametrize(("network", "share"), [("lstm", None), ("lstm", 500), ("linear", 500)])
def test_one_patient_more_or_fewer_moves_one_expert_and_nothing_else(without_noise, network, share):
    """Neighbours, at the question itself: sums within what is charged, and the same shape whoever is there."""
    study = make(public=make_series(5, 11), network=network)
    question = AskExpertLabels(
        query="", target="", task=study.task, experts=10, stays=study.stays, share=share, noise=Gaussian("1")
    )
    series = make_series(30, 3)
    whole = question.compute(look_at(series).select("", ""))
    limit = question.sensitivity.squared
    assert limit == study.stays.steps * (_find_sensitivity(4) * (1 if share is None else Fraction(1, 8))) ** 2
    moved = []
    for gone in range(0, 30, 3):
        rest = series.take(np.array([row for row in range(30) if row != gone]))
        other = question.compute(look_at(rest).select("", ""))
        assert other.shape == whole.shape
        difference = (whole - other).astype(object)
        assert abs(difference).max() <= _find_sensitivity(4)
        assert (difference**2).sum() <= limit
        moved.append(bool(difference.any()))
    assert any(moved)
    assert not all(moved)  # most are not in the sample
    nobody = look_at(series).select("", "").take(np.zeros(0, dtype=np.intp))
    assert question.compute(nobody).tolist() == [0] * question.numbers


def test_who_answers_is_decided_by_each_stay_and_a_public_seed():
    series, task = make_series(30, 3), make().task
    order = _rank(lay_out(series, task)).tolist()
    assert sorted(order) == list(range(30))
    shuffled = np.random.default_rng(1).permutation(30)
    again = shuffled[_rank(lay_out(series.take(shuffled), task))].tolist()
    assert again == order  # not by place
    for gone in (order[0], order[7]):
        kept = [row for row in range(30) if row != gone]
        rest = np.array(kept)[_rank(lay_out(series.take(np.array(kept)), task))].tolist()
        assert rest == [row for row in order if row != gone]
    other = msgspec.structs.replace(task, network=msgspec.structs.replace(task.network, seed=2))
    assert _rank(lay_out(series, other)).tolist() != order


def test_a_student_is_asked_for_after_and_pays_once():
    sites = open_sites(patients=100, ill=0.7)
    fitted = make(experts=100).fit(cc.House(sites))
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]
    with pytest.raises(ModelError, match="there is no student yet"):
        fitted.predict_proba(make_series(3, 1))
    student = fitted.student(make_series(30, 11))
    price = make().rho
    assert all(0 < site.ledger.spent() <= price for site in sites)
    before = sites[0].ledger.spent()
    for _ in range(3):
        student.predict(make_series(10, 5))
    assert sites[0].ledger.spent() == before
    with pytest.raises(StudyError, match="has its student already"):
        student.student(make_series(30, 12))
    assert student.card.release == "private"
    assert "differential privacy per patient: epsilon = 8" in student.card.warnings[0]


def test_single_answers_are_charged_each():
    sites = open_sites()
    fitted = make(epsilon=4).fit(cc.House(sites))
    stay = {"HR": [80.0, 95.0, 120.0], "Temp": [37.0, 38.0, 38.9]}
    one = fitted.ask(stay)
    assert len(one.answer) == 1
    first = sites[0].ledger.spent()
    assert first == rho_from_pure("4")
    fitted.ask(stay)
    assert sites[0].ledger.spent() == 2 * first
    course = fitted.ask(stay, whole=True)
    assert len(course.answer) == 3
    assert sites[0].ledger.spent() > 2 * first
    with pytest.raises(StudyError, match="one stay at a time; got 2"):
        fitted.ask(make_series(2, 1))


def test_a_ledger_of_pure_epsilon_pays_for_one_step_and_not_for_a_course():
    sites = open_sites(policy=Policy(budget=cc.Budget("10", currency="epsilon")))
    with pytest.raises(HouseError, match="for pure mechanisms"):  # a student's labels have Gaussian noise
        make(epsilon=4).fit(cc.House(sites))
    fitted = make(epsilon=4, answers="step").fit(cc.House(sites))
    fitted.ask({"HR": [80.0]})
    assert sites[0].ledger.spent() == 4
    with pytest.raises(HouseError, match="for pure mechanisms"):
        fitted.ask({"HR": [80.0, 90.0]}, whole=True)


@pytest.mark.parametrize("whole", [False, True])
def test_noise_of_answers_is_as_told(whole):
    """As a distribution: the same stay asked many times, around one mean, with the deviation that the answer states."""
    sites = open_sites(patients=6)
    fitted = make(epsilon=4, experts=6).fit(cc.House(sites))
    answers = [fitted.ask({"HR": [80.0, 90.0]}, whole=whole) for _ in range(25)]
    drawn = np.array([one.answer[-1] for one in answers])
    told = answers[0].deviation
    # 25 draws: the deviation is within a factor of two but once in ten thousand.
    assert told / 2 < drawn.std(ddof=1) < told * 2
    assert abs(drawn.mean() - np.median(drawn)) < 2 * told


def test_too_small_an_ensemble_is_refused_before_anything_is_spent():
    sites = open_sites()
    with pytest.raises(
        StudyError, match=r"120 experts are too few to teach a student .* experts would do, or eps"
    ):
        make(epsilon=1, public=make_series(5, 1)).fit(cc.House(sites))
    with pytest.raises(StudyError, match="120 experts are too few to teach a student"):
        make(epsilon=1).fit(cc.House(sites)).student(make_series(5, 1))
    with pytest.raises(StudyError, match="too few to answer 96 steps privately"):
        make(epsilon=1, experts=25).fit(cc.House(sites)).ask({"HR": [80.0] * 96}, whole=True)
    assert [site.ledger.spent() for site in sites] == [0, 0, 0]


def test_a_budget_too_small_for_one_answer_says_what_would_fit():
    sites = open_sites(patients=100, ill=0.7, policy=Policy(budget=cc.Budget("1", delta="1e-6")))
    with pytest.raises(HouseError, match=r"this would cost rho = .* would fit"):
        make(public=make_series(5, 1), experts=100).fit(cc.House(sites))
    with pytest.raises(BudgetError):
        sites[0].ledger.check_room(make().rho, "rho")


def test_conditional_noise_is_no_differential_privacy_and_is_entered_as_unlimited():
    sites = open_sites()
    model = make(release="masked", conditional=4, public=make_series(30, 11)).fit(cc.House(sites))
    assert model.body.deviation > 0
    assert model.card.warnings[0].startswith("conditional, no differential privacy: noise of epsilon = 4")
    assert all(site.ledger.epsilon() == math.inf for site in sites)
    plain = make(release="exact", public=make_series(30, 11)).fit(cc.House(sites))
    assert plain.body.deviation == 0
    assert "nobody is protected" in plain.card.warnings[0]


def test_a_house_cannot_average_conditional_noise_away():
    sites = open_sites()
    study = make(release="exact", conditional=4, public=make_series(5, 11))
    run = cc.House(sites).open(study.draft())
    with run:
        question = next(study.converse(run))
        assert isinstance(question, AskGrownExperts)
        run.ask(question)
        again = msgspec.structs.replace(question, query=" ")
        with pytest.raises(HouseError):
            run.ask(again)
        shorter = make(release="exact", conditional=4, public=make_series(4, 11))
        with pytest.raises(HouseError, match="'asked_about' is not that of the study"):
            run.ask(msgspec.structs.replace(question, stays=shorter.stays))


def test_no_expert_leaves_a_hospital():
    """What is in the cache is in no message, as bytes of weights."""
    said = []

    class Listening:
        def __init__(self, site):
            self.site, self.name, self.identity = site, site.name, site.identity
            self.introduce = site.introduce

        def answer(self, message):
            reply = self.site.answer(message)
            said.append(reply)
            return reply

    sites = open_sites()
    make(release="exact", public=make_series(5, 11)).fit(cc.House([Listening(site) for site in sites]))
    kept = [bytes(one) for site in sites for one in site._context.view.cache._kept.values()]
    assert len(kept) > 10
    everything = b"".join(said)
    assert not any(weights[-200:-160] in everything for weights in kept)


def test_a_site_on_disk_keeps_its_experts_beside_its_ledger(tmp_path):
    for _ in range(2):
        sites = open_sites(count=1, ledger=tmp_path / "a.ledger")
        make(release="exact", public=make_series(5, 11)).fit(cc.House(sites))
        kept = sorted(path.stat().st_mtime_ns for path in (tmp_path / "a.ledger.cache").iterdir())
        sites[0].ledger.close()
    assert kept == sorted(path.stat().st_mtime_ns for path in (tmp_path / "a.ledger.cache").iterdir())
    assert 5 < len(kept) <= 40


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"limit": 5}, "grown under 'exact' and 'masked' only"),
        ({"conditional": 1}, "grown under 'exact' and 'masked' only"),
        ({"release": "exact", "answers": "step"}, "as 'private' only"),
        ({"epsilon": None}, "'epsilon' of an Experts must be given"),
        ({"window": "900h"}, "windows of 1 to 500 steps"),
        ({"bins": {"sepsis": [0.0, 1.0]}}, "experts learn from 1 to"),
    ],
)
def test_parameters_that_contradict_each_other_are_named(wrong, sentence):
    with pytest.raises(StudyError, match=sentence):
        make(**wrong)


def test_public_stays_that_are_not_at_hand_are_named():
    with pytest.raises(StudyError, match=r"'stays\.csv' are not at hand"):
        make(public="stays.csv").fit(cc.House(open_sites()))


def test_a_hospital_without_the_target_does_not_fit():
    sites = [*open_sites(count=2), cc.Site("d", make_series(9, 1).choose(["HR", "Temp"]), policy=GENEROUS)]
    with pytest.raises(HouseError, match="no 'sepsis', or none of the variables"):
        make(public=make_series(5, 1)).fit(cc.House(sites))


def test_what_a_loaded_student_says_needs_no_house(tmp_path):
    sites = open_sites(patients=100, ill=0.7)
    make(public=make_series(30, 11), experts=100).fit(cc.House(sites)).save(tmp_path / "model.json")
    model = cc.load(tmp_path / "model.json")
    explained = model.explain({"HR": [80, 100, 125]})
    said = str(explained)
    assert said.startswith("sepsis = ")
    assert (explained.probability, explained.interval) == (None, None)
    assert "A severity is no risk, and has no interval" in said
    assert "predicted risk" not in said
    assert "at a risk of" not in said
    doubtful = cc.Experts.of(msgspec.structs.replace(model.body, doubt=0.4), model.card)
    assert str(doubtful.explain({"HR": [80, 100, 125]})).startswith("Do not use this answer")
    assert "Not measured, and no reason for or against: Temp." in said
    with pytest.raises(ModelError, match="fit it anew"):
        model.ask({"HR": [80]})
    text = (tmp_path / "model.json").read_text().replace('"kind": "linear"', '"kind": "other"')
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ModelError, match="a network of the list"):
        cc.load(tmp_path / "broken.json")


def test_students_of_constants_are_refused_once_they_are_counted():
    """At natural prevalence most patients never change: 300 experts on paper, of which a handful says anything."""
    sites = open_sites(patients=100, ill=0.06)
    study = make(epsilon=4, experts=100, public=make_series(20, 11))
    with pytest.raises(
        StudyError, match=r"too few to teach a student .* have an outcome that changes, and only these"
    ):
        study.fit(cc.House(sites))
    # The count is paid for, and the labels are not.
    assert all(0 < site.ledger.spent() <= study.rho / 10 for site in sites)
    assert [one.kind for one in study.plan().questions] == ["experts.counts", "experts.labels"]
    assert study.plan().total == study.rho


def test_experts_are_of_patients_who_change_and_a_share_of_them():
    series, study = make_series(200, 3, ill=0.4), make(public=make_series(3, 11))
    laid, _ = study.stays.open(study.task)
    own = lay_out(series, study.task)
    cohort = look_at(series).select("", "")
    everyone = open_drawn(cohort, study.task, 1000, laid, study.stays.digest)
    assert len(everyone) == own.changes.sum()
    half = open_drawn(cohort, study.task, 500, laid, study.stays.digest)
    assert 0.3 < len(half) / len(everyone) < 0.7
    counted = AskExpertCounts(query="", target="", task=study.task, noise=Gaussian("1"))
    assert counted.compute(cohort).tolist() == [len(everyone), 200]
    assert set(_rank(own)[: len(everyone)].tolist()) == set(np.flatnonzero(own.changes).tolist())


def test_a_student_of_noise_is_called_one():
    study, dice = make(public=make_series(30, 11)), np.random.default_rng(4)
    noise = dice.normal(0, 0.2, study.stays.steps)
    features = study.stays.open(study.task)[0].values[study.stays.open(study.task)[1], 0]
    told = study._teach(_ExpertLabels(noise, 100, 0.2, None, 0.1))
    assert told.body.doubt > 0.01
    assert any("no better than chance" in one for one in told.warnings)
    telling = study._teach(_ExpertLabels(noise + features, 100, 0.2, None, 0.1))
    assert telling.body.doubt < 1e-6
    assert not any("no better than chance" in one for one in telling.warnings)


def test_the_mean_risk_at_public_stays_is_the_share_of_patients_who_change():
    sites, public = open_sites(patients=100, ill=0.7), make_series(60, 11)
    model = make(public=public, experts=100).fit(cc.House(sites))
    chances = model.predict_proba(public)[:, 1]
    assert chances.mean() == pytest.approx(model.body.prevalence, abs=0.01)
    severity = model.predict_severity(public)
    np.testing.assert_array_equal(model.predict(public) == 1, severity > model.body.student.alarm)


def test_no_reason_is_about_what_nobody_measured():
    sites = open_sites(patients=100, ill=0.7)
    model = make(public=make_series(60, 11), experts=100).fit(cc.House(sites))
    for patient, absent in (({"HR": [80, 100, 125]}, "Temp"), ({"Temp": [37.0, 38.5]}, "HR")):
        said = model.explain(patient)
        assert said.reasons or absent == "HR"
        assert not any(absent in name for one in said.reasons for name in one.attributes)
        assert f"Not measured, and no reason for or against: {absent}." in str(said)
    assert "in the latest 12h" in model.text()
    # Measured long ago is not measured: the value was carried for a day at most.
    old = model.explain({"HR": [80.0] * 60, "Temp": [39.0, *[None] * 59]})
    assert not any("Temp" in name for one in old.reasons for name in one.attributes)


@pytest.mark.parametrize("weights", ["optimal", "history"])
def test_weights_that_nothing_covers_go_without_privacy_only(weights, without_noise):
    public, sites = make_series(6, 11), open_sites(count=1)
    model = make(release="exact", weights=weights, public=public).fit(cc.House(sites))
    grown = make(release="exact").grow(make_series(40, 0, ill=0.4))
    asked = model.stays.open(model.task)[1]
    run = cc.House(open_sites(count=1)).open(model.draft())
    with run:
        labels = run.converse(model._converse_plainly()).labels
    np.testing.assert_allclose(labels, np.clip(grown.predict(public, weights)[asked], -999, 999), atol=2e-3)
    with pytest.raises(StudyError, match="which no noise covers"):
        make(weights=weights)
    with pytest.raises(StudyError, match="which no noise covers"):
        make(weights=weights, release="exact", conditional=1)


def test_weights_by_history_need_the_truth_of_public_stays():
    public = make_series(6, 11).choose(["HR", "Temp"])
    with pytest.raises(StudyError, match="weights by history need 'sepsis'"):
        make(release="exact", weights="history", public=public).fit(cc.House(open_sites(count=1)))


def test_a_new_patient_joins_a_grown_ensemble():
    study, stays = make(release="exact", experts=3), make_series(40, 0, ill=0.4)
    with pytest.raises(StudyError, match=r"call grow\(stays\) first"):
        study.join(stays.take(np.array([0])))
    grown = study.grow(stays)
    kept, error = list(grown.members.experts), grown.growth.error
    joined = [study.join(make_series(1, seed, ill=1.0, hours=(30, 40))) for seed in (101, 103, 111)]
    assert any(joined)
    assert grown.growth.error < error
    assert len(grown.members) == len(kept) + sum(joined)
    assert [one is other for one, other in zip(kept, grown.members.experts, strict=False)] == [True] * len(
        kept
    )
    # What the growth says of its error is what the members' average has on the patients who judged them.
    held = grown.validation
    known = ~np.isnan(held.severity)
    told = grown.members.predict(held)
    assert ((told - held.severity)[known] ** 2).mean() == pytest.approx(grown.growth.error, rel=1e-5)
    with pytest.raises(StudyError, match="one patient joins at a time; got 2"):
        study.join(make_series(2, 1))


def test_without_bins_a_network_sees_what_public_stays_measure():
    """A known variable at its clinical limits, another at quantiles of the public stays, none that nobody measured."""

    def widen(series):
        grids = {name: np.array(series[name]) for name in series.names}
        there = np.isfinite(grids["sepsis"])
        score = np.where(there, np.nan_to_num(grids["HR"]) * 7 + 3000, np.nan)
        return cc.Series(
            {**grids, "score": score, "bed": np.where(there, 1.0, np.nan), "Lactate": np.nan * score},
            lengths=series.lengths,
        )

    sites = [
        cc.Site(name, widen(make_series(40, place, ill=0.4)), GENEROUS) for place, name in enumerate("abc")
    ]
    asked = make(bins={}, release="exact", public=widen(make_series(30, 9)))
    student = asked.fit(cc.House(sites))
    assert set(asked.bins) == {"HR", "Temp", "score"}
    assert [one.name for one in asked.task.variables] == ["HR", "Temp", "score"]
    (heart,) = (one for one in asked.task.variables if one.name == "HR")
    assert (heart.low, heart.high) == (60, 100)  # the clinical range, as where no stays are at hand
    known = np.array(asked.public["score"])
    low, high = np.nanquantile(known, [0.05, 0.95])
    assert asked.bins["score"][0] == pytest.approx(low, rel=0.05)
    assert asked.bins["score"][-1] == pytest.approx(high, rel=0.05)
    said = "left out: Lactate, bed (the same in all public stays, or in none; give bins for it)"
    assert said in student.card.warnings
    assert said in student.text()
    assert make(bins={"HR": [60.0, 90.0]}, public=widen(make_series(30, 9))).bins == {"HR": [60.0, 90.0]}
