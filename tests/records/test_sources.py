from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import MissingExtra, RecordsError
from concilium.records.columns import Coded, Numbers
from concilium.records.grammar import DEFAULT_MISSING, TRUTH
from concilium.records.table import Records

EXACT = 2**53
SQL_TYPES = {
    "whole": "BIGINT",
    "fraction": "DOUBLE",
    "truth": "BOOLEAN",
    "text": "VARCHAR",
    "day": "DATE",
    "moment": "TIMESTAMP",
}


@dataclass(frozen=True)
class Table:
    """A random table: for each column its kind and its cells."""

    columns: dict[str, tuple[str, list[Any]]]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*(cells for _, cells in self.columns.values()), strict=True))

    def natural(self, name: str) -> list[Any]:
        """The values a reader must give back, by the rules stated one by one."""
        kind, cells = self.columns[name]
        present = [cell for cell in cells if cell is not None]
        if kind == "whole" and any(abs(cell) >= EXACT for cell in present):
            return [None if cell is None else str(cell) for cell in cells]
        if kind == "fraction" and all(cell.is_integer() and abs(cell) < EXACT for cell in present):
            return [None if cell is None else int(cell) for cell in cells]
        if kind == "day":
            return [None if cell is None else cell.isoformat() for cell in cells]
        if kind == "moment":
            return [None if cell is None else written(cell) for cell in cells]
        return cells

    def write(self, path: Path) -> None:
        with duckdb.connect() as connection:
            columns = ", ".join(
                f"{quoted(name)} {SQL_TYPES[kind]}" for name, (kind, _) in self.columns.items()
            )
            connection.execute(f"CREATE TABLE written ({columns})")
            marks = ", ".join("?" for _ in self.columns)
            connection.executemany(f"INSERT INTO written VALUES ({marks})", self.rows)
            form = "FORMAT parquet" if path.suffix == ".parquet" else "FORMAT csv, HEADER"
            connection.execute(f"COPY written TO '{path}' ({form})")


def written(moment: datetime) -> str:
    if (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
        return str(moment.date())
    fraction = f"{moment.microsecond / 1e6:.6f}"[1:].rstrip("0").rstrip(".")
    return f"{moment.date()} {moment.hour:02}:{moment.minute:02}:{moment.second:02}{fraction}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def is_value(text: str) -> bool:
    """Whether a text file means this text by it, and neither nothing nor a truth value."""
    return text.strip(" \t") not in {*DEFAULT_MISSING, *TRUTH}


anything = st.characters(exclude_categories=["Cs"])
awkward = st.sampled_from(
    [",", '"', "\n", "\r\n", ";", "\t", "'", " x ", "NA,", '""', "#", "\\", "0389", "None", "é"]
)
texts = st.one_of(awkward, st.text(anything, min_size=1, max_size=6)).filter(is_value)
cells_of = {
    "whole": st.one_of(
        st.integers(-3, 300), st.integers(-EXACT - 9, EXACT + 9), st.integers(-(2**63), 2**63 - 1)
    ),
    "fraction": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-9, 9).map(float)),
    "truth": st.booleans(),
    "text": texts,
    "day": st.dates(),
    "moment": st.one_of(st.datetimes(), st.dates().map(lambda day: datetime(day.year, day.month, day.day))),
}


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = (
        st.text(anything, min_size=1, max_size=5)
        .map(str.strip)
        .filter(lambda name: name and "\x00" not in name)
    )
    drawn = draw(st.lists(names, min_size=1, max_size=4, unique_by=lambda name: name.casefold()))
    height = draw(st.integers(1, 7))
    columns = {}
    for name in drawn:
        kind = draw(st.sampled_from(sorted(cells_of)))
        cells = draw(st.lists(st.one_of(st.none(), cells_of[kind]), min_size=height, max_size=height))
        # a text column that happens to hold nothing but numbers would be read as numbers from a text file
        columns[name] = (kind, [*cells, "text" if kind == "text" else None])
    columns["every row"] = ("whole", list(range(height + 1)))
    return Table(columns)


