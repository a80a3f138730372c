"""The two kinds of column a table of patients has: codes (0 is missing) and numbers (NaN is missing).

A column of texts of which nearly every row has its own, such as the ids of millions of patients, is one of codes, too:
its values stay on disk (`RowValues`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.blocks import fill_room, list_blocks, look_up, read_block

Value: TypeAlias = str | int | float | bool

MISSING_LABEL = "(missing)"
EXACT = 2**53  # whole numbers from here on may lose digits as a float64
CODES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))
LONG = 1e16  # from here on Python writes whole floats with an exponent


def label(value: Value | None) -> str:
    """The canonical text of a natural value: `true`, `5` for both 5 and 5.0, text as it is, `(missing)`."""
    if isinstance(value, str):
        return value
    if value is None:
        return MISSING_LABEL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return MISSING_LABEL
        return str(int(value)) if value.is_integer() and abs(value) < LONG else repr(float(value))
    return str(value)


def say_plain(value: Value | None) -> str:
    """The value as people read it: four digits of a number with decimals, anything else by its label."""
    if not isinstance(value, float) or not math.isfinite(value) or value.is_integer():
        return label(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class RowValues(Sequence[Value]):
    """The values of a column where nearly every row has its own: code i + 1, which only row i may have, stands for the
    i-th. Equal ones come several times, and in no order. They are the labels of `cells`: of numbers, or of texts in
    UTF-8 that end at these `ends`, each as `read` has it. `distinct` is how many different ones there are."""

    def __init__(
        self,
        cells: NDArray[Any],
        ends: NDArray[np.int64] | None,
        read: Callable[[str], str] | None,
        distinct: int,
    ) -> None:
        self.cells, self.ends, self._read, self.distinct = cells, ends, read, distinct

    def __len__(self) -> int:
        return len(self.cells if self.ends is None else self.ends)

    @overload
    def __getitem__(self, place: int) -> Value: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Value]: ...
    def __getitem__(self, place: int | slice) -> Value | Sequence[Value]:
        if isinstance(place, slice):
            return self.list_labels(place)
        start = range(len(self))[place]
        return self.list_labels(slice(start, start + 1))[0]

    def __iter__(self) -> Iterator[Value]:
        for block in list_blocks(len(self)):
            yield from self.list_labels(block)

    def list_labels(self, block: slice) -> list[str]:
        """The values of these rows."""
        if self.ends is None:
            return [label(number) for number in read_block(self.cells, block).tolist()]
        texts = self.list_texts(block)
        return texts if self._read is None else list(map(self._read, texts))

    def list_texts(self, block: slice) -> list[str]:
        """The texts of these rows as they were written."""
        assert self.ends is not None
        start, stop, _ = block.indices(len(self))
        ends = [
            int(self.ends[start - 1]) if start else 0,
            *read_block(self.ends, slice(start, stop)).tolist(),
        ]
        content = read_block(self.cells, slice(ends[0], ends[-1])).tobytes()
        first = ends[0]
        return [
            content[begin - first : end - first].decode("utf-8", "surrogatepass")
            for begin, end in pairwise(ends)
        ]


def narrowest(values: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type of code that can tell this many values, and missing, apart."""
    return CODES[0] if values < 2**8 else CODES[1] if values < 2**16 else CODES[2]


@dataclass(frozen=True, eq=False)
class Coded:
    """Categories: `codes[i] == 0` is missing, otherwise row i holds `values[codes[i] - 1]`.

    The values are of one type and in order (numbers by size, text by text); they may include values that no
    row holds. `stated` means that the schema calls the column a code: its values are then never compared by
    size, even where they look like numbers. `by_itself` means that the label of each cell is that cell's own, whatever
    the others hold: the column is stated, or its type in a database leaves nothing to guess. It follows from source and
    schema, before a cell is read. `raw` are the cells as they were written, where the reading lost something of them
    that a hash of patients must not lose (row_hashes.py). `typed` marks the rows whose cells were numbers or truth
    values in the source and are text here because others are. The codes are stored in the narrowest type, whatever was
    given.
    """

    codes: NDArray[np.unsignedinteger]
    values: Sequence[Value]
    stated: bool = False
    by_itself: bool = False
    raw: Coded | None = None
    typed: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        codes = np.asanyarray(self.codes)  # which may be mapped from a file
        if codes.ndim != 1 or codes.dtype.kind not in "ui":
            raise TypeError(f"codes must be a vector of whole numbers, not {codes.ndim}-d {codes.dtype}")
        if codes.size and not (
            codes.max() <= len(self.values) and (codes.dtype.kind == "u" or codes.min() >= 0)
        ):
            raise ValueError(f"codes must lie between 0 and {len(self.values)}")
        object.__setattr__(self, "codes", codes.astype(narrowest(len(self.values)), copy=False))
        object.__setattr__(self, "by_itself", self.by_itself or self.stated)

    @classmethod
    def trust(
        cls,
        codes: NDArray[np.unsignedinteger],
        values: Sequence[Value],
        stated: bool = False,
        by_itself: bool = False,
        raw: Coded | None = None,
        typed: NDArray[np.bool_] | None = None,
    ) -> Coded:
        """The same of codes that were checked before, in the type that they are to have: none of them is read."""
        column = object.__new__(cls)
        given = {"codes": codes, "values": values, "stated": stated, "by_itself": by_itself or stated}
        vars(column).update(given, raw=raw, typed=typed)
        return column

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def numeric(self) -> bool:
        """Whether the categories can also be compared as numbers (true of a column with no values at all)."""
        return not (self.stated or isinstance(self.values, RowValues)) and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        )


