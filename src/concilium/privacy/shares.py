"""Noise in shares: every site adds a part, and the parts add up to the noise of the sum (docs/methods.md, section 0.9).

Claim: from a house that sees only the sum over M sites, and from up to t sites that tell it their own part,
each patient is protected as if one trusted party had added the noise to the sum. Assumptions: the other M - t
sites draw as told, for which alone the noise is sized, and the sum is masked.
- Gaussian: each site draws a discrete Gaussian of variance s^2 = sigma^2/(M - t). Their sum is not quite one;
  the price is rho = D^2/(2 sigma^2) + tau * numbers, tau = 10 sum over k = 1 ... M-t-1 of
  exp(-2 pi^2 s^2 k/(k+1)) (Kairouz, Liu, Steinke 2021, proposition 14): below 1e-16 from s = 2 on.
- Pure epsilon: each site draws the difference of two negative binomials of shape 1/(M - t), Polya draws,
  whose sum is a discrete Laplace exactly (Goryczka, Xiong 2017). They are drawn by inverting the distribution
  function (mechanisms.py): nothing is truncated, so that the claim is pure epsilon, without a delta.

Masks are added in the ring of integers modulo 2^64 (docs/methods.md, section 0.8). A sum over sites, read back as a
signed number, is the true sum as long as its size stays below HALF_RING: what one site may enter is bounded by the
study (manifest.py), never by the data, since under `private` a refusal that depends on patients would itself be a
release. A question whose public bounds do not fit is refused before it is computed; noise is never cut off
(protocol/releases/private.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.privacy import mechanisms, randomness
from concilium.privacy.accounting import sigma_squared_for
from concilium.privacy.mechanisms import Distribution, Number, bound_decay, read_positive, warn_if_noiseless

HALF_RING = 2**63


def widen_sensitivity(squared: Fraction, numbers: int, bits: int) -> Fraction:
    """The squared L2 sensitivity, in steps of the grid, of `numbers` rounded sums that had `squared` before.

    Two sums D apart are, once rounded to multiples of 2^-bits, at most D * 2^bits + sqrt(numbers) steps apart; the
    square root in (a + b)^2 = a^2 + b^2 + 2ab is rounded up. Noise is then drawn on integers, in steps of the grid.
    """
    steps = squared * (1 << 2 * bits)
    scaled = math.ceil(4 * steps * numbers * 2**64)
    root = math.isqrt(scaled)
    return steps + numbers + Fraction(root if root * root == scaled else root + 1, 2**32)


SMALLEST_VARIANCE = 4
LARGEST_POLYA_SCALE = 20_000
# Multiples of this keep the ledger's rationals short.
PRICE_STEP = Fraction(1, 10**15)
# Shares of Gaussian noise cost a trifle more than one Gaussian; this much is held back for it.
RESERVE = Fraction(1, 10**6)


def draw_gaussian_share(count: int, variance: Number, sites: int, colluders: int = 1) -> NDArray[np.int64]:
    """One site's part of Gaussian noise; the honest parts add up to the variance asked for, or more."""
    return mechanisms.draw_gaussian(count, _divide_variance(variance, sites, colluders))


def price_gaussian_shares(
    squared_sensitivity: Number, variance: Number, numbers: int, sites: int, colluders: int = 1
) -> Fraction:
    """What `numbers` sums with Gaussian noise in shares cost: rho, rounded up."""
    share = _divide_variance(variance, sites, colluders)
    honest = sites - colluders
    distance = 10 * sum(
        # 9.8696 is below pi^2.
        Fraction(bound_decay(Fraction(98696, 5000) * share * k / (k + 1), 192)[1], 2**192)
        for k in range(1, honest)
    )
    extra = -(-distance * numbers // PRICE_STEP) * PRICE_STEP
    return read_positive(squared_sensitivity, "squared sensitivity") / (2 * share * honest) + extra


def variance_within(rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
    """The variance at which noise in shares costs no more than rho, the trifle that shares cost more included."""
    return sigma_squared_for(rho * (1 - RESERVE), squared_sensitivity)


def is_too_small(rho: Fraction) -> bool:
    """Whether the reserve of a question of this price would not cover what adding noise in shares costs more."""
    return rho * RESERVE < 100 * PRICE_STEP


def is_unpayable(rho: Fraction) -> bool:
    """Whether no answer fits this price, however much noise it has: shares cost a step more than one Gaussian."""
    return rho * RESERVE < PRICE_STEP


def draw_laplace_share(
    count: int, epsilon: Number, sensitivity: Number, sites: int, colluders: int = 1
) -> NDArray[np.int64]:
    """One site's part of discrete Laplace noise of scale sensitivity/epsilon over the honest sites."""
    honest = _count_honest(sites, colluders)
    rate = read_positive(epsilon, "epsilon") / read_positive(sensitivity, "sensitivity")
    if rate * LARGEST_POLYA_SCALE < 1:
        raise StudyError(
            f"Laplace noise in shares goes up to a scale of {LARGEST_POLYA_SCALE}, but sensitivity/epsilon "
            f"is {float(1 / rate):.6g}: use Gaussian shares, a larger epsilon or fewer binary places"
        )
    warn_if_noiseless(rate, f"epsilon = {epsilon}")
    if randomness.noise_is_zero():
        return np.zeros(count, dtype=np.int64)
    draws = _polya(honest, rate).draw(2 * count)
    return draws[:count] - draws[count:]


def _count_honest(sites: int, colluders: int) -> int:
    if colluders < 0 or sites < colluders + 2:
        raise StudyError(
            f"noise in shares against {colluders} colluding sites needs at least "
            f"{max(colluders, 0) + 2} sites, not {sites}"
        )
    return sites - colluders


def _divide_variance(variance: Number, sites: int, colluders: int) -> Fraction:
    share = read_positive(variance, "variance") / _count_honest(sites, colluders)
    if share < SMALLEST_VARIANCE:
        raise StudyError(
            f"each of {sites} sites would add noise of standard deviation {float(share) ** 0.5:.3g}, below "
            f"the 2 from which shares add up to a Gaussian: ask with a smaller rho, or with fewer sites"
        )
    return share


@functools.lru_cache(maxsize=16)
def _polya(parts: int, rate: Fraction) -> Distribution:
    """Negative binomial: P(k) = C(k + 1/parts - 1, k) (1 - a)^(1/parts) a^k with a = e^-rate."""
    return Distribution.tabulate(functools.partial(_accumulate, parts, rate))


def _accumulate(parts: int, rate: Fraction, bits: int) -> Iterator[tuple[int, int]]:
    """Bounds low <= F(k) * 2^bits <= high on the distribution function for k = 0, 1, ..."""
    decay_low, decay_high = bound_decay(rate, bits)
    low = _root(2**bits - decay_high, parts, bits) - 1
    high = _root(2**bits - decay_low, parts, bits) + 2
    total_low = total_high = 0
    k = 0
    while True:
        total_low, total_high = total_low + low, total_high + high
        # F(k) is below 1, whatever the rounding.
        yield total_low, min(total_high, 2**bits - 1)
        over, under = k * parts + 1, (k + 1) * parts
        low = low * decay_low * over // (under << bits)
        high = high * decay_high * over // (under << bits) + 1
        k += 1


def _root(number: int, degree: int, bits: int) -> int:
    """(number / 2^bits)^(1/degree) * 2^bits, to less than one unit."""
    context = Context(prec=bits // 3 + 30)
    fraction = context.divide(Decimal(number), Decimal(2**bits))
    root = context.exp(context.divide(context.ln(fraction), Decimal(degree)))
    return int(context.multiply(root, Decimal(2**bits)))
