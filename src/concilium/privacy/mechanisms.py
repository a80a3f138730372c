"""Discrete Laplace and discrete Gaussian noise on whole numbers (docs/methods.md, section 0.4).

Claim: from anyone who sees the noisy numbers, `add_laplace` protects each patient with pure epsilon where
adding or removing that patient moves the numbers by at most `sensitivity` in L1 (Ghosh, Roughgarden,
Sundararajan 2012), and `add_gaussian` with rho = D^2/(2 sigma^2) zero-concentrated privacy where it moves
them by at most D in L2 (Canonne, Kamath, Steinke 2020, theorem 4).

Where a table of the distribution is short beside the numbers that want noise, it is drawn from that, and
else by OpenDP, ten microseconds each: both exactly, OpenDP as it proves. Which of them depends on the scale and on how
many numbers there are, never on the numbers. The scale is a double, read as the exact rational it is; epsilon and
sigma^2 are rationals here and the double is rounded up, so that there is never less noise than was paid for. Numbers
beyond 64 bits saturate. The time a draw takes is not hidden.

A seeded source (tests only) cannot reach into OpenDP; there the same distributions are drawn by the exact
algorithms 1 to 3 of Canonne, Kamath, Steinke.

Inversion. Whole numbers are drawn by inverting a distribution function that is known to as many bits as it takes: 64
random bits are looked up in a table of the function's first 64 bits; in the rare case that they do not decide, more
bits of both are taken, until they do. Nothing is rounded and nothing truncated, so that the draws have the
distribution that is claimed for them, without a delta; the time a draw takes is not hidden. A function is given by
bounds on it, in whole numbers, to any precision.

Randomised response (docs/methods.md, section 0.11) flips a patient's own answer by a coin before anyone sees it.
Claim: `randomize_bits` and `randomize_codes` protect each answer by itself with pure epsilon from everybody, the
house included, whatever else is known (Warner 1965; Kairouz, Bonawitz, Ramage 2016); k answers of one patient cost k
* epsilon. Assumption: the operating system's generator. The coin is an integer threshold on 64 random bits: the
probability of a flip, 1/(1 + e^epsilon), rounded up to the next multiple of 2^-64, which only ever adds privacy. From
an epsilon of 44.4 on that is one in 2^64, practically never: allowed, with a NoiselessWarning.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
from math import isqrt
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.accounting import float_above

# Bounds low <= F(k) * 2^bits <= high, below 2^bits, for k = 0, 1, ...
Accumulate = Callable[[int], Iterator[tuple[int, int]]]

WORD = 64
GUARD = 128  # so many bits more are kept than are read


@dataclass(frozen=True)
class Distribution:
    """A distribution on 0, 1, 2, ... by its distribution function, with the table of its first 64 bits."""

    accumulate: Accumulate
    table: NDArray[np.uint64]

    @classmethod
    def tabulate(cls, accumulate: Accumulate) -> Distribution:
        """With floor(F(k) * 2^64) for k = 0, 1, ... up to the first that is 2^64 - 1."""
        bits = WORD + GUARD
        while True:
            cells = _read_cells(accumulate(bits), bits - WORD)
            if cells is not None:
                return cls(accumulate, cells)
            bits *= 2

    def draw(self, count: int) -> NDArray[np.int64]:
        words = randomness.draw_words(count)
        draws = np.searchsorted(self.table, words).astype(np.int64)
        for place in np.flatnonzero(self.table[draws] == words):
            draws[place] = self._settle(int(words[place]))
        return draws

    def _settle(self, word: int) -> int:
        """The draw of a word that shares its 64 bits with some F(k): more random bits, until they differ."""
        number, bits = word, WORD
        while True:
            number, bits = number << WORD | int(randomness.draw_words(1)[0]), bits + WORD
            for k, (low, high) in enumerate(self.accumulate(bits + GUARD)):
                if low >> GUARD > number:
                    return k
                if high >> GUARD >= number:
                    break


def _read_cells(bounds: Iterator[tuple[int, int]], surplus: int) -> NDArray[np.uint64] | None:
    """The first 64 bits of F(k); None where the bounds do not agree on them."""
    table = []
    for low, high in bounds:
        cell = low >> surplus
        if cell != high >> surplus:
            return None
        table.append(cell)
        if cell == 2**WORD - 1:
            cells = np.array(table, dtype=np.uint64)
            cells.flags.writeable = False
            return cells
    return None


def _draw_signed(sizes: Distribution, count: int) -> NDArray[np.int64]:
    """Draws of a symmetric distribution, of which `sizes` is that of the absolute value: half of them negative."""
    drawn = sizes.draw(count)
    signs = np.unpackbits(np.frombuffer(randomness.draw_bytes(-(-count // 8)), dtype=np.uint8), count=count)
    return np.where(signs, -drawn, drawn)


@functools.lru_cache(maxsize=64)
def _laplace_sizes(scale: Fraction) -> Distribution:
    """|k| of P(k) in proportion to e^(-|k| / scale)."""

    def accumulate(bits: int) -> Iterator[tuple[int, int]]:
        # F(k) = 1 - 2 a^(k + 1) / (1 + a), where a = e^(-1 / scale).
        one = 1 << bits
        low, high = bound_decay(1 / scale, bits)
        power_low, power_high = low, high
        while True:
            beyond_low = (2 * power_low << bits) // (one + high)
            beyond_high = (2 * power_high << bits) // (one + low) + 1
            yield max(one - beyond_high, 0), min(one - beyond_low, one - 1)
            power_low, power_high = power_low * low >> bits, (power_high * high >> bits) + 1

    return Distribution.tabulate(accumulate)


@functools.lru_cache(maxsize=64)
def _gaussian_sizes(variance: Fraction) -> Distribution:
    """|k| of P(k) in proportion to e^(-k^2 / (2 variance))."""

    def weigh(bits: int) -> Iterator[tuple[int, int]]:
        """Bounds on e^(-k^2 / (2 variance)) * 2^bits; from one k to the next it falls by e^(-(2k + 1) / (2 variance)),
        which itself falls by e^(-1 / variance)."""
        fall_low, fall_high = bound_decay(1 / (2 * variance), bits)
        step_low, step_high = bound_decay(1 / variance, bits)
        low = high = 1 << bits
        while True:
            yield low, high
            low, high = low * fall_low >> bits, (high * fall_high >> bits) + 1
            fall_low, fall_high = fall_low * step_low >> bits, (fall_high * step_high >> bits) + 1

    def accumulate(bits: int) -> Iterator[tuple[int, int]]:
        # From k = `end` on weights are below 2^-bits, and fall by e^(-end / variance) at least each, so that they add
        # up to less than 1 + variance / end of them: e^-x <= 1 / (1 + x).
        end = isqrt(int(2 * variance * bits)) + 2
        rest = int(variance / end) + 2
        sums, low, high = [], 0, 0
        for k, (weight_low, weight_high) in zip(range(end), weigh(bits), strict=False):
            low, high = low + (2 if k else 1) * weight_low, high + (2 if k else 1) * weight_high
            sums.append((low, high))
        for within_low, within_high in sums:
            # F(k) is what lies within k over that and what lies beyond.
            beyond_low, beyond_high = low - within_low, high - within_high + 2 * rest
            yield (
                (within_low << bits) // (within_low + beyond_high),
                min((within_high << bits) // (within_high + beyond_low) + 1, (1 << bits) - 1),
            )

    return Distribution.tabulate(accumulate)


def bound_decay(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers low <= e^-exponent * 2^bits <= high, a few units apart, for exponents of 0 and more."""
    ends = []
    for rounding in (ROUND_FLOOR, ROUND_CEILING):
        context = Context(prec=bits // 3 + 30, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
        power = context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
        # exp rounds to the nearest whatever the context says; one step outwards makes it a bound.
        outwards = context.next_minus(power) if rounding == ROUND_FLOOR else context.next_plus(power)
        ends.append(context.to_integral_value(context.multiply(outwards, Decimal(2**bits))))
    return max(int(ends[0]), 0), min(int(ends[1]), 2**bits)


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
    return _add(_read_whole(numbers), "laplace", _round_up(scale))


def add_gaussian(numbers: ArrayLike, variance: Number) -> NDArray[np.int64]:
    """Whole numbers of any shape, each plus its own discrete Gaussian noise of parameter sigma^2."""
    exact = read_positive(variance, "variance")
    warn_if_noiseless(1 / (2 * exact), f"a variance of {variance}")
    return _add(_read_whole(numbers), "gaussian", _root_up(exact))


def draw_gaussian(count: int, variance: Number) -> NDArray[np.int64]:
    """Discrete Gaussian noise by itself, for a share of a sum."""
    return add_gaussian(np.zeros(count, dtype=np.int64), variance)


def read_positive(value: Number, name: str) -> Fraction:
    """The exact rational behind a finite number above 0: a double as it is, text as it is written."""
    number = _read_exact(value)
    if number is None or number <= 0:
        raise StudyError(f"{name} must be a finite number above 0, not {value!r}")
    return number


def _read_whole(numbers: ArrayLike) -> NDArray[np.int64]:
    """An array of whole numbers as 64-bit integers; anything else is an error."""
    array = _read_table(numbers)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise StudyError(
            f"noise is added to whole numbers, not to {array.dtype}: encode reals by fixed point first"
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise StudyError("a count is beyond 2^63 and fits no sum")
    return array.astype(np.int64)


def _read_table(values: ArrayLike) -> NDArray[Any]:
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
    return _draw_signed(_laplace_sizes(scale) if family == "laplace" else _gaussian_sizes(scale**2), count)


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
    array = _read_table(codes)
    if array.size == 0:
        return array if array.dtype.kind in "biu" else np.zeros(array.shape, dtype=np.int64)
    whole = array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.min() >= 0)
    if not whole or array.max() >= categories:
        raise StudyError(f"{name} must be whole numbers from 0 to {categories - 1}, none missing")
    return array
