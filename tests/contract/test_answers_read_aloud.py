"""Sentences that were false or could not be read when answers were read aloud, each with what it was."""

from __future__ import annotations

import functools
import re

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.models.explanation import OPEN, Explanation, say_hidden, say_open
from concilium.models.intervals import share_interval
from concilium.rulefit.reading import _say_shortened
from concilium.shapes.reading import list_rows
from concilium.statistics.results import TermEstimate
from concilium.trees.explanation import OF_AVERAGE, OF_EVERYONE, _say_share
from contract.patients import BUDGET, EVERYONE, SCHEMA, VALUES
from contract.test_answers import PATIENT
from contract.test_contract import fitted


def test_a_private_rulefit_lists_no_line_that_says_nothing():
    """It listed "smoker = n: odds ratio 1.00", and odds ratios of attributes whose shapes noise hides."""
    model = fitted("rulefit", "private")[0]
    hidden = {shape.attribute for shape in model.shapes() if shape.hidden}
    for row in EVERYONE[:40]:
        said = str(model.explain({name: value for name, value in row.items() if name != "y"}))
        lines = re.findall(r"^\d+\. (\w+) .*: odds ratio (\S+)\.$", said, re.M)
        assert not {name for name, _ in lines} & hidden
        assert not {odds for _, odds in lines} & {"0.99", "1.00", "1.01"}
        if hidden & set(row):
            assert "Noise hides what these do: " in said


def test_private_shapes_list_no_curve_that_noise_hides():
    """It listed "smoker = non-smoker: odds ratio 1.01" of a curve whose band holds 1 everywhere."""
    model = fitted("shapes", "private")[0]
    rows = list_rows(model.body, {})
    seen = {row.term for row in rows if not row.low <= 1 <= row.high}
    for row in EVERYONE[:20]:
        said = str(model.explain({name: value for name, value in row.items() if name != "y"}))
        assert set(re.findall(r"^- (\w+) (?:=|is) ", said, re.M)) <= seen


@pytest.mark.parametrize("case", [("tree", "exact"), ("tree", "private"), ("voting-trees", "masked")])
def test_a_tree_says_what_its_interval_is_about(case):
    """Its interval held the risk of a single patient in half of the cases: it is that of a mean."""
    model = fitted(*case)[0]
    assert OF_AVERAGE in model.explain(PATIENT).sentences
    assert OF_EVERYONE in model.explain({}).sentences


def test_a_tree_says_similar_of_a_part_of_its_patients_only():
    """Of a patient who lacks the first value asked for it said "63% of 569 similar patients": those were all."""
    draw = np.random.default_rng(1)
    rows = [{"age": int(age), "y": int(age > 50)} for age in draw.integers(20, 90, 200)]
    said = str(cc.DecisionTree("y").fit([cc.Records.from_rows(rows)]).explain({"age": None}))
    assert "of all 200 patients" in said
    assert "similar" not in said
    assert OF_EVERYONE in said


def test_a_tree_asks_first_for_what_it_asks_next():
    """Of a patient of 70 it said "Measure lactate first", which it asks of younger patients at first."""
    ill = {(30, 0): 0, (30, 1): 16, (70, 0): 24, (70, 1): 40}  # of 40 patients, by age and a or b
    rows = [
        {
            "age": age,
            "a": one if age == 30 else other,
            "b": other if age == 30 else one,
            "y": int(place < few),
        }
        for (age, one), few in ill.items()
        for place in range(40)
        for other in (0, 1)
    ]
    tree = cc.DecisionTree("y", growth="id3").fit([cc.Records.from_rows(rows, schema={"age": "number"})])
    for age, first in ((30, "a"), (70, "b")):
        assert f"Measure {first} first." in str(tree.explain({"age": age}))


