from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import RecordsError
from concilium.records import delimited
from concilium.records.columns import Coded, Numbers
from concilium.records.delimited import Layout, _read_layout, look
from concilium.records.grammar import DEFAULT_MISSING
from concilium.records.table import Records
from csv_oracle import read_carefully

MISSING = frozenset(DEFAULT_MISSING)
NOTHING_STATED = {"a": None, "b": None}


def write(folder: Path, content: bytes, name: str = "patients.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def table(records: Records) -> dict[str, list[object]]:
    return {name: records.values(name) for name in records.names}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"a,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b"a,b\r\n1,x\r\n2,y", {"a": [1, 2], "b": ["x", "y"]}),
        (b"\xef\xbb\xbfa;b\n1,5;x\n", {"a": ["1,5"], "b": ["x"]}),
        (b"a\tb\n1\tx,y;z\n", {"a": [1], "b": ["x,y;z"]}),
        (b"a|b\n1|x\n", {"a": [1], "b": ["x"]}),
        (b'"a ""one""","b,c"\n1,"say ""hi"", then\nleave"\n', {'a "one"': [1], "b,c": ['say "hi", then\nleave']}),
        (b'"first\nname",b\n1,2\n', {"first\nname": [1], "b": [2]}),
        (b"a,b\n1,x\r\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b"\n\na,b\n1,x\n", {"a": [1], "b": ["x"]}),
        (b"a,b\n1,x\n\n2,y\n\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b"a,b\n1,x,\n", {"a": [1], "b": ["x"]}),
        (b"a\n1\n\n3\n", {"a": [1, None, 3]}),
        (b" a , b\n1,5\n", {"a": [1], "b": [5]}),
        (b"Age,age\n1,2\n", {"Age": [1], "age": [2]}),
        (b"a,b,c\n,NA,None\nNaN,null, NULL\n", {"a": [None, None], "b": [None, None], "c": ["None", None]}),
        ("name,größe\nJörg,1.80\n".encode(), {"name": ["Jörg"], "größe": [1.8]}),
        (b"icd,zip,id\n0389,01234,9007199254740993\n4019,98765,1\n",
         {"icd": ["0389", "4019"], "zip": ["01234", "98765"], "id": ["9007199254740993", "1"]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["patients.csv", "patients.CSV.gz", "odd [1]* name's.csv"])
def test_text_files_of_all_kinds(
    tmp_path: Path, content: bytes, wanted: dict[str, list[object]], name: str
) -> None:
    assert table(Records.read(write(tmp_path, content, name))) == wanted


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a,b,c\n1,2,3\n4,5\n6,7,8\n", "line 3: expected 3 fields, as in the header, but found 2"),
        (b'a,b\n"x\ny",2\n4,5,6\n', "line 4: expected 2 fields, as in the header, but found 3"),
        (b"a,b\n1,2\n  \n3,4\n", "line 3: expected 2 fields, as in the header, but found 1"),
        (b"a,b\n", "holds no patients"),
        (b"a,b", "holds no patients"),
        (b" \n", "is empty"),
        (b"a,b\n1,2\n3,caf\xe9\n", r"line 3: byte 6 of the line \(0xE9\) is not UTF-8"),
        (b"caf\xe9,b\n1,2\n", r"line 1: byte 4 of the line \(0xE9\) is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), r"line 1: byte 1 of the line \(0xFF\) is not UTF-8"),
        (b"a,b\n1,2\n3,x\xc3", r"line 3: byte 4 of the line \(0xC3\) is not UTF-8"),
        (b"a,b,a\n1,2,3\n", "line 1: columns 1 and 3 are both named 'a'"),
        (b"a,,c\n1,2,3\n", "line 1: column 2 has no name"),
        (b'a,b\n1,2\n1,"x\n3,4\n', "line 3: a quotation mark is opened and never closed"),
        (b'a,b\n"x"y,2\n', "line 2: a quotation mark inside a quoted field must be doubled"),
    ],
)
@pytest.mark.parametrize("name", ["patients.csv", "patients.csv.gz"])
def test_a_bad_text_file_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, sentence: str, name: str
) -> None:
    path = write(tmp_path, content, name)
    with pytest.raises(RecordsError, match=sentence) as refusal:
        Records.read(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_an_endless_field_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b'a,b\n1,2\n3,"' + b"x" * 300_000 + b"\n")
    with pytest.raises(RecordsError, match="line 3: a field is longer than 131072 characters"):
        Records.read(path)


def test_a_bad_byte_is_found_behind_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCK", 7)
    good = "a,b\n1,ü\nlänger als ein Block,€€€€".encode()
    last = good.rfind(b"\n")
    path = write(tmp_path, good + b"\xff,3\n")
    with pytest.raises(RecordsError, match=f"line 3: byte {len(good) - last} of the line"):
        Records.read(path)


@pytest.mark.parametrize("cut", [5, 60])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "patients.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 9_000)[:cut])
    with pytest.raises(RecordsError, match="not a complete gzip file"):
        Records.read(path)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(RecordsError, match="not a complete gzip file"):
        Records.read(path)


def test_missing_tokens_can_be_stated(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b,c\n?,NA,-9\n5,,3\n")
    assert table(Records.read(path)) == {"a": ["?", "5"], "b": [None, None], "c": [-9, 3]}
    assert table(Records.read(path, missing=("?", "-9"))) == {"a": [None, 5], "b": ["NA", ""], "c": [None, 3]}
    assert table(Records.read(path, missing="?"))["a"] == [None, 5]


@pytest.mark.parametrize("rows", [3, 5_000])
def test_a_stated_number_that_is_none_names_the_line(tmp_path: Path, rows: int) -> None:
    lines = [f'"two\nlines",{row}.5' for row in range(rows)]
    lines[2] = "x,n/a"
    path = write(tmp_path, ("note,age\n" + "\n".join(lines) + "\n").encode())
    with pytest.raises(RecordsError, match=r"column 'age' is stated as a number, but line 6 holds 'n/a'"):
        Records.read(path, schema={"age": "number"})
    age = Records.read(path, schema={"age": "number"}, missing=["n/a"])["age"]
    assert isinstance(age, Numbers)
    assert age.numbers[1] == 1.5


@pytest.mark.parametrize(
    ("exception", "kind"),
    [("", "number"), (" NA", "number"), ("inf", "number"), ("-9", "number"), ("0389", "text"), ("unknown", "text"),
     ("+7", "text"), ("1_0", "text"), ("9007199254740993", "text"), ("1000000000000000", "number")],
)  # fmt: skip
def test_one_exception_among_many_numbers(tmp_path: Path, exception: str, kind: str) -> None:
    texts = [f"{row}" for row in range(5_000)] + [exception]
    path = write(tmp_path, "\n".join(["a,b", *(f"{text},1" for text in texts)]).encode())
    records = Records.read(path, missing=("", "NA", "-9"))
    if kind == "text":
        assert records.values("a") == texts
    else:
        assert isinstance(records["a"], Numbers)
        special = {"inf": float("inf"), "1000000000000000": 1e15}
        assert records.values("a") == [*map(float, range(5_000)), special.get(exception)]


def test_a_column_of_identifiers_and_one_of_many_categories(tmp_path: Path) -> None:
    rows = 70_000
    identifiers = [f"P{(row * 7919) % rows:06d}" for row in range(rows)]
    wards = [f"w{row % 300}" if row % 11 else "" for row in range(rows)]
    path = write(
        tmp_path, "\n".join(["id,ward", *map(",".join, zip(identifiers, wards, strict=True))]).encode()
    )
    records = Records.read(path)
    for name, texts in (("id", identifiers), ("ward", wards)):
        column = records[name]
        assert isinstance(column, Coded)
        assert column.values == tuple(sorted(set(texts) - {""}))
        assert records.values(name) == [text or None for text in texts]


fields = st.sampled_from(
    [
        "5",
        "-1.5",
        "a",
        "",
        " 5",
        "NA",
        "é",
        "#x",
        "true",
        '"x,y"',
        '"l\nl"',
        '"r\r\nr"',
        '"d""q"',
        '""',
        "0389",
        "a b",
    ]
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(fields, min_size=1, max_size=3), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n"]),
)
def test_reading_quickly_and_carefully_agree(rows: list[list[str]], end: str) -> None:
    content = end.join(["a,b", *(",".join(row) for row in rows)]) + end
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), content.encode())
        layout = Layout(path, ",", ("a", "b"), 1)
        parsed = [row for row in csv.reader(io.StringIO(content, newline="")) if row][1:]
        if not parsed or any(len(row) < 2 or any(row[2:]) for row in parsed):
            with pytest.raises(RecordsError, match=r"expected 2 fields|no patients"):
                _read_layout(layout, NOTHING_STATED, MISSING)
        else:
            quick = Records(_read_layout(layout, NOTHING_STATED, MISSING))
            assert quick.digest == Records(read_carefully(layout, NOTHING_STATED, MISSING)).digest
            assert len(quick) == len(parsed)


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n", ";"),
        ("name, first;age\nx;5\n", ";"),
        ("a\n1\n", ","),
        ("a,b,c\n1,2\n", ","),
        ('"a;b;c",d\n"1;2;3",4\n', ","),
    ],
)
def test_the_delimiter_is_told_from_the_first_records(tmp_path: Path, content: str, delimiter: str) -> None:
    assert look(write(tmp_path, content.encode())).delimiter == delimiter


def test_many_markers_of_missing_leave_every_patient_in_their_row(tmp_path: Path) -> None:
    """With five of them DuckDB would look them up by a join, and a join does not keep the order of rows."""
    rows = 300_000
    path = tmp_path / "many.csv"
    path.write_text("row,age\n" + "".join(f"{row},{row % 5000}.5\n" for row in range(rows)))
    markers = ("-1", "-2", "-3", "-4", "-5", "-6", "-7")
    records = Records.read(path, missing=markers, schema={"row": "number", "age": "number"})
    assert np.array_equal(records["row"].numbers, np.arange(rows))
    assert np.array_equal(records["age"].numbers, np.arange(rows) % 5000 + 0.5)
