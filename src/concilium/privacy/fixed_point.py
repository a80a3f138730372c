"""The ring in which masks are added, integers modulo 2^64, and what rounding to its grid does to sensitivities
(docs/methods.md, section 0.8).

A sum over sites, read back as a signed number, is the true sum as long as its size stays below HALF_RING: what one
site may enter is bounded by the study (manifest.py), never by the data, since under `private` a refusal that depends
on patients would itself be a release. A question whose public bounds do not fit is refused before it is computed;
noise is never cut off (protocol/releases/private.py).
"""

from __future__ import annotations

import math
from fractions import Fraction

HALF_RING = 2**63


def widen_sensitivity(squared: Fraction, numbers: int, bits: int) -> Fraction:
    """The squared L2 sensitivity, in steps of the grid, of `numbers` rounded sums that had `squared` before.

    Two sums D apart are, once rounded to multiples of 2^-bits, at most D * 2^bits + sqrt(numbers) steps apart; the
    square root in (a + b)^2 = a^2 + b^2 + 2ab is rounded up. Noise is then drawn on integers, in steps of the grid.
    """
    steps = squared * (1 << 2 * bits)
    scaled = math.ceil(4 * steps * numbers * 2**64)
    root = math.isqrt(scaled)
    return steps + numbers + Fraction(root if root * root == scaled else root + 1, 2**32)
