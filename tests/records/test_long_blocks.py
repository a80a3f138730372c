"""Series and dated codes of large tables, read by blocks onto disk, are those of memory: values, digests, hashes, notes
and errors."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError
from concilium.records import blocks, column_store
from concilium.records.column_store import list_stores
from concilium.records.sequences import Sequences
from concilium.records.series import Series

SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LARGE = 1 << 20
WARDS = ["HR", "Temp", "pH"]


@pytest.fixture
def by_blocks(monkeypatch):
    """Have blocks of so many rows; few rows make a large table."""

    def set_rows(rows):
        monkeypatch.setattr(blocks, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(blocks, "ROWS_SORTED", max(1, rows // 2))
        monkeypatch.setattr(column_store, "LARGE", 1 if rows < LARGE else 1 << 25)

    yield set_rows
    monkeypatch.undo()


def draw_frame(seed, rows, patients):
    draw = np.random.default_rng(seed)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 60 * 24, rows), unit="min")
    return pd.DataFrame(
        {
            "patient": draw.integers(0, patients, rows),
            "time": draw.choice([0.0, 0.5, 0.5, 1.25, 3.0, 7.75, 30.0], rows),
            "date": days,
            "variable": draw.choice(WARDS, rows),
            "value": np.where(draw.random(rows) < 0.1, np.nan, np.round(draw.normal(7, 0.1, rows), 2)),
            "code": draw.choice(["I10", "E11.9", "J44", "I10 "], rows),
        }
    )


def write(frame, path):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def read(kind, path, folder, **more):
    """What is read, or the sentence that says why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return kind.read(path, columns=folder, **more)
        except RecordsError as error:
            return str(error)


def describe(part):
    if isinstance(part, str):
        return part
    some = part.take(np.arange(len(part))[::-2])
    said = [part.digest, part.hashes.tolist(), list(map(str, part.ids)), some.digest, repr(part)]
    if isinstance(part, Sequences):
        return [*said, part.to_lists(), part.labels, part.clock]
    return [
        *said,
        part.notes,
        part.lengths.tolist(),
        part.names,
        [part[name].tobytes() for name in part.names],
    ]


def compare(by_blocks, folder, block, kind, path, **more):
    by_blocks(LARGE)
    known = describe(read(kind, path, None, **more))
    by_blocks(block)
    found = read(kind, path, folder, **more)
    if not isinstance(found, str):
        assert found.room == folder
        size = len(found.codes) if kind is Sequences else int(found.starts[-1])
        assert (found.bytes_held == 0) == (size > block)
    assert describe(found) == known
    again = read(kind, path, folder, **more)
    assert describe(again) == known
    by_blocks(LARGE)
    return known


@SETTINGS
@given(
    st.integers(0, 999),
    st.integers(12, 120),
    st.integers(1, 9),
    st.sampled_from([1, 5, 11]),
    st.sampled_from([".csv", ".parquet"]),
    st.sampled_from(["last", "first", "mean", "min", "max"]),
    st.sampled_from(["number", "date", "admission"]),
)
def test_a_series_by_blocks_is_that_of_memory(
    tmp_path, by_blocks, seed, rows, patients, block, ending, within, clock
):
    frame = draw_frame(seed, rows, patients)
    more = {"within": within, "step": "1h", "outside": "leave out"}
    frame = frame.drop(columns=["code", "date" if clock == "number" else "time"])
    if clock == "admission":
        frame["admitted"] = pd.Timestamp("2024-01-01 06:00")
        more["origin"] = "admitted"
    if seed % 3 == 0:
        more["patients"] = [str(one) for one in range(patients + 1)][::-1]
    path = write(frame, tmp_path / f"long{ending}")
    known = compare(by_blocks, tmp_path / "columns", block, Series, path, **more)
    assert not isinstance(known, str)


@SETTINGS
@given(st.integers(0, 999), st.integers(12, 80), st.sampled_from([1, 5, 11]), st.booleans())
def test_a_wide_series_by_blocks_is_that_of_memory(tmp_path, by_blocks, seed, rows, block, texts):
    frame = draw_frame(seed, rows, 4)[["patient", "time", "value"]].rename(columns={"value": "pH"})
    frame["note"] = ["stable" if texts else "7.1"] * rows
    path = write(frame.assign(ward="a"), tmp_path / "wide.csv")
    compare(by_blocks, tmp_path / "columns", block, Series, path, leave_out=["ward"])


@SETTINGS
@given(
    st.integers(0, 999),
    st.integers(12, 120),
    st.integers(1, 9),
    st.sampled_from([1, 5, 11]),
    st.sampled_from([".csv", ".parquet"]),
    st.booleans(),
)
def test_codes_by_blocks_are_those_of_memory(tmp_path, by_blocks, seed, rows, patients, block, ending, dated):
    frame = draw_frame(seed, rows, patients)[["patient", "date" if dated else "time", "code"]]
    empty = frame.index[::7]
    frame = frame.assign(code=frame.code.mask(frame.index.isin(empty)))
    frame.iloc[empty, 1] = None
    path = write(frame, tmp_path / f"codes{ending}")
    known = compare(by_blocks, tmp_path / "columns", block, Sequences, path)
    assert not isinstance(known, str)


FAULTS = {
    "text": {"variable": "HR", "value": "?"},
    "no variable": {"variable": None},
    "no patient": {"patient": None},
    "no time": {"time": None},
    "an unreadable time": {"time": "noon"},
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("block", [5, 29])
def test_errors_count_all_rows_and_name_the_first(tmp_path, by_blocks, fault, block):
    frame = draw_frame(3, 60, 6).drop(columns=["date", "code"]).astype(object)
    for name, value in FAULTS[fault].items():
        frame.loc[[8, 31, 44], name] = value
    path = write(frame, tmp_path / "long.csv")
    said = compare(by_blocks, tmp_path / "columns", block, Series, path)
    assert "in 3 rows, first in line 10" in said


@pytest.mark.parametrize("lacking", ["code", "time", "patient"])
def test_errors_of_codes_count_all_rows(tmp_path, by_blocks, lacking):
    frame = draw_frame(3, 60, 6)[["patient", "time", "code"]].astype(object)
    frame.loc[[8, 31, 44], lacking] = None
    path = write(frame, tmp_path / "codes.csv")
    said = compare(by_blocks, tmp_path / "columns", 11, Sequences, path)
    assert "in 3 rows, first in line 10" in said


def test_a_store_is_opened_again_and_read_anew_where_the_file_changed(tmp_path, by_blocks):
    by_blocks(7)
    path, folder = (
        write(draw_frame(1, 50, 5)[["patient", "time", "code"]], tmp_path / "c.csv"),
        tmp_path / "f",
    )
    first = Sequences.read(path, columns=folder)
    assert len(list_stores(folder)) == 1
    write(draw_frame(2, 50, 5)[["patient", "time", "code"]], path)
    second = Sequences.read(path, columns=folder)
    assert second.digest == Sequences.read(path).digest != first.digest
    assert len(list_stores(folder)) == 1


def test_a_site_counts_what_it_holds_of_series_and_codes(tmp_path, by_blocks):
    limit = cc.Policy(work=cc.policy.policy.WorkLimits(memory="400 MB"))
    values = np.zeros((64, 300_000), dtype=np.float32)
    series = Series({"HR": values})
    assert series.bytes_held == values.nbytes
    with pytest.raises(cc.errors.PolicyError, match="too little: this site holds 327 MB before it is asked"):
        cc.Site("north", cc.Patients(series=series), limit)