def test_an_interval_of_nearly_everything_is_said_to_be_that():
    """It said "died (60% of about 10 similar patients; 95% interval 0% to 100%)", and went on as if it knew."""
    plain = Explanation("y", "died", 0.6, (), ("y = died (60%).",), interval=(0.05, 0.9))
    assert say_open(plain).sentences == ("y = died, uncertain (60%).", OPEN)
    narrow = Explanation("y", "died", 0.6, (), ("y = died (60%).",), interval=(0.5, 0.7))
    assert say_open(narrow) == narrow


def test_odds_ratios_without_end_are_not_spelt_out():
    """A regression of separated outcomes multiplied odds by a number of 300 digits, and was sure of its risk."""
    draw = np.random.default_rng(2)
    rows = [
        {"group": group, "z": float(draw.normal()), "y": int(group == "c" or draw.random() < 0.3)}
        for group in draw.choice(["a", "b", "c"], 300).tolist()
    ]
    model = cc.Regression("y", positive=1, release="exact").fit([cc.Records.from_rows(rows)])
    said = model.explain({"group": "c", "z": 0.0})
    assert not re.search(r"\d{7}", str(said) + model.text())
    assert "No finite coefficient fits group = c, by which the outcome separates." in str(said)
    assert said.interval == (0.0, 1.0)
    assert OPEN in said.sentences


def test_a_value_that_noise_hides_is_not_counted():
    """One unknown ward widened the interval of a private naive Bayes from 84-95 % to 2-99.8 %."""
    model = fitted("naive-bayes", "private")[0]
    known = {"age": 71.5, "ward": "c"}
    other, without = model.explain({**known, "sex": "x"}), model.explain(known)
    assert "noise hides whether any patient of the model was like that: sex" in str(other)
    assert other.interval == without.interval
    assert other.probability == without.probability
    full = {**known, "sex": "x", "pressure": 110.0}
    (share,) = model.predict_proba([full])
    assert max(share) == pytest.approx(model.explain(full).probability)


def test_values_of_a_course_that_are_hardly_plausible_are_named():
    """A temperature of 103 degrees, in another unit, raised the risk without a word."""
    model = fitted("experts", "private")[0]
    course = {"age": [60.0] * 3, "pressure": [120.0] * 3}
    assert "hardly plausible" not in str(model.explain(course))
    assert "age = 300 is hardly plausible" in str(model.explain({**course, "age": [60.0, 300.0, 60.0]}))


def test_a_survival_answer_begins_with_the_time():
    """A Cox regression said "y = yes (96 %)", and after ten reasons by when."""
    first = fitted("cox", "exact")[0].explain(PATIENT).sentences[0]
    assert re.match(r"y = (yes|no) by pressure = \d+", first)


def test_a_curve_of_nobody_is_no_answer():
    """A private curve said "above 99.9%" of a ward that nobody was in, by the noise of its counts."""
    draw = np.random.default_rng(4)
    rows = [
        {"ward": str(draw.choice(["a", "b"])), "pressure": float(draw.integers(1, 90)), "y": str(y)}
        for y in draw.choice(["no", "yes"], 600)
    ]
    sites = [
        cc.Site(str(p), cc.Records.from_rows(rows[p::3], schema=SCHEMA_OF_WARDS), BUDGET) for p in range(3)
    ]
    model = cc.SurvivalCurve(
        "y",
        "pressure",
        positive="yes",
        by="ward",
        release="private",
        epsilon=4.0,
        grid=[20.0, 40.0, 60.0],
        values={"ward": ["a", "b", "c"], "y": VALUES["y"]},
    ).fit(sites)
    said = model.explain({"ward": "c"})
    assert "There is no curve for ward = c: the answer is about all patients." in said.sentences
    assert said.probability == model.explain({}).probability
    assert re.search(r"ward = c .*hidden by noise", model.text())


SCHEMA_OF_WARDS = {name: kind for name, kind in SCHEMA.items() if name in ("ward", "pressure", "y")}


