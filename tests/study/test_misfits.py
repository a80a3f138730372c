"""Hospitals whose tables do not fit a study without a dictionary: what is said names the hospital and the column."""

from __future__ import annotations

import random

import pytest

import concilium as cc
from concilium.errors import ConciliumError, StudyError

STUDY = """
[study]
name = "heart"
method = "{method}"
target = "death"
{more}
[privacy]
{privacy}
[[site]]
name = "north"
records = "north.csv"
one_row_per_patient = true
{north}
[[site]]
name = "south"
records = "south.csv"
one_row_per_patient = true
{south}
[[site]]
name = "coast"
records = "coast.csv"
one_row_per_patient = true
"""
PRIVATE = 'release = "private"\nepsilon = 1.0'


def write(folder, name, chol=str, sex=str, death=str, count=60):
    draw = random.Random(name)
    lines = ["sex;chol;hiv;death"]
    for i in range(count):
        value, ill = draw.randint(150, 350), draw.random() < 0.4
        lines.append(f"{sex('fm'[i % 2])};{chol(value)};{'pos' if i % 9 == 0 else 'neg'};{death(int(ill))}")
    (folder / f"{name}.csv").write_text("\n".join(lines))


def lay_out(folder, sections="", method="tree", more="", privacy="", north="", south="", **changes):
    for name in ("north", "coast"):
        write(folder, name)
    write(folder, "south", **changes)
    path = folder / "study.toml"
    path.write_text(
        STUDY.format(method=method, more=more, privacy=privacy, north=north, south=south) + sections,
        encoding="utf-8",
    )
    return cc.Study.read(path)


@pytest.mark.parametrize("evaluate", ["", "[evaluate]\nholdout = 0.3\nsimulation = true\n"])
@pytest.mark.parametrize("method", ["tree", "naive-bayes", "rulefit"])
def test_misspelt_classes_spend_nothing(tmp_path, method, evaluate):
    sections = f'[values]\ndeath = ["nein", "ja"]\nsex = ["f", "m"]\n{evaluate}'
    more = 'positive = "ja"' if method == "rulefit" else ""
    ledger = "" if evaluate else 'ledger = "north.ledger"'
    study = lay_out(tmp_path, sections, method=method, privacy=PRIVATE, more=more, north=ledger)
    with pytest.raises(
        StudyError, match=r"site 'north': no patient has death = ja or nein, .* the column holds 0, 1"
    ):
        study.run(tmp_path / "out")
    assert not (tmp_path / "north.ledger").exists()


def test_decimal_commas_are_told_with_hospital_column_and_remedy(tmp_path):
    study = lay_out(
        tmp_path, "[bins]\nchol = [200, 240]\n", chol=lambda c: f"{c / 38.665:.1f}".replace(".", ",")
    )
    with pytest.raises(
        StudyError, match=r"site 'south': 'chol' has bins, and holds '.*,.*'.* write decimal = \",\""
    ):
        study.run()


def test_a_text_for_missing_is_told_with_hospital_column_and_remedy(tmp_path):
    study = lay_out(tmp_path, "[bins]\nchol = [200, 240]\n", chol=lambda c: "?" if c > 340 else c)
    with pytest.raises(
        StudyError, match=r"site 'south': 'chol' has bins, and holds '\?'.* missing = \[\"\?\"\]"
    ):
        study.run()
    fixed = lay_out(
        tmp_path,
        "[bins]\nchol = [200, 240]\n",
        chol=lambda c: "?" if c > 340 else c,
        south='map = { missing = ["?"] }',
    )
    assert fixed.run().card.refusals == []


def test_a_private_study_names_the_remedy_as_well(tmp_path):
    sections = "[values]\ndeath = [0, 1]\n[bins]\nchol = [200, 240]\n"
    study = lay_out(tmp_path, sections, privacy=PRIVATE, chol=lambda c: f"{c},5")
    with pytest.raises(
        ConciliumError, match=r"south\.csv: column 'chol' .* line 2 holds .* or write decimal = \",\""
    ):
        study.run()


def test_another_unit_is_smelt(tmp_path):
    said = []
    study = lay_out(tmp_path, "[bins]\nchol = [200, 240]\n", chol=lambda c: f"{c / 38.665:.2f}")
    results = study.run(warn=said.append)
    (alarm,) = [text for text in results.alarms if "chol" in text]
    assert alarm.startswith("south: chol: the median is ")
    assert "at the others: is it another unit there?" in alarm


def test_a_rule_that_concerns_nobody_is_told(tmp_path):
    rule = "graph hiv { node p where p.hiv = 'positive' exists p; }"
    (tmp_path / "south.toml").write_text(f'[constraints]\ntext = "{rule}"\n')
    said = []
    lay_out(tmp_path, south='policy = "south.toml"', more='attributes = ["sex"]').run(warn=said.append)
    assert [text for text in said if text.startswith("south: the policy's graph hiv concerns no patient")]


def test_a_study_that_fits_says_nothing(tmp_path):
    said = []
    lay_out(tmp_path, "[bins]\nchol = [200, 240]\n").run(warn=said.append)
    assert said == []
