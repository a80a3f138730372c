"""Tables in text files (csv, tsv, plain or gzipped), following RFC 4180: UTF-8, a header line, quoted fields.

The cells of a large file are scanned in one pass (cell_scanning.py), and each distinct text of a column is read once;
DuckDB reads times. Python's csv module reads the header and small files, settles what the others stop at, and finds the
line for an error message.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.coding import (
    SAFE_NUMBER,
    Numbering,
    Place,
    ReadingKind,
    Schema,
    check_names,
    code_numbers,
    code_texts,
    plan_reading,
    reads_as_number,
    stated_kind,
)
from concilium.records.columns import Column
from concilium.records.grammar import BLANKS, DEFAULT_MISSING, is_losing, is_number, read_number
from concilium.records.relation import Relation, in_one_sentence, literal, scratch_database

if TYPE_CHECKING:
    from concilium.records.cell_scanning import ScannedColumn

DELIMITERS = ",;\t|"
HEAD = 1 << 16  # characters looked at to tell the delimiter
BLOCK = 1 << 20  # bytes looked at at once for a fault
ROWS = 10_000  # rows coded at once
SMALL = 1 << 21  # bytes of a file that is read before the quick way is loaded
NUMERIC_KINDS = (None, "number")
is_safe_number = re.compile(SAFE_NUMBER).fullmatch


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
    kinds = plan_reading(schema, layout.names, str(path))
    columns = None
    if layout.line == 1 and ("time" in kinds.values() or is_gzipped(path) or path.stat().st_size > SMALL):
        columns = read_quickly(layout, kinds, missing)
    return columns or read_carefully(layout, kinds, missing)


def read_quickly(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column] | None:
    """These columns in one pass over the bytes, and times by DuckDB; None where the file is not regular, so that the
    careful reading finds out why. How a column is read changes nothing but the time."""
    times = {name: kind for name, kind in kinds.items() if kind == "time"}
    columns = scan_columns(layout, {n: kind for n, kind in kinds.items() if n not in times}, missing)
    more = None if columns is None else read_in_database(layout, times, missing)
    return None if more is None else {name: {**(columns or {}), **more}[name] for name in kinds}


def scan_columns(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column] | None:
    """These columns by the cell scanner; None where the file is not regular."""

    def size(name: str, texts: Sequence[str]) -> list[float] | None:
        return size_texts(texts, kinds[name], missing)

    scanned = scan_cells(layout, list(kinds), lambda name, texts: size(name, texts) is not None)
    if scanned is None:
        return None
    sizes = {name: size(name, cells.texts) for name, cells in scanned.items() if cells.has_numbers}
    # Where a number says too little of a cell, as of a text far down the column, all its texts are needed after all.
    again = scan_cells(layout, [name for name, found in sizes.items() if found is None], lambda *_: False)
    if again is None:
        return None
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        cells = again.get(name) or scanned[name]
        found = sizes.get(name)
        if found is not None:
            columns[name] = code_numbers(cells.join_numbers(found), stated_kind(kind))
        else:
            place = Place(str(layout.path), name, layout.row)
            texts = cells.join_codes()
            columns[name] = code_texts(*texts, stated_kind(kind), place, missing, guess=kind != "text")
        cells.forget()
    return columns


def scan_cells(
    layout: Layout, names: Sequence[str], may_be_numbers: Callable[[str, Sequence[str]], bool]
) -> dict[str, ScannedColumn] | None:
    """The cells of these columns; None where the file is not regular, or holds no patient."""
    if not names:
        return {}
    from concilium.records.cell_scanning import CellScanner  # compiled: loaded where a file is large

    places = [layout.names.index(name) for name in names]
    scanner = CellScanner(
        layout.delimiter, len(layout.names), places, lambda index, texts: may_be_numbers(names[index], texts)
    )
    with open_bytes(layout.path) as raw, faults(layout.path):
        rows = scanner.scan(raw)
    return dict(zip(names, scanner.columns, strict=True)) if rows else None


def size_texts(texts: Sequence[str], kind: ReadingKind | None, missing: frozenset[str]) -> list[float] | None:
    """The numbers of texts in a column of numbers (NaN: missing); None where some text is no number there, or has
    more to it than its number (as `code_texts` has it), or where plain numbers stand for missing."""
    if kind not in NUMERIC_KINDS or any(map(is_number, missing)):
        return None
    from concilium.records.cell_scanning import unquote

    sizes: list[float] = []
    for text in texts:
        if is_safe_number(text):
            sizes.append(float(text))
            continue
        bare = unquote(text).strip(BLANKS)
        if bare in missing:
            if bare not in DEFAULT_MISSING:
                return None
            sizes.append(math.nan)
        elif reads_as_number(bare) if kind is None else read_number(bare) is not None and not is_losing(bare):
            sizes.append(float(bare))
        else:
            return None
    return sizes


def read_in_database(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column] | None:
    """These columns by DuckDB, which reads moments, one by one; None where it stops."""
    if not kinds:
        return {}
    import duckdb

    cells = ", ".join(f"'cell{place}': 'VARCHAR'" for place in range(len(layout.names)))
    chosen = {name: f"cell{layout.names.index(name)}" for name in kinds}
    with scratch_database(layout.path) as (connection, file):
        try:
            connection.execute(
                f"CREATE TEMP TABLE cells AS SELECT {', '.join(chosen.values())} FROM read_csv("
                f"{literal(str(file))}, auto_detect = false, header = true,"
                f" delim = {literal(layout.delimiter)}, quote = '\"', escape = '\"', comment = '', nullstr = '',"
                f" strict_mode = true, null_padding = false, ignore_errors = false, hive_partitioning = false,"
                f" compression = {literal('gzip' if is_gzipped(layout.path) else 'none')}, columns = {{{cells}}})"
            )
        except duckdb.Error:
            return None
        relation = Relation(connection, "cells", str(layout.path), missing)
        if not relation.ask("count(*)"):
            return None
        with in_one_sentence(f"{layout.path} cannot be read"):
            return {
                name: relation.guessed(cell, kinds[name], Place(str(layout.path), name, layout.row))
                for name, cell in chosen.items()
            }


def read_carefully(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column]:
    """These columns by Python's csv module, or the first fault of the file with its line."""
    places = [layout.names.index(name) for name in kinds]
    numberings = [Numbering() for _ in kinds]
    parts: list[list[NDArray[np.uint32]]] = [[] for _ in kinds]
    fields = (fields for _, fields in rows(layout))
    while block := list(itertools.islice(fields, ROWS)):
        columns = list(zip(*block, strict=True))
        for numbering, part, place in zip(numberings, parts, places, strict=True):
            part.append(numbering.code(columns[place]))
    if not parts[0]:
        raise RecordsError(f"{layout.path} holds no patients: there is a header line and nothing after it")
    return {
        name: code_texts(
            np.concatenate(part),
            [str(text) for text in numbering.distinct],
            stated_kind(kind),
            Place(str(layout.path), name, layout.row),
            missing,
            guess=kind != "text",
        )
        for (name, kind), numbering, part in zip(kinds.items(), numberings, parts, strict=True)
    }


