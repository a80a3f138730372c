"""From schemas and shared histograms to the attributes of a model: cutoffs, bounds, scales (docs/methods.md, 2.2, 2.5).

All of it is computed by the house from counts between public edges, exact or with noise; noise below zero counts as
none, so that the distribution function never falls, and a quantile is interpolated within the bin in which it lies.

A histogram with noise may show patients in several of its bins, in one alone, or nothing. What is made of it follows
from noisy counts that are paid for and from the size of their noise, which the study and the number of hospitals give:
post-processing, which asks nothing and costs nothing, whoever the patients are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import name_some
from concilium.protocol.attributes import MOST_EDGES, Attribute, choose_cutoffs, present, unite
from concilium.protocol.schema import (
    MISSING_EVERYWHERE,
    MOST_CATEGORIES,
    SAME_EVERYWHERE,
    AskSchema,
    SchemaSeen,
    find_numbers,
    say_lacking,
)
from concilium.records.columns import Value
from concilium.rulefit.terms import WIDEST, Line

# Friedman and Popescu (2008): values beyond the 2.5 % quantiles are held there; 0.4 is the deviation of a rule.
TAIL = 0.025
RULE_DEVIATION = 0.4
# An attribute whose patients are all in one bin stays nevertheless, because noise elsewhere looks like patients, with
# at most this chance.
TAKEN_FOR_PATIENTS = 1 / 20
# One of which no bin holds more than half of the patients is left out with at most this chance.
LEFT_OUT_WRONGLY = 1 / 100


class AskRuleSchema(AskSchema, frozen=True, kw_only=True):
    """Which attributes, values and classes are there among the patients of this query, to make rules of?"""

    kind: ClassVar[str] = "rulefit.schema"
    merges: ClassVar[bool] = False

    def find_known(self, reply: SchemaSeen) -> Mapping[str, Sequence[Value | None]]:
        """Nothing: rules name values to every site, since a term is about all that its attribute can be."""
        return {}


def share_attributes(
    schemas: Mapping[str, SchemaSeen], bins: Mapping[str, Sequence[float]], wanted: Sequence[str] = ()
) -> tuple[list[Attribute], dict[str, str]]:
    """The attributes that every site has, and what is left out and why; `wanted` are those that the study names.

    A number has its public bins; whole numbers that the sites list as values are cut at any of them.
    """
    known = set.intersection(*(schema.names for schema in schemas.values()))
    united, lacking = unite({site: schema.attributes for site, schema in schemas.items()})
    somewhere = set[str]().union(*(schema.names for schema in schemas.values()))
    left_out = {name: "no site knows it" for name in wanted if name not in somewhere}
    left_out |= find_numbers(schemas, bins, MOST_EDGES)[1]
    left_out |= {name: say_lacking(site) for name, site in lacking.items() if name not in {*known, *left_out}}
    attributes = [Attribute(name, tuple(bins[name])) for name in sorted(known & set(bins))]
    for name, listed in united.items():
        if name in left_out or name in bins:
            continue
        attribute = _take_listed(name, present(listed.values), listed.numeric)
        if isinstance(attribute, str):
            left_out[name] = attribute
        else:
            attributes.append(attribute)
    return sorted(attributes, key=lambda attribute: attribute.name), left_out


def _take_listed(name: str, values: tuple[Value, ...], numeric: bool) -> Attribute | str:
    """The attribute of values that the sites list, or why there is none."""
    if len(values) < 2:
        return SAME_EVERYWHERE if values else MISSING_EVERYWHERE
    if not numeric or any(isinstance(value, str) for value in values):
        if len(values) > MOST_CATEGORIES:
            return f"{len(values):,} different values; group them, or state those that matter"
        return Attribute(name, (), values)
    if len(values) > MOST_EDGES + 1:
        return f"a number with {len(values)} values"
    return Attribute(name, tuple(float(value) for value in values[1:]))


def cut(
    attribute: Attribute, histogram: NDArray[np.int64], cutoffs: int | None, *, on_grid: bool = False
) -> Attribute | None:
    """The attribute with at most so many of its edges, at even quantiles; None where all patients are in one bin.

    `on_grid`: of edges between which nobody lies the last is taken, which is the least value of those above. Whole
    numbers are so cut at whole numbers.
    """
    bins = np.maximum(histogram[1:], 0)
    if np.count_nonzero(bins) < 2:
        return None
    if cutoffs is None or len(attribute.edges) <= cutoffs:
        return attribute
    chosen = choose_cutoffs(histogram, attribute.edges, cutoffs)
    # Where every quantile is in the last bin with patients, its left edge tells the others apart.
    held = np.flatnonzero(bins)
    edges = tuple(chosen) or (attribute.edges[held[-1] - 1],)
    if on_grid and chosen:
        after = np.searchsorted(held, [attribute.edges.index(edge) for edge in chosen], side="right")
        edges = tuple(sorted({attribute.edges[place - 1] for place in held[after].tolist()}))
    return msgspec.structs.replace(attribute, stated_edges=edges, grid=None)


def measure(index: int, edges: Sequence[float], histogram: NDArray[np.int64]) -> Line | None:
    """The linear term of an attribute: held between its 2.5 % quantiles, centred at its median, in units that give
    it the standard deviation of a rule. None where that is no more than one point."""
    bins = np.maximum(histogram[1:], 0)
    total = int(bins.sum())
    if total == 0 or len(edges) < 2:
        return None
    low, middle, high = (_quantile(bins, edges, share) for share in (TAIL, 0.5, 1 - TAIL))
    if low >= high:
        return None
    ends = np.array([low, *edges, high])
    lower = np.clip(ends[:-1], low, high)
    upper = np.clip(ends[1:], low, high)
    middles = (lower + upper) / 2
    mean = float(bins @ middles) / total
    # Patients are taken to lie evenly within a bin.
    deviation = float(np.sqrt(bins @ ((middles - mean) ** 2 + (upper - lower) ** 2 / 12) / total))
    if deviation <= (high - low) * RULE_DEVIATION / WIDEST:
        return None
    return Line(index, low, high, min(max(middle, low), high), RULE_DEVIATION / deviation)


def rescale(lines: Sequence[Line], deviations: Sequence[float]) -> list[Line]:
    """Linear terms whose columns have these standard deviations, in units that give them that of a rule; those that
    hardly vary are left out."""
    own = [
        RULE_DEVIATION * line.scale / deviation if deviation > 0 else 0.0
        for line, deviation in zip(lines, deviations, strict=True)
    ]
    pairs = zip(lines, own, strict=True)
    return [
        msgspec.structs.replace(line, scale=scale)
        for line, scale in pairs
        if scale > 0 and scale * (line.high - line.low) < WIDEST
    ]


def _quantile(bins: NDArray[np.int64], edges: Sequence[float], share: float) -> float:
    """Where this share of the patients is reached, as if they lay evenly within a bin; the first and the last bin have
    one edge only, which is taken."""
    reached = np.cumsum(bins)
    wanted = share * reached[-1]
    at = int(np.searchsorted(reached, wanted))
    if not 0 < at < len(edges):
        return float(edges[min(at, len(edges) - 1)])
    part = (wanted - reached[at - 1]) / bins[at]
    return float(edges[at - 1] + part * (edges[at] - edges[at - 1]))


def count_codes(
    attribute: Attribute, edges: Sequence[float], histogram: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many patients have each code of an attribute, of whose edges those of the histogram are more."""
    starts = [0, 1, *(edges.index(edge) + 2 for edge in attribute.edges)]
    counts: NDArray[np.int64] = np.add.reduceat(histogram, starts)
    return counts


