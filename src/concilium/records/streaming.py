"""The coder of batches.py for tables that are larger than memory: cells go to disk as they come.

What is kept of a cell is a number for it: of a text the order in which it was first met, of a whole number likewise as
long as a column has few, of a measurement the number itself. When all cells have been met, the distinct ones are coded
as if each was the cell of one row, by the same functions as in memory (coding.py), and each row is looked up in that
column. So both ways give the same columns: what these functions decide depends on which cells there are, and never on
how many rows have one.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.records.batches import (
    BatchReader,
    Coder,
    DeclaredColumn,
    NotContinued,
    read_numbers,
    split_cells,
    view,
    view_codes,
)
from concilium.records.blocks import list_blocks
from concilium.records.coding import (
    MOST_CATEGORIES,
    Kind,
    Numbering,
    Place,
    code_cells,
    code_dictionary,
    code_numbers,
    code_texts,
    reads_as_number,
    stated_kind,
)
from concilium.records.columns import EXACT, Coded, Column, Moments, Numbers, Value
from concilium.records.grammar import BLANKS, DEFAULT_MISSING, is_number

# Cells of a column that are kept in memory, each once. With more, which no study can ask about as categories, each row
# keeps its own.
MOST_DISTINCT = 1 << 20
PROBE = 1 << 10
SHORT_RANGE = 1 << 16


class NotStreamed(Exception):
    """A column that has to be in memory to be read."""


@dataclass(frozen=True)
class _Segment:
    """Some rows of a spool: numbers as they are, or codes, into the column's own by a table."""

    dtype: np.dtype[Any]
    start: int  # in bytes
    rows: int
    table: NDArray[np.integer] | None


def open_for_owner(path: str, flags: int) -> int:
    """A descriptor of a file that only its owner can read."""
    return os.open(path, flags, 0o600)


def begin_writing(descriptor: int, start: int, size: int) -> None:
    """Have the kernel write these bytes of a file to disk while we go on (Linux; elsewhere nothing happens)."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


class Spool:
    """The cells of one column on disk, as they came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[_Segment] = []
        self._bytes, self.checksum = 0, 0

    def append(self, cells: NDArray[Any], table: NDArray[np.integer] | None = None) -> None:
        if cells.dtype == np.float64:
            cells = cells + 0.0  # -0.0 becomes 0.0: one value, one digest
        content = np.ascontiguousarray(cells).data
        self.checksum = zlib.crc32(content, self.checksum)
        with open(self.path, "ab", opener=open_for_owner) as file:
            file.write(content)
            file.flush()
            begin_writing(file.fileno(), self._bytes, cells.nbytes)
        self.segments.append(_Segment(cells.dtype, self._bytes, len(cells), table))
        self._bytes += cells.nbytes

    @property
    def size(self) -> int:
        """In bytes."""
        return self._bytes

    def resume(self, file: Path, size: int, checksum: int) -> None:
        """Go on at the end of an earlier file of this size, which gets a second name. It never becomes shorter, since
        it may be mapped; so one that somebody went on with before is left alone."""
        if file.stat().st_size != size:
            raise NotContinued(f"{file} is longer than it was")
        os.link(file, self.path)
        self._bytes, self.checksum = size, checksum

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.segments.clear()
        self._bytes, self.checksum = 0, 0

    def translate(self, table: NDArray[np.integer]) -> None:
        """Have what was kept so far stand for the codes of a table."""
        self.segments[:] = [replace(segment, table=table) for segment in self.segments]

    def read(self, segment: _Segment) -> NDArray[Any]:
        cells = np.fromfile(self.path, segment.dtype, segment.rows, offset=segment.start)
        return cells if segment.table is None else segment.table[cells]

    def find_first(self, code: int) -> int:
        """The first row with this code."""
        row = 0
        for segment in self.segments:
            here = np.flatnonzero(self.read(segment) == code)
            if len(here):
                return row + int(here[0])
            row += segment.rows
        return row


