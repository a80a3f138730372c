"""Hospitals that are not in the model are named in the terminal, with why."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from small_study import SEVERAL, lay_out


def test_a_hospital_that_refuses_is_named(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    study.write_text(
        study.read_text().replace('records = "coast.csv"', 'records = "coast.csv"\npolicy = "p.toml"')
    )
    (tmp_path / "p.toml").write_text("[release]\nminimum_patients = 1000\n")
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "warning: coast is not in the model (refused: " in result.stderr
    assert "too few patients match this study" in result.stderr


def test_what_a_plan_knows_to_be_refused_is_not_run(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    study.write_text(
        study.read_text().replace('records = "coast.csv"', 'records = "coast.csv"\npolicy = "p.toml"')
    )
    (tmp_path / "p.toml").write_text('[release]\nmodes = ["private"]\n')
    planned = CliRunner().invoke(app, ["run", str(study), "--plan"])
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert planned.exit_code == result.exit_code == 2
    assert "coast will refuse: its policy releases nothing as 'exact' (nothing was asked)" in result.stderr
    assert not list(tmp_path.glob("*.ledger"))


NAMES = ("north", "south", "west")


def write_wide(folder: Path, release: str) -> Path:
    """Three tables with numbers; north alone has five more columns, and all have ids and free text."""
    draw = random.Random(5)
    for name in NAMES:
        more = [f"lab{i}" for i in range(5)] if name == "north" else []
        rows = [",".join(["patient_id", "age", "words", "died", *more])]
        for i in range(150):
            age = draw.randint(20, 95)
            words = "".join(draw.choice("abcdefgh") for _ in range(8))
            died = int(draw.random() < 0.1 + 0.7 * (age > 70))
            rows.append(",".join(map(str, [1000 + i, age, words, died, *range(len(more))])))
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    sites = ", ".join(f'{{ name = "{n}", records = "{n}.csv", one_row_per_patient = true }}' for n in NAMES)
    epsilon = ", epsilon = 3" if release == "private" else ""
    study = folder / "study.toml"
    study.write_text(
        'study = { name = "wide", method = "naive-bayes", target = "died" }\n'
        f'privacy = {{ release = "{release}"{epsilon} }}\nsite = [{sites}]\n'
    )
    return study


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_a_plan_names_what_would_be_left_out(tmp_path: Path, release: str) -> None:
    study = write_wide(tmp_path, release)
    result = CliRunner().invoke(app, ["run", str(study), "--plan"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    said = "by the names of columns, left out: lab0, lab1, lab2 and 2 more (not known at south, or withheld there)"
    assert result.stdout.count(said) == 1
    assert "patient_id (its name says that it identifies patients" in result.stdout
    histograms = (
        "histograms of all of them by" if release == "private" else "two histograms of numbers without bins"
    )
    assert histograms in result.stdout
    plan = json.loads(CliRunner().invoke(app, ["run", str(study), "--plan", "--json"]).stdout)
    assert set(plan["left_out"]) == {*(f"lab{i}" for i in range(5)), "patient_id"}


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_a_run_says_once_what_was_left_out(tmp_path: Path, release: str) -> None:
    study = write_wide(tmp_path, release)
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("lab0, lab1, lab2 and 2 more (not known at south, or withheld there)") == 1
    assert "lab3" not in result.stderr
    assert result.stderr.count("patient_id") == 1
    assert result.stderr.count("words") == 1
    if release != "private":
        why = "about one value for each patient, which identifies them; a policy can allow it"
        assert f"patient_id, words ({why})" in result.stderr


def test_several_methods_say_it_once(tmp_path: Path) -> None:
    study = write_wide(tmp_path, "exact")
    study.write_text(
        study.read_text().replace('"naive-bayes"', '["naive-bayes", "tree"]')
        + "evaluate = { holdout = 0.3, simulation = true }\n"
    )
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("lab0") == 1
    assert "warning: naive-bayes, tree: left out: lab0, lab1, lab2 and 2 more" in result.stderr


def test_a_number_that_is_text_elsewhere_is_called_so(tmp_path: Path) -> None:
    study = write_wide(tmp_path, "exact")
    west = tmp_path / "west.csv"
    rows = [row.split(",") for row in west.read_text().splitlines()]
    for place, row in enumerate(rows[1:]):
        row[1] = ["young", "old"][place % 2]
    west.write_text("\n".join(map(",".join, rows)) + "\n")
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert "age (a number at north, text at west, whose map can fix it)" in result.stderr
