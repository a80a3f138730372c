"""What a hospital's rows are, as numbers: the same for one table in any order, from any source, however it is read.

Claim. Rows that hold other cells have other hashes, and tables of other rows other digests: by accident with a chance
of about 2^-64 for each pair of rows. The mix is made for speed and is no cryptographic one, so whoever writes a
hospital's table could build rows that collide; a ledger takes the hospital's word for its table anyway. A hash tells
nobody outside anything, since none leaves: a digest goes into the hospital's own ledger, and hashes of single patients
only under that ledger's key (ledger/memory.py).

A cell is hashed as it reads by itself (grammar.py), so that `1`, `1.0` and a number 1 are one cell, whether the schema
calls the column a number, a code or nothing. Where the reading lost something of a cell (`007` in a column of numbers,
a text that only this hospital names as missing) the column keeps its raw texts beside, and those are hashed. One cell
are: all of DEFAULT_MISSING and no cell at all; whole numbers of 2^53 and more that are one float; the spellings of
infinity. A column's cells are hashed with its name, and added up: the order of columns does not matter, and a missing
cell adds nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from concilium.records.blocks import each_block, fill_room, is_large, make_room, read_block, split_hashes
from concilium.records.columns import Coded, Column, RowValues, Value, label
from concilium.records.grammar import BLANKS, DEFAULT_MISSING, is_infinite, is_number, read_text

Hashes: TypeAlias = NDArray[np.uint64]
"""Two numbers of 64 bits for every row: [2, row]."""

ROWS_AT_ONCE = 1 << 15  # stays in the processor's cache
FEW_VALUES = 4096  # columns with no more distinct values than this are remembered: sites have many alike
APART = np.uint64(0xD1342543DE82EF95)


def hash_rows(
    columns: Mapping[str, Column], rows: int, folder: Path | None = None, known: Hashes | None = None
) -> Hashes:
    """The hash of each row; the order in which the columns are given does not matter. Of a large table they are in a
    file of no name in the folder. Those of the first rows may be `known`."""
    before = 0 if known is None else known.shape[1]
    parts = [_read_hashes(name, column) for name, column in columns.items()]

    def add_up(block: slice) -> NDArray[np.uint64]:
        hashes = np.zeros((block.stop - block.start, 2), dtype=np.uint64)
        first = min(max(block.start, before), block.stop)
        if known is not None and first > block.start:
            hashes[: first - block.start] = read_block(known, slice(block.start, first)).T
        for start in range(first, block.stop, ROWS_AT_ONCE):
            some = slice(start, min(start + ROWS_AT_ONCE, block.stop))
            own = hashes[start - block.start :][:ROWS_AT_ONCE]
            for part in parts:
                part(some, own)
        return hashes.T

    if not is_large(rows):
        return np.ascontiguousarray(add_up(slice(0, rows)))
    return fill_room((2, rows), np.uint64, folder, add_up)


def _read_hashes(name: str, column: Column) -> Callable[[slice, NDArray[np.uint64]], None]:
    """What adds the hashes of a column's cells, in some rows, to those of the rows."""
    raw = column.raw if column.raw is not None else column
    if isinstance(raw, Coded) and isinstance(raw.values, RowValues):
        values = raw.values

        def add_own(block: slice, hashes: NDArray[np.uint64]) -> None:
            if values.ends is None:
                hashes += _hash_numbers(name, read_block(values.cells, block))
            else:  # as they were written: what stands for missing here alone is told apart
                hashes += _hash_values(name, str, tuple(values.list_texts(block)))[1:]

        return add_own
    if isinstance(raw, Coded):
        codes, few = raw.codes, len(raw.values) <= FEW_VALUES
        # All values of a column are of one type; 1 and True are equal for a dictionary, and not for us.
        kind = type(raw.values[0]) if raw.values else str
        cells = (_remember_values if few else _hash_values)(name, kind, tuple(raw.values))

        def add_codes(block: slice, hashes: NDArray[np.uint64]) -> None:
            hashes += np.take(cells, read_block(codes, block), axis=0)

        return add_codes
    numbers = raw.numbers

    def add_numbers(block: slice, hashes: NDArray[np.uint64]) -> None:
        hashes += _hash_numbers(name, read_block(numbers, block))

    return add_numbers


