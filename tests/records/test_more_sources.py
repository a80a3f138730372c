"""The same table from a spreadsheet, SQLite, Arrow and polars as from a Parquet file; what is said where it is none."""

from __future__ import annotations

import sqlite3
import sys
from datetime import date

import numpy as np
import openpyxl
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

import concilium as cc
from concilium.errors import MissingExtra, RecordsError
from concilium.records.table import Records

TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4))
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-1000, 1000)),
        st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)),
        TEXTS,
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    ),
    min_size=1,
    max_size=8,
)
SCHEMA = {"whole": pl.Int64, "number": pl.Float64, "text": pl.String, "truth": pl.Boolean, "day": pl.Date}


def contents(records):
    return {name: (records.values(name), records[name].by_itself) for name in records.names}


@given(ROWS)
def test_polars_and_arrow_read_as_parquet_does(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("frames")
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    frame.write_parquet(folder / "p.parquet")
    frame.write_ipc(folder / "p.arrow")
    expected = contents(Records.read(folder / "p.parquet"))
    assert contents(Records.read(frame)) == expected
    assert contents(Records.read(frame.to_arrow())) == expected
    assert contents(Records.read(folder / "p.arrow")) == expected


def test_rows_stay_together_in_large_tables_of_many_chunks():
    parts = [pl.DataFrame({"a": np.arange(k, k + 70_000), "t": [f"t{i % 9}" for i in range(k, k + 70_000)]})
             for k in range(0, 280_000, 70_000)]  # fmt: skip
    frame = pl.concat(parts, rechunk=False).with_columns(b=pl.col("a") * 2)
    records = Records.read(frame)
    a, b = records["a"].numbers, records["b"].numbers
    np.testing.assert_array_equal(a, np.arange(280_000))
    np.testing.assert_array_equal(b, 2 * a)
    assert records.values("t")[100_003] == f"t{100_003 % 9}"


def test_categories_and_streams_are_read(tmp_path):
    frame = pl.DataFrame({"c": pl.Series(["u", "v", None, "u"], dtype=pl.Categorical)})
    assert Records.read(frame).values("c") == ["u", "v", None, "u"]
    table = pa.table({"a": [1, 2]})
    with ipc.new_stream(str(tmp_path / "s.arrow"), table.schema) as stream:
        stream.write_table(table)
    assert Records.read(tmp_path / "s.arrow").values("a") == [1, 2]


def test_a_model_predicts_for_a_polars_frame():
    rows = [{"a": i % 3, "y": int(i % 3 == 1)} for i in range(30)]
    tree = cc.DecisionTree("y", growth="id3").fit(
        cc.House([cc.Site("north", Records.read(pl.DataFrame(rows)))])
    )
    assert tree.predict(pl.DataFrame({"a": [0, 1]})).tolist() == [0, 1]


def write_sheet(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_spreadsheet_is_a_table(tmp_path):
    rows = [
        ["age", "sex", "seen", "note", None],
        [63, "f", date(2020, 1, 2), None, None],
        [],
        [41.5, "NA", date(2021, 3, 4), True, None],
    ]
    records = Records.read(write_sheet(tmp_path / "p.xlsx", {"patients": rows}))
    assert records.names == ("age", "sex", "seen", "note")
    assert records.values("age") == [63, 41.5]
    assert records.values("sex") == ["f", None]
    assert records.values("seen") == ["2020-01-02", "2021-03-04"]
    assert not records["age"].by_itself


def test_a_mistake_in_a_spreadsheet_names_its_row(tmp_path):
    path = write_sheet(tmp_path / "p.xlsx", {"a": [["x"], [1], [], ["?"]], "b": [["x"], [1]]})
    with pytest.raises(RecordsError, match=r"say which sheet to read with table=\.\.\.; there are: a, b"):
        Records.read(path)
    with pytest.raises(RecordsError, match="there is no sheet 'c'"):
        Records.read(path, table="c")
    with pytest.raises(RecordsError, match="column 'x' is stated as a number, but row 4 holds"):
        Records.read(path, table="a", schema={"x": "number"})
    (tmp_path / "bad.xlsx").write_bytes(b"no spreadsheet")
    with pytest.raises(RecordsError, match="cannot be read as a spreadsheet"):
        Records.read(tmp_path / "bad.xlsx")


@pytest.mark.parametrize("name", ["p.db", "p.sqlite", "p.sqlite3"])
def test_sqlite_is_told_by_its_first_bytes(tmp_path, name):
    connection = sqlite3.connect(tmp_path / name)
    connection.execute("CREATE TABLE patients (age INTEGER, sex TEXT, chol REAL, seen TEXT)")
    connection.executemany(
        "INSERT INTO patients VALUES (?, ?, ?, ?)",
        [(63, "f", 233.5, "2020-01-02 00:00:00"), (None, "m", None, None), (41, None, 200, "2020-01-03")],
    )
    connection.execute("CREATE VIEW old AS SELECT * FROM patients WHERE age > 60")
    connection.commit()
    connection.close()
    records = Records.read(tmp_path / name, table="patients")
    assert records.values("age") == [63, None, 41]
    assert records.values("sex") == ["f", "m", None]
    assert records.values("chol") == [233.5, None, 200]
    assert records.values("seen") == ["2020-01-02", None, "2020-01-03"]
    assert len(Records.read(tmp_path / name, table="old")) == 1
    with pytest.raises(RecordsError, match="say which table to read"):
        Records.read(tmp_path / name)


def test_what_is_no_such_file_is_a_sentence(tmp_path):
    for name, problem in (
        ("x.arrow", "cannot be read as an Arrow file"),
        ("x.sqlite", "cannot be opened as a DuckDB"),
    ):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(RecordsError, match=problem):
            Records.read(tmp_path / name)
    with pytest.raises(RecordsError, match=r"LazyFrame; collect\(\) it first"):
        Records.read(pl.DataFrame({"a": [1]}).lazy())


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("python_calamine", "excel", lambda folder: write_sheet(folder / "p.xlsx", {"a": [["x"], [1]]})),
    ],
)
def test_a_missing_extra_is_told_with_its_command(tmp_path, monkeypatch, module, extra, make):
    source = make(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'concilium\[{extra}\]'"):
        Records.read(source)
