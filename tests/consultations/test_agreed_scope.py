"""What a steward agrees to beforehand: outcome, attributes, cells and requesters of consultations."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

import concilium as cc
from concilium.cli.agreement_words import describe_agree
from concilium.errors import HouseError
from concilium.policy.policy import Agree
from contract.patients import BINS, ROWS, hold

AGREED = """
releases = ["exact"]
methods = ["consultation", "tree"]
targets = ["y"]
attributes = ["age", "sex", "ward"]
grid = {age = [30, 45, 60, 75], sex = ["f", "m"]}
requesters = ["weiss", "gray"]
"""
FITS = {
    "attributes": ["age", "sex", "ward"],
    "bins": {"age": BINS["age"]},
    "values": {"sex": ["f", "m"]},
    "grid": ["age", "sex"],
    "requesters": ["weiss"],
}


def ask_for(**changed):
    agree = msgspec.convert(tomllib.loads(AGREED), Agree)
    sites = [cc.Site(name, hold(rows), policy=cc.Policy(agree=agree)) for name, rows in ROWS.items()]
    return cc.Consultation("y", **{**FITS, **changed}).fit(cc.House(sites))


def test_a_consultation_within_the_scope_is_agreed_to():
    assert len(ask_for().card.sites) == len(ROWS)
    assert len(ask_for(query="ward = 'a' or ward = 'b'", grid=["sex"]).card.sites) == len(ROWS)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attributes": ["age", "sex", "pressure"]}, "agrees to no study of 'pressure' by itself"),
        ({"attributes": None}, "the study does not list its attributes"),
        ({"query": "pressure > 100"}, "agrees to no study of 'pressure' by itself"),
        ({"bins": {"age": [30, 31, 60, 75]}}, "agrees to no cells of 'age' like these by itself"),
        ({"values": {}}, "agrees to no cells of 'sex' like these by itself"),
        ({"grid": ["age", "ward"]}, "agrees to no cells of 'ward' like these by itself"),
        ({"grid": None}, "the study does not state its grid"),
        ({"requesters": ["weiss", "house"]}, "agrees to no questions of 'house' by itself"),
        ({"requesters": None}, "the study does not say who may ask"),
    ],
)
def test_what_is_out_of_scope_waits_for_a_person(changed, said):
    with pytest.raises(HouseError, match="waits for north, south, east, west"):
        ask_for(**changed)
    assert said in msgspec.convert(tomllib.loads(AGREED), Agree).find_foreign(
        {"target": "y", **FITS, **changed}
    )


def test_another_target_waits_whatever_the_method():
    agree = Agree(releases=("exact",), methods=("tree",), targets=("death",))
    sites = [cc.Site(name, hold(rows), policy=cc.Policy(agree=agree)) for name, rows in ROWS.items()]
    with pytest.raises(HouseError, match="waits for"):
        cc.DecisionTree("y").fit(cc.House(sites))


def test_the_words_of_a_policy_name_its_scope():
    policy = cc.Policy(agree=msgspec.convert(tomllib.loads(AGREED), Agree))
    said = "\n".join(describe_agree(policy))
    assert "leaves to a person other targets than y" in said
    assert "leaves to a person consultations by other cells than age, sex" in said
    assert "leaves to a person consultations that others may ask than weiss, gray" in said
