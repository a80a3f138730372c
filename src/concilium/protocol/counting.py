"""Counting at a site: one pass over the columns adds up (value, key) for every row, a key being a node and a class.

The kernels are compiled by numba, release the GIL and work on column-major codes. All nodes of a level are counted
in the same pass, so a level costs one read of the table whatever the number of nodes; four columns share a pass,
so that the keys are read once for the four.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled

Codes = NDArray[np.unsignedinteger]
Table = NDArray[np.uint32]

TOGETHER = 4
# Above this share of the table's rows, reading all of them in order beats picking the rows out.
DENSE = 0.4
# Up to so many cells to read, a few calls of numpy over all columns at once beat a call of a kernel for each four.
FEW_CELLS = 1 << 12


def count(
    columns: Sequence[Codes],
    sizes: Sequence[int],
    rows: NDArray[np.int32],
    keys: Codes,
    width: int,
    *,
    repeated: bool = False,
) -> Table:
    """How many of the rows have which code and which key: a table [code, key] of each column, one below the other.

    `keys` belongs to `rows` and is below `width`; `sizes` says how many codes a column has. Rows are in order, or
    `repeated`: then a row may come several times, each time with another key.
    """
    if not columns:
        return np.zeros((0, width), dtype=np.uint32)
    everyone = len(columns[0])
    if len(columns) * max(len(rows), everyone) <= FEW_CELLS:
        return _count_few(columns, sizes, rows, keys, width)
    if repeated or len(rows) < DENSE * everyone:
        return _fill(columns, sizes, rows, keys, width)
    if len(rows) == everyone:
        return _fill(columns, sizes, None, keys, width)
    all_keys = np.full(everyone, width, dtype=np.min_scalar_type(width))
    all_keys[rows] = keys
    return _fill(columns, sizes, None, all_keys, width + 1)[:, :width]


def _count_few(
    columns: Sequence[Codes], sizes: Sequence[int], rows: NDArray[np.int32], keys: Codes, width: int
) -> Table:
    ends = list(accumulate(sizes, initial=0))
    codes = np.concatenate(columns).reshape(len(columns), -1).take(rows, axis=1)
    places = (codes + np.array(ends[:-1], dtype=np.int64)[:, None]) * width + keys
    counts = np.bincount(places.reshape(-1), minlength=ends[-1] * width)
    return counts.astype(np.uint32).reshape(-1, width)


def _fill(
    columns: Sequence[Codes], sizes: Sequence[int], rows: NDArray[np.int32] | None, keys: Codes, width: int
) -> Table:
    """The tables over the given rows, or over all rows in order where None."""
    ends = list(accumulate((size * width for size in sizes), initial=0))
    block = np.zeros(ends[-1], dtype=np.uint32)
    tables = [block[start:end] for start, end in pairwise(ends)]
    by_size: dict[int, list[int]] = {}  # which is their type, since codes are unsigned
    for index, column in enumerate(columns):
        by_size.setdefault(column.itemsize, []).append(index)
    for indices in by_size.values():
        for start in range(0, len(indices), TOGETHER):
            group = indices[start : start + TOGETHER]
            codes = tuple([columns[index] for index in group])
            into = tuple([tables[index] for index in group])
            if len(group) == TOGETHER:
                _add_four(codes, rows, keys, width, into)
            else:
                for one, table in zip(codes, into, strict=True):
                    _add(one, rows, keys, width, table)
    return block.reshape(-1, width)


# Without rows the compiler leaves the look-up of a row out.
@compiled(boundscheck=False)
def _add(codes: Codes, rows: NDArray[np.int32] | None, keys: Codes, width: int, table: Table) -> None:
    step = np.uint32(width)
    for index in range(len(keys)):
        row = index if rows is None else rows[index]
        table[np.uint32(codes[row]) * step + np.uint32(keys[index])] += 1


@compiled(boundscheck=False)
def _add_four(
    codes: tuple[Codes, ...], rows: NDArray[np.int32] | None, keys: Codes, width: int, into: tuple[Table, ...]
) -> None:
    a, b, c, d = codes
    table_a, table_b, table_c, table_d = into
    step = np.uint32(width)
    for index in range(len(keys)):
        row = index if rows is None else rows[index]
        key = np.uint32(keys[index])
        table_a[np.uint32(a[row]) * step + key] += 1
        table_b[np.uint32(b[row]) * step + key] += 1
        table_c[np.uint32(c[row]) * step + key] += 1
        table_d[np.uint32(d[row]) * step + key] += 1
