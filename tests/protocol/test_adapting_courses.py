"""Models of courses at home: a student and rules that were weighed get an intercept and a slope like any other."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import ModelError
from concilium.models.prediction import KnownOutcomes
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from experts.expert_patients import make_series

GENEROUS = cc.Policy(budget=cc.Budget("unlimited"))
BINS = {"HR": [60.0, 80.0, 90.0, 100.0, 120.0], "Temp": [36.0, 37.0, 38.0]}
EXPERTS = {"bins": BINS, "units": 3, "epochs": 10, "window": "12h", "lead": "6h", "every": "2h"}
RULES = {"bins": BINS, "window": "6h", "prevalence": 0.2, "limits": 1, "most_rules": 10, "epsilon": 8.0}
COURSES = {"HR": [82, 88, 95, 101, 107], "Temp": [37.1, 37.0, 37.4, 37.6, 37.8]}


@pytest.fixture(scope="module", params=["experts", "discovery"])
def model(request):
    house = cc.House(
        [cc.Site(name, make_series(60, place, ill=0.4), GENEROUS) for place, name in enumerate("abc")]
    )
    if request.param == "experts":
        method = cc.Experts("sepsis", **EXPERTS, epsilon=8, experts=40, public=make_series(60, 11))
    else:
        method = cc.RuleDiscovery("sepsis", **RULES, threshold="prevalence")
    with pytest.MonkeyPatch.context() as patch:  # without noise, and so the same each time
        patch.setenv(SWITCH, SWITCHED_ON)
        with zero_noise():
            fitted = method.fit(house)
    if request.param == "experts":
        return fitted
    # Its risks come true as they are; a hospital has something to adapt where they are too timid.
    timid = [
        msgspec.structs.replace(rule, weight=None if rule.weight is None else rule.weight / 4)
        for rule in fitted.body.rules
    ]
    return type(fitted).of(msgspec.structs.replace(fitted.body, rules=timid), fitted.card)


@pytest.fixture(scope="module")
def home():
    """Another hospital, where few fall ill, and one in seven otherwise than by what is measured."""
    made, dice = make_series(1500, 5, ill=0.12), np.random.default_rng(6)
    grids = {name: np.array(made[name]) for name in ("HR", "Temp", "sepsis")}
    for patient in np.flatnonzero(dice.random(len(made)) < 0.15):
        length = int(made.lengths[patient])
        falls = dice.random() < 0.3
        grids["sepsis"][:length, patient] = falls & (np.arange(length) >= length - 2)
    return cc.Series(grids, lengths=made.lengths)


def look_at(model, series) -> KnownOutcomes:
    return model.find_outcomes(cc.Patients(series=series))


def test_intercept_and_slope_are_those_of_a_logistic_regression(model, home):
    adapted = cc.adapt(model, home, site="north")
    found = look_at(model, home)
    risk = model.predict_proba(found.asked)[:, 1]
    odds = np.log(risk / (1 - risk))
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(odds[:, None], found.truth)
    assert adapted.adaptation.patients == len(found.truth)
    assert [adapted.adaptation.shifts[1], adapted.adaptation.slope] == pytest.approx(
        [other.intercept_[0], other.coef_[0, 0]], abs=1e-4
    )
    chances = adapted.predict_proba(found.asked)[:, 1]
    assert chances == pytest.approx(other.predict_proba(odds[:, None])[:, 1], abs=1e-4)
    # Now they are chances: as many as they say have the outcome.
    assert chances.sum() == pytest.approx(sum(found.truth), abs=0.1)
    truth = np.array(found.truth)
    assert ((chances - truth) ** 2).mean() < ((risk - truth) ** 2).mean()


def test_the_same_patients_are_called_as_before(model, home):
    """An alarm is a place in the order of patients, and moves with the chances."""
    adapted = cc.adapt(model, home, site="north")
    asked = look_at(model, home).asked
    assert adapted.predict(asked).tolist() == model.predict(asked).tolist()
    assert abs(adapted.decided.threshold - 0.5) > 0.01
    said = str(adapted.explain(COURSES))
    assert any(words in said for words in ("begins", "Predicts 1 at a risk of", "the prevalence among"))


def test_who_took_part_gets_no_slope_and_few_patients_nothing(model, home):
    taken = cc.adapt(model, home, site="a")
    assert taken.adaptation.slope == 1
    assert any("learned from this hospital's patients" in one for one in taken.adaptation.reasons)
    few = cc.adapt(model, home.take(np.arange(6)), site="north")
    assert not few.adaptation.changes
    asked = look_at(model, home).asked
    np.testing.assert_array_equal(few.predict_proba(asked), model.predict_proba(asked))


def test_it_explains_what_it_predicts_and_is_saved(model, home, tmp_path):
    adapted = cc.adapt(model, home, site="north")
    adapted.save(tmp_path / "north.json")
    again = cc.load(tmp_path / "north.json")
    for one in (adapted, again):
        chances = one.predict_proba([COURSES])[0]
        explanation = one.explain(COURSES)
        assert explanation.probability == pytest.approx(chances[int(explanation.prediction)])
        assert explanation.prediction == one.predict([COURSES])[0]
        assert "As it was received, the model says:" in str(explanation)
        assert f"patients of {'north'}" in str(explanation)
        assert one.decided == adapted.decided
        np.testing.assert_array_equal(one.predict_proba([COURSES]), adapted.predict_proba([COURSES]))
    assert cc.adapt(again, home, site="north").adaptation == adapted.adaptation  # from what was received


def test_what_predicts_nothing_is_not_adapted(home):
    rules = cc.RuleDiscovery("sepsis", prevalence=0.3, limits=1, epsilon=8.0, bins={"HR": [60, 90, 120]})
    clients = [["HR > 90"]] * 60
    found = rules.fit(cc.House([cc.Site(name, cc.RuleSets(clients), GENEROUS) for name in "abc"]))
    with pytest.raises(ModelError, match=r"made without a window.* nothing to adapt"):
        cc.adapt(found, home, site="north")


def test_rules_that_say_nothing_of_the_outcome_are_not_adapted(model, home):
    if model.method != "discovery":
        pytest.skip("a student always says something")
    silent = [msgspec.structs.replace(rule, weight=None) for rule in model.body.rules]
    dumb = type(model).of(
        msgspec.structs.replace(model.body, rules=silent, intercept=None, decided=None), model.card
    )
    with pytest.raises(
        ModelError, match="no rule says more of the outcome than noise and sampling leave open"
    ):
        cc.adapt(dumb, home, site="north")
    with pytest.raises(ModelError, match="about series of patients, and there are none"):
        cc.adapt(model, cc.Records.from_rows([{"sepsis": 1}]), site="north")


def test_a_student_without_lessons_is_not_adapted(home):
    untaught = cc.Experts("sepsis", **EXPERTS, epsilon=8, experts=20)
    untaught.fit(cc.House([cc.Site(name, make_series(40, 7), GENEROUS) for name in "abc"]))
    with pytest.raises(ModelError, match="there is no student yet, and so nothing to adapt"):
        cc.adapt(untaught, home, site="north")


def write_stays(series, path):
    """One line for each step of each patient, under names of the hospital's own."""
    lines = ["mrn,hour,HR,Temp,sepsis"]
    grids = {name: np.asarray(series[name]) for name in ("HR", "Temp", "sepsis")}
    for patient in range(len(series)):
        for hour in range(int(series.lengths[patient])):
            cells = [grids[name][hour, patient] for name in grids]
            row = ",".join("" if np.isnan(cell) else f"{cell:.3f}" for cell in cells)
            lines.append(f"p{patient:04},{hour},{row}")
    path.write_text("\n".join(lines) + "\n")
    return path


