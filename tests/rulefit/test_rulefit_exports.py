"""CQL and PMML of a rule model, scored by evaluators that share no code with it."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.errors import ModelError
from concilium.protocol.attributes import Attribute
from concilium.rulefit.body import TakenTerm
from concilium.rulefit.terms import Line, RuleTerms, Steps, write_rule
from shapes.shape_patients import SCHEMA, draw_patients, list_rows, open_house
from trees.evaluate_cql import evaluate
from trees.score_pmml import NS, Scorer

UNUSUAL = [
    {"age": None, "lab": None, "ward": None, "noise": None},
    {"age": -500.0, "lab": 99.0, "ward": "never seen", "noise": -99.0},
    {"age": 900.0, "lab": None, "ward": "never seen", "noise": 0.0},
]
LINE = re.compile(r'(-?[0-9.]+) \* \("(\w+)" - (-?[0-9.]+)\)')


@pytest.fixture(scope="module")
def patients():
    return [*list_rows(draw_patients(150, 11)), *({**one, "y": "no"} for one in UNUSUAL)]


@pytest.fixture(scope="module")
def model():
    return cc.RuleFit("y", positive="yes", release="exact", trees=60).fit(
        open_house(draw_patients(1500, 3, crossed=0.9))
    )


def read(patients):
    return cc.Records.from_rows(patients, schema=SCHEMA)


def score_cql(text, patient):
    """The sum of a library: of each definition the first case that is true."""
    total, terms = None, {}
    for definition in text.strip().split("\n\n"):
        name, case = re.fullmatch(r"define (\"(?:[^\"\\]|\\.)*\"): (.*)", definition, re.DOTALL).groups()
        if case.startswith("case"):
            cases = re.findall(r"  when (.*) then (-?[0-9.]+)", case)
            otherwise = re.search(r"  else (.*) end", case).group(1)
            held = (float(value) for condition, value in cases if evaluate(condition, patient) is True)
            found = next(held, None)
            if found is None and (line := LINE.fullmatch(otherwise)):
                found = float(line[1]) * (patient[line[2]] - float(line[3]))
            terms[name] = float(otherwise) if found is None else found
        elif total is None:
            first, *names = case.split(" + ")
            total = float(first) + sum(terms[one] for one in names)
    return total


def check(model, patients, found):
    scorer, cql = Scorer(model.to_pmml()), model.to_cql()
    np.testing.assert_allclose([scorer.add_up(one) for one in patients], found, atol=1e-8)
    np.testing.assert_allclose([score_cql(cql, one) for one in patients], found, atol=1e-8)


def test_other_engines_find_the_same_log_odds(model, patients):
    assert len(model.body.taken) > 5
    check(model, patients, model.decide(read(patients)))


def test_the_scorecard_has_what_the_standard_asks_for(model):
    scorer = Scorer(model.to_pmml())
    assert scorer.model.tag == NS + "Scorecard"
    assert [one.tag.removeprefix(NS) for one in scorer.model] == ["MiningSchema", "Output", "Characteristics"]
    assert {one.get("name") for one in scorer.model.iter(NS + "MiningField")} == set(scorer.types)
    assert set(scorer.types) == set(model.attributes_)
    assert len(list(scorer.model.iter(NS + "Characteristic"))) == len(model.body.taken)


@pytest.mark.parametrize("seed", range(12))
def test_any_rules_lines_and_steps_are_scored_alike(model, patients, seed):
    """Terms as no fit makes them: any codes of any attribute, missing and never seen ones among them."""
    dice = np.random.default_rng(seed)
    attributes = (
        Attribute("age", (30.0, 50.5, 70.0)),
        Attribute("lab", (-0.5, 0.25)),
        Attribute("ward", values=("a", "b", "c'\"&<"), other=True),
    )
    sizes = [one.size for one in attributes]
    rules = set()
    while len(rules) < 12:
        about = dice.choice(3, size=dice.integers(1, 4), replace=False)
        codes = {
            int(index): {int(c) for c in np.flatnonzero(dice.random(sizes[index]) < 0.5)} for index in about
        }
        if all(codes.values()) and (rule := write_rule(codes, sizes)):
            rules.add(rule)
    terms = RuleTerms(
        attributes,
        tuple(sorted(rules)),
        (Line(0, 20.0, 85.5, 50.25, 0.125), Line(1, -1.5, 1.5, 0.0, 0.7)),
        tuple(Steps(index, tuple(dice.normal(size=size).tolist())) for index, size in enumerate(sizes)),
    )
    body = msgspec.structs.replace(
        model.body,
        terms=terms,
        coefficients=dice.normal(size=len(terms)).tolist(),
        taken=[TakenTerm(column, None, None, None, 1.0) for column in range(len(terms))],
        covariance=None,
        validation=None,
        always_known=[],
    )
    made = cc.RuleFit.of(body, model.card)
    check(made, patients, made.decide(read(patients)))


def test_a_number_is_told_in_its_own_unit(patients):
    columns = draw_patients(900, 5)
    model = cc.RuleFit("lab", release="exact", trees=30, bins={"lab": [-3.0, 3.0]}).fit(open_house(columns))
    check(model, patients, model.predict(read(patients)))
    assert 'name="risk"' not in model.to_pmml()


def test_what_a_hospital_adapted_is_exported(model, patients):
    columns = draw_patients(1500, 5)
    columns["y"] = np.where(np.random.default_rng(1).random(1500) < 0.7, "yes", columns["y"])
    adapted = cc.adapt(model, read(list_rows(columns)), site="here")
    risk = adapted.predict_proba(read(patients))[:, 1]
    check(adapted, patients, np.log(risk / (1 - risk)))


def test_a_private_model_says_why_it_cannot():
    bins = {"age": [30.0, 50.0, 70.0]}
    private = cc.RuleFit(
        "y", positive="yes", release="private", epsilon=8, bins=bins, attributes=["age"]
    ).fit(open_house(draw_patients(900, 3)))
    for export in (private.to_pmml, private.to_cql):
        with pytest.raises(ModelError, match="is no sum of terms"):
            export()