@dataclass(frozen=True)
class Noise:
    """Of every count by itself: its variance, and its scale where it is Laplace (0 where it is Gaussian)."""

    variance: float
    scale: float = 0.0

    def bound(self, counts: int, chance: float) -> float:
        """What the noise in a sum of so many counts is above with at most this chance (and below, with a minus).

        For a sum X of variance v, ln E[e^(uX)] is at most u^2 v/(2 (1 - u c)): with c = 0 for discrete Gaussians, and
        with c = s for discrete Laplace noise of scale s, whose E[e^(uX)] is (cosh(1/s) - 1)/(cosh(1/s) - cosh u), at
        most 1/(1 - u^2 s^2), where it is added whole, and a power of that where it is added in shares. Then X is above
        sqrt(2 v L) + c L with a chance of e^-L at most (Boucheron, Lugosi and Massart 2013, section 2.4).
        """
        level = math.log(1 / chance)
        return math.sqrt(2 * counts * self.variance * level) + self.scale * level

    def deviation(self, counts: int = 1) -> float:
        """The standard deviation of the noise in a sum of so many counts."""
        return math.sqrt(counts * self.variance)


def _cannot_tell_spread(histogram: NDArray[np.int64], noise: Noise) -> bool:
    """Whether all that lies outside of the fullest bin could be noise.

    Sums are looked at over all other bins, and over runs of 1, 2, 4, ... of them: many patients in few bins stand out
    there, who would drown in the noise of all. Where all patients are in one bin, this is false with a chance of
    TAKEN_FOR_PATIENTS at most, which the lengths share evenly, and the runs of a length among them. Where a run of w
    others holds r patients, it is true with a chance of e^(-(r - b)^2/(2 w v)) at most, b being that run's bound and v
    the variance of a Gaussian count: below 1 in 100 from b + 3.04 standard deviations of that run on.
    """
    bins = histogram[1:]
    others = np.delete(bins, np.argmax(bins))
    lengths = [2**power for power in range(len(others).bit_length()) if 2**power < len(others)]
    lengths.append(len(others))
    for length in lengths:
        runs = np.add.reduceat(others, np.arange(0, len(others), length))
        if runs.max() > noise.bound(length, TAKEN_FOR_PATIENTS / (len(lengths) * len(runs))):
            return False
    return True


