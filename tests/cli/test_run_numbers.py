"""`concilium run` and `consult` where a number is predicted: figures, comparison, page, reasons, refusals."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.alone import cross_validate
from concilium.evaluation.leave_out import hold_out
from concilium.study import Study
from small_study import HOSPITALS, write_csv

STUDY = """
[study]
name = "cost of a stay"
method = "rulefit"
target = "cost"
[privacy]
release = "exact"
[sites]
records = "all.csv"
one_row_per_patient = true
by = "hospital"
[bins]
cost = [0, 30000]
age = [40, 60, 75]
[rulefit]
trees = 15
penalty = 0.003
"""
SEVERAL = (
    STUDY.split("[sites]")[0]
    + "[bins]"
    + STUDY.split("[bins]")[1]
    + "".join(
        f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\none_row_per_patient = true\n'
        for name in HOSPITALS
    )
)
KEYS = [
    "patients",
    "rmse",
    "mae",
    "r2",
    "spearman",
    "mean",
    "median",
    "rounds",
    "bytes",
    "seconds",
    "epsilon",
]


def make_stays(count: int = 240, seed: int = 11) -> list[dict[str, Any]]:
    """Stays that cost more with age and on a ventilator; some costs are missing."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, ventilated = draw.randint(20, 90), draw.choice(["yes", "no", "no"])
        cost = 4000 + 50 * age + 9000 * (ventilated == "yes") + 4000 * (age > 75) + draw.gauss(0, 800)
        rows.append(
            {
                "hospital": draw.choice(HOSPITALS),
                "age": age,
                "ventilated": ventilated,
                "cost": "" if draw.random() < 0.05 else round(cost, 2),
            }
        )
    return rows


def lay_out(folder: Path, text: str, rows: list[dict[str, Any]] | None = None) -> Path:
    rows = make_stays() if rows is None else rows
    write_csv(folder / "all.csv", rows)
    for name in HOSPITALS:
        own = [{key: row[key] for key in row if key != "hospital"} for row in rows if row["hospital"] == name]
        write_csv(folder / f"{name}.csv", own)
    study = folder / "study.toml"
    study.write_text(text, encoding="utf-8")
    return study


def run(study: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["run", str(study), "--out", str(study.parent / "out"), *more])


def complaint(study: Path) -> str:
    result = run(study)
    assert result.exit_code == 2, result.output
    assert not (study.parent / "out").exists()
    return result.stderr.strip()


def check(row: dict[str, Any], truth: Any, predicted: Any) -> None:
    """A row of metrics.json against its definitions."""
    off = np.array(predicted) - np.array(truth)
    assert row["patients"] == len(truth)
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(off**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(off)))
    assert row["r2"] == pytest.approx(1 - np.sum(off**2) / np.sum((truth - np.mean(truth)) ** 2))
    assert row["mean"] == pytest.approx(np.mean(truth))
    assert row["median"] == pytest.approx(np.median(truth))


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_patients_held_back_measure_the_model(tmp_path: Path, release: str) -> None:
    study = lay_out(tmp_path, STUDY.replace('"exact"', f'"{release}"') + "[evaluate]\nholdout = 0.3\n")
    result = run(study)
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    model = cc.load(tmp_path / "out" / "model.json")
    truth, predicted = [], []
    for name, table in cc.Records.read(tmp_path / "all.csv").split("hospital").items():
        held = table.take(hold_out(len(table), 0.3, name))
        held = held.take(~np.isnan(held["cost"].numbers))
        said = model.predict(held)
        if release == "exact":
            check(metrics["sites"][name], held["cost"].numbers, said)
            assert set(metrics["sites"][name]) == {*KEYS, "intervals"}
        truth += held["cost"].numbers.tolist()
        predicted += said.tolist()
    check(metrics["overall"], truth, predicted)
    assert set(metrics["overall"]) == {*KEYS, "intervals"}
    assert metrics["rmse"] == metrics["overall"]["rmse"]
    assert metrics["r2"] > 0.8
    assert metrics["range"] == [0, 30000]
    assert not {"positive", "accuracy", "auc"} & set(metrics)
    assert sum(group["patients"] for group in metrics["calibration"]) == metrics["patients"]
    assert all(word in result.stdout for word in ("RMSE", "mean error", "R²", "Spearman", "median"))
    assert "accuracy" not in result.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a number between 0 and 30,000" in page
    assert "mean observed cost" in page
    assert "odds" not in page


