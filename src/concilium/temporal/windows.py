"""The intervals of temporal operators: from one step to another, or from one time to another.

A bound is a whole number of steps, or a `Duration` that becomes steps when a series with its own step is there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, NamedTuple

MINUTES: Final = {"min": 1, "h": 60, "d": 24 * 60}
MOST_STEPS: Final = 1_000_000
"""No bound is longer than this, in steps or in hours: no stay is."""


class Hole:
    """What is left open in a template; there is one object of this kind, `HOLE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "HOLE"

    def __str__(self) -> str:
        return "?"

    def __reduce__(self) -> str:
        return "HOLE"


HOLE: Final = Hole()


class Duration(NamedTuple):
    """A time as a bound, longer than nothing (zero is 0 steps)."""

    minutes: Fraction

    def __str__(self) -> str:
        if (self.minutes / 60).denominator == 1:
            return f"{self.minutes / 60}h"
        return f"{_decimal(self.minutes)}min"

    def steps(self, step_hours: float) -> int | None:
        """The time in steps of a grid, or None where it is no whole number of them."""
        step = Fraction(step_hours * 60).limit_denominator(1_000_000)
        count = self.minutes / step if step else Fraction(1, 2)
        return int(count) if count.denominator == 1 else None


Bound = int | Duration | Hole


class Window(NamedTuple):
    """An interval, both ends included; a bound may be a hole, and so may the whole (then both are)."""

    low: Bound
    high: Bound
    whole_hole: bool = False

    def __str__(self) -> str:
        return "[?]" if self.whole_hole else f"[{self.low},{self.high}]"

    def steps(self, step_hours: float) -> tuple[int, int]:
        """Both bounds in steps of a grid; ValueError where one is no whole number of them."""
        counted = []
        for bound in (self.low, self.high):
            steps = bound.steps(step_hours) if isinstance(bound, Duration) else bound
            if not isinstance(steps, int):
                raise ValueError(f"{bound} is no whole number of steps")
            counted.append(steps)
        return counted[0], counted[1]

    @property
    def holes(self) -> int:
        """How many holes are in it."""
        return 1 if self.whole_hole else (self.low is HOLE) + (self.high is HOLE)


ANY_WINDOW: Final = Window(HOLE, HOLE, True)


def read_bound(text: str) -> Bound:
    """A bound as written: `6`, `6h`, `90min`, `1.5d` or `?`; ValueError says what is wrong with any other."""
    text = text.strip()
    if text == "?":
        return HOLE
    for unit, minutes in MINUTES.items():
        if text.endswith(unit):
            return check_bound(Duration(Fraction(text.removesuffix(unit).strip()) * minutes))
    number = Fraction(text)
    if number.denominator != 1:
        raise ValueError(f"{text} is no whole number of steps; a time has a unit, such as {text}h")
    return check_bound(int(number))


def check_bound(bound: Any) -> Bound:
    """The bound, zero as 0 steps; ValueError where it is none."""
    if isinstance(bound, Hole):
        return bound
    checked: Bound
    if isinstance(bound, Duration):
        checked = Duration(Fraction(bound.minutes))
        size = checked.minutes / 60
    elif isinstance(bound, int) and not isinstance(bound, bool):
        checked, size = bound, Fraction(bound)
    else:
        raise ValueError(f"{bound!r} is no bound; it is a whole number of steps, or a time such as 6h")
    if size < 0:
        raise ValueError(f"{bound} lies in the past; an interval begins at 0 or later")
    if size > MOST_STEPS:
        raise ValueError(f"{bound} is longer than any stay")
    return checked if size else 0


def check_window(low: Any, high: Any) -> Window:
    """The interval between two bounds; ValueError where they are none, reversed or of different units."""
    window = Window(check_bound(low), check_bound(high))
    if isinstance(window.low, Hole) or isinstance(window.high, Hole):
        return window
    if not _same_unit(window.low, window.high):
        raise ValueError(f"{window} mixes steps and time; write both bounds in the same way")
    if _length(window.low) > _length(window.high):
        raise ValueError(f"{window} is reversed; the smaller bound comes first")
    return window


def _same_unit(*bounds: Bound) -> bool:
    """Whether bounds can be compared and added: all in steps or all in time; 0 is both."""
    return len({type(bound) for bound in bounds if bound != 0}) < 2


def add_windows(outer: Window | None, inner: Window | None) -> Window | None:
    """The interval of `G[a,b] G[c,d]` as one, [a+c,b+d]; ValueError where it cannot be written as one.

    Where every point of the outer interval sees every point of the inner one, the points seen are all of the sum.
    That holds for two intervals in steps, for two in time, and for the rest of the stay twice.
    """
    if outer is None and inner is None:
        return None
    if outer is None or inner is None or outer.holes or inner.holes or not _same_unit(*outer[:2], *inner[:2]):
        raise ValueError("these intervals cannot be added")
    return check_window(_add(outer.low, inner.low), _add(outer.high, inner.high))


def _add(one: Bound, other: Bound) -> Bound:
    if isinstance(one, Duration) or isinstance(other, Duration):
        return Duration(_length(one) + _length(other))
    assert isinstance(one, int)
    assert isinstance(other, int)
    return one + other


def _length(bound: Bound) -> Fraction:
    assert not isinstance(bound, Hole)
    return bound.minutes if isinstance(bound, Duration) else Fraction(bound)


def _decimal(number: Fraction) -> str:
    """A decimal fraction exactly; another one as it would be computed with."""
    whole, shift = number, 0
    while whole.denominator != 1 and shift < 30:
        whole, shift = whole * 10, shift + 1
    if whole.denominator != 1:
        return repr(float(number))
    digits = str(whole.numerator).rjust(shift + 1, "0")
    return f"{digits[:-shift]}.{digits[-shift:]}" if shift else digits
