"""Columns by blocks of rows, and room for what is as long as a table and need not stay in memory.

A table of more than `ROWS_AT_ONCE` rows is gone over by blocks. What is worked out of all rows, such as the codes of
a number between cutoffs, is then put into a file of no name beside the column store (`make_room`): the kernel takes its
pages out of memory where others need it, and the file is gone with the process. Smaller tables are one block, in
memory.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from concilium.errors import RecordsError

ROWS_AT_ONCE = 1 << 20
ROWS_SORTED = 1 << 22  # what is sorted, is sorted by parts of about so many rows
PAGE = mmap.PAGESIZE

B = TypeVar("B")
T = TypeVar("T")
Item = TypeVar("Item", bound=np.generic)


def is_large(rows: int) -> bool:
    """Whether a table of so many rows is gone over by blocks."""
    return rows > ROWS_AT_ONCE


def list_blocks(rows: int, at_once: int | None = None) -> list[slice]:
    """The blocks of a table, in order, of `at_once` rows at most."""
    step = min(ROWS_AT_ONCE, at_once or ROWS_AT_ONCE)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def list_parts(rows: int, at_once: int | None) -> list[slice]:
    """The same. A table that is not large is one block, whatever `at_once` says."""
    return list_blocks(rows, at_once if is_large(rows) else None)


def read_block(array: NDArray[Item], block: slice) -> NDArray[Item]:
    """Some rows of an array (its last axis). Those of a mapped file are copied, so that its pages leave memory."""
    if not isinstance(array, np.memmap):
        return array[..., block]
    rows = np.array(array[..., block])
    release_pages(array, block)
    return rows


def release_pages(array: NDArray[Any], block: slice) -> None:
    """Let the kernel have the pages of these rows of a mapped file back. What was written stays in the file."""
    mapped: Any = array.base
    if not isinstance(array, np.memmap) or not isinstance(mapped, mmap.mmap):
        return
    from_row, to_row, _ = block.indices(array.shape[-1])
    first = array.offset % mmap.ALLOCATIONGRANULARITY
    for row in range(array.size // array.shape[-1]):
        begin = first + row * array.shape[-1] * array.itemsize
        start = (begin + from_row * array.itemsize) // PAGE * PAGE
        end = min(begin + to_row * array.itemsize, len(mapped))
        if end > start:
            mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def make_room(shape: int | tuple[int, ...], dtype: DTypeLike, folder: Path | None) -> NDArray[Any]:
    """An array of zeros: in memory, or, where it has many rows and there is a folder, in a file without a name."""
    rows = shape if isinstance(shape, int) else max(shape)
    if folder is None or not is_large(rows):
        return np.zeros(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:  # which only its owner can read
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        try:
            os.posix_fallocate(
                file.fileno(), 0, size
            )  # a full disk is an error here, and no broken page later
        except OSError as error:
            raise RecordsError(
                f"{folder}: there is no room for {size / 1e9:.2g} GB that a large table needs while it is asked about "
                f"({error.strerror}); make room on that disk"
            ) from None
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def write_block(array: NDArray[Any], block: slice, rows: NDArray[Any]) -> None:
    """Put rows into a block of an array."""
    array[..., block] = rows
    release_pages(array, block)


def fill_room(
    shape: int | tuple[int, ...], dtype: DTypeLike, folder: Path | None, make: Callable[[slice], NDArray[Any]]
) -> NDArray[Any]:
    """An array (of which the last axis are rows), made block by block on all cores."""
    room = make_room(shape, dtype, folder)
    for _ in each_block(list_blocks(room.shape[-1]), lambda block: write_block(room, block, make(block))):
        pass
    return room


def look_up(table: NDArray[Item], codes: NDArray[np.integer], folder: Path | None) -> NDArray[Item]:
    """What a table has for each code, or a column in each of these rows."""
    if not is_large(len(codes)):
        few: NDArray[Item] = table[codes]
        return few
    found: NDArray[Item] = fill_room(
        len(codes), table.dtype, folder, lambda block: table.take(read_block(codes, block))
    )
    return found


def count_codes(
    codes: NDArray[np.integer], size: int, rows: NDArray[np.integer] | None = None
) -> NDArray[np.int64]:
    """How many rows, or how many of some, have each code below `size` (`np.bincount` would widen all at once)."""

    def count(block: slice) -> NDArray[np.int64]:
        here = read_block(codes, block) if rows is None else codes[read_block(rows, block)]
        return np.bincount(here, minlength=size)

    return sum(
        each_block(list_blocks(len(codes if rows is None else rows)), count), np.zeros(size, dtype=np.int64)
    )


def hash_array(array: NDArray[np.integer], dtype: str) -> bytes:
    """SHA-256 over an array as if it was of this type."""
    hasher = hashlib.sha256()
    for block in list_blocks(len(array)):
        hasher.update(np.ascontiguousarray(read_block(array, block), dtype=dtype).data)
    return hasher.digest()


def each_block(blocks: Iterable[B], work: Callable[[B], T]) -> Iterator[T]:
    """What `work` makes of each block, in order; on all cores where there are several. At most one block for each core
    and one result for each is in memory."""
    # One block is most questions', and to count the cores takes a hundredth of one.
    if (isinstance(blocks, list) and len(blocks) < 2) or (workers := os.cpu_count() or 1) < 2:
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[T]] = deque()
        for block in blocks:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(copy_context().run, work, block))
        while waiting:
            yield waiting.popleft().result()


class Passes(Generic[B]):
    """Rows to be gone over several times, block by block; where there is one block, it is read once."""

    def __init__(self, rows: int, read: Callable[[slice], B], at_once: int | None = None) -> None:
        self._blocks, self._read = list_parts(rows, at_once), read
        self._only = [] if len(self._blocks) > 1 else [read(slice(0, rows))]

    def map(self, work: Callable[[B], T]) -> Iterator[T]:
        """What `work` makes of each block, in order."""
        if self._only:
            return map(work, self._only)
        return each_block(self._blocks, lambda block: work(self._read(block)))

    def add(self, work: Callable[[B], NDArray[np.float64]]) -> NDArray[np.float64]:
        """The sum of what `work` makes of each block, in their order."""
        sums = self.map(work)
        total = next(sums)
        for one in sums:
            total = total + one
        return total


def list_groups(counts: NDArray[np.integer]) -> list[slice]:
    """Runs of owners with these counts of rows: each run has a block of rows at most, or is one owner with more."""
    ends = np.cumsum(counts, dtype=np.int64)
    if not len(ends) or not is_large(int(ends[-1])):
        return [slice(0, len(ends))]
    groups, first, before = [], 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, before + ROWS_AT_ONCE, side="right")))
        groups.append(slice(first, last))
        first, before = last, int(ends[last - 1])
    return groups


def split_owners(
    rows: int, owners: int, read: Callable[[slice], NDArray[np.integer]]
) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.integer]]]:
    """Some owners at a time, with their rows, in order, and the owner of each. `read` says whose the rows of a block
    are; below zero: nobody's."""
    counts, spans = np.zeros(owners, dtype=np.int64), []
    for block in list_blocks(rows):
        own = read(block)
        counts += np.bincount(own[own >= 0], minlength=owners)
        spans.append((block, int(own.min(initial=owners)), int(own.max(initial=-1))))
    for group in list_groups(counts):
        found = []
        for block, lowest, highest in spans:
            if lowest < group.stop and highest >= group.start:
                own = read(block)
                here = np.flatnonzero((own >= group.start) & (own < group.stop))
                found.append((here + block.start, own[here]))
        places, codes = zip(*found, strict=True) if found else ((), ())
        none = np.zeros(0, dtype=np.int64)
        yield group, np.concatenate([none, *places]), np.concatenate([none, *codes])


