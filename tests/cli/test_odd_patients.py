"""`concilium run` on odd patients: what is wrong and where, in one sentence, and a model where there can be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from small_study import HOSPITALS, SEVERAL, lay_out, make_patients, write_csv

STUDY = SEVERAL.replace("ledger", "#ledger")


def run(folder: Path, study: Path) -> str:
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(folder / "out")])
    assert (result.exit_code == 0) == (folder / "out" / "model.json").exists()
    return " ".join(result.output.split())


def change(folder: Path, site: str, **columns: object) -> None:
    """The same patients at a site, but for these columns."""
    rows = [
        {key: row[key] for key in row if key != "hospital"} | columns
        for row in make_patients()
        if row["hospital"] == site
    ]
    write_csv(folder / f"{site}.csv", rows)


def test_a_query_that_leaves_one_class(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY.replace('target = "death"', 'target = "death"\nquery = "death = 1"'))
    said = "every patient of the query 'death = 1' has death = 1: there is nothing to learn"
    assert said in run(tmp_path, study)


def test_a_site_with_a_target_value_of_its_own(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY)
    change(tmp_path, "south", death=2)
    assert "values of the target that one site alone has: death = 2 at south" in run(tmp_path, study)


def test_a_measured_column_full_of_text(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY)
    change(tmp_path, "south", age="old")
    said = run(tmp_path, study)
    assert (
        "site 'south': 'age' has bins, and holds 'old' and the like beside numbers, or none; name it" in said
    )
    assert said.count(":") == 1  # one sentence, and no more of it


@pytest.mark.parametrize("study", [STUDY, STUDY.replace("[tree]", '[privacy]\nrelease = "masked"\n[tree]')])
def test_an_attribute_that_is_the_same_everywhere(tmp_path: Path, study: str) -> None:
    study_file = lay_out(tmp_path, study)
    for site in HOSPITALS:
        change(tmp_path, site, sex="f")
    assert "left out: sex (the same for everybody)" in run(tmp_path, study_file)


def test_pruning_and_grouping_are_keys_of_a_study(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY.replace("max_depth = 3", "prune = 0.3\ngroup = true"))
    planned = CliRunner().invoke(app, ["run", str(study), "--plan"])
    assert "class counts of held-out patients, for pruning" in planned.output
    assert "pruned by the errors on" in run(tmp_path, study)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prune = 1.5", "[tree] prune must be a share in whole percent, from 0.01 to 0.9; got 1.5"),
        ("prune = 0.125", "[tree] prune must be a share in whole percent, from 0.01 to 0.9; got 0.125"),
        ('group = "yes"', "[tree] group must be true or false"),
    ],
)
def test_a_wrong_key_is_said(tmp_path: Path, line: str, sentence: str) -> None:
    study = lay_out(tmp_path, STUDY.replace("max_depth = 3", line))
    assert sentence in run(tmp_path, study)