def frame_of(table: Table) -> pd.DataFrame:
    types = {
        "whole": "Int64",
        "fraction": "float64",
        "truth": "boolean",
        "text": "str",
        "day": "object",
        "moment": "datetime64[us]",
    }
    return pd.DataFrame(
        {name: pd.Series(cells, dtype=types[kind]) for name, (kind, cells) in table.columns.items()}
    )


@settings(max_examples=40, deadline=None)
@given(tables())
def test_every_source_gives_back_the_same_table(table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("t.csv", "t.csv.gz", "t.parquet")]
        for path in paths:
            table.write(path)
        read = [Records.read(path) for path in paths]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    read += [Records.read(frame_of(table)), Records.from_rows(rows)]
    for records in read:
        assert records.names == tuple(table.columns)
        for name in records.names:
            values, wanted = records.values(name), table.natural(name)
            assert values == wanted
            assert [type(value) for value in values] == [type(value) for value in wanted]
    assert len({records.digest for records in read}) == 1


def small(path: Path) -> Path:
    if path.suffix == ".csv":
        path.write_text("age,name\n5,x\n70,\n")
    elif path.suffix == ".parquet":
        duckdb.sql("SELECT * FROM (VALUES (5, 'x'), (70, NULL)) AS t(age, name)").write_parquet(str(path))
    else:
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                "CREATE TABLE t AS SELECT * FROM (VALUES (5, 'x'), (70, NULL)) AS t(age, name)"
            )
    return path


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".duckdb", ".db"])
def test_files_are_told_by_their_ending(tmp_path: Path, ending: str) -> None:
    for source in (small(tmp_path / f"t{ending}"), str(tmp_path / f"t{ending}")):
        records = Records.read(source)
        assert records.values("age") == [5, 70]
        assert records.values("name") == ["x", None]


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    path = tmp_path / "hospital.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            'CREATE TABLE patients AS SELECT 1 AS a; CREATE TABLE "od""d; DROP" AS SELECT 2 AS a'
        )
        connection.execute("CREATE SCHEMA clinic; CREATE TABLE clinic.patients AS SELECT 3 AS a")
        connection.execute(
            "CREATE VIEW seen AS SELECT a + 3 AS a FROM patients; CREATE TABLE nobody (a INTEGER)"
        )
    return path


@pytest.mark.parametrize(
    ("table", "value"),
    [("patients", 1), ("main.patients", 1), ('od"d; DROP', 2), ("clinic.patients", 3), ("seen", 4)],
)
def test_a_table_of_a_duckdb_file(hospital: Path, table: str, value: int) -> None:
    before = hospital.read_bytes()
    assert Records.read(hospital, table=table).values("a") == [value]
    assert hospital.read_bytes() == before


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("patient", "there is no table 'patient'; did you mean 'patients'"),
        (
            "x; DROP TABLE patients",
            "there is no table 'x; DROP TABLE patients'; there are: clinic.patients, ",
        ),
        (None, "say which table to read with table=...; there are: clinic.patients, nobody, "),
        ("nobody", "table 'nobody' holds no patients"),
    ],
)
def test_a_table_that_is_not_there(hospital: Path, table: str | None, sentence: str) -> None:
    with pytest.raises(RecordsError, match=sentence.replace("...", r"\.\.\.")) as refusal:
        Records.read(hospital, table=table)
    assert str(hospital) in str(refusal.value)


