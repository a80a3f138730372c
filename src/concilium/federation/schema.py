"""Stage 1 of DIDT: each site's metadata, the global schema, and the conditional schema each site is told.

The house learns which values and classes occur at which site. A site learns nothing in return: attributes it does
not know are not asked for, and values it does not know are masked (it is told positions of its own values only).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np

from concilium.errors import MessageError, RecordsError
from concilium.federation.cohort import Cohort, near_unique
from concilium.federation.histograms import check_edges
from concilium.federation.messages import decode
from concilium.federation.questions import Gathered
from concilium.federation.stated import canonical
from concilium.records.table import Coded, Column, Numbers, Value, label

# An integer attribute with more values than this over all sites is a number, not a category: it needs bins.
MOST_INTEGER_VALUES = 32


class AttributeSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attribute at one site and the values that occur in the cohort (None: missing). No values for bins."""

    name: str
    values: list[str | int | float | bool | None]
    numeric: bool


class SchemaSeen(Gathered, frozen=True, forbid_unknown_fields=True):
    """The metadata tuple of DIDT step 5: attributes, values, classes and the number of patients.

    `unbinned` names numeric attributes for which the study gives no bins; `floored` says that the site leaves
    small counts out, so that the tree will not be exact.
    """

    attributes: list[AttributeSeen]
    classes: list[str | int | float | bool]
    patients: int | None
    unbinned: list[str]
    floored: bool

    @property
    def numbers(self) -> int:
        """Each value that is told to occur is one thing told about the patients, and so is their number."""
        told = len(self.classes) + sum(len(attribute.values) for attribute in self.attributes)
        return told + (self.patients is not None)


class AskSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attributes, values and classes are there among the patients of this query?

    `measured`: the target is a number, so that there are no classes to list.
    """

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked"})
    additive: ClassVar[bool] = False

    query: str
    target: str
    bins: dict[str, list[float]] = {}
    attributes: list[str] | None = None
    count_patients: bool = True
    measured: bool = False

    def check(self, release: str) -> None:
        if release == "masked" and self.count_patients:
            raise MessageError("under masks a site does not tell how many patients it has")
        for name, edges in self.bins.items():
            check_edges(name, edges)

    def compute(self, cohort: Cohort, template: bytes) -> SchemaSeen:
        records = cohort.view.records
        classes = [] if self.measured else list_classes(cohort, self.target)
        wanted = records.names if self.attributes is None else set(self.attributes) & set(records.names)
        seen, unbinned = [], []
        for name in sorted(wanted):
            if name == self.target:
                continue
            if name in self.bins:
                cohort.view.binned(name, tuple(self.bins[name]))
                seen.append(AttributeSeen(name, [], True))
            elif (listed := as_listed(records[name])) is None:
                unbinned.append(name)
            else:
                seen.append(AttributeSeen(name, observed(listed, cohort), listed.numeric))
        return SchemaSeen(
            seen, classes, len(cohort) if self.count_patients else None, unbinned, cohort.floored
        )


@dataclass(frozen=True)
class Attribute:
    """An attribute of the global schema: its values in order, or public edges (then values are bin numbers)."""

    name: str
    values: tuple[Value | None, ...]
    edges: tuple[float, ...] = ()
    other: bool = False

    @property
    def size(self) -> int:
        return len(self.values) + self.other


@dataclass(frozen=True)
class GlobalSchema:
    """The union of what the sites know (DIDT step 6), reduced to attributes that every participant has."""

    attributes: tuple[Attribute, ...]
    classes: tuple[Value, ...]
    left_out: Mapping[str, str]

    def conditional(self, site: SchemaSeen) -> ConditionalSchema:
        """What one site is told (DIDT step 7): where its own values stand, nothing of the others'."""
        values = {attribute.name: attribute.values for attribute in site.attributes}
        return ConditionalSchema(
            classes=positions(self.classes, site.classes),
            attributes=[
                Known([], []) if attribute.edges else find_positions(place, values[attribute.name])
                for attribute, place in zip(self.attributes, self._places, strict=True)
            ],
        )

    @cached_property
    def _places(self) -> list[dict[str | None, int]]:
        """For every attribute where each of its values stands."""
        return [place_values(attribute.values) for attribute in self.attributes]

    @property
    def common(self) -> ConditionalSchema:
        """What all sites are told under masks: every value. A house that told each site something else could
        have them count into cells of their own, and read one site's numbers off the sum."""
        return ConditionalSchema(
            classes=positions(self.classes, self.classes),
            attributes=[
                Known([], [])
                if attribute.edges
                else msgspec.structs.replace(
                    positions(attribute.values, attribute.values),
                    other=len(attribute.values) if attribute.other else None,
                )
                for attribute in self.attributes
            ],
        )

    def keep(self, indices: Sequence[int]) -> GlobalSchema:
        """The schema with these attributes only."""
        return GlobalSchema(tuple(self.attributes[i] for i in indices), self.classes, self.left_out)


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The values a site knows, and where each stands in the global order; the rest is masked.

    Where values come from the study file instead of the sites, `other` is the place of all that it does not name.
    """

    positions: list[int]
    values: list[str | int | float | bool | None]
    other: int | None = None


class ConditionalSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    classes: Known
    attributes: list[Known]


def merge(schemas: Mapping[str, SchemaSeen], bins: Mapping[str, list[float]], target: str) -> GlobalSchema:
    """The global schema of these sites: values united, attributes that some site lacks left out (and why)."""
    left_out: dict[str, str] = {}
    holders: dict[str, list[AttributeSeen]] = {}
    for site, schema in schemas.items():
        for attribute in schema.attributes:
            holders.setdefault(attribute.name, []).append(attribute)
        for name in schema.unbinned:
            left_out.setdefault(name, f"a number at {site}; give bins for it")
    attributes = []
    for name in sorted(holders):
        seen = holders[name]
        if name in left_out:
            continue
        if len(seen) < len(schemas):
            lacking = next(site for site, s in schemas.items() if name not in {a.name for a in s.attributes})
            left_out[name] = f"not known at {lacking}, or withheld there"
        elif name in bins:
            edges = tuple(bins[name])
            attributes.append(Attribute(name, (*range(len(edges) + 1), None), edges))
        else:
            values = in_order(value for attribute in seen for value in attribute.values)
            if all(attribute.numeric for attribute in seen) and len(values) > MOST_INTEGER_VALUES:
                left_out[name] = f"a number with {len(values)} values; give bins for it"
            else:
                attributes.append(Attribute(name, values))
    classes = [
        value
        for value in in_order(c for schema in schemas.values() for c in schema.classes)
        if value is not None
    ]
    return GlobalSchema(tuple(attributes), tuple(classes), left_out)


def stated_schema(
    values: Mapping[str, Sequence[Value]], bins: Mapping[str, Sequence[float]], target: str
) -> GlobalSchema:
    """The schema of a private study: attributes, values and classes from the study file, none from the data.

    Whatever a patient has that is not named counts as `other` (missing among it); numbers have their bins.
    """
    named = {
        name: [canonical(v) if isinstance(v, str) else v for v in listed] for name, listed in values.items()
    }
    attributes = [
        Attribute(name, in_order(listed), (), True) for name, listed in named.items() if name != target
    ]
    attributes += [Attribute(n, (*range(len(e) + 1), None), tuple(e)) for n, e in bins.items() if n != target]
    classes = [value for value in in_order(named[target]) if value is not None]
    return GlobalSchema(tuple(sorted(attributes, key=lambda attribute: attribute.name)), tuple(classes), {})


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


def positions(known: tuple[Value | None, ...], own: Sequence[Value | None]) -> Known:
    """Where a site's own values stand in the global order."""
    return find_positions(place_values(known), own)


