"""docs/experts.md: its examples run, on generated stays and, where they are at hand, on real ones."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import concilium as cc
from concilium.errors import StudyError
from experts.expert_patients import make_series

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "experts.md").read_text(encoding="utf-8")
SEPSIS = REPOSITORY.parent / "shared" / "data" / "sepsis-challenge2019" / "challenge2019_sample2000.parquet"
NAMES = ("HR", "Temp", "SepsisLabel")


def write(place, series, first=0):
    grids = {name: np.array(series["sepsis" if name == "SepsisLabel" else name]) for name in NAMES}
    rows = [
        {
            "patient": f"p{first + patient}",
            "time": hour,
            **{name: grids[name][hour, patient] for name in NAMES},
        }
        for patient in range(len(series))
        for hour in range(int(series.lengths[patient]))
    ]
    pd.DataFrame(rows).to_csv(place, index=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("north", "south", "west")):
        write(tmp_path / f"{name}.csv", make_series(90, seed, ill=0.7))
    write(tmp_path / "public.csv", make_series(40, 11))
    write(tmp_path / "new.csv", make_series(1, 12, ill=1.0))
    return tmp_path


def test_the_examples_run(folder, capsys):
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, "docs/experts.md", "exec"), names)
    said = capsys.readouterr().out
    assert said.startswith("SepsisLabel = ")
    assert "Not measured, and no reason for or against: Temp." in said
    assert isinstance(names["joined"], bool)
    for site in names["sites"]:
        assert site.ledger.epsilon() <= 4
        site.ledger.close()


def run_study(folder, text):
    (folder / "study.toml").write_text(text)
    results = cc.Study.read(folder / "study.toml").run(folder / "results")
    return results.model, results.metrics


def test_the_study_runs_and_measures_what_a_ward_asks(folder):
    write(folder / "everyone.csv", make_series(400, 3, ill=0.7))
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    model, metrics = run_study(folder, text)
    assert list(metrics["horizons"]) == ["4h", "8h", "12h", "12h-8h", "24h-12h"]
    assert metrics["horizons"]["4h"]["value"] > 0.6
    alarms = metrics["bedside_alarms"]
    assert alarms["sensitivity"] >= 0.8
    assert 0 < alarms["precision"] <= 1
    assert 0 < alarms["lead_hours"] <= 48
    assert "hours at the same time since admission" in metrics["evaluation"]
    assert any("same time since admission" in one for one in model.card.warnings)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not SEPSIS.exists(), reason="the sepsis sample is not at hand")
def test_on_the_sepsis_sample_a_student_of_so_few_is_refused(tmp_path, monkeypatch):
    """Natural prevalence, three gateways: some hundred patients change, and epsilon = 4 needs 134."""
    monkeypatch.chdir(tmp_path)
    names = ", ".join(("patient", "ICULOS AS time", *NAMES))
    first = f"SELECT patient FROM '{SEPSIS}' GROUP BY 1 ORDER BY 1 LIMIT 200"
    query = f"SELECT {names} FROM '{SEPSIS}' WHERE patient {{}} ({first})"
    duckdb.sql(query.format("IN")).write_csv("public.csv")
    duckdb.sql(query.format("NOT IN")).write_csv("everyone.csv")
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    with pytest.raises(StudyError, match="have an outcome that changes, and only these"):
        run_study(tmp_path, text)
