"""Rule sets: read once, canonical, each client's own, joined with the rest of a population."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import FormulaError, RecordsError
from concilium.records.patients import Patients
from concilium.temporal.learning import RuleLearner
from concilium.temporal.rule_sets import RuleSets, _RuleTexts
from concilium.temporal.search_space import SearchSpace
from temporal_formulas import formulas, windows

parse = cc.stl.parse
SLOW = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
RULES = [
    ["G[0,6](Temp > 38 and HR >= 90)", "F[0,2] HR < 60", "not F[0,6](HR < 90 or Temp <= 38)"],
    [],
    ["F[0,2] HR < 60"],
]


def test_rules_are_canonical_and_each_once():
    rule_sets = RuleSets(RULES)
    assert len(rule_sets) == 3
    assert list(rule_sets.ids) == [1, 2, 3]
    assert rule_sets.counts.tolist() == [2, 0, 1]
    assert list(map(str, rule_sets[0])) == ["G[0,6](HR >= 90 and Temp > 38)", "F[0,2] HR < 60"]
    assert rule_sets[1] == ()
    assert rule_sets[-1] == (parse("F[0,2] HR < 60"),)
    assert len(rule_sets.rules) == 2
    assert RuleSets([[parse(rule) for rule in client] for client in RULES]).digest == rule_sets.digest
    with pytest.raises(IndexError):
        rule_sets[3]


def test_taking_clients_takes_their_rules_and_no_others():
    rule_sets = RuleSets(RULES, ids=["a", "b", "c"])
    part = rule_sets.take(np.array([2, 1]))
    assert part.ids == ["c", "b"]
    assert part[0] == rule_sets[2]
    assert part[1] == ()
    assert part.rules == (parse("F[0,2] HR < 60"),)
    assert part.digest == RuleSets([RULES[2], []], ids=["c", "b"]).digest
    assert len(rule_sets.take(np.array([False, False, False]))) == 0


@SLOW
@given(
    st.lists(
        st.lists(st.sampled_from(["x > 1", "y > 1", "x > 1 and y > 1", "F x > 1"]), max_size=3), max_size=4
    )
)
def test_the_digest_is_of_the_content(clients):
    digests = {RuleSets(clients).digest}
    digests.add(RuleSets([*clients, []]).digest)
    digests.add(RuleSets([["G x > 1", *rules] for rules in clients]).digest if clients else "none")
    digests.add(RuleSets(clients, ids=[f"p{row}" for row in range(len(clients))]).digest if clients else "no")
    assert len(digests) == 4
    assert RuleSets(clients).digest == RuleSets(clients).take(np.arange(len(clients))).digest


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([["x > 1", "G[0, x"], ["G[0, x"]], "2 rules cannot be read, first rule 2 of client 'a', 'G\\[0, x'"),
        (
            [["x > 1"], ["x > ?"]],
            "1 rule cannot be read, first rule 1 of client 'b', 'x > \\?': it is a template",
        ),
        ([["x > 1"], [3]], "first rule 1 of client 'b', '3': it is no rule"),
        (["x > 1", []], "client 1 must be a list of rules"),
        ([None, []], "client 1 must be a list of rules"),
        ([["x > 1"]], "there are 1 clients and 2 ids"),
    ],
)
def test_what_is_no_rule_is_named(clients, message):
    with pytest.raises(RecordsError, match=message):
        RuleSets(clients, ids=["a", "b"])


def test_a_part_of_a_population():
    series = cc.Series({"HR": [[80.0, 90.0]]}, ids=["b", "a"])
    patients = Patients(series=series, rules=RuleSets([["x > 1"], []], ids=["a", "b"]))
    assert list(patients.rules.ids) == ["b", "a"]
    assert patients.rules.counts.tolist() == [0, 1]
    assert len(patients.take(np.array([1])).rules.rules) == 1


def test_a_long_table():
    frame = pd.DataFrame({"who": ["a", "b", "a", "c"], "says": ["x > 1", "F y < 2", "y > 3", None]})
    rule_sets = RuleSets.read(frame, patient="who", rule="says")
    assert list(rule_sets.ids) == ["a", "b", "c"]
    assert rule_sets.digest == RuleSets([["x > 1", "y > 3"], ["F y < 2"], []], ids=["a", "b", "c"]).digest
    with pytest.raises(RecordsError, match="'rule'"):
        RuleSets.read(frame, patient="who")


def test_learned_from_a_series_each_for_itself():
    rng = np.random.default_rng(0)
    heart_rate = rng.normal(80, 15, (12, 4)).astype(np.float32)
    label = (heart_rate > 90).astype(np.float32)
    lengths = [12, 12, 2, 12]
    learner = RuleLearner(space=SearchSpace({"HR": (60.0, 80.0, 100.0)}, 3), rules=5)

    def learn(rows):
        series = cc.Series({"HR": heart_rate, "high": label}, lengths=lengths, ids=["a", "b", "c", "d"])
        return RuleSets.learn(series.take(np.array(rows)), learner, "high", 3)

    everybody = learn([0, 1, 2, 3])
    assert list(everybody.ids) == ["a", "b", "c", "d"]
    assert everybody.counts[2] == 0  # a stay shorter than a window
    assert everybody.counts.sum() > 0
    assert learn([3])[0] == everybody[3]
    assert learn([2]).counts.tolist() == [0]


@SLOW
@given(formulas(window=windows(5, hours=True), most=6), st.data())
def test_forms_are_read_as_texts_are(formula, data):
    texts = _RuleTexts()
    text = str(formula)
    assert texts.read(text) == parse(text)
    assert texts.read(text) == parse(text)
    cut = text[: data.draw(st.integers(0, len(text)))]
    for other in (cut, text.replace("1", "22"), text.replace(".", "")):
        assert attempt(texts.read, other) == attempt(parse, other)


def attempt(read, text):
    """The formula, or the error in words."""
    try:
        return read(text)
    except FormulaError as error:
        return str(error)


@pytest.mark.parametrize(
    "text",
    [
        "90 <= HR",
        "HR >= -3.5",
        "x1 > 2",
        "F[0,6h] x > 1",
        "x > 1e3",
        "x >-3",
        "`a 1` > 2",
        "x > 1 # 5",
        "x > .5",
        "1d > 3",
    ],
)
def test_unusual_numbers(text):
    assert attempt(_RuleTexts().read, text) == attempt(parse, text)
