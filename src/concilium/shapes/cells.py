"""A term of a shape model as a table: each patient is in one of its cells.

A shape has a cell for each code of an attribute (missing, intervals or values, any other). A pair has a cell for each
two groups of codes. A rule has two: it does not hold, or holds. The model adds up a number for each cell that a patient
is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.attributes import MISSING, Attribute, Source, recode

MOST_CELLS = 4000
Vector = NDArray[np.float64]
Codes = NDArray[np.uint16]


class Cells(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The cells of one attribute, or of several crossed with each other.

    `groups` has the group of each code, for each attribute; without it each code is a group of its own. A `rule` holds
    where each attribute has a code of group 1.
    """

    attributes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    rule: bool = False

    def sizes(self, attributes: Sequence[Attribute]) -> tuple[int, ...]:
        """How many groups each of its attributes has."""
        if not self.groups:
            return tuple(attributes[index].size for index in self.attributes)
        return tuple(max(codes) + 1 for codes in self.groups)

    def count(self, attributes: Sequence[Attribute]) -> int:
        return 2 if self.rule else math.prod(self.sizes(attributes))

    def check_among(self, attributes: Sequence[Attribute]) -> None:
        """MessageError unless it is a term of these attributes."""
        if not 1 + self.rule <= len(self.attributes) <= 2 or len(set(self.attributes)) != len(
            self.attributes
        ):
            raise MessageError("a term of a shape model has one attribute, or two different ones")
        if not all(0 <= index < len(attributes) for index in self.attributes):
            raise MessageError("a term names an attribute that the question does not have")
        if self.rule and {code for codes in self.groups for code in codes} != {0, 1}:
            raise MessageError("a rule says of some codes of each attribute that it holds")
        if not self.groups:
            return
        if len(self.groups) != len(self.attributes):
            raise MessageError("a term has groups for each of its attributes, or for none")
        for index, codes in zip(self.attributes, self.groups, strict=True):
            size = attributes[index].size
            if len(codes) != size or not all(0 <= code < size for code in codes):
                raise MessageError("the groups of a term do not fit its attribute")

    def place(self, codes: Sequence[Codes], attributes: Sequence[Attribute]) -> Codes:
        """The cell of each patient, by the codes of all attributes."""
        if len(self.attributes) == 1 and not self.groups:
            return codes[self.attributes[0]]
        if self.rule:
            held = [
                np.array(groups, dtype=np.uint16)[codes[index]]
                for index, groups in zip(self.attributes, self.groups, strict=True)
            ]
            holds: Codes = np.minimum.reduce(held)
            return holds
        cell = np.zeros(len(codes[self.attributes[0]]), dtype=np.uint16)
        sizes = self.sizes(attributes)
        for place, index in enumerate(self.attributes):
            group = np.array(self.groups[place] if self.groups else range(sizes[place]), dtype=np.uint16)
            cell = cell * np.uint16(sizes[place]) + group[codes[index]]
        return cell


def find_starts(terms: Sequence[Cells], attributes: Sequence[Attribute]) -> list[int]:
    """Where the cells of each term begin in a vector with the intercept first, and where the last ones end."""
    return list(accumulate((term.count(attributes) for term in terms), initial=1))


def read_codes(
    attributes: Sequence[Attribute], source: Source, rows: NDArray[np.int32] | None
) -> list[Codes]:
    """The code of each patient for each attribute; a value without a cell counts as missing, or as the first."""
    found = []
    for attribute in attributes:
        own, cells = recode(attribute, source)
        held = np.where(cells < 0, max(attribute.missing_cell, 0), cells).astype(np.uint16)
        found.append(held[own if rows is None else own[rows]])
    return found


def group_codes(counts: Vector, most: int, *, attribute: Attribute) -> tuple[int, ...]:
    """The codes of an attribute in at most so many groups of about equal numbers of patients.

    Missing stays alone where somebody lacks the value. Intervals keep their order; the rarest values stand together.
    """
    groups = np.zeros(len(counts), dtype=np.intp)
    inner = np.arange(attribute.first, len(counts))
    apart = int(attribute.missing and counts[MISSING] > 0)
    if attribute.numeric:
        middle = np.cumsum(counts[inner]) - counts[inner] / 2
        place = np.minimum(middle / max(counts[inner].sum(), 1.0) * most, most - 1).astype(np.intp)
        groups[inner] = apart + np.unique(place, return_inverse=True)[1]
    else:
        order = inner[np.argsort(-counts[inner], kind="stable")]
        groups[order] = apart + np.minimum(np.arange(len(order)), most - 1)
    return tuple(groups.tolist())
