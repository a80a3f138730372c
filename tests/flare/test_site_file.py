"""What a hospital's own file says of its table: read under its map, by the dictionary, patients known by their ids."""

from __future__ import annotations

import pytest

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
