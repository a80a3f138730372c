"""A model of survival is measured by outcomes at its horizon: who was censored before counts by how others fared."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

import concilium as cc
from concilium.errors import StudyError
from concilium.models.follow_up import Followed, describe_follow_up, share_censored
from concilium.study import Study
from side_door import UNLIMITED

HORIZON = 100.0
SCHEMA = {"dose": "number", "old": "code", "t": "number", "y": "code"}


def draw_patients(seed: int, patients: int, *, censored: bool = True) -> pd.DataFrame:
    """Constant hazards; censored at random from the first day on, and all at day 200."""
    chance = np.random.default_rng(seed)
    dose, old = chance.normal(size=patients).round(3), chance.integers(0, 2, patients)
    event = chance.exponential(1 / (0.004 * np.exp(0.7 * dose + 0.5 * old)))
    end = np.minimum(chance.uniform(0, 200, patients), 200.0) if censored else np.full(patients, 200.0)
    return pd.DataFrame(
        {"dose": dose, "old": old, "t": np.minimum(event, end), "y": np.where(event <= end, "yes", "no")}
    )


@pytest.fixture(scope="module")
def model() -> cc.CoxRegression:
    frame = draw_patients(0, 3000)
    return cc.CoxRegression("y", "t", "yes", at=HORIZON, release="exact").fit([frame[::2], frame[1::2]])


@pytest.fixture(scope="module")
def truth(model) -> dict[str, float]:
    """What is so of many patients of whom all are followed to the horizon."""
    fresh = draw_patients(1, 50_000, censored=False)
    risks, outcome = model.predict_proba(fresh[["dose", "old"]])[:, 1], (fresh.t < HORIZON).to_numpy()
    return {
        "auc": roc_auc_score(outcome, risks),
        "prevalence": outcome.mean(),
        "brier": ((risks - outcome) ** 2).mean(),
    }


@pytest.mark.parametrize(
    ("how", "near"),
    [({}, 0.02), ({"release": "masked"}, 0.02), ({"release": "private", "epsilon": 1}, 0.06)],
    ids=["exact", "masked", "private"],
)
def test_figures_of_censored_patients_are_those_of_all(model, truth, how, near):
    private = how.get("release") == "private"
    hospitals = {
        name: draw_patients(place, 20_000 if private else 3000) for place, name in enumerate("abc", start=10)
    }
    sites = [
        cc.Site(name, cc.Records.read(frame, schema=SCHEMA), policy=UNLIMITED)
        for name, frame in hospitals.items()
    ]
    found = model.evaluate(cc.House(sites), **how).metrics
    everyone = pd.concat(hospitals.values())
    censored = ((everyone.t < HORIZON) & (everyone.y == "no")).mean()
    assert found["follow_up"]["censored"] == pytest.approx(censored, abs=near / 2)
    assert found["overall"]["auc"] == pytest.approx(truth["auc"], abs=near)
    assert found["overall"]["prevalence"] == pytest.approx(truth["prevalence"], abs=near)
    assert found["risks"]["brier"] == pytest.approx(truth["brier"], abs=near)
    assert 0.8 < found["risks"]["slope"] < 1.25
    assert not found["alarms"]
    assert any(
        "censored before, and count by how patients of like risk fared" in one for one in found["notes"]
    )


def test_intervals_hold_the_figures_of_all_patients(model, truth):
    held = []
    for seed in range(100, 160):
        hospitals = {name: draw_patients(3 * seed + place, 200) for place, name in enumerate("abc")}
        found = model.evaluate(hospitals).metrics["overall"]["intervals"]
        held += [found[name][0] <= truth[name] <= found[name][1] for name in ("auc", "brier")]
    assert 0.9 <= np.mean(held) <= 1.0


def test_a_curve_with_competing_ends_is_measured_by_its_incidence():
    chance = np.random.default_rng(3)
    frame = draw_patients(3, 6000)
    frame["y"] = np.where((frame.y == "yes") & (chance.random(6000) < 0.4), "died otherwise", frame.y)
    curve = cc.SurvivalCurve(
        "y", "t", "yes", by="old", competing=["died otherwise"], at=HORIZON, release="exact"
    ).fit([frame[::2], frame[1::2]])
    found = curve.evaluate({"a": frame[::2], "b": frame[1::2]}).metrics
    risks = curve.predict_proba(frame[["old"]])[:, 1]
    assert found["overall"]["prevalence"] == pytest.approx(risks.mean(), abs=0.01)


ENDS = arrays(np.int64, (6, 7), elements=st.integers(0, 9)).map(lambda table: table.astype(np.float64))


@given(ENDS)
def test_every_patient_is_shared_between_both_outcomes(table):
    shared = share_censored(table, table)
    np.testing.assert_allclose(shared.sum(axis=1), table.sum(axis=1))
    assert (shared >= -1e-9).all()
    assert (shared[:, 1] >= table[:, 1::2].sum(axis=1) - 1e-9).all()


@given(ENDS)
def test_where_all_are_followed_outcomes_are_counted(table):
    table[:, 0:-1:2] = 0
    shared = share_censored(table, table)
    np.testing.assert_array_equal(shared, np.stack([table[:, -1], table[:, 1::2].sum(axis=1)], axis=1))


@given(ENDS)
def test_concordance_is_that_of_all_pairs(table):
    patients = [
        (risk, end // 2, end % 2 == 1 and end < 6)
        for risk, row in enumerate(table.astype(int))
        for end, count in enumerate(row)
        for _ in range(min(count, 2))
    ]
    few = np.minimum(table, 2)
    agreeing = pairs = 0.0
    for one, other in itertools.permutations(patients, 2):
        if one[2] and one[1] < other[1]:
            pairs += 1
            agreeing += (one[0] > other[0]) + (one[0] == other[0]) / 2
    found = describe_follow_up(Followed("t", 3.0), few, noisy=False).concordance
    assert found == (pytest.approx(agreeing / pairs) if pairs else None)


STUDY = """
[study]
name = "follow-up"
method = "cox"
target = "y"
time = "t"
positive = "yes"
[[site]]
name = "a"
records = "a.csv"
[[site]]
name = "b"
records = "b.csv"
[evaluate]
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "holdout = 0.3\nsimulation = true",
            "simulation does not go with 'cox': hospitals count who was censored",
        ),
        ('file = "c.csv"', "of 'cox' counts who was censored, at hospitals: write holdout = 0.3"),
        ('leave_out = "site"', "needs one horizon for all folds: write at = 365, say, under [cox]"),
    ],
)
def test_a_study_that_cannot_count_the_censored_is_told_what_can(tmp_path, line, said):
    (tmp_path / "study.toml").write_text(STUDY + line)
    with pytest.raises(StudyError) as caught:
        Study.read(tmp_path / "study.toml")
    assert said in str(caught.value)
