"""Reading a rule model: table, importances, explanations and predictions, each worked out again from its numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pooled_lasso import find_optimum, objective
from rule_patients import BINS, draw, open_house, records_of, rows_of, site_of, small_rulefit

import concilium as cc
from concilium.errors import ModelError
from concilium.models.explanation import say_risk
from concilium.models.outcome import Outcome, say_number
from concilium.models.threshold import probability
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records
from concilium.rulefit.body import RuleBody, TakenTerm
from concilium.rulefit.reading import NAMES, WIDTH, Row, draw_rates, draw_table, make_table, rank_attributes


@pytest.fixture(scope="module")
def fitted():
    return small_rulefit(penalty=0.005).fit(open_house(*draw(300, 1), 3))


@pytest.fixture(scope="module")
def measured():
    """A length of stay in days, between 0 and 30, that depends on a rule."""
    table, y = draw(300, 2)
    stay = 5 + 8 * (table[:, 0] > 0.5) + 2 * table[:, 2] + np.random.default_rng(1).normal(size=300)
    records = Records({**{n: records_of(table, y)[n] for n in "abcd"}, "stay": Numbers(stay)})
    parts = [cc.Site(f"s{part}", records.take(np.arange(part, 300, 3))) for part in range(3)]
    bins = {**BINS, "stay": [0, 30]}
    model = small_rulefit(target="stay", bins=bins, trees=20, penalty=0.002).fit(cc.House(parts))
    return model, records, stay


def test_the_table_is_worked_out_from_the_patients(fitted):
    table, y = draw(300, 1)
    design = fitted.design(records_of(table, y))
    assert [fitted.coef_[c] != 0 for c in range(len(fitted.terms_))] == [
        n in {r.rule for r in fitted.list_terms()} for n in fitted.terms_
    ]
    squares = sum(99 * design[part::3].var(axis=0, ddof=1) for part in range(3))
    importance = np.abs(fitted.coef_) * np.sqrt(squares / 297)
    rows = fitted.list_terms()
    assert [row.importance for row in rows] == sorted((row.importance for row in rows), reverse=True)
    assert rows[0].importance == 100
    for row in rows:
        column = fitted.terms_.index(row.rule)
        assert row.coefficient == fitted.coef_[column]
        assert row.importance == pytest.approx(100 * importance[column] / importance.max(), abs=1e-4)
        assert row.adds is None
        assert row.is_rule == (column < len(fitted.rules_))
        if not row.is_rule:
            unit = math.sqrt(squares[column] / 297)
            assert row.odds_ratio == pytest.approx(math.exp(row.coefficient * unit), rel=1e-5)
            assert (row.support, row.rate_in, row.rate_out) == (None, None, None)
            continue
        inside = design[:, column] == 1
        assert row.odds_ratio == math.exp(row.coefficient)
        assert row.support == pytest.approx(inside.mean())
        assert row.rate_in == pytest.approx(y[inside].mean())
        assert row.rate_out == pytest.approx(y[~inside].mean())


def test_an_attribute_has_its_share_of_every_term(fitted):
    rows = {row.rule: row for row in fitted.list_terms()}
    total = dict.fromkeys("abcd", 0.0)
    for told in fitted.body.taken:
        names = fitted.body.attributes_of(told.column)
        assert all(name in fitted.body.name(told.column) for name in names)
        for name in names:
            total[name] += rows[fitted.body.name(told.column)].importance / len(names)
    most = max(total.values())
    expected = {name: 100 * value / most for name, value in total.items() if value}
    assert fitted.importances() == pytest.approx(expected)
    assert list(fitted.importances().values()) == sorted(fitted.importances().values(), reverse=True)
    assert set(fitted.attributes_) == set(expected)


def test_what_each_rule_moved_adds_up_to_the_prediction(fitted):
    table, y = draw(40, 9)
    records = records_of(table, y)
    predictor, chances, said = fitted.decide(records), fitted.predict_proba(records), fitted.predict(records)
    for index, row in enumerate(rows_of(table, y)):
        why = fitted.explain(row)
        start = math.log(why.base / (1 - why.base))
        assert start == pytest.approx(fitted.intercept_)
        assert start + sum(reason.moved for reason in why.reasons) == pytest.approx(
            predictor[index], abs=1e-9
        )
        assert why.probability == pytest.approx(chances[index].max())
        assert why.prediction == said[index]
        sizes = [abs(reason.moved) for reason in why.reasons]
        assert sizes == sorted(sizes, reverse=True)
        assert all(sizes)
        text = str(why)
        whose = "" if said[index] else "1: "
        assert text.startswith(f"y = {said[index]} ({whose}{say_risk(chances[index, 1])}; base rate ")
        assert (
            f"Where no rule holds and numbers are at their medians, the risk is {say_risk(why.base)}." in text
        )
        told = [one for one in why.reasons if not 0.985 < math.exp(one.moved) < 1.015]
        assert all(reason.condition in text for reason in told[:10])
        assert all(name in reason.condition for reason in why.reasons for name in reason.attributes)
        assert why.interval is None  # shrunk coefficients have none
    assert chances.sum(axis=1) == pytest.approx(1)


def test_many_reasons_are_told_together(fitted):
    whys = [fitted.explain(row) for row in rows_of(*draw(40, 9))]
    why = max(whys, key=lambda one: len(one.reasons))
    assert len(why.reasons) > 10
    rest = math.exp(sum(reason.moved for reason in why.reasons[10:]))
    assert f"{len(why.reasons) - 10} more together: odds ratio {rest:.2f}." in why.sentences


def test_a_patient_of_whom_nothing_is_known(fitted):
    nothing = fitted.explain({"shoe size": 43})
    assert nothing.reasons == ()
    assert "Nothing that the model asks for was entered. Measure" in str(nothing)
    partly = fitted.explain(
        {**dict.fromkeys("abcd"), "b": float("nan")}
    )  # missing, which is not "not entered"
    records = Records({name: Numbers(np.array([np.nan])) for name in "abcd"})
    assert partly.probability == pytest.approx(fitted.predict_proba(records)[0].max())
    with pytest.raises(ModelError, match="have no attribute"):
        fitted.predict([{"a": 1.0}])


def test_predictions_from_rows_frames_and_records_are_one(fitted):
    import pandas as pd

    table, y = draw(20, 3)
    chances = fitted.predict_proba(records_of(table, y))
    assert np.array_equal(fitted.predict_proba(rows_of(table, y)), chances)
    assert np.array_equal(fitted.predict_proba(pd.DataFrame(rows_of(table, y))), chances)


def test_a_model_without_terms_says_the_same_of_everybody():
    table, y = draw(300, 1)
    none = small_rulefit(penalty=10).fit(open_house(table, y, 3))
    assert none.list_terms() == []
    assert none.importances() == {}
    assert f"no term is worth its penalty: every patient gets the same answer, {y.mean():.1%}" in none.text()
    assert none.predict_proba(records_of(table, y))[:, 1] == pytest.approx(y.mean(), abs=1e-5)
    assert none.explain({"a": 1.0}).probability == pytest.approx(max(y.mean(), 1 - y.mean()), abs=1e-5)
    assert "The model has no terms: every patient gets this answer." in str(none.explain({}))


def test_a_number_is_fitted_to_the_pooled_optimum(measured):
    model, records, stay = measured
    design = model.design(records)
    scaled = (np.clip(stay, 0, 30) - 15) / 15
    reached = objective(design, scaled, model.intercept_, model.coef_, 0.002, binary=False)
    assert reached <= find_optimum(design, scaled, 0.002, binary=False) + 1e-7


def test_a_number_is_predicted_and_explained_in_its_own_unit(measured):
    model, records, stay = measured
    predicted = model.predict(records)
    assert np.corrcoef(predicted, stay)[0, 1] > 0.9
    assert predicted.mean() == pytest.approx(np.clip(stay, 0, 30).mean(), abs=1e-3)
    assert model.classes_ == []
    with pytest.raises(ModelError, match="predicts a number"):
        model.predict_proba(records)
    patient = {name: float(records[name].numbers[7]) for name in "abcd"}
    why = model.explain(patient)
    assert why.prediction == pytest.approx(predicted[7])
    assert why.base + sum(reason.moved for reason in why.reasons) == pytest.approx(predicted[7])
    assert why.probability is None
    mean = f"{np.clip(stay, 0, 30).mean():.4g}"
    assert str(why).startswith(
        f"stay = {predicted[7]:.4g}; mean {mean}.\nWhere no rule holds and numbers are at their medians, "
        f"the mean is {why.base:.4g}. For this patient:"
    )
    assert f"adds {why.reasons[0].moved:+.4g}" in str(why)


def test_the_table_of_a_number_is_in_its_own_unit(measured):
    model, records, stay = measured
    design, held = model.design(records), np.clip(stay, 0, 30)
    assert model.body.mean == pytest.approx(held.mean(), abs=1e-5)
    for row in model.list_terms():
        column = model.terms_.index(row.rule)
        assert row.odds_ratio is None
        if row.is_rule:
            inside = design[:, column] == 1
            assert row.adds == pytest.approx(15 * row.coefficient)
            assert row.rate_in == pytest.approx(held[inside].mean(), abs=1e-5)
            assert row.rate_out == pytest.approx(held[~inside].mean(), abs=1e-5)
    first = model.list_terms()[0]
    lines = model.text().splitlines()
    assert f"{first.adds:+.4g}" in lines[1]
    assert "adds" in lines[0]
    start = model.predict([dict.fromkeys("abcd")])[0] - sum(
        reason.moved for reason in model.explain(dict.fromkeys("abcd")).reasons
    )
    assert lines[-1] == f"Everybody starts at stay = {start:.4g}."
    assert "odds" not in model.text()


def test_the_pictures_of_a_number_are_in_its_own_unit(measured):
    model = measured[0]
    picture = model.pictures()["patients inside and outside of each rule"]
    row = next(row for row in model.list_terms() if row.is_rule)
    assert "Mean stay inside and outside of each rule" in picture
    assert f">{row.rate_in:.4g}, {row.support:.0%} of patients<" in picture
    assert f">{row.rate_out:.4g}<" in picture


def bars_of(picture):
    """The widths of the bars, without the two squares of the key."""
    rects = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}rect")
    return [float(rect.attrib["width"]) for rect in rects][2:]


def test_a_range_too_wide_for_its_penalty_leaves_no_term_and_says_what_helps(measured):
    _, records, stay = measured
    bins = {**BINS, "stay": [0, 3000]}
    model = small_rulefit(target="stay", bins=bins, trees=5).fit(cc.House([cc.Site("s", records)]))
    assert model.list_terms() == []
    assert "a smaller penalty, or a narrower range of the number, selects some" in model.text()
    assert model.predict(records) == pytest.approx(np.full(300, np.clip(stay, 0, 3000).mean()), abs=0.01)


@pytest.mark.parametrize(("inside", "outside"), [(-3.0, -1.0), (-2.0, 2.0), (0.2, 0.4), (5e4, 1e4)])
def test_bars_of_numbers_begin_at_the_least_of_zero_and_all(inside, outside):
    row = Row("a < 1", 1.0, None, 1.0, None, None, None, 100.0, 0.5, inside, outside, is_rule=True)
    picture = draw_rates([row], "Mean change", shares=False)
    least, most = min(0, inside, outside), max(0, inside, outside)
    full = WIDTH - NAMES - 150
    expected = [max(1.0, full * (rate - least) / (most - least)) for rate in (inside, outside)]
    assert bars_of(picture) == pytest.approx(expected, abs=0.1)
    assert "%" not in picture.replace("50% of patients", "")


@pytest.mark.parametrize(
    ("number", "plain", "change"),
    [
        (12345.6, "12,346", "+12,346"),
        (-1234567.0, "-1,234,567", "-1,234,567"),
        (999.4, "999.4", "+999.4"),
        (0.012345, "0.01235", "+0.01235"),
        (-0.0, "0", "+0"),
        (71, "71", "+71"),
    ],
)
def test_a_number_as_people_read_it(number, plain, change):
    assert (say_number(number), say_number(number, "+")) == (plain, change)


def test_a_saved_number_model_is_the_same(measured, tmp_path):
    model, records, _ = measured
    model.save(tmp_path / "stay.json")
    loaded = cc.load(tmp_path / "stay.json")
    assert np.array_equal(loaded.predict(records), model.predict(records))
    assert (loaded.text(), loaded.release) == (model.text(), "exact")


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.lists(st.floats(-1e7, 1e7), min_size=1, max_size=5))
def test_an_outcome_is_measured_in_half_ranges_and_back(low, width, values):
    outcome = Outcome(low=low, high=low + width)
    outcome.check()
    held = np.clip(values, low, low + width)
    scaled = outcome.scale(np.array(values))
    assert np.all(np.abs(scaled) <= 1 + 1e-6)
    assert outcome.unscale(scaled) == pytest.approx(held, abs=1e-9 * (abs(low) + width))
    assert outcome.unit == pytest.approx(width / 2, rel=1e-6, abs=1e-9 * abs(low))


@pytest.mark.parametrize("outcome", [Outcome(positive="yes"), Outcome(low=0.0, high=1.0)])
def test_residual_and_curvature_are_the_derivatives_of_the_loss(outcome):
    y, at, small = np.array([0.0, 1.0, 0.0, 1.0]), np.array([-3.0, 0.2, 4.0, 30.0]), 1e-5
    rise = (outcome.loss(y, at + small) - outcome.loss(y, at - small)) / (2 * small)
    assert outcome.residual(y, at) == pytest.approx(rise, abs=1e-6)
    bend = (outcome.residual(y, at + small) - outcome.residual(y, at - small)) / (2 * small)
    assert outcome.curvature(at) == pytest.approx(bend, abs=1e-6)
    several = outcome.loss(y, np.column_stack([at, at + 1]))
    assert np.array_equal(several[:, 1], outcome.loss(y, at + 1))


def test_the_logistic_function_does_not_overflow():
    assert probability(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]


def test_the_positive_value_is_found_by_its_label():
    for positive, values in ((1, ("0", "1")), ("1", (0, 1)), (1.0, (0, 1)), (True, (False, True))):
        assert Outcome(positive=positive).is_positive(Coded(np.array([0, 1, 2]), values)).tolist() == [
            0,
            0,
            1,
        ]


def test_several_values_are_one_against_the_rest():
    draws = np.random.default_rng(0)
    rows = [{"x": float(x), "grade": "abc"[int(x > 0) + int(x > 1)]} for x in draws.normal(size=300)]
    house = cc.House([site_of(rows[part::3], f"s{part}") for part in range(3)])
    bins = {"x": np.linspace(-2, 2, 9).tolist()}
    model = cc.RuleFit("grade", "b", bins=bins, trees=10, release="exact").fit(house)
    assert model.classes_ == ["not b", "b"]
    found = model.predict([{"x": 0.5}, {"x": -1.0}, {"x": 2.0}])
    assert found.tolist() == ["b", "not b", "not b"]


def body_of(**changes):
    base = small_rulefit(penalty=0.02).fit(open_house(*draw(150, 1), 2)).body
    return msgspec.structs.replace(base, **changes) if changes else base


def test_a_body_that_does_not_fit_together_is_refused():
    body = body_of()
    lies = (
        {"target": ""},
        {"coefficients": body.coefficients[1:]},
        {"classes": [1]},
        {"told": body.taken[1:]},
        {"told": [*body.taken, TakenTerm(0, None, None, None, 1.0)]},
        {"outcome": Outcome()},
        {"terms": msgspec.structs.replace(body.terms, attributes=body.terms.attributes * 2)},
    )
    for lie in lies:
        raw = msgspec.json.encode(
            {**msgspec.to_builtins(body), **{k: msgspec.to_builtins(v) for k, v in lie.items()}}
        )
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(raw, type=RuleBody)


def test_at_even_odds_the_first_class_is_predicted_and_explained(fitted):
    body = msgspec.structs.replace(
        fitted.body, intercept=0.0, coefficients=[0.0] * len(fitted.body.coefficients), taken=[]
    )
    even = cc.RuleFit.of(body, fitted.card)
    assert even.predict_proba([{"a": 1.0}]).tolist() == [[0.5, 0.5]]
    assert even.predict([{"a": 1.0}]).tolist() == [0]
    why = even.explain({"a": 1.0})
    assert (why.prediction, why.probability, why.base, why.reasons) == (0, 0.5, 0.5, ())
    assert str(why).startswith("y = 0 (1: 50%; base rate ")


def test_coefficients_that_no_odds_can_express_do_not_break_the_table():
    body = body_of()
    column = body.taken[0].column
    coefficients = [1e5 if index == column else value for index, value in enumerate(body.coefficients)]
    huge = msgspec.structs.replace(body, coefficients=coefficients)
    assert max(row.odds_ratio for row in make_table(huge)) < math.inf
    assert all(row.rule in draw_table(huge) for row in make_table(huge))
    assert "> 1000" in draw_table(huge)
    assert rank_attributes(huge)


def test_what_is_missing_clipped_or_not_entered_is_accounted_for():
    """From where it starts, the odds ratios that are printed lead to the risk that is printed."""
    draw = np.random.default_rng(4)
    bmi = draw.normal(25.7, 5, 1500).round(1)
    died = draw.random(1500) < 1 / (1 + np.exp(-(bmi - 28) / 3))
    ward = np.where(draw.random(1500) < 0.2 + 0.6 * died, "icu", "medicine")
    rows = [
        {"bmi": None if place % 10 == 0 else one, "ward": where, "y": "yes" if ill else "no"}
        for place, (one, where, ill) in enumerate(zip(bmi.tolist(), ward.tolist(), died, strict=True))
    ]
    model = cc.RuleFit("y", "yes", trees=40, release="exact").fit([cc.Records.from_rows(rows)])
    line = model.body.terms.lines[0]
    beyond = str(model.explain({"bmi": 60.0, "ward": "icu"}))
    assert f"bmi = 60 (counts as {say_number(line.high)}): odds ratio" in beyond
    assert "counts as" not in str(model.explain({"bmi": 25.0, "ward": "icu"}))
    assert "Missing: bmi. A rule holds for a missing value only where it says so" in str(
        model.explain({"bmi": None, "ward": "icu"})
    )
    assert model.body.always_known == ["ward"]
    unheard = "No patient of the model lacked ward, so that the risk may be far off"
    assert unheard in str(model.explain({"bmi": 33.0, "ward": None}))
    assert unheard not in str(model.explain({"bmi": None, "ward": "icu"}))
    partly = model.explain({"bmi": 33.0})
    together = float(re.search(r"as its median\. Together: odds ratio (\S+)\.$", partly.notes[0])[1])
    risk = partly.probability if partly.prediction == "yes" else 1 - partly.probability
    odds = partly.base / (1 - partly.base) * together * np.exp(sum(one.moved for one in partly.reasons))
    assert odds / (1 + odds) == pytest.approx(risk, abs=0.005)
    assert "Together" not in str(model.explain({}))
