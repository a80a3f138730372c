"""Random intercepts of hospitals: the mixed model of statsmodels, and likelihoods integrated apart by scipy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import integrate, optimize, stats

import concilium as cc
from concilium.errors import StudyError

HOSPITALS = 14
BEGIN = {"yes": (-0.5, 0.7, 0.4), "visits": (0.0, 0.3, -0.2)}


def draw(seed: int, deviation: float = 0.8) -> pd.DataFrame:
    chance = np.random.default_rng(seed)
    hospital = np.repeat(np.arange(HOSPITALS), chance.integers(4, 40, HOSPITALS))
    x, z = chance.normal(size=len(hospital)).round(3), chance.choice(["a", "b"], len(hospital))
    eta = -0.5 + 0.7 * x + 0.4 * (z == "b") + deviation * chance.normal(size=HOSPITALS)[hospital]
    return pd.DataFrame(
        {
            "hospital": hospital,
            "x": x,
            "z": z,
            "y": np.where(chance.random(len(x)) < 1 / (1 + np.exp(-eta)), "yes", "no"),
            "visits": chance.poisson(np.exp(eta)).astype(float),
            "cost": (2 * eta + 1.5 * chance.normal(size=len(x)) + 10).round(3),
        }
    )


PATIENTS = draw(5)
FAMILIES = {
    "y": {"positive": "yes"},
    "visits": {"family": "poisson", "bins": {"visits": [0, 100]}},
    "cost": {"family": "gaussian", "bins": {"cost": [-20, 60]}},
}


def fit(target: str, frame: pd.DataFrame = PATIENTS, release: str = "exact") -> cc.Regression:
    parts = {f"hospital {name}": part.drop(columns="hospital") for name, part in frame.groupby("hospital")}
    return cc.Regression(
        target, attributes=["x", "z"], intercepts="random", release=release, **FAMILIES[target]
    ).fit(parts)


def read(model: cc.Regression) -> tuple[np.ndarray, np.ndarray]:
    by_term = {one.term: one for one in model.body.estimates}
    rows = [by_term[term] for term in ("intercept", "x", "z = b")]
    return np.array([one.coefficient for one in rows]), np.array([one.error for one in rows])


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_numbers_have_the_mixed_model_of_statsmodels(release):
    model = fit("cost", release=release)
    theirs = smf.mixedlm("cost ~ x + z", PATIENTS, groups=PATIENTS.hospital).fit(reml=False)
    estimates, errors = read(model)
    np.testing.assert_allclose(estimates, theirs.params[["Intercept", "x", "z[T.b]"]], rtol=1e-5)
    np.testing.assert_allclose(errors, theirs.bse[["Intercept", "x", "z[T.b]"]], rtol=1e-4)
    assert model.body.spread_of_intercepts**2 == pytest.approx(float(theirs.cov_re.iloc[0, 0]), rel=1e-4)
    assert model.body.dispersion == pytest.approx(theirs.scale, rel=1e-5)
    assert model.body.likelihood == pytest.approx(theirs.llf, abs=1e-6)


@pytest.mark.parametrize("target", ["y", "visits"])
def test_others_have_the_greatest_likelihood_over_all_intercepts(target):
    groups = [
        (
            np.column_stack([np.ones(len(part)), part.x, part.z == "b"]).astype(float),
            read_outcome(part, target),
        )
        for _, part in PATIENTS.groupby("hospital")
    ]

    points = np.linspace(-8, 8, 801)

    def find_likelihood(at: np.ndarray) -> float:
        total = 0.0
        for design, outcome in groups:
            own = (design @ at[:3])[:, None] + at[3] * points
            if target == "y":
                logs = stats.bernoulli.logpmf(outcome[:, None], 1 / (1 + np.exp(-own)))
            else:
                logs = stats.poisson.logpmf(outcome[:, None], np.exp(own))
            heights = logs.sum(axis=0) + stats.norm.logpdf(points)
            total += heights.max() + np.log(integrate.simpson(np.exp(heights - heights.max()), x=points))
        return total

    model = fit(target)
    estimates, errors = read(model)
    top = np.array([*estimates, model.body.spread_of_intercepts])
    best = find_likelihood(top)
    assert model.body.likelihood == pytest.approx(best, abs=1e-6)
    slopes = optimize.approx_fprime(top, find_likelihood, 1e-5)
    np.testing.assert_allclose(slopes, 0, atol=0.02)
    # A step of one standard error off the top, along one coefficient, never lowers the likelihood by more than 1/2 in
    # the long run of the others: the profile is at least as flat.
    step = 1e-3
    aside = np.array([0, step, 0, 0])
    second = (find_likelihood(top + aside) + find_likelihood(top - aside) - 2 * best) / step**2
    assert errors[1] >= (-second) ** -0.5 * 0.999
    assert errors[1] < (-second) ** -0.5 * 1.5


def read_outcome(frame: pd.DataFrame, target: str) -> np.ndarray:
    return (frame.y == "yes").to_numpy(float) if target == "y" else frame[target].to_numpy(float)


def test_hospitals_that_do_not_differ_have_no_deviation():
    found = [fit("cost", draw(seed, deviation=0.0)) for seed in range(4)]
    deviations = [model.body.spread_of_intercepts for model in found]
    # Half of the time the likelihood is greatest at zero.
    assert min(deviations) < 1e-3
    assert max(deviations) < 1.2
    tests = [test for model in found for test in model.body.tests if "hospitals" in test.term]
    assert len(tests) == 4
    assert min(test.p for test in tests) > 1e-4
    differ = next(test for test in fit("y").body.tests if "hospitals" in test.term)
    assert differ.p < 0.05


def test_it_says_what_it_assumes_and_how_hospitals_differ():
    model = fit("y")
    assert "random intercepts of hospitals: mean" in model.text()
    assert "differences between hospitals: likelihood ratio test" in model.text()
    few = fit("y", PATIENTS[PATIENTS.hospital < 4])
    assert any("their deviation is hardly known below 10" in one for one in few.card.warnings)
    low, high = model.explain({"x": 0.0, "z": "a"}).interval
    assert high - low > 0.4
    with pytest.raises(StudyError, match="goes with family"):
        cc.Regression("y", positive="yes", intercepts="random", firth=True)
