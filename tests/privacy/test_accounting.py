import math
from contextlib import nullcontext
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import BudgetError, LedgerError
from concilium.ledger.ledger import Ledger
from concilium.privacy.accounting import (
    Plan,
    PlannedQuestion,
    _round_up,
    convert,
    epsilon_from_rho,
    exact,
    float_above,
    pure_from_rho,
    rho_for_epsilon,
    rho_from_pure,
    say_epsilon,
    shown,
    sigma_squared_for,
    warn_of_delta,
)
from room import has_room

positive = st.fractions(min_value=Fraction(1, 10**12), max_value=10**4)
deltas = st.integers(1, 30).map(lambda power: Fraction(1, 10**power))


def tanh(x: Fraction) -> Fraction:
    """tanh to 150 digits, by another formula than the package's."""
    with localcontext() as context:
        context.prec = 200
        power = (2 * Decimal(x.numerator) / Decimal(x.denominator)).exp()
        return Fraction((power - 1) / (power + 1))


@given(epsilon=positive)
def test_pure_epsilon_enters_rho_from_above_and_tightly(epsilon):
    rho = rho_from_pure(epsilon)
    # The oracle loses digits near zero to 1 - 1, hence the 10^-120.
    truth = epsilon * tanh(epsilon / 2)
    assert truth - Fraction(1, 10**120) <= rho <= truth * (1 + Fraction(1, 2**60)) + Fraction(1, 10**120)


@pytest.mark.parametrize("epsilon", ["1e-300", "2.3e-10", "2.4e-10", "99.9", "100.1", "1e300"])
def test_pure_epsilon_enters_rho_at_the_ends_of_the_scale(epsilon):
    e = Fraction(epsilon)
    rho = rho_from_pure(epsilon)
    assert rho <= min(e, e * e / 2) * (1 + Fraction(1, 2**62))
    assert rho >= e * e / 2 * (1 - e * e / 12) if e < 1 else rho >= e * (1 - Fraction(1, 10**40))


@given(epsilon=st.floats(0.01, 20), order=st.floats(1.0001, 1000))
def test_the_worst_pure_release_is_within_its_rho(epsilon, order):
    """Rényi divergence of randomised response, from the definition: at most rho * order."""
    p = 1 / (1 + math.exp(-epsilon))
    logs = [order * math.log(x) + (1 - order) * math.log(y) for x, y in ((p, 1 - p), (1 - p, p))]
    divergence = (max(logs) + math.log(sum(math.exp(log - max(logs)) for log in logs))) / (order - 1)
    assert divergence <= float(rho_from_pure(Fraction(epsilon))) * order + 1e-9 / (order - 1)


def test_a_smaller_rho_would_not_cover_the_worst_pure_release():
    for epsilon in (0.1, 1.0, 5.0):
        p = 1 / (1 + math.exp(-epsilon))
        at_order_one = p * math.log(p / (1 - p)) + (1 - p) * math.log((1 - p) / p)
        assert float(rho_from_pure(Fraction(epsilon))) == pytest.approx(at_order_one, rel=1e-12)


@given(rho=positive, sensitivity_squared=positive)
def test_the_variance_for_a_rho_never_costs_more_and_hardly_less(rho, sensitivity_squared):
    cost = sensitivity_squared / (2 * sigma_squared_for(rho, sensitivity_squared))
    assert rho * (1 - Fraction(1, 2**60)) <= cost <= rho


def test_a_variance_that_needs_no_rounding_gets_none():
    assert sigma_squared_for("1/2", 20) == 20


@given(value=positive, bits=st.integers(1, 80))
def test_rounding_up_keeps_leading_bits(value, bits):
    rounded = _round_up(value, bits)
    assert value <= rounded <= value * (1 + Fraction(2, 2**bits))
    assert rounded.denominator & (rounded.denominator - 1) == 0


def bound(order: np.ndarray, rho: float, delta: float) -> np.ndarray:
    return rho * order - (np.log(order) + np.log(delta)) / (order - 1) + np.log1p(-1 / order)


@settings(max_examples=50)
@given(rho=st.floats(1e-8, 1e4), delta=st.floats(1e-30, 0.5))
def test_epsilon_shown_is_the_minimum_over_all_orders(rho, delta):
    """Against a fine grid: not above its best point by more than the grid is coarse, not below the minimum."""
    shown_epsilon = epsilon_from_rho(Fraction(rho), Fraction(delta))
    beyond_one = np.geomspace(1e-8, 2 / delta, 200_000)
    best = max(0.0, float(bound(1 + beyond_one, rho, delta).min()))
    assert shown_epsilon <= best * (1 + 1e-6) + 1e-9
    assert shown_epsilon >= best * (1 - 1e-6) - 1e-9


