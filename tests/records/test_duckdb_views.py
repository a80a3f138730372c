"""A view gives its rows in any order, and all that a patient has must stay together."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import concilium as cc

VIEWS = {
    "joined": "SELECT a, b, ward FROM patients JOIN wards USING (w)",
    "grouped": "SELECT id, max(a) AS a, max(b) AS b FROM patients GROUP BY id",
}


@pytest.mark.parametrize("view", VIEWS)
def test_rows_of_a_view_stay_whole(tmp_path, view):
    path = tmp_path / "hospital.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(
            "CREATE TABLE patients AS SELECT range AS id, (range * 7919) % 1000 AS a, a AS b, range % 3 AS w "
            "FROM range(300000)"
        )
        database.execute("CREATE TABLE wards AS SELECT range AS w, 'ward ' || range AS ward FROM range(3)")
        database.execute(f"CREATE VIEW {view} AS {VIEWS[view]}")
    records = cc.Records.read(path, view)
    assert len(records) == 300_000
    assert np.array_equal(records.values("a"), records.values("b"))
