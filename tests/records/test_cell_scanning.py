"""Reading quickly is reading carefully: each cell as it stands, whatever the others hold and wherever a block ends."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records import cell_scanning, delimited
from concilium.records.cell_scanning import _read_plain_decimal
from concilium.records.columns import Coded, Column
from concilium.records.delimited import Layout, look, read_carefully, read_quickly
from concilium.records.grammar import is_number
from concilium.records.table import DEFAULT_MISSING, Records

cells = st.one_of(
    st.sampled_from(
        ["0", "1", "-3", "12", "007", "+5", "5.0", "5.", ".5", "-0", "300", "40000", "1e3", "1e400", "inf", "-inf"]
    ),
    st.sampled_from(["", "NA", "null", "?", "-9", " 4", "\t4 ", "x", "TRUE", "false", "(missing)", "None", "é", "€"]),
    st.sampled_from(["9007199254740993", "123456789012345", "1234567890123456", "0.1234567890123456789"]),
    st.sampled_from(["2020-01-02", "2020-01-02 03:04:05", "a long text of many words", "a long text of many wordS"]),
    st.sampled_from(['""', '"1"', '"x,y"', '"l\nl"', '"r\r\nr"', '"d""q"', '"a quoted text that is long"', 'm"m']),
    st.integers(-400, 400).map(str),
    st.decimals(-500, 500, places=2).map(str),
    st.floats(allow_nan=False).map(repr),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"\r\n,'), max_size=9),
)  # fmt: skip
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=25)
)
AS_THEY_ARE = {
    name: getattr(cell_scanning, name) for name in ("CHUNK", "FIRST_ROWS", "ROWS", "STRIDE", "FEW_TEXTS")
}
ends = st.sampled_from(["\n", "\r\n", "\r"])


def describe(columns: dict[str, Column]) -> object:
    """All that a column says, as values that can be compared: NaN is text here."""
    records = Records(columns)

    def cells_of(column: Column) -> object:
        if isinstance(column, Coded):
            values = [None, *column.values]
            return column.values, column.stated, [values[code] for code in column.codes], column.codes.dtype
        return [str(number) for number in column.numbers.tolist()]

    return records.digest, [
        (name, type(one), one.by_itself, cells_of(one), one.raw is None) for name, one in columns.items()
    ]


def compare(
    content: bytes, names: list[str], kind: str | None, missing: tuple[str, ...], name: str = "t.csv"
):
    """Both readings of a file, or the sentence that refuses it; the quick one may also leave it to the careful one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        layout = Layout(path, ",", tuple(names), 1)
        kinds = dict.fromkeys(names, kind)
        try:
            carefully = describe(read_carefully(layout, kinds, frozenset(missing)))
        except RecordsError as refusal:
            carefully = str(refusal)
        try:
            columns = read_quickly(layout, kinds, frozenset(missing))
        except RecordsError as refusal:
            return str(refusal), carefully
        return None if columns is None else describe(columns), carefully


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of a few bytes and rows, and columns that soon hold too many texts, so that small tables meet all ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_scanning, "CHUNK", 11)
        patch.setattr(cell_scanning, "FIRST_ROWS", 2)
        patch.setattr(cell_scanning, "ROWS", 3)
        patch.setattr(cell_scanning, "STRIDE", 4)
        patch.setattr(cell_scanning, "FEW_TEXTS", 4)
        yield


@settings(max_examples=250, deadline=None)
@given(
    tables,
    ends,
    st.sampled_from([None, "code", "number", "text"]),
    st.sampled_from([DEFAULT_MISSING, ("",), ("", "?"), ("", "-9"), ("NA", "12")]),
    st.booleans(),
)
def test_quick_and_careful_reading_are_one(rows, end, kind, missing, closed):
    names = [f"c{place}" for place in range(len(rows[0]))]
    content = end.join(",".join(row) for row in [names, *rows]) + (end if closed else "")
    quickly, carefully = compare(content.encode(), names, kind, missing)
    if quickly is not None:
        assert quickly == carefully
    else:
        assert isinstance(carefully, str)  # only what is not regular is left to the careful reading


