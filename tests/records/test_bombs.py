"""Small files that unfold to more than any machine holds: each is refused with one sentence, in bounded memory."""

from __future__ import annotations

import functools
import io
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from concilium.errors import ConciliumError, RecordsError
from concilium.records import confined, relation, sources
from concilium.records.table import Records
from concilium.study.attached_files import unpack_attached

MEMORY = 1 << 29
FEW = 400 << 20  # bytes that this process may grow by

SHEET = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{}</worksheet>'
CELL = '<row r="{0}"><c r="{1}{0}" t="inlineStr"><is><t>{2}</t></is></c></row>'
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


def xlsx(sheet, strings="", doctype=""):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr(
            "xl/workbook.xml",
            '<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="http://schemas.'
            'openxmlformats.org/officeDocument/2006/relationships"><sheets><sheet name="a" sheetId="1" r:id="r1"/>'
            "</sheets></workbook>",
        )
        book.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r0" '
            'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
        book.writestr(
            "xl/_rels/workbook.xml.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{kind}/worksheet" Target="worksheets/sheet1.xml"/>'
            f'<Relationship Id="r2" Type="{kind}/sharedStrings" Target="sharedStrings.xml"/></Relationships>',
        )
        if strings:
            book.writestr("xl/sharedStrings.xml", strings)
        with book.open("xl/worksheets/sheet1.xml", "w") as file:
            for part in [doctype.encode(), *([sheet] if isinstance(sheet, str) else sheet)]:
                file.write(part.encode() if isinstance(part, str) else part)
    return out.getvalue()


def ods(rows, columns):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr(
            "META-INF/manifest.xml",
            '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>',
        )
        text = "<text:p>x</text:p>"
        cell = (
            f'<table:table-cell table:number-columns-repeated="{columns}" office:value-type="string">{text}'
        )
        book.writestr(
            "content.xml",
            '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:table="urn:'
            'oasis:names:tc:opendocument:xmlns:table:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">'
            '<office:body><office:spreadsheet><table:table table:name="a"><table:table-row table:number-rows-repeated='
            f'"{rows}">{cell}</table:table-cell></table:table-row></table:table></office:spreadsheet></office:body>'
            "</office:document-content>",
        )
    return out.getvalue()


def inflate(mebibytes):
    before, after = SHEET.split("{}")
    return [before, "<sheetData>", '<row r="1"><c r="A1" t="inlineStr"><is><t>', *[b"A" * (1 << 20)] * mebibytes,
            "</t></is></c></row></sheetData>", after]  # fmt: skip


def rows(*cells):
    return SHEET.format("<sheetData>" + "".join(CELL.format(*cell) for cell in cells) + "</sheetData>")


SPREADSHEETS = {
    "corners": ("x.xlsx", lambda: xlsx(rows((1, "A", "a"), (1048576, "XFD", "b")))),
    "beyond": ("x.xlsx", lambda: xlsx(rows((1, "A", "a"), (4294967295, "ZZZZZZ", "b")))),
    "dimension": (
        "x.xlsx",
        lambda: xlsx(SHEET.format('<dimension ref="A1:XFD1048576"/><sheetData></sheetData>')),
    ),
    "one cell": ("x.xlsx", lambda: xlsx(inflate(200))),
    "repeated": ("x.ods", lambda: ods(1048576, 16384)),
    "repeated without end": ("x.ods", lambda: ods(10**18, 10**18)),
    "strings": (
        "x.xlsx",
        lambda: xlsx(
            SHEET.format('<sheetData><row r="1"><c r="A1" t="s"><v>4294967295</v></c></row></sheetData>'),
            '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" count="4294967295" '
            'uniqueCount="4294967295"><si><t>a</t></si></sst>',
        ),
    ),
    "laughs": (
        "x.xlsx",
        lambda: xlsx(rows((1, "A", "&l9;")), doctype=f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>'),
    ),
    "no zip": ("x.xlsx", lambda: b"PK\x03\x04" + bytes(1000)),
}


def test_what_does_not_unfold_is_read(tmp_path):
    """The files above are refused for what they hold, not for how they are built."""
    pytest.importorskip("python_calamine")
    (tmp_path / "x.xlsx").write_bytes(xlsx(rows((1, "A", "a"), (2, "A", "b"))))
    (tmp_path / "x.ods").write_bytes(ods(3, 1))
    assert Records.read(tmp_path / "x.xlsx").values("a") == ["b"]
    assert Records.read(tmp_path / "x.ods").values("x") == ["x", "x"]


@pytest.fixture
def low_limits(monkeypatch):
    limited = functools.partial(confined.read_confined, memory=MEMORY, seconds=20, output=1 << 26)
    monkeypatch.setattr(sources, "read_confined", limited)


@pytest.mark.parametrize("name", SPREADSHEETS)
def test_a_spreadsheet_that_unfolds_is_refused(tmp_path, low_limits, name):
    pytest.importorskip("python_calamine")
    called, make = SPREADSHEETS[name]
    (tmp_path / called).write_bytes(make())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordsError) as caught:
        Records.read(tmp_path / called)
    assert len(str(caught.value)) < 400
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < FEW
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10 < 4 << 30


