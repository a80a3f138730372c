"""The one-level model from study file to bedside: `run`, `run --plan` and `consult`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from small_study import SEVERAL, SPLIT, lay_out


def ask(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result


def as_naive_bayes(text: str) -> str:
    return text.replace('method = "tree"', 'method = "naive-bayes"').replace("[tree]\nmax_depth = 3\n", "")


@pytest.mark.parametrize("evaluation", ['leave_out = "site"', "holdout = 0.3"])
def test_a_study_runs_and_its_model_is_consulted(tmp_path: Path, evaluation: str) -> None:
    study = lay_out(tmp_path, f"{as_naive_bayes(SPLIT)}\n[evaluate]\nsimulation = true\n{evaluation}\n")
    ask("run", study, "--out", tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["card.json", "metrics.json", "model.json", "report.html", "terms.json"]
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["method"] == "naive-bayes"
    assert metrics["auc"] > 0.65
    model = cc.load(tmp_path / "out" / "model.json")
    said = ask("consult", tmp_path / "out" / "model.json", "age=75", "smoker=yes", "sex=f").stdout
    assert said.strip() == str(model.explain({"age": 75, "smoker": "yes", "sex": "f"}))
    assert "age &gt;= 60" in (tmp_path / "out" / "report.html").read_text()


def test_a_private_study_is_planned_and_charged_as_one_question(tmp_path: Path) -> None:
    private = as_naive_bayes(SEVERAL) + (
        '[privacy]\nrelease = "private"\nepsilon = 0.2\n'
        '[values]\nsex = ["f", "m"]\nsmoker = ["no", "yes"]\ndeath = [0, 1]\n'
    )
    study = lay_out(tmp_path, private)
    planned = json.loads(ask("run", study, "--plan", "--json").stdout)
    (question,) = planned["questions"]
    assert question["note"] == "class tables of all 3 attributes, once"
    ask("run", study, "--out", tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert any("epsilon = 0.2 at delta" in warning for warning in card["warnings"])


def test_a_private_tree_of_a_tiny_epsilon_is_advised_to_be_one_level(tmp_path: Path) -> None:
    tree = (
        SEVERAL
        + '[privacy]\nrelease = "private"\nepsilon = 0.2\n[values]\nsex = ["f", "m"]\ndeath = [0, 1]\n'
    )
    assert "naive-bayes" in ask("run", lay_out(tmp_path, tree), "--plan").stdout
    generous = lay_out(tmp_path, tree.replace("0.2", "2.0"))
    assert "naive-bayes" not in ask("run", generous, "--plan").stdout
