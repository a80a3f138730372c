"""Large tables, on disk and by blocks, are the tables that memory has: every digest, tree and decision, to the last
bit."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import RecordsError
from concilium.records import blocks, column_store, relation
from concilium.records.columns import Coded

SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Tables of a dozen rows are large."""

    def set_rows(rows):
        monkeypatch.setattr(blocks, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(blocks, "ROWS_SORTED", max(1, rows // 2))
        monkeypatch.setattr(column_store, "LARGE", 1)
        monkeypatch.setattr(column_store, "YOUNG", 0)

    return set_rows


def same(one: cc.Records, other: cc.Records) -> None:
    assert one.names == other.names
    assert one.digest == other.digest
    assert one.digest_in_order == other.digest_in_order
    np.testing.assert_array_equal(one.tell_apart(), other.tell_apart())
    for name in one.names:
        mine, theirs = one[name], other[name]
        assert type(mine) is type(theirs)
        assert mine.by_itself == theirs.by_itself
        assert (mine.raw is None) == (theirs.raw is None)
        if isinstance(mine, Coded):
            assert [*map(repr, mine.values)] == [*map(repr, theirs.values)]
            assert mine.codes.dtype == theirs.codes.dtype
            assert (mine.typed is None) == (theirs.typed is None)
            if mine.typed is not None:
                np.testing.assert_array_equal(mine.typed, theirs.typed)
        if mine.raw is not None:
            assert cc.Records({"x": mine.raw}).values("x") == cc.Records({"x": theirs.raw}).values("x")


CELLS = {
    "small": st.integers(0, 255).map(str),
    "whole": st.integers(-400, 400).map(str),
    "number": st.floats(-1e3, 1e3).map(lambda number: f"{number:.2f}"),
    "zeros": st.sampled_from(["0", "-0", "0.0", "-0.0", "1", "01", "1.0", "1e0"]),
    "mixed": st.sampled_from(["1", "2", "x", "", "NA", "?", " 3", "true", "2024-01-31", "250.10"]),
    "truth": st.sampled_from(["true", "false", ""]),
    "text": st.text("ab, \"'é", max_size=3),
}


@st.composite
def text_tables(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    rows = draw(st.integers(1, 30)) * draw(st.sampled_from([1, 1, 40]))
    seed = draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds)), min_size=1, max_size=30))
    order = np.random.default_rng(draw(st.integers(0, 999))).integers(0, len(seed), rows)
    stated = draw(st.dictionaries(st.sampled_from([f"c{i}" for i in range(len(kinds))]), st.just("code")))
    missing = draw(st.sampled_from([None, ["?", "NA"], ["-0", "1"]]))
    return [seed[row] for row in order], stated, missing, draw(st.integers(1, 40))


def write_text(path: Path, rows) -> None:
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    path.write_text(
        "\n".join([",".join(f"c{i}" for i in range(len(rows[0]))), *quoted, ""]), encoding="utf-8"
    )


@SETTINGS
@given(text_tables())
def test_text_files_read_the_same_from_disk(tmp_path, small_blocks, table):
    rows, schema, missing, block = table
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_text(path, rows)
    column_store.remove_stores(root)
    memory = cc.Records.read(path, schema=schema, missing=missing)
    expected = memory.digest, memory.tell_apart()
    small_blocks(block)
    stored = cc.Records.read(path, schema=schema, missing=missing, columns=root)
    assert stored.store is not None
    assert stored.digest == expected[0]
    np.testing.assert_array_equal(stored.tell_apart(), expected[1])
    same(stored, memory)
    small_blocks(1 << 20)


TYPED = {
    "int8": st.integers(-128, 127),
    "uint16": st.integers(0, 400),
    "float32": st.sampled_from([0.0, -0.0, 0.1, 2.0, 1e9]),
    "int64": st.integers(-(2**55), 2**55),
    "float64": st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0, float("nan")]), st.floats(-1e6, 1e6)),
    "whole": st.integers(-3, 3).map(float),
    "bool": st.booleans(),
    "string": st.sampled_from(["a", "b", "", "?", "1", "2.0", "Ω"]),
    "date": st.dates(datetime.date(1900, 1, 1)),
    "category": st.sampled_from(["a", "Ω", "c"]),
}


@st.composite
def typed_tables(draw):
    columns = {}
    rows = draw(st.integers(1, 60))
    for number, kind in enumerate(draw(st.lists(st.sampled_from(sorted(TYPED)), min_size=1, max_size=5))):
        cells = draw(st.lists(st.none() | TYPED[kind], min_size=rows, max_size=rows))
        form = {"whole": "float64", "date": "date32"}.get(kind, kind)
        if kind == "category":  # with values of no row
            places = pa.array([None if one is None else "caxΩ".index(one) for one in cells], pa.int8())
            columns[f"c{number}"] = pa.DictionaryArray.from_arrays(places, list("caxΩ"))
        else:
            columns[f"c{number}"] = pa.array(cells, getattr(pa, form + "_" * (form == "bool"))())
    kinds = draw(st.dictionaries(st.sampled_from(sorted(columns)), st.just("code")))
    written = {"row_group_size": draw(st.integers(1, 60)), "store_schema": draw(st.booleans())}
    return pa.table(columns), kinds, draw(st.integers(1, 40)), written