def test_hospitals_left_out_and_the_ways_of_learning_side_by_side(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY + '[evaluate]\nleave_out = "site"\ncompare = true\n')
    result = run(study)
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [fold["left_out"] for fold in metrics["folds"]] == [[name] for name in sorted(HOSPITALS)]
    tables = cc.Records.read(tmp_path / "all.csv").split("hospital")
    asked = Study.read(study)
    others = [cc.Site(name, table) for name, table in tables.items() if name != "south"]
    left_out = tables["south"].take(~np.isnan(tables["south"]["cost"].numbers))
    expected = asked.open_method().fit(cc.House(others)).predict(left_out)
    check(metrics["sites"]["south"], left_out["cost"].numbers, expected)
    ways = metrics["comparison"]["ways"]
    assert set(ways) == {"local", "federated", "adapted", "pooled"}
    assert ways["federated"]["rmse"] == metrics["rmse"]
    assert "wrong" not in ways["federated"]
    assert "a number is no diagnosis" in metrics["comparison"]["donors"]
    alone = cross_validate(asked.open_method, "coast", tables["coast"], classes=[])
    assert alone is not None
    error = np.mean(np.abs(np.array(alone.predicted, dtype=float) - np.array(alone.truth, dtype=float)))
    assert metrics["comparison"]["sites"]["coast"]["local"] == pytest.approx(error)
    gaps = [
        (row["local"] - row["federated"], row["patients"]) for row in metrics["comparison"]["sites"].values()
    ]
    weighted = sum(gap * patients for gap, patients in gaps) / sum(patients for _, patients in gaps)
    assert metrics["comparison"]["intervals"]["local"]["mean"] == pytest.approx(weighted)
    assert "how far off cost is when learned" in result.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Mean error above federated" in page
    assert "iagnosed</th>" not in page


def test_a_table_of_other_patients_measures_too(tmp_path: Path) -> None:
    write_csv(tmp_path / "test.csv", [{**row, "cost": 5000} for row in make_stays(30, seed=2)])
    study = lay_out(tmp_path, STUDY + '[evaluate]\nfile = "test.csv"\n')
    metrics = json.loads(run(study, "--json").stdout)
    assert (metrics["patients"], metrics["mean"]) == (30, 5000)
    assert metrics["r2"] is metrics["spearman"] is None
    assert metrics["mae"] > 1000


def test_without_evaluation_there_are_no_figures(tmp_path: Path) -> None:
    metrics = json.loads(run(lay_out(tmp_path, STUDY), "--json").stdout)
    assert metrics["rmse"] is None
    assert metrics["calibration"] == []
    assert "Not evaluated" in (tmp_path / "out" / "report.html").read_text()


def test_the_plan_needs_no_records(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "study.toml"), "--plan"])
    assert result.exit_code == 0
    assert "rulefit.fit" in result.stdout


def test_a_prediction_and_its_reasons_are_in_the_unit_of_the_target(tmp_path: Path) -> None:
    assert run(lay_out(tmp_path, STUDY)).exit_code == 0
    model = str(tmp_path / "out" / "model.json")
    asked = ["consult", model, "age=80", "ventilated=yes"]
    told = CliRunner().invoke(app, asked).stdout
    said = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    (predicted,) = cc.load(model).predict([{"age": 80, "ventilated": "yes"}])
    assert said["prediction"] == pytest.approx(predicted)
    assert predicted > 15_000
    assert said["base"] + sum(reason["moved"] for reason in said["reasons"]) == pytest.approx(predicted)
    assert re.match(
        rf"cost = {predicted:,.0f}; mean [\d,]+\.\nWhere .* the mean is {said['base']:,.0f}\.", told
    )
    assert f"adds {said['reasons'][0]['moved']:+,.0f} (" in told
    assert "odds" not in told


