"""Subgroups in which a model is measured as well: the patients of each value of an attribute, or between cutoffs.

They are public. A study's terms state them, so that a hospital answers counts by these groups and by no others. A
patient is in one group of each attribute: whose value is missing, or is not listed, is in a group of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from concilium.errors import MessageError, StudyError
from concilium.protocol.attributes import Attribute, say_edge
from concilium.records.columns import Value, label

MOST_SUBGROUPS, MOST_GROUPS = 8, 24
BANDS = 4  # of a number whose cutoffs the subgroup does not state


class Subgroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An attribute by which patients are told apart: a category with its `values`, or a number with its `cutoffs`."""

    name: str
    values: tuple[str | int | float | bool, ...] = ()
    cutoffs: tuple[float, ...] = ()

    def check(self) -> None:
        """MessageError unless it is a category or a number, of not too many groups."""
        if not self.name or bool(self.values) == bool(self.cutoffs):
            raise MessageError("a subgroup is by the values of a category, or by the cutoffs of a number")
        self.attribute.check()
        if self.attribute.size > MOST_GROUPS:
            raise MessageError(f"an attribute tells at most {MOST_GROUPS} groups apart")

    @property
    def attribute(self) -> Attribute:
        """As columns are read by; every patient has a cell."""
        return Attribute(self.name, stated_edges=self.cutoffs, values=self.values)

    @property
    def groups(self) -> list[str]:
        """What each of its cells is called, in their order."""
        if self.cutoffs:
            edges = [say_edge(edge) for edge in self.cutoffs]
            inner = [f"{low} to {high}" for low, high in pairwise(edges)]
            return ["missing", f"below {edges[0]}", *inner, f"{edges[-1]} or more"]
        return ["missing", *map(label, self.values), "any other value"]


def check_subgroups(subgroups: Sequence[Subgroup]) -> None:
    """MessageError unless there are not too many, each well formed and by another attribute."""
    if len(subgroups) > MOST_SUBGROUPS or len({one.name for one in subgroups}) != len(subgroups):
        raise MessageError(f"patients are told apart by at most {MOST_SUBGROUPS} attributes, each once")
    for one in subgroups:
        one.check()


def read_subgroups(
    texts: Iterable[str | Subgroup],
    values: Mapping[str, Sequence[Value]],
    bins: Mapping[str, Sequence[float]],
) -> tuple[Subgroup, ...]:
    """Subgroups as people write them, `sex` or `age=50,65,80`; StudyError where nothing says which groups there are.

    Without cutoffs a number is cut at stated bins, of more than three at those nearest to even quarters.
    """
    found = tuple(one if isinstance(one, Subgroup) else _read(one, values, bins) for one in texts)
    try:
        check_subgroups(found)
    except MessageError as error:
        raise StudyError(f"subgroups: {error}") from None
    return found


def _read(text: str, values: Mapping[str, Sequence[Value]], bins: Mapping[str, Sequence[float]]) -> Subgroup:
    if text in values:
        return Subgroup(text, values=tuple(values[text]))
    if text in bins:
        edges, last = bins[text], len(bins[text]) + 1
        places = range(len(edges)) if len(edges) < BANDS else (last * i // BANDS - 1 for i in range(1, BANDS))
        return Subgroup(text, cutoffs=tuple(float(edges[place]) for place in places))
    name, _, stated = text.rpartition("=")
    try:
        return Subgroup(name.strip(), cutoffs=tuple(float(one) for one in stated.split(",")))
    except ValueError:
        raise StudyError(
            f"subgroups: nothing says into which groups {name or text!r} falls: list its values under [values] or in "
            f'the dictionary or, of a number, write its cutoffs, such as "{name or text}=50,65,80"'
        ) from None