class _SmallCells:
    """Where the coder puts small whole numbers: on disk as they are, and in memory which there are."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._seen = spool, np.zeros(256, dtype=np.bool_)

    def append(self, cells: NDArray[np.uint8]) -> None:
        self._seen[cells] = True
        self._spool.append(cells)

    @property
    def values(self) -> list[int]:
        values: list[int] = np.flatnonzero(self._seen).tolist()
        return values

    def translate(self, codes: NDArray[np.integer]) -> None:
        """Have each number that there is stand for one of these codes."""
        table = np.zeros(256, dtype=np.uint32)
        table[self.values] = codes
        self._spool.translate(table)

    def clear(self) -> None:
        self._seen[:] = False

    def __bool__(self) -> bool:
        return bool(self._seen.any())


def get_rows(column: Column) -> NDArray[Any]:
    """What a column has for each row."""
    return column.codes if isinstance(column, Coded) else column.numbers


@dataclass(frozen=True)
class Finished:
    """A column whose rows are on disk: `distinct` has a row for each code of the spool, and `sizes` the number of each
    code where rows that are numbers lie beside rows that are codes."""

    distinct: Column
    spool: Spool
    sizes: NDArray[np.float64] | None = None
    state: dict[str, Any] | None = (
        None  # by which its coder goes on, where there are more rows later (`resume`)
    )

    @property
    def is_plain(self) -> bool:
        """Whether the spool holds the codes or numbers of the column as they are."""
        column = self.distinct
        if isinstance(column, Numbers):
            return all(segment.dtype == np.float64 for segment in self.spool.segments)
        tables = [column.codes, *(one.table for one in self.spool.segments if one.table is not None)]
        return (
            self.sizes is None
            and all(one.dtype == column.codes.dtype for one in self.spool.segments)
            and all(np.array_equal(table, np.arange(len(table))) for table in tables)
        )

    def rows(self, part: Callable[[Column], NDArray[Any]] = get_rows) -> Iterator[NDArray[Any]]:
        """The column's codes or numbers, some rows at a time; or another `part` of it, such as its raw codes."""
        column = self.distinct
        for segment in self.spool.segments:
            cells = self.spool.read(segment)
            if self.sizes is None:
                yield part(column)[cells]
            else:
                numbers = cells if segment.dtype == np.float64 else self.sizes[cells]
                yield numbers if isinstance(column, Numbers) else _rank(column, numbers)


def code_on_all_cores(read: BatchReader, coders: Mapping[str, Coder]) -> int:
    """`code_all` with the columns of a batch coded side by side, while the source makes the next one."""
    rows, waiting = 0, list[Future[None]]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for batch in read(list(coders)):
            rows += batch.num_rows
            for one in waiting:
                one.result()
            waiting = [
                pool.submit(coder.add, array)
                for coder, array in zip(coders.values(), batch.columns, strict=True)
            ]
        for one in waiting:
            one.result()
    return rows