@settings(max_examples=25)
@given(rho=st.fractions(Fraction(1, 10**6), 100), delta=deltas)
def test_epsilon_shown_is_never_below_the_true_minimum(rho, delta):
    """The minimum once more, by golden section with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        r, log_delta = Decimal(rho.numerator) / rho.denominator, (1 / Decimal(delta.denominator)).ln()
        low, high = Decimal("1e-9"), 1 / Decimal(delta.numerator) * delta.denominator
        ratio = (Decimal(5).sqrt() - 1) / 2

        def at(beyond_one: Decimal) -> Decimal:
            order = 1 + beyond_one
            return r * order - (order.ln() + log_delta) / beyond_one + (beyond_one / order).ln()

        for _ in range(280):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, right) if at(left) < at(right) else (left, high)
        minimum = max(Decimal(0), at((low + high) / 2))
    shown_epsilon = epsilon_from_rho(rho, delta)
    assert Fraction(shown_epsilon) >= Fraction(minimum) * (1 - Fraction(1, 10**40))
    assert shown_epsilon <= float(minimum) * (1 + 1e-12) + 1e-15


def test_epsilon_shown_agrees_with_opendp():
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    for rho, delta in (("1/2", "1e-6"), ("2.56", "1e-10"), ("0.07", "1e-10"), ("1e-4", "1e-9")):
        scale = (1 / (2 * float(Fraction(rho)))) ** 0.5
        space = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
        curve = opendp.c.make_zCDP_to_approxDP(opendp.m.make_gaussian(*space, scale=scale)).map(1)
        assert epsilon_from_rho(rho, delta) == pytest.approx(curve.epsilon(float(delta)), rel=1e-9)


@given(rho=st.floats(1e-3, 20), delta=st.floats(1e-12, 1e-2))
def test_epsilon_shown_holds_for_the_gaussian_mechanism(rho, delta):
    """Its exact delta at that epsilon (Balle & Wang 2018, theorem 8) is at most the one stated."""
    epsilon, sigma = epsilon_from_rho(Fraction(rho), Fraction(delta)), (1 / (2 * rho)) ** 0.5

    def below(x: float) -> float:
        return math.erfc(-x / 2**0.5) / 2

    needed = below(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * below(-0.5 / sigma - epsilon * sigma)
    assert needed <= delta * (1 + 1e-9)


@pytest.mark.parametrize("delta", ["0.99", "1e-6", "1e-300"])
@pytest.mark.parametrize("rho", [0, "1e-300", 1, "1e300"])
def test_epsilon_shown_at_the_ends_of_the_scale(rho, delta):
    epsilon = epsilon_from_rho(rho, delta)
    ceiling = Fraction(rho) + 2 * math.isqrt(math.ceil(Fraction(rho) * 700)) + 2
    assert 0 <= epsilon <= float(ceiling) * (1 + 1e-15)
    assert epsilon == 0 or rho != 0


@given(epsilon=st.fractions(Fraction(1, 10**6), 100), delta=deltas)
def test_the_rho_for_an_epsilon_is_the_largest_shown_as_at_most_that(epsilon, delta):
    rho = rho_for_epsilon(epsilon, delta)
    assert epsilon_from_rho(rho, delta) <= epsilon
    assert epsilon_from_rho(rho * (1 + Fraction(1, 2**40)), delta) > epsilon


def test_known_exchange_rates():
    assert float(rho_from_pure(1)) == pytest.approx(0.46211715726000975)
    assert epsilon_from_rho("1/2", "1e-6") == pytest.approx(5.22153444)
    assert float(rho_for_epsilon(1, "1e-6")) == pytest.approx(0.02435597)


@pytest.mark.parametrize("wrong", [0.1, 1.0, float("nan"), float("inf"), True, None, b"1", Decimal("0.1")])
def test_only_exact_numbers_are_numbers(wrong):
    with pytest.raises(LedgerError, match="exact number"):
        exact(wrong, "cost")


@pytest.mark.parametrize(
    "wrong",
    ["nan", "inf", "-inf", "", "one", "1/0", "1e999999999", "1e-999999999", "0x10", "9" * 5000, 10**400],
)
def test_what_is_not_a_sensible_number_is_refused_by_name(wrong):
    with pytest.raises(LedgerError, match="the epsilon"):
        exact(wrong, "epsilon")


@pytest.mark.parametrize("good", ["0.1", " 1/10 ", "1e-1", Fraction(1, 10)])
def test_texts_are_read_exactly(good):
    assert exact(good, "cost") == Fraction(1, 10)


@pytest.mark.parametrize(
    ("compute", "sentence"),
    [
        (lambda: rho_from_pure(0), "epsilon must be above zero"),
        (lambda: rho_from_pure(-1), "epsilon must be above zero"),
        (lambda: sigma_squared_for(0, 1), "rho must be above zero"),
        (lambda: sigma_squared_for(1, 0), "squared sensitivity must be above zero"),
        (lambda: epsilon_from_rho(-1, "1e-6"), "rho must not be below zero"),
        (lambda: epsilon_from_rho(1, 0), "delta must lie strictly between"),
        (lambda: epsilon_from_rho(1, 1), "delta must lie strictly between"),
        (lambda: rho_for_epsilon(0, "1e-6"), "epsilon must be above zero"),
        (lambda: convert(1, "euro", "rho"), "'euro'"),
        (lambda: convert(1, "rho", "epsilon"), "kept in epsilon"),
        (lambda: Plan("euro", ()), "'euro'"),
        (lambda: Plan("rho", (PlannedQuestion("count", Fraction(0)),)), "cost of count"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(compute, sentence):
    with pytest.raises(LedgerError, match=sentence):
        compute()


def test_costs_change_currency_one_way():
    assert convert("1/3", "rho", "rho") == convert("1/3", "epsilon", "epsilon") == Fraction(1, 3)
    assert convert(1, "epsilon", "rho") == rho_from_pure(1)


@given(value=st.fractions())
def test_a_float_above_is_the_next_one(value):
    above = float_above(value)
    assert math.nextafter(above, -math.inf) < value <= above


def test_numbers_for_people():
    assert shown(Fraction(1, 4)) == "0.25"
    assert shown(Fraction(1, 3)) == "~0.333333"


def test_a_delta_above_one_in_patients_is_warned_of():
    assert warn_of_delta("1e-6", 1000) is None
    assert warn_of_delta("1/1000", 1000) is None
    assert "1/patients = 0.0005" in warn_of_delta("1/1000", 2000)
    assert warn_of_delta("1/1000", 0) is None


TREE = Plan(
    "rho",
    (
        PlannedQuestion("root", Fraction(3, 10), "20 attributes"),
        PlannedQuestion("level", Fraction(1, 10), "5 attributes"),
        PlannedQuestion("level", Fraction(1, 10), "5 attributes"),
    ),
)


@pytest.mark.parametrize(("budget", "fits"), [("0.5", True), ("0.4999999999", False), (None, True)])
def test_a_plan_is_charged_to_the_last_question_exactly_where_its_total_fits(budget, fits):
    ledger = Ledger(budget=budget)
    assert TREE.total == Fraction(1, 2)
    assert has_room(ledger, TREE.total) is fits
    for number, question in enumerate(TREE.questions):
        with nullcontext() if fits or number < 2 else pytest.raises(BudgetError):
            ledger.charge(
                f"q{number}",
                "d",
                study="s",
                kind=question.kind,
                mode="private",
                cost=question.cost,
                seal=lambda head: b"",
            )
    assert ledger.spent() == (TREE.total if fits else Fraction(2, 5))


def test_a_plan_reads_as_a_table():
    plan = Plan("rho", (*TREE.questions, PlannedQuestion("evaluate", None, "exact")))
    assert plan.render().splitlines() == [
        "root      0.3        20 attributes",
        "level     2 x 0.1    5 attributes",
        "evaluate  unlimited  exact",
        "total     rho 0.5    and 1 unlimited",
    ]
    assert Plan("epsilon", (PlannedQuestion("flip", Fraction(1)),)).rows() == [
        ("flip", "1", ""),
        ("total", "epsilon 1", ""),
    ]


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_an_epsilon_is_never_shown_smaller_than_it_is(epsilon: float, digits: int) -> None:
    said = float(say_epsilon(epsilon, digits))
    assert epsilon <= said <= epsilon * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_an_epsilon_that_needs_no_rounding_is_shown_as_it_is() -> None:
    assert [say_epsilon(e) for e in (0.1, 1.0, 1.004, 50.0, math.inf)] == ["0.1", "1", "1.01", "50", "inf"]
    assert say_epsilon(0.0) == "0"
    assert say_epsilon(epsilon_from_rho(rho_for_epsilon("0.7", "1e-6"), "1e-6")) == "0.7"


@given(st.fractions(min_value=Fraction(1, 1000), max_value=150, max_denominator=1000))
def test_the_pure_epsilon_that_was_charged_is_shown_again(epsilon):
    back = pure_from_rho(rho_from_pure(epsilon))
    assert abs(back - epsilon) <= epsilon / 10**12
