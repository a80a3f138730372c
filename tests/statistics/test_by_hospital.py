"""What hospitals find alone: the fits of statsmodels and lifelines at each, and Cochran's Q over them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter
from scipy import stats

import concilium as cc
from concilium.errors import StudyError
from statistics_hospitals import design, draw_patients, open_house

PATIENTS = draw_patients(900, 4)
ATTRIBUTES = ["age", "pressure", "sex", "ward"]
FAMILIES = {
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gaussian": sm.families.Gaussian(),
}


def fit(family, release="exact", frame=PATIENTS):
    given = {"attributes": ATTRIBUTES, "release": release, "by_hospital": True}
    if family == "cox":
        return cc.CoxRegression("event", "days", "yes", **given).fit(open_house(frame))
    target = {"binomial": "death", "poisson": "visits", "gaussian": "cost"}[family]
    stated = {"positive": "yes"} if family == "binomial" else {"bins": {target: [0, 100]}}
    return cc.Regression(target, family=family, **given, **stated).fit(open_house(frame))


def fit_alone(family, frame) -> tuple[pd.Series, pd.Series]:
    if family == "cox":
        table = design(frame).drop(columns="intercept").assign(days=frame.days, event=frame.event == "yes")
        found = CoxPHFitter().fit(table, "days", "event", fit_options={"precision": 1e-12})
        return found.params_, found.standard_errors_
    y = {"binomial": (frame.death == "yes").astype(float), "poisson": frame.visits, "gaussian": frame.cost}[
        family
    ]
    found = sm.GLM(y, design(frame), family=FAMILIES[family]).fit(tol=1e-14, maxiter=100)
    return found.params, found.bse


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("family", [*FAMILIES, "cox"])
def test_each_hospital_tells_its_own_fit_and_q_is_over_them(family):
    model = fit(family)
    alone = {name: fit_alone(family, part) for name, part in PATIENTS.groupby("hospital")}
    assert [one.term for one in model.body.between] == model.terms_
    for one in model.body.between:
        values = np.array([alone[name][0][one.term] for name in one.own])
        errors = np.array([alone[name][1][one.term] for name in one.own])
        told = np.array(list(one.own.values()))
        np.testing.assert_allclose(told[:, 0], values, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(told[:, 1], errors, rtol=1e-5)
        weights = errors**-2
        statistic = float(weights @ (values - weights @ values / weights.sum()) ** 2)
        assert one.hospitals == 3
        assert one.statistic == pytest.approx(statistic, rel=1e-4, abs=1e-6)
        assert one.share == pytest.approx(max(0.0, 1 - 2 / statistic), abs=1e-4)
        assert one.p == pytest.approx(stats.chi2.sf(statistic, 2), rel=1e-4)


def test_masks_hide_whose_fits_they_are_and_change_no_sum():
    exact, masked = fit("binomial"), fit("binomial", "masked")
    for one, other in zip(exact.body.between, masked.body.between, strict=True):
        assert other.own == {}
        assert other.statistic == pytest.approx(one.statistic, rel=1e-9)
    assert set(masked.pictures()) == {"forest plot"}
    drawn = exact.pictures()
    shares = [one.share for one in sorted(exact.body.between, key=lambda one: -one.share)]
    assert [
        float(re.search(r"I\^2 (\d+)%", picture)[1]) for name, picture in drawn.items() if ":" in name
    ] == [round(100 * share) for share in shares[:4]]
    assert all(name in drawn["by hospital: age"] for name in ("north", "south", "east", "all (I^2"))
    assert "age: between 3 hospitals I^2" in exact.text()
    assert exact.plan().questions[-1].kind == "statistics.own-fits"


def test_hospitals_that_differ_are_found():
    frame = PATIENTS.copy()
    south, chance = frame.hospital == "south", np.random.default_rng(1)
    frame.loc[south, "death"] = np.where(
        chance.random(south.sum()) < 1 / (1 + np.exp(0.15 * (frame.age[south] - 60))), "yes", "no"
    )
    (age,) = (one for one in fit("binomial", frame=frame).body.between if one.term == "age")
    assert age.share > 0.9
    assert age.p < 1e-6


def test_a_hospital_that_can_tell_nothing_adds_nothing():
    frame = PATIENTS.copy()
    frame.loc[frame.hospital == "south", "sex"] = "f"
    north = frame.index[frame.hospital == "north"]
    frame.loc[north, "death"] = "no"
    frame.loc[north[:4], "death"] = "yes"
    found = {one.term: one for one in fit("binomial", frame=frame).body.between}
    assert "sex = m" not in found  # one hospital is left that could tell
    assert set(found["age"].own) == {"south", "east"}
    frame["death"] = np.where(
        frame.index.isin([*north[:4], *frame.index[frame.hospital == "east"][:5]]), "yes", "no"
    )
    model = fit("binomial", frame=frame)
    assert model.body.between == []
    assert any("they are not compared with each other" in one for one in model.card.warnings)


def test_it_is_not_for_private_studies():
    with pytest.raises(StudyError, match="no comparison by_hospital"):
        cc.Regression("death", positive="yes", release="private", epsilon=1, by_hospital=True)