def test_experts_without_a_reason_promise_none():
    """ "Expert 1 says survived (75% of 132 in its sample):" stood before nothing."""
    draw = np.random.default_rng(3)
    rows = [
        {"age": int(age), "y": int(draw.random() < (age > 70) * 0.04)} for age in draw.integers(20, 90, 2000)
    ]
    model = cc.VotingTrees("y", 1).fit([cc.Records.from_rows(rows)])
    assert model.body.negatives is not None
    said = model.explain({})
    (line,) = (sentence for sentence in said.sentences if "in its sample" in sentence)
    assert line.endswith("in its sample).")


def test_what_to_measure_next_would_change_something():
    """ "The above 99.9% could become above 99.9% to above 99.9%." was a reason to measure."""
    for release in ("exact", "private"):
        model = fitted("consultation", release)[0]
        for row in EVERYONE[:30]:
            said = str(model.explain({"age": row["age"] or 50.0, "sex": row["sex"]}))
            for low, high in re.findall(r"could become (.*) to (.*)\.$", said, re.M):
                assert low != high


def test_two_students_that_disagree_are_said_to():
    """Reasons that added up to a severity below the alarm stood under an alarm."""
    model = fitted("experts", "private")[0]
    seen = set()
    for age in np.linspace(20, 90, 15):
        for pressure in np.linspace(80, 160, 9):
            said = model.explain({"age": [age] * 3, "pressure": [pressure] * 3})
            (readable,) = re.findall(r"The readable student: severity = ([\d.]+)", str(said))
            differ = (float(readable) > model._student.alarm) != said.prediction
            if abs(float(readable) - model._student.alarm) > 0.01:  # it is printed with few digits
                assert ("By the readable student alone there would be" in str(said)) == differ
                seen.add(differ)
    assert False in seen


def test_a_consultation_is_not_sure_by_the_chance_of_a_few_patients():
    """Of 52 patients, one of whom died, it said "survived (above 99.9%; 95% interval 2% to above 99.9%)"."""

    def draw_ward(count, seed):
        draw = np.random.default_rng(seed)
        age, gcs = draw.integers(20, 95, count), draw.integers(3, 16, count)
        lactate = draw.lognormal(0.6, 0.5, count).round(1)
        ward = draw.choice(["icu", "medicine", "surgery"], count)
        odds = -2.6 + 0.045 * (age - 60) + 0.15 * lactate + 0.9 * (gcs < 9) + 0.6 * (ward == "icu")
        columns = {"age": age.astype(float), "gcs": gcs.astype(float), "lactate": lactate, "ward": ward}
        rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*map(list, columns.values()), strict=True)
        ]
        return rows, 1 / (1 + np.exp(-odds)), draw

    rows, risks, draw = draw_ward(2000, 0)
    ill = np.where(draw.random(2000) < risks, "yes", "no").tolist()
    rows = [{**row, "y": one} for row, one in zip(rows, ill, strict=True)]
    model = cc.Consultation("y", grid=["age"]).fit([cc.Records.from_rows(rows[part::3]) for part in range(3)])
    fresh, risks, _ = draw_ward(150, 1)
    said = [model.explain(row) for row in fresh]
    told = np.array([one.chances[1] for one in said])
    truth = [risk if one.prediction == "yes" else 1 - risk for one, risk in zip(said, risks, strict=True)]
    assert (
        np.mean([one.interval[0] <= t <= one.interval[1] for one, t in zip(said, truth, strict=True)]) > 0.85
    )
    assert np.mean([one.interval[1] - one.interval[0] for one in said]) < 0.4
    assert (told < 0.005).mean() < 0.08  # it was a third of them, and their risk was ten times as high


def draw_alike(count, seed, *, like=0.6):
    """Patients whose four numbers go together, and their risks: of one number much follows for the others."""
    draw = np.random.default_rng(seed)
    common = draw.normal(size=(count, 1))
    seen = like**0.5 * common + (1 - like) ** 0.5 * draw.normal(size=(count, 4))
    a, b, c, _ = columns = np.clip((3 * seen).round(), -6, 6).T
    return columns, 1 / (1 + np.exp(1.2 - 0.3 * a - 0.2 * b - 0.5 * ((a > 0) & (c > 2))))


