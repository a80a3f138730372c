"""What a model explains of a patient is what it predicts for it, however the patient's values are written."""

from __future__ import annotations

import datetime
import decimal
import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError
from concilium.records.columns import label
from concilium.records.dictionary import Dictionary

DICTIONARY = Dictionary.parse(
    {
        "age": {"unit": "years", "range": [0, 120]},
        "smokes": {"values": {"0": "never smoked", "1": "smokes"}},
        "icd": {"type": "text"},
        "seen": {"type": "code"},
        "death": {"values": ["no", "yes"]},
    },
    "d.toml",
)
WAYS = {
    "as tables have them": (None, [True, False], ["250", "41.5"]),
    "as text": (None, ["True", "False"], ["250", "41.5"]),
    "by the dictionary": (DICTIONARY, ["0", "1"], ["250", "250.0"]),
}
METHODS = {
    "tree": (cc.DecisionTree, {"max_depth": 4, "min_leaf": 1}),
    "branches for values": (cc.DecisionTree, {"growth": "id3", "max_depth": 4}),
    "one tree": (cc.VotingTrees, {"positive": "yes", "imbalance": 0.001}),
    "voting trees": (cc.VotingTrees, {"positive": "yes", "imbalance": 0.5, "negatives": 1, "growth": "id3"}),
    "naive bayes": (cc.NaiveBayes, {}),
    "shapes": (cc.ShapeModel, {"positive": "yes", "release": "exact"}),
    "rules": (cc.RuleFit, {"positive": "yes", "release": "exact", "trees": 25}),
}

SMOKES = [True, False, "True", "False", "true", "FALSE", " True", 0, 1, "0", "1", 1.0, "1.0", "01", "yes"]
SMOKES += ["smokes", "Never smoked", np.bool_(True), np.int64(1), "other", None, float("nan"), pd.NA]
ICD = ["250", 250, 250.0, "250.0", "0250", "41.5", 41.5, "41.50", decimal.Decimal("41.5"), "V27", None]
SEEN = [
    "2024-05-01",
    datetime.date(2024, 5, 1),
    np.datetime64("2024-05-01", "ns"),
    pd.Timestamp("2024-05-01"),
]
SEEN += ["2024-05-01 00:00:00", "2024-06-01", None, pd.NaT]
AGE = [63, 63.0, "63", "63.0", " 41", "+70", np.float32(44), decimal.Decimal(71), None, float("nan")]
PATIENTS = st.fixed_dictionaries(
    {
        "smokes": st.sampled_from(SMOKES),
        "icd": st.sampled_from(ICD),
        "seen": st.sampled_from(SEEN),
        "age": st.sampled_from(AGE),
    }
)


def make_rows(smokes, icd, count=400):
    draw = random.Random(5)
    rows = []
    for _ in range(count):
        row = {"age": draw.randint(30, 90), "smokes": draw.choice(smokes), "icd": draw.choice(icd)}
        row["seen"] = draw.choice(["2024-05-01", "2024-06-01"])
        risk = 0.05 + 0.5 * (row["smokes"] == smokes[0]) * (row["age"] > 60)
        risk += 0.15 * (row["icd"] == icd[0]) + 0.1 * (row["seen"] == "2024-05-01")
        rows.append({**row, "death": "yes" if draw.random() < risk else "no"})
    return rows


@pytest.fixture(scope="module", params=WAYS)
def site(request):
    dictionary, smokes, icd = WAYS[request.param]
    rows = make_rows(smokes, icd)
    if dictionary is None:
        return None, cc.Site("north", cc.Records.from_rows(rows)), request.param
    table = cc.Records.read(pd.DataFrame(rows), dictionary=dictionary)
    return dictionary, cc.Site("north", table), request.param


@pytest.fixture(scope="module", params=METHODS)
def model(request, site):
    method, parameters = METHODS[request.param]
    house = cc.House([site[1]], dictionary=site[0])
    return method(target="death", bins={"age": [45, 60, 75]}, **parameters).fit(house)


def test_the_models_ask_about_what_is_odd(model):
    assert {"smokes", "icd", "seen", "age"} & set(model.attributes_)


@given(rows=st.lists(PATIENTS, min_size=1, max_size=4))
def test_the_chance_of_an_explanation_is_that_of_the_prediction(model, rows):
    chances, called = model.predict_proba(rows), model.predict(rows)
    alone = np.vstack([model.predict_proba([row]) for row in rows])
    np.testing.assert_allclose(alone, chances, atol=1e-12)  # whoever else is asked about
    for row, shares, prediction in zip(rows, chances, called.tolist(), strict=True):
        explanation = model.explain(row)
        place = model.classes_.index(explanation.prediction)
        said = explanation.chances[place] if explanation.chances else explanation.probability
        assert said == pytest.approx(shares[place], abs=1e-9)
        assert label(explanation.prediction) == label(prediction)


@given(row=PATIENTS)
def test_a_frame_is_read_as_rows_are(model, row):
    frame = pd.DataFrame({name: pd.Series([value], dtype=object) for name, value in row.items()})
    np.testing.assert_allclose(model.predict_proba(frame), model.predict_proba([row]), atol=1e-12)


def ask(model, **patient):
    """The chances of all sorts of patients who have these values."""
    everyone = [
        {"age": age, "smokes": 0, "icd": icd, "seen": seen, **patient}
        for age in (40, 50, 70, 80)
        for icd in ("250", "41.5", "V27")
        for seen in ("2024-05-01", "2024-06-01")
    ]
    return model.predict_proba(everyone)[:, 1].tolist()


def test_what_a_text_stands_for_is_found(site, model):
    dictionary, smokes, _ = WAYS[site[2]]
    assert ask(model, smokes=smokes[0]) != ask(model, smokes=smokes[1])
    assert ask(model, age="50.0") == ask(model, age=50)
    if smokes[0] is True:
        assert ask(model, smokes="True") == ask(model, smokes=" TRUE") == ask(model, smokes=True)
        assert ask(model, smokes="False") == ask(model, smokes=False)
    if dictionary is not None:
        assert ask(model, smokes="Smokes") == ask(model, smokes=1) == ask(model, smokes="01")
        assert ask(model, smokes="never smoked") == ask(model, smokes=0)
        # Where the dictionary says text, each character counts.
        assert ask(model, icd="250.00") == ask(model, icd="V27")


def test_there_is_an_ensemble_among_the_models(request, model):
    if "voting trees" in request.node.name:
        assert len(model.experts_) > 1


@pytest.mark.parametrize("age", ["old", "", True])
def test_what_is_no_number_is_refused_by_both(model, age):
    if "age" not in model.attributes_:
        pytest.skip("this model does not ask for the age")
    row = {"smokes": None, "icd": None, "seen": None, "age": age}
    for ask in (model.explain, lambda patient: model.predict_proba([patient])):
        with pytest.raises(RecordsError, match="takes attribute 'age' as a number, but row 1 holds"):
            ask(row)
