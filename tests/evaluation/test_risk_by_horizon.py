"""Trees, rules and shapes that learn the risk of an event by a horizon, from patients who were followed for different
times: beside the true risks, beside lifelines, and patient by patient."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter

import concilium as cc
from concilium.errors import HouseError, StudyError
from concilium.models.follow_up import Followed
from concilium.models.measuring import Evaluation, learn_and_measure
from concilium.policy.policy import Policy
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.followed_outcome import FollowedOutcome, find_kept
from concilium.protocol.held_out import Holdout
from concilium.records.patients import Patients
from concilium.study import Study

HORIZON = 100.0
OUTCOME = FollowedOutcome(time="t", positive="yes", rest="no", times=(50.0, 100.0), kept=(0.5, 0.8))
SURVIVAL = {"positive": "yes", "time": "t", "at": HORIZON}


def draw_patients(seed: int, patients: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Patients of whom a third is censored before the horizon, and their true risks."""
    chance = np.random.default_rng(seed)
    dose, old = chance.normal(size=patients).round(2), chance.choice(["no", "yes"], patients)
    hazard = 0.005 * np.exp(0.8 * dose + 0.6 * (old == "yes"))
    event, end = chance.exponential(1 / hazard), chance.exponential(200, patients)
    frame = pd.DataFrame(
        {"dose": dose, "old": old, "t": np.minimum(event, end), "y": np.where(event <= end, "yes", "no")}
    )
    return frame, 1 - np.exp(-hazard * HORIZON)


@pytest.fixture(scope="module")
def hospitals() -> dict[str, pd.DataFrame]:
    return {name: draw_patients(place, 1500)[0] for place, name in enumerate("abc")}