@pytest.fixture(scope="module")
def many_alike():
    return draw_alike(200_000, 99)


@pytest.mark.parametrize("method", [cc.DecisionTree, cc.Regression, cc.RuleFit, cc.ShapeModel])
def test_an_interval_is_wider_for_what_was_not_entered(method, many_alike):
    """Of patients of whom two values of four were entered it held the mean risk of those with these values for four in
    ten: it took what was not entered to be as among all patients."""
    (everyone, everyones), held = many_alike, []
    for seed in range(3):
        columns, risks = draw_alike(2000, seed)
        draw = np.random.default_rng(100 + seed)
        rows = [dict(zip("abcd", row, strict=True)) for row in columns.T.tolist()]
        rows = [{**row, "y": int(draw.random() < risk)} for row, risk in zip(rows, risks, strict=True)]
        more = {"trees": 30} if method is cc.RuleFit else {}
        model = method("y", positive=1, release="exact", **more).fit([cc.Records.from_rows(rows)])
        for place in draw.integers(0, len(everyones), 25):
            for names in ("a", "bd", "cd"):
                entered = {name: everyone["abcd".index(name)][place] for name in names}
                alike = np.all(
                    [everyone["abcd".index(name)] == value for name, value in entered.items()], axis=0
                )
                said, truth = model.explain(entered), everyones[alike].mean()
                low, high = said.interval
                held.append(low <= (truth if said.prediction == 1 else 1 - truth) <= high)
    assert np.mean(held) > 0.8


def test_a_dictionary_without_a_range_keeps_the_public_one():
    """An age of 1160 passed without a word, since the dictionary gave its unit and no range; so did a lactate of 45
    "mmol/l", as the public range has mmol/L. What was said of such values stood below the reasons."""
    rows = [{"age": age, "weight": age, "lactate": age, "y": int(age > 50)} for age in range(20, 90)] * 3
    units = {"age": "years", "weight": "lb", "lactate": "mmol/l"}
    said = {name: {"type": "number", "unit": unit} for name, unit in units.items()}
    house = cc.House([cc.Site("n", cc.Records.from_rows(rows))], dictionary=cc.Dictionary.parse(said, "test"))
    model = cc.NaiveBayes("y").fit(house)
    answer = model.explain({"age": 1160, "weight": 900, "lactate": 45}).sentences
    assert answer[1:3] == (
        "age = 1160 is hardly plausible: 0 to 120 years. Check it.",
        "lactate = 45 is hardly plausible: 0.05 to 40 mmol/L. Check it.",
    )
    assert not any("weight = 900" in line for line in answer)  # the public range is of kilograms


def test_an_answer_says_what_its_outcome_is():
    """ "died = yes": within 30 days, or in hospital?"""
    rows = [{"age": age, "died": int(age > 50)} for age in range(20, 90)] * 3
    said = {"died": {"type": "code", "label": "death within 30 days"}}
    house = cc.House([cc.Site("n", cc.Records.from_rows(rows))], dictionary=cc.Dictionary.parse(said, "test"))
    assert "died: death within 30 days." in cc.DecisionTree("died").fit(house).explain({"age": 70}).sentences


def open_complete(count=2400):
    """Patients of whom everybody has all values, and what a private study states about them."""
    draw = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        age, ward = float(draw.integers(20, 90)), str(draw.choice(list("abc")))
        ill = draw.random() < 0.1 + 0.5 * (age > 60) + 0.2 * (ward == "c")
        sex = str(draw.choice(["f", "m"]))
        rows.append({"age": age, "ward": ward, "sex": sex, "y": "yes" if ill else "no"})
    schema = {name: SCHEMA[name] for name in rows[0]}
    sites = [cc.Site(str(p), cc.Records.from_rows(rows[p::3], schema=schema), BUDGET) for p in range(3)]
    values = {name: VALUES[name] for name in ("sex", "ward", "y")}
    return sites, {"release": "private", "positive": "yes", "bins": {"age": [40.0, 60.0]}, "values": values}


