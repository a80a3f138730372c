"""Each site's metadata, the schema that all sites share, and what each site is told of it (docs/methods.md, 1.2).

The house learns which values and classes occur at which site. A site learns nothing in return: attributes it does
not know are not asked for, and the run names no value to it that it did not list itself (run.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from concilium.errors import DoesNotFit, HouseError, MessageError, name_some
from concilium.protocol.attributes import (
    READ_CATEGORY,
    READ_NUMBER,
    READING,
    Attribute,
    AttributeSeen,
    Workload,
    check_edges,
    count_code_bytes,
    present,
    unite,
)
from concilium.protocol.cohort import (
    MOST_INTEGER_VALUES,
    Cohort,
    holds_dates,
    holds_measurements,
    near_unique,
    say_text,
)
from concilium.protocol.grid import are_days
from concilium.protocol.questions import PLAIN, PRIVATE, Gathered, Reply
from concilium.records.blocks import count_codes
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.drafting import MEASURED
from concilium.records.grammar import canonical, measure
from concilium.records.units import Quartiles, compare_sizes, find_other_unit

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MISSING_EVERYWHERE, SAME_EVERYWHERE = "missing for everybody", "the same for everybody"
# A category with more values than this over all sites is left out: nobody reads a model of it.
MOST_CATEGORIES = 1000
LEFT_OUT, UNITS = "left out: ", "units: "
TWO_GROUPS = "two groups of values far apart: are they in two units? A hospital's map converts them"
CONVERT = "state its unit in a dictionary and in the hospital's map, or give bins to keep it as it is"
NOTHING: Mapping[str, str] = MappingProxyType({})
# As many values as a column is taken to have when the memory to list them is estimated.
MOST_LISTED = 1 << 16


class SchemaSeen(Reply, frozen=True):
    """What one site can be asked about: attributes, values, classes and the number of patients.

    `unbinned` names numeric attributes for which the study gives no bins, `dates` those of them that are dates, `odd`
    those with text among the numbers, which counts as missing. `floored` says that the site leaves small counts out, so
    that the tree will not be exact. Where it says how many patients it has, it also says which columns it leaves out
    since they identify patients (`identifying`), and the quartiles of each number without bins, on the public grid
    (`quartiles`): the counts that follow would show either.
    """

    attributes: list[AttributeSeen]
    classes: list[str | int | float | bool]
    patients: int | None
    unbinned: list[str]
    floored: bool
    dates: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    identifying: tuple[str, ...] = ()
    quartiles: dict[str, Quartiles] = msgspec.field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """Each value that is told to occur is one thing told about the patients, and so is their number."""
        values = len(self.classes) + sum(len(attribute.values) for attribute in self.attributes)
        return values + (self.patients is not None) + 3 * len(self.quartiles)

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

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def estimate(self, patients: int, columns: int) -> Workload:
        listed = columns if self.attributes is None else min(columns, len(self.attributes))
        edges = sorted((len(bins) for bins in self.bins.values()), reverse=True)[:columns]
        operations = READ_CATEGORY * (listed + 1) + sum(READ_NUMBER + 4 * n.bit_length() for n in edges)
        held = READING + sum(count_code_bytes(n + 1) for n in edges) + 2 * listed
        return Workload(
            operations * patients, held * patients + 16 * (listed + 1) * min(patients, MOST_LISTED)
        )

    def compute(self, cohort: Cohort) -> SchemaSeen:
        records = cohort.view.records
        classes = [] if self.measured else list_classes(cohort, self.target)
        wanted = records.names if self.attributes is None else set(self.attributes) & set(records.names)
        # Who states bins says that all of it are numbers; without them text among many counts as missing.
        for name in {*self.bins, *([self.target] if self.measured else [])} & set(records.names):
            if holds_measurements(records[name]):
                raise DoesNotFit(say_text(name))
        seen: list[AttributeSeen] = []
        unbinned: list[str] = []
        dates: list[str] = []
        measured: list[str] = []
        for name in sorted(wanted):
            if name == self.target:
                continue
            if name in self.bins:
                cohort.view.binned(name, tuple(self.bins[name]))
                seen.append(AttributeSeen(name, [], True))
            elif (listed := _as_listed(records[name])) is None:
                unbinned.append(name)
                (dates if holds_dates(records[name]) else measured).append(name)
            else:
                if listed.numeric and len(listed.values) > MEASURED:
                    measured.append(name)
                seen.append(AttributeSeen(name, _list_values(listed, cohort), listed.numeric))
        return SchemaSeen(
            seen,
            classes,
            cohort.count_patients() if self.count_patients else None,
            unbinned,
            cohort.floored,
            tuple(dates),
            odd=tuple(name for name in unbinned if holds_measurements(records[name])),
            **self._tell_more(cohort, measured),
        )

    def _tell_more(self, cohort: Cohort, numbers: Sequence[str]) -> dict[str, Any]:
        """The columns that identify patients, and beside the number of patients the quartiles of numbers."""
        identifying = cohort.view.identifying
        if self.attributes is not None:
            identifying &= set(self.attributes)
        if not self.count_patients:
            return {"identifying": tuple(sorted(identifying))}
        told = {name: cohort.find_quartiles(name) for name in numbers} if not cohort.floored else {}
        quartiles = {name: one for name, one in told.items() if one is not None}
        return {"identifying": tuple(sorted(identifying)), "quartiles": quartiles}

    def find_known(self, reply: SchemaSeen) -> Mapping[str, Sequence[Value | None]]:
        known: dict[str, Sequence[Value | None]] = dict.fromkeys(reply.unbinned, ())
        known |= {one.name: one.values for one in reply.attributes}
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
            dates=tuple(sorted({name for reply in replies for name in reply.dates})),
            odd=tuple(sorted({name for reply in replies for name in reply.odd})),
            identifying=tuple(sorted({name for reply in replies for name in reply.identifying})),
        )


class ColumnsSeen(Reply, frozen=True):
    """The columns of a hospital's table, after its policy."""

    names: list[str]


