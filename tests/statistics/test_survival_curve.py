"""Curves over hospitals are those of lifelines on the pooled patients; private ones cover at their level."""

from __future__ import annotations

import csv
import math

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test
from lifelines.utils import median_survival_times, restricted_mean_survival_time

import concilium as cc
from concilium.errors import HouseError, ModelError, StudyError
from concilium.statistics.survival import estimate, make_curve
from statistics_hospitals import SCHEMA, draw_patients, open_house

PATIENTS = draw_patients()
pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")


def fit(frame=PATIENTS, schema=None, **more):
    return cc.SurvivalCurve("event", "days", "yes", **more).fit(open_house(frame, schema))


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_curves_are_those_of_the_pooled_patients_at_every_event(release):
    model = fit(by="ward", at=365.0, release=release)
    groups = [(PATIENTS, 0), *((PATIENTS[PATIENTS.ward == w], p) for p, w in enumerate("abc", start=1))]
    for part, place in groups:
        curve = model.body.curves[place]
        pooled = KaplanMeierFitter().fit(part.days, part.event == "yes")
        at = [int(day) for day in pooled.survival_function_.index if day <= model.body.times[-1]]
        np.testing.assert_allclose(
            np.array(curve.survival)[at], pooled.survival_function_.values[: len(at), 0]
        )
        low, high = (
            np.array([np.nan if v is None else v for v in one])[at] for one in (curve.low, curve.high)
        )
        ends = pooled.confidence_interval_.values[: len(at)]
        told = ~np.isnan(low)
        assert told.sum() > 50
        np.testing.assert_allclose(low[told], ends[told, 0])
        np.testing.assert_allclose(high[told], ends[told, 1])
        assert model.medians_[curve.group][0] == pooled.median_survival_time_
        ends = median_survival_times(pooled.confidence_interval_).values[0]
        assert [math.inf if one is None else one for one in model.medians_[curve.group][1:]] == list(ends)
        mean = restricted_mean_survival_time(pooled, 365)
        told = model.restricted_means_[curve.group]
        assert told[0] == pytest.approx(mean, rel=1e-9)
        assert (told[2] - told[1]) / 2 == pytest.approx(1.959964 * find_error(part, 365), rel=1e-6)
    test = multivariate_logrank_test(PATIENTS.days, PATIENTS.ward, PATIENTS.event == "yes")
    assert model.body.test.statistic == pytest.approx(test.test_statistic, rel=1e-8)
    assert model.body.test.p == pytest.approx(test.p_value, rel=1e-6)


def find_error(patients, horizon):
    """The standard error of a restricted mean: areas after each event, by Greenwood's terms."""
    pooled = KaplanMeierFitter().fit(patients.days, patients.event == "yes")
    variance = 0.0
    for day in np.unique(patients.days[(patients.event == "yes") & (patients.days < horizon)]):
        at_risk = (patients.days >= day).sum()
        events = ((patients.days == day) & (patients.event == "yes")).sum()
        area = restricted_mean_survival_time(pooled, horizon) - restricted_mean_survival_time(pooled, day)
        variance += area**2 * events / (at_risk * (at_risk - events))
    return math.sqrt(variance)


def test_times_in_another_unit_and_outcomes_in_other_codes_are_found():
    frame = PATIENTS.copy()
    north = frame.hospital == "north"
    frame["days"] = np.where(north, (frame.days / 30).round(1), frame.days)
    schema = {"days": "number", "event": "code"}
    for release in ("exact", "masked"):
        warnings = fit(frame, schema, release=release, grid=[30.0, 90.0, 365.0]).card.warnings
        assert any("is it in days at one and in months at another?" in one for one in warnings)
    frame["event"] = np.where(north, frame.event.map({"yes": "1", "no": "0"}), frame.event)
    for study in (
        cc.SurvivalCurve("event", "days", "yes"),
        cc.CoxRegression("event", "days", "yes"),
        cc.Regression("event", positive="yes", attributes=["age"]),
    ):
        with pytest.raises(HouseError, match="north: no value of 'event' there is one that another hospital"):
            study.fit(open_house(frame))


