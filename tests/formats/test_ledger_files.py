"""A ledger file of the present format opens, verifies, goes on and forgets nothing; one of another is refused.

north.ledger was kept by a site of 35 patients with a budget of rho = 2 that took part in an exact tree, a masked tree
and a private one-level model with `east` and `west`, and then refused a question for too few patients. north.json says
what was in it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from pyroaring import BitMap

import concilium as cc
from concilium.errors import HouseError, LedgerError
from concilium.ledger.chain import Head
from room import has_room

HERE = Path(__file__).parent
CONTENT = json.loads((HERE / "north.json").read_text())
SCHEMA = {"sex": "code", "ward": "code", "y": "code"}
VALUES = {"y": ["n", "y"], "sex": ["f", "m"]}


def make_rows(count, shift):
    return [
        {
            "sex": "fm"[(row + shift) % 2],
            "ward": "abc"[(row * 7 + shift) % 3],
            "y": "ny"[(row * row + shift) % 5 % 2],
        }
        for row in range(count)
    ]


TABLES = {
    name: cc.Records.from_rows(make_rows(30 + 5 * place, place), schema=SCHEMA)
    for place, name in enumerate(("east", "north", "west"))
}


@pytest.fixture
def file(tmp_path):
    for ending in ("", ".head", ".identity"):
        shutil.copyfile(HERE / f"north.ledger{ending}", tmp_path / f"north.ledger{ending}")
        (tmp_path / f"north.ledger{ending}").chmod(0o600)
    return tmp_path / "north.ledger"


def test_a_ledger_reads_as_it_was_written(file):
    with cc.Ledger.open_readonly(file) as ledger:
        assert ledger.verify() == len(CONTENT["entries"])
        entries = [
            [e.kind, e.mode, None if e.cost is None else str(e.cost), e.numbers, e.hash]
            for e in ledger.entries()
        ]
        assert entries == CONTENT["entries"]
        assert ledger.spent() == Fraction(CONTENT["spent"])
        assert ledger.balance().left == Fraction(CONTENT["remaining"])
        assert ledger.holds(Head(*CONTENT["head"]))
        assert [[note.kind, note.rule] for note in ledger.refusals()] == CONTENT["refusals"]
        assert ledger.settings.site == CONTENT["site"]


def test_a_ledger_of_another_format_is_refused_in_one_sentence(file):
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 1")
    for open_ledger in (cc.Ledger, cc.Ledger.open_readonly):
        with pytest.raises(
            LedgerError,
            match=r"has ledger format 1, and .* reads format 2; open it with the version that wrote it$",
        ):
            open_ledger(file)


def test_a_ledger_of_another_table_is_refused(file):
    with pytest.raises(LedgerError, match="bound to other records"):
        cc.Site("north", TABLES["east"], policy=cc.Policy(budget=cc.Budget("2")), ledger=file)


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_a_ledger_goes_on(file, release):
    policy = cc.Policy(budget=cc.Budget("2"))
    north = cc.Site("north", TABLES["north"], policy=policy, ledger=file)
    house = cc.House([cc.Site("east", TABLES["east"]), north, cc.Site("west", TABLES["west"])])
    options = {"values": VALUES, "epsilon": "0.5"} if release == "private" else {}
    target = "ward" if release == "masked" else "y"  # the sums for y were opened with other identities
    cc.NaiveBayes(target, release=release, **options).fit(house)
    assert north.ledger.verify() > len(CONTENT["entries"])
    assert north.ledger.holds(Head(*CONTENT["head"]))
    grown = north.ledger.spent() > Fraction(CONTENT["spent"])
    assert grown == (release == "private")


def test_a_ledger_remembers_its_circle_its_patients_and_its_budget(file):
    policy = cc.Policy(budget=cc.Budget("2"))
    north = cc.Site("north", TABLES["north"], policy=policy, ledger=file)
    others = [cc.Site("east", TABLES["east"]), cc.Site("south", TABLES["west"])]
    with pytest.raises(HouseError, match="opened masked sums with east, north, west"):
        cc.NaiveBayes("y", release="masked").fit(cc.House([*others, north]))
    ((_, _, remembered),) = north.ledger.recall_patients().populations
    assert len(BitMap.deserialize(remembered)) == 35
    # Whatever happens to the order and to the reading of the table, they are remembered.
    north.ledger.close()
    turned = cc.Records.from_rows(make_rows(35, 1)[::-1])
    north = cc.Site(
        "north", turned, policy=cc.Policy(budget=cc.Budget("2"), minimum_patients=20), ledger=file
    )
    with pytest.raises(HouseError, match="too few patients"):
        cc.NaiveBayes("y", query="sex = 'f' or ward in {'a', 'b'}").fit(cc.House([north]))
    cc.NaiveBayes("y").fit(cc.House([north]))
    left = Fraction(CONTENT["remaining"])
    assert has_room(north.ledger, left)
    assert not has_room(north.ledger, left + Fraction(1, 10**12))