class AskColumns(Gathered[ColumnsSeen], frozen=True, kw_only=True):
    """Which columns are there?

    It is about no patient: the names are those of the table's header, but for the columns that policy takes out by
    name. So it costs nothing under `private`.
    """

    kind: ClassVar[str] = "columns"
    releases: ClassVar[frozenset[str]] = PRIVATE
    reply: ClassVar[type[ColumnsSeen]] = ColumnsSeen
    of_patients: ClassVar[bool] = False

    def estimate(self, patients: int, columns: int) -> Workload:
        return Workload(READ_CATEGORY * columns, READING * columns)

    def compute(self, cohort: Cohort) -> ColumnsSeen:
        return ColumnsSeen(sorted(cohort.view.named & set(cohort.view.records.names)))


@dataclass(frozen=True)
class SharedSchema:
    """The union of what the sites know, reduced to attributes that every participant has. `left_out` says why some are
    not there; `grouped` are numbers that lie in two groups far apart. `classes` is the target, with a cell for each
    class and none for anything else."""

    attributes: tuple[Attribute, ...]
    classes: Attribute
    left_out: Mapping[str, str]
    grouped: tuple[str, ...] = ()

    def keep(self, indices: Iterable[int]) -> SharedSchema:
        """The schema with these attributes only."""
        indices = list(indices)
        if indices == list(range(len(self.attributes))):
            return self
        return replace(self, attributes=tuple(self.attributes[index] for index in indices))


def name_classes(target: str, classes: Iterable[Value | None]) -> Attribute:
    """The target as an attribute: a cell for each class and none for anything else."""
    return Attribute(target, (), present(classes), missing=False, other=False)


def find_numbers(
    schemas: Mapping[str, SchemaSeen], stated: Mapping[str, Sequence[float]], most_values: int
) -> tuple[list[str], dict[str, str]]:
    """The numbers that every site has and for which the study states no bins, and what is left out of them, and why.

    Whole numbers of which the sites list no more than so many values together are values, not numbers.
    """
    numbers: list[str] = []
    left_out: dict[str, str] = {}
    listed = {
        site: {attribute.name: attribute for attribute in schema.attributes}
        for site, schema in schemas.items()
    }
    left_out |= _find_identifying(schemas)
    quartiles = _list_quartiles(schemas)
    for name in sorted({name for schema in schemas.values() for name in schema.names} - {*stated, *left_out}):
        measured = [site for site, schema in schemas.items() if name in schema.unbinned]
        lacking = [site for site, schema in schemas.items() if name not in schema.names]
        others = [listed[site][name] for site in schemas if name in listed[site]]
        if lacking:
            left_out[name] = say_lacking(lacking[0])
        elif measured and not all(one.numeric for one in others):
            where = next(site for site in schemas if name in listed[site] and not listed[site][name].numeric)
            left_out[name] = _say_text(measured[0], where)
        elif len({name in schemas[site].dates for site in measured}) > 1:
            left_out[name] = "a date at some sites, a number at others"
        elif words := [site for site in schemas if name in listed[site] and _holds_words(listed[site][name])]:
            # Whole numbers that sites list: numbers, if they are many.
            if len(_list_labels(one for one in others if one.numeric)) > MOST_INTEGER_VALUES:
                where = next(site for site in schemas if listed[site][name].numeric)
                left_out[name] = _say_text(where, words[0])
        elif measured or (all(one.numeric for one in others) and len(_list_labels(others)) > most_values):
            other = find_other_unit(name, quartiles.get(name, {}))
            if other is None:
                numbers.append(name)
            else:
                left_out[name] = f"{other}; {CONVERT}"
    return numbers, left_out


