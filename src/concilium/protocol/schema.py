"""Each site's metadata, the schema that all sites share, and what each site is told of it (docs/methods.md, 1.2).

The house learns which values and classes occur at which site. A site learns nothing in return: attributes it does
not know are not asked for, and the run names no value to it that it did not list itself (run.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from concilium.errors import DoesNotFit, MessageError
from concilium.protocol.attributes import Attribute, AttributeSeen, present, unite
from concilium.protocol.cohort import Cohort, near_unique
from concilium.protocol.edges import check_edges
from concilium.protocol.questions import PLAIN, Gathered, Reply
from concilium.protocol.work import READ_CATEGORY, READ_NUMBER, READING, Workload, count_code_bytes
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.grammar import canonical, measure

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

# An integer attribute with more values than this over all sites is a number, not a category: it needs bins.
MOST_INTEGER_VALUES = 32
# As many values as a column is taken to have when the memory to list them is estimated.
MOST_LISTED = 1 << 16
# Different texts among numbers, up to which they are taken for what a hospital writes where nothing was measured.
ODD_TEXTS = 3


class SchemaSeen(Reply, frozen=True):
    """What one site can be asked about: attributes, values, classes and the number of patients.

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
        values = len(self.classes) + sum(len(attribute.values) for attribute in self.attributes)
        return values + (self.patients is not None)

    @property
    def names(self) -> set[str]:
        """All attributes that the site knows, whether or not they can be used."""
        return {attribute.name for attribute in self.attributes} | set(self.unbinned)


class AskSchema(Gathered[SchemaSeen], frozen=True, kw_only=True):
    """Which attributes, values and classes are there among the patients of this query?

    `count_patients`: and how many patients are they? `measured`: the target is a number, so that there are no classes.
    """

    kind: ClassVar[str] = "tree.schema"
    releases: ClassVar[frozenset[str]] = PLAIN
    merges: ClassVar[bool] = True
    reply: ClassVar[type[SchemaSeen]] = SchemaSeen

    bins: dict[str, list[float]] = msgspec.field(default_factory=dict)
    attributes: list[str] | None = None
    count_patients: bool = True
    measured: bool = False

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {"bins": self.bins, "attributes": self.attributes}

    def check(self, release: Release) -> None:
        if self.count_patients and not release.by_site:
            raise MessageError("under masks a site does not tell how many patients it has")
        for name, edges in self.bins.items():
            check_edges(name, edges)

    def estimate(self, patients: int, columns: int) -> Workload:
        listed = columns if self.attributes is None else min(columns, len(self.attributes))
        edges = sorted((len(bins) for bins in self.bins.values()), reverse=True)[:columns]
        operations = READ_CATEGORY * (listed + 1) + sum(READ_NUMBER + 4 * n.bit_length() for n in edges)
        held = READING + sum(count_code_bytes(n + 1) for n in edges)
        return Workload(
            operations * patients, held * patients + 16 * (listed + 1) * min(patients, MOST_LISTED)
        )

    def compute(self, cohort: Cohort) -> SchemaSeen:
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
                seen.append(AttributeSeen(name, list_values(listed, cohort), listed.numeric))
        return SchemaSeen(
            seen, classes, len(cohort) if self.count_patients else None, unbinned, cohort.floored
        )

    def find_known(self, reply: SchemaSeen) -> Mapping[str, Sequence[Value | None]]:
        known: dict[str, Sequence[Value | None]] = {one.name: one.values for one in reply.attributes}
        return {**known, self.target: reply.classes}

    def unite(self, replies: Sequence[SchemaSeen]) -> SchemaSeen:
        """The metadata of a region: attributes that all its sites know, with the values of all; patients added up."""
        united, _ = unite({str(number): reply.attributes for number, reply in enumerate(replies)})
        patients = [reply.patients for reply in replies]
        return SchemaSeen(
            attributes=list(united.values()),
            classes=list(present(value for reply in replies for value in reply.classes)),
            patients=None if None in patients else sum(count for count in patients if count is not None),
            unbinned=sorted({name for reply in replies for name in reply.unbinned}),
            floored=any(reply.floored for reply in replies),
        )


@dataclass(frozen=True)
class SharedSchema:
    """The union of what the sites know, reduced to attributes that every participant has; `left_out` says why some
    are not there. `classes` is the target, with a cell for each class and none for anything else."""

    attributes: tuple[Attribute, ...]
    classes: Attribute
    left_out: Mapping[str, str]

    def keep(self, indices: Iterable[int]) -> SharedSchema:
        """The schema with these attributes only."""
        indices = list(indices)
        if indices == list(range(len(self.attributes))):
            return self
        return replace(self, attributes=tuple(self.attributes[index] for index in indices))


def name_classes(target: str, classes: Iterable[Value | None]) -> Attribute:
    """The target as an attribute: a cell for each class and none for anything else."""
    return Attribute(target, (), present(classes), missing=False, other=False)


