"""A price holds for one row of a table: it is one patient's, by an id or because the hospital states it.

One patient with many rows would otherwise move a sum by far more than is charged for.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError, RecordsError, StudyError
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import ROWS_UNSTATED
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Gaussian
from concilium.protocol.releases import find_release
from concilium.study.sources import read_tables
from concilium.study.study import Study
from concilium.transports.flare.own_files import SiteFile
from small_study import HOSPITALS, SEVERAL, SPLIT, lay_out

PRIVATE = '[privacy]\nrelease = "private"\nepsilon = 1\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'
STATED = "one_row_per_patient = true\n"
SITE = '[site]\npolicy = "policy.toml"\nledger = "site.ledger"\nrecords = "patients.csv"\n{}[schema]\nsex = "code"\n'
QUESTION = AskCounts(
    totals=False,
    query="",
    target="sex",
    attributes=(Attribute("sex", (), ("f", "m")),),
    classes=None,
    noise=Gaussian("9"),
)


def write_kit(folder: Path, rows: list[tuple[str, str]], more: str) -> Path:
    local = folder / "local"
    local.mkdir(parents=True)
    (local / "concilium.toml").write_text(SITE.format(more))
    (local / "policy.toml").write_text("")
    (local / "patients.csv").write_text("\n".join(["id,sex", *map(",".join, rows)]) + "\n")
    return folder


def count(site: cc.Site) -> np.ndarray | str:
    try:
        cohort = find_release("private").select(SimpleNamespace(view=site._context.view), QUESTION)
        return QUESTION.compute(cohort).reshape(-1)
    except RecordsError as error:
        return str(error)


def draw_rows(dice: Random) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Patients with some rows each, and the same with one patient more, who may have very many."""
    rows = [(f"p{i}", dice.choice("fm")) for i in range(5) for _ in range(dice.choice([1, 1, 3]))]
    return rows, rows + [("new", dice.choice("fm"))] * dice.choice([1, 2, 20])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_a_hospital_that_states_nothing_of_its_rows_refuses_in_the_same_words(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("kits")
    kits = [
        write_kit(folder / name, rows, "") for name, rows in zip("ab", draw_rows(Random(seed)), strict=True)
    ]
    assert [count(SiteFile.read(kit).open("north")) for kit in kits] == [ROWS_UNSTATED] * 2


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_with_ids_a_patient_has_one_row_or_the_table_does_not_open(tmp_path_factory, seed):
    folder, counts = tmp_path_factory.mktemp("kits"), []
    for name, rows in zip("ab", draw_rows(Random(seed)), strict=True):
        site_file = SiteFile.read(write_kit(folder / name, rows, 'patient = "id"\n'))
        if len(dict(rows)) < len(rows):
            with pytest.raises(RecordsError, match="more than once in column 'id'"):
                site_file.open("north")
        else:
            counts.append(count(site_file.open("north")))
    if len(counts) == 2:
        assert int(((counts[1] - counts[0]) ** 2).sum()) <= QUESTION.sensitivity.squared


def test_a_statement_is_enough(tmp_path):
    site = SiteFile.read(write_kit(tmp_path / "kit", [("a", "f"), ("b", "m")], STATED)).open("north")
    assert count(site).sum() == 2


LISTED = f"{SEVERAL[: SEVERAL.index('[[site]]')]}[sites]\n{STATED}" + "".join(
    f'{name} = "{name}.csv"\n' for name in HOSPITALS
)


@pytest.mark.parametrize("text", [SPLIT, SEVERAL, LISTED], ids=["split", "several", "listed"])
def test_a_private_study_file_must_state_it_and_is_told_the_line(tmp_path, text):
    study = lay_out(tmp_path, text.replace(STATED, "") + PRIVATE + '[schema]\nsmoker = "code"\n')
    line = r"one_row_per_patient = true under \[sites\] or under each \[\[site\]\]"
    with pytest.raises(StudyError, match=line):
        read_tables(Study.read(study))
    with pytest.raises(StudyError, match=line):
        Study.read(study).plan()
    study.write_text(text + PRIVATE + '[schema]\nsmoker = "code"\n')
    assert len(read_tables(Study.read(study))) == 3
    study.write_text(text.replace(STATED, ""))  # what has no price needs no statement
    assert len(read_tables(Study.read(study))) == 3


def test_python_states_it_by_handing_over_a_table_and_can_take_it_back():
    records = [
        cc.Records.from_rows([{"sex": sex, "ill": 1} for sex in "ffm"], schema={"sex": "code", "ill": "code"})
    ] * 3
    method = cc.NaiveBayes("sex", release="private", epsilon=1, values={"sex": ["f", "m"], "ill": [1]})
    silent = [cc.Patients(table=one, one_row_per_patient=False) for one in records]
    assert [count(cc.Site("a", one)) for one in silent] == [ROWS_UNSTATED] * 3
    assert count(cc.Site("a", silent[0].take([0, 1]))) == ROWS_UNSTATED
    with pytest.raises((HouseError, RecordsError), match="one row of its table is one patient"):
        method.fit(cc.House([cc.Site(name, one) for name, one in zip("abc", silent, strict=True)]))
