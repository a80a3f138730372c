"""Static columns, such as age and sex: conditions beside the rules, never variables of them."""

from __future__ import annotations

import math
import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import DoesNotFit, MessageError, ModelError, RecordsError, StudyError
from concilium.models.model_file import load
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.records.dictionary import Dictionary
from concilium.records.series_description import OddValues, find_constant, find_static
from concilium.temporal.formula import Limit
from concilium.temporal.outcome_fit import find_effects
from concilium.temporal.outcome_questions import (
    EVENLY,
    AskOutcomeHours,
    AskOutcomeReports,
    AskRuleGradient,
    AskRuleOutcomes,
    _judge_rules,
)
from concilium.temporal.rule_questions import learn_rules, prepare
from concilium.temporal.rule_task import StaticColumn, hold_latest, list_conditions, say_condition

RICH = cc.Policy(budget=cc.Budget("unlimited"))
BINS = {"HR": [60.0, 80.0, 100.0], "Age": [65.0]}
STUDY = {"outcome": "sepsis", "bins": BINS, "window": "6h", "prevalence": 0.1, "limits": 1, "most_rules": 10}
STATED = {**STUDY, "static": ["Age", "Gender"]}
CALM, FAST = [72, 74, 71, 73, 75, 72], [108, 112, 109, 111, 115, 112]
OLDER, MALE = 1.5, 0.0
"""Log odds of the outcome for those aged 65 and over, and for men: that is the truth."""