def test_values_beyond_the_range_are_told(tmp_path: Path) -> None:
    study = lay_out(tmp_path, STUDY.replace("30000", "12000"))
    costs = [row["cost"] for row in make_stays() if row["cost"] != ""]
    share = sum(cost > 12000 for cost in costs) / len(costs)
    result = run(study)
    assert f"{share:.1%} of the patients have a cost beyond its range, 0 to 12,000" in result.stderr


BAD = {
    "no range": ("cost = [0, 30000]\n", "", "the target 'cost' is a number; give its range under [bins]"),
    "one end": ("[0, 30000]", "[30000]", "[bins] 'cost' must give both ends of the target's range, such as"),
    "misses all below": (
        "[0, 30000]",
        "[0, 10]",
        "'cost' cannot be predicted: its bins, 0 to 10, miss all patients: edges between 1000 and 100000 would do",
    ),
    "misses all above": ("[0, 30000]", "[1e6, 2e6]", "edges between 1000 and 100000 would do"),
    "two outcomes": (
        '"cost"\n',
        '"cost"\npositive = 1\n',
        "[bins] 'cost' says that the target is a number, and",
    ),
    "a code": ("[rulefit]", '[schema]\ncost = "code"\n[rulefit]', "and [schema] that it is a code"),
    "private": ('"exact"', '"private"', "a private rulefit predicts yes or no"),
    "a tree": (
        STUDY[STUDY.index("[rulefit]") :],
        "",
        "bins are for attributes, since method = 'tree' predicts classes",
    ),
    "a tree, no range": (
        "cost = [0, 30000]\nage = [40, 60, 75]\n" + STUDY[STUDY.index("[rulefit]") :],
        "",
        'such as cost = [0, 100] and take method = "shapes", or make classes of it',
    ),
    "endless": ("[0, 30000]", "[0, inf]", "the bins of 'cost' must be 1 to 1000 finite edges"),
}


@pytest.mark.parametrize(("before", "after", "sentence"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path, before: str, after: str, sentence: str) -> None:
    assert before in STUDY
    text = STUDY.replace(before, after)
    text = text.replace('"rulefit"', '"tree"', 1) if "[rulefit]" not in text else text
    said = complaint(lay_out(tmp_path, text))
    assert sentence in said
    assert "\n" not in said


def test_text_at_one_hospital_names_it_and_the_value(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    with (tmp_path / "south.csv").open("a", encoding="utf-8") as file:
        csv.writer(file).writerow([50, "no", "unknown"])
    said = complaint(study)
    assert said.startswith("site 'south', ")
    assert "the target 'cost' is a number by its range under [bins], and holds text here ('unknown')" in said


def test_an_endless_number_is_refused_where_it_is(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    with (tmp_path / "north.csv").open("a", encoding="utf-8") as file:
        csv.writer(file).writerow([50, "no", "inf"])
    said = complaint(study)
    assert said.startswith("site 'north', ")
    assert "the target 'cost' is infinite for some patient" in said


def test_whole_numbers_that_all_differ_need_the_hospital_s_word(tmp_path: Path) -> None:
    rows = [
        {**row, "cost": "" if row["cost"] == "" else round(row["cost"]) * 1000 + place}
        for place, row in enumerate(make_stays())
    ]
    text = STUDY.replace("30000", "30000000")
    study = lay_out(tmp_path, text, rows)
    assert (
        "which is taken for an identifier and withheld; to predict it, give the site a policy with"
        in complaint(study)
    )
    (tmp_path / "policy.toml").write_text('[release]\nallow = ["cost"]\n')
    allowed = text.replace('by = "hospital"\n', 'by = "hospital"\npolicy = "policy.toml"\n')
    study.write_text(allowed + '[evaluate]\nleave_out = "site"\ncompare = true\n')
    assert json.loads(run(study, "--json").stdout)["r2"] > 0.7