@SETTINGS
@given(typed_tables())
def test_typed_files_read_the_same_from_disk(tmp_path, monkeypatch, small_blocks, drawn):
    table, schema, block, written = drawn
    path, root = tmp_path / "t.parquet", tmp_path / "t.columns"
    pq.write_table(table, path, **written)
    monkeypatch.setattr(relation, "BATCH_ROWS", block)
    column_store.remove_stores(root)
    memory = cc.Records.read(path, schema=schema)
    expected = memory.digest
    small_blocks(block)
    stored = cc.Records.read(path, schema=schema, columns=root)
    assert stored.store is not None
    assert stored.digest == expected
    same(stored, memory)
    small_blocks(1 << 20)


def test_a_column_of_many_numbers_and_of_few_spellings(tmp_path, small_blocks):
    """Texts beyond what is kept of them: all numbers, then one that is none; and few numbers in many spellings."""
    draw = np.random.default_rng(3)
    numbers = [f"{number:.3f}" for number in draw.normal(0, 9, 3000)]
    spellings = [f"{number}.{'0' * (place % 9)}" for place, number in enumerate(draw.integers(0, 99, 3000))]
    late = [*numbers[:-1], "unknown"]
    negative = ["-0", *numbers[1:]]
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    write_text(path, list(zip(numbers, spellings, late, negative, strict=True)))
    memory = cc.Records.read(path)
    expected = memory.digest
    small_blocks(700)
    stored = cc.Records.read(path, columns=root)
    assert stored.digest == expected
    same(stored, memory)
    with pytest.raises(RecordsError, match="line 3001 holds 'unknown'"):
        cc.Records.read(path, schema={"c2": "number"}, columns=root)


def test_a_mapped_table_reads_the_same_from_disk(tmp_path, small_blocks):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    rows = [["m", "3,5", "2020-01-01"], ["f", "?", "2021-05-05"], ["f", "1.000,25", ""]] * 40
    write_text(path, rows)
    map = cc.TableMap.parse(
        {
            "decimal": ",",
            "thousands": ".",
            "missing": ["?"],
            "columns": {
                "sex": {"from": "c0", "values": {"m": "male", "f": "female"}},
                "old": {"where": "sex = 'male'"},
            },
        },
        "the map",
    )
    memory = cc.Records.read(path, map=map)
    expected = memory.digest
    small_blocks(50)
    for _ in range(2):
        stored = cc.Records.read(path, map=map, columns=root)
        assert stored.store is not None
        assert stored.digest == expected
        assert stored.lasting_names == memory.lasting_names
        same(stored, memory)
    assert len(column_store.list_stores(root)) == 1


def test_a_parquet_file_of_plain_columns_is_read_by_arrow(tmp_path, monkeypatch, small_blocks):
    """Which hands over the texts' own dictionary; where one column is not plain, DuckDB reads all."""
    path, root = tmp_path / "t.parquet", tmp_path / "t.columns"
    small_blocks(50)
    readings, read = [], relation._PlainParquet.read
    monkeypatch.setattr(
        relation._PlainParquet, "read", lambda *given: readings.append(given[1]) or read(*given)
    )
    plain = {"sex": ["m", "f", None] * 40, "age": [1, 2, 3] * 40, "lab": [0.5, None, 2.5] * 40}
    days = pa.array([0, None, 18_262] * 40, pa.date32())
    ancient = pa.array([0, None, -800_000] * 40, pa.date32())
    for more in ({}, {"seen": days}, {"seen": ancient}, {"dot.ted": ["a"] * 120}):
        pq.write_table(pa.table(plain | more), path)
        stored = cc.Records.read(path, columns=root)
        same(stored, cc.Records.read(path))
        assert stored.store is not None
        assert readings == ([[*plain, *more]] if more in ({}, {"seen": days}) else [])
        readings.clear()
    path.write_bytes(path.read_bytes()[:60] + b"\xff" * 40 + path.read_bytes()[100:])
    with pytest.raises(RecordsError, match="cannot be read as a Parquet file"):
        cc.Records.read(path, columns=root)


def note_readings(monkeypatch):
    """How tables are read: "all", or "later" for rows that came later; a list that grows."""
    readings = []
    for name, said in (("_code_batches", "all"), ("_code_later", "later")):
        code = getattr(column_store, name)

        def note(*given, code=code, said=said):
            found = code(*given)
            readings.append(said)
            return found

        monkeypatch.setattr(column_store, name, note)
    return readings


def read_grown(path, root, monkeypatch, write, table, grown, **options):
    """A table in memory, and one that was stored and then grew; both as "all" and "later" say it was read."""
    write(grown)
    memory = cc.Records.read(path, **options)
    expected = memory.digest
    column_store.remove_stores(root)
    fresh = cc.Records.read(path, columns=root.with_name("fresh"), **options)
    readings = note_readings(monkeypatch)
    write(table)
    cc.Records.read(path, columns=root, **options)
    write(grown)
    stored = cc.Records.read(path, columns=root, **options)
    assert stored.store is not None
    assert stored.digest == expected
    assert stored.store.find_damage() == []
    same(stored, fresh)
    assert len(column_store.list_stores(root)) == 1
    return readings


