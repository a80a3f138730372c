"""A hospital's own model and its cross-validation, against loops written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.evaluation import alone
from concilium.evaluation.alone import _deal_patients, cross_validate, fit_alone, join, pool
from concilium.evaluation.leave_out import Predictions, select_patients
from concilium.records.columns import Coded, Numbers

ROWS = [
    {"id": f"p{i}", "a": i % 3, "b": "xyz"[i % 7 % 3], "age": 20 + i * 7 % 60, "y": i * i % 11 % 3 % 2}
    for i in range(60)
]


OPTIONS = {"attributes": ["a", "b"], "max_depth": 2}


def make():
    return cc.DecisionTree("y", **OPTIONS)


@given(st.lists(st.sampled_from(["yes", "no", None]), min_size=1, max_size=80), st.integers(2, 10))
def test_folds_are_of_like_size_and_mixture(outcomes, folds):
    dealt = _deal_patients(outcomes, folds, "site", "division")
    counts = np.bincount(dealt, minlength=folds)
    assert counts.max() - counts.min() <= 1
    for value in set(outcomes):
        here = np.bincount(dealt[[o == value for o in outcomes]], minlength=folds)
        assert here.max() - here.min() <= 1
    assert (dealt == _deal_patients(outcomes, folds, "site", "division")).all()


def test_another_study_or_site_deals_otherwise():
    outcomes = ["yes", "no"] * 20
    dealt = _deal_patients(outcomes, 10, "north", "burns")
    assert (dealt != _deal_patients(outcomes, 10, "north", "falls")).any()
    assert (dealt != _deal_patients(outcomes, 10, "south", "burns")).any()


def test_every_patient_is_predicted_by_a_model_of_the_others():
    records = cc.Records.from_rows(ROWS)
    said = cross_validate(
        lambda: cc.DecisionTree("y", "age >= 30", **OPTIONS), "north", records, classes=[0, 1], division="s"
    )
    chosen = [row for row in ROWS if row["age"] >= 30]
    dealt = _deal_patients([row["y"] for row in chosen], 10, "north", "s")
    expected = []
    for fold in range(10):
        others = [row for row, at in zip(chosen, dealt, strict=True) if at != fold]
        model = fit_alone(make, "north", cc.Records.from_rows(others))
        own = [row for row, at in zip(chosen, dealt, strict=True) if at == fold]
        expected += zip([row["y"] for row in own], model.predict(own).tolist(), strict=True)
    assert list(zip(said.truth, said.predicted, strict=True)) == expected
    assert len(said.truth) == len(chosen)


def test_rules_of_a_hospital_alone_are_made_of_all_its_other_patients():
    def number():
        return cc.RuleFit(
            "cost",
            bins={"cost": [0, 100], "age": [30, 50, 70]},
            attributes=["a", "age"],
            trees=5,
            release="exact",
        )

    # Whole costs that all differ: at home they are no secret.
    rows = [{**row, "cost": row["age"] + place} for place, row in enumerate(ROWS)]
    records = cc.Records.from_rows(rows, schema={"age": "number", "cost": "number"})
    said = cross_validate(number, "north", records, classes=[], division="s", folds=3)
    dealt = _deal_patients(records.values("cost"), 3, "north", "s")
    expected = []
    for fold in range(3):
        model = fit_alone(number, "north", records.take(dealt != fold))
        own = records.take(dealt == fold)
        expected += zip(own.values("cost"), model.predict(own).tolist(), strict=True)
    assert list(zip(said.truth, said.predicted, strict=True)) == expected
    assert len({round(value, 6) for value in said.predicted}) > 3


def test_a_hospital_with_fewer_patients_than_folds_has_no_model_of_its_own():
    few = cc.Records.from_rows(ROWS[:9])
    assert cross_validate(make, "north", few, classes=[0, 1], division="s") is None
    enough = cc.Records.from_rows(ROWS[:10])
    assert cross_validate(make, "north", enough, classes=[0, 1], division="s") is not None


def test_at_home_nothing_is_withheld():
    # About one value for every patient, and fewer patients than a hospital would answer others about.
    rows = [{"ward": f"w{i // 2}", "y": i // 2 % 2} for i in range(24)]
    assert fit_alone(
        lambda: cc.DecisionTree("y", growth="id3"), "n", cc.Records.from_rows(rows)
    ).attributes_ == ["ward"]
    assert fit_alone(lambda: cc.DecisionTree("y"), "n", cc.Records.from_rows(rows[:3])).classes_ == [0, 1]


def test_selected_patients_match_and_have_a_known_outcome():
    rows = [{"x": 1, "y": 0}, {"x": 1, "y": None}, {"x": 2, "y": 1}, {"x": None, "y": 1}]
    chosen = select_patients(cc.DecisionTree("y", "x = 1"), cc.Records.from_rows(rows))
    assert (chosen.values("x"), chosen.values("y")) == ([1], [0])


def test_groups_of_one_site_are_joined():
    one = Predictions("n", (0, 1), [0], [1], [[0.1, 0.9]])
    other = Predictions("n", (0, 1), [1, 1], [1, 0], [[0.4, 0.6], [0.7, 0.3]])
    assert join("n", [one, other]) == Predictions(
        "n", (0, 1), [0, 1, 1], [1, 1, 0], [[0.1, 0.9], [0.4, 0.6], [0.7, 0.3]]
    )


def test_a_pooled_table_has_all_patients_and_the_columns_that_all_have():
    whole = cc.Records.from_rows(ROWS, schema={"age": "number", "a": "code"})
    north = whole.take(np.arange(20))
    south = cc.Records({name: whole.take(np.arange(20, 60))[name] for name in whole.names if name != "b"})
    together = pool({"north": north, "south": south})
    assert set(together.names) == {"id", "a", "age", "y"}
    assert together.values("a") == [row["a"] for row in ROWS]
    assert isinstance(together["age"], Numbers)
    assert isinstance(together["a"], Coded)
    assert together["a"].stated
    assert not together["y"].stated


@pytest.mark.parametrize("folds", [2, 5])
def test_other_numbers_of_folds(folds):
    records = cc.Records.from_rows(ROWS)
    said = cross_validate(make, "n", records, classes=[0, 1], division="s", folds=folds)
    assert len(said.truth) == 60


def test_nobody_is_predicted_by_an_intercept_fitted_to_him(monkeypatch):
    dice = np.random.default_rng(2)
    risk = dice.uniform(0.05, 0.95, 400)
    truth = [int(one) for one in dice.random(400) < risk**0.3]
    rows = np.column_stack([1 - risk, risk]).tolist()
    folds = dice.integers(0, 10, 400)
    monkeypatch.setattr(alone, "_deal_patients", lambda *_: folds)

    def adapt(outcomes):
        said = Predictions("north", (0, 1), outcomes, [0] * 400, rows, rows)
        return np.array(alone.adapt_in_folds(said).probabilities)

    flipped = [1 - one if fold == 3 else one for one, fold in zip(truth, folds, strict=True)]
    before, after = adapt(truth), adapt(flipped)
    assert np.array_equal(before[folds == 3], after[folds == 3])
    assert not np.array_equal(before[folds != 3], after[folds != 3])
    assert abs(before[:, 1].sum() - sum(truth)) < 2
    few = Predictions("north", (0, 1), truth[:9], [0] * 9, rows[:9], rows[:9])
    assert alone.adapt_in_folds(few) == few
