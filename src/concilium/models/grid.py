"""Cutoffs of numbers for which the study states none, on the public grid (protocol/grid.py; docs/methods.md, 2.2).

Two questions find the quantiles. The first counts patients by sign and decade; the second by the digits of the decades
in which quantiles lie. In one question the three digits that tell sodium of 139 from 140 would be 27,000 cells of every
number; in two they are about 500. Dates are numbers of days, and their decades are years.

A patient is in one cell of each number in either question: p numbers have squared sensitivity p and L1 sensitivity p.
What follows from noisy counts is post-processing: which decades are looked at again, how many cutoffs there are.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, split_counts
from concilium.protocol.grid import (
    DAYS,
    DECADES,
    HIGHEST,
    LARGEST_STEP,
    LOWEST,
    MOST_YEARS,
    YEARS,
    Grid,
    on_grid,
)
from concilium.protocol.questions import Conversation
from concilium.protocol.schema import CONVERT
from concilium.records.clinical_ranges import find_range, place_limits
from concilium.records.columns import Value
from concilium.records.units import Quartiles, find_factor

CUTOFFS = 20
# Decades that are looked at again, and the step of the third digit where so many are.
STEPS = {1: 1, 2: 2, 5: 5, 10: 10}
MOST_AGAIN = max(STEPS)
# A cell of noisy counts holds patients if it has more than so many standard deviations of the noise.
DEVIATIONS, SURELY = 2.5, 5.0
# The same of one of some hundred words.
WORD_DEVIATIONS = 4.0
ENDS = 2  # cuts of the first and of the last cell
# The widest cell, as a part of its greater end, in which values are taken to be the same.
NARROW_CELL = 0.1
# Two groups of numbers are of two units, perhaps, where a factor lies between them and hardly any patient, each is some
# part of all patients, and has some values.
APART, MOST_BETWEEN, SMALLEST_GROUP, LEAST_GROUP, LEAST_VALUES = 3.0, 0.05, 0.05, 20, 5
# A reference range is narrow if its ends differ by this factor at most.
NARROW = 1.4
# Years in which a private study looks for dates.
LIKELY_YEARS = YEARS[40:140]
DAYS_FROM, DAYS_TO = LIKELY_YEARS[0], LIKELY_YEARS[-1]

# Given attributes: the question for their histograms, and the variance of each count (0 where they are exact).
Histograms = Callable[[tuple[Attribute, ...]], tuple[AskCounts, float]]


def ask_cutoffs(
    numbers: Sequence[str],
    ask: Histograms,
    *,
    dates: Collection[str] = (),
    cutoffs: int = CUTOFFS,
    grouped: list[str] | None = None,
    words: tuple[Value, ...] = (),
    worded: dict[str, list[Value]] | None = None,
    fewest: int | None = None,
) -> Conversation[tuple[dict[str, tuple[float, ...]], dict[str, str]]]:
    """Cutoffs of these numbers at even quantiles, and those that have none, and why.

    `fewest`: cells are cut further where cutoffs are left, and at both ends, into cells of no fewer exact patients.
    `grouped` receives the numbers whose patients lie in two groups far apart, and by no factor of units. `worded`
    receives columns of text that hold some of these public `words`, and which.
    """
    again, without = yield from find_edges(numbers, ask, dates=dates, cutoffs=cutoffs, words=words)
    if not again:
        return {}, without
    question, variance = ask(again)
    fine = split_counts(again, (yield question))
    chosen: dict[str, tuple[float, ...]] = {}
    for attribute in again:
        if not attribute.numeric:
            held, reason = _find_words(fine[attribute.name][:, 0], attribute.values, variance)
            if reason:
                without[attribute.name] = reason
            elif worded is not None:
                worded[attribute.name] = held
            continue
        groups = find_groups(fine[attribute.name][:, 0], attribute.edges, variance)
        if groups is not None:
            if why := say_two_units(attribute.name, groups):
                without[attribute.name] = why
                continue
            if grouped is not None:
                grouped.append(attribute.name)
        if variance and (why := _find_lone_cell(fine[attribute.name][1:, 0], attribute.edges, variance)):
            without[attribute.name] = why
            continue
        edges = _choose(fine[attribute.name][:, 0], attribute.edges, cutoffs, variance)
        if edges and fewest is not None and not variance:
            edges = _cut_further(fine[attribute.name][1:, 0], attribute.edges, edges, cutoffs, fewest)
        if edges:
            chosen[attribute.name] = edges
        else:
            without[attribute.name] = say_alike(fine[attribute.name][1:, 0], attribute.edges)
    return chosen, without


def find_edges(
    numbers: Sequence[str],
    ask: Histograms,
    *,
    dates: Collection[str] = (),
    cutoffs: int = CUTOFFS,
    beyond: bool = False,
    words: tuple[Value, ...] = (),
) -> Conversation[tuple[tuple[Attribute, ...], dict[str, str]]]:
    """Edges among which so many quantiles of each number are to be looked for, and numbers without any, and why.

    `beyond`: also of numbers that are infinite for some patients, or beyond the grid. `words`: those that are looked
    for where noisy counts show text.
    """
    if not numbers:
        return (), {}
    everything = {is_date: Grid(0, len(YEARS if is_date else DECADES)) for is_date in (False, True)}
    first = tuple(Attribute(name, date=name in dates, grid=everything[name in dates]) for name in numbers)
    question, variance = ask(first)
    coarse = split_counts(first, (yield question))
    without: dict[str, str] = {}
    again = []
    for attribute in first:
        histogram = coarse[attribute.name][:, 0]
        is_date = attribute.name in dates
        why = _find_fault(histogram, variance, beyond=beyond or is_date)
        if why == TEXT and words:
            again.append(Attribute(name=attribute.name, values=words))
            continue
        if why:
            without[attribute.name] = why
            continue
        cells = _clear(histogram, variance)
        closer = _look_closer(cells, attribute.edges, cutoffs, math.sqrt(variance), is_date)
        named = (
            ()
            if is_date or not variance
            else _cut_as_days(cells) or _cut_by_name(attribute.name, cells, closer)
        )
        again.append(Attribute(attribute.name, named, date=is_date, grid=None if named else closer))
    return tuple(again), without


def _cut_as_days(cells: NDArray[np.float64]) -> tuple[float, ...]:
    """Years from 1940 to 2039, where most patients lie in their decade; and its digits, since they may be numbers.

    A private study does not know which columns are dates: each cell that is one is read as its day.
    """
    place = DECADES.index(1e6)
    if cells[place] <= cells.sum() / 2:
        return ()
    digits = (digit * 1e5 for digit in range(1, 11))
    return tuple(sorted({*(edge for edge in digits if not DAYS_FROM <= edge <= DAYS_TO), *LIKELY_YEARS}))


def _cut_by_name(name: str, cells: NDArray[np.float64], closer: Grid) -> tuple[float, ...]:
    """The public limits of a measurement that is known by its name, and one digit of each decade, where its patients
    lie in the decades of its reference range; none of another name, or in another unit.

    It is for narrow ranges, such as that of sodium: there most cells of a decade are empty, and noise alone.
    """
    clinical = find_range(name)
    if clinical is None or not 0 < clinical.high <= NARROW * clinical.low:
        return ()
    first, last = (bisect_right(DECADES, limit) for limit in (clinical.low, clinical.high))
    if cells[first : last + 1].sum() < cells.sum() / 2:
        return ()
    digits = msgspec.structs.replace(closer, step=LARGEST_STEP).find_edges(is_date=False)
    return tuple(sorted({*digits, *filter(on_grid, place_limits(clinical))}))


def find_groups(
    histogram: NDArray[np.int64], edges: tuple[float, ...], variance: float = 0.0
) -> tuple[Quartiles, Quartiles] | None:
    """The quartiles of two groups of positive numbers with hardly anybody between them, as those of two units are.

    By the sum over hospitals alone. Each group has several values: doses of 1 and 10 are none. With noise each group
    stands out of the noise of all cells, and hardly anybody between them of that of the cells there.
    """
    first, after = _find_apart(edges)
    if not len(after):
        return None
    # By the end of each cell, and then of the cell that lies apart: how many patients are below.
    cells = histogram[first + 1 : -1].copy()
    cells[0] = 0
    patients = np.cumsum(cells)
    here, there = patients[: len(after)], patients[after]
    smaller = np.minimum(here, patients[-1] - there)
    fits = smaller >= max(
        LEAST_GROUP, SMALLEST_GROUP * patients[-1], SURELY * math.sqrt(variance * len(cells))
    )
    fits &= there - here <= MOST_BETWEEN * smaller
    if variance:
        fits &= np.sqrt(variance * (after - np.arange(len(after)))) <= 2 * MOST_BETWEEN * smaller
    else:
        held = np.cumsum(cells > 0)
        fits &= np.minimum(held[: len(after)], held[-1] - held[after]) >= LEAST_VALUES
    if not fits.any():
        return None
    place = int(np.argmax(np.where(fits, smaller, -1)))
    above = int(after[place]) + 1
    lower = np.array([0.0, *edges[first:-1]])
    groups = _find_quartiles(cells[: place + 1], lower), _find_quartiles(cells[above:], lower[above:])
    # With noise nobody can count the values of a group; a code has the same one for most patients.
    return None if variance and any(low == high for low, _, high in groups) else groups


def _find_quartiles(cells: NDArray[np.int64], lower: NDArray[np.float64]) -> Quartiles:
    """The lower ends of the cells in which the quartiles lie."""
    rising = _rise(np.cumsum(cells).astype(np.float64))
    places = np.searchsorted(rising, rising[-1] * np.array([0.25, 0.5, 0.75]))
    first, median, third = lower[places].tolist()
    return first, median, third


def say_two_units(name: str, groups: tuple[Quartiles, Quartiles]) -> str | None:
    """Why a number is left out whose groups differ by a factor of units; None where they do not."""
    if groups[0][0] <= 0 or (factor := find_factor(name, *groups)) is None:
        return None
    return f"{TWO_UNITS} about {factor:g} times apart, as in two units; {CONVERT}"


@lru_cache(maxsize=1024)
def _find_apart(edges: tuple[float, ...]) -> tuple[int, NDArray[np.intp]]:
    """The place of the first positive edge, and for it and those that follow the first edge that lies apart, counted
    from there."""
    first = bisect_right(edges, 0.0)
    ends = np.array(edges[first:])
    after = np.searchsorted(ends, APART * ends)
    return first, after[after < len(ends)]


def say_alike(cells: NDArray[np.int64], edges: tuple[float, ...]) -> str:
    """Why nearly everybody is in one cell: the same value, or values that the grid does not tell apart."""
    place = int(np.argmax(cells))
    if 0 in edges[max(place - 1, 0) : place + 1]:
        return f"the same for nearly everybody, or nearer to 0 than 1e{LOWEST}"
    return "the same for nearly everybody"


TWO_UNITS = "two groups of values"
ALIKE = "the same for nearly everybody, as far as noise lets tell; bins would bring it in"
ALIKE_TEXT = "the same for nearly everybody, as far as noise lets tell; values would bring it in"
TEXT = "text or missing, as far as noise lets tell; state values, which `concilium dictionary` drafts"
HIDDEN = "noise hides the numbers; state bins, which `concilium dictionary` drafts, or raise epsilon"
BEYOND = f"infinite or beyond 1e{HIGHEST} for some; let a map call that missing, or give bins"


def _find_words(
    counts: NDArray[np.int64], words: Sequence[Value], variance: float
) -> tuple[list[Value], str]:
    """The words that noise does not hide, by counts of missing, of each word and of any other value; or why there are
    none that part patients."""
    hidden = WORD_DEVIATIONS * math.sqrt(variance)
    held = [word for word, count in zip(words, counts[1:-1], strict=True) if count > hidden]
    if len(held) > 1 or (held and counts[0] + counts[-1] > hidden):
        return held, ""
    return [], ALIKE_TEXT if held else TEXT


def _find_lone_cell(cells: NDArray[np.int64], edges: tuple[float, ...], variance: float) -> str | None:
    """Why a number has no cutoffs if its patients are in one narrow cell, and noise hides whoever is in the others."""
    place = int(np.argmax(cells))
    if not 0 < place < len(edges):
        return None
    low, high = edges[place - 1 : place + 1]
    narrow = 0 in (low, high) or high - low <= NARROW_CELL * max(abs(low), abs(high))
    deviation = math.sqrt(variance * len(cells))
    hidden = cells.sum() - cells[place] <= DEVIATIONS * deviation
    return ALIKE if narrow and hidden and cells[place] > SURELY * deviation else None


def _find_fault(histogram: NDArray[np.int64], variance: float, *, beyond: bool) -> str | None:
    """Why a number has no cutoffs by its first histogram, as far as noise lets tell: nobody has it, or for some it is
    `beyond` the grid, and that is no reason to keep it."""
    if not beyond and max(histogram[1], histogram[-1]) > SURELY * math.sqrt(variance):
        return BEYOND
    if variance:
        # Text counts as missing. Of many cells without patients one may well reach three deviations, and none five.
        fullest, deviation = float(histogram[1:].max(initial=0)), math.sqrt(variance)
        seen = fullest > SURELY * deviation or (fullest > DEVIATIONS * deviation and fullest > histogram[0])
        return None if seen else TEXT if histogram[0] > max(SURELY * deviation, fullest) else HIDDEN
    return None if histogram[1:].any() else "missing for everybody"


def _clear(histogram: NDArray[np.int64], variance: float) -> NDArray[np.float64]:
    """The counts of cells, without those that could be noise alone; the fullest stays."""
    cells = np.maximum(histogram[1:].astype(np.float64), 0)
    if variance:
        least = min(DEVIATIONS * math.sqrt(variance), cells.max(initial=0))
        cells[cells < least] = 0
    return cells


def _look_closer(
    cells: NDArray[np.float64], edges: Sequence[float], cutoffs: int, deviation: float, is_date: bool
) -> Grid:
    """The decades where quantiles lie, with their digits, and the decades between them."""
    reached = np.cumsum(cells)
    wanted = reached[-1] * np.arange(1, cutoffs + 1) / (cutoffs + 1)
    places = np.unique(np.searchsorted(reached, wanted)).tolist()
    inner = [place for place in places if 0 < place < len(edges)]
    fullest = sorted(inner, key=lambda place: -cells[place])
    first, last = max(places[0] - 1, 0), min(places[-1] + 1, len(edges))
    if is_date:
        return Grid(first, last, tuple(sorted(fullest[:MOST_YEARS])))
    split = sorted([place for place in fullest if edges[place - 1] and edges[place]][:MOST_AGAIN])
    return Grid(first, last, tuple(split), _find_step(len(split), float(reached[-1]), deviation))


def _find_step(decades: int, patients: float, deviation: float) -> int:
    """The step of the third digit: one that so many decades leave room for, and with which noise leaves something of
    the counts. With few cells a quantile is interpolated within one; with many it is the noise of all of them."""
    step = next((step for most, step in STEPS.items() if decades <= most), MOST_AGAIN)
    if not deviation:
        return step
    return next((least for least in (10, 20, 50) if patients > 20 * deviation * math.sqrt(900 / least)), 100)


def _choose(
    histogram: NDArray[np.int64], edges: tuple[float, ...], cutoffs: int, variance: float
) -> tuple[float, ...]:
    """At most so many of the edges, at even quantiles. Of edges between which nobody lies the last is taken: it is the
    least value of those above. With noise there are no more quantiles than it lets tell apart."""
    cells = histogram[1:].astype(np.float64)
    if variance:
        return _choose_noisy(cells, edges, cutoffs, variance)
    reached = np.cumsum(cells)
    wanted = reached[-1] * np.arange(1, cutoffs + 1) / (cutoffs + 1)
    held = np.flatnonzero(cells)
    after = np.searchsorted(held, np.searchsorted(reached, wanted), side="right")
    return tuple(sorted({edges[place - 1] for place in held[after[after < len(held)]].tolist()}))


def _cut_further(
    cells: NDArray[np.int64],
    edges: Sequence[float],
    chosen: Sequence[float],
    cutoffs: int,
    fewest: int,
) -> tuple[float, ...]:
    """These cutoffs with others: where values are so few that quantiles fall together, the cells with most patients are
    cut in two until there are so many cutoffs; then the first and the last are. Each half has the fewest at least."""
    places = {edge: place for place, edge in enumerate(edges)}
    cuts = [0, *(places[edge] + 1 for edge in chosen), len(cells)]
    before = np.concatenate([[0], np.cumsum(cells)])

    def halve(cell: int) -> bool:
        """Cut a cell where its halves are most alike."""
        start, end = cuts[cell], cuts[cell + 1]
        inner = np.arange(start + 1, end)
        least = np.minimum(before[inner] - before[start], before[end] - before[inner])
        if not len(inner) or least.max() < fewest:
            return False
        # Of edges between which nobody lies the last: the least value of those above.
        at = int(inner[np.flatnonzero(least == least.max())[-1]])
        held = np.flatnonzero(cells[at:end])
        cuts.insert(cell + 1, at + int(held[0]) if len(held) else at)
        return True

    whole: set[int] = set()
    while len(cuts) - 2 < cutoffs:
        order = sorted(
            (cell for cell in range(len(cuts) - 1) if cuts[cell] not in whole),
            key=lambda cell: before[cuts[cell]] - before[cuts[cell + 1]],
        )
        if not order:
            break
        if not halve(order[0]):
            whole.add(cuts[order[0]])
    for _ in range(ENDS):
        halve(0)
        halve(len(cuts) - 2)
    return tuple(edges[cut - 1] for cut in sorted(set(cuts[1:-1])))


def _choose_noisy(
    cells: NDArray[np.float64], edges: tuple[float, ...], cutoffs: int, variance: float
) -> tuple[float, ...]:
    """The same of noisy counts: quantiles of the distribution function that is nearest to them and never falls, as
    many as the noise lets tell apart, interpolated within cells."""
    rising = _rise(np.cumsum(cells))
    total = float(rising[-1])
    if total <= 0 or len(edges) < 2:
        return edges if total > 0 else ()
    error = math.sqrt(variance * len(cells) / 2)  # of a quantile: about the noise of half of the cells
    most = max(1, min(cutoffs, int(total / (2 * error)) - 1))
    wanted = total * np.arange(1, most + 1) / (most + 1)
    inner = np.interp(wanted, rising[:-1], edges) if rising[-2] > rising[0] else np.array(edges[:1])
    rounded = _round_day if _holds_days(cells, edges) else _round
    return tuple(sorted({rounded(_leave_zero(edge)) for edge in inner.tolist()}))


def _leave_zero(edge: float) -> float:
    """The cutoff at the end of the cell where it lies, if that is next to 0: what lies there is 0, and has no parts."""
    tiny = 10.0**LOWEST
    return tiny if 0 < edge < tiny else 0.0 if -tiny < edge < 0 else edge


def _holds_days(cells: NDArray[np.float64], edges: tuple[float, ...]) -> bool:
    """Whether most of these noisy counts lie between years, where the cells are years."""
    if not set(LIKELY_YEARS) <= set(edges):
        return False
    first, last = (bisect_right(edges, year) for year in (DAYS_FROM, DAYS_TO))
    return float(cells[first:last].sum()) > float(cells.sum()) / 2


def _round_day(edge: float) -> float:
    """The nearest first or middle day of a month."""
    return min(DAYS, key=lambda day: abs(day - edge))


def _round(edge: float) -> float:
    """The nearest number of two digits, or of three where it begins with 1."""
    return float(f"{edge:.2g}") if abs(edge) < 1e-6 or f"{abs(edge):e}"[0] != "1" else float(f"{edge:.3g}")


def _rise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rising sequence nearest to this one, by least squares, from zero on (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, size = (mean * size + before * many) / (size + many), size + many
        blocks.append((mean, size))
    risen: NDArray[np.float64] = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
    return np.clip(risen, 0.0, None)


def merge_cutoffs(
    stated: Mapping[str, Sequence[float]], chosen: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """The study's own cutoffs, and those of the grid for the rest."""
    return {
        **{name: list(edges) for name, edges in chosen.items()},
        **{n: list(e) for n, e in stated.items()},
    }