FEW_RULES = {"trees": 20, "penalty": 0.01}
METHODS = {
    "tree": lambda **given: cc.DecisionTree("y", max_depth=3, **given),
    "naive-bayes": lambda **given: cc.NaiveBayes("y", **given),
    "shapes": lambda **given: cc.ShapeModel("y", **given),
    "rulefit": lambda **given: cc.RuleFit("y", **({} if "epsilon" in given else FEW_RULES), **given),
}
PRIVATE = {
    "release": "private",
    "epsilon": 6,
    "values": {"old": ["no", "yes"], "y": ["no", "yes"]},
    "bins": {"dose": [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "how", [{"release": "exact"}, {"release": "masked"}, PRIVATE], ids=lambda one: one["release"]
)
def test_learned_risks_are_those_of_patients_who_are_all_followed(hospitals, name, how):
    model = METHODS[name](**SURVIVAL, **how).fit(hospitals)
    fresh, truth = draw_patients(9, 4000)
    risks = model.predict_proba(fresh)[:, 1]
    # Whom hospitals keep is drawn by their keys: the standard error of a mean over 2,200 patients is 0.01.
    assert risks.mean() == pytest.approx(truth.mean(), abs=0.05)
    high, low = truth > 0.6, truth < 0.25
    assert risks[high].mean() - risks[low].mean() > 0.3
    # Patients whose outcome is known have the event more often: who has it early is not censored any more.
    known = hospitals["a"][(hospitals["a"].y == "yes") | (hospitals["a"].t >= HORIZON)]
    assert np.mean(known.t < HORIZON) > truth.mean() + 0.05
    assert model.followed == Followed("t", HORIZON)
    assert "t" not in model.attributes_
    assert any(one.startswith("the risk is that by t = 100: 2") for one in model.card.warnings)
    said = model.explain({"dose": 1.0, "old": "yes"})
    assert "The risk is that by t = 100." in str(said)
    assert model.text().endswith("The risk is that by t = 100.")


def test_a_model_keeps_its_horizon_and_is_measured_by_it(hospitals, tmp_path):
    model = METHODS["tree"](**SURVIVAL).fit(hospitals)
    model.save(tmp_path / "tree.json")
    loaded = cc.load(tmp_path / "tree.json")
    assert loaded.followed == Followed("t", HORIZON)
    assert loaded.at == HORIZON
    fresh, truth = draw_patients(9, 4000)
    found = loaded.evaluate({"new": fresh}).metrics
    assert found["follow_up"]["horizon"] == HORIZON
    assert found["overall"]["prevalence"] == pytest.approx(truth.mean(), abs=0.03)
    assert 0.65 < found["overall"]["auc"] < 0.8
    scored = loaded.find_outcomes(Patients.of(cc.Records.read(fresh)))
    assert set(scored.truth) == {"no", "yes"}
    assert np.mean(np.array(scored.truth) == "yes") == pytest.approx(truth.mean(), abs=0.04)


@pytest.mark.parametrize("name", ["cox", "curve"])
def test_a_hospital_adapts_a_model_of_survival_by_outcomes_at_its_horizon(hospitals, name):
    methods = {"cox": cc.CoxRegression, "curve": cc.SurvivalCurve}
    more = {"by": "old"} if name == "curve" else {}
    model = methods[name]("y", "t", "yes", at=HORIZON, release="exact", **more).fit(hospitals)
    fresh, truth = draw_patients(9, 4000)
    found = model.find_outcomes(Patients.of(cc.Records.read(fresh)))
    assert len(found.truth) < 0.7 * len(fresh)
    assert np.mean(np.array(found.truth) == "yes") == pytest.approx(truth.mean(), abs=0.04)
    # A model that is right where it was learned is right here: there is nothing to shift by more than chance.
    adapted = cc.adapt(model, fresh, site="elsewhere")
    assert abs(float(np.atleast_1d(adapted.adaptation.shifts)[-1])) < 0.25
    assert adapted.predict_proba(fresh)[:, 1].mean() == pytest.approx(truth.mean(), abs=0.04)


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_hospitals_of_a_region_learn_risks_by_a_horizon(hospitals, release):
    parts = [part for frame in hospitals.values() for part in (frame[::2], frame[1::2])]
    sites = [cc.Site(f"site {place}", cc.Records.read(part)) for place, part in enumerate(parts)]
    house = cc.House([cc.Region("north", cc.House(sites[:3])), *sites[3:]])
    model = METHODS["tree"](**SURVIVAL, release=release).fit(house)
    assert model.predict_proba(hospitals["a"])[:, 1].mean() == pytest.approx(0.51, abs=0.06)


def make_view(frame: pd.DataFrame) -> View:
    return View(cc.Records.read(frame, schema={"t": "number"}), Policy(), division_key=b"a key" * 8)


PATIENTS = st.lists(
    st.tuples(
        st.sampled_from([None, -1.0, 0.0, 20.0, 49.0, 50.0, 99.0, 100.0, 300.0]),
        st.sampled_from(["yes", "no", "moved"]),
    ),
    min_size=12,
    max_size=40,
)


def read_outcomes(view: View) -> list[str | None]:
    seen = OUTCOME.see(view, "y")
    assert "t" not in seen.records
    return seen.records.values("y")


@given(PATIENTS)
def test_the_outcome_of_a_patient_follows_from_the_own_record_alone(rows):
    frame = pd.DataFrame(
        {"t": [t for t, _ in rows], "y": [y for _, y in rows], "n": np.arange(len(rows)) % 7}
    )
    frame.loc[len(frame)] = [10.0, "yes", 1]  # so that the column has an event, and a time
    whole = read_outcomes(make_view(frame))
    assert (
        read_outcomes(make_view(frame.iloc[:-1])) == whole[:-1]
        if "yes" in frame.y.iloc[:-1].tolist()
        else True
    )
    for (time, outcome), told in zip(rows, whole, strict=False):
        if time is None or time < 0:
            assert told is None
        elif time >= HORIZON:
            assert told == "no"
        elif outcome == "yes":
            assert told in ("yes", None)
        else:
            assert told is None


def test_so_many_events_stay_as_the_question_says():
    size = 20_000
    frame = pd.DataFrame({"t": [10.0, 60.0] * (size // 2), "y": ["yes"] * size, "n": range(size)})
    told = np.array(read_outcomes(make_view(frame)), dtype=object) == "yes"
    assert told[::2].mean() == pytest.approx(0.5, abs=0.025)
    assert told[1::2].mean() == pytest.approx(0.8, abs=0.025)


def test_the_same_patients_are_held_out_whatever_the_outcome():
    frame, _ = draw_patients(2, 400)
    view = make_view(frame)
    seen, holdout = OUTCOME.see(view, "y"), Holdout(percent=30)
    known = seen.select("", "y")
    held = set(view.select("", "y").rows[holdout.find_held(view.select("", "y"))].tolist())
    assert set(known.rows[holdout.find_held(known)].tolist()) == held & set(known.rows.tolist())


def test_what_stays_is_the_chance_to_be_followed_on():
    frame, _ = draw_patients(1, 3000)
    times = np.linspace(0, HORIZON, 101)
    cell = np.searchsorted(times, frame.t, side="right") - 1
    events, censored = (
        np.bincount(cell[(cell < 100) & (frame.y == value)], minlength=100).astype(float)
        for value in ("yes", "no")
    )
    kept = find_kept(events, censored, float((cell >= 100).sum()))
    curve = KaplanMeierFitter().fit(frame.t, frame.y == "no")
    theirs = curve.predict(HORIZON) / curve.predict(times[:-1] + 0.5).to_numpy()
    np.testing.assert_allclose(kept, theirs, atol=0.005)


def test_where_nobody_is_censored_everybody_stays(hospitals):
    assert find_kept(np.ones(4), np.zeros(4), 10.0) == [1.0] * 4
    frames = {
        name: frame.assign(t=frame.t.where(frame.y == "yes", 500.0)) for name, frame in hospitals.items()
    }
    by_hand = {
        name: frame.assign(y=np.where((frame.y == "yes") & (frame.t < HORIZON), "yes", "no")).drop(
            columns="t"
        )
        for name, frame in frames.items()
    }
    learned = METHODS["tree"](**SURVIVAL).fit(frames)
    assert learned.body.nodes == METHODS["tree"](positive="yes").fit(by_hand).body.nodes


def test_a_study_that_learns_and_measures_uses_no_patient_for_both(hospitals):
    tree = METHODS["tree"](**SURVIVAL)
    table = learn_and_measure(tree, hospitals, Evaluation(Holdout(percent=30)))
    assert table.follow_up is not None
    measured = float(np.sum(table.counts))
    assert measured == pytest.approx(0.3 * 4500, abs=140)
    assert sum(tree.body.nodes[0].counts) < 0.7 * 4500


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"time": "dose"}, "another time or horizon"),
        ({"times": (50.0, 90.0)}, "another time or horizon"),
        ({"positive": "no", "rest": "yes"}, "other values"),
    ],
)
def test_a_hospital_answers_about_the_agreed_outcome_only(change, said):
    import msgspec

    outcome = msgspec.structs.replace(OUTCOME, **change)
    question = AskCounts(query="", target="y", followed=outcome)
    objection = METHODS["tree"](**SURVIVAL).find_objection(question)
    assert (objection is None) if said is None else said in objection
    assert METHODS["tree"](positive="yes").find_objection(question) is not None
    plain = AskCounts(query="", target="y")
    assert "by a horizon" in METHODS["tree"](**SURVIVAL).find_objection(plain)


def test_a_private_study_pays_for_the_first_question_too():
    for name in METHODS:
        method = METHODS[name](**SURVIVAL, **PRIVATE)
        without = METHODS[name](positive="yes", **PRIVATE)
        assert method.plan().questions[0].cost == without.rho / 20
        assert method.plan().total <= without.rho
        assert method.plan().total >= without.plan().total * Fraction(95, 100)
        assert method.epsilon_of_rho == without.epsilon_of_rho


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at": HORIZON, "time": "t"}, "say which value of 'y' it is, positive"),
        ({"at": HORIZON, "time": "y", "positive": "yes"}, "cannot be the target"),
        ({"at": HORIZON, "time": "t", "positive": "yes", "attributes": ["t"]}, "cannot be the target"),
        ({"at": -1, "time": "t", "positive": "yes"}, "'at'"),
    ],
)
def test_a_horizon_needs_an_event_and_a_time(given, said):
    with pytest.raises(StudyError, match=said.replace("(", r"\(")):
        cc.DecisionTree("y", **given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.assign(y="no"), "nobody has y = yes by t = 100"),
        (lambda frame: frame.assign(t=frame.t.clip(upper=90)), "nobody is followed to t = 100"),
        (lambda frame: frame.assign(t=-1.0), "nobody has a 't' that is a number from 0 on"),
        (lambda frame: frame.drop(columns="t"), "no column 't'|'t'"),
    ],
    ids=["no events", "nobody followed", "negative times", "no time"],
)
def test_patients_who_tell_nothing_by_the_horizon_end_in_a_sentence(hospitals, change, said):
    with pytest.raises(HouseError, match=said):
        METHODS["tree"](**SURVIVAL).fit({name: change(frame) for name, frame in hospitals.items()})


