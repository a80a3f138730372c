"""The same on real tables, where they are at hand: answers count right and keep to their query and intervals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import concilium as cc
from concilium.evaluation.alarms import find_alarms
from concilium.evaluation.leave_out import measure_model
from concilium.evaluation.summary import summarise
from concilium.records.query import Query
from concilium.rulefit.reading import NO_INTERVAL
from contract.patients import method_types
from contract.test_answers import conditions_of, counted
from contract.test_answers_of_each_method import EXACT, is_timed

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
# Of each: the file, the outcome and its positive value, what to leave out, and a query.
REAL = {
    "trauma": ("bfi-trauma/trauma.csv", "mortality", 1, {"hospital"}, "age >= 18"),
    "burns": ("aplore3/burn1000.csv", "death", "Dead", {"id", "facility"}, "gender = 'Male'"),
    "icu": ("aplore3/icu.csv", "sta", "Died", {"id"}, "age >= 40 and gender = 'Female'"),
    "heart": ("uci-categorical/heart-statlog.csv", "class", "present", set(), "sex = 1"),
}
# Every method that learns from a table without times.
METHODS = [name for name in EXACT if not is_timed(name)]


def open_method(name, **stated):
    method = method_types()[name]
    more = {"trees": 20} if name == "rulefit" else {}
    return method(**{key: value for key, value in {**stated, **more}.items() if key in method.parameters()})


def read(name):
    file, target, positive, without, query = REAL[name]
    path = DATA / file
    if not path.exists():
        pytest.skip(f"{path} is not at hand")
    table = cc.Records.read(path)
    return table, target, positive, [one for one in table.names if one not in {*without, target}], query


def deal(table, parts=3):
    return {f"site {part}": table.take(np.arange(len(table)) % parts == part) for part in range(parts)}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("method", METHODS)
def test_answers_about_real_patients_are_true(name, method, tmp_path):
    table, target, positive, attributes, query = read(name)
    fixed = re.findall(r"(\w+) = ", query)  # the same for everybody, of which a regression makes no term
    attributes = [one for one in attributes if one not in fixed]
    stated = {"target": target, "positive": positive, "query": query, "attributes": attributes}
    model = open_method(method, **stated, release="exact").fit(deal(table))
    inside = Query.parse(query).mask(table)
    columns = {column: table.values(column) for column in (*attributes, *fixed, target)}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    about = [row for row, is_inside in zip(rows, inside, strict=True) if is_inside]
    step = max(len(rows) // 60, 1)
    for row, is_inside in zip(rows[::step], inside[::step], strict=True):
        entered = {column: row[column] for column in (*attributes, *fixed)}
        said = model.explain(entered)
        assert (said.prediction is None) == (not is_inside)
        assert bool(said.outside) == (not is_inside)
        if said.prediction is None:
            continue
        if said.interval is None:  # of 62 patients: too few to choose a penalty by
            assert (method, name) == ("rulefit", "icu")
            assert NO_INTERVAL in said.sentences
            continue
        assert 0 <= said.interval[0] <= said.probability <= said.interval[1] <= 1
        assert not re.search(r"\d{9}|\bnan\b|\binf%", str(said))
        assert {one for reason in said.reasons for one in reason.attributes} <= set(entered)
        if method == "tree":
            alike = counted(about, conditions_of(said))
            assert said.patients == len(alike)
            assert said.probability == pytest.approx(
                np.mean([one[target] == said.prediction for one in alike])
            )
    model.save(tmp_path / "model.json")
    assert cc.load(tmp_path / "model.json").get_params() == model.get_params()


@pytest.mark.parametrize("name", REAL)
def test_an_inverted_outcome_at_one_hospital_is_an_alarm(name):
    table, target, positive, attributes, _ = read(name)
    values = sorted({value for value in table.values(target) if value is not None}, key=str)
    parts = deal(table)
    learned = {site: part.take(np.arange(len(part)) % 2 == 0) for site, part in parts.items()}
    held = {site: part.take(np.arange(len(part)) % 2 == 1) for site, part in parts.items()}
    model = cc.DecisionTree(target, attributes=attributes).fit(learned)
    odd = held["site 0"]
    rows = [{column: odd.values(column)[place] for column in odd.names} for place in range(len(odd))]
    other = {values[0]: values[1], values[1]: values[0]}
    held["site 0"] = cc.Records.from_rows([{**row, target: other[row[target]]} for row in rows])
    summary = summarise([measure_model(model, 0.0, held, classes=values)], positive)
    metrics = {"patients": 1, "target": target, "positive": positive, **summary}
    assert any("site 0" in alarm and "inverted" in alarm for alarm in find_alarms(metrics))
