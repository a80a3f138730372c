import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.errors import StudyError
from concilium.privacy import mechanisms, randomness
from concilium.privacy.mechanisms import (
    NoiselessWarning,
    add_gaussian,
    add_laplace,
    bound_decay,
    draw_gaussian,
    read_positive,
)
from taylor import bound_exponential

positive = st.fractions(min_value=Fraction(1, 10**6), max_value=10**6)


@pytest.fixture
def fixable(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)


@pytest.fixture
def scales(monkeypatch):
    """The scales OpenDP is asked for, where no table is short."""
    asked = []
    monkeypatch.setattr(mechanisms, "SHORT", 0)
    original = mechanisms._ask_opendp
    monkeypatch.setattr(
        mechanisms,
        "_ask_opendp",
        lambda family, scale, x: (asked.append(scale), original(family, scale, x))[1],
    )
    return asked


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        True,
        None,
        "",
        "one",
        "nan",
        "inf",
        "-1",
        "1/0",
        "1e999999999",
        Decimal("nan"),
        Decimal("1e999999"),
        Fraction(0),
        [1],
        np.float64("nan"),
        b"1",
    ],
    ids=repr,
)
def test_what_is_no_positive_number_is_refused_in_one_sentence(value):
    with pytest.raises(StudyError, match=r"^epsilon must be a finite number above 0, not [^\n]*$"):
        read_positive(value, "epsilon")
    with pytest.raises(StudyError):
        add_laplace([1], value)
    with pytest.raises(StudyError):
        add_gaussian([1], value)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (1, Fraction(1)),
        (0.5, Fraction(1, 2)),
        (0.1, Fraction(3602879701896397, 2**55)),
        ("0.1", Fraction(1, 10)),
        ("1/3", Fraction(1, 3)),
        (" 2e-3 ", Fraction(1, 500)),
        (Decimal("0.1"), Fraction(1, 10)),
        (Fraction(2, 7), Fraction(2, 7)),
        (np.int64(3), Fraction(3)),
        (np.float32(0.5), Fraction(1, 2)),
    ],
    ids=repr,
)
def test_numbers_are_read_exactly(value, exact):
    assert read_positive(value, "epsilon") == exact


@given(st.fractions(min_value=0, max_value=60, max_denominator=1000), st.sampled_from([64, 192]))
def test_the_exponential_lies_between_its_bounds(x, bits):
    low, high = bound_decay(x, bits)
    below, above = bound_exponential(x)
    assert low <= 2**bits / below
    assert high >= 2**bits / above
    assert high - low <= 4


@pytest.mark.parametrize(
    ("x", "ends"),
    [
        (Fraction(10**308), (0, 1)),
        (Fraction(10**5), (0, 1)),
        (Fraction(1, 10**300), (2**64 - 1, 2**64)),
        (Fraction(0), (2**64 - 1, 2**64)),
    ],
)
def test_the_exponential_is_bounded_at_its_ends(x, ends):
    assert bound_decay(x, 64) == ends


@given(positive, positive)
def test_the_laplace_scale_is_the_least_double_that_is_enough(epsilon, sensitivity):
    scale = mechanisms._round_up(sensitivity / epsilon)
    assert sensitivity / Fraction(scale) <= epsilon
    assert sensitivity / Fraction(math.nextafter(scale, 0)) > epsilon


@given(st.one_of(positive, st.fractions(min_value=Fraction(1, 10**400), max_value=Fraction(1, 10**200))))
def test_the_gaussian_scale_is_hardly_more_than_enough(variance):
    scale = mechanisms._root_up(variance)
    assert Fraction(scale) ** 2 >= variance
    assert Fraction(scale) ** 2 <= variance * (1 + Fraction(1, 2**49))


def test_opendp_is_asked_for_the_rounded_scale_and_agrees_with_the_price(scales):
    import opendp.prelude as dp

    dp.enable_features("contrib")
    vectors = dp.vector_domain(dp.atom_domain(T="i64"))
    add_laplace([1, 2], Fraction(3, 10), 2)
    add_gaussian([1, 2], Fraction(7, 3))
    laplace, gaussian = scales
    assert 2 / Fraction(laplace) <= Fraction(3, 10)
    assert Fraction(gaussian) ** 2 >= Fraction(7, 3)
    # OpenDP rounds its own prices up, by a few units in the last place.
    price = dp.m.make_laplace(vectors, dp.l1_distance(T="i64"), scale=laplace).map(2)
    assert price == pytest.approx(0.3, rel=1e-14)
    price = dp.m.make_gaussian(vectors, dp.l2_distance(T="i64"), scale=gaussian).map(1)
    assert price == pytest.approx(3 / 14, rel=1e-14)