def test_a_private_tree_sends_nobody_where_noise_may_stand_for_nobody():
    """A patient without an age went with those of 65 and above, though no patient of the model lacked one: "age >= 65
    or missing", by the noise of a count."""
    sites, stated = open_complete()
    for _ in range(3):
        model = cc.DecisionTree("y", epsilon=2.0, **stated).fit(sites)
        assert "missing" not in model.text()
        assert "anything else" not in model.text()
        said = str(model.explain({"age": None, "ward": "c", "sex": "m"}))
        assert "The model asks next for age, which is missing here" in said


def test_a_consultation_counts_its_patients_once():
    """ "77% of these patients, about 2517" stood above "all patients; about 2,454 patients"."""
    sites, stated = open_complete()
    model = cc.Consultation("y", grid=["age"], epsilon=1.0, **stated).fit(sites)
    for patient in ({"age": 70.0}, {"ward": "c"}, {"age": 30.0, "sex": "m"}):
        first, *others = model.explain(patient).sentences
        (many,) = re.findall(r"of these patients, about (\d+)\)", first)
        assert any(f"; about {many} patients (" in line for line in others)


def test_a_consultation_counts_no_value_that_nobody_has():
    """ "gcs is missing: survived goes from 89% to 95% (about 1 patient)": nobody lacked it."""
    sites, stated = open_complete()
    listed = 0
    for _ in range(6):
        model = cc.Consultation("y", grid=["age"], epsilon=1.0, **stated).fit(sites)
        said = model.explain({"age": 70.0, "ward": None, "sex": "x"})
        listed += len(said.reasons)
    assert listed <= 4  # each of twelve stands out of its noise once in forty times


def test_shapes_say_so_where_nobody_lacked_a_value():
    """ "gcs is missing: odds ratio 1.00 against the mean patient" was a reason."""
    sites, _ = open_complete()
    model = cc.ShapeModel("y", "yes", release="exact").fit(sites)
    said, unknown = model.explain({"age": None, "ward": "c"}), model.explain({"ward": "c"})
    assert "Missing, which no patient of the model had, and so not counted: age." in said.sentences
    assert not any("age" in reason.attributes for reason in said.reasons)
    # As wide as for who said nothing of age; that patient has the mean risk besides, as far as age tells.
    widths = [
        np.diff(np.log(np.divide(ends, 1 - np.array(ends)))) for ends in (said.interval, unknown.interval)
    ]
    assert widths[0] == pytest.approx(widths[1], rel=0.01)


@pytest.mark.parametrize("method", [cc.RuleFit, cc.ShapeModel])
def test_noise_is_no_reason_where_nobody_lacked_a_value(method):
    """ "age is missing: odds ratio 1.06" was a reason of a private model, though its band reached from 0.1 to 10."""
    sites, stated = open_complete()
    for _ in range(3):
        said = str(method("y", epsilon=1.0, **stated).fit(sites).explain({"age": None, "ward": "c"}))
        assert "age is missing: odds ratio" not in said
        assert re.search(r"Noise hides what .*\bage\b", said)


def test_one_attribute_that_noise_hides_is_not_several():
    assert say_hidden(["gcs"], "odds ratio 0.78") == "Noise hides what gcs does: odds ratio 0.78."
    assert say_hidden(["a", "b"], "adds 2") == "Noise hides what these do: a, b. Together: adds 2."


