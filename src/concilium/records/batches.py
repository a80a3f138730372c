"""The one coder: record batches of any source become columns.

A source yields its cells as `pyarrow.RecordBatch`es, some columns at a time, and can do so again. Only codes and
numbers are kept of a batch, so a source may be larger than memory. A column of a batch is an array of

    string      texts; the source declares whether they may stand for something else (`DeclaredColumn`)
    float64     numbers, NaN for missing; also whole numbers that a float64 keeps
    bool        truth values
    timestamp   moments in microseconds, only where times are asked for
    dictionary  cells that have types of their own, as in a spreadsheet (`encode_cells`)

and null is missing. Each distinct text of a column is read once (coding.py). There are two exceptions, for texts that
may stand for something else. They change the time and nothing else:

- A column of more than `FEW_TEXTS` texts that are all numbers keeps its plain decimals as float64 from then on. Arrow
  rounds them as Python's `float` does.
- A column that is asked for as times keeps microseconds, where all its texts are plain moments.

Where a later cell shows that too little was kept, the column is read again and all its texts are kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.coding import (
    SAFE_NUMBER,
    Numbering,
    Place,
    ReadingKind,
    code_cells,
    code_dictionary,
    code_numbers,
    code_texts,
    code_whole,
    natural_value,
    number_cells,
    reads_as_number,
    stated_kind,
)
from concilium.records.columns import Coded, Column, Moments, Value, label, narrowest
from concilium.records.grammar import (
    BLANKS,
    DEFAULT_MISSING,
    PLAIN_MOMENT,
    is_losing,
    is_number,
    read_number,
)

if TYPE_CHECKING:
    import pyarrow

BatchReader: TypeAlias = "Callable[[Sequence[str]], Iterator[pyarrow.RecordBatch]]"
"""From the names of some columns to their cells, in the order of the rows. It may be called more than once."""


LaterReader: TypeAlias = "Callable[[Sequence[str], Mapping[str, Any]], Iterator[pyarrow.RecordBatch]]"
"""The same of the rows that a file has beyond those that were described (growth.py); or `NotContinued`."""


class NotContinued(Exception):
    """The rows that came to a file cannot be read by themselves."""


class _Keeper(Protocol):
    """What keeps columns where they do not fit in memory (column_store.py)."""

    def code_batches(
        self,
        read: BatchReader,
        declared: Mapping[str, DeclaredColumn],
        place: Callable[[str], Place],
        empty: str,
        read_later: LaterReader | None,
    ) -> dict[str, Column]: ...

    def keep(self, name: str, column: Column) -> Column: ...


# Every source ends in `code_batches`, so that none has to hand this on.
KEEPER: ContextVar[_Keeper | None] = ContextVar("KEEPER", default=None)

FEW_TEXTS = 256  # with more distinct texts than this, a column may be one of measurements
FIRST_ROWS = 512  # rows coded before it is looked at how many texts there are
MOST_DIGITS = 15  # of a number that is exact however its digits are read
MINUS, POINT, ZERO, NINE = (ord(sign) for sign in "-.09")
IN_NUMBERS = np.isin(np.arange(256), [MINUS, POINT, *range(ZERO, NINE + 1)])

Item = TypeVar("Item", bound=np.generic)

_is_safe_number = re.compile(SAFE_NUMBER).fullmatch


@dataclass(frozen=True)
class DeclaredColumn:
    """What the schema and the source say about a column before a cell of it is read.

    `missing` are the texts that stand for missing, `guess` means that a text may stand for a number, a truth value or a
    moment, `by_itself` is as in `Coded`, and `tidy` turns a text of the source into the text that all sources have.
    """

    kind: ReadingKind | None = None
    missing: frozenset[str] = frozenset()
    guess: bool = False
    by_itself: bool = False
    tidy: Callable[[str], str] | None = None


def code_batches(
    read: BatchReader,
    declared: Mapping[str, DeclaredColumn],
    place: Callable[[str], Place],
    empty: str,
    read_later: LaterReader | None = None,
) -> dict[str, Column]:
    """The declared columns of a source. A source without rows is refused with the message `empty`. `read_later` is of a
    file that may grow."""
    keep = KEEPER.get()
    if keep is not None:
        return keep.code_batches(read, declared, place, empty, read_later)
    coders = {name: Coder(column) for name, column in declared.items()}
    if coders and not code_all(read, coders):
        raise RecordsError(empty)
    again = {name: Coder(declared[name], every_text=True) for name, coder in coders.items() if coder.lost}
    if again:
        code_all(read, again)
    columns = {}
    for name, coder in coders.items():
        column = again.get(name, coder).column(place(name))
        columns[name] = replace(column, by_itself=True) if declared[name].by_itself else column
    return columns


def code_all(read: BatchReader, coders: Mapping[str, Coder]) -> int:
    """Hand each column of each batch to its coder, and count the rows."""
    rows = 0
    for batch in read(list(coders)):
        rows += batch.num_rows
        for coder, array in zip(coders.values(), batch.columns, strict=True):
            coder.add(array)
    return rows


class Coder:
    """Codes one column, batch by batch. `lost` means that too little was kept of it: read it again."""

    def __init__(self, declared: DeclaredColumn, every_text: bool = False) -> None:
        self.lost = False
        self._declared = declared
        self._kind = declared.kind
        self._missing = declared.missing
        self._typed: list[Any] = []  # arrays of anything but text
        self._numbering = Numbering()
        self._small: list[NDArray[np.uint8]] = []  # the first cells, as long as all are small whole numbers
        self._codes: list[NDArray[np.unsignedinteger]] = []
        self._numbers: list[NDArray[np.float64]] = []
        quick = declared.guess and not every_text
        self._may_be_numbers = (
            quick and self._kind in (None, "number") and not any(map(is_number, self._missing))
        )
        self._add: Callable[[Any], None] = self._add_texts
        if quick and self._kind == "time":
            self._add = self._add_moments
        elif declared.guess:
            self._add = self._add_small

    def add(self, array: Any) -> None:
        """Take the next cells of the column."""
        from pyarrow import types

        if self.lost or not len(array):
            return
        if types.is_string(array.type) or types.is_large_string(array.type):
            self._add(array)
        else:
            self._typed.append(array)

    def column(self, place: Place) -> Column:
        """The column of all cells so far."""
        if self._typed:
            return _code_typed(self._typed, self._declared, place)
        if self._add == self._add_moments:
            return Moments(np.concatenate(self._numbers))
        if self._small and self._kind in (None, "code") and not any(map(is_number, self._missing)):
            codes, values = self._rank_small()
            return Coded(codes, tuple(values), stated=self._kind == "code")
        self._code_small()
        texts = [str(text) for text in self._numbering.distinct]
        kind = stated_kind(self._kind)
        if self._add == self._add_numbers:
            table = np.array([math.nan, *(self._size(text) for text in texts)], dtype=np.float64)
            return code_numbers(
                np.concatenate([*(table[codes] for codes in self._codes), *self._numbers]), kind
            )
        codes = self._codes[0] if len(self._codes) == 1 else np.concatenate(self._codes)
        if self._declared.tidy is not None:
            texts = [self._declared.tidy(text) for text in texts]
        return code_texts(codes, texts, kind, place, self._missing, self._declared.guess)

    def _add_small(self, array: Any) -> None:
        """Keep whole numbers from 0 to 255 as they are: in many tables most cells are such."""
        small = _read_small(array)
        if small is not None:
            self._small.append(small)
            return
        self._code_small()
        self._add = self._add_texts
        self._add_texts(array[:FIRST_ROWS])
        if len(array) > FIRST_ROWS:
            self.add(array[FIRST_ROWS:])

    def _rank_small(self) -> tuple[NDArray[np.unsignedinteger], list[int]]:
        """The small whole numbers as codes, and in order what they stand for."""
        small = np.concatenate(self._small)
        self._small.clear()
        present = np.zeros(256, dtype=bool)
        present[small] = True
        values = np.flatnonzero(present).tolist()
        return np.cumsum(present, dtype=narrowest(len(values)))[small], values

    def _code_small(self) -> None:
        """Turn the small whole numbers into codes of their texts."""
        if self._small:
            codes, values = self._rank_small()
            self._numbering.code([str(number) for number in values])
            self._codes.append(codes)

    def _add_texts(self, array: Any) -> None:
        encoded = array.dictionary_encode()
        table = self._numbering.code([*encoded.dictionary.to_pylist(), None])
        self._codes.append(table.astype(narrowest(len(self._numbering) - 1))[view_codes(encoded)])
        if self._may_be_numbers and len(self._numbering) > FEW_TEXTS:
            self._may_be_numbers = False
            if all(self._size(str(text)) is not None for text in self._numbering.distinct):
                self._add = self._add_numbers

    def _add_numbers(self, array: Any) -> None:
        numbers, plain = _read_plain(array)
        if not plain.all():
            others = array.filter(_mask(~plain)).dictionary_encode()
            sizes = [self._size(text) for text in others.dictionary.to_pylist()]
            if None in sizes:
                self._forget()
                return
            numbers[~plain] = np.array(sizes, dtype=np.float64)[view(others.indices, np.int32)]
        self._numbers.append(numbers)

    def _add_moments(self, array: Any) -> None:
        import pyarrow
        from pyarrow import compute

        bare = compute.utf8_trim(array, BLANKS)
        tokens = pyarrow.array(sorted(self._missing), pyarrow.string())
        absent = view(compute.is_in(bare, tokens).cast("uint8"), np.uint8).astype(bool)
        try:
            if not (absent | _match(bare, PLAIN_MOMENT)).all():
                raise pyarrow.ArrowInvalid
            moments = compute.if_else(_mask(absent), None, bare).cast(pyarrow.timestamp("us"))
        except pyarrow.ArrowInvalid:  # some cell is no plain moment, or one that no calendar has
            self._forget()
        else:
            self._numbers.append(np.where(absent, np.nan, view(moments, np.int64).astype(np.float64)))

    def _forget(self) -> None:
        self.lost = True
        self._numbers.clear()
        self._codes.clear()

    def _size(self, text: str) -> float | None:
        """The number of a text in a column of numbers (NaN: missing); None where the text is no number there, or has
        more to it than its number (as `code_texts` has it)."""
        if _is_safe_number(text):
            return float(text)
        bare = text.strip(BLANKS)
        if bare in self._missing:
            return math.nan if bare in DEFAULT_MISSING else None
        if self._kind is None:
            return float(bare) if reads_as_number(bare) else None
        return None if is_losing(bare) else read_number(bare)


def encode_cells(values: Iterable[object], place: Place, start: int = 0) -> pyarrow.DictionaryArray:
    """Cells that have types of their own, the first of them in row `start`: codes, and each distinct cell's label and
    type. The labels are bytes, since a text of Python may hold what UTF-8 does not."""
    return join_cells(
        *number_cells([natural_value(value, row, place) for row, value in enumerate(values, start)])
    )


def join_cells(codes: NDArray[np.integer], values: Sequence[Value | None]) -> pyarrow.DictionaryArray:
    """The same of codes (0: missing) into the natural values of cells. A float is itself, and has no label."""
    import pyarrow

    dictionary = _join_texts(values)
    if dictionary is None:
        labels = ["" if value is None or type(value) is float else label(value) for value in values]
        parts = [
            pyarrow.array([text.encode("utf-8", "surrogatepass") for text in labels], pyarrow.binary()),
            pyarrow.array([value if type(value) is float else None for value in values], pyarrow.float64()),
            pyarrow.array([type(value).__name__ for value in values], pyarrow.string()),
        ]
        dictionary = pyarrow.StructArray.from_arrays(parts, names=["label", "number", "type"])
    indices = np.ascontiguousarray(codes, dtype=np.int32) - 1
    bits = _mask(indices >= 0).buffers()[1]
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.Array.from_buffers(pyarrow.int32(), len(indices), [bits, pyarrow.py_buffer(indices)]),
        dictionary,
    )


def _join_texts(values: Sequence[Value | None]) -> pyarrow.StructArray | None:
    """Values that are all text, as most are, which takes less; None where one is not, or UTF-8 does not have it."""
    import pyarrow

    if set(map(type, values)) != {str}:
        return None
    try:
        return pyarrow.StructArray.from_arrays([pyarrow.array(values, pyarrow.string())], names=["text"])
    except UnicodeEncodeError:
        return None


def split_cells(array: Any) -> list[Value | None]:
    """The natural values that `join_cells` was given."""
    if array.dictionary.type.num_fields == 1:
        return list(array.dictionary.field("text").to_pylist())
    labels, numbers, types = (array.dictionary.field(name) for name in ("label", "number", "type"))
    present = types.unique().to_pylist()
    if present == ["float"]:
        return list(numbers.to_pylist())
    texts = [text.decode("utf-8", "surrogatepass") for text in labels.to_pylist()]
    if present == ["str"]:
        return texts
    return [
        number if number is not None else _READ_CELL[name](text)
        for text, number, name in zip(texts, numbers.to_pylist(), types.to_pylist(), strict=True)
    ]


_READ_CELL: Mapping[str, Callable[[str], Value | None]] = {
    "NoneType": lambda _: None,
    "str": str,
    "bool": lambda text: text == "true",
    "int": int,
}


def _code_typed(arrays: Sequence[Any], declared: DeclaredColumn, place: Place) -> Column:
    """A column of arrays that are not text, all of one type."""
    import pyarrow
    from pyarrow import types

    kind, form = stated_kind(declared.kind), arrays[0].type
    if types.is_timestamp(form):
        moments = [read_numbers(array.view(pyarrow.int64())) for array in arrays]
        return Moments(np.concatenate(moments), zoned=form.tz is not None)
    if types.is_boolean(form):
        truths = [view(array.cast("int8").fill_null(-1), np.int8) + 1 for array in arrays]
        return code_dictionary(np.concatenate(truths), (False, True), kind, place)
    if types.is_integer(form) and not any(array.null_count for array in arrays):
        return code_whole(np.concatenate([view(array, form.to_pandas_dtype()) for array in arrays]), kind)
    if not types.is_dictionary(form):
        return code_numbers(np.concatenate([read_numbers(array) for array in arrays]), kind)
    cells: list[Value | None] = []
    places = []
    for array in arrays:
        places.append(view_codes(array) + len(cells))
        cells += [*split_cells(array), None]
    if len(arrays) == 1 and form.value_type.num_fields == 1:  # all texts, of which no two are the same
        texts = [str(text) for text in cells[:-1]]
        own = places[0] + 1
        return code_texts(np.where(own == len(cells), 0, own), texts, kind, place, declared.missing)
    codes, distinct = number_cells(cells)
    return code_cells(codes[np.concatenate(places)], distinct, kind, place, declared.missing)


def read_numbers(array: Any) -> NDArray[np.float64]:
    """The numbers of an array, NaN for null."""
    numbers = array.cast("float64", safe=False)
    return view(
        numbers.fill_null(_as_scalar(np.float64(math.nan))) if numbers.null_count else numbers, np.float64
    )


def view_codes(array: Any) -> NDArray[np.int32]:
    """The codes of a dictionary array; null has the one after the last."""
    codes = array.indices
    if codes.null_count:
        codes = codes.fill_null(_as_scalar(np.int32(len(array.dictionary))))
    return view(codes, np.int32)


def _as_scalar(number: np.generic) -> Any:
    """The number as Arrow's, of its bytes: of a number it would load pandas first, which takes half a second."""
    import pyarrow

    content = pyarrow.py_buffer(number.tobytes())
    return pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(number.dtype), 1, [None, content])[0]


