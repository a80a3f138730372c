"""An attribute as all sites of a study speak of it: one form, one union over sites, one recoding of a site's column.

The codes of an attribute are the cells of its tables, everywhere: missing first (where it has a cell of its own), then
the intervals between public edges or the values in order, then any other value (where that has one). Two values are
the same if their labels are: sites need not agree on how a code is stored.

The work of a question follows from the question and the size of the whole table, never from the patients who match.

An operation is a visit to one cell of the table, which takes some nanoseconds. What is slower counts as several, so
that no question takes longer than SLOWEST_OPERATION for each, once its code is compiled. Memory is what is held at
once. Both are upper bounds, within reason: a column of categories is taken to have fewer different values than the
table has rows, and texts of usual length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Date
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.grid import Grid
from concilium.records.columns import Coded, Value, label

MOST_EDGES = 1000


def check_edges(name: str, edges: Sequence[float]) -> None:
    """MessageError unless edges are finite and strictly rising, and not too many."""
    array = np.asarray(edges[: MOST_EDGES + 1], dtype=np.float64)
    if not 1 <= len(edges) <= MOST_EDGES or not np.isfinite(array).all():
        raise MessageError(f"the bins of {name[:60]!r} must be 1 to {MOST_EDGES} finite edges")
    if not (array[1:] > array[:-1]).all():
        raise MessageError(f"the bins of {name[:60]!r} must rise")


def read_bins(bins: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Public edges by attribute, as lists of numbers; ValueError where they are none, MessageError where they do not
    rise."""
    try:
        read = {name: [float(edge) for edge in edges] for name, edges in bins.items()}
    except (AttributeError, TypeError):
        raise ValueError from None
    for name, edges in read.items():
        check_edges(name, edges)
    return read


def choose_cutoffs(histogram: NDArray[np.int64], edges: Sequence[float], count: int) -> list[float]:
    """At most `count` of the edges, those nearest to even quantiles: the right edge of the bin where each lies.

    Counts below zero (noise) are none, so that the distribution function never falls. An attribute whose patients
    all lie in one bin has no cutoff.
    """
    bins = np.maximum(histogram[1:], 0)
    reached = np.cumsum(bins)
    if reached[-1] == 0:
        return []
    wanted = reached[-1] * np.arange(1, count + 1) / (count + 1)
    at = np.searchsorted(reached, wanted)
    return sorted(
        {float(edges[index]) for index in at.tolist() if index < len(edges) and reached[index] < reached[-1]}
    )


def say_edge(edge: float, *, date: bool = False) -> str:
    """A cutoff as it is written: a number, or a day as its date."""
    return str(Date.fromordinal(int(edge))) if date else f"{edge:g}"


