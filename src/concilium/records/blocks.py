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
from pathlib import Path
from typing import Any, TypeVar

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
    codes: NDArray[np.unsignedinteger], size: int, rows: NDArray[np.integer] | None = None
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
    workers = os.cpu_count() or 1
    if workers < 2 or (isinstance(blocks, list) and len(blocks) < 2):
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[T]] = deque()
        for block in blocks:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, block))
        while waiting:
            yield waiting.popleft().result()


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
