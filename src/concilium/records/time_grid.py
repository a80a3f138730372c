"""Steps of a regular grid in time, and the cell that a moment falls in.

Steps are exact fractions of an hour. Where times are decimal numbers, a time up to a millionth of a step before a cell
belongs to that cell already: 0.1 h is not one binary number.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError

HOURS = {
    "seconds": Fraction(1, 3600),
    "minutes": Fraction(1, 60),
    "hours": Fraction(1),
    "days": Fraction(24),
}
MICROSECOND = Fraction(1, 3_600_000_000)
NEAR = 1e-6  # of a step

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")
_LETTERS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def read_step(step: str) -> float:
    """The hours of a step such as "15min", "1h" or "1d"."""
    return float(read_duration(step, "step"))


def read_duration(text: object, name: str) -> Fraction:
    """The exact hours of a positive time such as "15min", "1h" or "1d"; `name` is what the error calls it."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    hours = Fraction(match[1]) * HOURS[_LETTERS[match[2]]] if match else Fraction(0)
    if not 0 < hours < 10**9:
        raise RecordsError(f"{name} {text!r} is no time; write 15min, 1h or 1d")
    return hours


def count_steps(limit: str | int, step: str, name: str) -> int:
    """How many whole steps fit in a time such as "6h"; a whole number is a number of steps already."""
    if isinstance(limit, int) and not isinstance(limit, bool):
        if limit < 0:
            raise RecordsError(f"{name} {limit} is negative; write a number of steps, or a time such as 6h")
        return limit
    return int(read_duration(limit, name) / read_duration(step, "step"))


def find_cells(times: NDArray[np.float64], unit: Fraction, step: str) -> NDArray[np.float64]:
    """The number of the cell that each time falls in, cell 0 starting at time 0; NaN where the time is.

    `unit` is the exact hours of one unit of the times.
    """
    ratio = unit / read_duration(step, "step")
    with np.errstate(over="ignore"):  # what is that far away is refused, or left out
        return np.floor(times * ratio.numerator / ratio.denominator + NEAR)
