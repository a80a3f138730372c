"""What a RuleFit says of patients is so: no signal, no terms; one term for one group; intervals and folds that hold."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_patients import BINS, draw, open_house, open_site, records_of

import concilium as cc
from concilium.models.explanation import say_risk_interval
from concilium.protocol.attributes import Attribute
from concilium.protocol.held_out import FOLDS, Folds
from concilium.rulefit.cross_validation import _Judged
from concilium.rulefit.terms import read_codes, say_rule, unite_rules, write_rule

SMALL = {"trees": 40, "release": "exact"}


def noise(seed, patients=300):
    draws = np.random.default_rng(seed)
    names = [f"x{column}" for column in range(6)]
    rows = [
        {**dict(zip(names, map(float, numbers), strict=True)), "y": int(y)}
        for numbers, y in zip(draws.normal(size=(patients, 6)), draws.random(patients) < 0.4, strict=True)
    ]
    return {f"s{part}": cc.Records.from_rows(rows[part::3]) for part in range(3)}


def test_pure_noise_has_no_terms_and_is_said_to_be_noise():
    models = [cc.RuleFit("y", **SMALL).fit(noise(seed)) for seed in range(6)]
    sizes = [len(model.list_terms()) for model in models]
    assert max(sizes) <= 5
    assert sorted(sizes)[len(sizes) // 2] == 0
    model = models[sizes.index(0)]
    sentence = "no term predicts y clearly better than the base rate on held-out patients (10 folds)"
    assert sentence in model.text()
    assert any(sentence in warning for warning in model.card.warnings)
    why = model.explain({"x0": 1.0})
    assert "No term predicts y clearly better than the base rate: every patient gets this answer." in str(why)
    assert why.interval[0] < why.probability < why.interval[1]


@pytest.fixture(scope="module")
def learned():
    """Patients whose outcome depends on a rule and a line, and the default model of them."""
    patients = draw(900, 1)
    return patients, cc.RuleFit("y", 1, bins=BINS, **SMALL).fit(open_house(*patients, 3))


def test_the_terms_are_few_and_no_two_select_the_same_patients(learned):
    patients, model = learned
    rows = model.list_terms()
    assert 1 <= len(rows) <= 35
    inside = model.design(records_of(*patients))[:, [t.column for t in model.body.taken]].astype(bool)
    for one, other in combinations(range(inside.shape[1]), 2):
        assert not np.array_equal(inside[:, one], inside[:, other])
        assert not np.array_equal(inside[:, one], ~inside[:, other])
    assert any("a " in row.rule and "b " in row.rule for row in rows)  # the rule that there is


def test_odds_ratios_are_those_of_an_unpenalised_fit_times_one_factor(learned):
    """Against Newton's method on the pooled design."""
    patients, model = learned
    taken = [t.column for t in model.body.taken]
    design = np.column_stack([np.ones(900), model.design(records_of(*patients))[:, taken]])
    w = np.zeros(design.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-design @ w))
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design
        w -= np.linalg.solve(hessian, design.T @ (chance - patients[1]))
    factor = model.body.validation.factor
    assert 0.5 < factor <= 1
    assert model.coef_[taken] == pytest.approx(factor * w[1:], abs=2e-3)
    assert model.predict_proba(records_of(*patients))[:, 1].mean() == pytest.approx(
        patients[1].mean(), abs=1e-5
    )
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))[1:]
    rows = {row.rule: row for row in model.list_terms()}
    for column, error in zip(taken, factor * errors, strict=True):
        row = rows[model.terms_[column]]
        unit = 1.0 if row.is_rule else next(t.deviation for t in model.body.taken if t.column == column)
        assert np.log(row.high / row.odds_ratio) == pytest.approx(1.96 * error * unit, rel=0.01)
        assert row.low < row.odds_ratio < row.high
        assert 0 <= row.selected <= 1
    assert max(row.selected for row in rows.values()) >= 0.8
    text = model.text()
    assert "odds ratio" in text
    assert "95 % CI" in text
    assert "Intervals take the terms as given" in text


def test_predicted_risks_are_calibrated_on_fresh_patients(learned):
    model, (table, y) = learned[1], draw(20_000, 5)
    log_odds = model.decide(records_of(table, y))
    slope, start = 1.0, 0.0
    for _ in range(20):
        chance = 1 / (1 + np.exp(-(start + slope * log_odds)))
        weight = chance * (1 - chance)
        step = np.linalg.solve(
            [[weight.sum(), weight @ log_odds], [weight @ log_odds, weight @ log_odds**2]],
            [(chance - y).sum(), (chance - y) @ log_odds],
        )
        start, slope = start - step[0], slope - step[1]
    assert 0.8 < slope < 1.25


