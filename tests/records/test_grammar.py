"""One cell, one reading: what a cell of a stated column is does not depend on what other cells of the column hold."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.cli.consult import _read_pairs, _read_value
from concilium.errors import RecordsError
from concilium.records import batches
from concilium.records.columns import Coded, Numbers, label
from concilium.records.grammar import (
    BEGINNINGS,
    BLANKS,
    MOMENT,
    NUMBER,
    TRUTH,
    canonical,
    is_moment,
    is_number,
    read_cell,
    read_number,
    read_text,
)
from concilium.records.table import Records

ODD = [
    *("TRUE", "True", "true", "FALSE", "tRUE", "unknown", "yes", "", " ", "NA", " NA ", "null", "None", "?"),
    *(
        "1",
        "1.0",
        "01",
        "+1",
        "-1",
        "-0",
        "-0.0",
        ".5",
        "5.",
        "0.50",
        "-.5",
        "1e3",
        "1E+3",
        "1e400",
        "1e-400",
    ),
    *(" 5", "5\t", "5 5", "1_000", "inf", "-Infinity", "nan", "0389", "038.9", "250.0", "250.00", "٣"),
    *(
        "9007199254740993",
        "9007199254740991",
        "12345678901234567890.5",
        "0.30000000000000004",
        "1e17",
        "(missing)",
    ),
    *("2020-01-02 00:00:00", "2020-01-02T03:04:05.50", "2020-01-02", "a,b", 'say "x"', " a", "é"),
]
raw = st.one_of(
    st.sampled_from(ODD),
    st.from_regex(r"[ \t]?[+-]?[0-9]{0,3}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?[ \t]?", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4),
)


def write_csv(path: Path, cells: Sequence[str]) -> Path:
    lines = ['"' + cell.replace('"', '""') + '",patient' for cell in cells]
    path.write_text("\n".join(["x,who", *lines, ""]), encoding="utf-8")
    return path


def read_labels(path: Path, kind: str) -> list[str]:
    return [label(value) for value in Records.read(path, schema={"x": kind}).values("x")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TRUE", True),
        ("True", True),
        ("false", False),
        ("tRUE", "tRUE"),
        ("5", 5),
        ("1.0", 1),
        ("5.", 5),
        (".5", 0.5),
        ("-.50", -0.5),
        ("1e3", 1000),
        ("-0", 0),
        (" 5\t", 5),
        ("01", "01"),
        ("+5", "+5"),
        ("1e400", "1e400"),
        ("inf", "inf"),
        ("9007199254740993", "9007199254740993"),
        ("0.30000000000000004", 0.30000000000000004),
        ("2020-01-02 00:00:00", "2020-01-02"),
        (" a", " a"),
        ("1,5", "1,5"),
    ],
)
def test_what_a_cell_stands_for(text, value):
    assert read_text(text) == value
    assert type(read_text(text)) is type(value)
    assert canonical(text) == label(value)
    assert canonical(canonical(text)) == canonical(text)


def test_what_is_missing_is_said_by_the_table():
    assert read_cell(" NA ", frozenset({"NA"})) is None
    assert read_cell("NA", frozenset()) == read_text("NA") == "NA"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+5", 5),
        ("007", 7),
        (" .5", 0.5),
        ("-INF", float("-inf")),
        ("x", None),
        ("1_0", None),
        ("TRUE", None),
    ],
)
def test_a_stated_number_is_read_however_it_is_written(text, number):
    assert read_number(text) == number


@settings(deadline=None, max_examples=60)
@given(st.lists(raw, min_size=1, max_size=8))
def test_every_cell_of_a_stated_code_is_read_as_if_it_were_alone(cells):
    with tempfile.TemporaryDirectory() as folder:
        together = read_labels(write_csv(Path(folder) / "all.csv", cells), "code")
        for number, (cell, read) in enumerate(zip(cells, together, strict=True)):
            assert read_labels(write_csv(Path(folder) / f"{number}.csv", [cell]), "code") == [read]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(raw.filter(lambda text: read_number(text) is not None), min_size=1, max_size=8), st.booleans()
)
def test_every_cell_of_a_stated_number_is_read_as_if_it_were_alone(cells, many):
    """Also by the other way, which columns of many different texts take."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        alone = [
            read_labels(write_csv(Path(folder) / f"{n}.csv", [c]), "number")[0] for n, c in enumerate(cells)
        ]
        if many:
            patch.setattr(batches, "FEW_TEXTS", 0)
            patch.setattr(batches, "FIRST_ROWS", 2)
        assert read_labels(write_csv(Path(folder) / "all.csv", cells), "number") == alone


values = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 3),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.sampled_from([1.0, 0.5, -0.0, 1e17]),
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=8))
def test_every_value_from_python_is_read_as_if_it_were_alone(cells):
    def read(some: list) -> list[str]:
        ways = [
            Records.from_rows([{"x": cell} for cell in some], schema={"x": "code"}),
            Records.read(pd.DataFrame({"x": pd.Series(some, dtype=object)}), schema={"x": "code"}),
        ]
        labels = [[label(value) for value in records.values("x")] for records in ways]
        assert labels[0] == labels[1]
        return labels[0]

    assert read(cells) == [read([cell])[0] for cell in cells]


def test_one_value_has_one_label_at_every_hospital(tmp_path):
    written = {
        "one.csv": ["1", "0", "true", ".5"],
        "other.csv": ["1.0", "0.00", "TRUE", "0.50"],
        "third.csv": ["1.", "-0", "True", "5e-1"],
    }
    labels = {
        tuple(read_labels(write_csv(tmp_path / name, cells), "code")) for name, cells in written.items()
    }
    assert labels == {("1", "0", "true", "0.5")}
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest(['1.0', '0.00', 'TRUE', '.5']) AS x")
        connection.execute(f"COPY t TO '{tmp_path / 'text.parquet'}' (FORMAT parquet)")
    assert tuple(read_labels(tmp_path / "text.parquet", "code")) in labels


def test_how_a_column_was_read_is_known_by_what_was_stated(tmp_path):
    path = write_csv(tmp_path / "t.csv", ["1", "2"])
    assert not Records.read(path)["x"].by_itself
    for kind, form in (("code", Coded), ("number", Numbers)):
        column = Records.read(path, schema={"x": kind}).take([0])["x"]
        assert isinstance(column, form)
        assert column.by_itself
    rows = [{"x": 1, "site": "a"}, {"x": 2, "site": "b"}]
    assert not Records.from_rows(rows)["x"].by_itself
    stated = Records.from_rows(rows, schema={"x": "number", "site": "code"})
    assert all(part["x"].by_itself for part in stated.split("site").values())


@pytest.mark.parametrize(
    "kind", ["INTEGER", "BIGINT", "HUGEINT", "DOUBLE", "DECIMAL(9,2)", "BOOLEAN", "VARCHAR", "DATE"]
)
def test_a_database_states_columns_by_their_types(tmp_path, kind):
    cells = {"BOOLEAN": "true", "VARCHAR": "'.5'", "DATE": "'2020-01-02'"}.get(kind, "1")
    for path in (tmp_path / "t.parquet", tmp_path / "t.duckdb"):
        with duckdb.connect(str(path) if path.suffix == ".duckdb" else ":memory:") as connection:
            connection.execute(f"CREATE TABLE t AS SELECT {cells}::{kind} AS x")
            if path.suffix == ".parquet":
                connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
        assert Records.read(path)["x"].by_itself


def test_a_stated_number_that_is_none_names_its_line(tmp_path):
    path = write_csv(tmp_path / "t.csv", ["5", "unknown"])
    with pytest.raises(RecordsError, match="column 'x' is stated as a number, but line 3 holds 'unknown'"):
        Records.read(path, schema={"x": "number"})


@pytest.mark.parametrize("cell", ODD)
def test_consult_reads_a_value_as_a_table_would(tmp_path, cell):
    if cell == "" or "\n" in cell:
        return
    from_table = read_labels(write_csv(tmp_path / "t.csv", [cell]), "code")
    assert [label(_read_value(cell))] == from_table
    assert [label(_read_pairs([f"x={cell}"])["x"])] == from_table


@given(
    st.one_of(
        st.text(max_size=4),
        st.from_regex(rf"\A[ \t]?(?:{NUMBER}|{MOMENT}|true|TRUE|False|FALSE)[ \t]?\Z"),
    )
)
def test_what_stands_for_something_else_begins_as_the_grammar_says(text):
    """The look at the first character spares most texts the rest, and changes no value."""
    bare = text.strip(BLANKS)
    if bare in TRUTH or is_number(bare) or is_moment(bare):
        assert text[:1] in BEGINNINGS
