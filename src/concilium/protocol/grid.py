"""The public grid of numbers and days (docs/methods.md, section 2.2).

It is the same for everybody, so that no hospital has to tell a range: zero, both signs, every decade from 1e-6 to 1e9,
and three significant digits in each. Days lie between the first and the middle of every month from 1900 to 2099; their
decades are years. A question names cells of it instead of sending their edges.

The codes of numbers between public edges are 0 for missing, then 1 + the number of edges at or below the value.
Numbers are placed by their first bits, which name a bucket with few edges or none. On the grid a bucket has one edge at
most, and the codes of a column are found once for all questions about it: other edges of the grid are a table over
these codes.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.errors import MessageError
from concilium.records.blocks import count_codes, fill_room, is_large, look_up, read_block
from concilium.records.units import Quartiles

LOWEST, HIGHEST = -6, 9
DECADES = tuple(
    sorted(
        [0.0, *(sign * float(f"1e{power}") for power in range(LOWEST, HIGHEST + 1) for sign in (-1.0, 1.0))]
    )
)
YEARS = tuple(float(date(year, 1, 1).toordinal()) for year in range(1900, 2100))
DAYS = tuple(
    float(date(year, month, day).toordinal())
    for year in range(1900, 2100)
    for month in range(1, 13)
    for day in (1, 16)
)
# Years that are split into half months. Of decades as many are split as there are digits in a step.
MOST_YEARS, LARGEST_STEP = 30, 100


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Cells of the grid: between the decades (or years) of `first` and `last`, of which those in `split` are divided.

    A cell has the place of the decade at its end. Decades are divided at every so many of the numbers of three digits
    (`step`), years at half months.
    """

    first: int
    last: int
    split: tuple[int, ...] = ()
    step: int = 1

    def check(self, *, is_date: bool) -> None:
        """MessageError unless these are cells of the grid, and not too many."""
        coarse = YEARS if is_date else DECADES
        within = 0 <= self.first < self.last <= len(coarse)
        divisible = all(0 < place < len(coarse) for place in self.split) and (
            is_date or all(coarse[place - 1] and coarse[place] for place in self.split)
        )
        most = MOST_YEARS if is_date else self.step
        if not (within and divisible and len(self.split) <= most and 1 <= self.step <= LARGEST_STEP):
            raise MessageError("a question names cells that the public grid does not have")

    def find_edges(self, *, is_date: bool) -> tuple[float, ...]:
        """The edges of its cells, in order."""
        return _find_edges(self, is_date)


@lru_cache(maxsize=1024)
def _find_edges(grid: Grid, is_date: bool) -> tuple[float, ...]:
    coarse = YEARS if is_date else DECADES
    edges = set(coarse[grid.first : grid.last])
    for place in grid.split:
        low, high = coarse[place - 1 : place + 1]
        edges.update(_find_half_months(low, high) if is_date else _find_digits(low, high, grid.step))
    return tuple(sorted(edges))


def _find_digits(low: float, high: float, step: int = 1) -> tuple[float, ...]:
    """The numbers of three digits between two powers of ten, every so many of them."""
    sign, power = (1, round(math.log10(low))) if low > 0 else (-1, round(math.log10(-high)))
    return tuple(sign * float(f"{digits}e{power - 2}") for digits in range(100, 1000, step))


def _find_half_months(low: float, high: float) -> tuple[float, ...]:
    return DAYS[bisect_left(DAYS, low) : bisect_left(DAYS, high)]


@lru_cache(maxsize=2)
def _list_edges(*, is_date: bool) -> NDArray[np.float64]:
    """All edges of the grid, in order."""
    if is_date:
        return np.array(DAYS)
    tiny = DECADES.index(0.0)
    parts = [place for place in range(1, len(DECADES)) if place not in (tiny, tiny + 1)]
    digits = [_find_digits(DECADES[place - 1], DECADES[place]) for place in parts]
    return np.array(sorted({*DECADES, *(edge for part in digits for edge in part)}))