def place_values(known: tuple[Value | None, ...]) -> dict[str | None, int]:
    return {name_of(value): index for index, value in enumerate(known)}


def find_positions(place: Mapping[str | None, int], own: Sequence[Value | None]) -> Known:
    return Known([place[name_of(value)] for value in own], list(own))


def name_of(value: Value | None) -> str | None:
    """What makes two values of two sites the same: their label; missing is its own (None)."""
    return None if value is None else label(value)


def list_classes(cohort: Cohort, target: str) -> list[str | int | float | bool]:
    """The values of the target that occur among the cohort's patients; RecordsError where it is a number."""
    column = as_listed(cohort.view.records[target])
    if column is None:
        raise RecordsError(f"the target {target!r} is a number; here categories are predicted")
    return [value for value in observed(column, cohort) if value is not None]


def as_listed(column: Column) -> Coded | None:
    """A column whose values may be listed; None for numbers, and where to list about one value per patient would be to
    list the patients."""
    return None if isinstance(column, Numbers) or (column.numeric and near_unique(column)) else column


def observed(column: Coded, cohort: Cohort) -> list[str | int | float | bool | None]:
    """The values that occur among the cohort's patients, missing (None) last."""
    codes = column.codes if cohort.everyone else column.codes[cohort.rows]
    present = np.flatnonzero(np.bincount(codes, minlength=1))
    found: list[str | int | float | bool | None] = [column.values[code - 1] for code in present if code]
    return [*found, None] if len(present) and present[0] == 0 else found


def read_schema(body: bytes) -> SchemaSeen:
    return decode(body, SchemaSeen)


def _rank(value: Value) -> tuple[int, float, str]:
    if isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
