"""`concilium adapt`: from a received model and a raw table to a file, a table of figures and a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from small_study import SPLIT, lay_out


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    call("run", lay_out(folder, SPLIT), "--out", folder / "out")
    return folder / "out" / "model.json"


def write_home(folder: Path, model: Path) -> Path:
    """The same patients, of whom those without the outcome are kept in part: another prevalence."""
    table = cc.Records.read(model.parents[1] / "all.csv")
    received = cc.load(model)
    outcomes = table.values(received.target)
    kept = [row for row, value in enumerate(outcomes) if value == received.classes_[1] or row % 4 == 0]
    rows = [dict(zip(table.names, row, strict=True)) for row in
            zip(*(table.values(name) for name in table.names), strict=True)]  # fmt: skip
    lines = [",".join(table.names), *(",".join(map(str, rows[row].values())) for row in kept)]
    (folder / "home.csv").write_text("\n".join(lines) + "\n")
    return folder / "home.csv"


def test_a_model_is_adapted_judged_and_consulted(tmp_path: Path, model: Path) -> None:
    home = write_home(tmp_path, model)
    said = call("adapt", model, home, "--site", "west", "--out", tmp_path / "west.json",
                "--report", tmp_path / "west.html")  # fmt: skip
    assert "adapted at west to" in said
    assert "the intercept is fitted" in said
    assert "should not leave the hospital without being charged" in said
    assert "as received" in said
    page = (tmp_path / "west.html").read_text()
    assert "adapted at west to" in page
    assert "each predicted by what was fitted to the others" in page
    adapted = cc.load(tmp_path / "west.json")
    name = adapted.attributes_[0]
    patient = f"{name}={cc.Records.read(home).values(name)[0]}"
    assert "patients of west" in call("consult", tmp_path / "west.json", patient)
    plain = json.loads(
        call("adapt", model, home, "--site", "west", "--out", tmp_path / "again.json", "--json")
    )
    assert plain["adapted"]["shifts"] == adapted.adaptation.shifts
    assert abs(plain["after"]["risks"]["intercept"]) < abs(plain["as_received"]["risks"]["intercept"])


def test_what_was_received_is_not_written_over(tmp_path: Path, model: Path) -> None:
    home = write_home(tmp_path, model)
    assert "another file" in call("adapt", model, home, "--site", "west", "--out", model, code=2)
    assert "is a folder" in call("adapt", model, home, "--site", "west", "--out", tmp_path, code=2)


def test_a_model_made_in_python_for_no_stated_purpose_has_a_page_too(tmp_path: Path) -> None:
    rows = [{"x": i % 2, "y": i % 5 % 2} for i in range(60)]
    cc.DecisionTree("y").fit(cc.House([cc.Site("a", cc.Records.from_rows(rows))])).save(tmp_path / "m.json")
    (tmp_path / "home.csv").write_text("x,y\n" + "".join(f"{i % 2},{i % 3 % 2}\n" for i in range(60)))
    call("adapt", tmp_path / "m.json", tmp_path / "home.csv", "--site", "west", "--out", tmp_path / "west.json",
         "--report", tmp_path / "west.html")  # fmt: skip
    assert "adapted at west" in (tmp_path / "west.html").read_text()
