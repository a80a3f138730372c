"""CQL and PMML of a shape model, scored by evaluators that share no code with it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import concilium as cc
from concilium.models.explanation import say_risk
from shapes.shape_patients import SCHEMA, draw_patients, list_rows, open_house
from trees.evaluate_cql import evaluate
from trees.score_pmml import NS, Scorer

UNUSUAL = [
    {"age": None, "lab": None, "ward": None, "noise": None},
    {"age": 20.0, "lab": 99.0, "ward": "never seen", "noise": -99.0},
    {"age": 90.0, "lab": None, "ward": "never seen", "noise": 0.0},
]


@pytest.fixture(scope="module", params=["pairs", "rules", "monotone", "private"])
def model(request):
    columns = draw_patients(2000, 3, crossed=0.9)
    said = {"positive": "yes", "release": "exact"}
    if request.param == "monotone":
        said |= {"monotone": {"age": "rising"}}
    if request.param == "rules":
        said |= {"rules": 5, "max_pairs": 0}
    if request.param == "private":
        bins = {"age": [30.0, 50.0, 70.0], "lab": [-0.5, 0.5], "noise": [0.0]}
        said |= {"release": "private", "epsilon": 20, "bins": bins, "values": {"ward": ["a", "b"]}}
    return cc.ShapeModel("y", **said).fit(open_house(columns))


@pytest.fixture(scope="module")
def patients():
    return [*list_rows(draw_patients(150, 11)), *({**one, "y": "no"} for one in UNUSUAL)]


def score_cql(text, patient):
    """The log odds of a library: of each definition the first case that is true."""
    total, terms = None, {}
    for definition in text.strip().split("\n\n"):
        name, case = re.fullmatch(r"define (\"(?:[^\"\\\\]|\\\\.)*\"): (.*)", definition, re.DOTALL).groups()
        if name == '"log odds"':
            first, *names = case.split(" + ")
            total = float(first) + sum(terms[one] for one in names)
        elif name != '"risk"':
            cases = re.findall(r"  when (.*) then (-?[0-9.]+)", case)
            otherwise = float(re.search(r"  else (-?[0-9.]+) end", case).group(1))
            held = (float(value) for condition, value in cases if evaluate(condition, patient) is True)
            terms[name] = next(held, otherwise)
    return total


def test_other_engines_find_the_same_log_odds(model, patients):
    found = model.decide(cc.Records.from_rows(patients, schema=SCHEMA))
    scorer, cql = Scorer(model.to_pmml()), model.to_cql()
    np.testing.assert_allclose([scorer.add_up(one) for one in patients], found, atol=1e-9)
    np.testing.assert_allclose([score_cql(cql, one) for one in patients], found, atol=1e-9)


def test_what_a_hospital_adapted_is_exported(model, patients):
    columns = draw_patients(1500, 5)
    columns["y"] = np.where(np.random.default_rng(1).random(1500) < 0.7, "yes", columns["y"])
    adapted = cc.adapt(model, cc.Records.from_rows(list_rows(columns), schema=SCHEMA), site="here")
    risk = adapted.predict_proba(cc.Records.from_rows(patients, schema=SCHEMA))[:, 1]
    scorer = Scorer(adapted.to_pmml())
    found = np.array([scorer.add_up(one) for one in patients])
    assert not np.allclose(found, model.decide(cc.Records.from_rows(patients, schema=SCHEMA)), atol=0.1)
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), risk, atol=1e-9)
    np.testing.assert_allclose([score_cql(adapted.to_cql(), one) for one in patients], found, atol=1e-9)


def test_the_scorecard_has_what_the_standard_asks_for(model):
    scorer = Scorer(model.to_pmml())
    assert scorer.model.tag == NS + "Scorecard"
    assert [one.tag.removeprefix(NS) for one in scorer.model] == ["MiningSchema", "Output", "Characteristics"]
    assert {one.get("name") for one in scorer.model.iter(NS + "MiningField")} == set(scorer.types)
    assert len(list(scorer.model.iter(NS + "Characteristic"))) == len(model.body.terms)


def test_one_page_holds_every_line_and_every_curve_and_loads_nothing(model):
    class Page(HTMLParser):
        def __init__(self):
            super().__init__()
            self.text, self.tags = [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            assert not {"src", "href", "onload"} & {name for name, _ in attrs}

        def handle_data(self, data):
            self.text.append(data)

    page = Page()
    page.feed(model.to_html())
    sheet = model.score_sheet()
    assert {row.condition for row in sheet.rows} <= set(page.text)
    assert page.tags.count("svg") == len(model.body.terms) == page.tags.count("figure")
    assert sheet.say_loss() in " ".join(page.text)
    # Each sum of points on the page has its risk.
    assert all(say_risk(sheet.risk(points)) == said for points, said in sheet.list_risks())
    assert f"{sheet.list_risks()[-1][1]}" in page.text
