"""`Experts` with real sites: what is asked, charged, refused, and what the student is worth."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.errors import BudgetError, HouseError, ModelError, StudyError
from concilium.experts.averaging import GRID, find_sensitivity
from concilium.experts.expert_answers import AskExpertLabels, AskGrownExperts
from concilium.experts.patient_windows import lay_out
from concilium.experts.site_experts import _rank, open_unselected
from concilium.policy.policy import Policy
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from experts.expert_patients import make_series

BINS = {"HR": [60.0, 80.0, 100.0, 120.0], "Temp": [36.0, 37.0, 38.0]}
SMALL = {"bins": BINS, "units": 3, "epochs": 10, "window": "12h", "lead": "6h", "every": "2h"}
GENEROUS = Policy(budget=cc.Budget("unlimited"))


def open_sites(count=3, patients=40, **options):
    return [
        cc.Site(name, make_series(patients, place, ill=0.4), **{"policy": GENEROUS, **options})
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
    model = make(release=release, public=make_series(60, 11)).fit(cc.House(open_sites()))
    test = make_series(60, 12)
    severity = model.predict_severity(test, whole=True)
    assert severity.shape == test.stays["sepsis"].shape
    assert find_auc(severity, test.stays["sepsis"] == 1) > 0.85
    assert model.body.selection == ("unselected" if release == "private" else "grown")
    student = model.body.student
    assert len(student.features) <= 20
    assert "HR" in model.text()
    if release == "private":
        assert model.body.size == 120
        assert model.body.septic is None
        assert 0 < float(model.body.deviation) < 4
    else:
        assert 3 <= model.body.size <= 120
        assert 0 < model.body.septic <= model.body.size


def test_labels_without_noise_are_the_average_of_all_experts(without_noise):
    sites, public = open_sites(), make_series(5, 11)
    study = make(public=public)
    run = cc.House(sites).open(study.draft())
    with run:
        sums = run.converse(study._converse_privately(run))[0].labels
    laid, asked = study.stays.open(study.task)
    told = []
    for place in range(3):
        cohort = look_at(make_series(40, place, ill=0.4)).select("", "")
        told.append(open_unselected(cohort, study.task, 40).tell(laid)[:, asked])
    np.testing.assert_allclose(sums, np.concatenate(told).mean(axis=0), atol=2 / GRID)


def test_one_patient_more_or_fewer_moves_one_expert_and_nothing_else(without_noise):
    """Neighbours, at the question itself: sums within what is charged, and the same shape whoever is there."""
    study = make(public=make_series(5, 11))
    question = AskExpertLabels(
        query="", target="", task=study.task, experts=10, stays=study.stays, noise=Gaussian("1")
    )
    series = make_series(30, 3)
    whole = question.compute(look_at(series).select("", ""))
    limit = question.sensitivity.squared
    assert limit == study.stays.steps * find_sensitivity(4) ** 2
    moved = []
    for gone in range(0, 30, 3):
        rest = series.take(np.array([row for row in range(30) if row != gone]))
        other = question.compute(look_at(rest).select("", ""))
        assert other.shape == whole.shape
        difference = (whole - other).astype(object)
        assert np.abs(difference).max() <= find_sensitivity(4)
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
    sites = open_sites()
    fitted = make().fit(cc.House(sites))
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
    fitted = make(epsilon=4).fit(cc.House(sites))
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
    sites = open_sites(policy=Policy(budget=cc.Budget("1", delta="1e-6")))
    with pytest.raises(HouseError, match=r"this would cost rho = .* would fit"):
        make(public=make_series(5, 1)).fit(cc.House(sites))
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
        question = next(study._converse_plainly(run))
        assert isinstance(question, AskGrownExperts)
        run.ask(question)
        again = msgspec.structs.replace(question, query=" ")
        with pytest.raises(HouseError):
            run.ask(again)
        shorter = make(release="exact", conditional=4, public=make_series(4, 11))
        with pytest.raises(HouseError, match="'asked_about' is not that of the study"):
            run.ask(msgspec.structs.replace(question, stays=shorter.stays))


def test_no_expert_leaves_a_hospital():
    """What is on the shelf is in no message, as bytes of weights."""
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
    kept = [bytes(one) for site in sites for one in site._desk.view.shelf._kept.values()]
    assert len(kept) > 10
    everything = b"".join(said)
    assert not any(weights[-200:-160] in everything for weights in kept)


def test_a_site_on_disk_keeps_its_experts_beside_its_ledger(tmp_path):
    for _ in range(2):
        sites = open_sites(count=1, ledger=tmp_path / "a.ledger")
        make(release="exact", public=make_series(5, 11)).fit(cc.House(sites))
        kept = sorted(path.stat().st_mtime_ns for path in (tmp_path / "a.ledger.shelf").iterdir())
        sites[0].ledger.close()
    assert kept == sorted(path.stat().st_mtime_ns for path in (tmp_path / "a.ledger.shelf").iterdir())
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
    make(public=make_series(30, 11)).fit(cc.House(open_sites())).save(tmp_path / "model.json")
    model = cc.load(tmp_path / "model.json")
    said = str(model.explain({"HR": [80, 100, 125]}))
    assert said.startswith("sepsis = ")
    assert "Not measured, and taken for the middle of their range: Temp." in said
    with pytest.raises(ModelError, match="fit it anew"):
        model.ask({"HR": [80]})
    text = (tmp_path / "model.json").read_text().replace('"kind": "lstm"', '"kind": "other"')
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ModelError, match="a network of the list"):
        cc.load(tmp_path / "broken.json")