def test_a_curve_tells_nothing_beyond_its_end():
    model = fit(at=9999.0)
    assert model.body.horizon == model.body.times[-1]
    # Without `at`, risks are by a time to which a tenth of the patients are followed.
    plain = fit()
    assert 0.1 <= np.mean(PATIENTS.days >= plain.body.horizon) < 0.13
    risk, low, high = (1 - one for one in plain.survival_at(plain.body.horizon)["all patients"])
    end = f"days = {plain.body.horizon:g}"
    assert plain.explain({"age": 60}).sentences == (
        f"event = yes by {end} ({risk:.0%}; 95% interval {high:.0%} to {low:.0%}; all 600 patients).",
        f"Survival at {end}: {1 - risk:.0%}, {1 - low:.0%} to {1 - high:.0%}.",
    )
    assert any("nobody is followed to days = 9999" in one for one in model.card.warnings)
    with pytest.raises(ModelError, match="there is no risk by 9999"):
        model.survival_at(9999)


def test_a_group_without_a_curve_is_answered_about_all_patients_and_said_to_be():
    model = fit(by="ward", at=365.0)
    whole = model.explain({})
    unknown = model.explain({"ward": "z"})
    assert unknown.interval == whole.interval
    assert "There is no curve for ward = z: the answer is about all patients." in unknown.sentences
    assert not model.explain({"ward": "a"}).notes


def test_competing_events_take_patients_away():
    frame = PATIENTS.copy()
    frame["event"] = np.where(frame.event == "yes", np.where(frame.age > 60, "yes", "moved"), "no")
    model = fit(frame, competing=["moved"], at=300.0)
    days, ends = frame.days.values, frame.event.values
    times = np.unique(days)
    alive, incidence, by_day = 1.0, 0.0, {}
    for day in times:  # Aalen and Johansen
        at_risk, here = (days >= day).sum(), ends[days == day]
        incidence += alive * (here == "yes").sum() / at_risk
        alive *= 1 - (here != "no").sum() / at_risk
        by_day[day] = incidence
    last = max(day for day in times if day <= 300)
    assert model.body.curves[0].incidence[300] == pytest.approx(by_day[last], rel=1e-10)
    assert model.predict_proba(frame[:1])[0, 1] == pytest.approx(by_day[last], rel=1e-10)
    assert "incidence at 300" in model.text()
    # The picture and the mean are of the incidence, and not of a curve that censors competing ends.
    assert list(model.pictures()) == ["incidence"]
    steps = np.array([0.0, *model.body.curves[0].incidence[:300]])
    assert model.restricted_means_["all patients"][0] == pytest.approx(300 - steps[1:].sum(), rel=1e-9)
    _, low, high = model.survival_at(300)["all patients"]
    assert low < 1 - by_day[last] < high


def test_a_grid_cuts_times_and_says_so():
    model = fit(grid=[30.0, 90.0, 180.0, 365.0])
    assert model.body.times == [30.0, 90.0, 180.0, 365.0]
    share = np.mean(PATIENTS.days >= 30)
    at_risk = len(PATIENTS)
    events = ((PATIENTS.days < 30) & (PATIENTS.event == "yes")).sum()
    gone = at_risk * (1 - share) - events  # at risk for half of the cell, as in a life table
    assert model.body.curves[0].survival[0] == pytest.approx(1 - events / (at_risk - gone / 2))
    assert model.body.curves[0].at_risk[1] == pytest.approx(share * at_risk)
    assert "times are cut to a grid of 4" in model.text()


def test_a_coarse_grid_tells_the_risk_of_patients():
    """Four cells, in which many are censored: taken as at risk for all of its cell, they hid a tenth of the risk."""
    draw = np.random.default_rng(3)
    event, end = draw.exponential(60, 20_000), draw.uniform(0, 120, 20_000)
    table = pd.DataFrame(
        {
            "hospital": list("nsew") * 5000,
            "days": np.minimum(event, end).round(2),
            "event": np.where(event <= end, "yes", "no"),
        }
    )
    grid, schema = [30.0, 60.0, 90.0, 120.0], {"days": "number", "event": "code"}
    model = fit(table, schema, grid=grid)
    assert model.survival_at(90)["all patients"][0] == pytest.approx(np.exp(-1.5), abs=0.02)
    table["other"] = draw.random(len(table)) < 0.5
    table["event"] = np.where((table.event == "yes") & table.other, "elsewhere", table.event)
    both = fit(table.drop(columns="other"), schema, grid=grid, competing=["elsewhere"])
    assert both.body.curves[0].incidence[2] == pytest.approx((1 - np.exp(-1.5)) / 2, abs=0.02)


