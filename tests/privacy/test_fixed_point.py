import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from concilium.errors import StudyError
from concilium.privacy.fixed_point import (
    add_in_ring,
    check_ring,
    decode_counts,
    decode_reals,
    encode_counts,
    encode_reals,
    widen_sensitivity,
)


@st.composite
def counts_of_sites(draw):
    """One vector per site, with numbers up to a bound that just fits the ring."""
    sites = draw(st.integers(1, 12))
    bound = draw(st.integers(0, (2**63 - 1) // sites))
    length = draw(st.integers(0, 5))
    vector = st.lists(st.integers(-bound, bound), min_size=length, max_size=length)
    return bound, draw(st.lists(vector, min_size=sites, max_size=sites))


@given(counts_of_sites())
def test_the_sum_of_counts_comes_back_whatever_they_are(drawn):
    bound, vectors = drawn
    words = [encode_counts(np.array(v, dtype=np.int64), sites=len(vectors), bound=bound) for v in vectors]
    assert decode_counts(add_in_ring(words)).tolist() == [
        sum(column) for column in zip(*vectors, strict=True)
    ]


@given(counts_of_sites(), st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5))
def test_masks_that_cancel_leave_the_sum(drawn, mask):
    bound, vectors = drawn
    words = [encode_counts(np.array(v, dtype=np.int64), sites=len(vectors), bound=bound) for v in vectors]
    masked = [w.copy() for w in words]
    noise = np.array(mask[: words[0].size], dtype=np.uint64)
    masked[0] += noise
    masked[-1] -= noise
    assert np.array_equal(add_in_ring(masked), add_in_ring(words))


@given(
    st.integers(0, 30),
    st.lists(st.lists(st.floats(-1000, 1000), min_size=3, max_size=3), min_size=1, max_size=10),
)
def test_the_sum_of_reals_is_the_sum_of_rounded_reals(bits, vectors):
    words = [encode_reals(v, sites=len(vectors), bound=1000, bits=bits) for v in vectors]
    total = decode_reals(add_in_ring(words), bits)
    for column, got in zip(zip(*vectors, strict=True), total, strict=True):
        exact = sum(Fraction(x) for x in column)
        assert abs(Fraction(float(got)) - exact) <= len(vectors) * Fraction(1, 2 ** (bits + 1))
        assert Fraction(float(got)) == sum(Fraction(round(Fraction(x) * 2**bits), 2**bits) for x in column)


@given(st.integers(1, 10**6), st.integers(0, 2**64), st.integers(0, 60))
@example(1, 2**63, 0)
@example(1, 2**63 - 1, 0)
@example(8, 2**30, 30)
def test_the_ring_is_refused_exactly_where_it_is_too_small(sites, bound, bits):
    if sites * bound * 2**bits < 2**63:
        check_ring(sites, bound, bits)
    else:
        with pytest.raises(StudyError, match="do not fit"):
            check_ring(sites, bound, bits)


@pytest.mark.parametrize(
    ("sites", "bound", "bits"), [(0, 1, 0), (3, -1, 0), (3, math.nan, 0), (3, math.inf, 0), (3, 1, -1)]
)
def test_a_ring_without_sense_is_refused(sites, bound, bits):
    with pytest.raises(StudyError):
        check_ring(sites, bound, bits)


@pytest.mark.parametrize(
    "counts", [[11], [-11], [2**63 - 1], np.array([2**64 - 1], dtype=np.uint64), [1.0], ["1"]]
)
def test_counts_beyond_the_bound_or_not_whole_are_refused(counts):
    with pytest.raises(StudyError):
        encode_counts(counts, sites=3, bound=10)


@pytest.mark.parametrize("real", [1.01, -1.01, math.nan, math.inf, -math.inf])
def test_reals_beyond_the_bound_are_refused(real):
    with pytest.raises(StudyError, match="bound"):
        encode_reals([0.5, real], sites=3, bound=1.0, bits=20)


def test_a_real_that_rounds_outwards_still_fits():
    """2^52 - 1/2 becomes 2^52: without headroom, 2^11 of them would add up to 2^63, which is negative."""
    bound = 2.0**52 - 0.5
    with pytest.raises(StudyError, match="do not fit"):
        encode_reals([bound], sites=2**11, bound=bound, bits=0)
    words = encode_reals([bound], sites=2**11 - 1, bound=bound, bits=0)
    assert decode_reals(add_in_ring([words] * (2**11 - 1)), 0).tolist() == [2.0**52 * (2**11 - 1)]


def test_shapes_are_kept_and_must_agree():
    table = np.arange(6).reshape(2, 3)
    words = encode_counts(table, sites=2, bound=5)
    assert np.array_equal(decode_counts(add_in_ring([words, words])), 2 * table)
    assert encode_counts([], sites=2, bound=5).shape == (0,)
    with pytest.raises(StudyError, match="one shape"):
        add_in_ring([words, words[0]])
    with pytest.raises(StudyError, match="at least one"):
        add_in_ring([])


@given(st.integers(0, 8), st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8))
def test_rounded_neighbours_are_no_further_apart_than_said(bits, pairs):
    one, other = np.array(pairs).T
    squared = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    steps = [decode_counts(encode_reals(x, sites=1, bound=5, bits=bits)).tolist() for x in (one, other)]
    assert sum((a - b) ** 2 for a, b in zip(*steps, strict=True)) <= widen_sensitivity(
        squared, len(pairs), bits
    )


def test_the_widened_sensitivity_is_the_square_of_the_sum():
    assert widen_sensitivity(Fraction(9), 4, 2) == (3 * 4 + 2) ** 2
    assert float(widen_sensitivity(Fraction(1), 5, 10)) == pytest.approx(
        (1024 + math.sqrt(5)) ** 2, rel=1e-12
    )
    assert widen_sensitivity(Fraction(0), 7, 3) == 7
