"""Hospitals that write one value in several ways: what is one value, and what is said of the rest."""

from __future__ import annotations

import csv
import random

import pytest

import concilium as cc
from concilium.protocol.cohort import holds_measurements


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def patients(draw, cp=str, sex=str, chol=str, count=80):
    rows = []
    for _ in range(count):
        pain = draw.choice([1, 2, 3, 4])
        rows.append(
            {
                "cp": cp(pain),
                "sex": sex(draw.choice([0, 1])),
                "chol": chol(draw.randint(150, 350)),
                "death": int(draw.random() < (0.8 if pain == 4 else 0.2)),
            }
        )
    return rows


def site(tmp_path, name, rows, schema=None):
    return cc.Site(name, cc.Records.read(write(tmp_path / f"{name}.csv", rows), schema=schema))


@pytest.mark.parametrize("schema", [None, {"cp": "code"}])
def test_one_and_one_point_nought_are_one_value_also_beside_a_question_mark(tmp_path, schema):
    draw = random.Random(3)
    north = patients(draw)
    south = patients(draw, cp=lambda pain: f"{pain}.0")
    south[5]["cp"] = "?"
    house = cc.House([site(tmp_path, "north", north, schema), site(tmp_path, "south", south, schema)])
    tree = cc.DecisionTree("death", attributes=["cp"], max_depth=1).fit(house)
    assert {branch.value for branch in tree.body.nodes[0].branches} == {"1", "2", "3", "4", "?"}


@pytest.mark.parametrize("model", [cc.DecisionTree("death"), cc.RuleFit("death", release="exact", trees=5)])
def test_a_site_that_codes_in_another_way_is_named_with_the_column(tmp_path, model):
    draw = random.Random(4)
    words = {"north": str, "south": str, "coast": lambda sex: "fm"[sex]}
    sites = [site(tmp_path, name, patients(draw, sex=said)) for name, said in words.items()]
    warnings = model.fit(cc.House(sites)).card.warnings
    assert [w for w in warnings if w.startswith("coast has no value of sex that any other site has")]
    assert not [w for w in warnings if "has no value of cp" in w]


def test_numbers_with_a_question_mark_among_them_are_no_categories(tmp_path):
    rows = patients(random.Random(5))
    rows[7]["chol"] = "?"
    path = write(tmp_path / "hungary.csv", rows)
    column = cc.Records.read(path)["chol"]
    assert holds_measurements(column)
    assert not holds_measurements(cc.Records.read(path, schema={"chol": "code"})["chol"])
    tree = cc.DecisionTree("death").fit(cc.House([cc.Site("hungary", cc.Records.read(path))]))
    assert not [said for said in tree.card.warnings if "left out" in said]
    missing = [{**row, "chol": None} if row["chol"] == "?" else row for row in rows]
    same = cc.DecisionTree("death").fit([cc.Records.read(write(tmp_path / "empty.csv", missing))])
    assert tree.body == same.body
    assert len(tree.body.bins["chol"]) > 5
    with_bins = cc.DecisionTree("death", bins={"chol": [200, 250]})
    with pytest.raises(cc.errors.ConciliumError, match=r"'chol' holds text.*the hospital's map says so"):
        with_bins.fit(cc.House([cc.Site("hungary", cc.Records.read(path))]))
