"""A `ShapeModel` of a number: penalised least squares of the pooled patients, in its unit, also private."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError, ModelError, StudyError
from concilium.models.follow_up import Followed
from concilium.models.outcome import Outcome, refuse_number, warn_of_few
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.shapes import plain_fit
from concilium.shapes.private_sums import AskDirections
from concilium.shapes.shape_sums import AskShapes
from shapes.shape_patients import DAYS, DEVIATION, STAYS, draw_patients, list_rows, open_house, true_odds

RANGE = {"stay": [-20.0, 40.0]}
AGES = [float(edge) for edge in range(25, 90, 5)]
BINS = {"age": AGES, "lab": [-1.0, -0.5, 0.0, 0.5, 1.0], "noise": [-1.0, 0.0, 1.0], **RANGE}
PRIVATE = {"release": "private", "bins": BINS, "values": {"ward": ["a", "b", "c"]}}


def fit(columns, hospitals=3, seed=0, **said):
    return cc.ShapeModel("stay", **{"bins": RANGE, "release": "exact", **said}).fit(
        open_house(columns, hospitals, seed, STAYS)
    )


def read(columns):
    return cc.Records.from_rows(list_rows(columns, schema=STAYS), schema=STAYS)


@pytest.fixture(scope="module")
def columns():
    return draw_patients(2500, 1, crossed=0.8)


@pytest.fixture(scope="module")
def model(columns):
    return fit(columns)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    hospitals=st.integers(3, 6),
    release=st.sampled_from(["exact", "masked"]),
    rules=st.sampled_from([0, 4]),
)
def test_whatever_the_split_it_is_the_model_of_the_pooled_table(seed, hospitals, release, rules):
    columns = draw_patients(300, seed, crossed=0.8)
    pooled = fit(columns, 1, rules=rules)
    assert fit(columns, hospitals, seed, release=release, rules=rules).body == pooled.body


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_it_is_the_penalised_least_squares_of_numpy(seed, monkeypatch):
    """By a design of the pooled patients that shares no code with the fit, at the smoothing that it chose."""
    columns, penalties = draw_patients(700, seed), []
    solve = plain_fit.solve_number

    def remember(terms, *given):
        solved = solve(terms, *given)
        penalties.append([one.penalty for one in terms])
        return solved

    monkeypatch.setattr(plain_fit, "solve_number", remember)
    model = fit(columns, 4, seed, bins=BINS, max_pairs=0)
    rows = list_rows(columns, schema=STAYS)
    blocks = []
    for attribute in model.body.attributes:
        values = [row[attribute.name] for row in rows]
        missing = np.array([[value is None] for value in values], dtype=float)
        if attribute.numeric:
            numbers = np.array([np.nan if value is None else value for value in values])
            ends = itertools.pairwise([-np.inf, *attribute.edges, np.inf])
            inside = np.column_stack([(numbers >= a) & (numbers < b) for a, b in ends])
        else:
            inside = np.array([[value == one for one in attribute.values] for value in values])
        blocks.append(np.hstack([missing, inside]) if attribute.missing else inside)
    design = np.hstack([np.ones((len(rows), 1)), *blocks]).astype(float)
    penalty = np.zeros((design.shape[1], design.shape[1]))
    at = 1
    for own in penalties[-1]:
        penalty[at : at + len(own), at : at + len(own)] = own
        at += len(own)
    penalty[0, 0] = 1e-8
    gram = design.T @ design
    expected = np.linalg.solve(gram + penalty, design.T @ columns["stay"])
    np.testing.assert_allclose(model.predict(read(columns)), design @ expected, atol=1e-4)
    # The error of a mean is that of the residuals: their variance on the degrees of freedom that are left.
    inverse = np.linalg.inv(gram + penalty)
    left = ((columns["stay"] - design @ expected) ** 2).sum()
    variance = left / (len(rows) - np.trace(inverse @ gram))
    row = {name: value for name, value in rows[0].items() if name != "stay" and value is not None}
    if len(row) == 4:
        low, high = model.explain(row).interval
        told = variance * design[0] @ inverse @ design[0]
        assert (high - low) / 2 / 1.96 == pytest.approx(np.sqrt(told), rel=0.05)


def test_it_is_as_good_as_the_truth_lets_it_be(columns, model):
    fresh = draw_patients(3000, 2, crossed=0.8)
    off = model.predict(read(fresh)) - (DAYS + DEVIATION * fresh["odds"])
    assert np.mean(off**2) < 0.05 * np.var(DEVIATION * fresh["odds"])
    assert model.score(read(fresh)) == pytest.approx(model.body.sheet.auc_of_model, abs=0.05)
    assert [model.body.name(term) for term in model.body.terms if len(term.cells.attributes) > 1] == [
        "age and lab"
    ]
    assert model.body.mean == pytest.approx(columns["stay"].mean(), abs=1e-5)


@pytest.mark.parametrize("release", ["exact", "private"])
def test_bands_hold_the_truth_at_their_level(release):
    """The curve of age against its mean, in all bins of ten draws of patients."""
    held = total = 0
    how = {**PRIVATE, "epsilon": 1} if release == "private" else {"bins": BINS, "max_pairs": 0}
    grid = np.linspace(20, 90, 7001)[:-1]
    truth = DEVIATION * true_odds(grid, np.zeros(len(grid)), np.ones(len(grid), dtype=int))
    means = [truth[(grid >= a) & (grid < b)].mean() for a, b in itertools.pairwise([20, *AGES, 90])]
    for seed in range(10):
        model = fit(draw_patients(1500, 100 + seed), 3, **how)
        term = model.body.terms[model.body.names.index("age")]
        off = np.array(term.values[1:]) - (np.array(means) - np.array(term.shares[1:]) @ means)
        held += int((np.abs(off) <= 1.96 * np.array(term.errors[1:])).sum())
        total += len(off)
    assert 0.85 <= held / total <= 1.0


def test_it_reads_in_the_unit_of_the_number(model):
    text = model.text()
    assert text.startswith(f"The mean stay is {model.body.mean:.4g}. What is added is against the mean")
    assert "odds" not in text + str(model.score_sheet())
    assert "R² of the points" in text
    assert model.score_sheet().loss < 0.03
    said = model.explain({"age": 30, "lab": 1.0, "ward": "c", "noise": 0.0})
    assert said.probability is None
    assert said.base + sum(reason.moved for reason in said.reasons) == pytest.approx(
        said.prediction, abs=0.01
    )
    assert said.interval[0] < said.prediction < said.interval[1]
    assert "adds +" in str(said)
    assert model.explain({}).prediction == pytest.approx(model.body.mean)
    assert {row.odds_ratio for row in model.list_terms()} == {None}
    page = model.to_html()
    assert "R² of the points" in page
    assert "What age adds to stay" in page
    assert "dds ratio" not in page
    assert "age: adds +" in model.draw_patient({"age": 30})
    with pytest.raises(ModelError, match="predicts a number"):
        model.predict_proba([{"age": 1}])


def test_its_json_adds_up_to_the_prediction(columns, model):
    told, rows = json.loads(model.to_json()), list_rows(draw_patients(40, 5), schema=STAYS)

    def holds(value, cases):
        return any(
            case.get("missing", False)
            if value is None
            else value in case["values"]
            if "values" in case
            else not isinstance(value, str)
            and "missing" not in case
            and case.get("from", -np.inf) <= value < case.get("below", np.inf)
            for case in cases
        )

    for row, predicted in zip(rows, model.predict(read(draw_patients(40, 5))), strict=True):
        total = told["intercept"]
        for term in told["terms"]:
            total += sum(
                cell["adds"]
                for cell in term["cells"]
                if all(holds(row[one["attribute"]], one["any_of"]) for one in cell["conditions"])
            )
        assert total == pytest.approx(predicted)


def test_a_stated_direction_is_kept():
    columns = draw_patients(800, 7)
    for how in ({"max_pairs": 0}, {**PRIVATE, "epsilon": 2}):
        model = fit(columns, monotone={"noise": "rising", "age": "falling"}, **how)
        for name, way in (("noise", 1), ("age", -1)):
            if name in model.body.names:
                term = model.body.terms[model.body.names.index(name)]
                assert (way * np.diff(term.values[1:]) >= -1e-9).all()


def test_without_noise_a_private_one_finds_the_same(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    columns, fresh = draw_patients(2500, 1), draw_patients(2000, 2)
    with zero_noise():
        model = fit(columns, 4, **PRIVATE, epsilon=4)
    truth = DAYS + DEVIATION * fresh["odds"]
    found = model.predict(read(fresh))
    assert np.mean((found - truth) ** 2) < 0.08 * np.var(truth)
    assert np.polyfit(found, truth, 1)[0] == pytest.approx(1, abs=0.1)
    assert model.body.mean == pytest.approx(columns["stay"].mean(), abs=0.2)
    assert "was not measured" in model.text()
    assert "whose mean stay is" in " ".join(model.card.warnings)


def test_a_private_one_spends_what_it_plans(columns):
    rows, budget = list_rows(columns, range(900), STAYS), cc.Policy(budget=cc.Budget("20"))
    sites = [cc.Site(f"h{at}", cc.Records.from_rows(rows[at::3], schema=STAYS), budget) for at in range(3)]
    model = cc.ShapeModel("stay", **PRIVATE, epsilon=1).fit(sites)
    spent, planned = sites[0].ledger.spent(), model.plan().total
    assert 0.999 * planned < spent <= planned <= model.rho


def test_what_cannot_be_is_said(columns):
    few = {name: own[:60] for name, own in columns.items()}
    with pytest.raises(StudyError, match="is a number, and none of two classes"):
        cc.ShapeModel("stay", bins=RANGE, threshold="prevalence")
    with pytest.raises(StudyError, match="must give the range of a number"):
        fit(few, bins={"stay": [3.0]})
    with pytest.raises(StudyError, match="miss all patients"):
        fit(few, bins={"stay": [1000.0, 2000.0]})
    with pytest.raises(HouseError, match="have the same stay"):
        fit({**few, "stay": np.full(60, 5.0)})
    with pytest.raises(HouseError, match="ShapeModel and RuleFit predict numbers"):
        fit(few, bins={})
    clipped = fit(few, bins={"stay": [5.0, 12.0]}, release="masked")
    assert "beyond its range, 5 to 12" in " ".join(clipped.card.warnings)


@pytest.mark.parametrize(
    ("release", "low", "high", "agreed"),
    [
        ("exact", -20.0, 40.0, True),
        ("exact", -20.0, 30.0, False),
        ("private", -70.0, 90.0, True),
        ("private", 0.0, 9.0, True),
        ("private", -20.0, 1e6, False),
    ],
)
def test_a_hospital_answers_about_the_range_of_the_study(release, low, high, agreed):
    more = {"release": release} | ({"epsilon": 1} if release == "private" else {})
    said = {
        "query": "",
        "attributes": (Attribute("age", tuple(AGES)),),
        "outcome": Outcome(low=low, high=high),
    }

    def ask(target):
        if release == "private":
            return AskDirections(target=target, directions=(), cap=0.9, **said)
        return AskShapes(target=target, terms=(), at=(0.0,), **said)

    objection = cc.ShapeModel("stay", **{**PRIVATE, **more}).find_objection(ask("stay"))
    assert objection == (None if agreed else "the range of 'stay' is not the one of the study")
    assert "the range of 'y'" in cc.ShapeModel("y", positive="yes", **more).find_objection(ask("y"))


def test_the_range_that_is_named_holds_every_number():
    values = [1_234_567, *range(40), 1_234_571.5]
    with pytest.raises(StudyError, match=re.escape("bins = {'cost': [0, 1234571.5]}")):
        refuse_number("cost", values)


def test_a_warning_of_few_patients_says_by_when():
    (said,) = warn_of_few("death", ["no", "yes"], [40.0, 3.0], Followed("months", 12.0))
    assert said.startswith("3 of 43 patients have death = yes by months = 12: too few")
