import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.privacy import mechanisms, randomness
from concilium.privacy.mechanisms import _gaussian_sizes, _laplace_sizes

TOP = 2**64 - 1
scales = st.fractions(Fraction(1, 20), 30, max_denominator=50)


def sum_weights(weight, k: int) -> Fraction:
    """P(|X| <= k) to 90 digits where P(X = j) is in proportion to weight(j): term by term, from the definition."""
    with localcontext() as context:
        context.prec = 100
        total, within, j = Decimal(0), Decimal(0), 0
        while (one := weight(Decimal(j))) > Decimal(10) ** -95 or j <= k:
            total += one if j == 0 else 2 * one
            if j == k:
                within = total
            j += 1
        return Fraction(within) / Fraction(total)


def weigh_laplace(scale: Fraction):
    return lambda j: (-j * scale.denominator / scale.numerator).exp()


def weigh_gaussian(variance: Fraction):
    return lambda j: (-j * j * variance.denominator / (2 * variance.numerator)).exp()


FAMILIES = [(_laplace_sizes, weigh_laplace), (_gaussian_sizes, weigh_gaussian)]


@pytest.mark.parametrize(("sizes", "weigh"), FAMILIES, ids=["laplace", "gaussian"])
@given(parameter=scales, data=st.data())
@settings(max_examples=40)
def test_the_table_holds_the_first_64_bits_of_the_distribution(sizes, weigh, parameter, data):
    table = sizes(parameter).table
    k = data.draw(st.integers(0, table.size - 1))
    assert int(table[k]) == math.floor(sum_weights(weigh(parameter), k) * 2**64)
    assert table[-1] == TOP
    assert table.size == 1 or table[-2] < TOP


@pytest.mark.parametrize(("sizes", "weigh"), FAMILIES, ids=["laplace", "gaussian"])
@given(parameter=scales, bits=st.sampled_from([192, 256, 320]), data=st.data())
@settings(max_examples=40)
def test_bounds_hold_the_distribution_at_every_precision(sizes, weigh, parameter, bits, data):
    k = data.draw(st.integers(0, sizes(parameter).table.size - 1))
    low, high = next(islice(sizes(parameter).accumulate(bits), k, None))
    exact = sum_weights(weigh(parameter), k) * 2**bits
    close = Fraction(2) ** bits / 10**90  # as far as the oracle sees
    assert low <= exact + close
    assert min(exact, 2**bits - 1) <= high + close
    # So near that 64 bits of guard would do where 128 are kept.
    assert high - low < 2**64


@pytest.mark.parametrize("parameter", [Fraction(1, 10**300), Fraction(1, 1000), Fraction(10**4)])
def test_extremes_have_tables(parameter):
    for sizes in (_laplace_sizes, _gaussian_sizes):
        table = sizes(parameter).table
        assert table[-1] == TOP
        assert np.all(np.diff(table.astype(object)) >= 0)


def draw_with_words(monkeypatch, words, sizes):
    supply = iter(words)
    monkeypatch.setattr(
        randomness, "draw_words", lambda n: np.array([next(supply) for _ in range(n)], dtype=np.uint64)
    )
    return int(sizes.draw(1)[0])


@pytest.mark.parametrize(("sizes", "weigh"), FAMILIES, ids=["laplace", "gaussian"])
@pytest.mark.parametrize("k", [0, 1, 7, 12])
def test_a_draw_that_64_bits_leave_open_is_settled_by_more(monkeypatch, sizes, weigh, k):
    """Words chosen just below, at and just above F(k), to 128 and to 192 bits."""
    parameter = Fraction(5, 2)
    exact = math.floor(sum_weights(weigh(parameter), k) * 2**192)
    first, second, third = exact >> 128, (exact >> 64) & TOP, exact & TOP
    own = sizes(parameter)
    assert draw_with_words(monkeypatch, [first, second - 1], own) == k
    assert draw_with_words(monkeypatch, [first, second + 1], own) == k + 1
    assert draw_with_words(monkeypatch, [first, second, third - 1], own) == k
    assert draw_with_words(monkeypatch, [first, second, third + 1], own) == k + 1


def test_the_tail_is_not_cut_off(monkeypatch):
    draws = [
        draw_with_words(monkeypatch, [TOP] * n + [5] * 9, _gaussian_sizes(Fraction(1))) for n in (1, 2, 3, 4)
    ]
    # Each further word of ones is 64 bits further out: k^2 / 2 grows by 64 ln 2.
    hoped = [math.sqrt(2 * 64 * n * math.log(2)) for n in (1, 2, 3, 4)]
    assert np.all(np.abs(np.array(draws) - hoped) < 1)


def test_signs_are_those_of_the_bits(monkeypatch):
    sizes = _laplace_sizes(Fraction(3))
    monkeypatch.setattr(randomness, "draw_words", lambda n: np.full(n, TOP - 1, dtype=np.uint64))
    monkeypatch.setattr(randomness, "draw_bytes", lambda n: b"\xa5" * n)
    drawn = mechanisms._draw_signed(sizes, 12)
    assert np.sign(drawn).tolist() == [-1, 1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1]
    assert set(np.abs(drawn).tolist()) == {int(sizes.draw(1)[0])}
    assert mechanisms._draw_signed(sizes, 0).shape == (0,)