@pytest.fixture(params=[0, mechanisms.SHORT], ids=["opendp", "table"])
def _both_ways(request, monkeypatch):
    monkeypatch.setattr(mechanisms, "SHORT", request.param)


@pytest.mark.parametrize(
    "add", [lambda x: add_laplace(x, 1), lambda x: add_gaussian(x, 9)], ids=["laplace", "gauss"]
)
@pytest.mark.usefixtures("_both_ways")
class TestBoth:
    @pytest.mark.parametrize(
        "numbers",
        [[1, 2, 3], np.arange(6).reshape(2, 3), np.array([7], dtype=np.uint8), np.int64(4), []],
        ids=repr,
    )
    def test_shape_is_kept_and_numbers_become_64_bit(self, add, numbers):
        noisy = add(numbers)
        assert noisy.shape == np.shape(numbers)
        assert noisy.dtype == np.int64

    @pytest.mark.parametrize(
        "numbers",
        [[1.0], ["1"], [None], [True], np.ma.array([1, 2], mask=[0, 1]), np.array([2**63], dtype=np.uint64)],
        ids=repr,
    )
    def test_what_is_not_whole_is_refused(self, add, numbers):
        with pytest.raises(StudyError):
            add(numbers)

    def test_the_input_is_left_alone_and_order_survives_the_threads(self, add):
        numbers = np.arange(5000) * 10**6
        before = numbers.copy()
        noisy = add(numbers)
        assert np.array_equal(numbers, before)
        assert np.array_equal(np.rint(noisy / 10**6), np.arange(5000))
        assert np.any(noisy != numbers)

    def test_zero_noise_gives_the_numbers_back_as_a_copy(self, add, fixable):
        numbers = np.arange(100)
        with randomness.zero_noise():
            same = add(numbers)
        assert np.array_equal(same, numbers)
        assert not np.shares_memory(same, numbers)
        assert np.any(add(numbers) != numbers)

    def test_a_seed_replays_the_noise(self, add, fixable):
        def draw(seed):
            with randomness.seeded(seed):
                return add(np.zeros(50, dtype=int)).tolist()

        assert draw(1) == draw(1)
        assert draw(1) != draw(2)

    def test_the_ends_of_the_integers_saturate(self, add, fixable):
        ends = np.array([2**63 - 1] * 50 + [-(2**63)] * 50)
        for noisy in (add(ends), _under_seed(add, ends)):
            assert np.all(noisy[:50] > 2**62)
            assert np.all(noisy[50:] < -(2**62))


def _under_seed(add, numbers):
    with randomness.seeded(3):
        return add(numbers)


def test_so_much_epsilon_that_nothing_happens_is_allowed_and_said():
    numbers = np.arange(1000)
    with pytest.warns(NoiselessWarning, match="epsilon = 100 means practically no noise"):
        assert np.array_equal(add_laplace(numbers, 100), numbers)
    with pytest.warns(NoiselessWarning, match="variance"):
        assert np.array_equal(add_gaussian(numbers, "0.001"), numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_laplace(numbers, 40)
        add_gaussian(numbers, Fraction(1, 88))


def test_noise_far_above_any_count_of_patients_is_drawn_in_full():
    # Sums in fixed point are large numbers, and so is their noise.
    noise = draw_gaussian(2000, Fraction(2) ** 80)
    assert 0.9 < np.std(noise.astype(float)) / 2.0**40 < 1.1


def test_so_little_epsilon_that_no_count_survives_is_refused():
    with pytest.raises(StudyError, match="larger than any count"):
        add_laplace([1], "1e-16")
    with pytest.raises(StudyError, match="larger than any count"):
        draw_gaussian(1, "1e31")


def test_a_table_is_made_where_it_is_short_beside_what_is_drawn(scales, monkeypatch):
    monkeypatch.undo()
    made = []
    for name in ("_laplace_sizes", "_gaussian_sizes"):
        original = getattr(mechanisms, name)
        monkeypatch.setattr(
            mechanisms, name, lambda scale, own=original: (made.append(float(scale)), own(scale))[1]
        )
    add_gaussian(np.zeros(1000, dtype=int), 100)
    add_laplace(np.zeros(1000, dtype=int), "0.1")
    add_gaussian([1, 2, 3], 10**6)
    add_laplace([1, 2, 3], "0.001")
    assert made == [100.0, 10.0]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**62), 2**62)), min_size=1))
def test_sums_end_where_the_integers_end(pairs):
    numbers, noise = np.array(pairs, dtype=np.int64).T
    hoped = [min(max(a + b, -(2**63)), 2**63 - 1) for a, b in pairs]
    assert mechanisms._add_saturating(numbers, noise).tolist() == hoped
