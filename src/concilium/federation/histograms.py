"""Shared cutoffs of numeric attributes: histograms on public edges, added up over sites, then quantiles.

One piece of code for every method that splits numbers (METHODS.md, sections 1 and 2). Bin edges are public and come
from the study; the counts are released as the study says. Private: one patient adds 1 to one bin of each attribute,
so p attributes have squared L2 sensitivity p, charged whole. A study that states the values of categories and the
classes may have these counted in the same way, and everything by class: that is still one cell of each attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, StudyError
from concilium.federation.cohort import Cohort
from concilium.records.table import Coded, label

MOST_EDGES = 1000
MOST_NUMBERS = 1 << 20


class AskHistograms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients lie between these public edges, for each of these attributes (missing first)?

    `values`: of these categories, how many have each value (missing first, any other last)? `classes`: how many of
    each of these classes (any other last), in every cell?
    """

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked", "private"})
    additive: ClassVar[bool] = True
    largest: ClassVar[int] = np.iinfo(np.uint32).max

    query: str
    target: str
    edges: dict[str, list[float]]
    values: dict[str, list[str | int | float | bool]] = {}
    classes: list[str | int | float | bool] = []
    variance: str | None = None

    @property
    def noise(self) -> Fraction:
        return Fraction(self.variance or 0)

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(len(self.edges) + len(self.values))

    @property
    def sizes(self) -> dict[str, int]:
        """How many cells each attribute has, in the order of the answer."""
        sizes = {name: len(edges) + 2 for name, edges in self.edges.items()}
        return sizes | {name: len(values) + 2 for name, values in self.values.items()}

    @property
    def columns(self) -> int:
        """How many numbers each cell has."""
        return len(self.classes) + 1 if self.classes else 1

    @property
    def numbers(self) -> int:
        return sum(self.sizes.values()) * self.columns

    def check(self, release: str) -> None:
        if not self.edges and not self.values:
            raise MessageError("a question about histograms must name an attribute")
        for name, edges in self.edges.items():
            check_edges(name, edges)
        for name, listed in (*self.values.items(), (self.target, self.classes)):
            if len({label(value) for value in listed}) < len(listed):
                raise MessageError(f"the values of {name[:60]!r} must differ")
        if self.edges.keys() & self.values.keys():
            raise MessageError("an attribute has either edges or values")
        if self.numbers > MOST_NUMBERS:
            raise MessageError(f"an answer may hold at most {MOST_NUMBERS} numbers")
        check_variance(release, self.variance)
        if release != "private" and (self.values or self.classes):
            # What a site leaves out of tables by class it must not tell by this way.
            raise MessageError("values and classes are counted by histograms under 'private' only")

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        view, rows = cohort.view, cohort.rows
        classes = np.zeros(len(rows), dtype=np.int64)
        if self.classes:
            target = view.coded(self.target)
            classes = find_codes(target, self.classes)[target.codes[rows]] - 1
        parts = []
        for name, size in self.sizes.items():
            if name in self.edges:
                codes = view.binned(name, tuple(self.edges[name]))[rows]
            else:
                column = view.coded(name)
                codes = find_codes(column, self.values[name])[column.codes[rows]]
            counts = np.bincount(codes * np.int64(self.columns) + classes, minlength=size * self.columns)
            if np.any((counts > 0) & (counts < cohort.guard.minimum_cell)):
                counts[:] = 0  # a table with a small cell in it is left out, as everywhere under `exact`
            parts.append(counts)
        return np.concatenate(parts).astype(np.uint32)

    def split(self, counts: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Each attribute's own counts, [cell], or [cell, class] where there are classes."""
        cells = counts.reshape(-1, self.columns) if self.classes else counts
        ends = np.cumsum(list(self.sizes.values()))
        return dict(zip(self.sizes, np.split(cells, ends[:-1]), strict=True))


def find_codes(column: Coded, values: Sequence[str | int | float | bool]) -> NDArray[np.int64]:
    """For each code of a column: 0 where it is missing, the place of its value from 1 on, or the last: any other."""
    place = {label(value): index for index, value in enumerate(values, start=1)}
    return np.array([0, *(place.get(label(value), len(values) + 1) for value in column.values)])


def choose_cutoffs(histogram: NDArray[np.int64], edges: Sequence[float], count: int) -> list[float]:
    """At most `count` of the edges, those nearest to even quantiles: the right edge of the bin where each lies.

    Counts below zero (noise) are none, so that the distribution function never falls. An attribute whose patients
    all lie in one bin has no cutoff.
    """
    bins = np.maximum(histogram[1:], 0)
    reached = np.cumsum(bins)
    if reached[-1] == 0:
        return []
    wanted = reached[-1] * np.arange(1, count + 1) / (count + 1)
    at = np.searchsorted(reached, wanted)
    return sorted(
        {float(edges[index]) for index in at.tolist() if index < len(edges) and reached[index] < reached[-1]}
    )


def read_bins(model: str, bins: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The public edges that a model ("a RuleFit") is given, as lists of numbers; StudyError where they are not rising
    numbers."""
    try:
        read = {name: [float(edge) for edge in edges] for name, edges in bins.items()}
        for name, edges in read.items():
            check_edges(name, edges)
    except MessageError as error:
        raise StudyError(str(error)) from None
    except (TypeError, ValueError):
        raise StudyError(f"the 'bins' of {model} must be lists of numbers; got {bins!r}") from None
    return read


def check_edges(name: str, edges: Sequence[float]) -> None:
    """MessageError unless edges are finite and strictly rising, and not too many."""
    if not 1 <= len(edges) <= MOST_EDGES or any(not abs(edge) < float("inf") for edge in edges):
        raise MessageError(f"the bins of {name[:60]!r} must be 1 to {MOST_EDGES} finite edges")
    if any(low >= high for low, high in pairwise(edges)):
        raise MessageError(f"the bins of {name[:60]!r} must rise")


def check_variance(release: str, variance: str | None) -> None:
    """MessageError unless a private question, and only that, says the variance of its noise: a positive rational."""
    try:
        fine = variance is None or (
            len(variance) <= 200 and "e" not in variance.lower() and Fraction(variance) > 0
        )
    except (ValueError, ZeroDivisionError):
        fine = False
    if (release == "private") != (variance is not None) or not fine:
        raise MessageError(
            "a private question, and only that, says the variance of its noise, such as '81/2'"
        )