def make_series(count, seed, static=(), hours=30):
    """Sepsis is three times as frequent after a fast heart, and exp(1.5) times as frequent in the old."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(12, hours, count)
    age, male = dice.integers(20, 95, count), dice.integers(0, 2, count)
    fast = dice.random(count) < 0.4
    log_odds = -2.0 + OLDER * (age >= 65) + MALE * male + 1.6 * fast
    septic = dice.random(count) < 1 / (1 + np.exp(-log_odds))
    onset = np.where(septic, (lengths * dice.uniform(0.5, 1.0, count)).astype(int), 10 * hours)
    grid = np.ones((hours, 1))
    return cc.Series(
        {
            "HR": dice.normal(75, 6, (hours, count)) + 35 * fast,
            "Age": grid * age,
            "Gender": grid * male,
            "sepsis": (np.arange(hours)[:, None] >= onset).astype(float),
        },
        lengths=lengths,
        static=static,
    )


def open_sites(count=500, **options):
    return [cc.Site(name, make_series(count, seed, **options), RICH) for seed, name in enumerate("abc")]


@pytest.fixture(scope="module")
def learned():
    sites = open_sites()
    house = cc.House(sites, dictionary=Dictionary.parse(DICTIONARY, "here"))
    return cc.RuleDiscovery(**{**STATED, "epsilon": 12.0}).fit(house), sites


DICTIONARY = {
    "Age": {"type": "number", "label": "age", "unit": "years"},
    "Gender": {"type": "code", "values": {"0": "female", "1": "male"}},
}


def find_names(model):
    return {name for rule in model.rules_ for name in rule.formula.variables}


# What is found


def test_age_stands_beside_the_rules_with_its_odds_ratio_and_the_pattern_is_a_rule(learned):
    model, sites = learned
    assert find_names(model) == {"HR"}
    assert any(rule.tells and rule.weight and "HR" in rule.text for rule in model.rules_)
    by_text = {one.text: one for one in model.beside_}
    assert set(by_text) == {"Age >= 65", "Gender <= 1 and Gender >= 1"}
    age, gender = by_text.values()
    assert age.tells
    assert age.odds_interval[0] < math.exp(OLDER) * 1.1
    assert age.odds_interval[1] > math.exp(OLDER) * 0.9
    assert age.odds > 2
    assert age.share == pytest.approx(30 / 75, abs=0.06)
    assert not gender.tells
    assert all(site.ledger.spent() <= model.rho for site in sites)
    text = model.text()
    assert "Beside the rules, of columns that do not change within a stay:" in text
    assert f"odds ratio {age.odds:.2f} ({age.odds_interval[0]:.2f} to" in text
    assert "Gender = male" in text
    assert "G[0,5] Age" not in text
    (said,) = [one for one in model.card.warnings if "do not change within a stay" in one]
    assert "Age, Gender (the study states so)" in said
    assert "conditions on Age, Gender, by outcome" in str(model.plan())


@pytest.mark.parametrize("more", [{}, {"search": "discrimination"}, {"trust": "local"}, {"trust": "rule"}])
def test_no_search_takes_a_static_column_for_a_variable(more):
    series = make_series(60, 5)
    before = cc.RuleDiscovery(**{**STUDY, **more}, static=[]).task
    after = cc.RuleDiscovery(**{**STUDY, **more}).task
    about = {
        task: {name for own in learn_rules(series, task) for rule in own for name in rule.variables}
        for task in (before, after)
    }
    assert "Age" in about[before]
    assert about[after] == {"HR"}
    assert after.names == ("HR",)


def test_predictions_and_reasons_use_the_conditions(learned):
    model, _ = learned
    young, old, unknown = model.predict_proba(
        [{"HR": FAST, "Age": 30}, {"HR": FAST, "Age": 80}, {"HR": FAST}]
    )[:, 1]
    assert young < unknown < old
    assert old > young + 0.15
    explanation = model.explain({"HR": FAST, "Age": [80], "Gender": 1})
    reasons = {reason.attributes: reason.condition for reason in explanation.reasons}
    assert reasons[("Age",)] == "Age >= 65"
    assert any("HR" in attributes for attributes in reasons)
    assert "Age was last measured" not in str(model.explain({"HR": FAST, "Age": [80, None, None]}))
    assert "not: Age >= 65" in str(model.explain({"HR": FAST, "Age": 40}))
    assert "rules and conditions cannot be judged" in str(model.explain({"HR": FAST}))
    assert model.attributes_ == ["Age", "Gender", "HR"]
    with pytest.raises(ModelError, match="'Age' is a number"):
        model.predict_proba([{"HR": FAST, "Age": "old"}])


def test_patients_never_seen_are_told_apart_by_age_as_by_the_true_odds(learned):
    model, _ = learned
    fresh = make_series(2000, 50)
    found = model.find_outcomes(cc.Patients(series=fresh))
    risks = model.predict_proba(found.asked)[:, 1]
    old = fresh.stays["Age"][fresh.starts[:-1]][found.rows] >= 65
    truth = np.array(found.truth, dtype=bool)
    for group in (old, ~old):
        assert risks[group].mean() == pytest.approx(truth[group].mean(), abs=0.08)
    assert model.predict_steps(fresh.take(np.arange(5))).shape == (int(fresh.lengths[:5].sum()),)


def test_the_model_file_keeps_the_conditions(learned, tmp_path):
    model, _ = learned
    model.save(tmp_path / "model.json")
    again = load(tmp_path / "model.json")
    assert again.beside_ == model.beside_
    assert again.text() == model.text()
    patient = {"HR": CALM, "Age": 80, "Gender": 0}
    assert str(again.explain(patient)) == str(model.explain(patient))
    wrong = msgspec.structs.replace(model.body.beside[0], text="Age >= 65 and HR >= 100")
    with pytest.raises(ValueError, match="about one static column"):
        msgspec.structs.replace(model.body, beside=[wrong])


def test_local_reports_tell_of_age_too():
    model = cc.RuleDiscovery(**{**STATED, "trust": "local", "epsilon": 14.0}).fit(open_sites(150))
    assert find_names(model) <= {"HR"}
    assert all(one.odds_interval for one in model.beside_)
    # Of what the last group is asked, here of everybody and without rules that would have to be learned.
    series = make_series(6000, 9)
    question = AskOutcomeReports(query="", target="", task=TASK, rules=("Age >= 65",), epsilon="14", group=3)
    view = View(cc.Patients.of(series).selectable, cc.Policy(), parts={"series": series})
    reports = question.channel.draw(question.list_answers(view.select("", "")))
    counts = question.channel.estimate(question.channel.count_reports(reports)).reshape(-1, 4)
    (age,) = find_effects(counts.astype(np.int64), [0.0])
    assert age.odds == pytest.approx(math.exp(OLDER), rel=0.5)


def test_columns_that_nobody_has_are_named_and_do_no_harm():
    study = {**STATED, "static": ["Age", "Height"], "epsilon": 12.0}
    model = cc.RuleDiscovery(**study).fit(open_sites(300))
    assert {name for one in model.beside_ for name in one.formula.variables} == {"Age"}
    assert any("hardly any patient has a value" in one and "Height" in one for one in model.card.warnings)


# What is static, and by whom


def test_names_of_a_public_list_are_static_unless_the_study_says_otherwise():
    assert [name for name in ("age", "Sex", "HospAdmTime", "HR", "Weight") if find_static(name)] == [
        "age", "Sex", "HospAdmTime",
    ]  # fmt: skip
    study = {"outcome": "sepsis", "window": "6h"}
    default = cc.RuleDiscovery(**study)
    assert default.task.static_names == ("Age", "Gender", "Height")
    assert not {"Age", "Gender", "Height"} & {*default.task.names}
    assert "conditions on Age, Gender, Height" in str(default.plan())
    assert cc.RuleDiscovery(**study, static=["Age"]).task.static_names == ("Age",)
    assert not {"Gender", "Age"} & {*cc.RuleDiscovery(**study, static=[]).task.names}
    assert cc.RuleDiscovery(**STUDY, static=[]).task.names == ("Age", "HR")
    # Rules that were given are what they are.
    assert "Age" in cc.RuleDiscovery("sepsis").task.names
    assert cc.RuleDiscovery("sepsis").task.static == ()


def test_cutoffs_are_public():
    def cut(name, **more):
        task = cc.RuleDiscovery(**{**STUDY, "static": [name], **more}).task
        return [say_condition(one, {}) for column in task.static for one in column.conditions]

    assert cut("Age") == ["Age >= 65"]
    assert cut("Age", bins={"HR": [90]}) == ["Age >= 45", "Age >= 65", "Age >= 80"]
    assert cut("Gender") == ["Gender = 1"]
    text = cc.RuleDiscovery(**STUDY, values={"sex": ["f", "m"], "gender": [1, 2], "sepsis": [0, 1]})
    assert text.task.static == (StaticColumn("Age", (65.0,)), StaticColumn("gender", values=(1.0, 2.0)))
    assert cut("ward", values={"ward": [3, 1, 2]}) == ["ward = 1", "ward = 2"]
    assert cut("Weight", bins={"HR": [90]})[0].startswith("Weight >= ")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"static": ["score"]}, "'score' has no public cutoffs"),
        ({"static": ["sex"], "values": {"sex": ["m", "f"]}}, "its values are numbers"),
        ({"static": ["Age"], "window": None}, "static columns are those of series"),
        ({"static": ["sepsis"], "bins": {**BINS, "sepsis": [1]}}, "the outcome 'sepsis' is no static column"),
        ({"bins": {"Age": [65]}}, "no variable that changes over time: Age do not"),
    ],
)
def test_what_cannot_be_static_is_a_sentence(more, problem):
    with pytest.raises(StudyError, match=problem):
        cc.RuleDiscovery(**{**STUDY, **more})


def test_a_hospital_that_states_a_column_as_static_answers_no_rule_about_it():
    task = cc.RuleDiscovery(**STUDY, static=[]).task
    with pytest.raises(DoesNotFit, match="'Age' is static, and the study's rules are about it"):
        prepare(make_series(20, 1, static=["Age"]), task)
    prepare(make_series(20, 1, static=["Age"]), cc.RuleDiscovery(**STUDY).task)


# What hospitals answer


TASK = cc.RuleDiscovery(**STATED).task
CONDITIONS = list_conditions(TASK.static)
RULES = ("G[0,5] HR >= 80", *CONDITIONS)
COMMON = {"query": "", "target": "", "task": TASK, "noise": Gaussian("1")}


def ask(question, series):
    question.check("private")
    view = View(cc.Patients.of(series).selectable, cc.Policy(), parts={"series": series})
    return question.compute(view.select("", ""))


@given(st.integers(0, 10**6), st.integers(0, 11))
@settings(max_examples=10, deadline=None)
def test_conditions_move_by_one_patient_no_more_than_is_charged(seed, left_out):
    series = make_series(12, seed)
    questions = [
        AskOutcomeHours(**COMMON),
        AskRuleOutcomes(**COMMON, rules=RULES, weights=EVENLY),
        AskRuleGradient(
            **COMMON, rules=RULES, weights=EVENLY, centres=(0.2, 0.5, 1.0), at=(9.0, 5.0, -5.0, 3.0), norm=0.7,
            places=12,
        ),
    ]  # fmt: skip
    assert questions[1].sensitivity.squared == len(RULES)
    fewer = series.take(np.arange(12) != left_out)
    for question in questions:
        moved = ask(question, series) - ask(question, fewer)
        assert (moved.astype(float) ** 2).sum() <= question.sensitivity.squared


def test_conditions_are_judged_by_the_latest_value_of_the_window():
    grid = np.full((12, 3), np.nan)
    age = grid.copy()
    age[0] = [70, 60, 60]  # long ago, and still known
    age[8, 1] = 66  # corrected within the window
    age[11, 2] = 66  # after it
    series = cc.Series({"HR": np.full((12, 3), 75.0), "Age": age, "sepsis": np.zeros((12, 3))})
    series.stays["sepsis"][[10, 22, 34]] = 1  # each window ends at step 10
    votes, positive = _judge_rules(prepare(series, TASK), TASK, [cc.stl.parse(CONDITIONS[0])], EVENLY)
    assert positive.all()
    assert votes[:, 0].tolist() == [1, 1, 0]
    held = hold_latest(series, ["Age", "Height"])
    assert held["Age"][:, 1].tolist() == [66] * 12


def test_counts_are_those_of_the_patients(learned):
    series = make_series(200, 9)
    counts = ask(AskRuleOutcomes(**COMMON, rules=CONDITIONS, weights=EVENLY), series)
    votes, positive = _judge_rules(prepare(series, TASK), TASK, list(map(cc.stl.parse, CONDITIONS)), EVENLY)
    old = votes[:, 0] == 1
    assert counts[0].tolist() == [
        (old & positive).sum(), (~old & positive).sum(), (old & ~positive).sum(), (~old & ~positive).sum(),
    ]  # fmt: skip
    assert (votes >= 0).all()


@pytest.mark.parametrize(
    "rule", ["G[0,5] Age >= 65", "Age >= 64", "F[0,1] Gender >= 1", "HR >= 60 and Age >= 65"]
)
def test_a_site_judges_static_columns_in_the_conditions_of_the_study_only(rule):
    for question in (
        AskRuleOutcomes(**COMMON, rules=(rule,)),
        AskOutcomeReports(query="", target="", task=TASK, rules=(rule,), epsilon="1", group=3),
    ):
        with pytest.raises(MessageError, match="one of its static conditions"):
            question.check_windows()


@pytest.mark.parametrize(
    "static",
    [
        (StaticColumn("HR", (60.0,)),),
        (StaticColumn("sepsis", (1.0,)),),
        (StaticColumn("Age", (65.0,)),) * 2,
        (StaticColumn("Age"),),
        (StaticColumn("Age", values=(1.0,)),),
        (StaticColumn("Age", (float("nan"),)),),
        (StaticColumn("Age", (1e300,)),),
        (StaticColumn("", (65.0,)),),
        (StaticColumn("Age", tuple(map(float, range(1001)))),),
    ],
)
def test_hostile_static_columns_are_refused(static):
    with pytest.raises(MessageError, match=r"static column|variables of series"):
        msgspec.structs.replace(TASK, static=static).check()
    with pytest.raises(MessageError, match="variables of series"):
        msgspec.structs.replace(TASK, learning=None).check()


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=4, unique=True),
    st.text(min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_conditions_read_as_they_are_written(numbers, name):
    column = StaticColumn(name, tuple(sorted(numbers)), tuple(numbers))
    for condition in column.conditions:
        assert cc.stl.parse(str(condition)) == condition
        assert condition.variables == {name}
        assert all(isinstance(part, Limit) or part.children for part in condition.walk())


# Reading


def write(tmp_path, text):
    path = tmp_path / "stays.csv"
    path.write_text(text)
    return path


WIDE = "patient,hour,HR,Age,Sex\na,0,80,70,f\na,1,82,71,f\nb,0,75,,m\n"
LONG = "patient,hour,variable,value\na,0,HR,80\na,0,Age,70\nb,0,HR,71\n"


def test_static_columns_are_read_beside_the_variables(tmp_path):
    path = write(tmp_path, WIDE)
    with pytest.warns(OddValues, match="static column 'Age' changes within 1 of 2 stays: the latest"):
        series = cc.Series.read(path, variables=["HR"], static=["Age"])
    assert series.names == ("HR", "Age")
    assert series.static == ("Age",)
    assert series.take(np.array([0])).choose(["Age"]).cut([1], 1).static == ("Age",)
    assert series.choose(["HR"]).static == ()
    assert series.stated
    long = cc.Series.read(write(tmp_path, LONG), variables=["HR"], static=["Age"])
    assert (long.names, long.static, long.stated) == (("HR", "Age"), ("Age",), True)
    assert not cc.Series.read(write(tmp_path, LONG), static=["Age"]).stated


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"static": ["Agee"]}, r"static names a column 'Agee' that is not there.*Age"),
        ({"static": ["Age"], "variables": ["HR", "Age"]}, "'Age' is under static and under variables"),
        ({"static": ["Age"], "leave_out": ["Age"]}, "'Age' is under static and under leave_out"),
        (
            {"static": ["Sex"]},
            "'Sex' holds 'f', 'm', which is no finite number.*a static column holds numbers",
        ),
        ({"static": ["patient"]}, "is the patient, not a variable"),
    ],
)
def test_a_static_column_that_cannot_be_read_is_a_sentence(tmp_path, options, problem):
    with pytest.raises(RecordsError, match=problem):
        cc.Series.read(write(tmp_path, WIDE), **options)


def test_a_hospital_hears_of_columns_without_a_value_and_of_those_that_never_change(tmp_path, caplog):
    path = write(tmp_path, "patient,hour,HR,Age\na,0,80,\nb,0,70,\n")
    with pytest.warns(OddValues, match="static column 'Age' has no value here"):
        cc.Series.read(path, static=["Age"])
    with pytest.raises(RecordsError, match="no variable 'Age'"):
        cc.Series({"HR": [[80.0]]}, static=["Age"])
    series = make_series(30, 2)
    assert find_constant(series, ["HR", "Age", "Gender", "lactate"]) == ["Age", "Gender"]
    assert find_constant(series.take(np.arange(9)), ["Age"]) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_rules(series, cc.RuleDiscovery(**STUDY, static=[]).task)
    assert "'Age' has one value in each stay" in caplog.text
    assert "static = ['Age']" in caplog.text
    caplog.clear()
    learn_rules(series, cc.RuleDiscovery(**STUDY, static=["Age", "Height"]).task)
    assert "one value" not in caplog.text
    assert "static column 'Height' has no value here" in caplog.text