def digest_rows(names: Sequence[str], hashes: Hashes) -> str:
    """SHA-256 over the names of the columns and the hashes of all rows, each sorted, so that no order matters."""
    hasher = hashlib.sha256(f"concilium/records@2 {hashes.shape[1]} {len(names)}\n".encode())
    for name in sorted(names):
        text = name.encode("utf-8", "surrogatepass")
        hasher.update(len(text).to_bytes(8, "little") + text)
    parts = ((half, rows) for half in hashes for rows in split_hashes(half))

    def sort_part(part: tuple[NDArray[np.uint64], NDArray[np.int64]]) -> NDArray[np.uint64]:
        half, rows = part
        return np.sort(half[rows]).astype("<u8", copy=False)

    for ordered in each_block(parts, sort_part) if is_large(hashes.shape[1]) else map(sort_part, parts):
        hasher.update(ordered.data)
    return hasher.hexdigest()


def tell_apart(hashes: Hashes, folder: Path | None = None) -> Hashes:
    """The same with rows that are equal numbered, in their order, so that no two rows have one hash."""
    apart = hashes
    for rows in split_hashes(hashes[0]):
        before = count_before(hashes[:, rows])
        if before is None:
            continue
        if apart is hashes:
            apart = make_room(hashes.shape, np.uint64, folder)
            apart[:] = hashes
        apart[0, rows] += before * APART
    return apart


def count_before(hashes: Hashes) -> NDArray[np.uint64] | None:
    """How many rows before each are equal to it; None where no two rows are."""
    if are_distinct(hashes[0]):
        return None
    order = np.lexsort((hashes[1], hashes[0]))  # stable: equal rows stay in order
    ordered = hashes[:, order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    places = np.arange(len(order))
    before = np.empty(len(order), dtype=np.uint64)
    before[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return before


def are_distinct(numbers: NDArray[np.uint64]) -> bool:
    """Whether no number is there twice."""
    ordered = np.sort(numbers)
    return not np.any(ordered[1:] == ordered[:-1])


def hash_contents(
    cells: NDArray[np.uint64], kinds: NDArray[np.uint64], owners: NDArray[np.integer], patients: int
) -> Hashes:
    """The hashes of patients of whom any number of cells is held, in any order: each a number, and of a kind that is a
    pair of numbers (`hash_texts`)."""
    mixed = mix(cells[:, None], kinds)
    hashes = np.zeros((2, patients), dtype=np.uint64)
    for half in (0, 1):
        np.add.at(hashes[half], owners, mixed[:, half])
    return hashes


def hash_labels(labels: Sequence[str]) -> Hashes:
    """The hashes of patients who are known by an id."""
    return np.ascontiguousarray(hash_texts(labels).T)


def mix(numbers: NDArray[np.uint64], key: int | np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function on numbers and a key: it scatters, and never maps two numbers to one."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + (np.uint64(key) if isinstance(key, int) else key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _hash_values(name: str, kind: type, values: Sequence[Value]) -> NDArray[np.uint64]:
    """The cells of a column's values, after that of a missing one: [value, 2]."""
    sizes = np.full(len(values) + 1, np.nan)
    if issubclass(kind, bool | str):
        texts: list[str] = []
        places: list[int] = []
        for place, value in enumerate(values, start=1):
            cell = _read_cell(value) if isinstance(value, str) else label(value)
            if isinstance(cell, str):
                texts.append(cell)
                places.append(place)
            elif cell is not None:
                sizes[place] = cell
        cells = _hash_numbers(name, sizes)
        cells[places] = mix(hash_texts(texts), _find_keys(name))
        return cells
    sizes[1:] = values
    return _hash_numbers(name, sizes)


_remember_values = lru_cache(maxsize=1024)(_hash_values)


def _read_cell(text: str) -> str | float | None:
    """A cell as it reads by itself, if missing texts are those that are missing everywhere."""
    bare = text.strip(BLANKS)
    if bare in DEFAULT_MISSING:
        return None
    value = read_text(text)
    if not isinstance(value, str):
        return label(value) if isinstance(value, bool) else float(value)
    return float(bare) if is_number(bare) or is_infinite(bare) else value


def _hash_numbers(name: str, numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    bits = (numbers + 0.0).view(np.uint64)  # -0.0 and 0.0 are one number
    cells = np.empty((len(numbers), 2), dtype=np.uint64)
    for half, key in enumerate(
        _find_keys(name)[0]
    ):  # one after the other: many times faster than side by side
        cells[:, half] = mix(bits, key)
    cells[np.isnan(numbers)] = 0
    return cells


def hash_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Two numbers for each text: [text, 2]."""
    blake = hashlib.blake2b
    hashed = b"".join([blake(t.encode("utf-8", "surrogatepass"), digest_size=16).digest() for t in texts])
    return np.frombuffer(hashed, dtype="<u8").astype(np.uint64).reshape(-1, 2)


@lru_cache(maxsize=4096)
def _find_keys(name: str) -> NDArray[np.uint64]:
    return hash_texts([f"column {name}"])