def look(path: Path) -> Layout:
    """The header of a text file; the delimiter is the one by which the first records best agree with it."""
    with open_text(path) as text, faults(path):
        head = text.read(HEAD)
    if not head.strip():
        raise RecordsError(f"{path} is empty; a table of patients starts with a line of column names")
    delimiter = max(DELIMITERS, key=lambda candidate: _agreement(head, candidate))
    line, names = next((line, fields) for line, fields in parse(path, delimiter) if fields)
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
    for line, fields in parse(layout.path, layout.delimiter):
        if line <= layout.line or (not fields and width > 1):
            continue
        if 0 < len(fields) < width or any(fields[width:]):
            raise RecordsError(
                f"{layout.path}, line {line}: expected {width} fields, as in the header, but found {len(fields)}"
            )
        yield line, fields[:width] or [""]


def parse(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Every record of a text file with the line it starts on."""
    with open_text(path) as text, faults(path):
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


def is_gzipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        yield text


@contextmanager
def open_bytes(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    with gzip.open(path) if is_gzipped(path) else path.open("rb") as raw:
        yield raw


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """What can go wrong with the bytes of a text file, in one sentence."""
    try:
        yield
    except UnicodeDecodeError:
        line, place, byte = find_bad_byte(path)
        raise RecordsError(
            f"{path}, line {line}: byte {place} of the line (0x{byte:02X}) is not UTF-8; save the file as UTF-8"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise RecordsError(f"{path} is not a complete gzip file; compress it anew") from None


def find_bad_byte(path: Path) -> tuple[int, int, int]:
    """The line, the place within it (from 1) and the value of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, before, rest = 1, 0, b""
    with open_bytes(path) as raw:
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