def _ends(array: Any) -> NDArray[np.int32]:
    """Where the first text of an array begins in its bytes, and where each one ends."""
    return np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def _read_small(array: Any) -> NDArray[np.uint8] | None:
    """The numbers of texts that are all whole numbers from 0 to 255; None where some are not."""
    import pyarrow

    if array.null_count:
        return None
    try:
        array[:1].cast(pyarrow.uint8())  # it fails quickly; a long array fails slowly
        small = view(array.cast(pyarrow.uint8()), np.uint8)
    except pyarrow.ArrowInvalid:
        return None
    digits = len(small) + np.count_nonzero(small > 9) + np.count_nonzero(small > 99)
    ends = _ends(array)
    # Where the texts are longer than their numbers, some number has zeros before it, which are part of the text.
    return small.copy() if digits == ends[-1] - ends[0] else None


def _read_plain(array: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of the cells that are plain decimals of few digits (others: NaN), and which cells are.

    Arrow reads more as a number than the grammar does: cells with other signs and with zeros before the number are
    none here.
    """
    import pyarrow
    from pyarrow import compute

    buffers, ends = array.buffers(), _ends(array)
    signs = np.frombuffer(buffers[2] or b"", dtype=np.uint8)[: ends[-1]]
    lengths = np.diff(ends)
    plain = (lengths > 0) & (lengths <= MOST_DIGITS)
    strange = np.flatnonzero(~IN_NUMBERS[signs[ends[0] :]])
    if strange.size:
        plain[np.searchsorted(ends, strange + ends[0], side="right") - 1] = False
    padded = np.concatenate([signs, np.zeros(2, np.uint8)])
    negative = padded[ends[:-1]] == MINUS
    first = ends[:-1] + negative
    leading = (padded[first] == ZERO) & (lengths - negative > 1)
    plain &= ~leading | (padded[first + leading] == POINT)
    try:
        starts = buffers[1].slice(4 * array.offset)
        cells = pyarrow.StringArray.from_buffers(len(array), starts, buffers[2], _mask(plain).buffers()[1])
        numbers = cells.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:  # one such as `1.2.3`, `-` or `1-2`
        plain = _match(array, SAFE_NUMBER)
        numbers = compute.if_else(_mask(plain), array, None).cast(pyarrow.float64())
    return np.where(plain, view(numbers, np.float64), np.nan), plain


def _match(array: Any, pattern: str) -> NDArray[np.bool_]:
    """Which texts of an array are of a pattern as a whole."""
    from pyarrow import compute

    matches = compute.match_substring_regex(array, rf"\A(?:{pattern})\z")
    return view(matches.cast("uint8"), np.uint8).astype(bool)


def _mask(bits: NDArray[np.bool_]) -> Any:
    """An array of Arrow's of these truth values. (Its own way to read those of numpy would load pandas.)"""
    import pyarrow

    packed = pyarrow.py_buffer(np.packbits(bits, bitorder="little"))
    return pyarrow.BooleanArray.from_buffers(pyarrow.bool_(), len(bits), [None, packed])


def view(array: Any, dtype: type[Item]) -> NDArray[Item]:
    """The values of an array without copying; those of nulls are anything. (Arrow's `to_numpy` would load pandas.)"""
    return np.frombuffer(array.buffers()[1], dtype=dtype)[array.offset : array.offset + len(array)]
