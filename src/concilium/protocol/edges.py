"""Public edges of numbers: what they must be, and which of them a shared histogram chooses as cutoffs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError

MOST_EDGES = 1000


def check_edges(name: str, edges: Sequence[float]) -> None:
    """MessageError unless edges are finite and strictly rising, and not too many."""
    if not 1 <= len(edges) <= MOST_EDGES or any(not abs(edge) < float("inf") for edge in edges):
        raise MessageError(f"the bins of {name[:60]!r} must be 1 to {MOST_EDGES} finite edges")
    if any(low >= high for low, high in pairwise(edges)):
        raise MessageError(f"the bins of {name[:60]!r} must rise")


def read_bins(bins: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Public edges by attribute, as lists of numbers; ValueError where they are none, MessageError where they do not
    rise."""
    try:
        read = {name: [float(edge) for edge in edges] for name, edges in bins.items()}
    except (AttributeError, TypeError):
        raise ValueError from None
    for name, edges in read.items():
        check_edges(name, edges)
    return read


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
