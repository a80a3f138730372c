"""Randomised response: a patient's own answer, flipped by a coin before anyone sees it (METHODS section 3).

Claim: `randomize_bits` and `randomize_codes` protect each answer by itself with pure epsilon from everybody,
the house included, whatever else is known (Warner 1965; Kairouz, Bonawitz, Ramage 2016); k answers of one
patient cost k * epsilon. Assumption: the operating system's generator. The coin is an integer threshold on 64
random bits: the probability of a flip, 1/(1 + e^epsilon), rounded up to the next multiple of 2^-64, which
only ever adds privacy. From an epsilon of 44.4 on that is one in 2^64, practically never: allowed, with a
NoiselessWarning.

The estimates undo the coin on average and are never clipped: a negative count is what an unbiased estimate of
a small one looks like, and clipping before adding up would bias every sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.mechanisms import Number, bound_decay, read_positive, read_table, warn_if_noiseless

_PRECISION = 192


@dataclass(frozen=True)
class Estimate:
    """An unbiased count, possibly below 0 or above n, and the standard deviation the coin gives it."""

    count: NDArray[np.float64]
    sd: NDArray[np.float64]


def randomize_bits(bits: ArrayLike, epsilon: Number) -> NDArray[Any]:
    """0/1 or true/false answers of any shape, each flipped with probability 1/(1 + e^epsilon)."""
    threshold = find_flip_threshold(epsilon)
    array = _read_codes(bits, 2, "bits")
    warn_if_noiseless(read_positive(epsilon, "epsilon"), f"epsilon = {epsilon}")
    if randomness.noise_is_zero():
        return array.copy()
    flips = _toss(array.size, threshold).reshape(array.shape)
    flipped: NDArray[Any] = array ^ flips.astype(array.dtype)
    return flipped


def randomize_codes(codes: ArrayLike, categories: int, epsilon: Number) -> NDArray[Any]:
    """Answers 0 ... k - 1 (k = categories), each kept with probability e^epsilon/(k - 1 + e^epsilon).

    Or else any other, all alike. That is: replaced by one drawn from all k, its own included, with
    probability k/(k - 1 + e^epsilon), a form in which rounding up is private for any epsilon.
    """
    threshold = find_replacement_threshold(categories, epsilon)
    array = _read_codes(codes, categories, "codes")
    warn_if_noiseless(read_positive(epsilon, "epsilon"), f"epsilon = {epsilon}")
    # The answer that comes back may be larger than any that went in.
    flat = array.astype(np.result_type(array.dtype, np.min_scalar_type(categories - 1))).ravel()
    if randomness.noise_is_zero():
        return flat.reshape(array.shape)
    replaced = np.flatnonzero(_toss(flat.size, threshold))
    flat[replaced] = randomness.draw_below(categories, replaced.size).astype(flat.dtype)
    return flat.reshape(array.shape)


def estimate_count(yes: ArrayLike, n: int, epsilon: Number) -> Estimate:
    """How many of n answers were 1 before `randomize_bits`, of which `yes` are now: (yes - n q)/(p - q)."""
    observed = np.asarray(yes, dtype=np.float64)
    if n < 0 or not np.all((observed >= 0) & (observed <= n)):
        raise StudyError(f"of {n} answers, between 0 and {n} can be yes, not {yes!r}")
    flip = find_flip_threshold(epsilon)
    contrast = _divide_contrast(2**63 - flip, 2**63, epsilon)
    q = flip / 2**64
    # (y - n q)/(p - q) with q = (1 - contrast)/2, written so that no precision is lost where p - q is small.
    count = (observed - n / 2) / contrast + n / 2
    return Estimate(count, np.full_like(count, math.sqrt(n * q * (1 - q)) / contrast))


def estimate_counts(observed: ArrayLike, epsilon: Number) -> Estimate:
    """How many answers of each category there were before `randomize_codes`, from the counts after it.

    The standard deviation depends on the true counts; the estimates, brought into range, stand in for them.
    """
    counts = np.asarray(observed, dtype=np.float64)
    if counts.ndim != 1 or not np.all(counts >= 0):
        raise StudyError(
            "the counts after randomising must be one row of numbers of 0 or more, one per category"
        )
    categories, n = counts.size, float(counts.sum())
    replaced = find_replacement_threshold(categories, epsilon)
    contrast = _divide_contrast(2**64 - replaced, 2**64, epsilon)
    q = replaced / 2**64 / categories
    p = q + contrast
    count = (counts - n / categories) / contrast + n / categories
    likely = np.clip(count, 0, n)
    variance = likely * p * (1 - p) + (n - likely) * q * (1 - q)
    return Estimate(count, np.sqrt(variance) / contrast)


def find_flip_threshold(epsilon: Number) -> int:
    """The smallest T with T / 2^64 >= 1/(1 + e^epsilon)."""
    decay = bound_decay(read_positive(epsilon, "epsilon"), _PRECISION)[1]
    return -(-(decay << 64) // ((1 << _PRECISION) + decay))


def find_replacement_threshold(categories: int, epsilon: Number) -> int:
    """The smallest T with T / 2^64 >= categories/(categories - 1 + e^epsilon)."""
    if not 2 <= categories <= 2**32:
        raise StudyError(f"randomised response needs between 2 and 2^32 categories, not {categories}")
    decay = bound_decay(read_positive(epsilon, "epsilon"), _PRECISION)[1]
    return -(-(categories * decay << 64) // ((1 << _PRECISION) + (categories - 1) * decay))


def _toss(count: int, threshold: int) -> NDArray[np.bool_]:
    """Coins that fall with probability threshold / 2^64, for thresholds from 1 to 2^64."""
    return randomness.draw_words(count) <= np.uint64(threshold - 1)


def _divide_contrast(over: int, under: int, epsilon: Number) -> float:
    if over <= 0:
        raise StudyError(
            f"epsilon = {epsilon} is so small that the answers say nothing: there is no estimate"
        )
    return over / under


def _read_codes(codes: ArrayLike, categories: int, name: str) -> NDArray[Any]:
    array = read_table(codes)
    if array.size == 0:
        return array if array.dtype.kind in "biu" else np.zeros(array.shape, dtype=np.int64)
    whole = array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.min() >= 0)
    if not whole or array.max() >= categories:
        raise StudyError(f"{name} must be whole numbers from 0 to {categories - 1}, none missing")
    return array
