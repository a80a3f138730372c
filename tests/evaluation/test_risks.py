"""Risks judged: against scikit-learn, and by the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import auc as area_below
from sklearn.metrics import brier_score_loss, roc_curve

from concilium.evaluation.leave_out import Predictions
from concilium.evaluation.summary import (
    MOST_POINTS,
    THRESHOLDS,
    _fit_intercept,
    _fit_slope,
    _judge_risks,
    _net_benefit,
    _trace_roc,
    find_log_odds,
)

risks_and_outcomes = st.lists(
    st.tuples(st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.5, 0.7, 0.99, 1.0]), st.integers(0, 1)),
    min_size=2,
    max_size=40,
)


def apart(pairs: list[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([risk for risk, _ in pairs]), np.array([float(was) for _, was in pairs])


def simulate(size: int, slope: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Patients whose risks are said too extreme by a slope, and too low by a shift."""
    chance = np.random.default_rng(3)
    true = chance.normal(-0.5, 1.2, size)
    outcomes = (chance.random(size) < 1 / (1 + np.exp(-true))).astype(float)
    return 1 / (1 + np.exp(-(true - shift) / slope)), outcomes


@given(risks_and_outcomes)
def test_the_curve_is_that_of_scikit_learn(pairs: list[tuple[float, int]]) -> None:
    risks, outcomes = apart(pairs)
    found = _trace_roc(risks, outcomes)
    if len(set(outcomes)) < 2:
        assert found is None
        return
    alarms, hits, _ = roc_curve(outcomes, risks, drop_intermediate=False)
    assert np.allclose(found, np.column_stack([alarms, hits]))


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    risks, outcomes = simulate(5000, 1.0, 0.0)
    points = np.array(_trace_roc(risks, outcomes))
    assert len(points) == MOST_POINTS
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    alarms, hits, _ = roc_curve(outcomes, risks)
    assert area_below(*points.T) == pytest.approx(area_below(alarms, hits), abs=0.005)


@given(risks_and_outcomes, st.sampled_from(THRESHOLDS))
def test_net_benefit_counts_each_patient(pairs: list[tuple[float, int]], threshold: float) -> None:
    risks, outcomes = apart(pairs)
    worth = sum(
        (1 if was else -threshold / (1 - threshold))
        for risk, was in zip(risks, outcomes, strict=True)
        if risk >= threshold
    )
    assert _net_benefit(risks, outcomes, threshold) == pytest.approx(worth / len(pairs))


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.6, 0.0), (1.5, 0.8)])
def test_slope_and_intercept_find_what_was_done_to_the_risks(slope: float, shift: float) -> None:
    risks, outcomes = simulate(20_000, slope, shift)
    model = LogisticRegression(C=1e9, tol=1e-10).fit(find_log_odds(risks)[:, None], outcomes)
    assert _fit_slope(risks, outcomes)[0] == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert _fit_slope(risks, outcomes)[0] == pytest.approx(slope, abs=0.05)
    shifted = _fit_intercept(risks, outcomes)
    assert (1 / (1 + np.exp(-find_log_odds(risks) - shifted))).sum() == pytest.approx(outcomes.sum())


@given(risks_and_outcomes)
def test_whatever_the_risks_the_slope_is_a_number_or_none(pairs: list[tuple[float, int]]) -> None:
    risks, outcomes = apart(pairs)
    for found in (_fit_slope(risks, outcomes)[0], _fit_intercept(risks, outcomes)):
        assert found is None or np.isfinite(found)


def test_a_site_is_judged_by_its_positive_class() -> None:
    risks, outcomes = simulate(300, 1.0, 0.0)
    said = Predictions(
        "s",
        ("ill", "well"),
        ["ill" if was else "well" for was in outcomes],
        ["ill"] * 300,
        np.column_stack([risks, 1 - risks]).tolist(),
    )
    judged = _judge_risks([said], "ill")
    assert judged["brier"] == pytest.approx(brier_score_loss(outcomes, risks))
    assert sum(group["patients"] for group in judged["groups"]) == 300
    assert judged["net_benefit"]["everyone"][0] == pytest.approx(
        outcomes.mean() - (1 - outcomes.mean()) * 0.01 / 0.99
    )
    assert _judge_risks([said], None)["brier"] == pytest.approx(
        judged["brier"]
    )  # the other class is as far off
    three = Predictions("s", ("a", "b", "c"), ["a"], ["a"], [[1.0, 0.0, 0.0]])
    assert _judge_risks([three], None) is None
    assert _judge_risks([Predictions("s", (), [1.0], [2.0], [])], None) is None
