"""Discrete Laplace and discrete Gaussian noise on whole numbers (docs/methods.md, section 0.4).

Claim: from anyone who sees the noisy numbers, `add_laplace` protects each patient with pure epsilon where
adding or removing that patient moves the numbers by at most `sensitivity` in L1 (Ghosh, Roughgarden,
Sundararajan 2012), and `add_gaussian` with rho = D^2/(2 sigma^2) zero-concentrated privacy where it moves
them by at most D in L2 (Canonne, Kamath, Steinke 2020, theorem 4).

Where a table of the distribution is short beside the numbers that want noise, it is drawn from that (inversion.py), and
else by OpenDP, ten microseconds each: both exactly, OpenDP as it proves. Which of them depends on the scale and on how
many numbers there are, never on the numbers. The scale is a double, read as the exact rational it is; epsilon and
sigma^2 are rationals here and the double is rounded up, so that there is never less noise than was paid for. Numbers
beyond 64 bits saturate. The time a draw takes is not hidden.

A seeded source (tests only) cannot reach into OpenDP; there the same distributions are drawn by the exact
algorithms 1 to 3 of Canonne, Kamath, Steinke.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.accounting import float_above
from concilium.privacy.inversion import draw_signed, gaussian_sizes, laplace_sizes

Number = int | float | str | Fraction | Decimal
Family = Literal["laplace", "gaussian"]

# e^-x is below 2^-64 from here on: nobody will see it happen.
NEVER = Fraction(443615, 10000)
LARGEST_SCALE = Fraction(2**50)
# A table has so many entries for each unit of scale, and is short where it has at most SHORT of them for each number
# that wants noise: an entry takes up to a quarter of what a draw by OpenDP takes.
TABLE: dict[Family, int] = {"laplace": 45, "gaussian": 20}
SHORT = 4


class NoiselessWarning(UserWarning):
    """So much epsilon, or so little variance, that the noise is practically never anything but zero."""


def add_laplace(numbers: ArrayLike, epsilon: Number, sensitivity: Number = 1) -> NDArray[np.int64]:
    """Whole numbers of any shape, each plus its own discrete Laplace noise of scale sensitivity/epsilon."""
    scale = read_positive(sensitivity, "sensitivity") / read_positive(epsilon, "epsilon")
    warn_if_noiseless(1 / scale, f"epsilon = {epsilon}")
    return _add(read_whole(numbers), "laplace", _round_up(scale))


def add_gaussian(numbers: ArrayLike, variance: Number) -> NDArray[np.int64]:
    """Whole numbers of any shape, each plus its own discrete Gaussian noise of parameter sigma^2."""
    exact = read_positive(variance, "variance")
    warn_if_noiseless(1 / (2 * exact), f"a variance of {variance}")
    return _add(read_whole(numbers), "gaussian", _root_up(exact))


def draw_gaussian(count: int, variance: Number) -> NDArray[np.int64]:
    """Discrete Gaussian noise by itself, for a share of a sum."""
    return add_gaussian(np.zeros(count, dtype=np.int64), variance)


def read_positive(value: Number, name: str) -> Fraction:
    """The exact rational behind a finite number above 0: a double as it is, text as it is written."""
    number = _read_exact(value)
    if number is None or number <= 0:
        raise StudyError(f"{name} must be a finite number above 0, not {value!r}")
    return number


def read_whole(numbers: ArrayLike) -> NDArray[np.int64]:
    """An array of whole numbers as 64-bit integers; anything else is an error."""
    array = read_table(numbers)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise StudyError(
            f"noise is added to whole numbers, not to {array.dtype}: encode reals by fixed point first"
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise StudyError("a count is beyond 2^63 and fits no sum")
    return array.astype(np.int64)


def read_table(values: ArrayLike) -> NDArray[Any]:
    """Values as an array, where they are one: rows of one length, and none masked as missing."""
    try:
        if not isinstance(values, np.ma.MaskedArray):
            return np.asarray(values)
    except ValueError:
        pass
    raise StudyError("this is no array: give rows of one length, with no value missing")


def warn_if_noiseless(exponent: Fraction, cause: str) -> None:
    """Say so where noise other than zero has a probability of about e^-exponent < 2^-64; it is allowed."""
    if exponent > NEVER:
        warnings.warn(
            f"{cause} means practically no noise: the numbers leave as they are",
            NoiselessWarning,
            stacklevel=3,
        )


def _read_exact(value: Number) -> Fraction | None:
    if isinstance(value, np.generic):
        value = value.item()
    try:
        if isinstance(value, str) and "/" not in value:
            value = Decimal(value)
        if isinstance(value, Decimal) and abs(value.adjusted()) > 400:
            return None
        return None if isinstance(value, bool) else Fraction(value)
    except (ValueError, TypeError, ArithmeticError, InvalidOperation):
        return None


def _round_up(number: Fraction) -> float:
    """The smallest double that is not below the number."""
    if number > LARGEST_SCALE:
        raise StudyError(
            "noise of this scale is larger than any count: raise epsilon or lower the sensitivity"
        )
    return float_above(number)


def _root_up(square: Fraction) -> float:
    """A double, within two steps of the smallest, whose square is not below the number."""
    if square > LARGEST_SCALE**2:
        raise StudyError(
            "noise of this variance is larger than any count: raise rho or lower the sensitivity"
        )
    # Scaled by a power of four so that no tiny variance underflows on the way, and no large one is taken for a scale.
    shift = (square.denominator.bit_length() - square.numerator.bit_length()) // 2
    root = math.ldexp(math.sqrt(_round_up(square * Fraction(4) ** shift)), -shift)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root


def _add(numbers: NDArray[np.int64], family: Family, scale: float) -> NDArray[np.int64]:
    if randomness.noise_is_zero() or numbers.size == 0:
        return numbers.copy()
    flat = numbers.ravel()
    if TABLE[family] * scale <= SHORT * flat.size:
        noisy = _add_saturating(flat, _draw_from_table(family, Fraction(scale), flat.size))
    elif randomness.source_is_seeded():
        noisy = _add_exactly(flat, family, Fraction(scale))
    else:
        # OpenDP works outside the interpreter's lock, about 10 microseconds a draw.
        workers = min(os.cpu_count() or 1, 4, 1 + flat.size // 1024)
        _load_opendp()
        ask = functools.partial(_ask_opendp, family, scale)
        if workers == 1:
            noisy = ask(flat)
        else:
            with ThreadPoolExecutor(workers) as pool:
                noisy = np.concatenate(list(pool.map(ask, np.array_split(flat, workers))))
    return noisy.reshape(numbers.shape)


@functools.cache
def _load_opendp() -> ModuleType:
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    return opendp


def _ask_opendp(family: Family, scale: float, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    opendp = _load_opendp()
    vectors = opendp.vector_domain(opendp.atom_domain(T="i64"))
    if family == "laplace":
        mechanism = opendp.m.make_laplace(vectors, opendp.l1_distance(T="i64"), scale=scale)
    else:
        mechanism = opendp.m.make_gaussian(vectors, opendp.l2_distance(T="i64"), scale=scale)
    return np.array(mechanism(numbers), dtype=np.int64)


def _draw_from_table(family: Family, scale: Fraction, count: int) -> NDArray[np.int64]:
    return draw_signed(laplace_sizes(scale) if family == "laplace" else gaussian_sizes(scale**2), count)


def _add_saturating(numbers: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum, or the end of the 64-bit integers that it lies beyond."""
    total = numbers + noise  # wraps round where both have one sign and the sum has the other
    wrapped = (numbers < 0) == (noise < 0)
    wrapped &= (total < 0) != (noise < 0)
    ends = np.iinfo(np.int64)
    return np.where(wrapped, np.where(noise < 0, ends.min, ends.max), total)