def test_pictures_have_numbers_at_risk():
    model = fit(by="ward")
    picture = model.pictures()["survival"]
    assert "at risk" in picture
    assert picture.count("<polygon") == 3
    many = fit(PATIENTS.assign(ward=[f"{n:02} of a long name" for n in PATIENTS.index % 10]), by="ward")
    assert "the picture has the first 8 groups; 2 more in the table" in many.text()
    rows = list(csv.DictReader(model.to_csv().splitlines()))
    assert len(rows) == 4 * len(model.body.times)
    assert {one["group"] for one in rows} == {"all patients", "ward = a", "ward = b", "ward = c"}
    assert float(rows[100]["survival"]) == model.body.curves[0].survival[100]
    # Wide cells: at risk when a cell begins, and not when the one before it did.
    cut = fit(grid=[200.0, 400.0, 600.0]).pictures()["survival"]
    assert f">{(PATIENTS.days >= 200).sum()}<" in cut
    assert f">{(PATIENTS.days >= 400).sum()}<" in cut
    uneven = fit(grid=[10.0, 50.0, 310.0]).pictures()["survival"]
    assert ">310<" in uneven  # a tick stands where a cell ends
    assert ">300<" not in uneven


def test_bad_input_ends_in_a_sentence():
    with pytest.raises(HouseError, match="nobody has the event"):
        fit(PATIENTS.assign(event="no"))
    with pytest.raises(HouseError, match="'age' is a number somewhere"):
        fit(by="age")
    with pytest.raises(StudyError, match="needs the 'grid' of 'days'"):
        cc.SurvivalCurve("event", "days", "yes", release="private", epsilon=1.0)
    frame = PATIENTS.copy()
    frame.loc[frame.index[:4], "days"] = -1.0
    frame.loc[frame.index[4:6], "days"] = np.nan
    warnings = fit(frame).card.warnings
    assert any(one.startswith("4 patients with a negative days") for one in warnings)
    assert any(one.startswith("2 patients without a days") for one in warnings)


def test_private_curves_fall_and_are_near_the_truth():
    grid = [float(day) for day in range(50, 600, 50)]
    stated = {"values": {"ward": ["a", "b", "c"], "event": ["no", "yes"]}, "grid": grid}
    schema = {**SCHEMA, "event": "code", "days": "number"}
    frame = draw_patients(3000, 4)
    model = fit(frame, schema, release="private", epsilon=1.0, by="ward", **stated)
    exact = fit(frame, by="ward", grid=grid)
    for noisy, true in zip(model.body.curves[:4], exact.body.curves[:4], strict=True):
        assert all(np.diff(noisy.survival) <= 0)
        assert noisy.survival[3] == pytest.approx(true.survival[3], abs=0.1)
    wide = [c.high[3] - c.low[3] for c in (model.body.curves[1], exact.body.curves[1])]
    assert wide[0] > wide[1]


def test_private_intervals_cover_at_their_level():
    draw, noise, covered = np.random.default_rng(0), 12.0, []
    edges = np.arange(0, 600, 50)
    for _ in range(60):
        event, censored = draw.exponential(300, 1500), draw.uniform(0, 900, 1500)
        cell = np.searchsorted(edges, np.minimum(event, censored), side="right") - 1
        table = np.zeros((len(edges), 2))
        np.add.at(table, (cell, (event > censored).astype(int)), 1)
        curve = make_curve("all", table + draw.normal(0, noise, table.shape), noise**2)
        # What the grid makes of all patients, without sampling: events before those who are censored in a cell.
        for place in (1, 4, 7):
            if curve.low[place] is not None:
                covered.append(curve.low[place] <= truth(edges, place) <= curve.high[place])
    assert len(covered) > 150
    assert np.mean(covered) == pytest.approx(0.95, abs=0.05)


def truth(edges, place):
    """Survival on the grid of a great many patients: exponential at 300, censored uniformly up to 900."""
    alive = 1.0
    for start in edges[: place + 1]:
        ends = np.linspace(start, start + 50, 2001)
        middle = (ends[1:] + ends[:-1]) / 2
        density = np.exp(-middle / 300) / 300 * (1 - middle / 900)
        at_risk = math.exp(-start / 300) * (1 - start / 900)
        alive *= 1 - density.mean() * 50 / at_risk
    return alive


def test_nobody_left_is_no_division_by_zero():
    found = estimate(np.array([[2.0, 0.0], [0.0, 0.0]]))
    assert found.survival.tolist() == [0.0, 0.0]
    assert np.isfinite(found.incidence_error).all()
