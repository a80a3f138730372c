"""A private Cox regression: its intervals cover at their level, and its sums are those of single patients."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.statistics import regression_fit
from concilium.statistics.columns import Declaration
from concilium.statistics.private_hazards import AskHazards

TERMS = Declaration({}, {}, (), {"u": [-1, 1], "v": [-1, 1]}).make_terms(["u", "v"], {"c": ("a", "b", "c")})
TRUTH = np.array([0.6, 0.0, 0.8, -0.5])
GRID = (60.0, 120.0, 200.0, 300.0)
SCHEMA = {"u": "number", "v": "number", "c": "code", "t": "number", "y": "code"}
PRIVATE = {
    "release": "private",
    "epsilon": 3,
    "grid": [60, 120, 200, 300],
    "bins": {"u": [-1, 1], "v": [-1, 1]},
    "values": {"c": ["a", "b", "c"]},
}


def draw(patients: int, seed: int) -> pd.DataFrame:
    chance = np.random.default_rng(seed)
    u, v = np.clip(chance.normal(0, 0.35, (2, patients)), -1, 1)
    c = chance.integers(0, 3, patients)
    eta = np.column_stack([c == 1, c == 2, u, v]) @ TRUTH
    event, end = 400 * chance.exponential(np.exp(-eta)), chance.uniform(50, 600, patients)
    return pd.DataFrame(
        {
            "u": u,
            "v": v,
            "c": np.array(list("abc"))[c],
            "t": np.minimum(event, end),
            "y": np.where(event <= end, "yes", "no"),
        }
    )


def ask(at: np.ndarray, places: int = 12) -> AskHazards:
    return AskHazards(
        query="",
        target="y",
        attributes=TERMS.attributes,
        columns=TERMS.columns,
        time="t",
        positive="yes",
        grid=GRID,
        at=tuple(at.tolist()),
        noise=Gaussian("1"),
        places=places,
    )


def select(frame: pd.DataFrame):
    return View(cc.Records.read(frame, schema=SCHEMA), cc.Policy()).select("", "y")


def test_the_sums_are_those_of_one_patient_after_the_other():
    frame = draw(200, 1)
    at = np.array([-1.0, -2.0, 0.5, -1.5, 0.3, -0.2, 1.0, 0.5])
    expected = np.zeros(8), np.zeros((8, 8))
    for row in frame.itertuples():
        x = np.array([row.c == "b", row.c == "c", row.u, row.v], dtype=float)
        budget, start = 1.0, 0.0
        for cell, end in enumerate(GRID):
            z = np.concatenate([np.eye(4)[cell], x])
            mean = math.exp(at[cell] + x @ at[4:]) * min(max((row.t - start) / (end - start), 0), 1)
            here = row.y == "yes" and start <= row.t < end and mean <= budget
            mean = min(mean, budget)
            expected[0][:] += z * (here - mean)
            expected[1][:] += mean * np.outer(z, z)
            budget, start = budget - mean, end
    question = ask(at)
    sums = question.read(question.compute(select(frame)), 1.0)
    np.testing.assert_allclose(sums.score, expected[0], atol=0.05)
    np.testing.assert_allclose(sums.information, expected[1], atol=0.2)
    assert sums.noise == pytest.approx(2.0**-12)


def test_one_patient_moves_the_sums_nearly_as_far_as_the_bound_says():
    chance, reached = np.random.default_rng(0), 0.0
    for _ in range(60):
        frame = pd.DataFrame(
            {
                "u": chance.choice([-9.0, 1.0, 9.0], 2),
                "v": chance.choice([-9.0, 1.0, 9.0], 2),
                "c": chance.choice(list("abc"), 2),
                "t": chance.choice([0.0, 10.0, 59.0, 130.0, 299.0, 900.0], 2),
                "y": chance.choice(["yes", "no"], 2),
            }
        )
        question, cohort = ask(chance.normal(-1, 2, 8)), select(frame)
        moved = question.compute(cohort) - question.compute(cohort.take(np.array([0])))
        reached = max(reached, float((moved.astype(float) ** 2).sum()))
        assert reached <= question.sensitivity.squared
    assert reached >= 0.5 * float(question.sensitivity.squared)


def test_intervals_cover_at_their_level():
    chance, rho = np.random.default_rng(7), 0.9 * float(rho_for_epsilon("3", "1/1000000"))
    covered, biased = [], []
    for seed in range(60):
        frame = draw(8000, seed)
        cohort, at = select(frame), np.array([-2.0, -2.0, -1.5, -1.2, 0, 0, 0, 0])
        for share in regression_fit.STEPS:
            question = ask(at)
            noise = math.ldexp(float(question.bound) / math.sqrt(2 * rho * float(share)), 12)
            words = question.compute(cohort) + np.rint(chance.normal(0, noise, question.numbers)).astype(int)
            end = regression_fit._step(question.read(words, noise**2), at, "poisson")
            at = end.coefficients
        assert end.covariance is not None
        biased.append(at[4:] - TRUTH)
        covered.append(np.abs(biased[-1]) < 1.96 * np.sqrt(np.diagonal(end.covariance)[4:]))
    # 240 intervals; 200 draws each of four settings gave 94.4 to 96.9 percent.
    assert np.mean(covered) == pytest.approx(0.95, abs=0.05)
    np.testing.assert_allclose(np.mean(biased, axis=0), 0, atol=0.03)


@pytest.fixture(scope="module")
def fitted() -> cc.CoxRegression:
    hospitals = {name: draw(3000, seed) for seed, name in enumerate("abc")}
    return cc.CoxRegression("y", "t", "yes", **PRIVATE).fit(hospitals)


def test_it_finds_ratios_and_risks_and_says_how_much_is_noise(fitted):
    logs = dict(zip(fitted.terms_, fitted.coef_, strict=True))
    found = np.array([logs["c = b"], logs["c = c"], logs["u"], logs["v"]])
    np.testing.assert_allclose(found, TRUTH, atol=0.6)  # about 5 standard errors
    lines = {line.term: line for line in fitted.list_terms()}
    assert lines["u"].low < np.exp(0.8) * 1.5
    assert lines["u"].low is not None
    assert any(
        "of the variance of the estimates; intervals include it" in one for one in fitted.card.warnings
    )
    assert "with noise" in fitted.text()
    truth = 1 - math.exp(-100 / 400)
    answer = fitted.explain({"u": 0.0, "v": 0.0, "c": "a"})
    assert 1 - fitted.predict_survival([{"u": 0.0, "v": 0.0, "c": "a"}], 100)[0] == pytest.approx(
        truth, abs=0.05
    )
    low, high = answer.interval
    assert 0 < high - low < 0.3
    assert "noise included" in str(answer)
    assert fitted.plan().total == fitted.rho


def test_noise_that_hides_events_ends_the_study_and_few_patients_have_no_intervals():
    few = {name: draw(40, seed) for seed, name in enumerate("abc")}
    with pytest.raises(HouseError, match="noise hides the events of 'y'"):
        cc.CoxRegression("y", "t", "yes", **PRIVATE | {"epsilon": 0.05}).fit(few)
    some = {name: draw(250, seed) for seed, name in enumerate("abc")}
    model = cc.CoxRegression("y", "t", "yes", **PRIVATE).fit(some)
    assert model.list_terms()[0].low is None
    assert model.explain({"u": 0.0}).interval == (0.0, 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": None}, "needs an 'epsilon'"),
        ({"grid": None}, "'grid' of 2 to 20 times"),
        ({"by_hospital": True}, "no comparison by_hospital"),
        ({"grid": [0, 300]}, "'grid' of 2 to 20 times"),
        ({"values": {}, "bins": {}}, "it is about; it has none"),
    ],
)
def test_a_private_one_states_what_it_is_about(change, said):
    with pytest.raises(StudyError, match=said):
        cc.CoxRegression("y", "t", "yes", **PRIVATE | change)
    with pytest.raises(StudyError, match="that is the event: positive"):
        cc.CoxRegression("y", "t", **PRIVATE)
