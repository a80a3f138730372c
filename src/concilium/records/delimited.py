"""Tables in text files (csv, tsv, plain or gzipped), following RFC 4180: UTF-8, a header line, quoted fields.

Arrow reads the cells as batches of text. Python's csv module reads the header, and the rest of a file from where Arrow
might read it otherwise or stops. It also finds the line for an error message.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from concilium.errors import RecordsError
from concilium.records.batches import DeclaredColumn, NotContinued, code_batches
from concilium.records.coding import Place, ReadingKind, Schema, check_names, plan_reading
from concilium.records.columns import Column

if TYPE_CHECKING:
    import pyarrow

DELIMITERS = ",;\t|"
HEAD = 1 << 16  # characters looked at to tell the delimiter
BLOCK = 1 << 21  # bytes read at once
MOST_BLOCKS = 16  # of one record
ROWS = 10_000  # rows of a batch of the csv module


@dataclass(frozen=True)
class Layout:
    """A text file, what separates its fields, how its columns are called, and the line its header is on."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    line: int

    def row(self, row: int) -> str:
        """How people find a row in the file: by its line."""
        line, _ = next(itertools.islice(rows(self), row, None))
        return f"line {line}"


def read_delimited(path: Path, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a text file; what its texts stand for is guessed unless the schema states it."""
    layout = look(path)
    check_names(layout.names, f"{path}, line {layout.line}")
    return _read_layout(layout, plan_reading(schema, layout.names, str(path)), missing)


def _read_layout(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column]:
    """These columns of a text file, each of its kind where that is stated."""
    return code_batches(
        lambda names: _read_batches(layout, names),
        {name: DeclaredColumn(kind, missing, guess=kind != "text") for name, kind in kinds.items()},
        lambda name: Place(str(layout.path), name, layout.row),
        empty=f"{layout.path} holds no patients: there is a header line and nothing after it",
        read_later=lambda names, before: _read_regular(
            layout, list(map(layout.names.index, names)), before["bytes"]
        ),
    )


def _read_batches(layout: Layout, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """The cells of these columns as text, in the order of the rows, or the first fault of the file with its line."""
    places = [layout.names.index(name) for name in names]
    read = 0
    try:
        for batch in _read_regular(layout, places):
            yield batch
            read += batch.num_rows
    except _Irregular:
        yield from _read_any(layout, places, read)


def _read_regular(layout: Layout, places: Sequence[int], start: int = 0) -> Iterator[pyarrow.RecordBatch]:
    """Batches as Arrow reads them, as long as it can only read them as Python's csv module does; from the record
    on that begins at byte `start`.

    Each block is read by itself and at once: where Arrow's reader of streams is left before the end of a file, it may
    keep a thread that waits for itself, and a process that never ends.
    """
    import pyarrow
    from pyarrow import csv as arrow_csv

    if layout.line > 1:
        raise _Irregular
    names = [str(place) for place in range(len(layout.names))]
    chosen = [str(place) for place in places]
    grammar = arrow_csv.ParseOptions(
        delimiter=layout.delimiter, newlines_in_values=True, ignore_empty_lines=len(names) > 1
    )
    convert = arrow_csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(chosen, pyarrow.string()),
        strings_can_be_null=False,
        include_columns=chosen,
    )
    with _open_bytes(layout.path) as raw, _faults(layout.path):
        raw.seek(start)
        for number, block in enumerate(_read_records(raw, layout.delimiter, started=start > 0)):
            options = arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=names,
                skip_rows_after_names=1 if number == start == 0 else 0,
            )
            try:
                table = arrow_csv.read_csv(pyarrow.BufferReader(block), options, grammar, convert)
            except pyarrow.ArrowInvalid:
                raise _Irregular from None
            for batch in table.to_batches():
                if any(map(_holds_long_text, batch.columns)):
                    raise _Irregular
                yield batch


def _holds_long_text(array: pyarrow.StringArray) -> bool:
    from pyarrow import compute

    limit = csv.field_size_limit()
    return array.get_total_buffer_size() > limit and bool(
        compute.max(compute.binary_length(array)).as_py() > limit
    )


class _Irregular(NotContinued):
    """What Arrow may not read as Python's csv module does."""


def _read_records(
    raw: gzip.GzipFile | io.BufferedReader, delimiter: str, *, started: bool
) -> Iterator[bytes]:
    """Blocks of complete records: valid UTF-8, with quotation marks where RFC 4180 has them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    marks = _Marks(delimiter)
    marks.started = started
    rest = b""
    while block := raw.read(BLOCK):
        if decoder.getstate()[0] or not block.isascii():
            decoder.decode(block)
        if not marks.started:
            block = block.removeprefix(codecs.BOM_UTF8)
        marks.check(block)
        data = rest + block
        end = _find_last_end(data, marks.count % 2)
        if end:
            yield data[:end]
        rest = data[end:]
        if len(rest) > MOST_BLOCKS * BLOCK:
            raise _Irregular
    decoder.decode(b"", final=True)
    if marks.count % 2:
        raise _Irregular
    if rest:
        yield rest


def _find_last_end(data: bytes, quoted: int) -> int:
    """Where the last record that is complete ends; `quoted` is 1 where the data end inside a quoted field."""
    end = len(data)
    while end > 0:
        # A return at the very end may be half of a line end.
        place = max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, end - 1))
        if place < 0:
            return 0
        quoted ^= data.count(b'"', place, end) % 2
        if not quoted:
            return place + 1
        end = place
    return 0


class _Marks:
    """Checks the quotation marks of a text file, block by block.

    A mark opens a field only at its beginning or as the second of two, and closes one only at its end or as the first
    of two. Of such marks Arrow and Python's csv module cannot make different fields.
    """

    def __init__(self, delimiter: str) -> None:
        self.count = 0
        self.started = False
        self._last = b"\n"
        self._beside = np.zeros(256, dtype=bool)
        self._beside[[ord(sign) for sign in f'"\r\n{delimiter}']] = True

    def check(self, block: bytes) -> None:
        """Refuse a mark that is out of place, the last one of the block before among them."""
        closed = self._last == b'"' and self.count % 2 == 0
        if closed and not self._beside[block[0]]:
            raise _Irregular
        if b'"' in block:
            signs = np.frombuffer(self._last + block + b"\n", dtype=np.uint8)
            places = np.flatnonzero(signs[1:-1] == ord('"')) + 1
            opening, closing = places[self.count % 2 :: 2], places[1 - self.count % 2 :: 2]
            if not (self._beside[signs[opening - 1]].all() and self._beside[signs[closing + 1]].all()):
                raise _Irregular
            self.count += len(places)
        self._last = block[-1:]
        self.started = True


def _read_any(layout: Layout, places: Sequence[int], start: int) -> Iterator[pyarrow.RecordBatch]:
    """Batches as Python's csv module reads them, from this row on, or the first fault of the file with its line."""
    import pyarrow

    fields = (fields for _, fields in itertools.islice(rows(layout), start, None))
    while block := list(itertools.islice(fields, ROWS)):
        columns = list(zip(*block, strict=True))
        arrays = [pyarrow.array(columns[place], pyarrow.string()) for place in places]
        yield pyarrow.RecordBatch.from_arrays(arrays, [str(place) for place in places])


def look(path: Path) -> Layout:
    """The header of a text file; the delimiter is the one by which the first records best agree with it."""
    with _open_text(path) as text, _faults(path):
        head = text.read(HEAD)
    if not head.strip():
        raise RecordsError(f"{path} is empty; a table of patients starts with a line of column names")
    delimiter = max(DELIMITERS, key=lambda candidate: _agreement(head, candidate))
    line, names = next((line, fields) for line, fields in _parse(path, delimiter) if fields)
    return Layout(path, delimiter, tuple(name.strip() for name in names), line)


def _agreement(head: str, delimiter: str) -> tuple[float, int]:
    """The share of records with as many fields as the header, and that number (1: no delimiter at all)."""
    records: list[list[str]] = []
    with suppress(csv.Error):
        records.extend(
            fields for fields in csv.reader(io.StringIO(head, newline=""), delimiter=delimiter) if fields
        )
    if len(head) == HEAD and len(records) > 1:
        records.pop()
    width = len(records[0]) if records else 1
    if width == 1:
        return 0.0, 1
    return (1 + sum(len(fields) == width for fields in records[1:])) / len(records), width


def rows(layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """The patients of a text file as (line, fields); a blank line is skipped, a ragged one is an error.

    As DuckDB has it, empty fields beyond the last column are no fault, and in a table of one column a blank
    line is a patient whose value is missing.
    """
    width = len(layout.names)
    for line, fields in _parse(layout.path, layout.delimiter):
        if line <= layout.line or (not fields and width > 1):
            continue
        if 0 < len(fields) < width or any(fields[width:]):
            raise RecordsError(
                f"{layout.path}, line {line}: expected {width} fields, as in the header, but found {len(fields)}"
            )
        yield line, fields[:width] or [""]


def _parse(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Every record of a text file with the line it starts on."""
    with _open_text(path) as text, _faults(path):
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        line = 1
        try:
            for fields in reader:
                yield line, fields
                line = reader.line_num + 1
        except csv.Error as fault:
            raise RecordsError(f"{path}, line {line}: {_explain(str(fault))}") from None


def _explain(fault: str) -> str:
    if "unexpected end" in fault:
        return "a quotation mark is opened and never closed"
    if "expected after" in fault:
        return "a quotation mark inside a quoted field must be doubled"
    return f"a field is longer than {csv.field_size_limit()} characters; is a quotation mark never closed?"


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    with _open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        yield text


@contextmanager
def _open_bytes(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as raw:
        yield raw


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """What can go wrong with the bytes of a text file, in one sentence."""
    try:
        yield
    except UnicodeDecodeError:
        line, place, byte = _find_bad_byte(path)
        raise RecordsError(
            f"{path}, line {line}: byte {place} of the line (0x{byte:02X}) is not UTF-8; save the file as UTF-8"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise RecordsError(f"{path} is not a complete gzip file; compress it anew") from None


def _find_bad_byte(path: Path) -> tuple[int, int, int]:
    """The line, the place within it (from 1) and the value of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, before, rest = 1, 0, b""
    with _open_bytes(path) as raw:
        while True:
            block = raw.read(BLOCK)
            data = rest + block
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as fault:
                good = data[: fault.start]
                line += good.count(b"\n")
                start = good.rfind(b"\n") + 1
                return line, fault.start - start + 1 + (0 if start else before), data[fault.start]
            rest = decoder.getstate()[0]
            good = data[: len(data) - len(rest)]
            line += good.count(b"\n")
            before = len(good) - good.rfind(b"\n") - 1 + (before if b"\n" not in good else 0)