def share_schema(
    schemas: Mapping[str, SchemaSeen], bins: Mapping[str, Sequence[float]], target: str
) -> SharedSchema:
    """The schema of these sites: values united, attributes that some site lacks left out (and why)."""
    left_out = find_unbinned(schemas)
    united, lacking = unite({site: schema.attributes for site, schema in schemas.items()})
    left_out |= {name: say_lacking(site) for name, site in lacking.items() if name not in left_out}
    attributes = []
    for name, seen in united.items():
        values = present(seen.values)
        if name in left_out:
            continue
        if name in bins:
            attributes.append(Attribute(name, tuple(bins[name])))
        elif seen.numeric and len(seen.values) > MOST_INTEGER_VALUES:
            left_out[name] = f"a number with {len(seen.values)} values; give bins for it"
        else:
            attributes.append(Attribute(name, (), values, missing=None in seen.values, other=False))
    classes = (value for schema in schemas.values() for value in schema.classes)
    return SharedSchema(tuple(attributes), name_classes(target, classes), left_out)


def find_unbinned(schemas: Mapping[str, SchemaSeen]) -> dict[str, str]:
    """Numbers that some site cannot be asked about, and why."""
    reasons: dict[str, str] = {}
    for site, schema in schemas.items():
        for name in schema.unbinned:
            reasons.setdefault(name, f"a number at {site}; give bins for it")
    return reasons


def say_lacking(site: str) -> str:
    return f"not known at {site}, or withheld there"


def state_schema(
    values: Mapping[str, Sequence[Value]], bins: Mapping[str, Sequence[float]], target: str
) -> SharedSchema:
    """The schema of a private study: attributes, values and classes from the study file, none from the data.

    Whatever a patient has that is not named counts as `other` (missing among it); numbers have their bins.
    """
    attributes = [
        Attribute(name, (), state_values(listed), missing=False)
        for name, listed in values.items()
        if name != target
    ]
    attributes += [Attribute(name, tuple(edges)) for name, edges in bins.items() if name != target]
    classes = name_classes(target, state_values(values[target]))
    return SharedSchema(tuple(sorted(attributes, key=lambda attribute: attribute.name)), classes, {})


def state_values(values: Iterable[Value]) -> tuple[Value, ...]:
    """Values that a study states, each once and in order, as the sites will read them."""
    return present(canonical(value) if isinstance(value, str) else value for value in values)


def name_rest(positive: Value) -> str:
    """What all other values of a target are called together."""
    return f"not {label(positive)}"


def set_against_rest(positive: Value, others: Sequence[Value]) -> tuple[Value, Value]:
    """The two classes of one value against the others, negative first; `not ...` and `...`, as text, of several."""
    return (others[0], positive) if len(others) == 1 else (name_rest(positive), label(positive))


def list_classes(cohort: Cohort, target: str) -> list[str | int | float | bool]:
    """The values of the target that occur among the cohort's patients; DoesNotFit where it is a number."""
    column = as_listed(cohort.view.records[target])
    if column is None:
        raise DoesNotFit(f"the target {target!r} is a number; here categories are predicted")
    return [value for value in list_values(column, cohort) if value is not None]


def as_listed(column: Column) -> Coded | None:
    """A column whose values may be listed; None for numbers, and where to list about one value per patient would be to
    list the patients."""
    if isinstance(column, Numbers) or (column.numeric and near_unique(column)):
        return None
    return None if holds_measurements(column) else column


def holds_measurements(column: Coded) -> bool:
    """Whether these are numbers with a text or two among them, such as `?` for missing, that nobody stated: measured
    values, of which each would otherwise be a category of its own."""
    if column.by_itself or len(column.values) <= MOST_INTEGER_VALUES:
        return False
    return 1 <= sum(math.isnan(measure(value)) for value in column.values) <= ODD_TEXTS


def find_foreign_codings(schemas: Mapping[str, SchemaSeen]) -> list[str]:
    """A caution for each attribute that one site codes unlike all others: M and F where they have male and female. It
    names no value: sites told their values to the house, not to whoever reads the card."""
    cautions = []
    columns: dict[str, dict[str, list[Value | None]]] = {}
    for site, schema in schemas.items():
        for attribute in schema.attributes:
            columns.setdefault(attribute.name, {})[site] = attribute.values
    for name, listed in sorted(columns.items()):
        one, *others = listed.values()
        if all(values == one for values in others):
            continue
        by_site = {
            site: {label(value) for value in values if value is not None} for site, values in listed.items()
        }
        sites_with = Counter(value for own in by_site.values() for value in own)
        for site, own in by_site.items():
            alone = all(sites_with[value] == 1 for value in own)
            if alone and len(own) > 1 and len(sites_with) - len(own) > 1:
                cautions.append(
                    f"{site} has no value of {name} that any other site has: it may code {name} in another way; map "
                    "its values to those of the others there"
                )
    return cautions


def list_values(column: Coded, cohort: Cohort) -> list[str | int | float | bool | None]:
    """The values that occur among the cohort's patients, missing (None) last."""
    codes = column.codes if cohort.everyone else column.codes[cohort.rows]
    occurring = np.flatnonzero(np.bincount(codes, minlength=1))
    values: list[str | int | float | bool | None] = [column.values[code - 1] for code in occurring if code]
    return [*values, None] if len(occurring) and occurring[0] == 0 else values