@pytest.mark.parametrize("name", ["regression", "cox"])
def test_the_means_of_a_private_regression_judge_nobody(name):
    """ "height = 157 is far from what patients of the model had (mean 177, standard deviation 2.42)": by noise. And "No
    patient of the model had lactate = 9.8", where the noisy mean was the end of the bins."""
    model = fitted(name, "private")[0]
    said = str(model.explain({**PATIENT, "age": 1160.0}))
    assert "extrapolates" not in said
    assert "age = 1160 counts as 75, the end of its bins." in said
    assert "No patient of the model had" not in said
    ends = [75.0 if one == "age" else 0.0 for one in model.body.terms.names]
    at_end = type(model).of(msgspec.structs.replace(model.body, means=ends), model.card, model.get_params())
    assert "age = 1160;" not in str(at_end.explain({"age": 1160.0}))


@pytest.mark.parametrize("name", ["regression", "cox"])
def test_where_noise_hides_all_errors_nothing_is_a_reason(name):
    """ "blood = 0: multiplies the odds by 0.61" was a reason of a model whose table said "0.61 (no interval)"."""
    model = fitted(name, "private")[0]
    lost = [TermEstimate(one.term, one.coefficient) for one in model.body.estimates]
    body = msgspec.structs.replace(model.body, estimates=lost, covariance=[], tests=[])
    said = type(model).of(body, model.card, model.get_params()).explain(PATIENT)
    assert said.reasons == ()
    assert re.search(r"Noise hides what these do: .*ward.*\. Together: (odds|hazard) ratio", str(said))
    assert OPEN in said.sentences


@pytest.mark.parametrize("method", [cc.Regression, cc.CoxRegression])
def test_an_average_patient_of_a_private_regression_is_one(method):
    """It began at 12 % "for an average patient", where an exact one began at 8 %: its means were of patients weighed by
    how unsure their outcome is."""
    draw, rows = np.random.default_rng(8), []
    for _ in range(6000):
        age, frail = float(draw.integers(20, 90)), str(draw.choice(["a", "b", "c"], p=[0.8, 0.1, 0.1]))
        ill = draw.random() < 1 / (1 + np.exp(5 - 0.06 * (age - 50) - 2.5 * (frail == "c")))
        rows.append({"age": age, "ward": frail, "pressure": float(draw.integers(1, 30)), "y": "ny"[int(ill)]})
    schema = {name: SCHEMA[name] for name in rows[0]}
    sites = [cc.Site(str(p), cc.Records.from_rows(rows[p::3], schema=schema), BUDGET) for p in range(3)]
    stated = {"attributes": ["age", "ward"], "positive": "y"}
    private = {
        "epsilon": 15.0,
        "bins": {"age": [20.0, 90.0]},
        "values": {"ward": list("abc"), "y": ["n", "y"]},
    }
    if method is cc.CoxRegression:
        stated, private = {**stated, "time": "pressure", "at": 20}, {**private, "grid": [10.0, 20.0, 30.0]}
    plain = method("y", release="exact", **stated).fit(sites).explain({}).base
    noisy = method("y", release="private", **stated, **private).fit(sites).explain({}).base
    assert noisy == pytest.approx(plain, abs=0.012)


def test_quartiles_of_a_score_are_scores():
    """ "gcs, median [quartiles]: 15 [10.1, 15.1]": no coma score is 15.1."""
    draw = np.random.default_rng(1)
    gcs = np.where(draw.random(400) < 0.6, 15, draw.integers(3, 15, 400))
    rows = [
        {"gcs": int(one), "lactate": round(float(draw.lognormal(0.5, 0.5)), 1), "y": int(draw.integers(2))}
        for one in gcs
    ]
    model = cc.Describe("y", release="exact").fit([cc.Records.from_rows(rows)])
    for row in model.body.table.numbers:
        known = [one[row.name] for one in rows]
        assert row.quartiles[-1] == np.quantile(known, [0.25, 0.5, 0.75], method="inverted_cdf").tolist()