MISSING = 0
NOWHERE = -1
MOST_VALUES = 1 << 20
MOST_CHARACTERS = 1000


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number with its public edges, or a category with its values.

    `missing` and `other` say which of these have a cell; what has none counts as `other`, or is left out. A site that
    is told its own values only (`narrow`) gets these as `values`, their `places` among all, and how many there are.
    `date`: the edges are days, counted from the year 1. `grid` names edges of the public grid instead of stating them.
    """

    name: str
    stated_edges: tuple[float, ...] = ()
    values: tuple[str | int | float | bool, ...] = ()
    missing: bool = True
    other: bool = True
    places: tuple[int, ...] = ()
    of: int = 0
    date: bool = False
    grid: Grid | None = None

    @property
    def edges(self) -> tuple[float, ...]:
        """Where a number is cut: at the stated edges, or at those of the grid."""
        return self.stated_edges if self.grid is None else self.grid.find_edges(is_date=self.date)

    @property
    def numeric(self) -> bool:
        return self.grid is not None or bool(self.stated_edges)

    @property
    def first(self) -> int:
        """The cell of the first value or interval."""
        return int(self.missing)

    @property
    def size(self) -> int:
        """How many cells there are."""
        edges = self.edges
        if edges:
            return self.missing + len(edges) + 1
        return self.missing + (self.of or len(self.values)) + self.other

    @property
    def inner(self) -> int:
        """How many intervals or values there are."""
        edges = self.edges
        return len(edges) + 1 if edges else self.of or len(self.values)

    @property
    def missing_cell(self) -> int:
        """Where missing values are counted."""
        return MISSING if self.missing else self.other_cell

    @property
    def other_cell(self) -> int:
        """Where values that are not named are counted; NOWHERE if they are not."""
        return self.first + self.inner if self.other and not self.edges else NOWHERE

    @property
    def covers_everyone(self) -> bool:
        """Whether every patient has a cell, whatever the value."""
        return self.missing if self.edges else self.other

    @property
    def in_branch_order(self) -> list[int]:
        """Its cells as a tree branches: values or intervals, missing, any other."""
        inner = list(range(self.first, self.first + self.inner))
        return [*inner, *([MISSING] if self.missing else []), *range(self.first + self.inner, self.size)]

    @property
    def cells(self) -> Sequence[int]:
        """The cell of each of its values."""
        if self.of:
            return [self.first + place for place in self.places]
        return range(self.first, self.first + len(self.values))

    def narrow(self, known: Collection[str]) -> Attribute:
        """The same for a site that has the values of these labels: it is told no others."""
        told = [
            (value, cell)
            for value, cell in zip(self.values, self.cells, strict=True)
            if label(value) in known
        ]
        if len(told) == len(self.values):
            return self
        return msgspec.structs.replace(
            self,
            values=tuple(value for value, _ in told),
            places=tuple(cell - self.first for _, cell in told),
            of=self.inner,
        )

    def check(self) -> None:
        """MessageError unless it is a number or a category, and well formed."""
        if len(self.name) > MOST_CHARACTERS:
            raise MessageError(f"the name of an attribute may have at most {MOST_CHARACTERS} characters")
        if self.numeric and (self.values or self.of):
            raise MessageError(f"{self.name[:60]!r} is both a number and a category")
        if self.grid is not None and self.stated_edges:
            raise MessageError(f"{self.name[:60]!r} has edges of its own, and those of the grid")
        if self.grid is not None:
            self.grid.check(is_date=self.date)
        if self.stated_edges:
            check_edges(self.name, self.stated_edges)
        if self.numeric and not self.places:
            return  # what follows is about values, of which it has none
        labels = {label(value) for value in self.values}
        if len(labels) != len(self.values) or self.inner > MOST_VALUES:
            raise MessageError(
                f"{self.name[:60]!r} must have different values, at most {MOST_VALUES} of them"
            )
        outside = any(not 0 <= place < self.of for place in self.places) or self.of < 0
        if (
            outside
            or len(set(self.places)) != len(self.values if self.of else ())
            or (self.places and not self.of)
        ):
            raise MessageError(f"the values of {self.name[:60]!r} have no place among all, or two have one")


class AttributeSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An attribute at one site, and the values that occur in the cohort (None: missing). No values for bins."""

    name: str
    values: list[str | int | float | bool | None]
    numeric: bool


def check_attributes(attributes: Sequence[Attribute]) -> None:
    """MessageError unless attributes differ, and each is well formed."""
    if len({attribute.name for attribute in attributes}) != len(attributes):
        raise MessageError("an attribute is named twice")
    for attribute in attributes:
        attribute.check()


def unite(
    by_site: Mapping[str, Sequence[AttributeSeen]],
) -> tuple[dict[str, AttributeSeen], dict[str, str]]:
    """The attributes that every site knows, by name, with the values of all; of the others a site that lacks it."""
    holders: dict[str, dict[str, AttributeSeen]] = {}
    for site, attributes in by_site.items():
        for attribute in attributes:
            holders.setdefault(attribute.name, {})[site] = attribute
    united, lacking = {}, {}
    for name, held in sorted(holders.items()):
        if len(held) < len(by_site):
            lacking[name] = next(site for site in by_site if site not in held)
            continue
        values = _in_order(value for attribute in held.values() for value in attribute.values)
        united[name] = AttributeSeen(name, list(values), all(a.numeric for a in held.values()))
    return united, lacking


