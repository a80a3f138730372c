"""A Cox regression over hospitals is the pooled one of lifelines with hospitals as strata, to eight digits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from lifelines.statistics import proportional_hazard_test

import concilium as cc
from concilium.errors import HouseError, ModelError, StudyError
from statistics_hospitals import design, draw_patients, open_house

PATIENTS = draw_patients()
POOLED = (
    design(PATIENTS)
    .drop(columns="intercept")
    .assign(days=PATIENTS.days + 1.0, event=(PATIENTS.event == "yes") * 1, hospital=PATIENTS.hospital)
)
ATTRIBUTES = ["age", "pressure", "sex", "ward"]
pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
PRECISE = {"precision": 1e-12}


def fit(frame=PATIENTS, **more):
    return cc.CoxRegression("event", "days", "yes", **{"attributes": ATTRIBUTES, **more}).fit(
        open_house(frame)
    )


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_it_is_the_pooled_regression_with_hospitals_as_strata(release):
    model = fit(release=release)
    pooled = CoxPHFitter().fit(POOLED, "days", "event", strata=["hospital"], fit_options=PRECISE)
    np.testing.assert_allclose(model.coef_, pooled.params_, rtol=1e-8)
    errors = [one.error for one in model.body.estimates]
    np.testing.assert_allclose(errors, pooled.standard_errors_, rtol=1e-8)
    assert model.body.likelihood == pytest.approx(pooled.log_likelihood_, rel=1e-10)
    # Times are one day later there: the clock is the same.
    judged = proportional_hazard_test(pooled, POOLED, time_transform=lambda times, *_: np.log(times))
    found = [one.statistic for one in model.body.proportional]
    np.testing.assert_allclose(found, judged.test_statistic, rtol=1e-6)


def test_a_common_baseline_is_the_pooled_regression_on_the_grid():
    grid = [float(day) for day in range(600)]
    model = fit(baseline="common", grid=grid)
    frame = POOLED.drop(columns="hospital")
    pooled = CoxPHFitter().fit(frame, "days", "event", fit_options=PRECISE)
    np.testing.assert_allclose(model.coef_, pooled.params_, rtol=1e-8)
    errors = [one.error for one in model.body.estimates]
    np.testing.assert_allclose(errors, pooled.standard_errors_, rtol=1e-8)
    # Before day 201 here is up to day 201 there; Breslow's baseline has no ties of Efron's.
    survival = pooled.predict_survival_function(frame[:5], times=[200.5]).values[0]
    np.testing.assert_allclose(model.predict_survival(PATIENTS[:5], 200.0), survival, atol=0.01)
    assert model.predict_survival(PATIENTS[:1], 0.0)[0] == pytest.approx(1.0)
    with pytest.raises(ModelError, match="the grid of this model ends at 599"):
        model.predict_survival(PATIENTS[:1], 700.0)


def draw_hazards(seed, patients=300, censored_by=240.0):
    """Patients with a constant hazard; censored at random, and all at day 200."""
    chance = np.random.default_rng(seed)
    dose, old = chance.normal(size=patients).round(3), chance.integers(0, 2, patients)
    event = chance.exponential(1 / (0.004 * np.exp(0.7 * dose + 0.5 * old)))
    end = np.minimum(chance.uniform(0, censored_by, patients), 200.0)
    return pd.DataFrame(
        {"dose": dose, "old": old, "t": np.minimum(event, end), "y": np.where(event <= end, "yes", "no")}
    )


ASKED = [{"dose": 0.0, "old": 0}, {"dose": 1.0, "old": 1}, {"dose": -1.0, "old": 1}, {"dose": 1.5, "old": 0}]


@pytest.mark.parametrize(
    "more",
    [{}, {"grid": [20.0, 50.0, 100.0, 150.0]}, {"baseline": "common"}],
    ids=["found", "stated", "common"],
)
def test_risks_and_their_intervals_hold_the_truth_where_many_are_censored(more):
    """Of the mean patient too: a baseline is not known exactly. Sixty tables; half of the patients are censored."""
    truth = 1 - np.exp(-0.4 * np.exp([0.7 * one["dose"] + 0.5 * one["old"] for one in ASKED]))
    held, risks = [], []
    for seed in range(60):
        frame = draw_hazards(seed)
        model = cc.CoxRegression("y", "t", "yes", at=100.0, release="exact", **more).fit(
            [frame[0::2], frame[1::2]]
        )
        risks.append(model.predict_proba(ASKED)[:, 1])
        for patient, risk, true in zip(ASKED, risks[-1], truth, strict=True):
            low, high = model.explain(patient).interval
            held.append(low <= (true if risk > 0.5 else 1 - true) <= high)
    assert 0.9 <= np.mean(held) <= 0.99
    np.testing.assert_allclose(np.mean(risks, axis=0), truth, atol=0.025)


def test_concordance_counts_pairs_within_hospitals():
    model = fit()
    assert 0.05 < np.mean(PATIENTS.days >= model.body.horizon) < 0.25
    assert f"Survival at days = {model.body.horizon:g}: " in model.explain({"age": 50}).sentences[1]
    assert "compared with sex = f, ward = a" in model.text()
    risk = design(PATIENTS).drop(columns="intercept").values @ model.coef_
    agreeing = pairs = 0.0
    for name in set(PATIENTS.hospital):
        here = np.flatnonzero(PATIENTS.hospital == name)
        times, events, own = PATIENTS.days.values[here], (PATIENTS.event == "yes").values[here], risk[here]
        later = (times[:, None] < times) | ((times[:, None] == times) & ~events[None, :])
        counted = events[:, None] & later & ~np.eye(len(here), dtype=bool)
        pairs += counted.sum()
        apart = own[:, None] - own
        agreeing += (counted & (apart > 1e-12)).sum() + 0.5 * (counted & (abs(apart) <= 1e-12)).sum()
    assert model.concordance_ == pytest.approx(agreeing / pairs, abs=1e-9)


def test_bad_input_ends_in_a_sentence():
    with pytest.raises(HouseError, match="nobody has the event"):
        fit(PATIENTS.assign(event="no"))
    with pytest.raises(StudyError, match="cannot be the 'time' as well"):
        cc.CoxRegression("event", "event")
    frame = PATIENTS.copy()
    frame.loc[frame.index[:7], "days"] = -3.0
    frame.loc[frame.hospital == "north", "event"] = "no"
    frame.loc[frame.hospital == "south", "days"] /= 30
    model = fit(frame)
    assert model.body.patients == len(frame) - 7
    said = "\n".join(model.card.warnings)
    assert "7 patients with a missing or negative days are left out" in said
    assert "1 of 3 hospitals has no event" in said
    assert "is it in days at one and in months at another?" in said


def test_a_term_without_events_on_one_side_has_no_interval():
    frame = PATIENTS.assign(marker=np.where(PATIENTS.event == "yes", "no", "yes"))
    frame.loc[frame.index[::3], "marker"] = "no"
    model = fit(frame, attributes=["age", "marker"])
    assert model.list_terms()[1].low is None
    assert any("marker = yes: all events, or none" in one for one in model.card.warnings)
    assert "hazard ratio" in model.text()