@dataclass(frozen=True, eq=False)
class Numbers:
    """Measurements: NaN is missing. `by_itself` and `raw` as for `Coded`."""

    numbers: NDArray[np.float64]
    by_itself: bool = False
    raw: Coded | None = None

    def __post_init__(self) -> None:
        numbers = np.asanyarray(self.numbers, dtype=np.float64)
        if numbers.ndim != 1:
            raise TypeError(f"numbers must be a vector, not {numbers.ndim}-d")
        object.__setattr__(self, "numbers", numbers)

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False)
class Moments(Numbers):
    """Dates with times, in microseconds since 1970 (in UTC where `zoned`): what a source may give where times are asked
    for, because so many texts are slow to read."""

    zoned: bool = False


Column: TypeAlias = Coded | Numbers


def take_block(column: Column, block: slice, *, raw: bool = False) -> Column:
    """Some rows of a column, with all its values, or, where each row has its own, with those of these rows; with its
    `raw` cells where they are asked for."""
    kept: Coded | None = None
    if isinstance(column, Coded) and isinstance(column.values, RowValues):
        own = column.values.list_labels(block)
        every = np.arange(1, len(own) + 1, dtype=np.uint32)
        if raw and column.values.ends is not None:
            kept = Coded.trust(every, column.values.list_texts(block))
        codes = np.where(read_block(column.codes, block) > 0, every, np.uint32(0))
        return Coded.trust(codes, own, column.stated, column.by_itself, kept)
    if raw and column.raw is not None:
        kept = Coded.trust(read_block(column.raw.codes, block), column.raw.values)
    if isinstance(column, Coded):
        codes = read_block(column.codes, block)
        return Coded.trust(codes, column.values, column.stated, column.by_itself, kept)
    return Numbers(read_block(column.numbers, block), column.by_itself, kept)


def map_values(column: Coded, read: Callable[[Value], float], room: Path | None) -> NDArray[np.float64]:
    """A number for each row, from its value alone; NaN where it is missing."""
    values = column.values
    if not isinstance(values, RowValues):
        table: NDArray[np.float64] = np.array([np.nan, *map(read, values)], dtype=np.float64)
        return look_up(table, column.codes, room)

    def make(block: slice) -> NDArray[np.float64]:
        numbers = np.fromiter(map(read, values.list_labels(block)), np.float64)
        numbers[read_block(column.codes, block) == 0] = np.nan
        return numbers

    found: NDArray[np.float64] = fill_room(len(column), np.float64, room, make)
    return found


def keep_raw(codes: NDArray[np.integer], texts: Sequence[str]) -> Coded:
    """The cells of a column as they were written: codes (0: none) into texts."""
    return Coded(codes.astype(narrowest(len(texts))), tuple(texts))


def distinct_texts(column: Column, room: Path | None = None) -> Coded:
    """The column as codes into texts without blanks around them; numbers of a typed source as they are written.

    A fraction is refused: a number does not tell 250.1 from 250.10.
    """
    if isinstance(column, Numbers):
        present = ~np.isnan(column.numbers)
        distinct, places = np.unique(column.numbers[present], return_inverse=True)
        codes = np.zeros(len(column), dtype=np.uint32)
        codes[present] = places + 1
        column = Coded(codes, tuple(distinct.tolist()))
    texts = [_write(value) for value in column.values]
    code_of = {text: code for code, text in enumerate(sorted(set(texts) - {""}), start=1)}
    table = np.array([0, *(code_of.get(text, 0) for text in texts)], dtype=np.uint32)
    return Coded.trust(look_up(table.astype(narrowest(len(code_of))), column.codes, room), tuple(code_of))


def list_texts(column: Column) -> list[str | None]:
    """The text of each row, without blanks around it; None where there is none."""
    texts = distinct_texts(column)
    values = [None, *map(str, texts.values)]
    return [values[code] for code in texts.codes.tolist()]


def _write(value: Value) -> str:
    if isinstance(value, float) and not value.is_integer():
        raise RecordsError(
            f"{label(value)} is stored as a number, which does not tell 250.1 from 250.10; store it as text"
        )
    return label(value).strip()