def test_types_of_a_database_become_natural_values(tmp_path: Path) -> None:
    path = tmp_path / "types.parquet"
    duckdb.sql(
        """SELECT 7::UTINYINT AS tiny, 1.5::DECIMAL(5, 2) AS dose, 12::DECIMAL(38, 0) AS count,
        12345678901234567890::UBIGINT AS huge, DATE '2020-01-02' AS day, TIMESTAMP '2020-01-02' AS midnight,
        TIMESTAMP '2020-01-02 03:04:05.5' AS moment, TIMESTAMPTZ '2020-01-02 03:04:05+02' AS zoned,
        'b'::ENUM ('a', 'b') AS category, NULL::INTEGER AS nothing, 'NA' AS sodium, '' AS blank, [1, 2] AS listed"""
    ).write_parquet(str(path))
    records = Records.read(path)
    assert {name: records.values(name)[0] for name in records.names} == {
        "tiny": 7, "dose": 1.5, "count": 12, "huge": "12345678901234567890", "day": "2020-01-02",
        "midnight": "2020-01-02", "moment": "2020-01-02 03:04:05.5", "zoned": "2020-01-02 01:04:05+00:00",
        "category": "b", "nothing": None, "sodium": "NA", "blank": "", "listed": "[1, 2]",
    }  # fmt: skip
    assert Records.read(path, missing=("NA", "")).values("sodium") == [None]
    stated = Records.read(path, schema={"huge": "number", "tiny": "code"})
    assert stated.values("huge") == [12345678901234567890.0]
    assert isinstance(stated["tiny"], Coded)
    assert stated["tiny"].stated
    with pytest.raises(RecordsError, match="column 'sodium' is stated as a number, but row 1 holds 'NA'"):
        Records.read(path, schema={"sodium": "number"})


def test_types_of_a_frame_become_natural_values() -> None:
    frame = pd.DataFrame(
        {
            "text": ["a", None, "b"],
            "old text": pd.Series(["a", None, float("nan")], dtype=object),
            "category": pd.Categorical(["y", None, "x"], categories=["z", "y", "x"]),
            "grade": pd.Categorical([3, 1, None]),
            "band": pd.cut(pd.Series([5, 25, 15]), [0, 10, 20, 30]),
            "truth": [True, False, True],
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "count": pd.array([1, None, 3], dtype="Int64"),
            "large": pd.array([2**60 + 1, None, 3], dtype="Int64"),
            "small": np.array([1, 2, 3], dtype=np.int8),
            "whole": [1.0, float("nan"), 2.0],
            "single": np.array([0.5, 1, 2], dtype=np.float32),
            "day": pd.to_datetime(["2020-01-02", None, "2019-01-01"]),
            "moment": pd.to_datetime(["2020-01-02 03:04:05.5", None, "2019-01-01"], format="ISO8601"),
            "zoned": pd.to_datetime(["2020-01-02 03:04:05+02:00"] * 3),
            "mixed": [1, "a", date(2020, 1, 2)],
            "pandas missing": pd.Series([pd.NA, pd.NaT, 5], dtype=object),
            7: [1, 2, 3],
        }
    ).set_axis([9, 9, 9])
    records = Records.read(frame)
    assert {name: records.values(name) for name in records.names} == {
        "text": ["a", None, "b"],
        "old text": ["a", None, None],
        "category": ["y", None, "x"],
        "grade": [3, 1, None],
        "band": ["(0, 10]", "(20, 30]", "(10, 20]"],
        "truth": [True, False, True],
        "maybe": [True, None, False],
        "count": [1, None, 3],
        "large": [str(2**60 + 1), None, "3"],
        "small": [1, 2, 3],
        "whole": [1, None, 2],
        "single": [0.5, 1, 2],
        "day": ["2020-01-02", None, "2019-01-01"],
        "moment": ["2020-01-02 03:04:05.5", None, "2019-01-01"],
        "zoned": ["2020-01-02 01:04:05+00:00"] * 3,
        "mixed": ["1", "a", "2020-01-02"],
        "pandas missing": [None, None, 5],
        "7": [1, 2, 3],
    }
    assert isinstance(records["category"], Coded)
    assert records["category"].values == ("x", "y")
    assert isinstance(records["single"], Numbers)


@pytest.mark.parametrize(
    ("frame", "options", "sentence"),
    [
        (pd.DataFrame({"a": []}), {}, "the DataFrame holds no patients"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "columns 1 and 2 are both named 'a'"),
        (
            pd.DataFrame({"a": ["1", "x"]}),
            {"schema": {"a": "number"}},
            "column 'a' is stated .* row 2 holds 'x'",
        ),
        (
            pd.DataFrame({"a": [True]}),
            {"schema": {"a": "number"}},
            "column 'a' is stated .* row 1 holds True",
        ),
        (pd.DataFrame({"a": [1]}), {"schema": {"b": "code"}}, "a column 'b' that is not there"),
        (pd.DataFrame({"a": [1]}), {"table": "t"}, "table='t' has no meaning here"),
        (pd.DataFrame({"a": [{1, 2}]}), {}, "column 'a' holds a set in row 1"),
    ],
)
def test_a_frame_that_does_not_fit(frame: pd.DataFrame, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecordsError, match=sentence):
        Records.read(frame, **options)


