"""What a histogram with noise tells of where patients are: in several of its bins, in one alone, or nothing
(docs/methods.md, section 2.2).

Everything here follows from noisy counts that are paid for and from the size of their noise, which the study and the
number of hospitals give: post-processing, which asks nothing and costs nothing, whoever the patients are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute

# An attribute whose patients are all in one bin stays nevertheless, because noise elsewhere looks like patients, with
# at most this chance.
TAKEN_FOR_PATIENTS = 1 / 20
# One of which no bin holds more than half of the patients is left out with at most this chance.
LEFT_OUT_WRONGLY = 1 / 100


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


def cannot_tell_spread(histogram: NDArray[np.int64], noise: Noise) -> bool:
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


def find_lone_bin(histogram: NDArray[np.int64], noise: Noise) -> int | None:
    """The bin that holds all patients with a value as far as noise lets tell, None where others do, or where noise
    could hide that they do.

    It holds more than all others together, by more than the noise of all: an attribute whose fullest bin has no more
    than half of the patients is left out with a chance of LEFT_OUT_WRONGLY at most, over all of its bins together. Of
    two bins one may well be as rare as noise, and there is no linear term to go wrong: they are left as they are.
    """
    bins = histogram[1:]
    if len(bins) < 3 or not cannot_tell_spread(histogram, noise):
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
        lone = find_lone_bin(histogram, noise)
        if lone is not None:
            left_out[attribute.name] = say_lone_bin(attribute.edges, histogram, lone, noise)
        elif len(attribute.edges) > 1 and cannot_tell_spread(histogram, noise):
            hidden.append(attribute.name)
    return left_out, [say_hidden(hidden, noise)] if hidden else []


def say_lone_bin(edges: Sequence[float], histogram: NDArray[np.int64], lone: int, noise: Noise) -> str:
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
        f"its bins, {edges[0]:g} to {edges[-1]:g}, seem to miss all patients: {about} {side}, and {rest}; give edges "
        "within the range of the column"
    )


def say_hidden(names: Sequence[str], noise: Noise) -> str:
    """What to say of attributes of which a histogram tells no more than noise would."""
    return (
        f"noise (a standard deviation of {noise.deviation():.3g} in each bin) hides how the patients lie over the bins "
        f"of {list_some(names)}: cutoffs, and the ends of linear terms, are as good as drawn at random there; a larger "
        "epsilon or fewer edges would do"
    )


def list_some(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