def _say_text(number: str, text: str) -> str:
    return f"a number at {number}, text at {text}, whose map can fix it"


def _find_identifying(schemas: Mapping[str, SchemaSeen]) -> dict[str, str]:
    """The columns that are left out somewhere since they identify patients, and what would bring them in."""
    sites: dict[str, list[str]] = {}
    for site, schema in schemas.items():
        for name in schema.identifying:
            sites.setdefault(name, []).append(site)
    return {
        name: _say_identifying("" if len(held) == len(schemas) else name_some(held))
        for name, held in sites.items()
    }


def _say_identifying(where: str = "") -> str:
    """Why a column that identifies patients is left out, there or everywhere, and what would bring it in."""
    place = f" at {where}" if where else ""
    return f"about one value for each patient{place}, which identifies them; a policy can allow it"


def _list_labels(attributes: Iterable[AttributeSeen]) -> set[str]:
    return {label(value) for one in attributes for value in one.values if value is not None}


def _holds_words(attribute: AttributeSeen) -> bool:
    """Whether no value is a number. Codes such as 250 and V22 may all be numbers at one site, and are codes there."""
    values = [value for value in attribute.values if value is not None]
    return bool(values) and all(math.isnan(measure(value)) for value in values)


def share_schema(
    schemas: Mapping[str, SchemaSeen],
    bins: Mapping[str, Sequence[float]],
    target: str,
    left_out: Mapping[str, str] = NOTHING,
    *,
    constants: bool = False,
) -> SharedSchema:
    """The schema of these sites: values united, attributes that some site lacks left out (and why), and those with one
    value unless `constants` are wanted."""
    united, lacking = unite({site: schema.attributes for site, schema in schemas.items()})
    reasons = {name: say_lacking(site) for name, site in lacking.items() if name not in bins} | {**left_out}
    dates = {name for schema in schemas.values() for name in schema.dates}
    known = set.intersection(*(schema.names for schema in schemas.values())) if schemas else set()
    attributes = {
        name: Attribute(name, tuple(edges), date=name in dates)
        for name, edges in bins.items()
        if name in known and name not in left_out
    }
    for name, seen in united.items():
        values = present(seen.values)
        if name in attributes or name in reasons:
            continue
        if not values:
            reasons[name] = MISSING_EVERYWHERE
        elif len(values) == 1 and None not in seen.values and not constants:
            reasons[name] = SAME_EVERYWHERE
        elif seen.numeric and len(values) > MOST_INTEGER_VALUES:
            reasons[name] = f"a number with {len(values)} values"
        elif len(values) > MOST_CATEGORIES:
            reasons[name] = f"{len(values):,} different values; group them, or state those that matter"
        else:
            attributes[name] = Attribute(name, (), values, missing=None in seen.values, other=False)
    for schema in schemas.values():
        for name in schema.unbinned:
            if name not in attributes:
                reasons.setdefault(name, "a number without cutoffs")
    classes = (value for schema in schemas.values() for value in schema.classes)
    ordered = tuple(attributes[name] for name in sorted(attributes))
    return SharedSchema(ordered, name_classes(target, classes), reasons)


def say_left_out(left_out: Mapping[str, str]) -> str:
    """What was left out, and why: the first three of each reason, and how many more."""
    by_reason: dict[str, list[str]] = {}
    for name, why in sorted(left_out.items()):
        by_reason.setdefault(why, []).append(name)
    return LEFT_OUT + "; ".join(f"{name_some(names)} ({why})" for why, names in by_reason.items())


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
    attributes += [
        Attribute(name, tuple(edges), date=are_days(edges)) for name, edges in bins.items() if name != target
    ]
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
    column = _as_listed(cohort.view.records[target])
    if column is None:
        raise DoesNotFit(
            f"the target {target!r} is a number; here categories are predicted. ShapeModel and RuleFit predict "
            'numbers, and so does Regression with family = "gaussian": state the ends of their range, '
            f"bins={{{target!r}: [low, high]}}"
        )
    return [value for value in _list_values(column, cohort) if value is not None]