def _find_lone_bin(histogram: NDArray[np.int64], noise: Noise) -> int | None:
    """The bin that holds all patients with a value as far as noise lets tell, None where others do, or where noise
    could hide that they do.

    It holds more than all others together, by more than the noise of all: an attribute whose fullest bin has no more
    than half of the patients is left out with a chance of LEFT_OUT_WRONGLY at most, over all of its bins together. Of
    two bins one may well be as rare as noise, and there is no linear term to go wrong: they are left as they are.
    """
    bins = histogram[1:]
    if len(bins) < 3 or not _cannot_tell_spread(histogram, noise):
        return None
    fullest = int(np.argmax(bins))
    lead = 2 * int(bins[fullest]) - int(bins.sum())
    return fullest if lead > noise.bound(len(bins), LEFT_OUT_WRONGLY / len(bins)) else None


def judge_bins(
    histograms: Iterable[tuple[Attribute, NDArray[np.int64]]], noise: Noise
) -> tuple[dict[str, str], list[str]]:
    """The attributes to leave out because all patients seem to be in one bin, and why; what to say of others."""
    left_out: dict[str, str] = {}
    hidden: list[str] = []
    for attribute, histogram in histograms:
        lone = _find_lone_bin(histogram, noise)
        if lone is not None:
            left_out[attribute.name] = _say_lone_bin(attribute.edges, histogram, lone, noise)
        elif len(attribute.edges) > 1 and _cannot_tell_spread(histogram, noise):
            hidden.append(attribute.name)
    return left_out, [_say_hidden(hidden, noise)] if hidden else []


def _say_lone_bin(edges: Sequence[float], histogram: NDArray[np.int64], lone: int, noise: Noise) -> str:
    """What to say of an attribute whose patients are all in one bin: what the noise lets tell, and what to do."""
    about = f"by a histogram with noise about {histogram[1 + lone]} patients are"
    rest = (
        f"no more than noise in its other bins (together {histogram[1:].sum() - histogram[1 + lone]}, with a standard "
        f"deviation of {noise.deviation(len(edges)):.3g})"
    )
    if 0 < lone < len(edges):
        return f"{about} between {edges[lone - 1]:g} and {edges[lone]:g}, and {rest}"
    side = f"below {edges[0]:g}" if lone == 0 else f"at {edges[-1]:g} or above"
    return (
        f"its bins, {edges[0]:g} to {edges[-1]:g}, seem to miss all patients: {about} {side}, and {rest}. Is it "
        "the same for everybody? If not, give bins within its range"
    )


def _say_hidden(names: Sequence[str], noise: Noise) -> str:
    """What to say of attributes of which a histogram tells no more than noise would."""
    return (
        f"noise (a standard deviation of {noise.deviation():.3g} in each bin) hides how the patients lie over the bins "
        f"of {name_some(names)}: cutoffs, and the ends of linear terms, are as good as drawn at random there; a larger "
        "epsilon or fewer edges would do"
    )
