"""What epsilon leaves to attackers: against the best attacks on mechanisms whose errors are known."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from concilium.evaluation.audit import _bound_advantage, _bound_by, _find_bound
from concilium.privacy.accounting import rho_for_epsilon
from concilium.protocol.card import Card, ReleaseCard


@given(st.floats(0, 30), st.floats(0, 0.4))
def test_it_is_the_formula(epsilon, delta):
    expected = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    assert _bound_by(epsilon, delta) == pytest.approx(min(expected, 1), abs=1e-12)


def test_large_numbers_are_certainty():
    assert _bound_by(1e6, 0.0) == 1


@given(st.floats(0.01, 12))
def test_randomised_response_attains_it(epsilon):
    """One bit told truly with e^eps / (1 + e^eps): TPR - FPR is the bound."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert truth - (1 - truth) == pytest.approx(_bound_by(epsilon, 0))


@settings(max_examples=30)
@given(st.integers(1, 8000).map(lambda thousandths: Fraction(thousandths, 1000)))
def test_no_gaussian_mechanism_gives_more_away(rho):
    """Gaussian noise of rho = d^2 / 2 sigma^2: the best attack has TPR - FPR = 2 Phi(d / 2 sigma) - 1."""
    best = 2 * norm.cdf(math.sqrt(2 * float(rho)) / 2) - 1
    bound = _bound_advantage(rho, "1e-6")
    assert best <= bound.least <= bound.by_epsilon
    assert bound.least < best + 0.3


def make_card(release, costs):
    releases = [ReleaseCard(site, "counts", release, 1, 1, cost) for site, cost in costs]
    return Card(
        study="s", method="tree", release=release, meaning="", sites=[], rounds=1, bytes=1, releases=releases,
        refusals=[], dropouts=[], warnings=[], version="0",
    )  # fmt: skip


def test_a_card_s_bound_is_of_those_who_paid_most():
    rho = rho_for_epsilon("1", "1e-6")
    half = str(rho / 2)
    card = make_card("private", [("north", half), ("north", half), ("south", half)])
    bound = _find_bound(card, "1e-6")
    assert Fraction(bound.rho) == rho
    assert bound.epsilon == pytest.approx(1)
    assert bound.by_epsilon == pytest.approx((math.e - 1) / (math.e + 1), abs=1e-5)


@pytest.mark.parametrize(
    ("release", "costs"),
    [("exact", [("north", None)]), ("private", [("north", "1"), ("south", None)]), ("private", [])],
)
def test_without_a_price_for_all_there_is_no_bound(release, costs):
    assert _find_bound(make_card(release, costs), "1e-6") is None
