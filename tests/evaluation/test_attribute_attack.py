"""Guessing an attribute: what the population says is told from what a model knows of its members."""

from __future__ import annotations

import random

import numpy as np
import pytest

import concilium as cc
from concilium.errors import ModelError
from concilium.evaluation.attacks import (
    _compare_guesses,
    _list_candidates,
    _name_quarter,
    attack_attribute,
)
from concilium.evaluation.audited_patients import AuditedPatients
from concilium.records.columns import Coded, Numbers


def audit(rows, members, schema=None):
    table = cc.Records.from_rows(rows, schema=schema)
    inside, outside = table.take(np.arange(members)), table.take(np.arange(members, len(rows)))
    return AuditedPatients.join({"a": cc.Patients(table=inside)}, {"a": cc.Patients(table=outside)})


def fit(audited, method):
    table = audited.patients.take(audited.member).table
    thirds = [table.take(np.arange(len(table)) % 3 == place) for place in range(3)]
    return method.fit(cc.House([cc.Site(f"s{place}", part) for place, part in enumerate(thirds)]))


CODES = dict.fromkeys(["secret", "who", "y"], "code")


def test_what_a_model_knows_by_heart_is_inferred_of_members_only():
    """Outcome and secret are chance; a tree of any depth knows the outcome of each member by who and secret."""
    draw = random.Random(1)
    rows = [
        {"who": draw.randrange(60), "secret": draw.choice("ab"), "y": draw.choice(["no", "yes"])}
        for _ in range(600)
    ]
    patients = audit(rows, 300, CODES)
    figures = attack_attribute(fit(patients, cc.DecisionTree("y", growth="id3")), patients, "secret")
    assert figures.asked
    assert (figures.members, figures.others, figures.learned_from) == (300, 150, 150)
    for way in ("model", "both"):
        assert figures.guesses[way].advantage.low > 0
        assert figures.guesses[way].others.low <= 0.5 <= figures.guesses[way].others.high
    for way in ("marginal", "imputation"):
        assert figures.guesses[way].advantage.low <= 0 <= figures.guesses[way].advantage.high


def test_what_the_population_says_is_said_of_members_and_others_alike():
    """The outcome follows from the secret in nine of ten patients: both models and imputation know, of everybody."""
    draw = random.Random(2)
    rows = []
    for _ in range(900):
        secret = draw.choice("ab")
        likely = "yes" if secret == "a" else "no"
        y = likely if draw.random() < 0.9 else draw.choice(["no", "yes"])
        rows.append({"who": draw.randrange(3), "secret": secret, "y": y})
    patients = audit(rows, 450, CODES)
    figures = attack_attribute(fit(patients, cc.DecisionTree("y", max_depth=1)), patients, "secret")
    for way in ("imputation", "model", "both"):
        guess = figures.guesses[way]
        assert guess.members.low > 0.85
        assert guess.others.low > 0.85
        assert guess.advantage.low <= 0 <= guess.advantage.high
    assert figures.guesses["marginal"].members.value < 0.6


def test_a_model_that_is_not_told_the_attribute_adds_nothing_to_what_is_known():
    draw = random.Random(3)
    rows = [
        {"who": draw.randrange(5), "secret": draw.choice("aaab"), "y": draw.choice(["no", "yes"])}
        for _ in range(400)
    ]
    patients = audit(rows, 200, CODES)
    figures = attack_attribute(fit(patients, cc.DecisionTree("y", attributes=["who"])), patients, "secret")
    assert not figures.asked
    assert figures.guesses["model"].members.value == figures.guesses["marginal"].members.value
    assert figures.values == ["a", "b"]


def test_numbers_are_guessed_by_quarters_and_from_models_of_numbers():
    draw = random.Random(4)
    rows = []
    for _ in range(600):
        dose = draw.uniform(0, 100)
        rows.append(
            {"dose": dose, "age": draw.randint(20, 80), "y": min(max(dose / 2 + draw.gauss(0, 3), 0), 50)}
        )
    patients = audit(rows, 300)
    bins = {"dose": list(range(5, 100, 5)), "age": [40, 60], "y": [0, 50]}
    model = fit(patients, cc.RuleFit("y", bins=bins, release="exact", trees=50, penalty=0.001))
    figures = attack_attribute(model, patients, "dose")
    assert len(figures.values) == 4
    assert figures.guesses["marginal"].members.value < 0.4
    assert figures.guesses["model"].members.low > 0.6
    assert figures.guesses["model"].others.low > 0.6


def test_candidates_have_the_places_of_patients_own_values():
    column = Numbers(np.array([1.0, 2.0, 3.0, 4.0, np.nan, 100.0]))
    candidates = _list_candidates(column, np.array([True] * 4 + [False] * 2), "x")
    assert candidates.place.tolist() == [0, 1, 2, 3, -1, 3]
    assert [float(tried.numbers[0]) for tried in candidates.tried] == [1, 2, 3, 4]
    assert candidates.names == ["below 1.75", "from 1.75 below 2.5", "from 2.5 below 3.25", "from 3.25"]
    assert _name_quarter(np.array([2.0]), 1) == "from 2"
    coded = Coded(np.array([1, 2, 0, 3], dtype=np.uint8), ("a", "b", "c"))
    candidates = _list_candidates(coded, np.array([True, True, True, False]), "x")
    assert candidates.names == ["a", "b"]
    assert candidates.place.tolist() == [0, 1, -1, -1]


def test_guesses_have_binomial_intervals():
    right = np.arange(400) % 4 == 0
    guess = _compare_guesses(right, right, 2000, np.random.default_rng(0))
    assert guess.members.value == 0.25
    assert guess.advantage.value == 0
    width = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert guess.members.low == pytest.approx(0.25 - width, abs=0.01)
    assert guess.members.high == pytest.approx(0.25 + width, abs=0.01)
    assert guess.advantage.high == pytest.approx(2**0.5 * width, abs=0.012)


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        ("y", "is what the model predicts"),
        ("secrt", "no attribute 'secrt'.*'secret'"),
        ("same", "the same for everybody"),
        ("constant", "nearly the same"),
    ],
)
def test_what_cannot_be_guessed_is_one_sentence(attribute, problem):
    draw = random.Random(5)
    rows = [
        {"secret": draw.choice("ab"), "y": draw.choice(["no", "yes"]), "same": "x", "constant": 1.5}
        for _ in range(100)
    ]
    patients = audit(rows, 50, {**dict.fromkeys(["secret", "y", "same"], "code"), "constant": "number"})
    with pytest.raises(ModelError, match=problem):
        attack_attribute(fit(patients, cc.DecisionTree("y")), patients, attribute)
    few = audit(rows[:60], 50, {"secret": "code", "y": "code"})
    with pytest.raises(ModelError, match="at least 20 others"):
        attack_attribute(fit(patients, cc.DecisionTree("y")), few, "secret")
