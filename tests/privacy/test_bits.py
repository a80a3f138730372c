import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.mechanisms import (
    NoiselessWarning,
    find_flip_threshold,
    find_replacement_threshold,
    randomize_bits,
    randomize_codes,
)
from taylor import bound_exponential

epsilons = st.fractions(min_value=Fraction(1, 1000), max_value=50, max_denominator=1000)
WHOLE = 2**64


@pytest.fixture
def fixable(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)


@given(epsilons)
def test_the_flip_probability_is_exact_to_64_bits_and_never_too_small(epsilon):
    threshold = find_flip_threshold(epsilon)
    below, above = bound_exponential(epsilon)
    assert threshold * (1 + below) >= WHOLE
    assert (threshold - 1) * (1 + above) < WHOLE
    # What an observer gains: P(1 stays 1) / P(0 becomes 1) is at most e^epsilon.
    assert Fraction(WHOLE - threshold, threshold) <= above


@given(epsilons, st.integers(2, 10**6))
def test_the_k_ary_response_is_private_and_within_2_to_the_minus_64(epsilon, k):
    threshold = find_replacement_threshold(k, epsilon)
    below, above = bound_exponential(epsilon)
    other = Fraction(threshold, WHOLE) / k
    same = 1 - Fraction(threshold, WHOLE) + other
    assert other <= same <= above * other
    assert abs(other - 1 / (k - 1 + below)) <= Fraction(1, k * WHOLE) + (above - below)
    assert same + (k - 1) * other == 1


@pytest.mark.parametrize("epsilon", [0.5, 5])
def test_the_coin_falls_on_the_words_below_its_threshold(monkeypatch, epsilon):
    def feed(edge):
        words = np.array([0, edge - 1, edge, WHOLE - 1], dtype=np.uint64)
        monkeypatch.setattr(randomness, "draw_words", lambda count: words)

    feed(find_flip_threshold(epsilon))
    assert randomize_bits([0, 0, 0, 0], epsilon).tolist() == [1, 1, 0, 0]
    feed(find_replacement_threshold(3, epsilon))
    monkeypatch.setattr(randomness, "draw_below", lambda bound, count: np.full(count, bound - 1))
    assert randomize_codes([0, 0, 0, 0], 3, epsilon).tolist() == [2, 2, 0, 0]


@given(epsilons)
def test_two_categories_are_a_bit(epsilon):
    assert 0 <= 2 * find_flip_threshold(epsilon) - find_replacement_threshold(2, epsilon) <= 1


@pytest.mark.parametrize(("epsilon", "flip"), [(1e-300, 2**63), (1e-3, None), (1000, 1), ("1e300", 1)])
def test_extremes_of_epsilon_have_a_coin(epsilon, flip):
    threshold = find_flip_threshold(epsilon)
    assert 1 <= threshold <= 2**63
    assert flip in (None, threshold)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "inf", None, True])
def test_a_bad_epsilon_is_refused(epsilon):
    for use in (
        lambda: randomize_bits([0, 1], epsilon),
        lambda: randomize_codes([0, 1], 3, epsilon),
    ):
        with pytest.raises(StudyError, match="epsilon must be a finite number above 0"):
            use()


BITS = arrays.arrays(
    st.sampled_from([np.bool_, np.uint8, np.int8, np.int64, np.uint64]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0),
    elements=st.integers(0, 1),
)


@given(BITS, st.floats(0.01, 40))
def test_bits_stay_bits_of_the_same_shape_and_kind(bits, epsilon):
    before = bits.copy()
    flipped = randomize_bits(bits, epsilon)
    assert flipped.shape == bits.shape
    assert flipped.dtype == bits.dtype
    assert np.all((flipped == 0) | (flipped == 1))
    assert np.array_equal(bits, before)


def test_lists_are_taken_as_they_are():
    assert randomize_bits([[0, 1], [1, 1]], 40).tolist() == [[0, 1], [1, 1]]
    assert randomize_bits([True, False], 40).tolist() == [True, False]
    assert randomize_bits([], 1).shape == (0,)


@pytest.mark.parametrize(
    "bits",
    [
        [2],
        [-1],
        [0.0, 1.0],
        [0.5],
        ["1"],
        [None, 1],
        [math.nan],
        [[0], [0, 1]],
        np.ma.array([0, 1], mask=[0, 1]),
    ],
    ids=repr,
)
def test_what_is_not_a_bit_is_refused(bits):
    with pytest.raises(StudyError, match=r"whole numbers from 0 to 1|no array"):
        randomize_bits(bits, 1)


@given(st.integers(2, 300), st.data())
def test_codes_stay_codes(k, data):
    codes = np.array(data.draw(st.lists(st.integers(0, k - 1), max_size=30)), dtype=np.uint16)
    changed = randomize_codes(codes, k, 0.5)
    assert changed.shape == codes.shape
    assert changed.dtype == codes.dtype
    assert np.all(changed < k)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int8, np.int64])
def test_small_types_grow_to_hold_every_code(kind):
    codes = np.zeros((50, 40), dtype=kind)
    changed = randomize_codes(codes, 1000, 0.01)
    assert changed.shape == codes.shape
    # 2,000 nearly uniform codes: none above 900 once in 10^91.
    assert 900 < changed.max() < 1000
    assert changed.min() >= 0
    assert not codes.any()


@pytest.mark.parametrize(("codes", "k"), [([3], 3), ([-1], 3), ([0.0], 3), ([0], 1), ([0], 0), ([0], 2**33)])
def test_codes_outside_the_categories_are_refused(codes, k):
    with pytest.raises(StudyError):
        randomize_codes(codes, k, 1)


def test_an_epsilon_at_which_nothing_flips_is_allowed_and_said():
    bits = np.tile([0, 1, 1], 1000)
    with pytest.warns(NoiselessWarning, match="epsilon = 1000 means practically no noise"):
        assert np.array_equal(randomize_bits(bits, 1000), bits)
    with pytest.warns(NoiselessWarning):
        assert np.array_equal(randomize_codes(bits, 4, 60), bits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        randomize_bits(bits, 44)


def test_fixed_noise_reaches_bits_and_codes(fixable):
    bits, codes = np.tile([0, 1], 100), np.arange(200) % 5
    with randomness.zero_noise():
        assert np.array_equal(randomize_bits(bits, 0.1), bits)
        assert np.array_equal(randomize_codes(codes, 5, 0.1), codes)
    drawn = []
    for _ in range(2):
        with randomness.seeded(5):
            drawn.append((randomize_bits(bits, 0.1).tolist(), randomize_codes(codes, 5, 0.1).tolist()))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != bits.tolist()
    assert drawn[0][1] != codes.tolist()