@settings(SETTINGS, max_examples=15)
@given(text_tables(), st.floats(0, 1))
def test_text_files_that_grew_are_read_on(tmp_path, small_blocks, table, share):
    rows, schema, missing, block = table
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    first = 1 + int(share * (len(rows) - 1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_blocks(block)
        readings = read_grown(
            path,
            root,
            monkeypatch,
            lambda some: write_text(path, some),
            rows[:first],
            rows,
            schema=schema,
            missing=missing,
        )
        assert readings[0] == "all"
        assert len(readings) == 2
    small_blocks(1 << 20)


@settings(SETTINGS, max_examples=15)
@given(typed_tables(), st.integers(1, 59))
def test_typed_files_that_grew_are_read_on(tmp_path, small_blocks, drawn, first):
    table, schema, block, written = drawn
    path, root = tmp_path / "t.parquet", tmp_path / "t.columns"
    first = min(first, len(table))

    def write(some: pa.Table) -> None:
        with pq.ParquetWriter(path, some.schema, store_schema=written["store_schema"]) as file:
            for part in (some[:first], some[first:]):
                if len(part):
                    file.write_table(part, row_group_size=written["row_group_size"])

    with pytest.MonkeyPatch.context() as monkeypatch:
        small_blocks(block)
        monkeypatch.setattr(relation, "BATCH_ROWS", block)
        read_grown(path, root, monkeypatch, write, table[:first], table, schema=schema)
    small_blocks(1 << 20)


@pytest.mark.parametrize("rows", [49, 50, 51, 99, 100, 101, 120])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_only_what_came_later_is_read(tmp_path, monkeypatch, small_blocks, rows, ending):
    """At the borders of blocks of 50 rows; with a new value in the middle of others, and with ids of very many."""
    monkeypatch.setattr("concilium.records.streaming.MOST_DISTINCT", 20)
    monkeypatch.setattr("concilium.records.batches.FEW_TEXTS", 10)
    monkeypatch.setattr("concilium.records.batches.FIRST_ROWS", 12)
    path, root = tmp_path / f"t.{ending}", tmp_path / "t.columns"
    draw = np.random.default_rng(rows)
    ids = [f"P{n:04d}" for n in draw.permutation(170)]
    wards = [*draw.choice(["a", "c", ""], 130), *draw.choice(["b", "c"], 40)]
    labs = [f"{one:.2f}" for one in draw.normal(0, 9, 170)]
    table = list(zip(ids, wards, labs, map(str, draw.integers(0, 3, 170)), strict=True))

    def write(some) -> None:
        if ending == "csv":
            write_text(path, some)
            return
        columns = list(zip(*some, strict=True))
        made = pa.table(
            [columns[0], columns[1], list(map(float, columns[2])), list(map(int, columns[3]))], list("iwln")
        )
        with pq.ParquetWriter(path, made.schema) as file:
            for part in (made[:rows], made[rows:]):
                if len(part):
                    file.write_table(part)

    small_blocks(50)
    assert read_grown(path, root, monkeypatch, write, table[:rows], table) == ["all", "later"]


def test_what_did_not_only_grow_is_read_as_a_whole(tmp_path, monkeypatch, small_blocks):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    small_blocks(50)
    readings = note_readings(monkeypatch)
    text = "a,b\n" + "1,x\n2,y\n" * 40
    versions = [
        text,
        text.replace("1,x", "2,x", 1) + "1,x\n",  # a row of before changed
        text + "3,x",  # the last line may go on
        text + "3,xy\n",
        text + '3,xy\n4,x"y\n',  # which Arrow may read otherwise
    ]
    first = None
    for version in versions:
        path.write_text(version, encoding="ascii")
        stored = cc.Records.read(path, columns=root)
        same(stored, cc.Records.read(path))
        first = first or stored
    # The third goes on behind the first, which is open; so the fourth cannot.
    assert readings == ["all", "all", "later", "all", "all"]
    assert first.values("b") == list("xy") * 40


def test_a_table_in_use_stays_as_it_is_while_later_ones_go_on_with_its_files(
    tmp_path, monkeypatch, small_blocks
):
    path, root = tmp_path / "t.csv", tmp_path / "t.columns"
    small_blocks(50)
    readings = note_readings(monkeypatch)
    open_now = []
    for rows in (60, 130, 131, 60, 90):
        # The last two begin as the first did, with whose files the second went on.
        write_text(
            path,
            [["1.5", "a"], [f"{rows}.25", "b" * (rows // 60)]] * rows if rows == 90 else [["1", "a"]] * rows,
        )
        open_now.append(cc.Records.read(path, columns=root))
        same(open_now[-1], cc.Records.read(path))
    for records in open_now:
        assert records.store.find_damage() == []
    assert readings == ["all", "later", "later", "all", "all"]
