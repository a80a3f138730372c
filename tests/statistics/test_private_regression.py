"""A private regression: one patient moves its sums by no more than it says, and its intervals cover at their level."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import concilium as cc
from concilium.errors import StudyError
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.statistics import regression_fit
from concilium.statistics.columns import Declaration
from concilium.statistics.families import FAMILIES
from concilium.statistics.regression_sums import AskRegression, NoisySums
from statistics_hospitals import SCHEMA, draw_patients, open_house

ENDS = {"binomial": (0.0, 1.0), "poisson": (0.0, 10.0), "gaussian": (-4.0, 4.0)}
TRUTH = np.array([-1.0, 0.8, -0.5, 0.6, 0.0])


@pytest.mark.parametrize("family", ENDS)
def test_one_patient_moves_the_sums_by_no_more_than_the_sensitivity(family):
    terms = Declaration({"u": [-0.5, 0.0, 0.5]}, {}, [["u", "c"]], {"u": [-1, 1]}).make_terms(
        ["u"], {"c": "abc"}
    )
    draw = np.random.default_rng(3)
    positive = "yes" if family == "binomial" else None
    question = AskRegression(
        query="",
        target="y",
        attributes=terms.attributes,
        columns=terms.columns,
        family=family,
        positive=positive,
        at=tuple(draw.normal(0, 3, len(terms.columns) + 1)),
        low=ENDS[family][0],
        high=ENDS[family][1],
        noise=Gaussian("1"),
        places=10,
    )
    outcomes = ["no", "yes"] if family == "binomial" else [-50.0, -3.0, 0.0, 2.5, 1e6]
    reached = 0.0
    for _ in range(40):
        value = draw.choice([-1e9, -1.0, 0.3, 1.0, 1e9])
        row = {
            "u": [0.0, value],
            "c": ["a", draw.choice(list("abc"))],
            "y": [outcomes[0], draw.choice(outcomes)],
        }
        view = View(cc.Records.read(pd.DataFrame(row), schema={"u": "number", "c": "code"}), cc.Policy())
        both = view.select("", "y")
        moved = question.compute(both) - question.compute(both.take(np.array([0])))
        reached = max(reached, float((moved.astype(float) ** 2).sum()))
    assert reached <= float(question.sensitivity.squared)
    assert reached >= 0.05 * float(question.sensitivity.squared)  # and it is no idle bound


def simulate(family, patients, epsilon, draws, seed=0):
    """The share of 95 % intervals that hold the truth, as the house computes them from noisy sums."""
    draw, of = np.random.default_rng(seed), FAMILIES[family]
    rho = float(rho_for_epsilon(epsilon, "1/1000000"))
    residual, weight = of.reach(*ENDS[family])
    shrink, squares = residual / (2 * weight * 2), 2 / (2 * residual)  # rows are at most 2 long
    bound = residual * 2 * math.sqrt(1.25 + 0.25 * (family == "gaussian"))
    covered = []
    for _ in range(draws):
        values, wards = np.clip(draw.normal(0, 0.35, (patients, 2)), -1, 1), draw.integers(0, 3, patients)
        x = np.column_stack([np.ones(patients), values, wards == 1, wards == 2]).astype(float)
        mean = of.mean(x @ TRUTH)
        y = {
            "binomial": lambda m: (draw.random(patients) < m) * 1.0,
            "poisson": lambda m: np.minimum(draw.poisson(m), 10) * 1.0,
            "gaussian": lambda m: np.clip(m + draw.normal(0, 0.7, patients), -4, 4),
        }[family](mean)
        at = np.zeros(5)
        for share in regression_fit.STEPS:
            noise = bound / math.sqrt(2 * rho * float(share))
            mean = np.clip(of.mean(x @ at), *ENDS[family])
            errors = draw.normal(0, noise / shrink, (5, 5))
            errors = np.triu(np.where(np.eye(5) > 0, errors, errors / math.sqrt(2)))
            sums = NoisySums(
                x.T @ (y - mean) + draw.normal(0, noise, 5),
                x.T @ (x * of.weight(mean)[:, None]) + errors + np.triu(errors, 1).T,
                float(((y - mean) ** 2).sum()) + draw.normal(0, noise / squares),
                noise,
                noise / shrink,
            )
            end = regression_fit._step(sums, at, family)
            at = end.coefficients
        assert end.covariance is not None
        covered.append(np.abs(at - TRUTH) < 1.96 * np.sqrt(np.diagonal(end.covariance)))
    return float(np.mean(covered))


@pytest.mark.parametrize(
    ("family", "patients", "epsilon"),
    [("binomial", 8000, "1"), ("gaussian", 12_000, "3"), ("poisson", 12_000, "20")],
)
def test_intervals_cover_at_their_level(family, patients, epsilon):
    # 100 draws of 5 coefficients: a standard error of about one percent.
    assert simulate(family, patients, epsilon, 100) == pytest.approx(0.95, abs=0.035)


STATED = {
    "bins": {"age": [20, 60, 100], "pressure": [60, 130, 200]},
    "values": {"sex": ["f", "m"], "death": ["no", "yes"]},
}


def test_it_finds_what_patients_have_and_says_how_much_is_noise():
    house = open_house(draw_patients(6000, 7), SCHEMA)
    model = cc.Regression("death", positive="yes", release="private", epsilon=3.0, **STATED).fit(house)
    low, high = model.list_terms()[0].low, model.list_terms()[0].high
    assert low < np.exp(0.05) < high
    assert any("of the variance of the estimates; intervals include it" in one for one in model.card.warnings)
    assert model.body.patients is None
    few = open_house(draw_patients(90, 7), SCHEMA)
    model = cc.Regression("death", positive="yes", release="private", epsilon=0.5, **STATED).fit(few)
    assert model.list_terms()[0].low is None
    assert any("noise is as large as what patients tell" in one for one in model.card.warnings)


def test_a_private_one_states_what_it_is_about():
    with pytest.raises(StudyError, match="'ward' has none"):
        cc.Regression("death", release="private", epsilon=1.0, attributes=["ward"], **STATED)
    with pytest.raises(StudyError, match="one intercept for all"):
        cc.Regression("death", release="private", epsilon=1.0, intercepts="hospital", **STATED)
