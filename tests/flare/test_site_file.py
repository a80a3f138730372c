"""What a hospital's own file says of its table: read under its map, by the dictionary, patients known by their ids."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.errors import KitError
from concilium.transports.flare.own_files import SiteFile

FILE = """
[site]
records = "north.csv"
policy = "policy.toml"
ledger = "north.ledger"
patient = "nr"

[dictionary]
file = "heart.toml"

[map]
missing = ["?"]

[map.columns]
sex = { from = "geschlecht", values = { 1 = "m", 2 = "f" } }
disease = "num > 0"
"""


def write(kit, text=FILE, more=0):
    local = kit / "local"
    local.mkdir(exist_ok=True)
    lines = ["nr,geschlecht,num", *(f"{i},{i % 2 + 1},{'?' if i == 3 else i % 3}" for i in range(30 + more))]
    (local / "north.csv").write_text("\n".join(lines))
    (local / "heart.toml").write_text(
        "[dictionary.sex]\nvalues = ['f', 'm']\n[dictionary.disease]\nvalues = [0, 1]\n"
    )
    (local / "policy.toml").write_text("")
    (local / "concilium.toml").write_text(text)
    return kit


def test_a_hospital_s_table_is_mapped_and_its_ledger_goes_on(tmp_path):
    patients = SiteFile.read(write(tmp_path))._read()
    assert patients.by == "nr"
    assert patients.table.values("sex")[:4] == ["m", "f", "m", "f"]
    assert patients.table.values("disease")[:4] == [0, 1, 1, None]
    SiteFile.read(tmp_path).open("north").ledger.close()
    site = SiteFile.read(write(tmp_path, more=5)).open("north")
    assert site.grown.endswith("35 patients now")
    site.ledger.close()


def test_a_mistake_in_the_map_names_the_file(tmp_path):
    with pytest.raises(
        KitError, match=r"concilium\.toml: \[map\] has no key 'mising'; did you mean 'missing'\?"
    ):
        SiteFile.read(write(tmp_path, FILE.replace("missing =", "mising =")))


SERIES = """
[site]
series = "stays.csv"
policy = "policy.toml"
ledger = "north.ledger"

[series]
missing = [-1, "NA"]
leave_out = ["note"]
"""


def test_a_hospital_says_what_stands_for_missing_and_which_columns_are_none_of_a_series(tmp_path):
    kit = write(tmp_path, SERIES)
    rows = ["patient,hour,HR,note", "p1,0,80,calm", "p1,1,-1,", "p1,2,NA,asleep", "p2,0,90,"]
    (kit / "local" / "stays.csv").write_text("\n".join(rows))
    series = SiteFile.read(kit)._read().series
    assert list(series.stays) == ["HR"]
    assert [None if value != value else value for value in series.stays["HR"].tolist()] == [
        80,
        None,
        None,
        90,
    ]


RULE = '"F[0,3] HR >= 100"'
RULES = """
[site]
rules = "rules.csv"
policy = "policy.toml"
ledger = "north.ledger"
"""


def test_hospitals_with_rules_of_their_patients_learn_from_them(tmp_path):
    sites = []
    for name in ("coast", "north", "south"):
        (tmp_path / name).mkdir()
        kit = write(tmp_path / name, RULES)
        rows = [f"p{number},{'' if number % 10 == 0 else RULE}" for number in range(160)]
        (kit / "local" / "rules.csv").write_text("\n".join(["patient,rule", *rows]))
        sites.append(SiteFile.read(kit).open(name))
    model = cc.RuleDiscovery("sepsis", prevalence=0.5, epsilon=4.0).fit(sites)
    assert any("HR" in rule.text for rule in model.rules_)