def on_grid(edge: float) -> bool:
    """Whether a study that states no cutoffs may cut here: a number of three significant digits, or a day."""
    return math.isfinite(edge) and (float(f"{edge:.3g}") == edge or edge in _days())


@lru_cache(maxsize=1)
def _days() -> frozenset[float]:
    return frozenset(DAYS)


def are_days(edges: Sequence[float]) -> bool:
    """Whether a private study that found these cutoffs cuts dates by them: no round number is such a day."""
    return bool(edges) and _days().issuperset(edges)


@lru_cache(maxsize=2048)
def all_on_grid(edges: tuple[float, ...]) -> bool:
    """Whether it may cut at each of these."""
    return all(map(on_grid, edges))


Codes = NDArray[np.unsignedinteger]

# Fewer numbers than this are put between edges without a kernel.
FEW_NUMBERS = 1 << 12
MOST_BUCKETS = 1 << 13
# Bits of a number that do not say its bucket of the grid: the other 10 of its fraction tell 1/1000 apart.
GRID_SHIFT = 42


def bin_codes(values: NDArray[np.float64], edges: tuple[float, ...], room: Path | None = None) -> Codes:
    """Codes of numbers between public edges: 0 missing, i where edges[i-2] <= value < edges[i-1]."""
    if is_large(len(values)):
        dtype = np.min_scalar_type(len(edges) + 1)
        return fill_room(len(values), dtype, room, lambda block: bin_codes(read_block(values, block), edges))
    codes = np.empty(len(values), dtype=np.min_scalar_type(len(edges) + 1))
    if len(values) < FEW_NUMBERS:
        codes[:] = np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right") + 1
        codes[np.isnan(values)] = 0
    else:
        _fill_codes(np.ascontiguousarray(values), *_find_buckets(edges), codes)
    return codes


@dataclass(frozen=True)
class GridCodes:
    """A column of numbers, or of days, between all edges of the public grid. `reached`: how many of all patients have
    each code or one below it, the missing first, and then from the code `first` to the highest that occurs."""

    codes: NDArray[np.uint16]
    first: int
    reached: NDArray[np.int64]
    is_date: bool

    @classmethod
    def place(cls, values: NDArray[np.float64], *, is_date: bool, room: Path | None = None) -> GridCodes:
        edges = _list_edges(is_date=is_date)
        if is_large(len(values)):
            codes = fill_room(
                len(values),
                np.uint16,
                room,
                lambda b: cls.place(read_block(values, b), is_date=is_date).codes,
            )
            return cls(codes, *_accumulate(codes), is_date)
        if is_date or len(values) < FEW_NUMBERS:
            codes = (np.searchsorted(edges, values, side="right") + 1).astype(np.uint16)
            codes[np.isnan(values)] = 0
            return cls(codes, *_accumulate(codes), is_date)
        codes = np.empty(len(values), dtype=np.uint16)
        counts = _find_counters(len(edges) + 2)
        first, last = _fill_grid_codes(np.ascontiguousarray(values), *_find_grid_buckets(), codes, counts)
        counts[first - 1] = counts[0]
        reached: NDArray[np.int64] = counts[first - 1 : last + 1].cumsum()
        counts[0] = counts[first - 1 : last + 1] = 0
        return cls(codes, first, reached, is_date)

    def look_up(self, rows: Codes, room: Path | None) -> GridCodes:
        """The codes of a column that in each row has one of these numbers, by its place."""
        codes = look_up(self.codes, rows, room)
        return GridCodes(codes, *_accumulate(codes), self.is_date)

    def merge(self, edges: tuple[float, ...], room: Path | None = None) -> Codes | None:
        """The codes between fewer edges; None where one of them is not on the grid."""
        ends = _find_ends(edges, self.is_date)
        if ends is None:
            return None
        dtype = np.min_scalar_type(len(edges) + 1)
        table = np.repeat(np.arange(len(edges) + 2, dtype=dtype), ends[1:] - ends[:-1])
        if is_large(len(self.codes)):
            return look_up(table, self.codes, room)
        merged = np.empty(len(self.codes), dtype=dtype)
        _look_up(table, self.codes, merged)
        return merged

    def find_quartiles(self, rows: NDArray[np.int32] | None, *, least: int) -> Quartiles | None:
        """The edges below the quartiles of these rows, or of all; None of fewer than so many, and unless all three are
        positive: another unit would not show."""
        first, reached = self._accumulate(rows)
        known = int(reached[-1] - reached[0])
        if known < least:
            return None
        ranks = reached[0] + np.array([known + 3, 2 * (known + 1), 3 * (known + 1)]) // 4
        places = np.searchsorted(reached, ranks) + first - 3
        if places[0] < 0:  # below the grid
            return None
        first_quartile, median, third_quartile = _list_edges(is_date=self.is_date)[places].tolist()
        return (first_quartile, median, third_quartile) if first_quartile > 0 else None

    def _accumulate(self, rows: NDArray[np.int32] | None) -> tuple[int, NDArray[np.int64]]:
        if rows is None:
            return self.first, self.reached
        return _accumulate(self.codes, rows)

    def count(self, grid: Grid, rows: NDArray[np.int32] | None) -> NDArray[np.int64]:
        """How many of these rows, or of all, have each code between the edges of these cells of the grid."""
        first, reached = self._accumulate(rows)
        ends = _find_cell_ends(grid, self.is_date)
        below = reached.take(ends - first, mode="clip")
        below[0] = 0
        return below[1:] - below[:-1]


