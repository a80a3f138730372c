"""Histograms on public edges, added up over sites, from which cutoffs are chosen (docs/methods.md, 1.5 and 2.2).

Bin edges are public and come from the study. Plain histograms are of numbers only: what a site leaves out of tables by
class it must not tell by this way. Noisy ones may be of stated categories as well, and by class: one patient adds 1 to
one cell of each attribute, so that p attributes have squared L2 sensitivity p, charged whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.attributes import Attribute, check_attributes, recode
from concilium.federation.cohort import Cohort
from concilium.federation.questions import PLAIN, Noisy, Summed

MOST_NUMBERS = 1 << 20


class AskHistograms(Summed, frozen=True, kw_only=True):
    """How many patients lie between these public edges, for each of these attributes (missing first)?"""

    kind: ClassVar[str] = "histograms"
    releases: ClassVar[frozenset[str]] = PLAIN
    merges: ClassVar[bool] = True

    attributes: tuple[Attribute, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(attribute.size for attribute in self.attributes),)

    def check(self, release: str) -> None:
        check_histograms(self.attributes, self.numbers)
        if not all(attribute.numeric and attribute.missing for attribute in self.attributes):
            raise MessageError("values of categories are counted by histograms under 'private' only")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        parts = [count_cells(attribute, cohort) for attribute in self.attributes]
        for counts in parts:
            if np.any((counts > 0) & (counts < cohort.guard.minimum_cell)):
                counts[:] = 0  # a table with a small cell in it is left out, as everywhere under `exact`
        return np.concatenate(parts).astype(np.uint32)


class AskNoisyHistograms(Noisy, frozen=True, kw_only=True):
    """How many patients are in each cell of these attributes, and in each of these classes, with noise?

    `classes` has no cell for missing and one for any other value; without classes there is one number for each cell.
    """

    kind: ClassVar[str] = "histograms.noisy"

    attributes: tuple[Attribute, ...]
    classes: Attribute | None = None

    @property
    def columns(self) -> int:
        return 1 if self.classes is None else self.classes.size

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(attribute.size for attribute in self.attributes), self.columns)

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(len(self.attributes))

    def check(self, release: str) -> None:
        super().check(release)
        if self.classes is not None:
            self.classes.check()
        check_histograms(self.attributes, self.numbers)
        named = self.attributes if self.classes is None else (*self.attributes, self.classes)
        if any(attribute.hidden for attribute in named):
            raise MessageError("a private question says all that it counts")
        if not all(attribute.covers_everyone for attribute in named):
            raise MessageError("a private histogram has a cell for every patient")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        classes = np.zeros(len(cohort), dtype=np.int64)
        if self.classes is not None:
            codes, cells = recode(self.classes, cohort.view)
            classes = cells[codes[cohort.rows]].astype(np.int64)
        return np.concatenate([count_cells(a, cohort, classes, self.columns) for a in self.attributes])


def check_histograms(attributes: Sequence[Attribute], numbers: int) -> None:
    """MessageError unless there is something to count, and not too much of it."""
    if not attributes:
        raise MessageError("a question about histograms must name an attribute")
    check_attributes(attributes)
    if numbers > MOST_NUMBERS:
        raise MessageError(f"an answer may hold at most {MOST_NUMBERS} numbers")


def count_cells(
    attribute: Attribute, cohort: Cohort, classes: NDArray[np.int64] | None = None, columns: int = 1
) -> NDArray[np.int64]:
    """A cohort's patients by cell, or by cell and class, [cell, class]."""
    codes, cells = recode(attribute, cohort.view)
    keys = cells[codes[cohort.rows]] * np.int64(columns)
    if classes is None:
        return np.bincount(keys, minlength=attribute.size).astype(np.int64)
    counts = np.bincount(keys + classes, minlength=attribute.size * columns)
    return counts.reshape(attribute.size, columns).astype(np.int64)


def split_histograms(
    attributes: Sequence[Attribute], counts: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Each attribute's own counts, [cell], or [cell, class]."""
    ends = np.cumsum([attribute.size for attribute in attributes])
    return {a.name: part for a, part in zip(attributes, np.split(counts, ends[:-1]), strict=True)}
