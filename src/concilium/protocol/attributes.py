"""An attribute as all sites of a study speak of it: one form, one union over sites, one recoding of a site's column.

The codes of an attribute are the cells of its tables, everywhere: missing first (where it has a cell of its own), then
the intervals between public edges or the values in order, then any other value (where that has one). Two values are
the same if their labels are: sites need not agree on how a code is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.edges import check_edges
from concilium.records.columns import Coded, Value, label

MISSING = 0
NOWHERE = -1
MOST_VALUES = 1 << 20
MOST_CHARACTERS = 1000


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number with its public edges, or a category with its values.

    `missing` and `other` say which of these have a cell; what has none counts as `other`, or is left out. A site that
    is told its own values only (`narrow`) gets these as `values`, their `places` among all, and how many there are.
    """

    name: str
    edges: tuple[float, ...] = ()
    values: tuple[str | int | float | bool, ...] = ()
    missing: bool = True
    other: bool = True
    places: tuple[int, ...] = ()
    of: int = 0

    @property
    def numeric(self) -> bool:
        return bool(self.edges)

    @property
    def first(self) -> int:
        """The cell of the first value or interval."""
        return int(self.missing)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return self.missing + self.inner + (self.other and not self.edges)

    @property
    def inner(self) -> int:
        """How many intervals or values there are."""
        return len(self.edges) + 1 if self.edges else self.of or len(self.values)

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
        if self.edges and (self.values or self.of):
            raise MessageError(f"{self.name[:60]!r} is both a number and a category")
        if self.edges:
            check_edges(self.name, self.edges)
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
        values = in_order(value for attribute in held.values() for value in attribute.values)
        united[name] = AttributeSeen(name, list(values), all(a.numeric for a in held.values()))
    return united, lacking


def in_order(values: Iterable[Value | None]) -> tuple[Value | None, ...]:
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
    return tuple(value for value in in_order(values) if value is not None)


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
    return column.codes, find_cells(attribute, column, source.reread(attribute.name))


def find_cells(
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