def test_a_private_consultation_is_not_sure_by_noise():
    """ "survived (99.9%; 95% interval 58% to 99.9%)", as blood group B moved it "from 92% to 99.3% (about 11
    patients)": noise. So it was worse than the share of all patients."""
    sites, stated = open_complete()
    fresh = [{"age": age, "ward": ward, "sex": sex} for age in (30.0, 70.0) for ward in "abc" for sex in "fm"]
    risks = np.array([0.1 + 0.5 * (one["age"] > 60) + 0.2 * (one["ward"] == "c") for one in fresh])
    losses = []
    for _ in range(4):
        model = cc.Consultation("y", grid=["age", "sex"], epsilon=1.0, **stated).fit(sites)
        told = model.predict_proba(fresh)[:, 1]
        losses.append(-np.mean(risks * np.log(told) + (1 - risks) * np.log(1 - told)))
    base = risks.mean()
    assert np.mean(losses) < -(base * np.log(base) + (1 - base) * np.log(1 - base))


def test_the_share_of_these_patients_is_counted():
    """ "99% of these 60 patients" were all of them: half a patient more was counted in."""
    rows = [{"age": age, "ward": "a", "y": int(age > 60)} for age in (30, 70) for _ in range(70)]
    model = cc.Consultation("y", grid=["age"], bins={"age": [50.0]}).fit([cc.Records.from_rows(rows)])
    assert "against 100% of these 70 patients)" in model.explain({"age": 30}).sentences[0]


def test_what_tells_most_is_to_be_measured_first():
    """A tree and a consultation said so; of naive Bayes, rules, shapes and regressions nobody knew."""
    first = "Of what was not entered ward tells most: measure it first."
    for name in ("naive-bayes", "rulefit", "shapes", "regression", "cox"):
        model = fitted(name, "exact")[0]
        assert (first in model.explain({"age": 50.0}).sentences) == (model.importances()["ward"] >= 10), name
        assert not any("Measure" in line or "measure" in line for line in model.explain(PATIENT).sentences)
    assert "tells most" not in str(fitted("tree", "exact")[0].explain({"age": 50.0}))


def test_a_curve_says_so_where_the_group_is_missing():
    rows = [{"ward": "ab"[p % 2], "days": float(1 + p % 31), "y": int(p % 3 == 0)} for p in range(90)]
    table = cc.Records.from_rows(rows, schema={"ward": "code", "days": "number", "y": "code"})
    curve = cc.SurvivalCurve("y", "days", positive=1, by="ward", release="exact").fit([table])
    said = curve.explain({"ward": None})
    assert "There is no curve for ward missing: the answer is about all patients." in said.sentences


def test_a_share_that_nobody_counted_is_not_all():
    """ "survived (93%; 95% interval 81% to 100%)" of a share that was mixed over leaves."""
    assert _say_share(0.93, None, (0.81, 1.0), False) == "93%; 95% interval 81% to above 99.9%"
    assert _say_share(1.0, 40, (0.91, 1.0), False) == "100% of 40 similar patients; 95% interval 91% to 100%"


def test_a_private_rulefit_says_that_it_counts_a_patient_for_less():
    """ "age = 93: odds ratio 1.63" stood beside a table that said 1.97 of 85 years or more."""
    model = fitted("rulefit", "private")[0]
    (said,) = _say_shortened(model.body, 0.62)
    assert "count for 62% of what the table says" in said
    assert _say_shortened(model.body, 0.97) == _say_shortened(fitted("rulefit", "exact")[0].body, 0.62) == ()
    base, other = model.explain({}), model.explain({"sex": "f"})  # of nothing, the share of all patients
    assert base.interval[1] - base.interval[0] < other.interval[1] - other.interval[0]


def test_an_adapted_answer_knows_how_few_patients_it_was_adapted_to():
    """ "76% (95% interval 73% to 78%), adapted to 400 patients", of whom 91 had the outcome: they alone leave 73% to
    81%. And the card counted "309 0, 91 1"."""
    draw = np.random.default_rng(3)
    rows = [{"age": int(age), "y": int(draw.random() < 0.1)} for age in draw.integers(20, 90, 3000)]
    house = cc.House(
        [cc.Site("n", cc.Records.from_rows(rows))],
        dictionary=cc.Dictionary.parse({"y": {"type": "code", "values": {"0": "well", "1": "ill"}}}, "test"),
    )
    own = [{"age": 20 + place % 70, "y": int(place % 4 == 0)} for place in range(400)]
    model = cc.adapt(cc.DecisionTree("y").fit(house), cc.Records.from_rows(own), site="here")
    said, (low, high) = model.explain({}), share_interval(300, 400)
    assert said.interval[1] - said.interval[0] > high - low
    assert "(300 well, 100 ill): odds multiplied by " in model.card.warnings[0]


