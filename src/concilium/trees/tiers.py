"""What a region needs to know of trees: answers united, and the conditional schema told on, site by site.

A region's metadata is that of one site with all its patients, except that attributes some of its sites lack are left
out (DIDT step 6 would leave them out anyway). What the house tells a region of its values, the region tells
each of its sites of that site's own values only (DIDT step 7). Sites that opt out of an ensemble (chapter 7) leave the
region's study as they would leave that of one house; the region opts out where all of them do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from concilium.errors import MessageError
from concilium.federation.messages import decode, encode
from concilium.trees.ballot import AskVotes
from concilium.trees.class_counts import ClassCounts
from concilium.trees.crosstables import AskCrosstables
from concilium.trees.schema import (
    AskSchema,
    AttributeSeen,
    ConditionalSchema,
    Known,
    SchemaSeen,
    in_order,
    name_of,
    read_schema,
)

Values = list[str | int | float | bool | None]


def unite_schemas(bodies: Mapping[str, bytes]) -> SchemaSeen:
    """The metadata of a region: attributes that all its sites know, with the values of all; patients added up."""
    seen = [read_schema(body) for body in bodies.values()]
    holders: dict[str, list[AttributeSeen]] = {}
    for schema in seen:
        for attribute in schema.attributes:
            holders.setdefault(attribute.name, []).append(attribute)
    patients = [schema.patients for schema in seen]
    return SchemaSeen(
        attributes=[
            AttributeSeen(
                name,
                list(in_order(value for attribute in held for value in attribute.values)),
                all(attribute.numeric for attribute in held),
            )
            for name, held in holders.items()
            if len(held) == len(seen)
        ],
        classes=[
            value for value in in_order(c for schema in seen for c in schema.classes) if value is not None
        ],
        patients=None if None in patients else sum(count for count in patients if count is not None),
        unbinned=sorted({name for schema in seen for name in schema.unbinned}),
        floored=any(schema.floored for schema in seen),
    )


def unite_classes(bodies: Mapping[str, bytes]) -> ClassCounts:
    """The patients of a region by class, or why it opts out: the reasons of its sites, without their names."""
    seen = [decode(body, ClassCounts) for body in bodies.values()]
    there = [counts for counts in seen if counts.opts_out is None]
    values = in_order(value for counts in there or seen for value in counts.values)
    return ClassCounts(
        negatives=sum(counts.negatives for counts in there),
        positives=sum(counts.positives for counts in there),
        values=tuple(value for value in values if value is not None),
        opts_out=None if there else ", ".join(sorted({str(counts.opts_out) for counts in seen})),
    )


def find_opted_out(bodies: Mapping[str, bytes]) -> dict[str, str]:
    """The sites that take no part, and why."""
    reasons = {site: decode(body, ClassCounts).opts_out for site, body in bodies.items()}
    return {site: reason for site, reason in reasons.items() if reason is not None}


def ask_schema_of(question: AskCrosstables | AskVotes) -> AskSchema:
    """The question that has sites tell again what a region needs to pass these crosstables or votes on."""
    return AskSchema(
        query=question.query,
        target=question.target,
        bins={attribute.name: attribute.edges for attribute in question.attributes if attribute.edges},
        attributes=[attribute.name for attribute in question.attributes],
    )


def tell_on(
    question: AskCrosstables | AskVotes, template: bytes, told: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The conditional schema of each site, from that of the region and what the sites told."""
    names = tuple(attribute.name for attribute in question.attributes)
    return {site: narrow(template, names, body) for site, body in told.items()}


@lru_cache(maxsize=4096)
def narrow(template: bytes, names: tuple[str, ...], body: bytes) -> bytes:
    """A region's conditional schema for one of its sites: the places of that site's own values."""
    regional, own = decode(template, ConditionalSchema), read_schema(body)
    values = {attribute.name: attribute.values for attribute in own.attributes}
    if len(regional.attributes) != len(names) or not set(names) <= set(values):
        raise MessageError("the conditional schema does not fit the question")
    pairs = zip(names, regional.attributes, strict=True)
    return encode(
        ConditionalSchema(
            classes=pick(regional.classes, [*own.classes]),
            attributes=[pick(known, values[name]) for name, known in pairs],
        )
    )


def pick(known: Known, own: Values) -> Known:
    """Where a site's own values stand, of those the region was told."""
    place = dict(zip(map(name_of, known.values), known.positions, strict=False))
    try:
        return Known([place[name_of(value)] for value in own], own, known.other)
    except KeyError:
        raise MessageError("the conditional schema does not know a value of this region") from None
