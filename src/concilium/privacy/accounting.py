"""What a private release costs, in exact numbers: zCDP and pure differential privacy (docs/methods.md, section 0.5).

Claim. A release that is rho-zCDP bounds, for every patient of a site, what anyone who sees all answers can
learn from that patient having been there; costs add up, also when each question depends on the answers
before it, so `sum of rho <= budget` is a valid stopping rule. Assumption: the mechanism draws the noise it
says, and one patient changes the statistic by no more than the stated sensitivity.

Every number that decides something is a Fraction, and every rounding goes against us: costs up, what a target
allows down, the epsilon that is shown up. Floats are refused, because 0.1 + 0.2 > 0.3.

M. Bun, T. Steinke, Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds (2016).
C. Canonne, G. Kamath, T. Steinke, The Discrete Gaussian for Differential Privacy (2020).
T. Steinke, Tight RDP & zCDP Bounds from Pure DP (2022), for `rho_from_pure`.
J. Whitehouse, A. Ramdas, R. Rogers, Z. S. Wu, Fully-Adaptive Composition in Differential Privacy (2023), for
the stopping rule.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from decimal import InvalidOperation as NotANumber
from fractions import Fraction
from functools import lru_cache

from concilium.errors import LedgerError

Number = Fraction | int | str
CURRENCIES = ("epsilon", "rho")

SIGNIFICANT_BITS = 64
"""How many leading bits a rounded rational keeps: an error below one part in 2^63."""

_LARGEST = 10**300
_FINEST = _LARGEST**4
_DIGITS = 60


def exact(number: Number, name: str) -> Fraction:
    """The number as an exact rational; whatever is not one (a float, NaN, text) is refused by name."""
    if isinstance(number, Fraction | int) and not isinstance(number, bool):
        value = number if isinstance(number, Fraction) else Fraction(number)
        if abs(value.numerator) <= _LARGEST * value.denominator and value.denominator <= _FINEST:
            return value
        raise LedgerError(f"the {name} is too large, or has too many digits, to be meant")
    if isinstance(number, str):
        return _exact_text(number, name)
    raise LedgerError(
        f"the {name} must be an exact number (an int, a Fraction, or text such as '0.1' or '1/3'), because "
        f"budgets are never rounded; got {number!r}, a {type(number).__name__}"
    )


def _exact_text(text: str, name: str) -> Fraction:
    try:
        if "/" in text:
            return exact(Fraction(text), name)
        decimal = Decimal(text)
        # An exponent is looked at before it is written out: '1e999999999' would fill the memory.
        if decimal.is_finite() and abs(decimal.adjusted()) < 1000:
            return exact(Fraction(decimal), name)
    except (ValueError, ZeroDivisionError, NotANumber):
        pass
    raise LedgerError(f"the {name} must be a finite number such as '0.1' or '1/3'; got {text!r}")


def exact_positive(number: Number, name: str) -> Fraction:
    """As `exact`, and above zero."""
    value = exact(number, name)
    if value <= 0:
        raise LedgerError(f"the {name} must be above zero; got {value}")
    return value


def exact_delta(delta: Number) -> Fraction:
    """As `exact`, and strictly between zero and one."""
    value = exact(delta, "delta")
    if not 0 < value < 1:
        raise LedgerError(f"delta must lie strictly between 0 and 1; got {value}")
    return value


def _round_up(value: Fraction, bits: int = SIGNIFICANT_BITS) -> Fraction:
    """The least number with that many leading bits that is not below a positive value."""
    shift = bits - value.numerator.bit_length() + value.denominator.bit_length()
    scale = Fraction(2) ** shift
    return Fraction(math.ceil(value * scale)) / scale


def rho_from_pure(epsilon: Number) -> Fraction:
    """What an epsilon-DP release costs in rho: epsilon * tanh(epsilon / 2), rounded up by at most 2^-60 of it.

    Randomised response is the worst epsilon-DP release, and its Rényi divergence of order a is the mean of
    epsilon * tanh(s * epsilon) over s from 1/2 to a - 1/2. tanh is concave there, so the mean is at most the
    value in the middle, epsilon * tanh(a * epsilon / 2) <= a * epsilon * tanh(epsilon / 2): that is rho-zCDP.
    At a = 1 it is an equality, so no smaller rho would do. (Bun & Steinke's epsilon^2 / 2 is a little more.)
    """
    e = exact_positive(epsilon, "epsilon")
    if e < Fraction(1, 2**32):
        return _round_up(e * e / 2)  # tanh x <= x, and within one part in 2^67 here
    if e > 100:
        return e  # tanh x <= 1, and within one part in 2^140 here
    near = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN, Emax=MAX_EMAX, Emin=MIN_EMIN)
    above = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN)
    decimal = above.divide(Decimal(e.numerator), Decimal(e.denominator))
    # Decimal's exp is correctly rounded, so one step down is below the true e^-epsilon, and tanh above.
    least = Fraction(near.next_minus(near.exp(-decimal)))
    return _round_up(e * (1 - least) / (1 + least))


def pure_from_rho(rho: Number) -> Fraction:
    """The pure epsilon of a release that was charged this rho, which `rho_from_pure` made of it: for showing it.

    The way back exists for one release whose mechanism is pure, and for nothing else: a sum of such charges is no
    charge of the sum.
    """
    charged = exact_positive(rho, "rho")
    if charged > 100:
        return charged
    low, high = 0.0, float(charged) + 2.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(middle / 2) < charged else (low, middle)
    for digits in range(1, 15):  # as somebody wrote it
        written = Fraction(f"{high:.{digits}g}")
        if rho_from_pure(written) == charged:
            return written
    return Fraction(math.nextafter(high, math.inf))


def sigma_squared_for(rho: Number, sensitivity_squared: Number) -> Fraction:
    """The variance at which (discrete) Gaussian noise costs rho or a hair less: D^2 / (2 rho), rounded up to 64 leading
    bits (Canonne, Kamath & Steinke)."""
    return _round_up(
        exact_positive(sensitivity_squared, "squared sensitivity") / (2 * exact_positive(rho, "rho"))
    )


def epsilon_from_rho(rho: Number, delta: Number) -> float:
    """The least epsilon we can show for rho-zCDP at this delta, rounded up; shown, never used as the filter.

    The minimum over a > 1 of rho*a + ln(1/(a*delta))/(a-1) + ln(1-1/a) (Canonne, Kamath & Steinke,
    proposition 12). Every a gives a valid bound, so a minimiser that is a little off costs tightness, never truth.
    """
    r, d = exact(rho, "rho"), exact_delta(delta)
    if r < 0:
        raise LedgerError(f"rho must not be below zero; got {r}")
    if r == 0:
        return 0.0
    beyond_one = _best_order(r, d)
    order = 1 + beyond_one
    bound = r * order + _log_above(1 / (order * d)) / beyond_one + _log_above(beyond_one / order)
    return max(0.0, float_above(bound))


def _best_order(rho: Fraction, delta: Fraction) -> Fraction:
    """a - 1 where the bound's derivative, rho + ln(a*delta)/(a-1)^2, is zero: once, for a in (1, 1/delta)."""
    log_rho, log_delta = _roughly_log(rho), _roughly_log(delta)
    # On the scale of ln(a-1), so that orders near 1 and orders near 1/delta are found equally well. Orders
    # below 1 + e^-46 would gain less than one part in 10^19.
    low, high = -46.0, max(-46.0, -log_delta)
    for _ in range(100):
        middle = (low + high) / 2
        log_ratio = -log_delta - (max(middle, 0.0) + math.log1p(math.exp(-abs(middle))))
        if log_ratio <= 0 or 2 * middle + log_rho > math.log(log_ratio):
            high = middle
        else:
            low = middle
    return Fraction(Decimal(low).exp(Context(prec=20, Emax=MAX_EMAX, Emin=MIN_EMIN)))


def rho_for_epsilon(epsilon: Number, delta: Number) -> Fraction:
    """The largest rho we know of that is still shown as at most this epsilon, to about one part in 2^50."""
    return _rho_for_epsilon(exact_positive(epsilon, "epsilon"), exact_delta(delta))


@lru_cache(maxsize=64)
def _rho_for_epsilon(e: Fraction, d: Fraction) -> Fraction:

    def allowed(rho: Fraction) -> bool:
        return epsilon_from_rho(rho, d) <= e

    low = _leading_bits(e * e / (4 * (math.ceil(-_roughly_log(d)) + e)))
    while not allowed(low):
        low /= 2
    while allowed(2 * low):
        low *= 2
    step = low / 2
    while step * 2**50 > low:
        if allowed(low + step):
            low += step
        step /= 2
    return low


def _leading_bits(value: Fraction, bits: int = 53) -> Fraction:
    scale = Fraction(2) ** (bits - value.numerator.bit_length() + value.denominator.bit_length())
    return Fraction(math.floor(value * scale)) / scale


def _log_above(value: Fraction) -> Fraction:
    """An upper bound on ln(value), good to some 60 digits: Decimal's ln is correctly rounded."""
    up = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN)
    near = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN, Emax=MAX_EMAX, Emin=MIN_EMIN)
    log = near.ln(up.divide(Decimal(value.numerator), Decimal(value.denominator)))
    return Fraction(near.next_plus(log)) if log else Fraction(0)


