"""Whole numbers drawn by inverting a distribution function that is known to as many bits as it takes.

64 random bits are looked up in a table of the function's first 64 bits; in the rare case that they do not decide, more
bits of both are taken, until they do. Nothing is rounded and nothing truncated, so that the draws have the distribution
that is claimed for them, without a delta; the time a draw takes is not hidden. A function is given by bounds on it, in
whole numbers, to any precision that is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from concilium.privacy import randomness

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


def draw_signed(sizes: Distribution, count: int) -> NDArray[np.int64]:
    """Draws of a symmetric distribution, of which `sizes` is that of the absolute value: half of them negative."""
    drawn = sizes.draw(count)
    signs = np.unpackbits(np.frombuffer(randomness.draw_bytes(-(-count // 8)), dtype=np.uint8), count=count)
    return np.where(signs, -drawn, drawn)


@functools.lru_cache(maxsize=64)
def laplace_sizes(scale: Fraction) -> Distribution:
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
def gaussian_sizes(variance: Fraction) -> Distribution:
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