def _accumulate(
    codes: NDArray[np.uint16], rows: NDArray[np.int32] | None = None
) -> tuple[int, NDArray[np.int64]]:
    """The first code that occurs, and how many have each code or one below it, the missing before the first."""
    if is_large(len(codes)):
        counts = count_codes(codes, 1 << 16, rows)
        occurs = np.flatnonzero(counts[1:]) + 1
        first, last = (int(occurs[0]), int(occurs[-1])) if len(occurs) else (1, 0)
        counts[first - 1] = counts[0]
        return first, counts[first - 1 : last + 1].cumsum()
    codes = codes if rows is None else codes[rows]
    known = codes[codes > 0]
    first = int(known.min()) if len(known) else 1
    reached = np.cumsum(np.bincount(known - np.uint16(first - 1), minlength=1))
    return first, reached + (len(codes) - len(known))


_own = threading.local()


def _find_counters(size: int) -> NDArray[np.int64]:
    """Zeros, the same for every column that a thread places: they are set back, since to make so many takes longer
    than to fill them."""
    counters: NDArray[np.int64] | None = getattr(_own, "counters", None)
    if counters is None or len(counters) != size:
        counters = _own.counters = np.zeros(size, dtype=np.int64)
    return counters


@lru_cache(maxsize=1024)
def _find_cell_ends(grid: Grid, is_date: bool) -> NDArray[np.intp]:
    """The same as of its edges: to look up a few numbers is faster than to look up hundreds of edges."""
    ends = _find_ends(grid.find_edges(is_date=is_date), is_date)
    assert ends is not None
    return ends


@lru_cache(maxsize=1024)
def _find_ends(edges: tuple[float, ...], is_date: bool) -> NDArray[np.intp] | None:
    """Where the codes between these edges begin and end among those of the grid, missing first; None where an edge is
    not on the grid."""
    grid = _list_edges(is_date=is_date)
    wanted = np.asarray(edges, dtype=np.float64)
    places = np.searchsorted(grid, wanted)
    if (places == len(grid)).any() or (grid[places] != wanted).any():
        return None
    return np.concatenate([[0, 1], places + 2, [len(grid) + 2]])


@lru_cache(maxsize=512)
def _find_buckets(edges: tuple[float, ...]) -> tuple[NDArray[np.float64], NDArray[np.int64], int, int]:
    """Edges, and for each bucket of numbers that share their first bits how many edges lie below all of it; the first
    bucket is that of the least edge, and so many bits do not count."""
    array = np.asarray(edges, dtype=np.float64) + 0.0  # there is one zero
    first, last = _order(array.view(np.int64)[[0, -1]]).tolist()
    shift = next((bits for bits in (43, 45, 47) if (last - first) >> bits < MOST_BUCKETS), 48)
    low, high = first >> shift, last >> shift
    bits = np.arange(low, high + 2, dtype=np.int64) << shift
    least = _order(bits).view(np.float64)
    starts = np.searchsorted(array, least, side="left")
    starts[0] = 0
    starts[-1] = len(array)  # beyond the last edge
    return array, starts, low, shift


