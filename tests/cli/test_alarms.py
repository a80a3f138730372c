"""Alarms: on the card, first in the report, in the table of methods, and as an exit status with --strict."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.alarms import find_alarms

STUDY = """
[study]
name = "made up"
method = {method}
target = "death"
{more}
[sites]
records = "all.csv"
by = "hospital"
one_row_per_patient = true
[bins]
age = [40, 60]
[evaluate]
leave_out = "site"
"""


def lay_out(
    folder: Path, *, inverted: str = "", signal: float = 0.5, method: str = '"tree"', more: str = ""
) -> Path:
    """Patients of four hospitals, whose outcome follows age as far as there is a signal, inverted at one of them."""
    draw = random.Random(5)
    with (folder / "all.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["hospital", "age", "sex", "death"])
        for place in range(600):
            hospital, age = "nesw"[place % 4], draw.randint(20, 90)
            death = draw.random() < 0.1 + signal * (age > 60)
            out.writerow([hospital, age, draw.choice("fm"), "ny"[death != (hospital == inverted)]])
    study = folder / "study.toml"
    study.write_text(STUDY.format(method=method, more=more), encoding="utf-8")
    return study


def run(folder: Path, study: Path, *options: str):
    return CliRunner().invoke(app, ["run", str(study), "--out", str(folder / "out"), *options])


def test_an_inverted_outcome_at_one_hospital_is_said_everywhere(tmp_path: Path) -> None:
    result = run(tmp_path, lay_out(tmp_path, inverted="w"), "--strict")
    assert result.exit_code == 3, result.output
    assert "alarm: w: AUC" in result.stderr
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert any(alarm.startswith("w: AUC") and "inverted" in alarm for alarm in card["alarms"])
    assert any("w: death: n for" in alarm and "exchanged" in alarm for alarm in card["alarms"])
    assert card["date"]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["alarms"] == card["alarms"]
    assert cc.load(tmp_path / "out" / "model.json").card.alarms == card["alarms"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("Look into this first") < page.index("What was asked")
    assert card["date"] in page


def test_nothing_is_said_of_good_patients(tmp_path: Path) -> None:
    result = run(tmp_path, lay_out(tmp_path), "--strict")
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["alarms"] == []
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    for site, row in metrics["sites"].items():
        own = [one for one in rows if one["hospital"] == site]
        assert row["events"] == sum(one["death"] == "y" for one in own)
        assert row["prevalence"] == pytest.approx(row["events"] / len(own))
        assert row["ppv"] is not None
        assert row["npv"] is not None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Look into this first" not in page
    assert 'data-label="NPV"' in page


def test_no_signal_is_said_and_no_method_is_recommended(tmp_path: Path) -> None:
    study = lay_out(tmp_path, signal=0.0, method='["tree", "naive-bayes"]')
    result = run(tmp_path, study, "--strict")
    assert result.exit_code == 3, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["pick"] is None
    assert "none is better than chance" in metrics["why"]
    for row in metrics["methods"].values():
        assert any("no better than chance" in alarm for alarm in row["alarms"])
    assert "Look into this first" in (tmp_path / "out" / "report.html").read_text()


def test_masked_results_name_no_hospital(tmp_path: Path) -> None:
    study = lay_out(tmp_path, inverted="w", more="")
    study.write_text(
        study.read_text()
        .replace('leave_out = "site"', "holdout = 0.3")
        .replace("[bins]", '[privacy]\nrelease = "masked"\n[bins]')
    )
    assert run(tmp_path, study).exit_code == 0
    result = run(tmp_path, study, "--strict")
    assert result.exit_code == 3, result.output
    assert "w: death: n for" in result.stderr  # for whoever runs the simulation
    assert "alarm: hospitals' tables differ as by mistake (1 warning above)" in result.stderr
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert not any(alarm.startswith("w:") for alarm in card.get("alarms", []))


def test_everybody_flagged_and_risks_that_do_not_come_true_are_alarms() -> None:
    overall = {"auc": 0.7, "intervals": {"auc": [0.6, 0.8]}, "sensitivity": 1.0, "specificity": 0.0}
    metrics = {"patients": 9, "target": "y", "positive": "yes", "overall": overall, "sites": {}}
    (flagged,) = find_alarms(metrics)
    assert flagged.startswith("everybody is predicted y = yes")
    overall |= {"sensitivity": 0.99, "specificity": 0.053}  # a threshold chosen for a sensitivity of 0.9
    (nearly,) = find_alarms(metrics)
    assert nearly.startswith("of the patients who are not, 95% are predicted y = yes")
    overall["specificity"] = 0.5
    assert find_alarms(metrics) == []
    # One hospital whose outcome is inverted made every other one look odd beside the rest.
    shares = {"north": 30, "south": 28, "west": 270, "east": 35}
    metrics["sites"] = {site: {"events": events, "patients": 300} for site, events in shares.items()}
    (odd,) = find_alarms(metrics)
    assert odd.startswith("west: the outcome occurs in 90% of 300 patients, elsewhere in 10%")
    metrics["sites"] = {site: metrics["sites"][site] for site in ("north", "west")}
    assert [said[:4] for said in find_alarms(metrics)] == ["nort", "west"]  # either may be the odd one
    metrics["sites"] = {}
    for slope, between, wrong in ((0.3, [0.1, 0.5], "too extreme"), (3.0, [2.1, 3.9], "not extreme enough")):
        metrics["risks"] = {"slope": slope, "slope_interval": between}
        (said,) = find_alarms(metrics)
        assert wrong in said
        assert find_alarms(metrics, risks=False) == []
    metrics["risks"] = {"slope": 0.3, "slope_interval": [-1.0, 1.6]}
    assert find_alarms(metrics) == []  # by chance


def test_a_hospital_with_another_prevalence_is_an_alarm() -> None:
    def site(events: int, patients: int) -> dict[str, object]:
        return {"patients": patients, "events": events, "auc": 0.8, "intervals": {"auc": [0.7, 0.9]}}

    metrics = {"patients": 9, "target": "y", "positive": 1, "overall": site(1, 2)}
    metrics["sites"] = {"a": site(20, 100), "b": site(25, 100), "c": site(80, 100)}
    (said,) = find_alarms(metrics)
    assert said.startswith("c: the outcome occurs in 80% of 100 patients, elsewhere in 22%")
    metrics["sites"] = {"a": site(20, 100), "b": site(25, 100), "c": site(40, 100)}
    assert find_alarms(metrics) == []


def test_an_interval_that_leaves_everything_open_is_not_called_chance() -> None:
    for high, words in ((1.0, "cannot be told from chance"), (0.56, "no better than chance; do not use it")):
        overall = {"auc": 0.53, "intervals": {"auc": [0.35, high]}}
        metrics = {"patients": 80, "overall": overall, "sites": {}, "target": "death", "positive": 1}
        assert [words in alarm for alarm in find_alarms(metrics)] == [True]
