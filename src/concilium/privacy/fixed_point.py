"""Counts and reals as integers modulo 2^64, the ring in which masks are added (METHODS section 0).

Claim: the sum over sites, read back as a signed number, is the true sum, because encoding is refused unless
sites * bound * 2^bits < 2^63. The bound is public, from the study, never taken from the data: under `private`
a refusal that depends on patients would itself be a release, so there the caller clips to the bound first.
Rounding to the grid can move two neighbouring sums apart by one step more per number; `widen_sensitivity`
says what that adds, and noise is then drawn on integers, in steps of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import StudyError

HALF_RING = 2**63


def check_ring(sites: int, bound: int | float | Fraction, bits: int = 0) -> None:
    """Refuse unless any sum of `sites` numbers up to `bound`, at `bits` binary places, fits the ring."""
    if sites < 1 or bits < 0 or not math.isfinite(bound) or bound < 0:
        raise StudyError(
            f"a sum needs at least one site, no fewer than 0 binary places and a finite bound of 0 or more, "
            f"not {sites} sites, {bits} places and a bound of {bound}"
        )
    if sites * Fraction(bound) * 2**bits >= HALF_RING:
        raise StudyError(
            f"{sites} sites with numbers up to {float(bound):.6g} at {bits} binary places do not fit sums "
            f"modulo 2^64: lower the bound or the number of binary places"
        )


def encode_counts(counts: ArrayLike, *, sites: int, bound: int) -> NDArray[np.uint64]:
    """Whole numbers between -bound and bound as words of the ring."""
    check_ring(sites, bound)
    array = np.asarray(counts)
    if array.size and array.dtype.kind not in "iu":
        raise StudyError(f"counts must be whole numbers, not {array.dtype}")
    _check_bound(array, bound)
    return array.astype(np.int64).view(np.uint64)


def decode_counts(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Words of the ring as signed whole numbers."""
    return np.ascontiguousarray(words, dtype=np.uint64).view(np.int64)


def encode_reals(reals: ArrayLike, *, sites: int, bound: float, bits: int) -> NDArray[np.uint64]:
    """Reals between -bound and bound, rounded to the nearest multiple of 2^-bits, as words of the ring."""
    # One half step of headroom: a real at the bound may round outwards.
    check_ring(sites, Fraction(bound) + Fraction(1, 2 ** (bits + 1)) if math.isfinite(bound) else bound, bits)
    array = np.asarray(reals, dtype=np.float64)
    _check_bound(array, bound)
    return np.rint(np.ldexp(array, bits)).astype(np.int64).view(np.uint64)


def decode_reals(words: NDArray[np.uint64], bits: int) -> NDArray[np.float64]:
    """Words of the ring as reals with `bits` binary places, each the nearest double."""
    return np.ldexp(decode_counts(words).astype(np.float64), -bits)


def add_in_ring(vectors: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The sum modulo 2^64 of vectors of one shape."""
    rows = list(vectors)
    if not rows or any(row.shape != rows[0].shape or row.dtype != np.uint64 for row in rows):
        raise StudyError("only vectors of 64-bit words of one shape, at least one of them, can be added")
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


def widen_sensitivity(squared: Fraction, numbers: int, bits: int) -> Fraction:
    """The squared L2 sensitivity, in steps of the grid, of `numbers` rounded sums that had `squared` before.

    Two sums D apart are, once rounded, at most D * 2^bits + sqrt(numbers) steps apart; the square root in
    (a + b)^2 = a^2 + b^2 + 2ab is rounded up.
    """
    steps = squared * (1 << 2 * bits)
    cross = 4 * steps * numbers
    return steps + numbers + _square_root_above(cross)


def _square_root_above(number: Fraction) -> Fraction:
    scaled = math.ceil(number * 2**64)
    root = math.isqrt(scaled)
    return Fraction(root if root * root == scaled else root + 1, 2**32)


def _check_bound(array: NDArray[Any], bound: float) -> None:
    # NaN fails both comparisons, so that it is refused with what lies outside.
    if array.size and not (array.min() >= -bound and array.max() <= bound):
        raise StudyError(f"a number lies outside the public bound of {bound}: clip to it, or raise it")