def gather_spans(
    values: NDArray[Item], firsts: NDArray[np.int64], lengths: NDArray[np.integer], folder: Path | None
) -> NDArray[Item]:
    """The spans of values with these first places and lengths, one after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    found: NDArray[Item] = make_room(int(ends[-1]) if len(ends) else 0, values.dtype, folder)
    for group in list_groups(lengths):
        before = int(ends[group.start - 1]) if group.start else 0
        after = int(ends[group.stop - 1]) if group.stop else 0
        shifts = firsts[group] - (ends[group] - lengths[group])
        places = np.arange(before, after) + np.repeat(shifts, lengths[group])
        write_block(found, slice(before, after), values[places])
    return found


def read_rows(array: NDArray[Item], rows: slice | NDArray[np.integer]) -> NDArray[Item]:
    """A block of an array, or rows by their numbers."""
    return read_block(array, rows) if isinstance(rows, slice) else array[rows]


def find_distinct(values: NDArray[Item], folder: Path | None) -> NDArray[Item]:
    """The different values of an array, in order; those of a large one are sorted in place in a file."""
    if not is_large(len(values)):
        return np.unique(values)
    kept = fill_room(len(values), values.dtype, folder, lambda block: read_block(values, block))
    kept.sort()
    size = 0
    for block in list_blocks(len(kept)):
        own = np.unique(read_block(kept, block))
        own = own[own > kept[size - 1]] if size else own
        kept[size : size + len(own)] = own
        size += len(own)
    return kept[:size]


def order_falling(values: NDArray[np.float64], folder: Path | None) -> NDArray[np.int64]:
    """The places of numbers, the largest first, equal ones in order."""
    if not is_large(len(values)):
        return np.argsort(-values, kind="stable")
    distinct = find_distinct(values, folder)

    def make(block: slice) -> NDArray[np.uint64]:
        rank = len(distinct) - 1 - np.searchsorted(distinct, read_block(values, block))
        return (rank.astype(np.uint64) << np.uint64(32)) | np.arange(block.start, block.stop, dtype=np.uint64)

    keys = fill_room(len(values), np.uint64, folder, make)
    keys.sort()
    return fill_room(
        len(values),
        np.int64,
        folder,
        lambda block: (read_block(keys, block) & np.uint64(0xFFFFFFFF)).astype(np.int64),
    )


def split_hashes(hashes: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
    """The rows of each part of these hashes, by their first bits, in order of the hashes; rows in order. Equal hashes
    are in one part."""
    bits = max(0, (len(hashes) // ROWS_SORTED).bit_length())
    if not bits or not is_large(len(hashes)):
        yield np.arange(len(hashes))
        return
    for part in range(1 << bits):
        rows = [
            np.flatnonzero((read_block(hashes, block) >> np.uint64(64 - bits)) == part) + block.start
            for block in list_blocks(len(hashes))
        ]
        yield np.concatenate(rows)
