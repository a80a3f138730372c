"""What every model says of a patient must be true: of whom it speaks, how many it counted, how sure it is."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

import concilium as cc
from concilium.errors import ModelError
from concilium.evaluation.alarms import compare_hospitals
from concilium.models.explanation import say_risk, say_risk_interval
from concilium.models.intervals import share_interval
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.records.columns import label
from concilium.trees.body import TreeBody, TreeBranch, TreeNode
from concilium.trees.naive_bayes import NaiveBayesBody
from concilium.trees.private_growing import estimate
from contract.patients import (
    BINS,
    BUDGET,
    EVERYONE,
    SCHEMA,
    cases,
    make,
    make_rows,
    method_types,
    open_sites,
)
from contract.test_contract import fitted

PATIENT = {"age": 71.5, "pressure": 130.0, "sex": "f", "ward": "c"}
TABLES = [(name, release) for name, release in cases() if not method_types()[name].reads_courses]
every_case = pytest.mark.parametrize(("name", "release"), cases())
every_table = pytest.mark.parametrize(("name", "release"), TABLES)
DRAWS = 500
LEAST_COVERED = 460
"""Of 500 intervals that cover with 95 %, fewer than this do so once in 500 times (binomial)."""


@every_case
def test_no_prediction_outside_of_the_query(name, release):
    model = fitted(name, release)[0].stating(query="age >= 60 and sex = 'm'")
    outside = model.explain(PATIENT)
    assert (outside.prediction, outside.probability, outside.interval, outside.reasons) == (
        None,
        None,
        None,
        (),
    )
    assert outside.outside == ("sex = 'm' fails: sex is f",)
    assert str(outside).startswith(
        "No prediction of y: the model is about patients with age >= 60 and sex = 'm'."
    )
    unknown = model.explain({name: value for name, value in PATIENT.items() if name != "age"})
    assert unknown.outside == (
        "age >= 60 cannot be judged: age was not entered",
        "sex = 'm' fails: sex is f",
    )
    assert model.explain({**PATIENT, "age": None, "sex": "m"}).outside == (
        "age >= 60 cannot be judged: age is missing",
    )
    if name == "discovery":  # of given rules, without an outcome: there is nothing to predict
        with pytest.raises(ModelError, match="this model predicts nothing"):
            model.explain(PATIENT, anyway=True)
        return
    anyway = model.explain(PATIENT, anyway=True)
    assert anyway.prediction == fitted(name, release)[0].explain(PATIENT).prediction
    assert anyway.outside == outside.outside
    assert anyway.sentences[0].startswith("The model is not about this patient")
    inside = model.explain({**PATIENT, "sex": "m"})
    assert inside.outside == ()
    assert inside.prediction is not None


@every_case
def test_parameters_survive_saving(name, release, tmp_path):
    model, *_ = fitted(name, release)
    model.save(tmp_path / "model.json")
    assert cc.load(tmp_path / "model.json").get_params() == model.get_params()


@every_table
def test_an_answer_holds_its_interval_and_speaks_of_what_was_entered(name, release):
    model, *_ = fitted(name, release)
    for patient in (PATIENT, {"age": 50.0}, {"ward": "b", "sex": "m"}, {"age": None, "ward": "c"}, {}):
        said = model.explain(patient)
        assert {entered for reason in said.reasons for entered in reason.attributes} <= set(patient)
        assert said.interval is not None, said
        low, high = said.interval
        assert 0 <= low <= said.probability <= high <= 1
        assert "95% interval" in str(said)
        if model.way_out.bounded:
            assert "noise" in str(said)
    lacking = model.explain({})
    assert lacking.reasons == ()
    assert pytest.approx(lacking.probability) in (lacking.base, 1 - lacking.base)


def counted(rows, conditions):
    """The rows that fulfil conditions such as ("age", "age < 60 or missing") and ("ward", "ward in {a, b}"), by brute
    force."""
    return [row for row in rows if all(_fulfils(row.get(name), name, said) for name, said in conditions)]


def _fulfils(value, name, condition):
    return any(_holds(value, part.replace(name, "x", 1)) for part in condition.split(" or "))


def _holds(value, said):
    """Whether a value is as `x < 60`, `40 <= x < 60`, `x = a`, `x in {a, b}`, `x is missing` or `missing` says."""
    if said.endswith("missing") or value is None:
        return said.endswith("missing") and value is None
    if found := re.fullmatch(r"(?:(\S+) <= )?x (<|>=) (\S+)", said):
        low, sign, edge = found.groups()
        above = low is None or value >= float(low)
        return above and (value < float(edge) if sign == "<" else value >= float(edge))
    if found := re.fullmatch(r"x (?:= (.*)|in \{(.*)\})", said):
        return label(value) in (found[1] or found[2]).split(", ")
    if said.startswith("x is not "):
        return label(value) != said.removeprefix("x is not ")
    return said == "x is known"


def conditions_of(explanation):
    return [(reason.attributes[0], reason.condition) for reason in explanation.reasons]


@pytest.mark.parametrize("case", [("tree", "exact"), ("tree", "masked"), ("voting-trees", "exact")])
def test_printed_counts_are_those_of_the_patients(case):
    model, *_ = fitted(*case)
    said = 0
    for patient in (*EVERYONE[:40], {"age": 50.0}, {"ward": "c"}, {"sex": "f", "pressure": 90.0}, {}):
        entered = {name: value for name, value in patient.items() if name != "y"}
        explanation = model.explain(entered)
        if explanation.patients is None:
            assert "similar patient" not in str(explanation)
            continue
        conditions = conditions_of(explanation)
        if explanation.reasons and explanation.reasons[-1].patients is None:  # of values, not of branches
            continue
        alike = counted(EVERYONE, conditions)
        assert explanation.patients == len(alike), (entered, conditions)
        share = np.mean([row["y"] == explanation.prediction for row in alike])
        assert explanation.probability == pytest.approx(share)
        said += 1
    assert said > 30


def test_a_patient_whose_leaves_are_asked_elsewhere_gets_no_count():
    """Where a value is asked in some branches only, leaves that may be reached hold others too."""
    rows = [
        {"a": a, "b": b, "y": "yes" if (i % 8 == 0 if a == "0" else b == "1" or i % 2) else "no"}
        for i in range(40)
        for a in "01"
        for b in "01"
    ]
    tree = cc.DecisionTree("y", growth="id3").fit([cc.Records.from_rows(rows)])
    partly = tree.explain({"b": "1"})
    assert partly.patients is None
    assert "similar" not in str(partly)
    known = tree.explain({"a": "1"})
    assert known.patients == 80
    assert "Measure b first." in str(known)
    nothing = tree.explain({"c": 1})
    assert (nothing.patients, nothing.probability) == (160, pytest.approx(nothing.base))
    assert "Measure a first." in str(nothing)


def test_noisy_counts_are_within_their_stated_noise():
    model, *_ = fitted("tree", "private")
    for node, conditions in _leaves(model.body):
        true = [sum(row["y"] == c for row in counted(EVERYONE, conditions)) for c in model.classes_]
        off = np.abs(np.array(node.measured) - true)
        assert np.all(off <= 5 * node.variance**0.5), (conditions, node, true)
    assert model.body.nodes[0].variance > 0


def _leaves(body):
    waiting = [(0, [])]
    while waiting:
        index, conditions = waiting.pop()
        node = body.nodes[index]
        ways = node.ways(body)
        if not ways and not any("anything else" in said for _, said in conditions):
            yield node, conditions
        waiting += [(child, [*conditions, (node.attribute, reached)]) for child, reached in ways]


# Patients of known truth: attributes are independent given the class, so that trees and naive Bayes can both be right.
PREVALENCE = 0.3
GIVEN = {  # of the class: no, yes
    "age": ([25.0, 50.0, 70.0], [0.4, 0.4, 0.2], [0.1, 0.3, 0.6]),
    "ward": (["a", "b", "c"], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    "sex": (["f", "m"], [0.5, 0.5], [0.5, 0.5]),
}


def draw_patients(count, seed):
    draw = np.random.default_rng(seed)
    sick = draw.random(count) < PREVALENCE
    columns = {
        name: np.where(sick, draw.choice(values, count, p=yes), draw.choice(values, count, p=no)).tolist()
        for name, (values, no, yes) in GIVEN.items()
    }
    columns["pressure"] = draw.normal(120, 15, count).round().tolist()
    columns["y"] = np.where(sick, "yes", "no").tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def slope_of(risks, outcomes):
    odds = np.log(np.clip(risks, 1e-3, 1 - 1e-3) / (1 - np.clip(risks, 1e-3, 1 - 1e-3)))
    at = np.column_stack([np.ones_like(odds), odds])
    found = np.array([0.0, 1.0])
    for _ in range(30):
        likely = 1 / (1 + np.exp(-at @ found))
        found = found + np.linalg.solve(
            at.T @ (at * (likely * (1 - likely))[:, None]), at.T @ (outcomes - likely)
        )
    return found[1]


@pytest.fixture(scope="module")
def fresh():
    rows = draw_patients(20_000, 99)
    return cc.Records.from_rows(rows, schema=SCHEMA), np.array(
        [row["y"] == "yes" for row in rows], dtype=float
    )


@every_table
def test_risks_come_true_on_fresh_patients(name, release, fresh, monkeypatch):
    if fitted(name, release)[0].followed is not None:
        return  # risks by a time, of another outcome
    # The noise of a regression is that of eight terms; a private RuleFit is cautious where it has few patients.
    count = 3000 if (name, release) in (("regression", "private"), ("rulefit", "private")) else 500
    rows = {site: draw_patients(count, seed) for seed, site in enumerate(("n", "s", "e", "w"))}
    bins = {**BINS, "age": [40.0, 60.0]}
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    with zero_noise() if (name, release) == ("rulefit", "private") else nullcontext():
        model = make(method_types()[name], release, bins=bins).fit(cc.House(open_sites(rows)))
    patients, outcomes = fresh
    risks = model.predict_proba(patients)[:, 1]
    if np.ptp(risks) < 1e-9:  # a description knows nothing but the share of all, which has no slope
        assert risks[0] == pytest.approx(outcomes.mean(), abs=0.03)
        return
    assert 0.8 <= slope_of(risks, outcomes) <= 1.25


def test_leaves_of_a_tree_cover_at_their_level():
    """A leaf of 60 patients with a risk of 20 %, counted exactly and with noise of variance 16."""
    draw = np.random.default_rng(11)
    for variance in (0.0, 16.0):
        covered = 0
        for _ in range(DRAWS):
            positive = draw.binomial(60, 0.2)
            true = np.array([60 - positive, positive])
            measured = np.rint(true + variance**0.5 * draw.normal(size=2)).astype(int).tolist()
            node = TreeNode(np.maximum(measured, 0).tolist(), measured=measured, variance=variance)
            low, high = node.find_interval(1)
            covered += low <= 0.2 <= high
        assert covered >= LEAST_COVERED


@pytest.mark.parametrize("variance", [0.0, 25.0])
def test_naive_bayes_covers_at_its_level(variance):
    """Where attributes are independent within a class, whether counted exactly or with noise."""
    draw = np.random.default_rng(12)
    patient = {"age": 2, "ward": 2, "sex": 1}
    odds = PREVALENCE / (1 - PREVALENCE)
    for name, place in patient.items():
        odds *= GIVEN[name][2][place] / GIVEN[name][1][place]
    truth = odds / (1 + odds)
    covered = 0
    for _ in range(DRAWS):
        classes = draw.multinomial(600, [1 - PREVALENCE, PREVALENCE])
        tables = [
            np.stack([draw.multinomial(classes[c], GIVEN[name][1 + c]) for c in (0, 1)], axis=1)
            for name in patient
        ]
        noisy = np.vstack([classes[None, :], *tables])
        noisy = np.rint(noisy + variance**0.5 * draw.normal(size=noisy.shape)).astype(np.int64)
        low, high = make_bayes(noisy, variance).find_interval([1 + place for place in patient.values()], 1)
        covered += low <= truth <= high
    assert covered >= LEAST_COVERED


def test_naive_bayes_covers_where_attributes_repeat_each_other():
    """Eight measurements of one thing: taken as independent they say 99 % for most patients, and are often wrong."""
    shared, shift, names = 0.8, 1.2, [f"x{place}" for place in range(8)]
    covariance = shared * np.ones((8, 8)) + (1 - shared) * np.eye(8)
    moved = np.linalg.solve(covariance, np.full(8, shared**0.5 * shift))

    def draw_alike(count, seed):
        draw = np.random.default_rng(seed)
        sick = draw.random(count) < PREVALENCE
        common = draw.normal(size=count) + shift * sick
        seen = shared**0.5 * common[:, None] + (1 - shared) ** 0.5 * draw.normal(size=(count, 8))
        odds = seen @ moved - 0.5 * shared**0.5 * shift * moved.sum() + np.log(PREVALENCE / (1 - PREVALENCE))
        rows = [dict(zip(names, row, strict=True)) for row in seen.tolist()]
        return rows, np.where(sick, "yes", "no").tolist(), 1 / (1 + np.exp(-odds))

    rows, outcomes, _ = draw_alike(900, 1)
    records = cc.Records.from_rows([{**row, "y": one} for row, one in zip(rows, outcomes, strict=True)])
    model = cc.NaiveBayes("y", bins={name: [-1.0, 0.0, 0.5, 1.0, 2.0] for name in names}).fit({"n": records})
    fresh, _, truth = draw_alike(300, 2)
    said = [model.explain(row) for row in fresh]
    risks = [
        risk if one.prediction == "yes" else 1 - risk for one, risk in zip(said, truth.tolist(), strict=True)
    ]
    assert np.mean([one.probability > 0.99 for one in said]) > 0.5
    covered = [one.interval[0] <= risk <= one.interval[1] for one, risk in zip(said, risks, strict=True)]
    assert np.mean(covered) > 0.95


def make_bayes(noisy, variance):
    """The model of class counts and tables, as it is made of answers."""
    sizes = [len(values) for values, *_ in GIVEN.values()]
    stated, root = noisy, 0.0
    if variance:
        found = estimate(noisy, sizes, variance)
        stated, root = np.rint(found.tables).astype(int), found.variance
        noisy = np.vstack([np.rint(found.counts).astype(int), noisy[1:]])
    counts, start, attributes = stated[0].tolist(), 1, []
    for name, size in zip(GIVEN, sizes, strict=True):
        cells = range(start, start + size)
        branches = [TreeBranch(place, 1 + place) for place in range(size)]
        measured = noisy.tolist() if variance else [[]] * len(noisy)
        attributes.append(
            [
                TreeNode(counts, name, branches, None, measured[0], root),
                *(TreeNode(stated[c].tolist(), measured=measured[c], variance=variance) for c in cells),
            ]
        )
        start += size
    return NaiveBayesBody(
        target="y", classes=["no", "yes"], query="", bins={}, counts=counts, attributes=attributes
    )


def test_rulefit_covers_the_true_risk_of_patients():
    """Terms are selected by the same patients: an interval that takes them as given covers little more than half."""
    covered = []
    for seed in range(5):
        draw = np.random.default_rng(seed)
        rows, truth = draw_known_risks(draw, 4 * 250)
        sites = {site: cc.Records.from_rows(rows[place::4]) for place, site in enumerate("nsew")}
        model = cc.RuleFit("y", positive="yes", trees=60, release="exact").fit(sites)
        assert model.list_terms()
        rows, truth = draw_known_risks(draw, 60)
        for row, risk in zip(rows, truth.tolist(), strict=True):
            said = model.explain({name: value for name, value in row.items() if name != "y"})
            low, high = (
                said.interval if said.prediction == "yes" else [1 - end for end in said.interval[::-1]]
            )
            covered.append(low <= risk <= high)
    assert np.mean(covered) >= 0.9


def draw_known_risks(draw, count):
    """Patients whose risk rises smoothly, which rules can only come near to."""
    age, lactate = draw.integers(20, 95, count).astype(float), draw.lognormal(0.6, 0.5, count).round(1)
    ward = draw.choice(["icu", "medicine"], count)
    risk = 1 / (1 + np.exp(1.2 - 0.04 * (age - 60) - 0.35 * (lactate - 2) - 0.6 * (ward == "icu")))
    outcome = np.where(draw.random(count) < risk, "yes", "no")
    columns = zip(age.tolist(), lactate.tolist(), ward.tolist(), outcome.tolist(), strict=True)
    return [dict(zip(("age", "lactate", "ward", "y"), row, strict=True)) for row in columns], risk


def test_a_risk_that_nobody_counted_is_never_certain():
    assert [say_risk(risk) for risk in (0.0, 1e-9, 0.004, 0.0099, 0.37, 0.994, 1.0)] == [
        "below 0.1%",
        "below 0.1%",
        "0.4%",
        "1%",
        "37%",
        "99.4%",
        "above 99.9%",
    ]
    assert say_risk_interval((0.97, 1.0)) == "95% interval 97% to above 99.9%"
    assert say_risk_interval((0.9999, 1.0)) == "95% interval above 99.9%"


def test_many_attributes_that_agree_are_not_certainty():
    rows = [
        {
            **{f"sign{place}": "seen" if sick else "not seen" for place in range(12)},
            "y": "yes" if sick else "no",
        }
        for sick in (True, False) * 60
    ]
    model = cc.NaiveBayes("y").fit(cc.House([cc.Site("n", cc.Records.from_rows(rows))]))
    said = str(model.explain({f"sign{place}": "seen" for place in range(12)}))
    assert "100%" not in said
    assert "y = yes (above 99.9%; 95% interval" in said
    assert "each of which says less: yes stays above 99.9%." in said
    lacking = str(model.explain({"sign0": "seen", "sign1": None}))
    assert "Missing, which no patient of the model had, and so not counted: sign1." in lacking


@pytest.mark.parametrize("name", ["regression", "cox", "survival-curve"])
def test_the_printed_interval_is_that_of_the_printed_risk(name):
    model = fitted(name, "exact")[0]
    said = model.explain(PATIENT)
    low, high = said.interval
    risk, printed = said.probability, (low, high)
    if label(said.prediction) == label(model.classes_[0]):
        risk, printed = 1 - risk, (1 - high, 1 - low)
    assert f"{say_risk(risk)}; {say_risk_interval(printed)}" in said.sentences[0]


def test_a_value_that_no_patient_had_is_named():
    said = str(fitted("regression", "exact")[0].explain({**PATIENT, "ward": "nowhere"}))
    assert "No patient of the model had ward = nowhere; the mean of all patients stands for it." in said


def test_a_regression_of_complete_cases_says_how_many_they_are():
    """Those who lack a value may have another risk, of which the regression knows nothing."""
    rows = [{**row, "pressure": None if place % 2 else row["pressure"]} for place, row in enumerate(EVERYONE)]
    complete = sum(None not in row.values() for row in rows)
    model = cc.Regression("y", positive="yes", release="exact").fit(
        [cc.Records.from_rows(rows, schema=SCHEMA)]
    )
    said = f"Learned from {complete} of {len(rows)} patients: the others lack a value, and may differ."
    assert said in str(model.explain(PATIENT))
    rows = [row for row in EVERYONE if None not in row.values()]
    model = cc.Regression("y", positive="yes", release="exact").fit(
        [cc.Records.from_rows(rows, schema=SCHEMA)]
    )
    assert "Learned from" not in str(model.explain(PATIENT))


def test_a_survival_curve_says_whose_it_is():
    assert (
        fitted("survival-curve", "exact")[0]
        .explain(PATIENT)
        .sentences[0]
        .endswith(f"; all {len(EVERYONE)} patients).")
    )


def test_a_regression_says_how_many_reasons_it_does_not_list():
    draw = np.random.default_rng(3)
    seen = draw.normal(size=(300, 12))
    ill = draw.random(300) < 1 / (1 + np.exp(-seen.sum(axis=1)))
    names = [f"x{place}" for place in range(12)]
    rows = [
        {**dict(zip(names, row, strict=True)), "y": int(one)}
        for row, one in zip(seen.tolist(), ill, strict=True)
    ]
    said = cc.Regression("y", positive=1, release="exact").fit([cc.Records.from_rows(rows)]).explain(rows[0])
    assert len(said.reasons) == 12
    assert "10. x" in str(said)
    assert "2 more, each of which says less." in str(said)


def test_the_interval_of_counts_is_wilsons():
    for positive, patients in ((0, 10), (3, 10), (10, 10), (37, 500)):
        z, share = 1.959964, positive / patients
        middle = (share + z**2 / (2 * patients)) / (1 + z**2 / patients)
        reach = z * (share * (1 - share) / patients + z**2 / (4 * patients**2)) ** 0.5 / (1 + z**2 / patients)
        assert share_interval(positive, patients) == pytest.approx(
            (max(middle - reach, 0), min(middle + reach, 1))
        )
    assert share_interval(3, 2, noise=100.0) == (0.0, 1.0)  # noise says nothing of so few


def test_values_are_said_by_their_labels():
    dictionary = cc.Dictionary.parse(
        {
            "sex": {"type": "code", "values": {"0": "female", "1": "male"}},
            "y": {"type": "code", "values": {"0": "survived", "1": "died"}},
        },
        "test",
    )
    rows = [{"sex": i % 2, "ward": "ab"[i % 3 == 0], "y": int(i % 2 and i % 5 > 0)} for i in range(200)]
    schema = {"sex": "code", "ward": "code", "y": "code"}
    sites = [cc.Site("s", cc.Records.from_rows(rows, schema=schema))]
    for method in (cc.DecisionTree("y"), cc.NaiveBayes("y"), cc.RuleFit("y", 1, trees=20, release="exact")):
        model = method.set_params(query="sex in {0, 1}").fit(cc.House(sites, dictionary=dictionary))
        said = str(model.explain({"sex": "male", "ward": "a"}))
        assert said.startswith("y = died")
        assert re.search("sex (=|is not) (fe)?male", model.text())
        assert not re.search(r"sex (=|is|is not) [01]|y = 1", said + model.text())
        assert "1 is male" in str(model.explain({"sex": None, "ward": "a"}))


def test_a_consult_names_the_hospitals_that_are_missing():
    rows = make_rows(60, 3)
    sites = [cc.Site(name, cc.Records.from_rows(rows, schema=SCHEMA), policy=BUDGET) for name in ("a", "b")]
    refuses = cc.Policy(budget=cc.Budget("20"), minimum_patients=1000)
    sites.append(cc.Site("c", cc.Records.from_rows(rows, schema=SCHEMA), policy=refuses))
    model = make(method_types()["tree"], "exact").fit(cc.House(sites, on_loss="continue"))
    said = model.explain(PATIENT)
    assert "Hospitals that are not in the model: c (refused" in str(said)
    assert "c (refused" in said.notes[-1]


def test_rules_cut_whole_numbers_at_whole_numbers():
    draw = np.random.default_rng(5)
    score = draw.integers(3, 16, 900)
    outcome = draw.random(900) < 1 / (1 + np.exp(score - 8))
    rows = [
        {"gcs": int(one), "age": int(age), "died": "yes" if dies else "no"}
        for one, age, dies in zip(score, draw.integers(30, 90, 900), outcome, strict=True)
    ]
    sites = [
        cc.Site(name, cc.Records.from_rows(rows[place::3], schema={"gcs": "number", "age": "number"}))
        for place, name in enumerate(("n", "s", "w"))
    ]
    model = cc.RuleFit("died", positive="yes", trees=40, release="exact").fit(cc.House(sites))
    for place in range(3, 16):
        said = model.explain({"gcs": place, "age": 50})
        assert bool(said.reasons) != ("No rule of the model holds for this patient" in str(said))
    edges = {edge for attribute in model.body.terms.attributes for edge in attribute.edges}
    assert edges
    assert all(edge.is_integer() for edge in edges), edges


def test_whole_numbers_are_cut_at_whole_numbers():
    draw = np.random.default_rng(5)
    rows = [{"gcs": int(g), "y": int(g < 8)} for g in draw.integers(3, 16, 300)]
    model = cc.DecisionTree("y").fit([cc.Records.from_rows(rows)])
    assert "gcs < 8" in model.text()


def test_hospitals_that_differ_as_mistakes_do_are_named():
    draw = np.random.default_rng(8)

    def hospital(prevalence=0.3, missing=0.02, men=0.7):
        return [
            {
                "age": None if draw.random() < missing else int(draw.integers(20, 90)),
                "weight": float(draw.normal(70, 12)),
                "sex": "m" if draw.random() < men else "f",
                "y": "yes" if draw.random() < prevalence else "no",
            }
            for _ in range(150)
        ]

    rows = {"a": hospital(), "b": hospital(), "c": hospital()}
    names = ["age", "weight", "sex", "y"]

    def find(**changed):
        tables = {name: cc.Records.from_rows(listed) for name, listed in {**rows, **changed}.items()}
        return list(compare_hospitals(tables, names, ["age", "weight"]))

    assert find() == []
    (swapped,) = find(c=hospital(men=0.3))
    assert "c: sex: f for" in swapped
    assert "are f and m exchanged there?" in swapped
    (inverted,) = find(c=hospital(prevalence=0.7))
    assert "are no and yes exchanged there?" in inverted
    (absent,) = find(c=hospital(missing=0.97))
    assert "c: age is missing for 9" in absent
    assert find(c=[*rows["a"][:60], *rows["c"][60:]]) == [
        "a and c: 60 patients are the same in all columns: do they stand in both tables?"
    ]
    (unit,) = find(c=[{**row, "weight": row["weight"] * 1000} for row in rows["c"]])
    assert "is it another unit there?" in unit


@pytest.mark.parametrize("method", [cc.DecisionTree, cc.VotingTrees])
def test_the_interval_of_a_leaf_knows_that_its_patients_chose_the_questions(method):
    """Over leaves of eight trees, the mean true risk of new patients there; Wilson's own interval holds it for 80 %."""

    def draw_patients(count, seed):
        draw = np.random.default_rng(seed)
        frame = pd.DataFrame({f"x{place}": draw.normal(size=count).round(2) for place in range(4)})
        return frame, 1 / (1 + np.exp(1.2 - frame.x0 - 0.5 * frame.x1))

    fresh, risks = draw_patients(10_000, 99)
    held = patients = 0
    for seed in range(8):
        frame, risk = draw_patients(1500, seed)
        frame["ill"] = (np.random.default_rng(100 + seed).random(len(frame)) < risk).astype(int)
        model = method("ill", positive=1).fit([frame[place::3] for place in range(3)])
        predicted = model.predict_proba(fresh)[:, 1]
        for value in np.unique(predicted):
            there = np.flatnonzero(predicted == value)
            said = model.explain(fresh.iloc[there[0]].to_dict())
            truth = risks.iloc[there].mean()
            low, high = said.interval
            held += len(there) * (low <= (truth if said.prediction == 1 else 1 - truth) <= high)
            patients += len(there)
    assert held > 0.9 * patients


def test_a_tree_without_questions_is_the_base_rate():
    body = TreeBody(target="y", classes=["no", "yes"], query="", bins={}, nodes=[TreeNode([30, 10])])
    assert body.nodes[0].find_interval(1) == share_interval(10, 40)