def _in_order(values: Iterable[Value | None]) -> tuple[Value | None, ...]:
    """Values of all sites, each once: numbers by size, then text, missing last. 5 and '5' are one value (text
    where any site has it as text), since sites need not agree on how a code is stored."""
    by_label: dict[str, Value] = {}
    missing = False
    for value in values:
        if value is None:
            missing = True
            continue
        name = label(value)
        if name not in by_label or isinstance(value, str):
            by_label[name] = value
    if any(isinstance(value, str) for value in by_label.values()):
        by_label = {name: name for name in by_label}
    ordered = sorted(by_label.values(), key=_rank)
    return (*ordered, None) if missing else tuple(ordered)


def present(values: Iterable[Value | None]) -> tuple[Value, ...]:
    """The values in order, without missing."""
    return tuple(value for value in _in_order(values) if value is not None)


def find_runs(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Different whole numbers as runs without a gap, (first, last) each, in order."""
    runs: list[tuple[int, int]] = []
    for code in sorted(codes):
        if runs and runs[-1][1] + 1 == code:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs


class Source(Protocol):
    """Where the columns of patients are read: at a site (cohort.View), or to predict (prediction.NewPatients)."""

    def binned(self, name: str, edges: tuple[float, ...]) -> NDArray[np.unsignedinteger]:
        """A number as codes: 0 missing, then 1 + the number of edges at or below it."""

    def coded(self, name: str) -> Coded:
        """A category."""

    def reread(self, name: str) -> Callable[[Value], str] | None:
        """What else a value may be the label of, where an attribute does not have its own; None: nothing."""


def recode(attribute: Attribute, source: Source) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]:
    """A column's own codes, one for each patient, and for each such code the attribute's cell (or NOWHERE)."""
    if attribute.edges:
        inner = range(attribute.first, attribute.first + attribute.inner)
        cells = np.array([attribute.missing_cell, *inner], dtype=np.int32)
        return source.binned(attribute.name, attribute.edges), cells
    column = source.coded(attribute.name)
    return column.codes, _find_cells(attribute, column, source.reread(attribute.name))


def _find_cells(
    attribute: Attribute, column: Coded, reread: Callable[[Value], str] | None = None
) -> NDArray[np.int32]:
    """For each code of a column of categories (0: missing) the attribute's cell, NOWHERE where it has none."""
    place = dict(zip(map(label, attribute.values), attribute.cells, strict=True))
    other = attribute.other_cell
    cells = [place.get(label(value), other) for value in column.values]
    if reread is not None:
        cells = [
            cell if label(value) in place else place.get(reread(value), other)
            for cell, value in zip(cells, column.values, strict=True)
        ]
    return np.array([MISSING if attribute.missing else other, *cells], dtype=np.int32)


def _rank(value: Value) -> tuple[int, float, str]:
    # By label where sizes are equal (1 and true, or whole numbers beyond a float), whichever site came first.
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), label(value))


SLOWEST_OPERATION = 5e-9  # seconds
# A call or two of Python or numpy, whatever they are about.
CALL = 5_000
# For each patient: to find the interval of a number (and more by the edges), the cell of a category, and the label of
# a cell that is read by itself, which may be a number.
READ_NUMBER, READ_CATEGORY, READ_LABEL = 16, 60, 500
# Bytes for each patient while one column is read, and while its cells are read by themselves.
READING, LABELLING = 48, 240


@dataclass(frozen=True)
class Workload:
    """So many operations, and so many bytes at once."""

    operations: int
    memory: int

    def __add__(self, other: Workload) -> Workload:
        return Workload(self.operations + other.operations, self.memory + other.memory)


def estimate_columns(
    attributes: Iterable[Attribute], patients: int, *, each_by_itself: bool = False
) -> Workload:
    """To read the columns of these attributes, and to hold their codes."""
    operations, memory = 0, LABELLING if each_by_itself else READING
    for attribute in attributes:
        edges = len(attribute.edges)
        if edges:
            operations += READ_NUMBER + 4 * edges.bit_length()
            memory += count_code_bytes(edges + 1)
        else:
            operations += READ_LABEL if each_by_itself else READ_CATEGORY
            memory += 4 if each_by_itself else count_code_bytes(attribute.size)
    return Workload(operations * patients, memory * patients)


def count_code_bytes(largest: int) -> int:
    """How many bytes a code takes of which this is the largest."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