def _add_exactly(numbers: NDArray[np.int64], family: Family, scale: Fraction) -> NDArray[np.int64]:
    draw = _draw_one_laplace if family == "laplace" else _draw_one_gaussian
    ends = np.iinfo(np.int64)
    return np.array([min(max(int(n) + draw(scale), ends.min), ends.max) for n in numbers], dtype=np.int64)


def _draw_one_gaussian(sigma: Fraction) -> int:
    """Algorithm 3: a discrete Laplace draw, kept with the probability that makes it Gaussian."""
    square, width = sigma * sigma, math.floor(sigma) + 1
    while True:
        draw = _draw_one_laplace(Fraction(width))
        if _toss_exponential((abs(draw) - square / width) ** 2 / (2 * square)):
            return draw


def _draw_one_laplace(scale: Fraction) -> int:
    """Algorithm 2: P(k) in proportion to e^(-|k| / scale)."""
    over, under = scale.numerator, scale.denominator
    while True:
        start = _draw_integer_below(over)
        if not _toss_exponential(Fraction(start, over)):
            continue
        laps = 0
        while _toss_exponential(Fraction(1)):
            laps += 1
        size, negative = (start + over * laps) // under, _draw_integer_below(2) == 1
        if size or not negative:
            return -size if negative else size


def _toss_exponential(exponent: Fraction) -> bool:
    """Algorithm 1: true with probability e^-exponent."""
    while exponent > 1:
        if not _toss_exponential(Fraction(1)):
            return False
        exponent -= 1
    turn = 1
    while _draw_integer_below(exponent.denominator * turn) < exponent.numerator:
        turn += 1
    return turn % 2 == 1


def _draw_integer_below(bound: int) -> int:
    bits = (bound - 1).bit_length()
    while True:
        draw = int.from_bytes(randomness.draw_bytes((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if draw < bound:
            return draw
