"""The privacy loss of every mechanism, measured: at or below the claim where it is sound, above it where it is not.

One and the same verdict is passed on the mechanisms of this package and on deliberately broken ones; a sound one
is accused once in 1e8 runs.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from auditing import bound_epsilon, tails_and_points

from concilium.privacy.accounting import epsilon_from_rho
from concilium.privacy.mechanisms import (
    add_gaussian,
    add_laplace,
    draw_gaussian,
    randomize_bits,
    randomize_codes,
)
from concilium.privacy.shares import draw_gaussian_share, draw_laplace_share, price_gaussian_shares

NEAR = tails_and_points(range(-4, 6))
UNSAFE = np.random.default_rng(1)  # good enough for mechanisms that are broken on purpose


def toss(n, chance):
    return UNSAFE.random(n) < chance


def audit_bits(mechanism, n=1_000_000):
    """What one answer costs, from answers that were all no and answers that were all yes."""
    return bound_epsilon(
        mechanism(np.zeros(n, dtype=bool)), mechanism(np.ones(n, dtype=bool)), tails_and_points([0, 1])
    )


def audit_counts(mechanism, n=50_000, delta=0.0):
    """What a count costs, from a group and the same group with one patient more."""
    counts = np.zeros(n, dtype=np.int64)
    return bound_epsilon(mechanism(counts), mechanism(counts + 1), NEAR, delta)


@pytest.mark.parametrize("epsilon", [0.5, 1, 4, 8])
def test_flipped_bits_cost_what_they_claim(epsilon):
    seen = audit_bits(lambda bits: randomize_bits(bits, epsilon))
    assert 0.75 * epsilon < seen <= epsilon


def paper_coin(bits, b=1):
    """Heads: the truth; tails: yes with probability q. It costs ln((p + q^2)/q^2) = 2.4 where it claims 1."""
    p = 1 / (1 + math.exp(-b))
    return np.where(toss(bits.size, p), bits, toss(bits.size, 1 - p))


def eight_bit_coin(bits, epsilon=8):
    """A flip decided by 8 random bits: 256 q is below 1, rounds to 0, and nothing is ever flipped."""
    threshold = int(256 / (1 + math.exp(epsilon)))
    return bits ^ (UNSAFE.integers(0, 256, bits.size) < threshold)


def coarse_coin(bits, epsilon=4):
    """The same at an epsilon where it does flip: 4 in 256 instead of 4.6."""
    return eight_bit_coin(bits, epsilon)


@pytest.mark.parametrize(("coin", "claim"), [(paper_coin, 1), (eight_bit_coin, 8), (coarse_coin, 4)])
def test_broken_coins_are_caught(coin, claim):
    assert audit_bits(coin) > claim


@pytest.mark.parametrize(("k", "epsilon"), [(3, 1), (20, 2)])
def test_changed_codes_cost_what_they_claim(k, epsilon):
    def audit(mechanism):
        answers = [mechanism(np.full(1_000_000, code)) for code in (0, 1)]
        return bound_epsilon(*answers, tails_and_points(range(3)))

    def forget_the_number_of_categories(codes):
        keep = toss(codes.size, math.exp(epsilon) / (1 + math.exp(epsilon)))
        return np.where(keep, codes, (codes + UNSAFE.integers(1, k, codes.size)) % k)

    assert 0.75 * epsilon < audit(lambda codes: randomize_codes(codes, k, epsilon)) <= epsilon
    assert audit(forget_the_number_of_categories) > epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2])
def test_laplace_counts_cost_what_they_claim(epsilon):
    assert 0.75 * epsilon < audit_counts(lambda x: add_laplace(x, epsilon)) <= epsilon
    assert audit_counts(lambda x: add_laplace(x, 2 * epsilon)) > epsilon


def test_noise_without_tails_is_caught():
    """Noise cut off at three either way: an output of four can only come from the larger group."""
    assert audit_counts(lambda x: x + np.clip(add_laplace(0 * x, 1), -3, 3)) > 1


def test_gaussian_counts_cost_what_they_claim():
    delta = Fraction(1, 100)
    claim = epsilon_from_rho(Fraction(1, 2), delta)
    assert audit_counts(lambda x: add_gaussian(x, 1), delta=float(delta)) <= claim
    assert audit_counts(lambda x: add_gaussian(x, Fraction(1, 4)), delta=float(delta)) > claim


@pytest.mark.parametrize("sites", [3, 10])
def test_laplace_shares_cost_what_they_claim_though_one_site_colludes(sites):
    def add(x, honest):
        return x + sum(draw_laplace_share(x.size, 1, 1, sites) for _ in range(honest))

    assert 0.75 < audit_counts(lambda x: add(x, sites - 1), 400_000) <= 1
    # Sized for every site to be honest when half of them are not.
    assert audit_counts(lambda x: add(x, sites // 2), 400_000) > 1


def test_gaussian_shares_cost_what_they_claim_though_one_site_colludes():
    """Three patients more, so that shares of the smallest sd allowed are little noise for the difference."""
    delta = Fraction(1, 100)
    claim = epsilon_from_rho(price_gaussian_shares(9, 8, 1, 3), delta)

    def audit(draw_share, n=30_000):
        one, other = (draw_share(n) + draw_share(n) for _ in range(2))
        return bound_epsilon(one, other + 3, tails_and_points(range(-4, 8)), float(delta))

    assert audit(lambda n: draw_gaussian_share(n, 8, 3)) <= claim
    # Shares of half the sd they should have.
    assert audit(lambda n: draw_gaussian(n, 1)) > claim
