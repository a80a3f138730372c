"""A rare condition from study file to bedside: `run` with its ways to evaluate, `run --plan`, `consult`, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.leave_out import hold_out
from concilium.evaluation.metrics import measure
from small_study import write_csv

NAMES = ("north", "south", "coast")
STUDY = """
[study]
name = "rare"
method = "voting-trees"
target = "bleeding"
positive = "yes"
[sites]
records = "all.csv"
one_row_per_patient = true
by = "hospital"
[bins]
age = [40, 60]
[voting-trees]
imbalance = 0.06
negatives = 2
growth = "id3"
"""


def patient(number: int) -> dict[str, Any]:
    """One of many: bleeding is rare, and commoner among old patients on a drug; a hash scatters the rest."""
    drug, age = "yn"[number * 7919 % 10 > 3], 20 + number * 613 % 70
    risk = 160 if drug == "y" and age >= 60 else 5
    bleeding = "yes" if number * 2654435761 % 1000 < risk else ("no", "unsure")[number % 5 == 0]
    hospital = NAMES[number % 3] if number % 41 else "clinic"
    ward = "abcdefgh"[number * 104729 % 8]
    return {"hospital": hospital, "age": age, "drug": drug, "ward": ward, "bleeding": bleeding}


ROWS = [patient(number) for number in range(1, 1500)]
ROWS = [row for row in ROWS if row["hospital"] != "clinic" or row["bleeding"] != "yes"]


def lay_out(folder: Path, text: str = STUDY) -> Path:
    write_csv(folder / "all.csv", ROWS)
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return folder / "study.toml"


def ask(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result


def finished(study: Path, out: Path) -> dict[str, Any]:
    ask("run", study, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "card.json",
        "metrics.json",
        "model.json",
        "report.html",
        "terms.json",
    ]
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def grow(tables: dict[str, cc.Records]) -> cc.VotingTrees:
    house = cc.House([cc.Site(name, table) for name, table in tables.items()])
    keys = {"imbalance": 0.06, "negatives": 2, "growth": "id3", "bins": {"age": [40, 60]}}
    return cc.VotingTrees("bleeding", "yes", **keys).fit(house)


def sensitivity(model: cc.VotingTrees, records: cc.Records) -> float:
    ill = [str(value) == "yes" for value in records.values("bleeding")]
    said = [str(value) == "yes" for value in model.predict(records)]
    return sum(a and b for a, b in zip(ill, said, strict=True)) / sum(ill)


@pytest.fixture(scope="module")
def held_back(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rare")
    study = lay_out(folder, STUDY + "[evaluate]\nholdout = 0.35\n")
    return folder, finished(study, folder / "out")


def test_a_study_of_a_rare_class_leaves_its_model_and_figures(held_back: tuple[Path, dict[str, Any]]) -> None:
    folder, metrics = held_back
    tables = cc.Records.read(folder / "all.csv").split("hospital")
    held = {name: hold_out(len(table), 0.35, name) for name, table in tables.items()}
    expected = grow({name: table.take(~held[name]) for name, table in tables.items()})
    model = cc.load(folder / "out" / "model.json")
    assert model.body == expected.body
    assert len(model.experts_) > 1
    # The target has three values; figures are about the positive one against the rest.
    assert (metrics["method"], metrics["positive"]) == ("voting-trees", "yes")
    others = {name: table.take(held[name]) for name, table in tables.items()}
    truth = [
        "yes" if value == "yes" else "not yes"
        for table in others.values()
        for value in table.values("bleeding")
    ]
    shares = [row for table in others.values() for row in model.predict_proba(table).tolist()]
    said = [model.classes_[int(row[1] > row[0])] for row in shares]
    for name, value in measure(truth, said, np.array(shares), ["not yes", "yes"], "yes").items():
        assert metrics[name] == pytest.approx(value), name
    assert metrics["sensitivity"] > 0.6


def test_who_opted_out_is_on_the_card_and_in_the_report_with_its_charge(
    held_back: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = held_back
    card = json.loads((folder / "out" / "card.json").read_text())
    assert [site["name"] for site in card["sites"]] == sorted(NAMES)
    assert [(r["kind"], r["numbers"]) for r in card["releases"] if r["site"] == "clinic"] == [
        ("tree.classes", 4)
    ]
    assert "opted out: clinic: no positive patient" in card["warnings"]
    report = (folder / "out" / "report.html").read_text()
    assert "clinic (not in the model)" in report
    assert "each with one vote" in report
    assert "<summary>Expert 1 of " in report
    assert "<svg" in report


def test_a_patient_is_explained_by_the_votes(held_back: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = held_back
    model = folder / "out" / "model.json"
    said = ask("consult", model, "age=80", "drug=y").stdout
    verdict = cc.load(model).explain({"age": 80, "drug": "y"})
    assert said == f"{verdict}\n"
    assert said.startswith("bleeding = yes (")
    plain = json.loads(ask("consult", model, "age=80", "drug=y", "--json").stdout)
    assert plain["prediction"] == "yes"
    assert len(plain["votes"]) == len(cc.load(model).experts_)
    assert [reason["condition"] for reason in plain["reasons"]] == [r.condition for r in verdict.reasons]


def test_leaving_hospitals_out_learns_every_fold_with_the_others(tmp_path: Path) -> None:
    metrics = finished(lay_out(tmp_path, STUDY + '[evaluate]\nleave_out = "site"\n'), tmp_path / "out")
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    for name in NAMES:
        model = grow({other: table for other, table in tables.items() if other != name})
        assert metrics["sites"][name]["sensitivity"] == pytest.approx(sensitivity(model, tables[name]))
    assert metrics["sites"]["clinic"]["sensitivity"] is None
    assert metrics["folds_took"]["together"] == 0
    assert cc.load(tmp_path / "out" / "model.json").body == grow(tables).body


def test_bands_and_a_file_of_other_patients(tmp_path: Path) -> None:
    banded = finished(lay_out(tmp_path, STUDY + '[evaluate]\nleave_out = "band:2"\n'), tmp_path / "bands")
    assert len(banded["folds"]) == 2
    write_csv(tmp_path / "test.csv", [patient(number) for number in range(2000, 2400)])
    study = lay_out(tmp_path, STUDY + '[evaluate]\nfile = "test.csv"\n')
    metrics = finished(study, tmp_path / "file")
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    other = cc.Records.read(tmp_path / "test.csv")
    assert metrics["sensitivity"] == pytest.approx(sensitivity(grow(tables), other))


def test_a_class_that_is_not_rare_gets_one_tree_and_its_picture(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY.replace("imbalance = 0.06", "imbalance = 0.001"))
    out = tmp_path / "out"
    ask("run", study, "--out", out)
    assert (out / "tree.svg").exists()
    assert len(cc.load(out / "model.json").experts_) == 1
    # The next run into the same folder leaves no picture of another model behind.
    finished(lay_out(tmp_path), out)


def test_a_plan_names_the_four_kinds_of_question(tmp_path: Path) -> None:
    said = ask("run", lay_out(tmp_path), "--plan").stdout
    for kind in ("tree.classes", "tree.schema", "counts", "tree.votes"):
        assert kind in said
    assert "exact releases have no bound" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        ('positive = "yes"', "", "needs the key 'positive'"),
        ('positive = "yes"', 'positive = "yess"', "positive = 'yess' is not a value of 'bleeding'"),
        (
            "[bins]",
            '[privacy]\nrelease = "private"\n[bins]',
            "the 'release' of VotingTrees must be 'exact' or",
        ),
        ("[voting-trees]", "[tree]", "[tree] is for method = 'tree'"),
    ],
)
def test_a_wrong_study_is_one_sentence(tmp_path: Path, good: str, bad: str, sentence: str) -> None:
    study = lay_out(tmp_path, STUDY.replace(good, bad))
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