@settings(max_examples=250, deadline=None)
@given(
    st.text(st.sampled_from('01-.,"\n\r aé€NA'), max_size=60),
    st.integers(1, 3),
    st.sampled_from([None, "code"]),
    st.booleans(),
)
@example('1,"2', 2, None, False)
@example('"1"2,3', 2, None, False)
@example("1,2\r", 2, None, False)
@example("1\r\n\r\n2", 1, None, False)
@example('1,2,,""\n3,4,"",', 2, None, False)
def test_any_text_is_read_as_carefully_or_left(text, width, kind, marked):
    names = [f"c{place}" for place in range(width)]
    content = ("\ufeff" if marked else "") + ",".join(names) + "\n" + text
    quickly, carefully = compare(content.encode(), names, kind, DEFAULT_MISSING)
    assert quickly is None or quickly == carefully


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=30))
def test_bytes_that_are_not_utf_8_are_left(content):
    quickly, carefully = compare(b"a,b\n" + content, ["a", "b"], None, DEFAULT_MISSING)
    assert quickly is None or quickly == carefully


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.from_regex(r"\A-?[0-9]{0,9}\.?[0-9]{0,9}\Z"),
        st.decimals(allow_nan=False, allow_infinity=False, places=5).map(str),
        cells,
    )
)
@example("-")
@example(".")
@example("-.")
@example("-.5")
@example("123456789012345.")
def test_a_plain_decimal_is_the_number_that_python_reads(text):
    data = np.frombuffer(text.encode() + b"\n", dtype=np.uint8)
    end, number = _read_plain_decimal(data, 0, cell_scanning.POWERS)
    if end == len(text.encode()) > 0:
        assert is_number(text)
        assert number == float(text)
        assert np.signbit(number) == np.signbit(float(text))
    elif is_number(text) and "e" not in text.lower():
        assert sum(sign.isdigit() for sign in text) > 15


long_texts = st.builds(
    "".join,
    st.lists(
        st.sampled_from(["ward", "wards", "intensive care", "a", "é", "\0", " ", '""', ","]), max_size=9
    ),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(long_texts, min_size=1, max_size=40), st.booleans())
def test_long_texts_are_told_apart_wherever_they_differ(texts, quoted):
    cells = [f'"{text}"' if quoted else text.replace('""', "").replace(",", "") for text in texts]
    rows = "\n".join(f"{cell},{place}" for place, cell in enumerate(cells))
    quickly, carefully = compare(f"c0,c1\n{rows}\n".encode(), ["c0", "c1"], None, DEFAULT_MISSING)
    assert quickly == carefully


def test_a_large_file_of_all_kinds(monkeypatch):
    """With blocks as they are: measurements, identifiers, few and many codes, quoted texts, gaps; plain and gzipped."""
    for name, size in AS_THEY_ARE.items():
        monkeypatch.setattr(cell_scanning, name, size)
    draw = np.random.default_rng(4)
    rows = 12_000
    columns = {
        "small": [str(n) for n in draw.integers(-5, 300, rows)],
        "number": [f"{n:.4f}" if n > -1 else "NA" for n in draw.normal(0, 1, rows)],
        "late": [*map(str, range(rows - 1)), "unknown"],
        "long": [f"{n:.17f}" for n in draw.normal(0, 1, rows)],
        "id": [f"P{n:07d}" for n in draw.permutation(rows)],
        "ward": [f'"ward {n}, ""east"""' for n in draw.integers(0, 9, rows)],
        "day": [f"20{n:02d}-01-0{n % 9 + 1}" for n in draw.integers(0, 99, rows)],
    }
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    content = "\r\n".join(lines).encode()
    for name in ("t.csv", "t.csv.gz"):
        quickly, carefully = compare(content, list(columns), None, DEFAULT_MISSING, name)
        assert quickly is not None
        assert quickly == carefully


def test_large_files_are_read_quickly_and_small_ones_carefully(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(delimited, "read_quickly", lambda *given: read.append(given))
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert len(Records.read(path)) == 1
    assert not read
    monkeypatch.setattr(delimited, "SMALL", 4)
    assert len(Records.read(path)) == 1
    assert read
    assert look(path).names == ("a", "b")