def _order(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of a number as a whole number that is in the same order, and back."""
    return np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)


@compiled(boundscheck=False)
def _fill_codes(
    values: NDArray[np.float64],
    edges: NDArray[np.float64],
    starts: NDArray[np.int64],
    low: int,
    shift: int,
    codes: NDArray[np.unsignedinteger],
) -> None:
    """Find the bucket of each number by its bits, and then its place among the few edges of that."""
    bits = values.view(np.int64)
    last = len(starts) - 1
    for index in range(len(values)):
        value = values[index]
        if np.isnan(value):
            codes[index] = 0
            continue
        own = bits[index] if value != 0 else np.int64(0)
        if own < 0:
            own = own ^ np.int64(0x7FFF_FFFF_FFFF_FFFF)
        bucket = (own >> shift) - low
        if bucket < 0:
            codes[index] = 1
            continue
        place, end = len(edges), len(edges)
        if bucket < last:
            place, end = starts[bucket], starts[bucket + 1]
        while place < end:
            middle = (place + end) // 2
            if edges[middle] <= value:
                place = middle + 1
            else:
                end = middle
        codes[index] = place + 1


@lru_cache(maxsize=1)
def _find_grid_buckets() -> tuple[NDArray[np.uint16], NDArray[np.float64], int]:
    """For each bucket of sizes, of numbers above and then below zero: the code of its least number, and the edge within
    it (NaN: none), from which the code is one more; and the first bucket. Its first and last are all that is beyond."""
    edges = _list_edges(is_date=False)
    above = edges[edges > 0]
    low, high = (above[[0, -1]].view(np.int64) >> GRID_SHIFT).tolist()
    ends = (np.arange(low, high + 2, dtype=np.int64) << GRID_SHIFT).view(np.float64)
    # The least number of each bucket, and the greatest.
    least = np.concatenate([[0.0], ends, np.nextafter(-ends, 0.0), [-np.inf]])
    most = np.concatenate([np.nextafter(ends, 0.0), [np.inf, 0.0], -ends])
    starts = np.searchsorted(edges, least, side="right")
    stops = np.searchsorted(edges, most, side="right")
    assert np.all((stops == starts) | (stops == starts + 1))
    within = np.where(stops > starts, edges[np.minimum(starts, len(edges) - 1)], np.nan)
    return (starts + 1).astype(np.uint16), within, low - 1


@compiled(boundscheck=False)
def _fill_grid_codes(
    values: NDArray[np.float64],
    starts: NDArray[np.uint16],
    within: NDArray[np.float64],
    low: int,
    codes: NDArray[np.uint16],
    counts: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill codes, and how many numbers have each; the first and the last code that occurs, 1 and 0 of none."""
    bits = values.view(np.int64)
    half = len(starts) // 2
    first, last = np.uint16(0xFFFF), np.uint16(0)
    for index in range(len(values)):
        value = values[index]
        bucket = min(max(((bits[index] >> GRID_SHIFT) & 0x1FFFFF) - low, 0), half - 1)
        if bits[index] < 0:
            bucket += half
        code = np.uint16(starts[bucket] + (value >= within[bucket]))
        if np.isnan(value):
            code = np.uint16(0)
        codes[index] = code
        counts[code] += 1
        first = min(first, np.uint16(code - 1))  # of the missing, one below 0 is the greatest
        last = max(last, code)
    return (int(first) + 1, int(last)) if last else (1, 0)


@compiled(boundscheck=False)
def _look_up(table: Codes, codes: NDArray[np.uint16], into: Codes) -> None:
    for index in range(len(codes)):
        into[index] = table[codes[index]]
