import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import nbinom

from concilium.errors import StudyError
from concilium.privacy import mechanisms, randomness, shares
from concilium.privacy.mechanisms import NoiselessWarning
from concilium.privacy.shares import draw_gaussian_share, draw_laplace_share, price_gaussian_shares

SITES = [3, 10, 67]
TOP = 2**64 - 1


@pytest.fixture
def fixable(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)


def read_pmf(parts: int, rate: Fraction) -> np.ndarray:
    """The probabilities the table gives to 0, 1, 2, ..."""
    cells = [int(c) for c in shares._polya(parts, rate).table]
    return np.array(
        [float(Fraction(b - a, 2**64)) for a, b in zip([0, *cells], [*cells, 2**64], strict=True)]
    )


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("rate", [Fraction(2), Fraction(1, 3), Fraction(1, 20)], ids=str)
def test_honest_shares_add_up_to_a_discrete_laplace(sites, rate):
    """The exact distribution of the sum of M - 1 shares, by Fourier transform, against its closed form."""
    pmf = read_pmf(sites - 1, rate)
    length = 4096
    assert pmf.size < length / 2
    one = np.abs(np.fft.fft(pmf, length)) ** 2  # the transform of a draw minus a draw
    total = np.fft.ifft(one ** (sites - 1)).real
    a, k = math.exp(-rate), np.arange(-200, 201)
    assert np.allclose(total[k], (1 - a) / (1 + a) * a ** np.abs(k), atol=1e-13, rtol=0)


@pytest.mark.parametrize("parts", [2, 9, 66])
@pytest.mark.parametrize("rate", [Fraction(3), Fraction(1, 10), Fraction(1, 500)], ids=str)
def test_one_part_is_negative_binomial(parts, rate):
    pmf = read_pmf(parts, rate)
    k = np.arange(pmf.size - 1)
    assert np.allclose(pmf[:-1], nbinom.pmf(k, 1 / parts, -math.expm1(-rate)), atol=1e-14, rtol=1e-8)
    assert pmf.sum() == pytest.approx(1, abs=1e-12)


def compute_distribution(parts: int, rate: Fraction, k: int) -> Fraction:
    """F(k) to 90 digits, summed term by term from the definition."""
    with localcontext() as context:
        context.prec = 90
        a = (-Decimal(rate.numerator) / rate.denominator).exp()
        term = (1 - a) ** (Decimal(1) / parts)
        total = term
        for j in range(1, k + 1):
            term *= a * (1 + (j - 1) * parts) / (j * parts)
            total += term
        return Fraction(total)


@given(st.integers(2, 80), st.fractions(Fraction(1, 20), 5, max_denominator=50), st.data())
@settings(max_examples=50)
def test_the_table_holds_the_first_64_bits_of_the_distribution(parts, rate, data):
    table = shares._polya(parts, rate).table
    k = data.draw(st.integers(0, table.size - 1))
    assert int(table[k]) == math.floor(compute_distribution(parts, rate, k) * 2**64)
    assert table[-1] == TOP
    assert np.all(np.diff(table[:-1].astype(object)) >= 0)


def draw_with_words(monkeypatch, words, parts, rate):
    supply = iter(words)
    monkeypatch.setattr(
        randomness, "draw_words", lambda n: np.array([next(supply) for _ in range(n)], dtype=np.uint64)
    )
    return int(shares._polya(parts, rate).draw(1)[0])


@pytest.mark.parametrize("k", [0, 1, 7, 30])
@pytest.mark.parametrize("parts", [2, 9])
def test_a_draw_that_64_bits_leave_open_is_settled_by_more(monkeypatch, parts, k):
    """Words chosen just below, at and just above F(k), to 128 and to 192 bits."""
    rate = Fraction(1, 4)
    exact = math.floor(compute_distribution(parts, rate, k) * 2**192)
    first, second, third = exact >> 128, (exact >> 64) & TOP, exact & TOP
    assert draw_with_words(monkeypatch, [first, second - 1], parts, rate) == k
    assert draw_with_words(monkeypatch, [first, second + 1], parts, rate) == k + 1
    assert draw_with_words(monkeypatch, [first, second, third - 1], parts, rate) == k
    assert draw_with_words(monkeypatch, [first, second, third + 1], parts, rate) == k + 1


def test_the_tail_is_not_cut_off(monkeypatch):
    end = shares._polya(2, Fraction(1)).table.size - 1
    draws = [draw_with_words(monkeypatch, [TOP] * n + [5] * 9, 2, Fraction(1)) for n in (1, 2, 3, 4)]
    # Each further word of ones is 64 bits further out: about 64 ln 2 = 44 steps at rate 1.
    assert draws[0] >= end
    assert np.all(np.abs(np.diff(draws) - 44.4) < 3)


