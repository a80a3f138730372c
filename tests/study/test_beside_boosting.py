"""A first fit beside scikit-learn's gradient boosting on the same pooled rows: nothing is stated but the target.

Half of the patients are held out, twice. A method is listed with a table where it reaches boosting; where it
does not, docs/evidence/first-fit.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

import concilium as cc

SURVSET = pytest.importorskip("SurvSet.data")
METHODS: dict[str, Callable[[], Any]] = {
    "tree": lambda: cc.DecisionTree("outcome"),
    "naive Bayes": lambda: cc.NaiveBayes("outcome"),
    "RuleFit": lambda: cc.RuleFit("outcome"),
    "voting trees": lambda: cc.VotingTrees("outcome", positive=1),
}
REACHED = {
    "breast_cancer": ["naive Bayes", "RuleFit"],
    "TRACE": ["tree", "naive Bayes", "RuleFit", "voting trees"],
    "actg": ["tree", "RuleFit"],
}


def read(table: str) -> pd.DataFrame:
    if table == "breast_cancer":
        frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "outcome"})
        return frame.rename(columns={name: name.replace(" ", "_") for name in frame.columns})
    frame = SURVSET.SurvLoader().load_dataset(table)["df"].drop(columns=["time"])
    return frame.rename(columns={"event": "outcome"})


def boost(learned: pd.DataFrame, held: pd.DataFrame) -> float:
    both = pd.get_dummies(pd.concat([learned, held]).drop(columns="outcome"), dtype=float)
    both.columns = [str(place) for place in range(both.shape[1])]
    model = HistGradientBoostingClassifier(random_state=0).fit(both[: len(learned)], learned.outcome)
    return float(roc_auc_score(held.outcome, model.predict_proba(both[len(learned) :])[:, 1]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of numpy, by what SurvSet pickled
@pytest.mark.parametrize("table", REACHED)
def test_a_first_fit_is_as_good_as_boosting(table: str) -> None:
    frame = read(table)
    gaps: dict[str, list[float]] = {name: [] for name in REACHED[table]}
    for seed in range(2):
        held = np.random.default_rng(seed).random(len(frame)) < 0.5
        learned, test = frame[~held], frame[held]
        best = boost(learned, test)
        for name, behind in gaps.items():
            model = METHODS[name]().fit([learned.iloc[place::3] for place in range(3)])
            risk = model.predict_proba(test.drop(columns="outcome"))[:, 1]
            behind.append(best - float(roc_auc_score(test.outcome, risk)))
    assert {
        name: round(float(np.mean(behind)), 3) for name, behind in gaps.items() if np.mean(behind) > 0.02
    } == {}