def _roughly_log(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def float_above(value: Fraction) -> float:
    """The least float that is not below the value: for showing a cost."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)


def say_epsilon(epsilon: float, digits: int = 3) -> str:
    """An epsilon as it is shown, with so many digits at most: rounded up, as everything that is spent."""
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(epsilon))
    return f"{float(up):.{digits}g}"


def convert(cost: Number, currency: str, into: str) -> Fraction:
    """A cost stated in one currency, in another: pure epsilon enters rho, the way back does not exist."""
    value = exact(cost, f"cost in {currency}")
    for name in (currency, into):
        if name not in CURRENCIES:
            raise LedgerError(f"a currency is 'epsilon' or 'rho'; got {name!r}")
    if currency == into or value == 0:
        return value
    if into == "rho":
        return rho_from_pure(value)
    raise LedgerError(
        "this question costs rho (Gaussian noise), but the ledger is kept in epsilon, to which only pure "
        "mechanisms can be charged; ask for a pure mechanism, or keep a ledger in rho"
    )


def warn_of_delta(delta: Number, patients: int) -> str | None:
    """A sentence for the hospital where delta is above 1/patients, else None.

    Such a delta would allow a release that publishes one patient's record outright now and then. The sentence
    depends on the number of patients, so it is for the site's own screen and never part of an answer.
    """
    d = exact_delta(delta)
    if patients < 1 or d * patients <= 1:
        return None
    return (
        f"delta = {float(d):.3g} is above 1/patients = {1 / patients:.3g}: it would allow "
        f"publishing a whole record by chance; choose at most {0.1 / patients:.1e}"
    )


@dataclass(frozen=True)
class PlannedQuestion:
    """One question a study will ask; a cost of None is unlimited (exact, masked). What is `of_no_patient` costs 0."""

    kind: str
    cost: Fraction | None
    note: str = ""
    of_no_patient: bool = False


@dataclass(frozen=True)
class Plan:
    """All questions a study will ask, in one currency, known before the first is asked."""

    currency: str
    questions: tuple[PlannedQuestion, ...]

    def __post_init__(self) -> None:
        if self.currency not in CURRENCIES:
            raise LedgerError(f"a currency is 'epsilon' or 'rho'; got {self.currency!r}")
        for question in self.questions:
            if question.cost is not None and not question.of_no_patient:
                exact_positive(question.cost, f"cost of {question.kind}")

    @property
    def total(self) -> Fraction:
        """What the private questions cost together; exact and masked ones are counted by `unlimited`."""
        return sum((q.cost for q in self.questions if q.cost is not None), Fraction(0))

    @property
    def unlimited(self) -> int:
        """How many questions release exact or masked numbers, which no budget bounds."""
        return sum(q.cost is None for q in self.questions)

    def rows(self) -> list[tuple[str, str, str]]:
        """Kind, cost and note of each question, those that repeat in one row; and the total."""
        rows = []
        for question, again in itertools.groupby(self.questions):
            cost = "unlimited" if question.cost is None else shown(question.cost)
            times = len(list(again))
            rows.append((question.kind, cost if times == 1 else f"{times} x {cost}", question.note))
        note = f"and {self.unlimited} unlimited" if self.unlimited else ""
        rows.append(("total", f"{self.currency} {shown(self.total)}", note))
        return rows

    def render(self) -> str:
        """The rows as text in three columns."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)


def shown(number: Fraction) -> str:
    """An exact number as people read it, six digits at most; one that had to be cut begins with '~'."""
    text = f"{float(number):.6g}"
    return text if Fraction(text) == number else f"~{text}"
