"""A query is read by the dictionary before it is sent: labels, units, and what nobody can be."""

from __future__ import annotations

import itertools

import pytest

import concilium as cc
from concilium.errors import QueryError, StudyError
from concilium.records.query import Query
from concilium.records.query_reading import read_query
from contract.patients import ROWS, hold
from contract.test_contract import write_table

DICTIONARY = cc.Dictionary.parse(
    {
        "age": {"unit": "years", "range": [18, 100]},
        "chol": {"unit": "mg/dl", "range": [80, 700], "molar_mass": 386.65},
        "sex": {"values": {"f": "female", "m": "male"}},
        "cp": {"values": {1: "typical angina", 2: "none"}},
        "y": {"values": {"no": "survived", "yes": "died"}},
    },
    "test",
)


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ("sex = 'male'", "sex = 'm'"),
        ("sex != 'FEMALE' or cp in {'typical angina', 2}", "sex != 'f' or cp in {1, 2}"),
        ("not cp = 'none' and chol > '6.2 mmol/l'", "not cp = 2 and chol > 239.723"),
        ("chol between '200 mg/dl' and 300", "chol between 200 and 300"),
        ("age > 17 and not age > 500", "age > 17 and not age > 500"),
        ("other = 'male' and age is not missing", "other = 'male' and age is not missing"),
        ("", ""),
    ],
)
def test_it_asks_for_the_values_of_the_dictionary(asked, read):
    assert Query.parse(read_query(asked, DICTIONARY.entries)) == Query.parse(read)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("age > 500", "age > 500 holds for no patient: age is 18 to 100 years"),
        ("sex = 'm' and age in {40, 400}", "age = 400 holds for no patient"),
        ("age between 200 and 300", "holds for no patient"),
        ("sex = 'man'", r"sex = 'man' is no value of it: f \(female\), m \(male\)"),
        ("cp != 9", "cp = 9 is no value of it"),
        ("cp > 1", "cp is a code, not a number, and has no order"),
        ("chol > '6 kg'", "kg cannot be converted to mg/dl"),
        ("age > 'old'", "age must be a number in years; got 'old'"),
    ],
)
def test_what_nobody_can_be_is_an_error(asked, said):
    with pytest.raises(QueryError, match=said):
        read_query(asked, DICTIONARY.entries)


def test_a_condition_is_refused_exactly_where_no_plausible_value_fulfils_it():
    """By brute force over the whole range, and beyond."""
    for sign, limit in itertools.product(("<", "<=", "=", ">=", ">"), (17, 18, 19, 99, 100, 101)):
        query = f"age {sign} {limit}"
        ages = cc.Records.from_rows([{"age": float(age)} for age in range(18, 101)])
        if Query.parse(query).mask(ages).any():
            assert read_query(query, DICTIONARY.entries) == query
        else:
            with pytest.raises(QueryError, match="holds for no patient"):
                read_query(query, DICTIONARY.entries)


def test_a_study_and_a_fit_read_it_so_and_a_mistake_reaches_no_hospital(tmp_path):
    sites = [cc.Site(name, hold(rows)) for name, rows in ROWS.items()]
    house = cc.House(sites, dictionary=DICTIONARY)
    tree = cc.DecisionTree("y", query="sex = 'male'").fit(house)
    assert tree.query == tree.body.query == "sex = 'm'"
    tree.save(tmp_path / "tree.json")
    assert cc.load(tmp_path / "tree.json").query == "sex = 'm'"
    answered = [len(list(site.ledger.entries())) for site in sites]
    with pytest.raises(QueryError, match="holds for no patient"):
        cc.DecisionTree("y", query="age > 500").fit(house)
    assert [len(list(site.ledger.entries())) for site in sites] == answered
    path, table = tmp_path / "study.toml", tmp_path / "north.csv"
    write_table(table, ROWS["north"], "records")
    stated = '[values]\nsex = ["f", "m"]\n[sites]\nnorth = "north.csv"\n'
    text = f'[study]\nmethod = "tree"\ntarget = "y"\nquery = "{{}}"\n{stated}'
    path.write_text(text.format("sex = 'M'"))
    assert cc.Study.read(path).query == "sex = 'm'"
    path.write_text(text.format("sex = 'male'"))
    with pytest.raises(StudyError, match=r"query: sex = 'male' is no value of it: f, m"):
        cc.Study.read(path)