def corrupt(path: Path) -> Path:
    path.write_bytes(b"no such format " * 2_000)
    return path


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "absent.csv", "there is no file"),
        (lambda folder: folder / "t.docx", r"must end in one of .csv, .csv.gz, .* .parquet, .duckdb"),
        (lambda folder: corrupt(folder / "t.parquet"), "cannot be read as a Parquet file"),
        (lambda folder: corrupt(folder / "t.duckdb"), "cannot be opened as a DuckDB file"),
        (lambda folder: "s3://bucket/t.csv", "cannot read from a s3:// address"),
        (lambda folder: [{"a": 1}], r"cannot be read from a list; .* rows to Records.from_rows"),
    ],
)
def test_a_source_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], Any], sentence: str) -> None:
    with pytest.raises(RecordsError, match=sentence) as refusal:
        Records.read(make(tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".duckdb"])
def test_an_empty_file_or_a_folder_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    path.touch()
    with pytest.raises(RecordsError, match="is empty"):
        Records.read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(RecordsError, match="is a folder"):
        Records.read(path)


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    duckdb.sql("SELECT range AS a, range * 0.5 AS b FROM range(10000)").write_parquet(str(path))
    whole = path.read_bytes()
    for cut in (4, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecordsError, match="cannot be read as a Parquet file"):
            Records.read(path)
    path.write_bytes(whole[:50] + bytes(2_000) + whole[2_050:])
    with pytest.raises(RecordsError, match="cannot be read as a Parquet file"):
        Records.read(path)


def test_a_table_is_named_only_where_there_are_several(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="is one table, so table='t' has no meaning"):
        Records.read(small(tmp_path / "t.csv"), table="t")


def test_a_hundred_thousand_rows_in_any_order_of_reading(tmp_path: Path) -> None:
    """The rows stay in order when DuckDB reads with several threads."""
    rows, spot = 150_000, np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "row": np.arange(rows),
            "letter": np.array(list("abcdefgh"))[spot.integers(0, 8, rows)],
            "level": spot.integers(-3, 4, rows),
            "weight": spot.normal(70, 9, rows),
            "noted": pd.Timestamp("2020-01-01") + pd.to_timedelta(spot.integers(0, 5_000, rows), unit="D"),
        }
    )
    frame.loc[::17, ["letter", "weight"]] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    duckdb.from_df(frame).write_parquet(str(tmp_path / "t.parquet"), row_group_size=10_000)
    read = [Records.read(source) for source in (frame, tmp_path / "t.csv", tmp_path / "t.parquet")]
    assert len({records.digest for records in read}) == 1
    assert read[1].values("row") == list(map(float, range(rows)))
    assert read[2].values("letter") == [
        None if cell is None or cell != cell else cell for cell in frame["letter"]
    ]
    assert math.isclose(float(np.nansum(read[1]["weight"].numbers)), frame["weight"].sum())
    assert read[0].values("noted")[0] == datetime.fromisoformat(str(frame["noted"][0])).date().isoformat()


def test_postgres_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'concilium\[postgres\]'"):
        Records.read("postgresql://localhost/hospital", table="patients")


def test_a_categorical_column_is_a_category_though_its_codes_are_numbers():
    frame = pd.DataFrame({"centre": pd.Categorical([120, 33, 120]), "age": [59, 49, 61]})
    records = Records.read(frame)
    assert isinstance(records["centre"], Coded)
    assert not records["centre"].numeric
    assert records["age"].numeric
    assert isinstance(Records.read(frame, schema={"centre": "number"})["centre"], Numbers)