STUDY = """
[study]
name = "before sepsis"
method = "discovery"
outcome = "sepsis"
[privacy]
epsilon = 1.0
[series]
patient = "mrn"
time = "hour"
time_unit = "hours"
[discovery]
window = "6h"
[bins]
HR = [60, 90]
[sites]
series = "stays.csv"
gateways = 3
"""


def test_from_a_file_of_stays_to_figures_and_a_page(model, home, tmp_path):
    def call(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        return result.output

    model.save(tmp_path / "model.json")
    stays = write_stays(home, tmp_path / "stays.csv")
    (tmp_path / "study.toml").write_text(STUDY)
    begin = ("adapt", tmp_path / "model.json", stays, "--site", "north", "--study", tmp_path / "study.toml")
    out = ("--out", tmp_path / "north.json")
    said = call(*begin, *out, "--report", tmp_path / "north.html")
    assert "adapted at north to 1500 patients" in said
    assert "should not leave the hospital without being charged" in said
    assert "adapted at north to 1500 patients" in (tmp_path / "north.html").read_text()
    plain = json.loads(call(*begin, *out, "--json"))
    assert abs(plain["after"]["risks"]["intercept"]) < abs(plain["as_received"]["risks"]["intercept"])
    assert plain["after"]["risks"]["brier"] < plain["as_received"]["risks"]["brier"]
    # Nearly the same order, but for ties between patients of different folds, which folds break differently.
    assert plain["after"]["auc"] == pytest.approx(plain["as_received"]["auc"], abs=0.05)
    pairs = [f"{name}={','.join(map(str, values))}" for name, values in COURSES.items()]
    assert "patients of north" in call("consult", tmp_path / "north.json", *pairs)


def test_options_for_courses_are_refused_for_tables_and_a_query_needs_its_table(model, home, tmp_path):
    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2, result.output
        return result.output

    stays = write_stays(home.take(np.arange(40)), tmp_path / "stays.csv")
    (tmp_path / "study.toml").write_text(STUDY)
    about = type(model).of(msgspec.structs.replace(model.body, query="ward = 'a'"), model.card)
    about.save(tmp_path / "model.json")
    end = ("--site", "north", "--study", tmp_path / "study.toml", "--out", tmp_path / "north.json")
    assert "give the table of the same patients with --records" in call(
        "adapt", tmp_path / "model.json", stays, *end
    )
    ward = "".join(f"p{patient:04},{'ab'[patient % 2]}\n" for patient in range(40))
    (tmp_path / "wards.csv").write_text("mrn,ward\n" + ward)
    arguments = ["adapt", tmp_path / "model.json", stays, *end, "--records", tmp_path / "wards.csv"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "adapted at north to 20 patients" in result.output
    rows = [{"x": i % 2, "y": i % 3 % 2} for i in range(60)]
    tree = cc.DecisionTree("y").fit(cc.House([cc.Site("a", cc.Records.from_rows(rows))]))
    tree.save(tmp_path / "tree.json")
    assert "leave out --records and --study" in call("adapt", tmp_path / "tree.json", stays, *end)
