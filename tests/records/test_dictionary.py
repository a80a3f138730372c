"""The public dictionary of a study: what it takes, what follows from it, and how a cell of a code is read by it."""

from __future__ import annotations

import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import StudyError
from concilium.protocol.schema import state_values
from concilium.records.columns import label
from concilium.records.dictionary import MOST_ATTRIBUTES, Dictionary, _cut_evenly

TEXT = """
[dictionary.age]
label = "age at admission"
unit = "years"
range = [0, 120]
[dictionary.cp]
label = "chest pain"
values = { 1 = "typical angina", 2 = "atypical angina", 3 = "other pain", 4 = "none" }
codes = { loinc = "8661-1" }
[dictionary.icd]
type = "text"
[dictionary.chol]
type = "number"
unit = "mg/dl"
bins = [200, 240]
[dictionary.disease]
values = [0, 1]
"""


def parse(text):
    return Dictionary.parse(tomllib.loads(text)["dictionary"], "d.toml")


def test_schema_values_and_bins_follow_from_it():
    dictionary = parse(TEXT)
    assert dictionary.schema == {
        "age": "number",
        "cp": "code",
        "icd": "code",
        "chol": "number",
        "disease": "code",
    }
    assert dictionary.values == {"cp": (1, 2, 3, 4), "disease": (0, 1)}
    assert dictionary.bins == {"age": (20, 40, 60, 80, 100), "chol": (200, 240)}


def test_what_is_written_is_read_again():
    dictionary = parse(TEXT)
    assert parse(dictionary.to_toml()) == dictionary


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[dictionary.a]\nlable = "x"', "d.toml: [dictionary.a] has no key 'lable'; did you mean 'label'?"),
        ('[dictionary.a]\nlabel = "x"', '[dictionary.a] needs its type: "number", "code" or "text"'),
        (
            "[dictionary.a]\nrange = [3, 1]",
            "[dictionary.a]: range must be numbers in rising order; got [3.0, 1.0]",
        ),
        ("[dictionary.a]\nrange = [1]", "[dictionary.a]: expected `array` of length 2"),
        (
            '[dictionary.a]\ntype = "code"\nunit = "kg"',
            "[dictionary.a]: unit is for a number, and its type is 'code'",
        ),
        ('[dictionary.a]\ntype = "number"\nvalues = [1]', "[dictionary.a]: values is for a code"),
        ('[dictionary.a]\nvalues = ["1", 1.0]', "[dictionary.a]: the value 1 is listed twice"),
        ('[dictionary.a]\ntype = "date"', "[dictionary.a]: Invalid enum value 'date'"),
        ('[dictionary]\na = "number"', "[dictionary.a]: must be a section of its own with keys"),
        ('[dictionary.a]\ntype = "text"\nlabel = "a\\u001b[2J"', "at most 200 printable characters"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_section(text, problem):
    with pytest.raises(StudyError) as caught:
        parse(text)
    assert problem in str(caught.value)


def test_it_is_small_enough_for_a_committee():
    with pytest.raises(StudyError, match="which a committee reads"):
        Dictionary.parse({f"a{i}": {"type": "number"} for i in range(MOST_ATTRIBUTES + 1)}, "d.toml")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("4", 4),
        ("4.0", 4),
        ("04", 4),
        ("+4", 4),
        (" 4. ", 4),
        ("None", 4),
        ("Typical Angina", 1),
        ("9", 9),
        ("x", "x"),
    ],
)
def test_a_code_is_read_as_listed_however_it_is_written(cell, value):
    assert parse(TEXT)["cp"].read(cell) == value


def test_text_is_kept_as_it_is_and_truth_is_a_listed_yes():
    dictionary = parse(TEXT)
    assert [dictionary["icd"].read(cell) for cell in ("0389", "250.00", "1.0")] == ["0389", "250.00", "1.0"]
    assert [dictionary["disease"].read(cell) for cell in ("TRUE", "false", "01")] == [1, 0, 1]


def test_a_word_that_stands_for_two_values_stands_for_none():
    entry = parse('[dictionary.a]\nvalues = { x = "pain", y = "Pain" }')["a"]
    assert entry.read("PAIN") == "PAIN"


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_a_range_is_cut_inside_and_evenly(low, width):
    low, high = round(low, 3), round(low + width, 3)
    if not low < high:
        return
    edges = _cut_evenly(low, high)
    assert len(edges) <= 11
    assert all(low < edge <= high for edge in edges)
    assert list(edges) == sorted(set(edges))


def test_listed_values_are_those_that_sites_read():
    entry = parse(TEXT)["cp"]
    assert {label(value) for value in state_values(entry.listed)} == set(entry.values)


def test_it_travels_in_the_terms_and_stands_on_the_card(tmp_path):
    dictionary = parse(TEXT)
    rows = [{"cp": 1 + i % 4, "disease": int(i % 4 == 3)} for i in range(40)]
    records = cc.Records.from_rows(rows, schema={"cp": "code", "disease": "code"})
    house = cc.House([cc.Site("north", records)], dictionary=dictionary, journal=tmp_path / "j")
    tree = cc.DecisionTree("disease").fit(house)
    assert tree.card.dictionary == dictionary.entries
    tree.save(tmp_path / "tree.json")
    assert cc.load(tmp_path / "tree.json").card.dictionary == dictionary.entries
    without = cc.DecisionTree("disease").fit(cc.House([cc.Site("north", records)])).card
    assert "dictionary" not in msgspec.to_builtins(without)


def test_a_house_takes_a_dictionary_and_nothing_else():
    site = cc.Site("north", cc.Records.from_rows([{"a": 1}]))
    with pytest.raises(StudyError, match="must be a Dictionary"):
        cc.House([site], dictionary={"a": "number"})
