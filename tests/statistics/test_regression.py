"""A regression over hospitals is the pooled one of statsmodels, to eight digits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import optimize, stats
from statsmodels.stats.outliers_influence import variance_inflation_factor

import concilium as cc
from concilium.errors import HouseError, StudyError
from statistics_hospitals import design, draw_patients, open_house

PATIENTS = draw_patients()
ATTRIBUTES = ["age", "pressure", "sex", "ward"]
FAMILIES = {
    "binomial": ("death", (PATIENTS.death == "yes").astype(float), sm.families.Binomial()),
    "poisson": ("visits", PATIENTS.visits.astype(float), sm.families.Poisson()),
    "gaussian": ("cost", PATIENTS.cost, sm.families.Gaussian()),
}


def fit(family, frame=PATIENTS, **more):
    target = FAMILIES[family.replace("negative-binomial", "poisson")][0]
    stated = {"positive": "yes"} if family == "binomial" else {"bins": {target: [0, 100]}}
    given = {"attributes": ATTRIBUTES, "release": "masked", **stated, **more}
    return cc.Regression(target, family=family, **given).fit(open_house(frame))


def errors(model, kind, first=0):
    return np.array([getattr(one, kind) for one in model.body.estimates[first:]])


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_pooled_regression(family):
    _, y, of = FAMILIES[family]
    model, pooled = fit(family), sm.GLM(y, design(PATIENTS), family=of)
    plain = pooled.fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose([model.intercept_, *model.coef_], plain.params, rtol=1e-8)
    np.testing.assert_allclose(errors(model, "error"), plain.bse, rtol=1e-8)
    robust = pooled.fit(cov_type="HC0", tol=1e-14, maxiter=100)
    np.testing.assert_allclose(errors(model, "robust"), robust.bse, rtol=1e-8)
    groups = {"groups": PATIENTS.hospital.astype("category").cat.codes, "use_correction": False}
    clustered = pooled.fit(cov_type="cluster", cov_kwds=groups, tol=1e-14, maxiter=100)
    np.testing.assert_allclose(errors(model, "clustered"), clustered.bse, rtol=1e-8)
    assert model.terms_ == list(design(PATIENTS))[1:]
    ends = np.column_stack([errors(model, "low"), errors(model, "high")])
    if family == "gaussian":  # by Student's t, as OLS does
        plain = sm.OLS(y, design(PATIENTS)).fit()
    np.testing.assert_allclose(ends, plain.conf_int(), rtol=1e-7)
    np.testing.assert_allclose(errors(model, "p"), plain.pvalues, rtol=1e-6, atol=1e-12)
    assert model.body.likelihood == pytest.approx(plain.llf, rel=1e-10)
    inflation = [variance_inflation_factor(design(PATIENTS).values, place) for place in range(1, 6)]
    np.testing.assert_allclose(errors(model, "inflation", 1), inflation, rtol=1e-8)


@pytest.mark.parametrize("base", [-6.0, 4.0, 8.0])
def test_counts_may_be_rare_or_in_the_thousands(base):
    draw = np.random.default_rng(7)
    counts = draw.poisson(np.exp(base + PATIENTS.age / 100)).astype(float)
    model = fit("poisson", PATIENTS.assign(visits=counts), bins={"visits": [0, 1e5]}, attributes=["age"])
    pooled = sm.GLM(counts, sm.add_constant(PATIENTS.age), family=sm.families.Poisson())
    expected = pooled.fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose([model.intercept_, *model.coef_], expected.params, rtol=1e-7)
    np.testing.assert_allclose(errors(model, "error"), expected.bse, rtol=1e-7)


@pytest.mark.parametrize(("kind", "cov_type"), [("robust", "HC0"), ("clustered", "cluster")])
def test_intervals_may_be_by_other_errors(kind, cov_type):
    _, y, of = FAMILIES["poisson"]
    model = fit("poisson", errors=kind)
    groups = {"groups": PATIENTS.hospital.astype("category").cat.codes, "use_correction": False}
    pooled = sm.GLM(y, design(PATIENTS), family=of).fit(
        cov_type=cov_type, cov_kwds=groups if kind == "clustered" else None, tol=1e-14, maxiter=100
    )
    reach = stats.norm.ppf(0.975) if kind == "robust" else stats.t.ppf(0.975, 2)
    np.testing.assert_allclose(errors(model, "high"), pooled.params + reach * pooled.bse, rtol=1e-7)
    np.testing.assert_allclose(model.covariance_, pooled.cov_params(), rtol=1e-6)
    assert f"intervals and p-values by {kind} errors" in model.text()
    assert any("clustered by 3 hospitals" in one for one in model.card.warnings) == (kind == "clustered")
    with pytest.raises(StudyError, match="errors by the model, and not 'robust'"):
        cc.Regression("death", intercepts="random", errors="robust")


def test_counts_that_vary_more_than_poisson_are_found():
    chance = np.random.default_rng(4)
    often = PATIENTS.assign(visits=chance.poisson(PATIENTS.visits * chance.gamma(0.5, 2, len(PATIENTS))))
    (said,) = (one for one in fit("poisson", often).card.warnings if "Poisson's law" in one)
    assert 'take errors = "robust"' in said
    assert not any("Poisson's law" in one for one in fit("poisson").card.warnings)


def test_a_negative_binomial_is_that_of_the_pooled_patients():
    """A Newton's step of statsmodels from here leads nowhere."""
    frame = PATIENTS.assign(visits=PATIENTS.visits * (1 + PATIENTS.index % 3))
    model = fit("negative-binomial", frame)
    peer = sm.NegativeBinomial(frame.visits, design(frame)).fit(disp=0, maxiter=200).model
    here = np.array([model.intercept_, *model.coef_, model.body.dispersion])
    covariance = np.linalg.inv(-peer.hessian(here))
    np.testing.assert_allclose(covariance @ peer.score(here), 0, atol=1e-7)
    np.testing.assert_allclose(errors(model, "error"), np.sqrt(np.diagonal(covariance))[:-1], rtol=1e-6)
    assert model.body.likelihood == pytest.approx(peer.loglike(here), rel=1e-9)
    rise = 2 * (peer.loglike(here) - sm.Poisson(frame.visits, design(frame)).fit(disp=0).llf)
    assert model.body.tests[-1].statistic == pytest.approx(rise, rel=1e-6)
    # Counts of Poisson's law: the same as without.
    plain, poisson = fit("negative-binomial"), fit("poisson")
    np.testing.assert_allclose(plain.coef_, poisson.coef_, atol=1e-3)
    assert plain.body.tests[-1].p > 0.05
    for more in ({"errors": "robust"}, {"intercepts": "hospital"}, {"by_hospital": True}):
        with pytest.raises(StudyError, match="a negative binomial has one intercept for all"):
            fit("negative-binomial", **more)