@pytest.mark.parametrize("sites", SITES)
def test_gaussian_shares_of_the_honest_sites_have_all_the_variance(monkeypatch, sites):
    asked = []
    monkeypatch.setattr(mechanisms, "_add", lambda x, family, scale: (asked.append((family, scale)), x)[1])
    draw_gaussian_share(5, "1000.1", sites)
    [(family, scale)] = asked
    assert family == "gaussian"
    total = (sites - 1) * Fraction(scale) ** 2
    assert Fraction("1000.1") <= total <= Fraction("1000.1") * (1 + Fraction(1, 2**49))


@pytest.mark.parametrize(("honest", "variance"), [(2, 8), (2, 20), (9, 36), (66, 264)])
def test_the_price_covers_the_divergence_of_the_true_sum(honest, variance):
    """The Renyi divergence between the sum of shares and the same sum one patient further, computed outright."""
    reach = 60
    k = np.arange(-reach, reach + 1)
    share = np.exp(-(k**2) / (2 * variance / honest))
    share /= share.sum()
    total = np.array([1.0])
    for _ in range(honest):
        total = np.convolve(total, share)
        middle = total.size // 2
        total = total[max(0, middle - 150) : middle + 151]
    price = float(price_gaussian_shares(1, variance, 1, honest + 1))
    assert price == pytest.approx(1 / (2 * variance), abs=2e-15)
    keep = total[1:] > 1e-200
    one, other = total[1:][keep], total[:-1][keep]
    for order in (1.5, 2, 5):
        ratios = np.exp(order * np.log(one) + (1 - order) * np.log(other))
        divergence = math.log(ratios.sum()) / (order - 1)
        assert divergence <= order * price * (1 + 1e-6)
        assert divergence >= order * price * (1 - 1e-3)


@given(
    st.fractions(Fraction(1, 100), 100, max_denominator=100),
    st.integers(4, 1000),
    st.integers(1, 10**5),
    st.integers(3, 40),
)
def test_the_price_is_never_below_that_of_one_gaussian_and_hardly_above(squared, share, numbers, sites):
    variance = share * (sites - 1)
    price = price_gaussian_shares(squared, variance, numbers, sites)
    extra = price - squared / (2 * variance)
    assert 0 < extra <= Fraction(numbers, 10**16) + Fraction(1, 10**15)
    s = share
    tau = 10 * sum(math.exp(-2 * math.pi**2 * s * k / (k + 1)) for k in range(1, sites - 1))
    assert float(extra) >= tau * numbers


@pytest.mark.parametrize(("sites", "colluders"), [(2, 1), (1, 0), (3, 2), (3, -1), (0, 0)])
def test_too_few_sites_are_refused(sites, colluders):
    for draw in (
        lambda: draw_gaussian_share(3, 100, sites, colluders),
        lambda: draw_laplace_share(3, 1, 1, sites, colluders),
        lambda: price_gaussian_shares(1, 100, 1, sites, colluders),
    ):
        with pytest.raises(StudyError, match="sites"):
            draw()


def test_shares_too_small_to_add_up_are_refused():
    draw_gaussian_share(1, 8, 3)
    with pytest.raises(StudyError, match="standard deviation 2, below the 2"):
        draw_gaussian_share(1, "7.9999", 3)
    with pytest.raises(StudyError, match="smaller rho"):
        price_gaussian_shares(1, 30, 10, 10)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "x"])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(StudyError, match="epsilon"):
        draw_laplace_share(3, bad, 1, 5)
    with pytest.raises(StudyError, match="sensitivity"):
        draw_laplace_share(3, 1, bad, 5)
    with pytest.raises(StudyError, match="variance"):
        draw_gaussian_share(3, bad, 5)


def test_extremes_of_laplace_shares_are_said():
    with pytest.raises(StudyError, match="up to a scale of 20000, but sensitivity/epsilon is 1e\\+06"):
        draw_laplace_share(3, "1e-6", 1, 5)
    with pytest.warns(NoiselessWarning):
        assert draw_laplace_share(100, 10**12, 1, 5).tolist() == [0] * 100


def test_fixed_noise_reaches_the_shares(fixable):
    def draw():
        return draw_laplace_share(40, 1, 5, 4).tolist(), draw_gaussian_share(40, 100, 4).tolist()

    with randomness.zero_noise():
        assert draw() == ([0] * 40, [0] * 40)
    with randomness.seeded(1):
        first = draw()
    with randomness.seeded(1):
        assert draw() == first
    assert any(first[0])
    assert any(first[1])
    assert draw_laplace_share(0, 1, 1, 3).shape == (0,)
