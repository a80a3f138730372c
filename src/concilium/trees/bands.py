"""Bands of sites ("mega-hospitals", 7.5 of the thesis) that are left out in turn, of nearly the same size.

The thesis draws bands at random; here sites are sorted by their number of patients, largest first (by name where
equal), and dealt one by one like cards: the same bands for everyone who repeats the study.
"""

from __future__ import annotations

from collections.abc import Mapping


def deal_bands(sizes: Mapping[str, int], bands: int) -> list[tuple[str, ...]]:
    """So many bands of the sites, which have so many patients; there must be as many sites."""
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [tuple(sorted(order[band::bands])) for band in range(bands)]