def test_a_number_with_one_fraction_at_one_hospital_is_a_number():
    frame = PATIENTS.assign(pressure=PATIENTS.pressure.round())
    assert frame.groupby("hospital").pressure.nunique().max() <= 256  # few enough to be listed as values
    frame.loc[frame.index[0], "pressure"] += 0.5
    pooled = sm.GLM(FAMILIES["binomial"][1], design(frame), family=sm.families.Binomial()).fit(tol=1e-14)
    np.testing.assert_allclose(fit("binomial", frame).coef_, pooled.params[1:], rtol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_intercepts_of_hospitals_are_indicators_in_the_pooled_regression(family):
    _, y, of = FAMILIES[family]
    model = fit(family, intercepts="hospital")
    pooled = sm.GLM(y, design(PATIENTS, hospitals=True), family=of).fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose(model.coef_, pooled.params[3:], rtol=1e-8)
    np.testing.assert_allclose(errors(model, "error", 1), pooled.bse[3:], rtol=1e-7)
    weights = PATIENTS.hospital.value_counts().sort_index() / len(PATIENTS)
    assert model.intercept_ == pytest.approx(float(pooled.params[:3] @ weights.values), rel=1e-8)


def test_an_interval_holds_the_risk_at_most_hospitals_where_intercepts_are_their_own():
    """Nobody knows the intercept of a patient's hospital: the risk may be that of any."""
    draw = np.random.default_rng(8)
    own = draw.normal(-0.5, 0.5, 60)
    tables = {}
    for place, intercept in enumerate(own):
        age = draw.normal(60, 10, 400).round()
        risk = 1 / (1 + np.exp(-(intercept + 0.05 * (age - 60))))
        tables[f"h{place:02}"] = pd.DataFrame(
            {"age": age, "death": np.where(draw.random(400) < risk, "yes", "no")}
        )
    model = cc.Regression("death", positive="yes", intercepts="hospital").fit(tables)
    for patient, age in (({}, 60), ({"age": 75}, 75)):
        said = model.explain(patient)
        low, high = said.interval  # of the class that is predicted
        risks = 1 / (1 + np.exp(-(own + 0.05 * (age - 60))))
        risks = risks if said.prediction == "yes" else 1 - risks
        assert 0.88 <= np.mean((low <= risks) & (risks <= high)) <= 1.0
        assert high - low < 0.6
    assert model.body.deviations == pytest.approx([10], rel=0.05)
    assert "age = 150 is far from what patients of the model had" in str(model.explain({"age": 150}))
    assert "far from" not in str(model.explain({"age": 85}))


def test_a_hospital_without_events_adds_nothing_where_intercepts_are_its_own():
    frame = PATIENTS.copy()
    frame.loc[frame.hospital == "east", "death"] = "no"
    model = fit("binomial", frame, intercepts="hospital")
    rest = fit("binomial", frame[frame.hospital != "east"], intercepts="hospital", release="exact")
    np.testing.assert_allclose(model.coef_, rest.coef_, rtol=1e-8)


def test_splines_references_and_interactions_are_columns():
    knots = [40.0, 55.0, 70.0]
    model = fit(
        "binomial",
        attributes=["age", "sex"],
        splines={"age": knots},
        reference={"sex": "m"},
        interactions=[["age", "sex"]],
    )
    x, (a, b, c) = PATIENTS.age, knots
    bent = np.maximum(x - a, 0) ** 3
    bent -= np.maximum(x - b, 0) ** 3 * (c - a) / (c - b)
    bent += np.maximum(x - c, 0) ** 3 * (b - a) / (c - b)
    bent /= (c - a) ** 2
    woman = (PATIENTS.sex == "f").astype(float)
    columns = np.column_stack([np.ones(len(x)), x, bent, woman, x * woman, bent * woman])
    pooled = sm.GLM(FAMILIES["binomial"][1], columns, family=sm.families.Binomial()).fit(
        tol=1e-14, maxiter=100
    )
    np.testing.assert_allclose([model.intercept_, *model.coef_], pooled.params, rtol=1e-6)
    np.testing.assert_allclose(model.predict_proba(PATIENTS)[:, 1], pooled.fittedvalues, rtol=1e-8)
    assert model.terms_ == ["age", "age'", "sex = f", "age x sex = f", "age' x sex = f"]


def test_likelihood_ratio_tests_are_those_of_two_pooled_fits():
    model = fit("binomial", tests="likelihood")
    y, columns = FAMILIES["binomial"][1], design(PATIENTS)
    binomial = sm.families.Binomial()
    whole = sm.GLM(y, columns, family=binomial).fit(tol=1e-14)
    less = sm.GLM(y, columns.drop(columns=["ward = b", "ward = c"]), family=binomial).fit(tol=1e-14)
    test = next(one for one in model.body.tests if one.term == "ward")
    assert test.statistic == pytest.approx(2 * (whole.llf - less.llf), rel=1e-8)
    assert test.freedom == 2


def separated_patients():
    frame = draw_patients(120, seed=5)
    frame["marker"] = np.where(frame.death == "yes", 1, 0) * (frame.age > frame.age.median())
    return frame


def test_separation_is_said_and_has_no_interval():
    model = fit("binomial", separated_patients(), attributes=["age", "marker"])
    assert model.body.separated == ["marker"]
    assert "the outcome is separated by marker: no finite coefficient there" in model.text()
    assert model.body.estimates[2].error is None
    assert any(
        "marker: separates the outcome" in one and "firth = true" in one for one in model.card.warnings
    )


def test_firth_gives_a_finite_estimate():
    frame = separated_patients()
    model = fit("binomial", frame, attributes=["age", "marker"], firth=True)
    x = np.column_stack([np.ones(len(frame)), (frame.age - 60) / 10, frame.marker])
    y = (frame.death == "yes").values.astype(float)

    def loss(b):
        eta = x @ b
        p = 1 / (1 + np.exp(-eta))
        information = x.T @ (x * (p * (1 - p))[:, None])
        return -(y @ eta - np.logaddexp(0, eta).sum() + 0.5 * np.linalg.slogdet(information)[1])

    best = optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose([10 * model.coef_[0], model.coef_[1]], best[1:], rtol=1e-4)


def test_collinear_terms_and_missing_values_are_said():
    frame = PATIENTS.assign(twice=2 * PATIENTS.age + 1)
    frame.loc[:9, "pressure"] = np.nan
    model = fit("binomial", frame, attributes=["age", "pressure", "twice"])
    assert model.terms_ == ["age", "pressure"]
    assert any("twice (a combination of other terms" in one for one in model.card.warnings)
    assert any(one.startswith("10 patients with a missing value are left out") for one in model.card.warnings)
    assert model.body.patients == len(frame) - 10


def test_bad_input_ends_in_a_sentence():
    frame = PATIENTS.assign(empty=np.nan)
    with pytest.raises(HouseError, match="'nowhere', which cannot be a term"):
        fit("binomial", attributes=["nowhere"])
    with pytest.raises(HouseError, match=r"'empty', which cannot be a term|no patient is left"):
        fit("binomial", frame, attributes=["age", "empty"])
    with pytest.raises(StudyError, match="no patient has death = maybe; there are no, yes"):
        fit("binomial", positive="maybe")
    with pytest.raises(StudyError, match="needs both ends of the range of 'cost'"):
        cc.Regression("cost", family="gaussian")
    with pytest.raises(StudyError, match="3 to 10 knots"):
        cc.Regression("death", splines={"age": [1, 2]})


def test_one_hospital_with_one_patient_stays_away():
    frame = PATIENTS.copy()
    frame.loc[:0, "hospital"] = "tiny"
    model = fit("binomial", frame, intercepts="hospital")
    assert [(one.site, one.rule) for one in model.card.refusals] == [("tiny", "patients")]
    assert model.body.patients == len(frame) - 1


def test_tables_and_pictures():
    model = fit("binomial")
    assert (
        model.to_csv().splitlines()[0].startswith("term,coefficient,error,robust,clustered,ratio,low,high,p")
    )
    assert "<td>sex = m</td>" in model.to_html()
    assert model.pictures()["forest plot"].count("<rect") == 5
    assert "odds ratio (95 % CI)" in model.text()