def parquet(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def repeat(text, number):
    codes = pa.array(np.zeros(number, np.int32))
    return pa.table({"a": pa.DictionaryArray.from_arrays(codes, pa.array([text]))})


def lie_about_rows():
    """A footer that says more rows than any memory holds."""
    content = bytearray(parquet(pa.table({"a": pa.array(np.zeros(1000, np.int8))}), compression="none"))
    size = int.from_bytes(content[-8:-4], "little")
    footer = bytes(content[-8 - size : -8])
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"  # a varint far above 1000 (b"\xd0\x0f")
    changed = footer.replace(b"\xd0\x0f", many)
    assert changed != footer
    return bytes(content[: -8 - size]) + changed + len(changed).to_bytes(4, "little") + b"PAR1"


PARQUET = {
    "text": lambda: parquet(repeat("x" * (1 << 20), 100_000), compression="zstd"),
    "lists": lambda: parquet(pa.table({"a": [[[1]]]})),
    "columns": lambda: parquet(pa.table({f"a{n}": [1] for n in range(2001)})),
    "rows": lie_about_rows,
    "no footer": lambda: b"PAR1" + bytes(100) + b"PAR1",
    "long footer": lambda: b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7f" + b"PAR1",
    "deep": lambda: b"PAR1" + b"\x1c" * 100_000 + (100_000).to_bytes(4, "little") + b"PAR1",
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_parquet_file_that_unfolds_is_not_taken(tmp_path, name):
    """What a house does with one that came with a study."""
    content = PARQUET[name]()
    assert len(content) < 1 << 20
    with pytest.raises(ConciliumError, match=r"'x\.parquet' that came with the study"):
        unpack_attached({"x.parquet": attach(content)}, tmp_path)
    assert not list(tmp_path.iterdir())


def attach(content):
    import base64
    import zlib

    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize("name", ["text", "rows", "no footer", "long footer", "deep"])
def test_a_hospital_s_own_parquet_file_that_unfolds_is_refused(tmp_path, name):
    (tmp_path / "x.parquet").write_bytes(PARQUET[name]())
    with pytest.raises(RecordsError) as caught:
        Records.read(tmp_path / "x.parquet")
    assert len(str(caught.value)) < 400


def test_more_rows_than_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(parquet(pa.table({"a": np.zeros(100_000, np.int8)})))
    assert len(Records.read(tmp_path / "x.parquet")) == 100_000
    monkeypatch.setattr(relation, "_find_memory", lambda: 1_000_000)
    with pytest.raises(RecordsError, match="100,000 rows of 1 columns, more than the memory"):
        Records.read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "text", [".".join("a" * 100_000) + "=1", "a=" + "[" * 100_000, "a=" + "{a=" * 50_000, "a=" + "9" * 5000]
)
def test_a_text_that_takes_hours_or_nests_without_end_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setattr("concilium.study.attached_files.TOML_SECONDS", 1)
    with pytest.raises(ConciliumError, match=r"'x\.toml' that came with the study"):
        unpack_attached({"x.toml": attach(text.encode())}, tmp_path)
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(ConciliumError, match="the study's text is not TOML"):
        unpack_attached({}, tmp_path)


def test_what_does_not_fit_in_memory_still_spills(tmp_path, monkeypatch):
    """The private folder is open to DuckDB, although files are not."""
    import duckdb

    connect = duckdb.connect

    def small(name, config):
        return connect(name, config={**config, "memory_limit": "24MB", "threads": 1})

    monkeypatch.setattr(duckdb, "connect", small)
    with relation.scratch_database() as (connection, folder):
        connection.execute("CREATE TEMP TABLE t AS SELECT range AS a, hash(range) AS b FROM range(3000000)")
        assert any(folder.iterdir())
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (3_000_000,)
