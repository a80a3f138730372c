"""Real series of intensive care and of glucose sensors load, with the counts that were published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from concilium.records.clinical_ranges import CLINICAL_RANGES
from concilium.records.series import Series
from concilium.records.series_description import OddValues

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SEPSIS = DATA / "sepsis-challenge2019" / "challenge2019_sample2000.parquet"
MORTALITY = DATA / "physionet2012" / "set-a_long.parquet"
GLUCOSE = DATA / "shanghai-cgm" / "shanghai_cgm.parquet"


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason="the data is not here")


@needs(SEPSIS)
@pytest.mark.filterwarnings("ignore::concilium.records.series_description.OddValues")
def test_challenge_2019():
    import duckdb

    series = Series.read(SEPSIS, time="ICULOS", origin="first", leave_out="hospital")
    assert (len(series), len(series.names)) == (2000, 40)
    rows, measured, first = duckdb.sql(
        f"SELECT count(*), count(HR), (SELECT count(*) FROM (SELECT DISTINCT patient FROM '{SEPSIS}')) FROM '{SEPSIS}'"
    ).fetchall()[0]
    assert first == 2000
    assert int(series.lengths.sum()) == rows
    assert int((~np.isnan(series["HR"])).sum()) == measured
    scaled = series.choose(["HR", "Temp", "SepsisLabel"]).scale(CLINICAL_RANGES, keep=["SepsisLabel"])
    assert 0.4 < np.nanmedian(scaled["HR"]) < 0.8
    assert sum(len(block) for block in scaled.blocks()) == 2000


@needs(MORTALITY)
def test_challenge_2012():
    with pytest.warns(OddValues, match="Height"):
        series = Series.read(MORTALITY)
    assert (len(series), len(series.names), series.points) == (4000, 41, 49)
    height = next(one for one in series.describe().variables if one.name == "Height")
    assert "are -1, which may stand for missing" in height.oddity
    descriptors = ["Height", "Weight", "Gender"]
    with pytest.warns(OddValues, match="Weight"):
        cleaned = Series.read(MORTALITY, variables=descriptors, missing={name: [-1] for name in descriptors})
    assert not (cleaned["Height"] == -1).any()
    assert int((series["Height"] > 0).sum()) == int((cleaned["Height"] > 0).sum())


@needs(GLUCOSE)
def test_glucose_every_quarter_of_an_hour():
    series = Series.read(GLUCOSE, patient="file", step="15min", variables=["cgm_mgdl", "meal"])
    assert len(series) == 125
    assert int((~np.isnan(series["cgm_mgdl"])).sum()) == 127_982
    assert series.step_hours == 0.25