def test_a_hospital_that_counts_in_another_unit_is_named(hospitals):
    months = {**hospitals, "c": hospitals["c"].assign(t=hospitals["c"].t / 30)}
    warnings = METHODS["tree"](**SURVIVAL).fit(months).card.warnings
    assert any("nobody at c is followed to t = 100: is 't' in another unit there?" in one for one in warnings)
    assert not any("another unit" in one for one in METHODS["tree"](**SURVIVAL).fit(hospitals).card.warnings)


STUDY = """
[study]
name = "risks"
method = "tree"
target = "y"
time = "t"
positive = "yes"
[tree]
at = 100
max_depth = 3
[privacy]
release = "exact"
[[site]]
name = "a"
records = "a.csv"
[[site]]
name = "b"
records = "b.csv"
[evaluate]
"""


def test_a_study_file_learns_and_measures_risks_by_a_horizon(hospitals, tmp_path):
    for name in "ab":
        hospitals[name].to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "study.toml").write_text(STUDY + "holdout = 0.3")
    results = Study.read(tmp_path / "study.toml").run(tmp_path / "out")
    assert results.model.followed == Followed("t", HORIZON)
    assert results.metrics["follow_up"]["horizon"] == HORIZON
    assert "The risk is that by t = 100" in str(results.model.explain({"dose": 0.5}))
    (tmp_path / "study.toml").write_text(STUDY + 'file = "a.csv"')
    with pytest.raises(StudyError, match="counts who was censored, at hospitals"):
        Study.read(tmp_path / "study.toml")
