"""Who is held back: folds that cover every site once, rows that everyone holds back alike, figures pooled."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import concilium as cc
from concilium.errors import StudyError
from concilium.evaluation.leave_out import (
    FoldResult,
    Predictions,
    complete,
    figures,
    find_classes,
    hold_out,
    leave_bands_out,
    leave_sites_out,
    measure_model,
    predict_at,
    set_apart,
)
from concilium.evaluation.summary import summarise
from concilium.protocol.card import Card
from concilium.records.columns import Value
from concilium.records.table import Records
from concilium.trees.voting import VotingTrees

SIZES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.integers(0, 50), min_size=2, max_size=12
)
CARD = Card(
    study="s",
    method="tree",
    release="exact",
    meaning="",
    sites=[],
    rounds=3,
    bytes=500,
    releases=[],
    refusals=[],
    dropouts=[],
    warnings=[],
    version="0",
)


class SmokersDie:
    """A model anyone can check: smokers die for certain, others with one chance in four."""

    card = CARD
    target = "outcome"
    followed = None

    def __init__(self, query: str = "") -> None:
        self.query = query

    @property
    def classes_(self) -> list[Value]:
        return ["dead", "alive"]

    def predict_proba(self, records: Records) -> NDArray[np.float64]:
        dead = np.array([1.0 if value == "yes" else 0.25 for value in records.values("smoker")])
        return np.column_stack([dead, 1 - dead])

    def predict(self, records: Records) -> NDArray[Any]:
        return np.array(["dead" if value == "yes" else "alive" for value in records.values("smoker")])


PATIENTS = Records.from_rows(
    [
        {"smoker": "yes", "outcome": "dead", "age": 70},
        {"smoker": "no", "outcome": "alive", "age": 30},
        {"smoker": "no", "outcome": None, "age": 40},
        {"smoker": "yes", "outcome": "alive", "age": 50},
        {"smoker": None, "outcome": "dead", "age": 10},
    ]
)


@given(SIZES)
def test_every_site_is_left_out_once_and_learns_otherwise(sizes: dict[str, int]) -> None:
    folds = leave_sites_out(sizes)
    assert [fold.left_out for fold in folds] == [(name,) for name in sizes]
    for fold in folds:
        assert sorted([*fold.left_out, *fold.learn]) == sorted(sizes)


@given(SIZES, st.data())
def test_bands_cover_every_site_once_and_are_of_like_size(sizes: dict[str, int], data: st.DataObject) -> None:
    bands = data.draw(st.integers(2, len(sizes)))
    folds = leave_bands_out(sizes, bands)
    assert len(folds) == bands
    assert sorted(name for fold in folds for name in fold.left_out) == sorted(sizes)
    for fold in folds:
        assert sorted([*fold.left_out, *fold.learn]) == sorted(sizes)
    counts = [len(fold.left_out) for fold in folds]
    assert max(counts) - min(counts) <= 1
    patients = [sum(sizes[name] for name in fold.left_out) for fold in folds]
    assert max(patients) - min(patients) <= max(sizes.values())
    shuffled = dict(sorted(sizes.items(), key=lambda item: item[0][::-1]))
    assert {fold.left_out for fold in leave_bands_out(shuffled, bands)} == {fold.left_out for fold in folds}


def test_bands_deal_the_largest_sites_first() -> None:
    folds = leave_bands_out({"a": 5, "b": 50, "c": 20, "d": 20, "e": 1}, 2)
    assert [fold.left_out for fold in folds] == [("b", "d", "e"), ("a", "c")]


def test_too_few_sites_are_refused() -> None:
    with pytest.raises(StudyError, match="at least two sites"):
        leave_sites_out({"only": 9})
    with pytest.raises(StudyError, match='"band:3" needs at least 3 sites; there are 2'):
        leave_bands_out({"a": 1, "b": 2}, 3)


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.text(max_size=5), st.text(max_size=5))
def test_a_holdout_takes_its_share_and_never_all(rows: int, share: float, division: str, site: str) -> None:
    held = hold_out(rows, share, site, division)
    assert held.sum() == min(max(round(share * rows), 1), rows - 1)
    assert (held == hold_out(rows, share, site, division)).all()


def test_a_holdout_is_the_order_of_the_hashes() -> None:
    order = sorted(range(50), key=lambda row: hashlib.sha256(f"burns\nnorth\n{row}".encode()).digest())
    assert np.flatnonzero(hold_out(50, 0.3, "north", "burns")).tolist() == sorted(order[:15])
    assert (hold_out(50, 0.3, "north", "burns") != hold_out(50, 0.3, "south", "burns")).any()
    assert (hold_out(50, 0.3, "north", "burns") != hold_out(50, 0.3, "north", "falls")).any()


def test_a_larger_holdout_holds_back_the_same_patients_and_more() -> None:
    small, large = (hold_out(100, share, "north") for share in (0.2, 0.5))
    assert (large | ~small).all()


def test_one_patient_cannot_be_divided() -> None:
    with pytest.raises(StudyError, match="site 'north' has 1 patients: too few"):
        hold_out(1, 0.5, "north")


def test_a_model_is_measured_where_the_query_holds_and_the_outcome_is_known() -> None:
    outcome = predict_at("north", SmokersDie("age > 20"), PATIENTS, ["alive", "dead"])
    assert outcome.truth == ["dead", "alive", "alive"]
    assert outcome.predicted == ["dead", "alive", "dead"]
    assert outcome.probabilities == [[0.0, 1.0], [0.75, 0.25], [0.0, 1.0]]


def test_nobody_to_measure_is_no_error() -> None:
    outcome = predict_at("north", SmokersDie("age > 99"), PATIENTS, ["alive", "dead"])
    assert (outcome.truth, outcome.predicted, outcome.probabilities) == ([], [], [])
    assert set(figures([outcome], "dead").values()) == {None}


def test_classes_are_sorted_numbers_first() -> None:
    one = Records.from_rows([{"y": 3}, {"y": 1}, {"y": None}])
    other = Records.from_rows([{"y": "b"}, {"y": "a"}])
    assert find_classes([one, other], "y") == [1, 3, "a", "b"]


def test_a_column_that_only_other_sites_have_is_missing() -> None:
    wide = complete(PATIENTS, ["age", "ward"])
    assert set(wide.names) == {"smoker", "outcome", "age", "ward"}
    assert wide.values("ward") == [None] * 5
    assert wide.values("age") == PATIENTS.values("age")


def test_a_summary_pools_patients_and_keeps_sites_and_folds_apart() -> None:
    def result(site: str, left_out: tuple[str, ...]) -> FoldResult:
        return measure_model(
            SmokersDie(),
            0.12345,
            {site: PATIENTS},
            classes=["alive", "dead"],
            left_out=left_out,
        )

    folds = [result("north", ("north",)), result("south", ("south",))]
    summary = summarise(folds, "dead")
    assert summary["overall"]["patients"] == 8
    assert summary["overall"]["accuracy"] == summary["sites"]["north"]["accuracy"] == 0.5
    assert summary["sites"]["south"]["patients"] == 4
    assert summary["sites"]["south"]["rounds"] == 3
    assert [fold["left_out"] for fold in summary["folds"]] == [["north"], ["south"]]
    assert summary["folds"][0]["seconds"] == 0.123
    assert summarise([result("north", ())], "dead")["folds"] == []


def test_pooled_figures_are_no_mean_of_means() -> None:
    large = Predictions("a", (0, 1), [1, 1, 0, 0], [1, 1, 0, 0], [[0.0, 1.0]] * 2 + [[1.0, 0.0]] * 2)
    small = Predictions("b", (0, 1), [1], [0], [[1.0, 0.0]])
    assert figures([large, small], 1)["accuracy"] == 0.8
    assert figures([large, small], 1)["sensitivity"] == pytest.approx(2 / 3)


def test_a_fold_survives_being_written() -> None:
    fold = FoldResult(
        ("a",), [Predictions("a", (0, "x"), [0, "x"], [0, 0], [[0.1, 0.9], [0.3, 0.7]])], 3, 500, 1.5
    )
    assert msgspec.json.decode(msgspec.json.encode(fold), type=FoldResult) == fold


def grades(values: list[Value], positive: Value) -> tuple[list[Records], VotingTrees]:
    """Two sites with a target of these values, and an ensemble that tells one of them from the rest."""
    rows = [
        {"x": "ab"[i % 10 == 0], "z": i % 3, "grade": values[0 if i % 10 == 0 else 1 + i % (len(values) - 1)]}
        for i in range(200)
    ]
    tables = [Records.from_rows(rows[:100]), Records.from_rows(rows[100:])]
    sites = [cc.Site(name, table) for name, table in zip("ab", tables, strict=True)]
    return tables, VotingTrees("grade", positive, imbalance=1).fit(cc.House(sites))


@pytest.mark.parametrize(
    ("values", "positive"), [(["high", "low", "mid"], "high"), ([3, 1, 2], 3), ([3, 1, 2], "3")]
)
def test_a_model_of_one_value_against_the_rest_is_measured_as_such(
    values: list[Value], positive: Value
) -> None:
    tables, model = grades(values, positive)
    every = find_classes(tables, "grade")
    assert len(every) == 3
    for classes in (every, set_apart(every, positive)):
        outcome = predict_at("a", model, tables[0], classes)
        assert [str(value) for value in outcome.classes] == [f"not {positive}", str(positive)]
        truth = ["positive" if str(value) == str(positive) else "rest" for value in tables[0].values("grade")]
        assert ["rest" if str(value).startswith("not") else "positive" for value in outcome.truth] == truth
        assert outcome.predicted == outcome.truth  # x tells the two apart
        measured = figures([outcome], outcome.classes[1])
        assert (measured["sensitivity"], measured["specificity"], measured["auc"]) == (1, 1, 1)


def test_a_model_of_two_of_three_values_is_measured_among_all() -> None:
    _, model = grades(["high", "low"], "high")
    assert model.classes_ == ["low", "high"]
    table = Records.from_rows([{"x": "b", "z": 0, "grade": "high"}, {"x": "a", "z": 1, "grade": "mid"}])
    outcome = predict_at("a", model, table, set_apart(["high", "low", "mid"], "high"))
    assert outcome.truth == outcome.predicted == ["high", "not high"]
    assert set_apart(["high", "low"], "high") == ["high", "low"]