def test_an_explanation_has_the_interval_of_its_prediction(learned):
    model = learned[1]
    risks = model.predict_proba(records_of(*draw(20, 9)))
    for index, row in enumerate(draw(20, 9)[0].tolist()):
        why = model.explain(dict(zip("abcd", row, strict=True)))
        assert why.interval[0] < why.probability < why.interval[1]
        assert why.probability == pytest.approx(risks[index].max())
        low, high = why.interval if why.prediction == 1 else (1 - why.interval[1], 1 - why.interval[0])
        assert say_risk_interval((low, high)) in str(why)


def test_an_outcome_without_an_exception_still_has_odds_ratios_that_are_finite():
    """Terms that separate the outcome have no finite odds ratio. A weak prior leaves the printed ones."""
    draws = np.random.default_rng(3)
    rows = [
        {"a": float(a), "b": float(b), "y": int(a + b > 0)} for a, b in draws.normal(size=(300, 2)).round(2)
    ]
    model = cc.RuleFit("y", **SMALL).fit(
        {f"s{part}": cc.Records.from_rows(rows[part::3]) for part in range(3)}
    )
    assert model.list_terms()
    assert not [row for row in model.list_terms() if row.high > 100 * row.low]
    assert "the patients alone do not determine the odds ratios" in model.text()
    assert "another unit" not in model.text()
    sure, unsure = model.explain({"a": 2.0, "b": 2.0}), model.explain({"a": 0.0, "b": 0.0})
    assert sure.prediction == 1
    assert sure.interval[0] > 0.8
    assert unsure.interval[1] - unsure.interval[0] > sure.interval[1] - sure.interval[0]


def test_masked_and_exact_choose_the_same(learned):
    patients, exact = learned
    masked = cc.RuleFit("y", 1, bins=BINS, **{**SMALL, "release": "masked"}).fit(open_house(*patients, 3))
    assert masked.body == exact.body
    kinds = {one.kind for one in exact.plan().questions}
    assert {one.kind for one in exact.card.releases} <= kinds


def test_every_patient_is_in_one_fold_of_each_repetition_and_parts_differ_by_a_cell():
    view = open_site(0, records_of(*draw(400, 2)))._context.view
    cohort = view.select("", "y")
    folds = Folds(repeats=2)
    dealt = folds.deal(cohort)
    assert dealt.shape == (2, 400)
    assert [sorted(set(row)) for row in dealt.tolist()] == [list(range(5)), list(range(5, 10))]
    parts = [frozenset(part.rows.tolist()) for part in folds.list_parts(cohort)]
    assert len(parts) == 2 * len(folds) == 4 * FOLDS
    for one, other in combinations(parts, 2):
        assert not 0 < len(one - other) < view.minimum_patients
    small = cohort.take(np.arange(20))  # too few to be divided: in one fold as a whole
    assert [len(set(row)) for row in folds.deal(small).tolist()] == [1, 1]
    assert folds.list_parts(small) == []


def test_hospitals_too_small_to_be_divided_are_folds_themselves():
    model = cc.RuleFit("y", 1, bins=BINS, **SMALL).fit(open_house(*draw(200, 3), 10))
    assert model.body.validation is not None


def test_with_nobody_to_hold_out_the_penalty_is_the_papers():
    model = cc.RuleFit("y", 1, bins=BINS, **SMALL).fit(open_house(*draw(40, 3), 1))
    assert model.body.validation is None
    assert any("too few patients to choose a penalty" in warning for warning in model.card.warnings)


def test_the_largest_penalty_within_one_standard_error_of_the_best_is_taken():
    losses = np.array(
        [[60.0, 44, 41, 40, 42], [62, 44, 40, 40, 45], [64, 41, 41, 40, 41], [60, 44, 39, 40, 44]]
    )

    class Path:
        models = [np.zeros(2)] * 5

    judged = _Judged([0, 1, 2, 3], np.full(4, 100.0), losses)
    assert judged.best == 3
    apart = (losses - losses[:, [3]]) / 100
    assert judged.errors == pytest.approx(apart.std(axis=0, ddof=1) / 2)
    chosen = judged.choose([Path()] * 4, [], [4.0, 3.0, 2.0, 1.0])
    assert (
        chosen.penalty == 3.0
    )  # the second lies 0.25 above the best, by 0.48 in error; the first 3.25 by 0.75
    flat = _Judged([0, 1], np.full(2, 100.0), np.array([[40.0, 39, 41], [40, 41, 40]]))
    assert flat.choose([Path()] * 2, [], [2.0, 1.0]).penalty is None


