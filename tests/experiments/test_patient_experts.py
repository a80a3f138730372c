"""Both experiments with experts run to their tables, on generated stays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import concilium as cc
import patient_experts as tables
import ward_students as ward


def make_stays(patients, ill, seed=1, hours=40):
    """Stays whose heart races in the hours before the label."""
    dice = np.random.default_rng(seed)
    grids = {name: np.full((hours, patients), np.nan) for name in ward.NAMES}
    onset = np.where(dice.random(patients) < ill, dice.integers(26, hours - 2, patients), 10 * hours)
    times = np.arange(hours)[:, None]
    near = np.clip((times - onset + 12) / 12, 0, 1)
    grids["HR"] = 80 + 30 * near + dice.normal(0, 8, near.shape)
    grids["Temp"] = 37 + near + dice.normal(0, 0.3, near.shape)
    return cc.Series({**grids, ward.TARGET: (times >= onset).astype(float)})


@pytest.mark.parametrize("ill", [0.6, 0.15])
def test_the_aim_is_a_table_or_a_refusal_beside_a_regression(ill, monkeypatch):
    console = Console(record=True, width=150)
    monkeypatch.setattr(ward, "console", console)
    monkeypatch.setattr(ward, "PUBLIC", 80)
    ward.run_aim(make_stays(440, ill), 4.0)
    said = console.export_text()
    assert "logistic" in said
    assert ("refused: " in said) == (ill < 0.5)
    assert ("experts taught" in said) == (ill > 0.5)


def test_tables_and_figures_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "EPSILONS", [100.0])
    monkeypatch.setattr(tables, "FULL_ROUNDS", 1)
    monkeypatch.setattr(tables, "VITALS", ("HR", "Temp"))
    monkeypatch.setattr(tables, "LABORATORY", ())
    stays = make_stays(48, 0.4)
    grids = {name: np.array(stays[name]) for name in ("HR", "Temp", ward.TARGET)}
    rows = [
        {"patient": f"p{p}", "ICULOS": h + 1, **{name: grid[h, p] for name, grid in grids.items()}}
        for p in range(48)
        for h in range(40)
    ]
    (tmp_path / tables.FILE).parent.mkdir()
    pd.DataFrame(rows).to_parquet(tmp_path / tables.FILE)
    splits = list(tables.make_splits(tmp_path, 48))
    outcomes = [tables.run_split(one, 1, np.random.default_rng(1)) for one in splits[:2]]
    assert set(outcomes[0].auroc) >= {
        "full model",
        "ensemble-u",
        "ensemble-w",
        "ensemble-o",
        "unselected, 200",
    }
    assert all(0 <= value <= 1 for one in outcomes[0].auroc.values() for value in one.values())
    console = Console(record=True, width=150)
    monkeypatch.setattr(tables, "console", console)
    tables.say_tables(outcomes)
    said = console.export_text()
    assert "Table 3: grown ensembles" in said
    assert "the paper" in said
