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
from concilium.federation.questions import NOISED, PLAIN, PRIVATE, Noisy, NoisyPure, Summed
from concilium.federation.work import Workload, estimate_columns

MOST_NUMBERS = 1 << 20
# The noise of each takes some microseconds to draw.
MOST_NOISY_NUMBERS = 1 << 18


class AskHistograms(Summed, frozen=True, kw_only=True):
    """How many patients lie between these public edges, for each of these attributes (missing first)?"""

    kind: ClassVar[str] = "histograms"
    releases: ClassVar[frozenset[str]] = PLAIN
    merges: ClassVar[bool] = True

    attributes: tuple[Attribute, ...]

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(attribute.size for attribute in self.attributes),)

    def check(self, release: str) -> None:
        check_histograms(self.attributes, self.numbers, MOST_NUMBERS)
        if not all(attribute.numeric and attribute.missing for attribute in self.attributes):
            raise MessageError("values of categories are counted by histograms under 'private' only")

    def estimate(self, patients: int, columns: int) -> Workload:
        counting = Workload(12 * len(self.attributes) * patients, 24 * patients + 32 * self.numbers)
        return estimate_columns(self.attributes, patients) + counting

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        parts = [count_cells(recode(a, cohort.view), a.size, cohort.rows) for a in self.attributes]
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
    def named(self) -> Sequence[Attribute]:
        return self.attributes if self.classes is None else (*self.attributes, self.classes)

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
        check_histograms(self.attributes, self.numbers, MOST_NOISY_NUMBERS)
        if any(attribute.hidden for attribute in self.named):
            raise MessageError("a private question says all that it counts")
        if not all(attribute.covers_everyone for attribute in self.named):
            raise MessageError("a private histogram has a cell for every patient")

    def estimate(self, patients: int, columns: int) -> Workload:
        counting = Workload(16 * len(self.named) * patients, 48 * patients + 32 * self.numbers)
        return estimate_columns(self.named, patients, each_by_itself=True) + counting

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        classes = np.zeros(len(cohort), dtype=np.int64)
        if self.classes is not None:
            codes, cells = recode(self.classes, cohort.view)
            classes = cells[codes[cohort.rows]].astype(np.int64)
        parts = [
            count_cells(recode(attribute, cohort.view), attribute.size, cohort.rows, classes, self.columns)
            for attribute in self.attributes
        ]
        return np.concatenate(parts)


class AskPureHistograms(NoisyPure, frozen=True, kw_only=True):
    """How many patients lie between these public edges, with discrete Laplace noise, as the paper's sites answer?

    Cost: pure epsilon. A patient is in one cell of each of p attributes, and adds or takes away 1 there: L1 sensitivity
    p, so that every count has noise of scale p / epsilon and all of them together cost epsilon, of every patient of the
    site, matched or not. A ledger in rho is charged epsilon tanh(epsilon / 2). Under `private` the sites add it in
    shares, and patients are protected from the house and up to t colluding sites; under `noised` each site adds all of
    it, and they are from everybody.
    """

    kind: ClassVar[str] = "histograms.pure"
    releases: ClassVar[frozenset[str]] = PRIVATE | NOISED

    attributes: tuple[Attribute, ...]

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(attribute.size for attribute in self.attributes),)

    @property
    def sensitivity(self) -> int:
        return len(self.attributes)

    def check(self, release: str) -> None:
        check_histograms(self.attributes, self.numbers, MOST_NOISY_NUMBERS)
        if not all(attribute.numeric and attribute.covers_everyone for attribute in self.attributes):
            raise MessageError("a private histogram of numbers has a cell for every patient")
        super().check(release)

    def estimate(self, patients: int, columns: int) -> Workload:
        counting = Workload(16 * len(self.attributes) * patients, 48 * patients + 32 * self.numbers)
        return estimate_columns(self.attributes, patients, each_by_itself=True) + counting

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.integer]:
        parts = [count_cells(recode(a, cohort.view), a.size, cohort.rows) for a in self.attributes]
        return np.concatenate(parts)


def check_histograms(attributes: Sequence[Attribute], numbers: int, most: int) -> None:
    """MessageError unless there is something to count, and not too much of it."""
    if not attributes:
        raise MessageError("a question about histograms must name an attribute")
    check_attributes(attributes)
    if numbers > most:
        raise MessageError(f"an answer may hold at most {most} numbers")


def count_cells(
    column: tuple[NDArray[np.unsignedinteger], NDArray[np.int32]],
    size: int,
    rows: NDArray[np.int32],
    classes: NDArray[np.int64] | None = None,
    columns: int = 1,
) -> NDArray[np.int64]:
    """Patients by cell of a column as it was recoded, which has so many, or by cell and class, [cell, class]."""
    codes, cells = column
    keys = cells[codes[rows]] * np.int64(columns)
    if classes is None:
        return np.bincount(keys, minlength=size).astype(np.int64)
    counts = np.bincount(keys + classes, minlength=size * columns)
    return counts.reshape(size, columns).astype(np.int64)


def split_histograms(
    attributes: Sequence[Attribute], counts: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Each attribute's own counts, [cell], or [cell, class]."""
    ends = np.cumsum([attribute.size for attribute in attributes])
    return {a.name: part for a, part in zip(attributes, np.split(counts, ends[:-1]), strict=True)}
