"""Where rules are looked for, and how formulas vary in a search (docs/methods.md, section 6.4).

Claim. Protected: a patient whose rules are shared, from whoever knows other patients' rules. The limits come from
public clinical ranges (or are stated by hand), never from other patients' values, so that a patient's rules depend on
that patient alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random

import numpy as np

from concilium.errors import StudyError, nearest
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.series import Series
from concilium.temporal import formula as stl
from concilium.temporal.formula import Formula
from concilium.temporal.windows import Window


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """`limits` are the numbers that each variable may be compared with, rising; a window has so many `steps`.

    `widths` says for each variable what counts as one unit of robustness (without it: the span of its limits), so that
    degrees and millimetres of mercury can be weighed against each other.
    """

    limits: Mapping[str, tuple[float, ...]]
    steps: int
    widths: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise StudyError("a search needs at least one variable with limits")
        limits = {name: _read_limits(name, numbers) for name, numbers in self.limits.items()}
        object.__setattr__(self, "limits", limits)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise StudyError(f"a window has a whole number of steps, at least one step; got {self.steps!r}")
        odd = [name for name in self.widths or {} if name not in limits]
        if odd:
            raise StudyError(f"there is a width of {odd[0]!r}, but no limits{nearest(odd[0], limits)}")
        widths = {name: self._find_width(name) for name in self.limits}
        object.__setattr__(self, "widths", widths)

    @classmethod
    def from_ranges(cls, names: Iterable[str], steps: int) -> SearchSpace:
        """Limits at round numbers in and around the reference range of each variable."""
        chosen, ranges = list(names), CLINICAL_RANGES
        unknown = [name for name in chosen if name not in ranges]
        if unknown:
            raise StudyError(
                f"there is no clinical range of {unknown[0]!r}{nearest(unknown[0], ranges)}; state its limits, as in "
                f"SearchSpace({{{unknown[0]!r}: (1.0, 2.0)}}, steps={steps})"
            )
        widths = {name: ranges[name].high - ranges[name].low for name in chosen}
        return cls({name: place_limits(ranges[name]) for name in chosen}, steps, widths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.limits)

    @cached_property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        """The whole window, its halves, and its quarters at the end."""
        last = self.steps - 1
        middle, late = self.steps // 2, self.steps - max(1, self.steps // 4)
        every = {(0, last), (0, max(0, middle - 1)), (middle, last), (late, last), (last, last)}
        return tuple(sorted(every))

    def scale(self, series: Series) -> Series:
        """The variables of the space in units of their widths."""
        assert self.widths is not None
        chosen = series.choose(self.names)
        return chosen.with_stays(
            {name: values / np.float32(self.widths[name]) for name, values in chosen.stays.items()}
        )

    @cached_property
    def scaled_limits(self) -> Mapping[str, tuple[float, ...]]:
        """The limits in units of their widths, as they are compared with what `scale` gives."""
        assert self.widths is not None
        return {
            name: tuple((np.array(numbers, np.float32) / np.float32(self.widths[name])).tolist())
            for name, numbers in self.limits.items()
        }

    def unscale_formula(self, formula: Formula) -> Formula:
        """A formula about the scaled variables, about the variables as they are."""

        def unscale(part: Formula) -> Formula:
            if not isinstance(part, stl.Limit):
                return part
            assert isinstance(part.variable, str)
            assert isinstance(part.number, float)
            place = self.scaled_limits[part.variable].index(part.number)
            return stl.Limit(part.variable, part.relation, self.limits[part.variable][place])

        return stl.rebuild(formula, unscale)

    def _find_width(self, name: str) -> float:
        numbers = self.limits[name]
        width = (self.widths or {}).get(name, numbers[-1] - numbers[0] or 1.0)
        if not (math.isfinite(width) and width > 0):
            raise StudyError(f"the width of {name!r} must be a number above zero; got {width!r}")
        return float(width)


def _read_limits(name: str, numbers: Iterable[float]) -> tuple[float, ...]:
    try:
        limits = tuple(float(number) for number in numbers)
    except (TypeError, ValueError):
        limits = ()
    if not limits or not all(abs(number) <= stl.LARGEST_NUMBER for number in limits):
        raise StudyError(
            f"the limits of {name!r} must be finite numbers, at least one, that fit 32 bits; got {numbers!r}"
        )
    if any(np.float32(second) <= np.float32(first) for first, second in pairwise(limits)):
        raise StudyError(f"the limits of {name!r} must rise, as numbers of 32 bits; got {numbers!r}")
    return limits


LARGEST = 9
"""Operators and limits of one formula; more than that nobody checks at a bedside."""
RELATIONS = (">=", "<")
TEMPORAL = (stl.Always, stl.Eventually, stl.Until)


class Breeder:
    """Draws from a space, in scaled units, with a generator of its own.

    There are two types of parts. A *state* says something of one moment (limits, joined by and and or). A *course*
    says something of a window (G, F and U of states, joined by and, or and ->). A part is only ever exchanged for
    one of its type, so that every formula can be read aloud. Limits are compared with >= and <, which are each
    other's opposite.
    """

    def __init__(self, space: SearchSpace, random: Random) -> None:
        self._names, self._limits, self._intervals = space.names, space.scaled_limits, space.intervals
        self._random = random

    def draw(self) -> Formula:
        """A new formula, mostly small."""
        one = self._draw_course()
        if self._random.random() < 0.75:
            return one
        return self._join(one, self._draw_course())

    def cross(self, one: Formula, other: Formula) -> Formula:
        """One formula with a part of it exchanged for a part of another, of the same type."""
        parts, others = list(one.walk()), list(other.walk())
        place = self._random.randrange(len(parts))
        fitting = [part for part in others if _is_state(part) == _is_state(parts[place])]
        if not fitting:
            return self.mutate(one)
        return self._keep_small(stl.replace_part(one, place, self._random.choice(fitting)), one)

    def mutate(self, formula: Formula) -> Formula:
        """The formula with one part changed a little, grown or cut."""
        parts = list(formula.walk())
        place = self._random.randrange(len(parts))
        return self._keep_small(stl.replace_part(formula, place, self._change(parts[place])), formula)

    def vary(self, formula: Formula) -> Iterator[Formula]:
        """All formulas that differ from this one in one number or one interval."""
        for place, part in enumerate(formula.walk()):
            match part:
                case stl.Limit(variable, relation, number):
                    assert isinstance(variable, str)
                    for other in self._limits[variable]:
                        if other != number:
                            yield stl.replace_part(formula, place, stl.Limit(variable, relation, other))
                case stl.Always() | stl.Eventually() | stl.Until():
                    for interval in self._intervals:
                        if part.window is None or interval != part.window[:2]:
                            yield stl.replace_part(formula, place, _with_interval(part, interval))

    def _draw_limit(self) -> Formula:
        name = self._random.choice(self._names)
        return stl.Limit(name, self._random.choice(RELATIONS), self._random.choice(self._limits[name]))

    def _draw_state(self) -> Formula:
        if self._random.random() < 0.6:
            return self._draw_limit()
        join = self._random.choice((stl.Conjunction, stl.Disjunction))
        return join((self._draw_limit(), self._draw_limit()))

    def _draw_course(self) -> Formula:
        interval = self._random.choice(self._intervals)
        kind = self._random.random()
        if kind < 0.9:
            return _make_course(stl.Always if kind < 0.45 else stl.Eventually, interval, self._draw_state())
        return stl.Until(self._draw_limit(), interval, self._draw_limit())

    def _join(self, one: Formula, other: Formula) -> Formula:
        kind = self._random.random()
        if kind < 0.45:
            return stl.Conjunction((one, other))
        return stl.Disjunction((one, other)) if kind < 0.9 else stl.Implication(one, other)

    def _change(self, part: Formula) -> Formula:
        dice = self._random.random()
        match part:
            case stl.Limit(variable, relation, number):
                assert isinstance(variable, str)
                assert isinstance(number, float)
                if dice < 0.4:
                    numbers = self._limits[variable]
                    place = numbers.index(number) + self._random.choice((-2, -1, 1, 2))
                    return stl.Limit(variable, relation, numbers[min(max(place, 0), len(numbers) - 1)])
                if dice < 0.55:
                    return stl.Limit(variable, RELATIONS[relation == ">="], number)
                if dice < 0.8:
                    return self._draw_limit()
                return self._random.choice((stl.Conjunction, stl.Disjunction))((part, self._draw_limit()))
            case stl.Always(window, inner) | stl.Eventually(window, inner):
                if dice < 0.4:
                    return _with_interval(part, self._random.choice(self._intervals))
                if dice < 0.6:
                    return _make_course(
                        stl.Eventually if isinstance(part, stl.Always) else stl.Always, window, inner
                    )
                return self._join(part, self._draw_course()) if dice < 0.85 else self._draw_course()
            case stl.Until(left, window, right):
                if dice < 0.5:
                    return _with_interval(part, self._random.choice(self._intervals))
                return stl.Until(right, window, left) if dice < 0.65 else self._draw_course()
            case stl.Conjunction(parts) | stl.Disjunction(parts):
                if dice < 0.5:
                    return self._random.choice(parts)
                return (stl.Disjunction if isinstance(part, stl.Conjunction) else stl.Conjunction)(parts)
            case stl.Implication(premise, result):
                return premise if dice < 0.3 else result if dice < 0.6 else stl.Implication(result, premise)
        return part

    def _keep_small(self, formula: Formula, before: Formula) -> Formula:
        return formula if formula.size <= LARGEST else before


def _is_state(part: Formula) -> bool:
    """Whether it says something of one moment, and nothing of a window."""
    return not isinstance(part, TEMPORAL) and all(_is_state(child) for child in part.children)


def _make_course(
    kind: type[stl.Always] | type[stl.Eventually], window: Window | tuple[int, int] | None, state: Formula
) -> Formula:
    """G or F of a state; of one step always G, since both say the same."""
    if window is not None and window[0] == window[1]:
        kind = stl.Always
    return kind(window, state)


def _with_interval(part: Formula, interval: tuple[int, int]) -> Formula:
    match part:
        case stl.Always(_, inner) | stl.Eventually(_, inner):
            return _make_course(type(part), interval, inner)
        case stl.Until(left, _, right):
            return stl.Until(left, interval, right)
    return part
