"""Arrow reads a text file as Python's csv module does: each cell as it stands, whatever the others hold and wherever a
block ends."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records import batches, delimited
from concilium.records.columns import Coded, Column, Moments
from concilium.records.delimited import Layout
from concilium.records.grammar import DEFAULT_MISSING, is_number
from concilium.records.table import Records
from csv_oracle import read_carefully

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
AS_THEY_ARE = [
    (delimited, "BLOCK", delimited.BLOCK),
    (batches, "FEW_TEXTS", batches.FEW_TEXTS),
    (batches, "FIRST_ROWS", batches.FIRST_ROWS),
]
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
    """Both readings of a file, or the sentence that refuses it."""
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
            return describe(delimited._read_layout(layout, kinds, frozenset(missing))), carefully
        except RecordsError as refusal:
            return str(refusal), carefully


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of a few bytes, and columns that soon hold too many texts, so that small tables meet all ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK", 64)
        patch.setattr(batches, "FEW_TEXTS", 4)
        patch.setattr(batches, "FIRST_ROWS", 2)
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
    assert quickly == carefully


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
def test_any_text_is_read_as_carefully(text, width, kind, marked):
    names = [f"c{place}" for place in range(width)]
    content = ("\ufeff" if marked else "") + ",".join(names) + "\n" + text
    quickly, carefully = compare(content.encode(), names, kind, DEFAULT_MISSING)
    assert quickly == carefully


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=30))
def test_any_bytes_are_read_as_carefully(content):
    quickly, carefully = compare(b"a,b\n" + content, ["a", "b"], None, DEFAULT_MISSING)
    assert quickly == carefully


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.from_regex(r"\A-?[0-9]{0,9}\.?[0-9]{0,9}\Z"),
        st.decimals(allow_nan=False, allow_infinity=False, places=5).map(str),
        cells,
    ),
    st.tuples(st.lists(cells, max_size=3), st.lists(cells, max_size=3)),
)
@example("-", ([], []))
@example(".", ([], []))
@example("-.", (["1"], []))
@example("-.5", ([], []))
@example("-0", ([], ["5"]))
@example("0", (["1.2.3"], ["5"]))
@example("-00.5", ([], []))
@example("123456789012345.", ([], []))
def test_a_plain_decimal_is_the_number_that_python_reads(text, others):
    texts = [*others[0], text, *others[1]]
    array = pyarrow.array(["before", *texts])[1:]
    numbers, plain = batches._read_plain(array)
    number = numbers[len(others[0])]
    if plain[len(others[0])]:
        assert is_number(text)
        assert number == float(text)
        assert np.signbit(number) == np.signbit(float(text))
    else:
        assert np.isnan(number)
        assert not is_number(text) or "e" in text.lower() or len(text) > 15


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
    for module, name, size in AS_THEY_ARE:
        monkeypatch.setattr(module, name, size)
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
        assert quickly == carefully


def test_a_regular_file_is_read_by_arrow_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 1 << 20)
    monkeypatch.setattr(delimited, "_read_any", None)
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"a","b ""1"""\r\n"x\ny",2\r\n\r\n"",""\r\n')
    records = Records.read(path)
    assert records.values("a") == ["x\ny", None]
    assert records.values('b "1"') == [2, None]


def test_what_arrow_would_read_otherwise_is_read_from_there_on(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{row},x" for row in range(200)]
    path.write_text("\n".join(["a,b", *lines, '200,m"m', "201,y,", *lines]), encoding="utf-8")
    records = Records.read(path, schema={"a": "code"})
    assert records.values("a") == [*range(202), *range(200)]
    assert records.values("b") == ["x"] * 200 + ['m"m', "y"] + ["x"] * 200


@pytest.mark.parametrize("odd", ["", " 2020-01-02\t", "2020-01-02T03:04", "2020-01-02 03:04:05.123456", "NA"])
def test_times_are_read_as_microseconds(tmp_path, odd):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,1969-12-31 23:59:59\n" * 30 + f"2,{odd}\n", encoding="utf-8")
    column = delimited.read_delimited(path, lambda *_: {"b": "time"}, frozenset(DEFAULT_MISSING))["b"]
    assert isinstance(column, Moments)
    wanted = np.nan if odd in DEFAULT_MISSING else np.datetime64(odd.strip(), "us").astype(float)
    assert np.array_equal(column.numbers, [-1e6] * 30 + [wanted], equal_nan=True)


@pytest.mark.parametrize("odd", ["2020-02-30", "yesterday", "24:00", "2020-01-02 03:04:05Z"])
def test_times_that_are_not_plain_are_texts(tmp_path, odd):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,1969-12-31 23:59:59\n" * 30 + f"2,{odd}\n", encoding="utf-8")
    column = delimited.read_delimited(path, lambda *_: {"b": "time"}, frozenset(DEFAULT_MISSING))["b"]
    assert isinstance(column, Coded)
    assert len(column.values) == 2
