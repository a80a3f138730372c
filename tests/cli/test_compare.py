"""`[evaluate] compare = true`: the ways of learning in metrics.json, on the terminal and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import StudyError
from concilium.evaluation.alone import cross_validate
from concilium.evaluation.comparison import _wrong
from concilium.study import Study
from small_study import SPLIT, lay_out

COMPARED = SPLIT + '[evaluate]\nleave_out = "site"\ncompare = true\n'


def test_local_federated_and_pooled_stand_side_by_side(tmp_path: Path) -> None:
    study = lay_out(tmp_path, COMPARED)
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    ways = metrics["comparison"]["ways"]
    assert ways["federated"]["patients"] == ways["pooled"]["patients"] == 180
    assert ways["federated"]["wrong"] == ways["pooled"]["wrong"]
    assert ways["federated"]["accuracy"] == pytest.approx(metrics["accuracy"])
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    asked = Study.read(study)
    alone = {
        name: cross_validate(asked.open_method, name, table, classes=[0, 1]) for name, table in tables.items()
    }
    for name, said in alone.items():
        assert said is not None
        assert metrics["comparison"]["sites"][name]["local"] == _wrong(said)
    assert metrics["comparison"]["intervals"]["pooled"]["mean"] == 0
    assert isinstance(metrics["comparison"]["donors"], str)
    assert "wrongly diagnosed" in result.stdout
    assert "pooled" in result.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Alone, together, pooled" in page
    assert "No donor model: no other hospital" in page
    assert "3 folds were learned in one conversation" in page
    assert page.count("<svg ") == 4  # the tree, and three curves
    picture = (tmp_path / "out" / "tree.svg").read_text()
    assert picture == cc.load(tmp_path / "out" / "model.json").to_svg(most_leaves=1000)


def test_folds_are_charged_once_in_the_hospitals_own_ledgers(tmp_path: Path) -> None:
    from small_study import HOSPITALS, SEVERAL

    study = lay_out(tmp_path, SEVERAL + '[evaluate]\nleave_out = "site"\n')
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out"), "--json"])
    took = json.loads(result.stdout)["folds_took"]
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert took["together"] == 3
    own = sum(release["numbers"] for release in card["releases"])
    entered = 0
    for name in HOSPITALS:
        with cc.Ledger(tmp_path / f"{name}.ledger") as ledger:
            entered += ledger.numbers()
    assert entered == own + took["numbers"]


@pytest.mark.parametrize(
    "more",
    [
        "[evaluate]\nholdout = 0.3\ncompare = true\n",
        '[privacy]\nrelease = "masked"\n[evaluate]\nholdout = 0.3\ncompare = true\n',
    ],
)
def test_comparing_needs_sites_left_out_and_exact_counts(tmp_path: Path, more: str) -> None:
    study = lay_out(tmp_path, SPLIT + more)
    with pytest.raises(StudyError, match="compare puts hospitals"):
        Study.read(study)


def test_compare_is_yes_or_no(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SPLIT + '[evaluate]\nleave_out = "site"\ncompare = "all"\n')
    with pytest.raises(StudyError, match=r"\[evaluate\] compare must be true or false; got \"all\""):
        Study.read(study)
