"""Sentences that were false or could not be read when answers were read aloud, each with what it was."""

from __future__ import annotations

import re

import numpy as np
import pytest

import concilium as cc
from concilium.models.explanation import OPEN, Explanation, say_hidden, say_open
from concilium.shapes.reading import list_rows
from concilium.trees.explanation import OF_AVERAGE, OF_EVERYONE
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
    assert say_open(plain).sentences == ("y = died (60%).", OPEN)
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
    """An age of 1160 passed without a word, since the dictionary gave its unit and no range."""
    rows = [{"age": age, "weight": age, "y": int(age > 50)} for age in range(20, 90)] * 3
    said = {"age": {"type": "number", "unit": "years"}, "weight": {"type": "number", "unit": "lb"}}
    house = cc.House([cc.Site("n", cc.Records.from_rows(rows))], dictionary=cc.Dictionary.parse(said, "test"))
    model = cc.NaiveBayes("y").fit(house)
    answer = str(model.explain({"age": 1160, "weight": 900}))
    assert "age = 1160 is hardly plausible: 0 to 120 years. Check it." in answer
    assert "weight = 900" not in answer  # the public range is of kilograms


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
    assert said.interval == unknown.interval


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


@pytest.mark.parametrize("method", [cc.Regression, cc.CoxRegression])
def test_the_means_of_a_private_regression_judge_nobody(method):
    """ "height = 157 is far from what patients of the model had (mean 177, standard deviation 2.42)": by noise."""
    name = "cox" if method is cc.CoxRegression else "regression"
    said = str(fitted(name, "private")[0].explain({**PATIENT, "age": 1160.0}))
    assert "extrapolates" not in said
    assert "age = 1160 counts as 75, the end of its bins." in said


def test_a_table_asks_for_no_measurement():
    """ "Nothing that the model asks for was entered. Measure age first.": it says the same of everybody."""
    assert "Measure" not in str(fitted("describe", "exact")[0].explain({}))
    assert " of about " in str(fitted("describe", "private")[0].explain({}))