def _as_listed(column: Column) -> Coded | None:
    """A column whose values may be listed; None for numbers, and where to list about one value per patient would be to
    list the patients."""
    if isinstance(column, Numbers) or (column.numeric and near_unique(column)) or holds_dates(column):
        return None
    return None if holds_measurements(column) else column


def find_cautions(schemas: Mapping[str, SchemaSeen], grouped: Collection[str] = ()) -> list[str]:
    """What a reader of the model must know of how sites write their columns. `grouped` are numbers that lie in two
    groups far apart, over all sites."""
    foreign = [
        f"{site} has no value of the outcome that any other site has, so that its patients are not compared rightly; "
        "map its values to those of the others there"
        for site in _find_foreign_outcomes(schemas)
    ]
    return [*foreign, *_find_foreign_codings(schemas), *_say_odd(schemas), *_suspect_units(schemas, grouped)]


def refuse_foreign_outcome(schemas: Mapping[str, SchemaSeen], target: str) -> None:
    """HouseError where a site codes the outcome unlike all others: everybody there would count as without it."""
    if foreign := _find_foreign_outcomes(schemas):
        raise HouseError(
            f"{name_some(foreign)}: no value of {target!r} there is one that another hospital has; map its values to "
            "those of the others"
        )


def _find_foreign_outcomes(schemas: Mapping[str, SchemaSeen]) -> list[str]:
    """The sites whose classes, two or more, are none of any other site's."""
    classes = {site: {label(value) for value in schema.classes} for site, schema in schemas.items()}
    sites_with = Counter(value for own in classes.values() for value in own)
    return [
        site
        for site, own in classes.items()
        if len(own) > 1 and len(sites_with) - len(own) > 1 and all(sites_with[one] == 1 for one in own)
    ]


def _suspect_units(schemas: Mapping[str, SchemaSeen], grouped: Collection[str]) -> list[str]:
    """A caution for each number that is much larger at one site than at another, or in two groups, and by no factor of
    units. It tells no number.

    Such a number stays: hospitals may well have other patients, and a tree is that of the pooled patients.
    """
    by_name = _list_quartiles(schemas)
    notes = {
        name: compare_sizes(by_name.get(name, {}))
        for name in sorted({*by_name, *grouped})
        if find_other_unit(name, by_name.get(name, {})) is None
    }
    apart = [name for name, note in notes.items() if name in grouped and not note]
    return [
        *(f"{UNITS}{name} is {note}" for name, note in notes.items() if note),
        *say_groups(apart),
    ]


def say_groups(names: Sequence[str]) -> list[str]:
    """A caution about numbers that lie in two groups far apart."""
    return [f"{UNITS}{name_some(names)}: {TWO_GROUPS}"] if names else []


def _list_quartiles(schemas: Mapping[str, SchemaSeen]) -> dict[str, dict[str, Quartiles]]:
    """The quartiles that sites told of each number."""
    by_name: dict[str, dict[str, Quartiles]] = {}
    for site, schema in schemas.items():
        for name, quartiles in schema.quartiles.items():
            by_name.setdefault(name, {})[site] = quartiles
    return by_name


def _say_odd(schemas: Mapping[str, SchemaSeen]) -> list[str]:
    """A caution for each number that has text among it somewhere."""
    return [
        f"{name} at {site}: text among its numbers counts as missing; where it stands for something else, the "
        "hospital's map says so"
        for site, schema in schemas.items()
        for name in schema.odd
    ]


def _find_foreign_codings(schemas: Mapping[str, SchemaSeen]) -> list[str]:
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


def _list_values(column: Coded, cohort: Cohort) -> list[str | int | float | bool | None]:
    """The values that occur among the cohort's patients, missing (None) last."""
    rows = None if cohort.everyone else cohort.rows
    occurring = np.flatnonzero(count_codes(column.codes, len(column.values) + 1, rows)).tolist()
    values: list[str | int | float | bool | None] = [column.values[code - 1] for code in occurring if code]
    return [*values, None] if occurring and occurring[0] == 0 else values
