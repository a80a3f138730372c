"""The public grammar that a discovery searches: which templates there are at all, whatever the clients hold.

A *state* is limits joined by and and or; a *course* is G, F or U of states; courses are joined by and, or and ->. That
is what the local learner breeds (search_space.py), up to so many limits and so large. A *wide* grammar has limits
outside of G, F and U as well, which speak of the first moment, and -> inside of them. From the skeletons, all of them
at once, each template is expanded into its children on the next level: variables, then relations. The parameters of a
structure have public bins. Claim: everything here is computed from what the study states and nothing from a client,
so it costs no privacy.

How much of a rule a template shows: levels of abstraction, from its skeleton to its whole structure.

    rule                            G[0,5](HR < 110 and HR >= 60)
    3 structure, the rule without numbers and intervals   G[?](HR < ? and HR >= ?)
    2 variables, the structure without relations          G[?](HR ? ? and HR ? ?)
    1 skeleton, without variables                         G[?](? ? ? and ? ? ?)

Every rule has exactly one template on each level, which matches it, so the templates of a level divide all rules: a
client with at most R rules matches at most R templates of a level, however many are asked. Sensitivities rest on
that (discovery_search.py). The parameters left open by a structure are the last level, one distribution for each.

docs/methods.md, section 6.7.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.temporal import formula as stl
from concilium.temporal.formula import Formula
from concilium.temporal.limit_pairs import PairBins, can_touch, find_partners
from concilium.temporal.search_space import LARGEST, RELATIONS, SearchSpace
from concilium.temporal.templates import order
from concilium.temporal.windows import ANY_WINDOW, HOLE, Window

SKELETON: Final = 1
VARIABLES: Final = 2
STRUCTURE: Final = 3
LEVELS: Final = (SKELETON, VARIABLES, STRUCTURE)


def abstract(rule: Formula, level: int) -> Formula:
    """The template of a level that stands for a rule, canonical; rules of one canonical form have the same.

    Of a template, the template of a level above it: the skeleton of a rule's structure is the rule's skeleton.
    """
    return arrange(rule.canonical(), level)[0]


def arrange(rule: Formula, level: int) -> tuple[Formula, tuple[Any, ...]]:
    """The template of a canonical rule, and what fills its holes, in the order written: `template.fill(*values)` has
    the rule's canonical form.

    Where the template cannot tell parts of `and` or `or` apart, their values come in the order of the canonical rule,
    so that equal rules have equal values.
    """
    match rule:
        case stl.Limit(variable, relation, number):
            if level == STRUCTURE:
                return stl.Limit(variable, relation, HOLE), (number,)
            if level == VARIABLES:
                return stl.Limit(variable, HOLE, HOLE), (relation, number)
            return stl.Limit(HOLE, HOLE, HOLE), (variable, relation, number)
        case stl.Conjunction(parts) | stl.Disjunction(parts):
            arranged = [(*arrange(part, level), part) for part in parts]
            arranged.sort(key=lambda one: (order(one[0]), order(one[2])))
            return type(rule)(one[0] for one in arranged), sum((one[1] for one in arranged), ())
        case stl.Always(window, inner) | stl.Eventually(window, inner):
            template, values = arrange(inner, level)
            return type(rule)(ANY_WINDOW, template), (window, *values)
        case stl.Until(left, window, right):
            first, before = arrange(left, level)
            second, after = arrange(right, level)
            return stl.Until(first, ANY_WINDOW, second), (*before, window, *after)
    below = [arrange(child, level) for child in rule.children]
    return stl.with_children(rule, tuple(one[0] for one in below)), sum((one[1] for one in below), ())


def find_level(templates: Iterable[Formula]) -> int | None:
    """The level that all these canonical templates are of; None where there is none."""
    levels = set(LEVELS)
    for template in templates:
        for level in LEVELS:
            if level in levels and not _is_of(template, level):
                levels.discard(level)
        if not levels:
            return None
    return min(levels)


def _is_of(template: Formula, level: int) -> bool:
    for part in template.walk():
        if isinstance(part, stl.Limit):
            opened = (part.variable is HOLE, part.relation is HOLE, part.number is HOLE)
            if opened != (level < VARIABLES, level < STRUCTURE, True):
                return False
        elif isinstance(part, stl.OpenFormula) or getattr(part, "window", ANY_WINDOW) != ANY_WINDOW:
            return False
    return True


OPERATORS = ("G", "F", "U", "and", "or", "->")
MOST_LIMITS = 3
"""Limits of a rule, unless the study says otherwise: of what the learner finds, one rule in a hundred has more."""

_LIMIT = stl.Limit(HOLE, HOLE, HOLE)


@dataclass(frozen=True)
class _NumberBins:
    """Where a number lies among public edges: below the first, from each edge up to the next, from the last on."""

    edges: tuple[float, ...]

    holes: ClassVar[int] = 1

    def __len__(self) -> int:
        return len(self.edges) + 1

    def place(self, values: Iterable[Any]) -> NDArray[np.intp]:
        """The bin of each number."""
        numbers = np.array([float(value) for value in values], dtype=np.float64)
        return np.searchsorted(np.array(self.edges), numbers, side="right")

    def choose(self, place: int) -> float:
        """The edge that stands for a bin: where it begins, which is exact for rules whose numbers are the edges."""
        return self.edges[max(place - 1, 0)]

    def describe(self, place: int) -> str:
        """A bin in words."""
        if place == 0:
            return f"below {self.edges[0]:g}"
        if place == len(self.edges):
            return f"{self.edges[-1]:g} or more"
        return f"{self.edges[place - 1]:g} to {self.edges[place]:g}"


@dataclass(frozen=True)
class IntervalBins:
    """Which public interval it is, or another one."""

    intervals: tuple[Window | None, ...]

    holes: ClassVar[int] = 1

    def __len__(self) -> int:
        return len(self.intervals) + 1

    def place(self, values: Iterable[Any]) -> NDArray[np.intp]:
        """The bin of each interval."""
        places = {interval: place for place, interval in enumerate(self.intervals)}
        return np.array([places.get(value, len(places)) for value in values], dtype=np.intp)

    def choose(self, place: int) -> Window | None:
        """The interval of a bin; of "another one" nobody knows which, so it stays open."""
        return self.intervals[place] if place < len(self.intervals) else ANY_WINDOW

    def describe(self, place: int) -> str:
        """A bin in words."""
        if place == len(self.intervals):
            return "another interval"
        interval = self.intervals[place]
        return "the rest of the stay" if interval is None else str(interval)


Bins = _NumberBins | IntervalBins | PairBins
"""Of one open place of a structure, or of two that belong together (`holes`)."""


def fill_structure(structure: Formula, chosen: Iterable[tuple[Bins, int]]) -> Formula:
    """The structure with the bins that were chosen for its open places, canonical."""
    values: list[Any] = []
    for bins, place in chosen:
        if isinstance(bins, PairBins):
            values.extend(bins.choose(place))
        else:
            values.append(bins.choose(place))
    return structure.fill(*values).canonical()


@dataclass(frozen=True, eq=False)
class RuleGrammar:
    """`RuleGrammar({"HR": (60, 80, 100), ...}, intervals=[(0, 5)])`: variables with the public edges of their limits.

    `relations` and `operators` are those that rules may have; a rule has at most so many `limits`, and so many
    operators and limits together as `largest`. `wide` is more than what the local learner breeds.
    """

    edges: Mapping[str, tuple[float, ...]]
    intervals: tuple[Window | None, ...]
    relations: tuple[str, ...] = RELATIONS
    operators: tuple[str, ...] = OPERATORS
    limits: int = MOST_LIMITS
    largest: int = LARGEST
    wide: bool = False

    def __post_init__(self) -> None:
        edges = {name: tuple(map(float, numbers)) for name, numbers in self.edges.items()}
        if not edges or not all(edges.values()):
            raise StudyError("a grammar needs variables, each with at least one public limit")
        for name, numbers in edges.items():
            if not all(one < other for one, other in itertools.pairwise(numbers)):
                raise StudyError(f"the limits of {name!r} must rise; got {numbers!r}")
        unknown = [name for name in self.operators if name not in OPERATORS]
        if unknown or not {"G", "F", "U"} & set(self.operators):
            raise StudyError(
                f"operators are of {' '.join(OPERATORS)}, among them G, F or U; got {self.operators!r}"
            )
        if not self.relations or self.limits < 1 or self.largest < 2:
            raise StudyError("a grammar has at least one relation and one limit, and a size of at least 2")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "intervals", tuple(map(stl.make_window, self.intervals)))

    @classmethod
    def from_space(cls, space: SearchSpace, limits: int = MOST_LIMITS) -> RuleGrammar:
        """What the local learner can find in a space, with at most so many limits in a rule."""
        return cls(space.limits, tuple(Window(*interval) for interval in space.intervals), limits=limits)

    def restrict(self, names: Iterable[str]) -> RuleGrammar:
        """The same with these variables only."""
        return replace(self, edges={name: self.edges[name] for name in names})

    @cached_property
    def skeletons(self) -> tuple[Formula, ...]:
        """All templates of the first level, the smallest first."""
        implies = "->" in self.operators
        states = self._join({1: [_LIMIT]}, implies=implies and self.wide)
        courses: dict[int, list[Formula]] = {count: [] for count in range(1, self.limits + 1)}
        if self.wide:
            courses[1].append(_LIMIT)
        for count, parts in states.items():
            for kind, name in ((stl.Always, "G"), (stl.Eventually, "F")):
                if name in self.operators:
                    courses[count] += [kind(ANY_WINDOW, part) for part in parts]
        if "U" in self.operators:
            for one, other in itertools.product(states, states):
                if one + other <= self.limits:
                    courses[one + other] += [
                        stl.Until(left, ANY_WINDOW, right) for left in states[one] for right in states[other]
                    ]
        joined = self._join(courses, implies=implies)
        every = [form for parts in joined.values() for form in parts if form.size <= self.largest]
        return tuple(sorted(every, key=lambda form: (form.size, order(form))))

    @cached_property
    def _skeleton_set(self) -> frozenset[Formula]:
        return frozenset(self.skeletons)

    def _join(self, atoms: Mapping[int, list[Formula]], implies: bool) -> dict[int, list[Formula]]:
        """The atoms, by their number of limits, and all ways to join them: and and or flat and in one order."""
        every: dict[int, list[Formula]] = {}
        for count in range(1, self.limits + 1):
            made = list(atoms.get(count, ()))
            for kind, name in ((stl.Conjunction, "and"), (stl.Disjunction, "or")):
                if name in self.operators:
                    for parts in _divide(every, count, kind):
                        if sum(part.size for part in parts) < self.largest:
                            made.append(kind(sorted(parts, key=order)))
            if implies:
                for first in range(1, count):
                    made += [
                        stl.Implication(one, other) for one in every[first] for other in every[count - first]
                    ]
            every[count] = [form for form in made if form.size <= self.largest]
        return every

    def expand(self, template: Formula, level: int | None = None) -> list[Formula]:
        """All children of a template on the next level, or its descendants on a given one, each once."""
        own = find_level([template])
        if own is None or own == STRUCTURE:
            raise StudyError(f"{template} is no skeleton and no template of variables, so it has no children")
        wanted = own + 1 if level is None else level
        if wanted <= own:
            return [template] if wanted == own else []
        return list(_fill_limits(template, lambda limit: self._fill_limit(limit, wanted)))

    def count_children(self, template: Formula, level: int) -> int:
        """How many templates `expand` would give, without making them; an upper bound where parts are alike."""
        if level < VARIABLES:
            return 1
        limits = [part for part in template.walk() if isinstance(part, stl.Limit)]
        unnamed = sum(isinstance(limit.variable, type(HOLE)) for limit in limits)
        relations = len(self.relations) if level >= STRUCTURE else 1
        count: int = len(self.edges) ** unnamed * relations ** len(limits)
        return count

    def _fill_limit(self, limit: stl.Limit, level: int) -> list[Formula]:
        names = list(self.edges) if isinstance(limit.variable, type(HOLE)) else [limit.variable]
        relations = self.relations if level >= STRUCTURE else (HOLE,)
        if level < VARIABLES:
            return [limit]
        return [stl.Limit(name, relation, HOLE) for name in names for relation in relations]

    def produces(self, rule: Formula) -> bool:
        """Whether a search can ever come to the structure of this rule."""
        for part in rule.canonical().walk():
            if isinstance(part, stl.Limit) and not (
                part.variable in self.edges and part.relation in self.relations
            ):
                return False
        return abstract(rule, SKELETON) in self._skeleton_set

    def find_bins(self, structure: Formula) -> tuple[Bins, ...]:
        """The public bins of each parameter that a structure leaves open, in the order written; an upper and a lower
        limit of one variable are one parameter."""
        return tuple(self._find_bins(structure))

    def _pair_bins(self, upper: Formula, lower: Formula, together: bool) -> PairBins:
        assert isinstance(upper, stl.Limit)
        assert isinstance(lower, stl.Limit)
        assert isinstance(upper.variable, str)
        return PairBins(self.edges[upper.variable], together, can_touch(upper, lower, together))

    def _find_bins(self, template: Formula) -> Iterator[Bins]:
        match template:
            case stl.Limit(variable):
                assert isinstance(variable, str)
                yield _NumberBins(self.edges[variable])
            case stl.Until(left, _, right):
                yield from self._find_bins(left)
                yield IntervalBins(self.intervals)
                yield from self._find_bins(right)
            case stl.Conjunction(parts) | stl.Disjunction(parts):
                for group in find_partners(parts):
                    if len(group) == 2:
                        yield self._pair_bins(*group, isinstance(template, stl.Conjunction))
                    else:
                        yield from self._find_bins(group[0])
            case _:
                if isinstance(template, stl.Always | stl.Eventually):
                    yield IntervalBins(self.intervals)
                for child in template.children:
                    yield from self._find_bins(child)


def _divide(
    every: Mapping[int, list[Formula]], count: int, kind: type[stl.Conjunction] | type[stl.Disjunction]
) -> Iterator[tuple[Formula, ...]]:
    """Two formulas or more that have so many limits together, none of them of this kind itself, in any one order."""
    pool = [
        (limits, form)
        for limits in range(1, count)
        for form in every.get(limits, ())
        if not isinstance(form, kind)
    ]

    def extend(first: int, left: int) -> Iterator[tuple[Formula, ...]]:
        if left == 0:
            yield ()
        for place in range(first, len(pool)):
            limits, form = pool[place]
            if limits > left:
                return
            for rest in extend(place, left - limits):
                yield (form, *rest)

    yield from extend(0, count)


def _fill_limits(template: Formula, choose: Callable[[stl.Limit], list[Formula]]) -> Iterator[Formula]:
    """All ways to fill the limits of a canonical template, canonical themselves and each once."""
    match template:
        case stl.Limit():
            yield from choose(template)
        case stl.Conjunction(parts) | stl.Disjunction(parts):
            groups = [
                list(itertools.combinations_with_replacement(list(_fill_limits(part, choose)), times))
                for part, times in Counter(parts).items()
            ]
            for chosen in itertools.product(*groups):
                yield type(template)(sorted(itertools.chain.from_iterable(chosen), key=order))
        case _:
            for filled in itertools.product(*(_fill_limits(child, choose) for child in template.children)):
                yield stl.with_children(template, filled)
