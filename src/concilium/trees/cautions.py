"""What is odd about the patients of a tree and must be said on its card: classes that one site alone has, and where,
and attributes that separate nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute
from concilium.protocol.schema import SchemaSeen, SharedSchema, find_foreign_codings
from concilium.records.columns import Value, label
from concilium.trees.schemas import TreeStudy

MOST_NAMED = 5


def find_lonely_classes(target: str, classes: Mapping[str, Sequence[Value]]) -> list[str]:
    """A caution if a class occurs at one of several sites only: often it is a slip of the pen, Yes for yes."""
    holders: dict[str, list[str]] = {}
    for site, listed in classes.items():
        for name in {label(value) for value in listed}:
            holders.setdefault(name, []).append(site)
    lonely = sorted((name, sites[0]) for name, sites in holders.items() if len(sites) == 1)
    if len(classes) < 2 or not lonely:
        return []
    slips = name_some([f"{target} = {name} at {site}" for name, site in lonely])
    return [f"values of the target that one site alone has: {slips}; check how they are written"]


def find_constant(table: NDArray[np.int64], attributes: Sequence[Attribute]) -> list[str]:
    """The attributes of which all patients at the root have the same value, by the root's table [cell, class]."""
    constant, start = [], 1
    everyone = int(table[0].sum())
    for attribute in attributes:
        patients = table[start : start + attribute.size].sum(axis=1)
        # A site that leaves small counts out may show no value at all: that does not make it constant.
        if everyone and patients.max(initial=0) == everyone:
            constant.append(attribute.name)
        start += attribute.size
    return constant


def say_constant(names: Sequence[str]) -> list[str]:
    """A caution about attributes that separate nobody."""
    if not names:
        return []
    return [f"the same for every patient learned from, at every site, and so of no use: {name_some(names)}"]


def name_some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def find_oddities(study: TreeStudy, schema: SharedSchema, seen: Mapping[str, SchemaSeen]) -> list[str]:
    """What a reader of the card must be warned of, besides what every run says."""
    warnings = []
    if schema.left_out:
        warnings.append(
            "left out: " + "; ".join(f"{name} ({why})" for name, why in sorted(schema.left_out.items()))
        )
    unknown = [
        name for name in (study.attributes or study.bins) if all(name not in s.names for s in seen.values())
    ]
    if unknown:
        warnings.append(f"no site knows {', '.join(map(repr, unknown))}")
    if not schema.attributes:
        warnings.append("no attribute is known at every site: the model is a single leaf")
    if schema.classes.size == 1:
        whose = f" of the query {study.query!r}" if study.query else ""
        warnings.append(
            f"every patient{whose} has {study.target} = {label(schema.classes.values[0])}: there is nothing to learn"
        )
    warnings += find_foreign_codings(seen)
    floored = [site for site, own in seen.items() if own.floored]
    if floored:
        warnings.append(
            f"{', '.join(floored)}: small counts are left out there, so the tree is not that of the pooled patients"
        )
    return warnings
