"""The exponential once more, from its series: what the package computes otherwise is held against it."""

from fractions import Fraction


def bound_exponential(x: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds on e^x from its Taylor series and the geometric bound on what is left of it."""
    term = total = Fraction(1)
    k = 0
    while term > Fraction(1, 2**300) or k < 2 * x:
        k += 1
        term = term * x / k
        total += term
    return total, total + term
