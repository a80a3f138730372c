"""Shared cutoffs of numeric attributes: histograms on public edges, added up over sites, then quantiles.

One piece of code for every method that splits numbers (METHODS.md, sections 1 and 2). Bin edges are public and come
from the study; the counts are released as the study says. Private: one patient adds 1 to one bin of each attribute,
so p attributes have squared L2 sensitivity p, charged whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort

MOST_EDGES = 1000


class AskHistograms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many patients lie between these public edges, for each of these attributes (missing first)?"""

    releases: ClassVar[frozenset[str]] = frozenset({"exact", "masked", "private"})
    additive: ClassVar[bool] = True

    query: str
    target: str
    edges: dict[str, list[float]]
    variance: str | None = None

    @property
    def noise(self) -> Fraction:
        return Fraction(self.variance or 0)

    @property
    def sensitivity_squared(self) -> Fraction:
        return Fraction(len(self.edges))

    @property
    def numbers(self) -> int:
        return sum(len(edges) + 2 for edges in self.edges.values())

    def check(self, release: str) -> None:
        if not self.edges:
            raise MessageError("a question about histograms must name an attribute")
        for name, edges in self.edges.items():
            check_edges(name, edges)
        check_variance(release, self.variance)

    def compute(self, cohort: Cohort, template: bytes) -> NDArray[np.unsignedinteger]:
        parts = []
        for name, edges in self.edges.items():
            codes = cohort.view.binned(name, tuple(edges))[cohort.rows]
            counts = np.bincount(codes, minlength=len(edges) + 2)
            if np.any((counts > 0) & (counts < cohort.guard.minimum_cell)):
                counts[:] = 0  # a table with a small cell in it is left out, as everywhere under `exact`
            parts.append(counts)
        return np.concatenate(parts).astype(np.uint32)


def split_histograms(
    counts: NDArray[np.int64], edges: Mapping[str, Sequence[float]]
) -> dict[str, NDArray[np.int64]]:
    """Each attribute's own counts: missing first, then the bins in order."""
    ends = np.cumsum([len(listed) + 2 for listed in edges.values()])
    return dict(zip(edges, np.split(counts, ends[:-1]), strict=True))


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
