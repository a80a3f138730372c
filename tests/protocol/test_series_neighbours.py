"""Neighbouring tables of long series: one patient's rows more or fewer, read by the real reader.

A variable may be named by one patient alone. Where the variables are stated, it is there for everybody; where they are
not, every private question is refused in the same words. (test_private_neighbours.py does the same for tables.)
"""

from __future__ import annotations

from random import Random

import msgspec
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.protocol.cohort import SERIES_UNSTATED, View
from concilium.records.series_description import OddValues
from protocol.test_private_neighbours import DRAWN, answer, draw_checked

pytestmark = pytest.mark.filterwarnings(f"ignore::{OddValues.__module__}.{OddValues.__qualname__}")

KINDS = (
    "rules.counts",
    "rules.hours",
    "rules.outcomes",
    "rules.gradient",
    "experts.labels",
    "experts.labels, drawn",
    "experts.counts",
    "experts.labels, pure",
)
VARIABLES = ["real", "truth", "whole"]
VALUES = {"real": [0.5, 1.0, 4.0, None, -3.0], "whole": [1.0, 2.0], "truth": [0.0, 1.0], "other": [5.0]}
Stay = list[tuple[int, str, float | None]]


def draw_stay(dice: Random, names: list[str]) -> Stay:
    """A patient's rows: of these variables alone, at any time, also twice at one."""
    return [
        (dice.randrange(6), name, dice.choice(VALUES[name]))
        for name in dice.choices(names, k=dice.randrange(1, 8))
    ]


def draw_neighbours(dice: Random) -> tuple[dict[str, Stay], dict[str, Stay]]:
    """Two hospitals that differ in one patient, who may be the only one with some variable."""
    common = dice.choice([["real", "truth"], ["real"], ["truth"], ["other"]])
    stays = {f"p{i}": draw_stay(dice, common) for i in range(dice.choice([1, 3, 8]))}
    return stays, {**stays, "new": draw_stay(dice, [*VALUES])}


def look(stays: dict[str, Stay], variables: list[str] | None, wide: bool = False) -> View:
    rows = [(patient, *row) for patient, stay in stays.items() for row in stay]
    frame = pd.DataFrame(rows, columns=["patient", "time", "variable", "value"])
    if wide:  # a hospital whose columns are there, whoever has values in them
        for name in VARIABLES:
            frame[name] = frame["value"].where(frame["variable"] == name)
        frame = frame[["patient", "time", *VARIABLES]]
    series = cc.Series.read(frame, variables=variables)
    table = cc.Patients(series=series).selectable
    return View(table, cc.Policy(), b"a secret", division_key=b"the key", parts={"series": series})


def draw_question(dice: Random, kind: str):
    """One of this kind about series and about everybody."""
    while True:
        question = draw_checked(dice, kind)
        if question is not None and "series" in question.reads:
            return msgspec.structs.replace(question, query="")


def test_every_private_kind_about_series_is_asked_here():
    dice = Random(1)
    about = {
        kind
        for kind in DRAWN
        for _ in range(20)
        if (one := draw_checked(dice, kind)) and "series" in one.reads
    }
    assert about == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_one_patient_decides_over_no_stated_variable(kind, seed):
    dice = Random(seed)
    question, neighbours, wide = draw_question(dice, kind), draw_neighbours(dice), dice.random() < 0.2
    one, other = (answer(look(stays, VARIABLES, wide), question) for stays in neighbours)
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    moved = sum(int(change) ** 2 for change in (one - other).tolist())
    assert moved <= question.sensitivity.squared


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_a_variable_that_is_not_stated_is_refused_by_the_statement_alone(kind, seed):
    dice = Random(seed)
    question, neighbours = draw_question(dice, kind), draw_neighbours(dice)
    stated = dice.choice([["other"], ["whole", "other"]])  # no outcome
    one, other = (answer(look(stays, stated), question) for stays in neighbours)
    assert isinstance(one, str)
    assert one == other


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_what_only_rows_name_is_refused_in_the_same_words_whoever_is_there(kind, seed):
    dice = Random(seed)
    question, neighbours = draw_question(dice, kind), draw_neighbours(dice)
    one, other = (answer(look(stays, None), question) for stays in neighbours)
    assert one == other == f"DoesNotFit: {SERIES_UNSTATED}"
