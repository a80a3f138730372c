"""`concilium demo` on real patients: what it writes, what it says, and what it needs."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli import demo as demo_module
from concilium.cli.demo_patients import HISTORY, HOSPITALS, MEASURED, RECORDED, _deal
from concilium.cli.main import app

needs_patients = pytest.mark.skipif(
    importlib.util.find_spec("SurvSet") is None, reason="SurvSet is not installed"
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo, with three bands of centres left out instead of sixty-seven centres one by one, and rules of fewer
    trees and a penalty that is not chosen."""
    out = tmp_path_factory.mktemp("demo") / "concilium-demo"
    with pytest.MonkeyPatch.context() as patch:
        studies = Path(shutil.copytree(demo_module.STUDIES, tmp_path_factory.mktemp("studies") / "copy"))
        dialysis = studies / "dialysis" / "study.toml"
        dialysis.write_text(dialysis.read_text().replace('"site"', '"band:3"'))
        rules = studies / "rules" / "study.toml"
        rules.write_text(rules.read_text().replace("trees = 100", "trees = 15\npenalty = 0.01"))
        patch.setattr(demo_module, "STUDIES", studies)
        result = CliRunner().invoke(app, ["demo", "--out", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return out, result.stdout


@needs_patients
def test_the_studies_leave_whole_results(shown: tuple[Path, str]) -> None:
    out, _ = shown
    study = cc.Study.read(out / "intensive-care" / "study.toml")
    assert len(study.hospitals) == len(list((out / "intensive-care").glob("*.csv"))) == HOSPITALS
    for name in ("dialysis", "intensive-care"):
        files = sorted(path.name for path in (out / name / "results").iterdir())
        assert files == ["card.json", "metrics.json", "model.json", "report.html", "terms.json", "tree.svg"]
        assert not list((out / name).glob(".*"))
    assert len(list((out / "intensive-care").glob("*.ledger"))) == HOSPITALS
    files = sorted(path.name for path in (out / "early-death" / "results").iterdir())
    assert files == ["card.json", "metrics.json", "model.json", "report.html", "terms.json"]


@needs_patients
def test_trees_that_vote_find_the_rare_ones_whom_one_tree_overlooks(shown: tuple[Path, str]) -> None:
    out, said = shown
    model = cc.load(out / "early-death" / "results" / "model.json")
    metrics = json.loads((out / "early-death" / "results" / "metrics.json").read_text())
    (single,) = [line.split() for line in said.splitlines() if line.strip().startswith("one tree  ")]
    (voting,) = [
        line.split() for line in said.splitlines() if re.search(r"\d+ trees? (that vote|of a balanced)", line)
    ]
    assert int(voting[0]) == len(model.experts_)
    assert float(voting[-2]) == round(metrics["sensitivity"], 3)
    assert metrics["balanced_accuracy"] > float(single[3]) + 0.1


@needs_patients
def test_rules_tell_more_than_the_tree_of_the_same_patients(shown: tuple[Path, str]) -> None:
    out, said = shown
    metrics = json.loads((out / "rules" / "results" / "metrics.json").read_text())
    tree = json.loads((out / "intensive-care" / "results" / "metrics.json").read_text())
    assert metrics["patients"] == tree["patients"]
    assert metrics["auc"] > tree["auc"] + 0.02
    model = cc.load(out / "rules" / "results" / "model.json")
    assert model.card.release == "masked"
    assert model.list_terms()[0].rule in said


@needs_patients
def test_codes_are_shared_once_and_a_second_copy_does_not_fit(shown: tuple[Path, str]) -> None:
    out, said = shown
    shared = cc.Sequences.read(out / "sharing" / "shared.csv")
    assert len(shared) == 6000
    assert "not for care" in (out / "sharing" / "shared.csv").read_text().splitlines()[1]
    with cc.Ledger.open_readonly(out / "sharing" / "codes.csv.ledger") as book:
        assert (book.settings.currency, book.spent()) == ("epsilon", 8)
    assert "A second copy of the same patients is refused: this would cost epsilon = 8, but 2 is left" in said
    assert not (out / "sharing" / "second.csv").exists()
    lines = [line for line in said.splitlines() if line.startswith(("this file", "suppression of"))]
    assert [float(line.split()[-3]) for line in lines][1] == 1.0
    assert float(lines[0].split()[-3]) < 0.3
    assert "Date, signature" in (out / "sharing" / "shared.html").read_text()


@needs_patients
def test_an_ehr_gets_a_card_of_the_model_of_three_omop_databases(shown: tuple[Path, str]) -> None:
    _, said = shown
    card = said[said.index("[warning] Gastrointestinal hemorrhage = yes: ") :]
    assert "Peptic ulcer = yes: odds ratio" in card
    assert "Esophagitis no: nothing recorded" in card
    assert "Not in the record: Throat culture." in card


@needs_patients
def test_together_is_pooled_and_better_than_alone(shown: tuple[Path, str]) -> None:
    figures: dict[str, list[float]] = {}
    for line in shown[1].splitlines():
        for name in ("each hospital alone", "together (federated)", "one table (pooled)"):
            if line.strip().startswith(name):
                figures[name] = [float(cell) for cell in line.replace(name, "").split()]
    alone, together, pooled = figures.values()
    assert together == pooled
    assert together[2] > alone[2] + 0.05
    assert "The federated tree is the pooled one, node for node." in shown[1]


@needs_patients
def test_the_explained_patient_can_be_asked_again(shown: tuple[Path, str]) -> None:
    out, said = shown
    folder = out / "intensive-care"
    arguments = ["consult", str(folder / "results" / "model.json"), str(folder / "patient.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout.strip() in said
    patient: dict[str, Any] = json.loads((folder / "patient.json").read_text())
    assert set(patient) == {*MEASURED, *RECORDED, *HISTORY}


@needs_patients
def test_small_centres_are_refused_and_said_so(shown: tuple[Path, str]) -> None:
    card = json.loads((shown[0] / "dialysis" / "results" / "card.json").read_text())
    with (shown[0] / "dialysis" / "patients.csv").open(encoding="utf-8") as file:
        patients = Counter(row["centre"] for row in csv.DictReader(file))
    assert len(patients) == 67
    small = [centre for centre, many in patients.items() if many < 4]
    assert sorted(refusal["site"] for refusal in card["refusals"]) == sorted(small) != []


@needs_patients
def test_ledgers_of_the_demo_verify(shown: tuple[Path, str]) -> None:
    for path in (shown[0] / "intensive-care").glob("*.ledger"):
        assert CliRunner().invoke(app, ["ledger", "verify", str(path)]).exit_code == 0


def test_it_says_how_to_activate_where_the_command_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my venv").mkdir()
    (tmp_path / "my venv" / "activate").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my venv" / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert demo_module._find_activation() == "source 'my venv/activate'"
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/concilium")
    assert demo_module._find_activation() == ""


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SurvSet", None)
    monkeypatch.setitem(sys.modules, "SurvSet.data", None)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "pip install 'concilium[demo]'" in result.stderr
    assert not (tmp_path / "out").exists()


@needs_patients
def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path / 'out'}: is a file; --out takes a folder\n")


def test_patients_are_dealt_evenly_and_always_alike() -> None:
    dealt = [_deal(row, HOSPITALS) for row in range(6000)]
    assert dealt == [_deal(row, HOSPITALS) for row in range(6000)]
    counts = [dealt.count(hospital) for hospital in range(1, HOSPITALS + 1)]
    assert sum(counts) == 6000
    assert 200 < min(counts) <= max(counts) < 400
