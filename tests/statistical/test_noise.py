"""Noise as distributions: a scale that is 4 or 5 % off fails, and a right one fails once in 1e8 runs.

Where a test says that wrong noise is found, it is with so many draws that it is missed once in 1e11 runs or less.
"""

import math

import numpy as np
import pytest
from auditing import ALARM, fits, gaussian, laplace
from scipy.stats import binomtest, chi2

from concilium.privacy import mechanisms, randomness
from concilium.privacy.mechanisms import (
    add_gaussian,
    add_laplace,
    draw_gaussian,
    randomize_bits,
    randomize_codes,
)
from concilium.privacy.shares import draw_gaussian_share, draw_laplace_share

SITES = [3, 10, 67]


def zeros(n):
    return np.zeros(n, dtype=np.int64)


@pytest.fixture(params=[0, mechanisms.SHORT], ids=["opendp", "table"])
def _both_ways(request, monkeypatch):
    """Noise that OpenDP draws, and noise from a table."""
    monkeypatch.setattr(mechanisms, "SHORT", request.param)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize(("epsilon", "sensitivity"), [(2, 1), (1, 4), ("0.3", 9)])
def test_laplace_noise_is_discrete_laplace(epsilon, sensitivity):
    scale = sensitivity / float(epsilon)
    draws = add_laplace(zeros(120_000), epsilon, sensitivity)
    assert fits(draws, laplace(scale), 2000)
    assert not fits(draws, laplace(scale * 1.05), 2000)
    assert not fits(draws, laplace(scale / 1.05), 2000)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("variance", [0.5, 4, 90])
def test_gaussian_noise_is_discrete_gaussian(variance):
    draws = draw_gaussian(100_000, variance)
    assert fits(draws, gaussian(variance), 500)
    assert not fits(draws, gaussian(variance * 1.04**2), 500)
    assert not fits(draws, gaussian(variance / 1.04**2), 500)


@pytest.mark.usefixtures("_both_ways")
def test_noise_of_one_release_is_independent():
    """Signs of neighbouring draws, over the seam between threads as well: all four pairs alike."""
    draws = draw_gaussian(60_000, 10**4)
    pairs = np.bincount(2 * (draws[:-1:2] > 0) + (draws[1::2] > 0), minlength=4)
    up, n = (draws > 0).mean(), pairs.sum()
    hoped = n * np.array([(1 - up) ** 2, up * (1 - up), up * (1 - up), up**2])
    assert chi2.sf(((pairs - hoped) ** 2 / hoped).sum(), 2) > ALARM
    halves = np.corrcoef(draws[:30_000], draws[30_000:])[0, 1]
    assert abs(halves) < 6 / math.sqrt(30_000)


@pytest.mark.usefixtures("_both_ways")
def test_the_noise_does_not_depend_on_the_number_it_is_added_to():
    for number in (-(10**15), 12345):
        assert fits(add_laplace(zeros(25_000) + number, 1) - number, laplace(1), 500)
        assert fits(add_gaussian(zeros(25_000) + number, 9) - number, gaussian(9), 500)


@pytest.mark.usefixtures("_both_ways")
def test_a_seeded_source_draws_the_same_distributions(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
    with randomness.seeded(20):
        wide, narrow = add_laplace(zeros(12_000), "0.3", 2), add_laplace(zeros(12_000), 2)
        bell, thin = draw_gaussian(12_000, 30), draw_gaussian(12_000, 0.5)
    assert fits(wide, laplace(2 / 0.3), 1000)
    assert fits(narrow, laplace(0.5), 1000)
    assert fits(bell, gaussian(30), 500)
    assert fits(thin, gaussian(0.5), 500)
    assert not fits(wide, laplace(2 / 0.3 * 1.2), 1000)
    assert not fits(bell, gaussian(30 * 1.15**2), 500)


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize(("epsilon", "sensitivity"), [(1, 1), ("0.5", 10)])
def test_laplace_shares_of_all_but_one_site_are_discrete_laplace(sites, epsilon, sensitivity):
    n, scale = 120_000, sensitivity / float(epsilon)
    total = sum(draw_laplace_share(n, epsilon, sensitivity, sites) for _ in range(sites - 1))
    assert fits(total, laplace(scale), 2000)
    assert not fits(total, laplace(scale * 1.05), 2000)
    assert not fits(total, laplace(scale / 1.05), 2000)


@pytest.mark.parametrize(("sites", "n"), [(3, 60_000), (10, 15_000), (67, 2_500)])
def test_gaussian_shares_of_all_but_one_site_are_discrete_gaussian(sites, n):
    """A share by itself, and the sum, of which a quick test has fewer."""
    variance = 5 * (sites - 1)
    draws = draw_gaussian_share((sites - 1) * n, variance, sites)
    assert fits(draws, gaussian(5), 500)
    assert not fits(draws, gaussian(5 * 1.04**2), 500)
    total = draws.reshape(sites - 1, n).sum(axis=0)
    assert fits(total, gaussian(variance), 1000)
    assert not fits(total, gaussian(variance * 1.35**2), 1000)


@pytest.mark.parametrize("epsilon", [0.1, 1, 3, 7])
def test_bits_flip_as_often_as_they_should(epsilon):
    n, q = 4_000_000, 1 / (1 + math.exp(epsilon))
    for bit in (False, True):
        flips = int((randomize_bits(np.full(n, bit), epsilon) != bit).sum())
        assert binomtest(flips, n, q).pvalue > ALARM
        assert binomtest(flips, n, q * 1.15).pvalue < ALARM


def test_flips_are_independent_of_their_neighbours():
    flips = randomize_bits(np.zeros(2_000_000, dtype=bool), 1)
    pairs = np.bincount(2 * flips[:-1:2] + 1 * flips[1::2], minlength=4)
    q = 1 / (1 + math.e)
    hoped = pairs.sum() * np.array([(1 - q) ** 2, q * (1 - q), q * (1 - q), q * q])
    assert chi2.sf(((pairs - hoped) ** 2 / hoped).sum(), 3) > ALARM


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1), (5, 2), (40, 4)])
def test_codes_change_to_all_others_alike(k, epsilon):
    n, p = 1_000_000, math.exp(epsilon) / (k - 1 + math.exp(epsilon))
    code = k // 2
    seen = np.bincount(randomize_codes(np.full(n, code), k, epsilon), minlength=k)
    hoped = np.full(k, n * (1 - p) / (k - 1))
    hoped[code] = n * p
    assert chi2.sf(((seen - hoped) ** 2 / hoped).sum(), k - 1) > ALARM
    assert binomtest(int(seen[code]), n, p * 1.02).pvalue < ALARM