CODED = [Attribute("a", (0.0, 1.0)), Attribute("s", (), ("n", "y")), Attribute("w", (), ("p", "q", "r"))]


@st.composite
def ruled(draw_from):
    """Patients by their codes, and rules over the same attributes."""
    codes = [draw_from(st.lists(st.integers(0, one.size - 1), min_size=12, max_size=12)) for one in CODED]
    sets = [st.sets(st.integers(0, one.size - 1), min_size=1, max_size=one.size - 1) for one in CODED]
    rules = set()
    for _ in range(draw_from(st.integers(1, 12))):
        chosen = draw_from(st.sets(st.integers(0, 2), min_size=1))
        rules.add(write_rule({i: draw_from(sets[i]) for i in chosen}, [one.size for one in CODED]))
    return np.array(codes), sorted(rules - {()})


@settings(max_examples=60)
@given(ruled())
def test_rules_are_united_over_codes_that_occur(case):
    """By brute force: what is left holds for the same patients as before, and of single conditions no two are equal or
    complementary."""
    codes, rules = case
    counts = [np.bincount(own, minlength=one.size) for own, one in zip(codes, CODED, strict=True)]
    united = unite_rules(rules, CODED, counts, most_conditions=3, most_values=4)

    def holds(rule):
        inside = np.ones(codes.shape[1], dtype=bool)
        for condition in rule:
            inside &= np.isin(codes[condition[0]], sorted(read_codes(condition)))
        return inside

    before = {holds(rule).tobytes() for rule in rules} | {(~holds(rule)).tobytes() for rule in rules}
    columns = [holds(rule) for rule in united]
    assert all(inside.tobytes() in before for inside in columns)
    kept = {inside.tobytes() for inside in columns} | {(~inside).tobytes() for inside in columns}
    for rule in rules:
        inside = holds(rule)
        alone = (
            any(not set(own) - read_codes(c) for c, own in ((c, codes[c[0]]) for c in rule)) or len(rule) == 1
        )
        assert inside.tobytes() in kept or not inside.any() or inside.all() or not alone
    alone = [(rule[0][0], inside) for rule, inside in zip(united, columns, strict=True) if len(rule) == 1]
    for (one, inside), (other, outside) in combinations(alone, 2):
        assert one != other or not (np.array_equal(inside, outside) or np.array_equal(inside, ~outside))


def test_smokers_are_one_term():
    smoke = Attribute("smoke", (), ("n", "y"))
    rules = [((0, 1, 1),), ((0, 0, 0, 2, 3),), ((0, 0, 1, 3, 3),), ((0, 2, 2),), ((0, 2, 3),)]
    united = unite_rules(rules, [smoke], [np.array([0, 60, 40, 0])], most_conditions=3, most_values=4)
    assert [say_rule(rule, [smoke]) for rule in united] == ["smoke = y"]
    missing = unite_rules(rules, [smoke], [np.array([10, 50, 40, 0])], most_conditions=3, most_values=4)
    assert [say_rule(rule, [smoke]) for rule in missing] == ["smoke = n", "smoke = y"]


def test_rules_that_nobody_reads_are_left_out():
    wards = Attribute("ward", (), tuple("abcdefghij"))
    counts = [np.array([0, *[10] * 10, 0])] * 1
    half = [((0, 1, 5),), ((0, 1, 2),), ((0, 3, 10),)]
    united = unite_rules(half, [wards], counts, most_conditions=3, most_values=4)
    assert [say_rule(rule, [wards]) for rule in united] == ["ward in {a, b}"]
    four = [Attribute(name, (0.0,)) for name in "abcd"]
    long = [tuple((index, 1, 1) for index in range(4)), tuple((index, 1, 1) for index in range(3))]
    ten = [np.array([0, 10, 10])] * 4
    assert unite_rules(long, four, ten, most_conditions=3, most_values=4) == [long[1]]


def test_a_model_has_no_more_terms_than_a_page_holds():
    house = open_house(*draw(400, 1), 3)
    model = cc.RuleFit("y", 1, bins=BINS, trees=40, penalty=0.001, max_terms=12, release="exact").fit(house)
    assert 1 <= len(model.list_terms()) <= 12
    assert any("for a model of at most 12 terms" in warning for warning in model.card.warnings)


def test_a_threshold_that_flags_everybody_is_a_warning():
    sites = noise(1)
    model = cc.RuleFit("y", 1, penalty=0.2, threshold="sensitivity 0.9", release="exact").fit(sites)
    flagged = np.concatenate([model.predict(table) for table in sites.values()])
    assert flagged.all()
    assert any("flags all of the 300 training patients" in warning for warning in model.card.warnings)
