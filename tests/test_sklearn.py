"""Methods as estimators of scikit-learn: its own checks, and the models that `fit(house)` makes."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import concilium as cc
import concilium.sklearn as adapted

CLASSIFIERS = (
    "DecisionTreeClassifier",
    "VotingTreesClassifier",
    "RuleFitClassifier",
    "ShapeModelClassifier",
    "NaiveBayesClassifier",
    "LogisticRegression",
)
REGRESSORS = ("LinearRegression", "RuleFitRegressor", "ShapeModelRegressor")
QUICK = {"DecisionTreeClassifier"}
"""What is checked at each change; `make thorough` checks all."""


@pytest.fixture(scope="module")
def ward() -> tuple[pd.DataFrame, pd.Series]:
    """Patients of whom the old and those with a high value die, with words and missing values."""
    draw, many = np.random.default_rng(3), 300
    table = pd.DataFrame(
        {
            "age": draw.integers(20, 95, many),
            "sex": draw.choice(["f", "m"], many),
            "lab": np.where(draw.random(many) < 0.1, np.nan, draw.gamma(2, 0.6, many)),
        }
    )
    died = draw.random(many) < 0.05 + 0.5 * (table.age > 70) + 0.2 * (table.lab > 1.8)
    return table, pd.Series(np.where(died, "died", "lived"), name="outcome")


@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_the_checks_of_scikit_learn_pass(name: str, request: pytest.FixtureRequest) -> None:
    if name not in QUICK and request.config.getoption("--examples") < 1:
        pytest.skip("checked by `make thorough`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks warn of what they skip
        done = check_estimator(getattr(adapted, name)(), on_skip=None)
    assert len(done) > 40
    assert {one["check_name"] for one in done if one["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_the_model_of_the_house(name: str, ward: Any) -> None:
    """The same predictions as the method's own fit over the same hospitals, class by class."""
    table, died = ward
    site = np.array(["north", "south", "west"])[np.arange(len(table)) % 3]
    more = {"trees": 30} if name == "RuleFitClassifier" else {}
    made = getattr(adapted, name)(**more).fit(table, died, site=site)
    method: Any = getattr(cc, name.replace("Logistic", "").removesuffix("Classifier"))
    parts = {one: table.assign(outcome=died)[site == one] for one in ("north", "south", "west")}
    stated = {"positive": "lived"} if "positive" in method.parameters() else {}
    own = method("outcome", release="exact", **stated, **more).fit(parts)
    assert [one.name for one in made.model_.card.sites] == ["north", "south", "west"]
    assert made.classes_.tolist() == ["died", "lived"]
    np.testing.assert_allclose(made.predict_proba(table), own.predict_proba(table))
    assert set(made.predict(table)) <= {"died", "lived"}
    assert made.score(table, died) == pytest.approx(own.score(table.assign(outcome=died)))
    assert made.feature_importances_.sum() == pytest.approx(1)
    again = pickle.loads(pickle.dumps(made))
    assert (again.predict(table) == made.predict(table)).all()


@pytest.mark.parametrize("classes", [[0, 1], [False, True], [2.0, 5.0], ["no", "yes"]])
def test_classes_are_those_of_y(classes: list[Any], ward: Any) -> None:
    table, died = ward
    y = np.array(classes)[(died == "died").to_numpy().astype(int)]
    for made in (adapted.NaiveBayesClassifier(), adapted.VotingTreesClassifier()):
        made.fit(table, y)
        assert made.classes_.tolist() == classes
        assert made.predict(table).dtype == y.dtype
        assert made.score(table, y) > 0.6


def test_pipelines_searches_and_folds_work(ward: Any) -> None:
    table, died = ward
    assert cross_val_score(adapted.NaiveBayesClassifier(), table, died, cv=3, scoring="roc_auc").mean() > 0.6
    pipeline = make_pipeline(StandardScaler(), adapted.DecisionTreeClassifier())
    found = GridSearchCV(pipeline, {"decisiontreeclassifier__max_depth": [1, 2]}, cv=2).fit(
        table[["age", "lab"]], died
    )
    assert found.best_score_ > 0.6
    site = np.array(["north", "south", "west"])[np.arange(len(table)) % 3]
    asked = adapted.DecisionTreeClassifier(release="masked", min_leaf=20)
    assert clone(asked).get_params()["min_leaf"] == 20
    with sklearn.config_context(enable_metadata_routing=True):
        asked.set_fit_request(site=True)
        assert cross_val_score(asked, table, died, cv=2, params={"site": site}).mean() > 0.6


def test_a_number_is_predicted_within_its_range(ward: Any) -> None:
    table, _ = ward
    age = table.pop("age")
    table["twice"] = 2 * age
    for name in REGRESSORS:
        made = getattr(adapted, name)().fit(table.dropna(), age[table.notna().all(axis=1)])
        assert made.score(table.dropna(), age[table.notna().all(axis=1)]) > 0.8
        assert "age" in made.model_.explain({"twice": 100}).sentences[0]
    table["age"] = age


def test_what_does_not_fit_is_a_sentence(ward: Any) -> None:
    table, died = ward
    with pytest.raises(NotFittedError):
        adapted.DecisionTreeClassifier().predict(table)
    with pytest.raises(TypeError, match="no parameter 'depth'"):
        adapted.DecisionTreeClassifier(depth=3)
    with pytest.raises(ValueError, match="'threshold' of a DecisionTree must be"):
        adapted.DecisionTreeClassifier(threshold="often").fit(table, died)
    with pytest.raises(ValueError, match="site has 1 names for 300 rows"):
        adapted.DecisionTreeClassifier().fit(table, died, site=["north"])
    with pytest.raises(ValueError, match="Only binary classification"):
        adapted.RuleFitClassifier().fit(table, np.arange(300) % 3)
    with pytest.raises(ValueError, match="the name of the outcome, 'age'"):
        adapted.DecisionTreeClassifier().fit(table, died.rename("age"))
