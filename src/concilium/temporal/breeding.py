"""How formulas vary in a search: drawn, crossed and mutated as typed syntax trees (docs/methods.md, section 6.4).

Two types of parts: a *state* says something of one moment (limits, joined by and and or), a *course* something of a
window (G, F and U of states, joined by and, or and ->). A part is only ever exchanged for one of its type, so that
every formula can be read aloud. Limits are compared with >= and <, which are each other's opposite.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from concilium.temporal.formula import (
    Always,
    Conjunction,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Limit,
    Until,
)
from concilium.temporal.rebuilding import replace_part
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.windows import Window

LARGEST = 9
"""Operators and limits of one formula; more than that nobody checks at a bedside."""
RELATIONS = (">=", "<")
TEMPORAL = (Always, Eventually, Until)


class Breeder:
    """Draws from a space, in scaled units, with a generator of its own."""

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
        fitting = [part for part in others if is_state(part) == is_state(parts[place])]
        if not fitting:
            return self.mutate(one)
        return self._keep_small(replace_part(one, place, self._random.choice(fitting)), one)

    def mutate(self, formula: Formula) -> Formula:
        """The formula with one part changed a little, grown or cut."""
        parts = list(formula.walk())
        place = self._random.randrange(len(parts))
        return self._keep_small(replace_part(formula, place, self._change(parts[place])), formula)

    def vary(self, formula: Formula) -> Iterator[Formula]:
        """All formulas that differ from this one in one number or one interval."""
        for place, part in enumerate(formula.walk()):
            match part:
                case Limit(variable, relation, number):
                    assert isinstance(variable, str)
                    for other in self._limits[variable]:
                        if other != number:
                            yield replace_part(formula, place, Limit(variable, relation, other))
                case Always() | Eventually() | Until():
                    for interval in self._intervals:
                        if part.window is None or interval != part.window[:2]:
                            yield replace_part(formula, place, _with_interval(part, interval))

    def _draw_limit(self) -> Formula:
        name = self._random.choice(self._names)
        return Limit(name, self._random.choice(RELATIONS), self._random.choice(self._limits[name]))

    def _draw_state(self) -> Formula:
        if self._random.random() < 0.6:
            return self._draw_limit()
        join = self._random.choice((Conjunction, Disjunction))
        return join((self._draw_limit(), self._draw_limit()))

    def _draw_course(self) -> Formula:
        interval = self._random.choice(self._intervals)
        kind = self._random.random()
        if kind < 0.9:
            return make_course(Always if kind < 0.45 else Eventually, interval, self._draw_state())
        return Until(self._draw_limit(), interval, self._draw_limit())

    def _join(self, one: Formula, other: Formula) -> Formula:
        kind = self._random.random()
        if kind < 0.45:
            return Conjunction((one, other))
        return Disjunction((one, other)) if kind < 0.9 else Implication(one, other)

    def _change(self, part: Formula) -> Formula:
        dice = self._random.random()
        match part:
            case Limit(variable, relation, number):
                assert isinstance(variable, str)
                assert isinstance(number, float)
                if dice < 0.4:
                    numbers = self._limits[variable]
                    place = numbers.index(number) + self._random.choice((-2, -1, 1, 2))
                    return Limit(variable, relation, numbers[min(max(place, 0), len(numbers) - 1)])
                if dice < 0.55:
                    return Limit(variable, RELATIONS[relation == ">="], number)
                if dice < 0.8:
                    return self._draw_limit()
                return self._random.choice((Conjunction, Disjunction))((part, self._draw_limit()))
            case Always(window, inner) | Eventually(window, inner):
                if dice < 0.4:
                    return _with_interval(part, self._random.choice(self._intervals))
                if dice < 0.6:
                    return make_course(Eventually if isinstance(part, Always) else Always, window, inner)
                return self._join(part, self._draw_course()) if dice < 0.85 else self._draw_course()
            case Until(left, window, right):
                if dice < 0.5:
                    return _with_interval(part, self._random.choice(self._intervals))
                return Until(right, window, left) if dice < 0.65 else self._draw_course()
            case Conjunction(parts) | Disjunction(parts):
                if dice < 0.5:
                    return self._random.choice(parts)
                return (Disjunction if isinstance(part, Conjunction) else Conjunction)(parts)
            case Implication(premise, result):
                return premise if dice < 0.3 else result if dice < 0.6 else Implication(result, premise)
        return part

    def _keep_small(self, formula: Formula, before: Formula) -> Formula:
        return formula if formula.size <= LARGEST else before


def is_state(part: Formula) -> bool:
    """Whether it says something of one moment, and nothing of a window."""
    return not isinstance(part, TEMPORAL) and all(is_state(child) for child in part.children)


def make_course(
    kind: type[Always] | type[Eventually], window: Window | tuple[int, int] | None, state: Formula
) -> Formula:
    """G or F of a state; of one step always G, since both say the same."""
    if window is not None and window[0] == window[1]:
        kind = Always
    return kind(window, state)


def _with_interval(part: Formula, interval: tuple[int, int]) -> Formula:
    match part:
        case Always(_, inner) | Eventually(_, inner):
            return make_course(type(part), interval, inner)
        case Until(left, _, right):
            return Until(left, interval, right)
    return part
