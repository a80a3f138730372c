"""Randomised response: a patient's own answer, flipped by a coin before anyone sees it (docs/methods.md, section 0.11).

Claim: `randomize_bits` and `randomize_codes` protect each answer by itself with pure epsilon from everybody,
the house included, whatever else is known (Warner 1965; Kairouz, Bonawitz, Ramage 2016); k answers of one
patient cost k * epsilon. Assumption: the operating system's generator. The coin is an integer threshold on 64
random bits: the probability of a flip, 1/(1 + e^epsilon), rounded up to the next multiple of 2^-64, which
only ever adds privacy. From an epsilon of 44.4 on that is one in 2^64, practically never: allowed, with a
NoiselessWarning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.inversion import bound_decay
from concilium.privacy.mechanisms import Number, read_positive, read_table, warn_if_noiseless

_PRECISION = 192


def randomize_bits(bits: ArrayLike, epsilon: Number) -> NDArray[Any]:
    """0/1 or true/false answers of any shape, each flipped with probability 1/(1 + e^epsilon)."""
    threshold = find_flip_threshold(epsilon)
    array = _read_codes(bits, 2, "bits")
    warn_if_noiseless(read_positive(epsilon, "epsilon"), f"epsilon = {epsilon}")
    if randomness.noise_is_zero():
        return array.copy()
    flips = toss(array.size, threshold).reshape(array.shape)
    answers: NDArray[Any] = array ^ flips.astype(array.dtype)
    return answers


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
    places = np.flatnonzero(toss(flat.size, threshold))
    flat[places] = randomness.draw_below(categories, places.size).astype(flat.dtype)
    return flat.reshape(array.shape)


def find_flip_threshold(epsilon: Number) -> int:
    """The smallest T with T / 2^64 >= 1/(1 + e^epsilon)."""
    decay = bound_decay(read_positive(epsilon, "epsilon"), _PRECISION)[1]
    return -(-(decay << 64) // ((1 << _PRECISION) + decay))


def find_replacement_threshold(categories: int, epsilon: Number, block: int = 1) -> int:
    """The smallest T with T / 2^64 >= categories/(categories - block + block e^epsilon).

    An answer is replaced by any of the categories with that probability, or else by one of its own `block` of them.
    """
    if not 2 <= categories <= 2**32:
        raise StudyError(f"randomised response needs between 2 and 2^32 categories, not {categories}")
    if not 1 <= block < categories:
        raise StudyError(
            f"a block must have between 1 and {categories - 1} of {categories} categories, not {block}"
        )
    decay = bound_decay(read_positive(epsilon, "epsilon"), _PRECISION)[1]
    return -(-(categories * decay << 64) // ((block << _PRECISION) + (categories - block) * decay))


def toss(count: int, threshold: int) -> NDArray[np.bool_]:
    """Coins that fall with probability threshold / 2^64, for thresholds from 1 to 2^64."""
    return randomness.draw_words(count) <= np.uint64(threshold - 1)


def _read_codes(codes: ArrayLike, categories: int, name: str) -> NDArray[Any]:
    array = read_table(codes)
    if array.size == 0:
        return array if array.dtype.kind in "biu" else np.zeros(array.shape, dtype=np.int64)
    whole = array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.min() >= 0)
    if not whole or array.max() >= categories:
        raise StudyError(f"{name} must be whole numbers from 0 to {categories - 1}, none missing")
    return array