def test_a_table_asks_for_no_measurement():
    """ "Nothing that the model asks for was entered. Measure age first.": it says the same of everybody."""
    assert "Measure" not in str(fitted("describe", "exact")[0].explain({}))
    assert " of about " in str(fitted("describe", "private")[0].explain({}))


@pytest.mark.parametrize("name", ["discovery", "experts"])
def test_an_empty_course_is_a_patient_of_whom_nothing_is_known(name):
    """It was an error, where any other method answers by what it knows of all patients."""
    model = fitted_discovery() if name == "discovery" else fitted("experts", "private")[0]
    unknown = {variable: [None, None] for variable in model.attributes_}
    assert model.explain({}).sentences == model.explain(unknown).sentences
    assert model.explain({"potassium": [4.1]}).sentences == model.explain({}).sentences


@pytest.mark.parametrize("name", ["discovery", "experts"])
def test_answers_about_courses_say_labels(name):
    """ "sepsis = 1", where the dictionary says what 1 is."""
    model = fitted_discovery() if name == "discovery" else fitted("experts", "private")[0]
    said = {model.target: {"type": "code", "values": {"0": "well", "1": "ill"}}}
    entries = cc.Dictionary.parse(said, "test").entries
    card = msgspec.structs.replace(model.card, dictionary=entries)
    model = type(model).of(model.body, card, model.get_params())
    assert re.match(rf"{model.target} = (well|ill) \(", model.explain({}).sentences[0])


def test_values_beyond_what_experts_see_are_named():
    """ "HR highest in the latest 24h = 170" stood for a rate of 300."""
    said = str(fitted("experts", "private")[0].explain({"age": [60.0, 1e6], "pressure": [120.0] * 2}))
    assert re.search(r"age = 1000000 counts as [\d.]+: experts tell nothing apart beyond\.", said)


@functools.cache
def fitted_discovery():
    draw, sites = np.random.default_rng(1), []
    for name in ("north", "south", "west"):
        septic = draw.random(200) < 0.4
        heart = 80 + 6 * septic * np.arange(6)[:, None] + draw.normal(0, 5, (6, 200))
        outcome = np.zeros((6, 200))
        outcome[5] = septic
        rows = [{"id": place, "sepsis": int(ill)} for place, ill in enumerate(septic)]
        table = cc.Records.from_rows(rows, schema={"id": "code", "sepsis": "code"})
        series = cc.Series({"HR": heart, "sepsis": outcome}, step="1h", ids=range(200))
        sites.append(cc.Site(name, cc.Patients(table=table, series=series, by="id"), BUDGET))
    stated = {"bins": {"HR": [70.0, 80.0, 90.0, 100.0]}, "prevalence": 0.2, "limits": 1, "most_rules": 10}
    return cc.RuleDiscovery("sepsis", window="3h", epsilon=10.0, **stated).fit(sites)


def test_a_course_that_no_rule_judges_has_the_share_of_all_patients():
    """It was told the risk of an average patient, "33%; 95% interval 30% to 36%", where 40% of all had the outcome."""
    model = fitted_discovery()
    assert model.body.intercept is not None
    said = model.explain({})
    risk = said.chances[1]
    assert risk == pytest.approx(model.body.base)
    assert abs(risk - 0.4) < 0.1
    assert model.predict_proba([{"HR": [None]}])[0, 1] == pytest.approx(risk)
    assert "this is the share among all patients" in str(said)
    assert "average patient" not in str(said)
