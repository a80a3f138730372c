"""Dated codes from long tables, and back."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError

TABLE = """patient,when,code
2,2024-05-01,250.00
1,2024-05-03,042
2,2024-04-01,1e3
1,2024-05-01 12:00, 042
3,,
2,2024-05-01,007
"""
EXPECTED = [
    [(19844.5, "042"), (19846.0, "042")],
    [(19814.0, "1e3"), (19844.0, "250.00"), (19844.0, "007")],
    [],
]


def write_table(folder, kind, text=TABLE):
    rows = list(csv.reader(text.splitlines()))
    frame = pd.DataFrame(rows[1:], columns=rows[0]).replace("", None)
    path = folder / f"codes.{kind}"
    if kind == "csv":
        path.write_text(text)
    elif kind == "tsv":
        path.write_text(text.replace(",", "\t"))
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif kind == "frame":
        return frame
    else:
        import duckdb

        if kind == "parquet":
            duckdb.sql("SELECT * FROM frame").write_parquet(str(path))
        else:
            with duckdb.connect(str(path)) as connection:
                connection.execute("CREATE TABLE codes AS SELECT * FROM frame")
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "parquet", "duckdb", "frame"])
def test_every_source_reads_the_same(tmp_path, kind):
    sequences = cc.Sequences.read(write_table(tmp_path, kind), time="when")
    assert sequences.to_lists() == EXPECTED
    assert [str(patient) for patient in sequences.patients] == ["1", "2", "3"]
    assert sequences.clock == "dates"


def test_a_file_that_duckdb_stops_at_is_read_alike(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_bytes(TABLE.encode().replace(b"\n", b"\r\n", 2))
    assert cc.Sequences.read(path, time="when").to_lists() == EXPECTED


def test_times_of_typed_sources(tmp_path):
    import duckdb

    for kind, expected, clock in (
        ("DATE '2024-05-01'", 19844.0, "dates"),
        ("TIMESTAMP '2024-05-01 12:00'", 19844.5, "dates"),
        ("TIMESTAMPTZ '2024-05-01 12:00+00'", 19844.5, "zoned dates"),
        ("7", 7.0, "days"),
        ("7.25", 7.25, "days"),
    ):
        path = tmp_path / "codes.parquet"
        duckdb.sql(f"SELECT 'p' AS patient, {kind} AS time, '042' AS code").write_parquet(str(path))
        sequences = cc.Sequences.read(path)
        assert (sequences.to_lists(), sequences.clock) == ([[(expected, "042")]], clock)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("subject_id,charttime,icd9_code", {}),
        ("Person,Date,ICD-10 code", {}),
        ("a,b,c", {"patient": "a", "time": "b", "code": "c"}),
    ],
)
def test_columns_by_their_usual_names_or_as_named(tmp_path, header, named):
    path = tmp_path / "codes.csv"
    path.write_text(f"{header}\n1,5,042\n")
    assert cc.Sequences.read(path, **named).to_lists() == [[(5.0, "042")]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("patient,time,kode\n1,1,a\n", "no column is recognised as the code; say which with code="),
        ("patient,time,code,icd\n1,1,a,b\n", None),
        ("patient,time,icd9,icd10\n1,1,a,b\n", "'icd9' and 'icd10' could both be the code"),
        ("patient,time,code\n1,1,a\n,1,b\n", "column 'patient' names no patient in line 3"),
        (
            "patient,time,code\n1,1,a\n1,2,\n1,3, \n",
            "no code in column 'code' in 2 rows, first in line 3; fill it in",
        ),
        ("patient,time,code\n1,1,a\n1,,b\n", "there is no time in column 'time' in line 3"),
        ("patient,time,code\n1,1,a\n1,later,b\n", "column 'time' holds 'later', which is no time, in line 3"),
        ("patient,time,code\n1,1,a\n1,2024-05-01,b\n", "holds numbers and dates without a time zone"),
        ("patient,time,code\n1,inf,a\n", "column 'time' holds an infinite time in line 2"),
        ("patient,time,code\n", "holds no patients"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path, text, problem):
    path = tmp_path / "codes.csv"
    path.write_text(text)
    if problem is None:
        assert cc.Sequences.read(path).labels == ("a",)
        return
    with pytest.raises(RecordsError, match=problem):
        cc.Sequences.read(path)


def test_columns_that_are_not_there_or_twice(tmp_path):
    path = write_table(tmp_path, "csv")
    with pytest.raises(
        RecordsError, match="code names a column 'coed' that is not there; did you mean 'code'"
    ):
        cc.Sequences.read(path, code="coed", time="when")
    with pytest.raises(RecordsError, match="patient, code and time must be three columns"):
        cc.Sequences.read(path, code="when", time="when")


def test_missing_codes_by_the_words_of_the_hospital(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("patient,time,code\n1,1,NA\n2,?,?\n")
    sequences = cc.Sequences.read(path, missing=["?"])
    assert sequences.to_lists() == [[(1.0, "NA")], []]


def test_codes_that_are_stored_as_numbers(tmp_path):
    import duckdb

    path = tmp_path / "codes.parquet"
    duckdb.sql("SELECT 1 AS patient, 2 AS time, 25000 AS code").write_parquet(str(path))
    assert cc.Sequences.read(path).labels == ("25000",)
    duckdb.sql("SELECT 1 AS patient, 2 AS time, 250.1::DOUBLE AS code").write_parquet(str(path))
    with pytest.raises(
        RecordsError, match=r"in column 'code' 250.1 is stored as a number, which does not tell"
    ):
        cc.Sequences.read(path)


TEXTS = st.text("0123456789.eEV+- naN", min_size=1, max_size=6).filter(
    lambda text: text == text.strip() and text.lower() not in ("na", "nan", "null")
)
MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2300, 1, 1))
TIMES = {
    "days": st.floats(-1e6, 1e6, allow_subnormal=False),
    "dates": MOMENTS,
    "zoned dates": MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
}


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), clock=st.sampled_from(sorted(TIMES)))
def test_what_is_written_is_read_back(tmp_path, kind, data, clock):
    lists = data.draw(
        st.lists(st.lists(st.tuples(TIMES[clock], TEXTS), max_size=5), min_size=1, max_size=5).filter(any)
    )
    sequences = cc.Sequences(lists)
    path = tmp_path / f"codes.{kind}"
    sequences.write(path)
    back = cc.Sequences.read(path)
    assert back.to_lists() == sequences.to_lists()
    assert back.digest == sequences.digest


def test_zoned_dates_are_written_in_utc(tmp_path):
    sequences = cc.Sequences([[("2024-05-01T14:00:00.25+02:00", "a")]])
    for kind in ("csv", "parquet"):
        path = tmp_path / f"codes.{kind}"
        sequences.write(path)
        assert cc.Sequences.read(path).digest == sequences.digest
    assert (tmp_path / "codes.csv").read_text() == "patient,time,code\n1,2024-05-01 12:00:00.25+00,a\n"


def test_the_names_of_the_columns_and_the_form_of_the_cells(tmp_path):
    path = tmp_path / "codes.csv"
    cc.Sequences([[("2024-05-01", "250.00"), ("2024-05-01 12:00", 'a,"b"')], []], patients=["x", "y"]).write(
        path, patient="who", time="when", code="what it is"
    )
    assert path.read_text() == (
        'who,when,what it is\nx,2024-05-01,250.00\nx,2024-05-01 12:00:00,"a,""b"""\ny,,\n'
    )


def test_where_codes_cannot_be_written(tmp_path):
    sequences = cc.Sequences([[(0, "a")]])
    with pytest.raises(RecordsError, match=r"whose name ends in .csv, .csv.gz, .parquet"):
        sequences.write(tmp_path / "codes.xlsx")
    with pytest.raises(RecordsError, match="there is no folder"):
        sequences.write(tmp_path / "nowhere" / "codes.csv")
