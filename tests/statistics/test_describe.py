"""Table 1 over hospitals is the table of the pooled patients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.oneway import anova_oneway

import concilium as cc
from concilium.errors import StudyError
from concilium.protocol.attributes import Attribute
from concilium.statistics.population_table import NumberRow, _standardise_shares, add_private_mean
from statistics_hospitals import SCHEMA, draw_patients, open_house

PATIENTS = draw_patients()
PATIENTS.loc[PATIENTS.index[::9], "age"] = np.nan
PATIENTS.loc[PATIENTS.index[::7], "ward"] = None
ATTRIBUTES = ["age", "pressure", "sex", "ward"]


def fit(frame=PATIENTS, **more):
    return cc.Describe("death", **{"attributes": ATTRIBUTES, **more}).fit(open_house(frame, SCHEMA))


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_it_is_the_table_of_the_pooled_patients(release):
    table = fit(release=release).body.table
    died = PATIENTS.death == "yes"
    parts = [PATIENTS[~died], PATIENTS[died], PATIENTS]
    assert table.patients == [len(part) for part in parts]
    age = table.numbers[0]
    np.testing.assert_allclose(age.mean, [part.age.mean() for part in parts], rtol=1e-10)
    np.testing.assert_allclose(age.deviation, [part.age.std() for part in parts], rtol=1e-8)
    assert age.missing == [int(part.age.isna().sum()) for part in parts]
    for found, part in zip(age.quartiles, parts, strict=True):
        np.testing.assert_allclose(found, part.age.quantile([0.25, 0.5, 0.75]), atol=0.3)
    spread = np.sqrt((parts[0].age.var() + parts[1].age.var()) / 2)
    assert age.difference == pytest.approx((parts[1].age.mean() - parts[0].age.mean()) / spread, rel=1e-8)
    ward = table.categories[1]
    counts = [[int((part.ward == value).sum()) for part in parts] for value in "abc"]
    assert ward.counts == counts
    test = stats.chi2_contingency(np.array(counts)[:, :2], correction=False)
    assert (ward.chi_squared, ward.p) == pytest.approx((test.statistic, test.pvalue), rel=1e-8)


def test_correlations_missing_values_and_hospitals():
    body = fit().body
    correlation = PATIENTS[["age", "pressure"]].corr().values
    np.testing.assert_allclose(body.correlations, correlation, rtol=1e-8)
    lacking = PATIENTS[ATTRIBUTES].isna().sum(axis=1).value_counts().to_dict()
    assert {n: count for n, count in enumerate(body.lacking) if count} == lacking
    by_hospital = PATIENTS.groupby("hospital").pressure
    mean = PATIENTS.pressure.mean()
    between = (by_hospital.size() * (by_hospital.mean() - mean) ** 2).sum()
    share = between / ((PATIENTS.pressure - mean) ** 2).sum()
    pressure = body.table.numbers[1]
    assert pressure.between_hospitals == pytest.approx(share, rel=1e-6)
    weight = by_hospital.size() / by_hospital.var()
    pooled = (weight * by_hospital.mean()).sum() / weight.sum()
    q = (weight * (by_hospital.mean() - pooled) ** 2).sum()
    assert pressure.heterogeneity == pytest.approx(max(0.0, (q - 2) / q), abs=1e-6)


def test_quartiles_of_whole_numbers_are_values_of_patients():
    frame = PATIENTS.assign(stay=PATIENTS.visits * 7)
    model = fit(frame, attributes=["stay", "sex"], release="exact")
    parts = [frame[frame.death == "no"], frame[frame.death == "yes"], frame]
    for found, part in zip(model.body.table.numbers[0].quartiles, parts, strict=True):
        assert found == part.stay.quantile([0.25, 0.5, 0.75], interpolation="lower").tolist()
    tables = stats.chi2_contingency(pd.crosstab(frame.sex, frame.death), correction=False)
    assert f"chi-squared by death: sex {tables.statistic:.3g} on 1" in model.text()


def test_means_are_compared_by_welch():
    numbers = {one.name: one for one in fit().body.table.numbers}
    died = PATIENTS.death == "yes"
    test = stats.ttest_ind(PATIENTS.pressure[died], PATIENTS.pressure[~died], equal_var=False)
    assert numbers["pressure"].p == pytest.approx(test.pvalue, rel=1e-6)
    by_ward = cc.Describe("ward", attributes=["age", "pressure"]).fit(open_house(PATIENTS, SCHEMA))
    groups = [part.dropna() for _, part in PATIENTS.groupby("ward").age]
    among = anova_oneway(groups, use_var="unequal", welch_correction=True)
    assert by_ward.body.table.numbers[0].p == pytest.approx(among.pvalue, rel=1e-6)


def test_pairs_that_are_missing_together_and_categories_that_differ_between_hospitals():
    frame = PATIENTS.copy()
    east = frame.index[frame.hospital == "east"]
    frame.loc[east[: len(east) // 2], "ward"] = "c"
    model = fit(frame)
    lacks = frame[ATTRIBUTES].isna().astype(int)
    pairs = model.missing_together()
    assert list(pairs.columns) == ["age", "ward"]
    np.testing.assert_array_equal(pairs.values, (lacks.T @ lacks).loc[["age", "ward"], ["age", "ward"]])
    assert f"missing together: age and ward ({pairs.loc['age', 'ward']})" in model.text()
    ward = next(one for one in model.body.table.categories if one.name == "ward")
    test = stats.chi2_contingency(pd.crosstab(frame.hospital, frame.ward), correction=False)
    assert ward.heterogeneity == pytest.approx(1 - test.dof / test.statistic, rel=1e-6)
    table = pd.crosstab(frame.hospital, frame.ward).values.astype(float)
    n, total = table.sum(axis=1, keepdims=True), table.sum()
    same = (table.sum(axis=0) ** 2).sum() / total
    assert ward.between_hospitals == pytest.approx(((table**2 / n).sum() - same) / (total - same), rel=1e-6)
    assert "differs between hospitals (I^2 above 75%): ward" in model.text()
    np.testing.assert_allclose(model.correlations(), frame[["age", "pressure"]].corr(), rtol=1e-8)


def test_a_table_of_categories_alone_tells_what_is_missing():
    model = fit(attributes=["sex", "ward"])
    assert sum(model.body.lacking) == len(PATIENTS)
    assert model.body.together["ward"]["ward"] == int(PATIENTS.ward.isna().sum())


def test_intervals_of_private_means_hold_the_truth():
    """Means of the population that patients are drawn from; 200 draws of noise and patients, three epsilons."""
    attribute, draw, held, compared = Attribute("x", (0.0, 50.0, 100.0)), np.random.default_rng(2), [], []
    for patients, noise in ((200, 8.0), (2000, 20.0), (2000, 150.0)):
        for _ in range(70):
            away = np.clip(draw.normal(40, 10, (patients, 2)), 0, 100) / 100 - 0.5
            told = np.array([away.sum(axis=0), 2 * (away**2).sum(axis=0)])
            told += draw.normal(0, noise / 4, (2, 2))
            lacking, counts = draw.normal([[0.0], [patients]], noise, (2, 2))
            row = NumberRow(
                name="x",
                patients=[],
                missing=[*lacking, lacking.sum()],
                mean=[],
                deviation=[],
                mean_error=[],
                quartiles=[],
            )
            row = add_private_mean(row, attribute, [*counts, counts.sum()], told, (noise, noise / 4))
            if row.mean[0] is not None:
                held.append(abs(row.mean[0] - 40) < 1.96 * row.mean_error[0])
                assert row.deviation[0] is None or 5 < row.deviation[0] < 20
            if row.p is not None:
                compared.append((row.p < 0.05, row.difference is not None))
    assert len(held) > 150
    assert np.mean(held) >= 0.92
    assert len(compared) > 150
    assert np.mean(compared, axis=0).max() < 0.08  # no class differs


def test_private_means_of_two_classes_are_compared():
    private = {"values": {"death": ["no", "yes"]}, "bins": {"age": [20, 60, 100]}, "attributes": ["age"]}
    frame = draw_patients(4000)
    row = fit(frame, release="private", epsilon=50.0, **private).body.table.numbers[0]
    classes = [part.age for _, part in frame.groupby("death")]
    spread = np.sqrt(np.mean([part.var() for part in classes]))
    assert row.difference == pytest.approx((classes[1].mean() - classes[0].mean()) / spread, abs=0.03)
    assert row.p < 1e-6


def test_noise_is_never_a_difference_between_classes():
    draw, told = np.random.default_rng(3), []
    for _ in range(200):
        counts = np.array([[0, 0], [500, 500], [500, 500], [0, 0]]) + draw.normal(0, 15, (4, 2))
        told.append(_standardise_shares(np.maximum(counts, 0), 15.0))
    assert np.mean([one is None for one in told]) > 0.9
    assert _standardise_shares(np.array([[700.0, 300.0], [300.0, 700.0]]), 15.0) == pytest.approx(
        0.87, abs=0.01
    )


def test_a_table_of_each_hospital_is_for_exact_studies():
    model = fit(release="exact", by_hospital=True)
    for name, part in PATIENTS.groupby("hospital"):
        table = model.body.by_site[name]
        beside = next(
            line for line in model.text().split("\n\n")[1].splitlines() if line.startswith("age, mean")
        )
        assert f"{part.age.mean():.3g} ({part.age.std():.3g})" in beside
        assert table.patients[-1] == len(part)
        assert table.numbers[1].mean[-1] == pytest.approx(part.pressure.mean(), rel=1e-10)
    assert model.to_csv("north").splitlines()[0] == ",death = no,death = yes,all,difference,p"
    with pytest.raises(StudyError, match="by_hospital = true goes with release = 'exact'"):
        cc.Describe("death", by_hospital=True)


def test_it_is_text_html_csv_and_a_frame():
    model = fit()
    assert "pressure, mean (sd)" in model.text()
    assert "<td>sex = m</td>" in model.to_html()
    assert list(model.frame().columns) == [
        *["", "death = no", "death = yes", "all", "difference", "p", "I^2 (share)"]
    ]


def test_a_private_table_is_near_the_truth_within_its_errors():
    stated = {
        "bins": {"age": [20.0, 40.0, 60.0, 80.0, 100.0], "pressure": [50.0, 110.0, 150.0, 210.0]},
        "values": {"sex": ["f", "m"], "death": ["no", "yes"]},
    }
    frame = draw_patients(4000, 3)
    model = fit(frame, release="private", epsilon=1.0, attributes=["age", "pressure", "sex"], **stated)
    assert any("every count has noise" in one for one in model.card.warnings)
    body = model.body
    age = body.table.numbers[0]
    assert abs(age.mean[-1] - frame.age.clip(20, 100).mean()) < 4 * age.mean_error[-1]
    assert age.mean_error[-1] > frame.age.std() / np.sqrt(4000)  # it has noise beside
    assert abs(body.table.categories[0].counts[0][-1] - (frame.sex == "f").sum()) < 6 * body.noise
    with pytest.raises(StudyError, match="states the classes of 'death'"):
        cc.Describe("death", release="private", epsilon=1.0, bins=stated["bins"])
