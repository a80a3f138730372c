"""Drift: a later table beside a model's own figures. Nothing is alarmed about by chance, or for a change too small to
matter; what was moved is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.evaluation.drift import describe_performance, find_drift
from concilium.models.measuring import RiskTable, count_risks, lay_grid


def draw_table(
    seed: int, patients: int = 4000, *, mean: float = -1.5, shift: float = 0.0, slope: float = 1.0
) -> RiskTable:
    """Patients whose log odds of risk have this mean, and whose outcomes have others by shift and slope."""
    chance = np.random.default_rng(seed)
    odds = chance.normal(mean, 1.0, patients)
    true = 1 / (1 + np.exp(-(shift + slope * odds)))
    return count_risks(1 / (1 + np.exp(-odds)), (chance.random(patients) < true).astype(np.float64))


def add_noise(table: RiskTable, deviation: float, seed: int) -> RiskTable:
    """The same in the wider bins that noisy counts have, with noise."""
    edges, risks = lay_grid(0.5, noisy=True)
    counts = np.random.default_rng(seed).normal(0, deviation, (len(risks), 2)).round().astype(int)
    np.add.at(counts, np.searchsorted(edges, table.risks, side="right"), table.counts)
    return msgspec.structs.replace(
        table, edges=edges, risks=risks, counts=counts.tolist(), variance=deviation**2
    )


def compare(then: RiskTable, now: RiskTable) -> dict[str, Any]:
    before = describe_performance(then, "then")
    assert before is not None
    assert min(before.shares) > 0.1  # no group on the card is small
    found = find_drift(before, now)
    assert found is not None
    return found


def test_nothing_is_alarmed_about_where_nothing_has_changed() -> None:
    alarmed = sum(bool(compare(draw_table(seed), draw_table(seed + 500))["alarms"]) for seed in range(40))
    assert alarmed <= 3


def test_a_change_too_small_to_matter_raises_no_alarm_however_sure_it_is() -> None:
    found = compare(draw_table(1, 400_000), draw_table(2, 400_000, shift=0.1))
    assert found["figures"]["intercept"]["interval"][0] > 0
    assert found["alarms"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shift": 0.7}, "predicted risks are too low now"),
        ({"shift": -0.7}, "predicted risks are too high now"),
        ({"slope": 0.4, "shift": -0.9}, "predicted risks are too extreme now"),
        ({"mean": -0.5}, "patients have a higher risk"),
        ({"mean": -0.5}, "other patients than before"),
    ],
)
def test_what_has_changed_is_said_with_its_reason(changes: dict[str, float], words: str) -> None:
    assert any(words in alarm for alarm in compare(draw_table(1), draw_table(2, **changes))["alarms"])


def test_noise_widens_the_interval_of_a_change_and_raises_no_alarm_by_itself() -> None:
    then, now = draw_table(1), draw_table(2)
    plain, noisy = compare(then, now), compare(then, add_noise(now, 4.0, 3))
    widths = [np.ptp(one["figures"]["intercept"]["interval"]) for one in (plain, noisy)]
    assert widths[1] > widths[0]
    alarmed = [
        alarm
        for seed in range(20)
        for alarm in compare(
            add_noise(draw_table(seed), 4.0, seed), add_noise(draw_table(seed + 99), 4.0, -seed % 77)
        )["alarms"]
    ]
    assert not any("other patients" in alarm for alarm in alarmed)
    assert len(alarmed) <= 3


STUDY = """
[study]
name = "later"
method = "naive-bayes"
target = "death"
positive = "yes"
attributes = ["age", "sex"]
[bins]
age = [40, 50, 60, 70]
[evaluate]
since = "2023-01-01"
date = "admitted"
[[site]]
name = "north"
records = "north.csv"
"""


def write_hospital(path: Path, *, shift: float) -> None:
    """Patients of five years; in 2025 more of them die than the years before."""
    chance = np.random.default_rng(5)
    lines = ["age,sex,admitted,death"]
    for place in range(5000):
        age, sex, year = int(chance.integers(20, 90)), "fm"[chance.integers(2)], 2021 + place % 5
        odds = (age - 62) / 9 + 0.5 * (sex == "m") + (shift if year == 2025 else 0)
        death = "yes" if chance.random() < 1 / (1 + np.exp(-odds)) else "no"
        lines.append(f"{age},{sex},{year}-0{1 + place % 9}-15,{death}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("shift", "status"), [(0.0, 0), (1.0, 3)])
def test_evaluate_since_compares_with_the_card_and_strict_ends_with_status_3(
    tmp_path: Path, shift: float, status: int
) -> None:
    write_hospital(tmp_path / "north.csv", shift=0.0)
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    cc.Study.read(study).run(tmp_path / "out", warn=lambda text: None)
    model = tmp_path / "out" / "model.json"
    card = json.loads(model.read_text())["card"]
    assert "since 2023-01-01" in card["performance"]["evaluation"]
    write_hospital(tmp_path / "north.csv", shift=shift)
    others = tmp_path / "others.toml"
    others.write_text(re.sub(r"\[evaluate\].*?(?=\[\[)", "", STUDY, flags=re.DOTALL))
    command = ["evaluate", str(model), str(others), "--since", "admitted=2025-01-01", "--strict"]
    shown = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "later")])
    assert shown.exit_code == status, shown.output
    assert ("predicted risks are too low now" in shown.stderr) == bool(status)
    assert "stability index" in shown.stdout
    found = json.loads((tmp_path / "later" / "evaluation.json").read_text())
    assert found["drift"]["figures"]["intercept"]["change"] == pytest.approx(shift, abs=0.35)
    page = (tmp_path / "later" / "report.html").read_text()
    assert "<h3>Since it was learned</h3>" in page
    assert ("Look into this first" in page) == bool(status)


def test_a_model_without_figures_of_its_own_says_so(tmp_path: Path) -> None:
    write_hospital(tmp_path / "north.csv", shift=0.0)
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    model = cc.NaiveBayes(target="death", positive="yes", attributes=["age", "sex"], bins={"age": [50, 65]})
    model.fit({"north": str(tmp_path / "north.csv")})
    found = model.evaluate(
        {"north": str(tmp_path / "north.csv")}, date="admitted", since="2025-01-01"
    ).metrics
    assert "drift" not in found
    assert any("no figures of its own" in note for note in found["notes"])