class StreamCoder(Coder):
    """Codes one column, batch by batch, onto disk."""

    def __init__(self, declared: DeclaredColumn, path: Path, every_text: bool = False) -> None:
        super().__init__(declared, every_text)
        self.spool = Spool(path)
        self._small: Any = _SmallCells(self.spool)
        self._codes: Any = self.spool
        self._numbers: Any = self.spool
        self._form = "text"
        self._cells = Numbering()
        self._reads_numbers = self._may_be_numbers
        self.by_row = False  # it is lost since it has too many distinct cells
        self._few = True  # whether the numbers of a typed source are so far few, and whole

    def add(self, array: Any) -> None:
        import pyarrow
        from pyarrow import types

        if self.lost or not len(array):
            return
        form = array.type
        if _holds_texts(form):
            self._add(array)
        elif types.is_boolean(form):
            self._form = "truth"
            truths = view(array.cast("int8").fill_null(-1), np.int8) + np.int8(1)
            self.spool.append(truths.astype(np.uint8), self._cells.code([None, False, True]))
        elif types.is_dictionary(form):
            self._form = "cells"
            cells = [*split_cells(array), None]
            table = self._cells.code([None if cell is None else (type(cell), cell) for cell in cells])
            self.spool.append(view_codes(array), table)
        elif types.is_timestamp(form):
            self._form = "times" if form.tz is None else "zoned times"
            self.spool.append(read_numbers(array.view(pyarrow.int64())))
        else:
            self._form = "number"
            self._add_sizes(array)
        if max(len(self._numbering), len(self._cells)) > MOST_DISTINCT:
            self._keep_rows()

    def _keep_rows(self) -> None:
        """Have the column read again, with a text or number of each row."""
        kind, texts = stated_kind(self._kind), self._form == "text"
        if kind == "number" or self._form == "cells" or (texts and self._all_numbers()):
            raise NotStreamed(f"it has more than {MOST_DISTINCT:,} distinct values")
        self.lost = self.by_row = True
        self._forget()
        self._numbering.clear()
        self._cells.clear()
        self.spool.clear()

    def _all_numbers(self) -> bool:
        """Whether a column of texts that are looked at together might come to be one of numbers."""
        texts = (str(text) for text in self._numbering.distinct)
        return self._declared.guess and self._kind is None and all(map(reads_as_number, texts))

    def _code_small(self) -> None:
        if self._small:
            self._small.translate(self._numbering.code([str(number) for number in self._small.values]))
            self._small.clear()

    def _add_texts(self, array: Any) -> None:
        encoded = array.dictionary_encode()
        if encoded is array:  # a dictionary of the source's own, of which some texts may be of no row here
            codes = np.bincount(view_codes(array), minlength=len(array.dictionary))
            if not codes[: len(array.dictionary)].all():
                encoded = array.dictionary_decode().dictionary_encode()
        # In order, so that the codes of most columns are those of the end; of numbers, the first that is none is named.
        if len(self._numbering) == 1 and stated_kind(self._kind) != "number":
            self._numbering.code(sorted(encoded.dictionary.to_pylist()))
        super()._add_texts(encoded)

    def _add_sizes(self, array: Any) -> None:
        """Numbers of a typed source."""
        kind = stated_kind(self._kind)
        if self._few and kind != "number":
            found = _find_distinct(array, few=kind is None)
            if found is not None:
                distinct, codes = found
                table = self._cells.code([None, *distinct])
                if kind == "code" or len(self._cells) - 1 <= MOST_CATEGORIES:
                    self.spool.append(codes, table)
                    return
        self._few = False
        self.spool.append(read_numbers(array))

    def resume(self, entry: Mapping[str, Any], folder: Path, rows: int) -> None:
        """Go on behind the rows of a column that was finished and stored; NotContinued where that cannot be."""
        state = entry.get("state")
        if state is None:
            raise NotContinued("its cells cannot be told from its values")
        (name, size, checksum), *_ = entry["files"]
        self._form, table, dtype = state["form"], None, np.dtype(entry.get("dtype", np.float64))
        if "values" not in entry:
            self._few, self._add = False, self._add_numbers
        elif self._form == "text":
            self._add = self._add_texts
            self._numbering.code([str(cell) for cell in state.get("cells", entry["values"])])
        elif self._form == "number":
            self._cells.code(list(map(float, state.get("cells", entry["values"]))))
        else:
            self._cells.code([False, True])
            table = self._cells.code([None, *entry["values"]])
        self.spool.resume(folder / name, size, checksum)
        self.spool.segments += [
            _Segment(dtype, block.start * dtype.itemsize, block.stop - block.start, table)
            for block in list_blocks(rows)
        ]

    def finish(self, place: Place) -> Finished:
        """The column of all cells so far."""
        found = self._finish(place)
        return replace(found, state=self._describe(found))

    def _describe(self, found: Finished) -> dict[str, Any] | None:
        """What `resume` needs to go on from the stored column; None where the column does not tell which cells there
        were. All texts that are missing everywhere are one cell."""
        column, state = found.distinct, {"form": self._form}
        if column.raw is not None or self._kind == "time" or self._form == "cells":
            return None
        if isinstance(column, Numbers):
            return state if self._form == "number" or self._reads_numbers else None
        if self._form == "truth" or found.sizes is not None or column.typed is not None:
            return state if self._form == "truth" else None
        told: dict[int, Any] = {}
        distinct = (self._numbering if self._form == "text" else self._cells).distinct
        if self._form == "text" and not distinct:
            distinct = list(map(str, column.values))  # small whole numbers, which have no other texts
        for cell, code in zip(distinct, column.codes[1:].tolist(), strict=True):
            if code in told or not (code or _is_missing(cell)):
                return None
            if code:
                told[code] = cell
        ordered = [told[code] for code in sorted(told)]
        natural = [str(value) if self._form == "text" else value for value in column.values]
        return state if ordered == natural else {**state, "cells": ordered}

    def _finish(self, place: Place) -> Finished:
        own = replace(place, row=lambda code: place.row(self.spool.find_first(code)))
        kind, spool = stated_kind(self._kind), self.spool
        if self._add == self._add_moments or self._form in ("times", "zoned times"):
            return Finished(Moments(np.zeros(0), zoned=self._form == "zoned times"), spool)
        if self._form == "text":
            return self._finish_texts(kind, own)
        if self._form == "truth":
            seen = np.zeros(3, dtype=np.bool_)
            for segment in spool.segments:
                seen |= np.bincount(spool.read(segment), minlength=3) > 0
            return Finished(code_dictionary(np.where(seen, np.arange(3), 0), (False, True), kind, own), spool)
        if self._form == "cells":
            cells: list[Value] = [value for _, value in self._cells.distinct]
            column = code_cells(np.arange(len(cells) + 1), cells, kind, own, self._declared.missing)
            return Finished(column, spool)
        sizes = np.array([math.nan, *self._cells.distinct]) + 0.0
        if self._few and kind != "number":
            return Finished(code_numbers(sizes, kind), spool)
        return Finished(Numbers(sizes, by_itself=kind == "number"), spool, sizes)

    def _finish_texts(self, kind: Kind | None, place: Place) -> Finished:
        spool, missing = self.spool, self._declared.missing
        if self._small and self._kind in (None, "code") and not any(map(is_number, missing)):
            small = self._small.values
            codes = np.arange(len(small) + 1, dtype=np.uint16)
            self._small.translate(codes[1:])
            return Finished(Coded(codes, tuple(small), stated=self._kind == "code"), spool)
        self._code_small()
        texts = [str(text) for text in self._numbering.distinct]
        if self._add == self._add_numbers:
            sizes = np.array([math.nan, *(self._size(text) for text in texts)], dtype=np.float64) + 0.0
            few = None if kind == "number" else self._find_few(sizes)
            if few is None:
                return Finished(Numbers(sizes, by_itself=kind == "number"), spool, sizes)
            return Finished(code_numbers(few, kind), spool, sizes)
        if self._declared.tidy is not None:
            texts = [self._declared.tidy(text) for text in texts]
        every = np.arange(len(texts) + 1)
        return Finished(code_texts(every, texts, kind, place, missing, self._declared.guess), spool)

    def _find_few(self, sizes: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The distinct numbers, where these, of which there are texts, and those on disk are few and whole."""
        distinct = sizes[1:]
        for segment in self.spool.segments:
            if segment.dtype == np.float64:
                distinct = np.concatenate([distinct, self.spool.read(segment)])
            distinct = np.unique(distinct[~np.isnan(distinct)])
            if len(distinct) > MOST_CATEGORIES or not _are_whole(distinct):
                return None
        return np.concatenate([[math.nan], distinct])


class RowCoder(Coder):
    """Keeps a text, or a number, of each row: of columns where nearly every row has its own (`RowValues`). Each is read
    by itself, as it is where texts are of several kinds."""

    def __init__(self, declared: DeclaredColumn, folder: Path, number: int) -> None:
        super().__init__(declared)
        self._rows, self._bytes, self._is_text = 0, 0, False
        self._missing_texts = sorted(declared.missing)
        self._files = {part: Spool(folder / f"{number}.{part}") for part in ("codes", "cells", "ends")}

    def add(self, array: Any) -> None:
        import pyarrow
        from pyarrow import compute, types

        if not len(array):
            return
        places = np.arange(self._rows + 1, self._rows + len(array) + 1, dtype=np.uint32)
        self._rows += len(array)
        if _holds_texts(array.type):
            self._is_text = True
            array = array.dictionary_decode() if types.is_dictionary(array.type) else array
            if self._declared.tidy is not None:
                tidy = self._declared.tidy
                array = pyarrow.array(
                    [None if text is None else tidy(text) for text in array.to_pylist()],
                    pyarrow.large_string(),
                )
            array = array.cast(pyarrow.large_string())
            known = _view_bits(compute.is_valid(array))
            if self._missing_texts:
                bare = compute.utf8_trim(array, BLANKS)
                absent = compute.is_in(bare, pyarrow.array(self._missing_texts, pyarrow.large_string()))
                known &= ~_view_bits(absent)
            array = array.fill_null("")
            ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
            content = np.frombuffer(array.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
            self._files["cells"].append(content)
            self._files["ends"].append(ends[1:] - ends[0] + self._bytes)
            self._bytes += len(content)
        else:
            numbers = read_numbers(array)
            known = ~np.isnan(numbers)
            self._files["cells"].append(numbers)
        self._files["codes"].append(np.where(known, places, np.uint32(0)))

    def resume(self, entry: Mapping[str, Any], folder: Path, rows: int) -> None:
        """Go on behind the rows of a column that was stored."""
        for name, size, checksum in entry["files"]:
            part = str(name).partition(".")[2]
            self._files[part].resume(folder / name, size, checksum)
            if part == "cells":
                self._bytes = size
        self._rows, self._is_text = rows, len(entry["files"]) == len(self._files)

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the column."""
        files = [file for part, file in self._files.items() if part != "ends" or self._is_text]
        way = "number" if not self._is_text else "canonical" if self._reads else "text"
        return {
            "by_itself": self._declared.by_itself,
            "stated": self._kind == "code",
            "rows": way,
            "dtype": "<u4",
            "files": [[file.path.name, file.size, file.checksum] for file in files],
        }

    @property
    def _reads(self) -> bool:
        return self._kind == "code" or self._declared.guess


def _is_missing(cell: Any) -> bool:
    return isinstance(cell, str) and cell.strip(BLANKS) in DEFAULT_MISSING


def _holds_texts(form: Any) -> bool:
    """Whether an array is of texts, perhaps with a dictionary of its source's own."""
    from pyarrow import types

    plain = form.value_type if types.is_dictionary(form) else form
    return bool(types.is_string(plain) or types.is_large_string(plain))


def _view_bits(array: Any) -> NDArray[np.bool_]:
    return view(array.cast("uint8"), np.uint8).astype(bool)


def _find_distinct(array: Any, *, few: bool) -> tuple[list[float], NDArray[np.unsignedinteger]] | None:
    """The distinct numbers of an array, and for each row the place of its own (0: missing); None where they are not
    whole, or not `few`, unless all are wanted."""
    from pyarrow import types

    if types.is_integer(array.type) and not array.null_count:
        present, here = view(array, array.type.to_pandas_dtype()), None
    else:
        numbers = read_numbers(array)
        if few and not _are_whole(numbers[:PROBE][~np.isnan(numbers[:PROBE])]):
            return None
        here = ~np.isnan(numbers)
        sizes = numbers[here]
        if not _are_whole(sizes):
            return None if few else _spread(*np.unique(sizes + 0.0, return_inverse=True), here)
        present = sizes.astype(np.int64)
    if not len(present):
        return _spread(np.zeros(0), np.zeros(0, dtype=np.int64), here)
    lowest, highest = int(present.min()), int(present.max())
    if highest - lowest < SHORT_RANGE:
        places = np.subtract(present, lowest, dtype=np.int64)
        occurs = np.zeros(highest - lowest + 1, dtype=np.bool_)
        occurs[places] = True
        distinct = np.flatnonzero(occurs) + lowest
        if few and len(distinct) > MOST_CATEGORIES:
            return None
        return _spread(distinct, (np.cumsum(occurs, dtype=np.uint16) - np.uint16(1))[places], here)
    if few and len(np.unique(present[:PROBE])) > MOST_CATEGORIES:
        return None
    distinct, ranks = np.unique(present, return_inverse=True)
    return None if few and len(distinct) > MOST_CATEGORIES else _spread(distinct, ranks, here)


def _spread(
    distinct: NDArray[Any], ranks: NDArray[Any], here: NDArray[np.bool_] | None
) -> tuple[list[float], NDArray[np.unsignedinteger]]:
    """Codes for all rows from the ranks of those that are not missing."""
    form = np.min_scalar_type(len(distinct))
    codes = (ranks + 1).astype(form)
    if here is not None:
        codes, present = np.zeros(len(here), dtype=form), codes
        codes[here] = present
    return distinct.astype(np.float64).tolist(), codes


def _are_whole(present: NDArray[np.float64]) -> bool:
    return bool(np.all((np.abs(present) < EXACT) & (np.trunc(present) == present)))


def _rank(column: Coded, numbers: NDArray[np.float64]) -> NDArray[Any]:
    """The codes of numbers in a column that has them all as values."""
    codes = np.searchsorted(np.array(column.values, dtype=np.float64), numbers) + 1
    return np.where(np.isnan(numbers), 0, codes).astype(column.codes.dtype)
