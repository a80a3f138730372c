"""A process with too little memory says so in a sentence, or its log has said what it was about to do: never a
traceback."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

ROWS = 150_000
PROGRAM = """
import logging, resource, sys
import concilium as cc, duckdb, numba, pandas, pyarrow
from concilium.errors import ConciliumError
from concilium.records import sequence_reading, series_reading, streaming

kind, path, room = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
logging.basicConfig(level="INFO", format="%(message)s")
held = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(held.split()[1]) * 1024 + room
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    {"table": cc.Records, "series": cc.Series, "codes": cc.Sequences}[kind].read(path)
except ConciliumError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Measurements and codes of many patients, as CSV and Parquet."""
    place, draw = tmp_path_factory.mktemp("large"), np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "patient": draw.integers(0, 5000, ROWS),
            "time": draw.integers(0, 7000, ROWS) / 100,
            "variable": draw.choice(["HR", "Temp"], ROWS),
            "value": draw.normal(70, 9, ROWS),
            "code": draw.choice(["I10", "E11.9"], ROWS),
        }
    )
    for name, lacking in {"table": [], "series": ["code"], "codes": ["variable", "value"]}.items():
        frame.drop(columns=lacking).to_csv(place / f"{name}.csv", index=False)
        frame.drop(columns=lacking).to_parquet(place / f"{name}.parquet")
    return place


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's data is Linux's")
@pytest.mark.parametrize("name", ["table.csv", "table.parquet", "series.csv", "codes.parquet"])
def test_what_cannot_be_read_is_a_sentence_or_was_logged_before(folder, name):
    kind, path = name.partition(".")[0], folder / name
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(path), "8"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ended.stderr
    assert f"{path} (" in ended.stderr, "the log says what is about to be read"
    if ended.returncode == 0:
        assert "there is not enough memory" in ended.stdout
