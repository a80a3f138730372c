"""The canonical form of a formula, and templates: what can fill their holes, and which rules they match.

The canonical form is one formula for all that mean the same: equal in truth and robustness on every series. Each rule
is an equality of both semantics for every series and missing value:

- `not not f` is f; not moves inwards through and, or, G and F (each becomes its mirror image), and turns a relation;
  before U, -> and a proposition it stays.
- and and or are flat, without duplicates, in one order; true and false vanish from them or decide them.
- `G[a,b] G[c,d] f` is `G[a+c,b+d] f`, G of the rest of the stay twice is once; the same for F.

`f -> g` stays as it is: it is how a clinician reads a rule. Two formulas that these rules make equal have one canonical
form, since each rule is applied wherever it fits, from the leaves upwards. A hole is a part like any other (and `not ?`
is `?`: whatever a hole stands for, so does its opposite), but two holes are never duplicates of each other.

A template matches a rule if its holes can be filled so that the filled template has the rule's canonical form, with
nothing of what was filled in dropped or merged on the way (`? and ?` is not every formula, though `f and f` is f). Of
`and` and `or` the order does not count, and a hole there takes one part or several: `? and x > 1` matches
`x > 1 and y < 2 and z < 3`. This is the "syntactic match" of rule discovery, decided exactly.

docs/methods.md, section 6.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from concilium.errors import FormulaError
from concilium.temporal import formula as stl
from concilium.temporal import windows
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import hole_places, parse, point_at, show
from concilium.temporal.windows import HOLE, Duration, Window

OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "=": "!=", "!=": "="}


def canonical(formula: Formula) -> Formula:
    """The canonical form of a formula."""
    return _simplify(formula, False)


def _simplify(formula: Formula, denied: bool) -> Formula:
    match formula:
        case stl.Negation(inner):
            return _simplify(inner, not denied)
        case stl.Limit(variable, relation, number):
            if not denied or isinstance(relation, windows.Hole):
                return formula
            return stl.Limit(variable, OPPOSITE[relation], number)
        case stl.Constant(value):
            return stl.Constant(value is not denied)
        case stl.OpenFormula():
            return formula
        case stl.Proposition():
            return stl.Negation(formula) if denied else formula
        case stl.Conjunction(parts) | stl.Disjunction(parts):
            together = isinstance(formula, stl.Conjunction) is not denied
            return _join([_simplify(part, denied) for part in parts], together)
        case stl.Always(window, inner) | stl.Eventually(window, inner):
            kind = stl.Always if isinstance(formula, stl.Always) is not denied else stl.Eventually
            return _nest(kind, window, _simplify(inner, denied))
        case stl.Implication() | stl.Until():
            made = stl.with_children(formula, tuple([_simplify(child, False) for child in formula.children]))
            return stl.Negation(made) if denied else made
    raise TypeError(f"{type(formula).__name__} is no formula")


def _join(parts: list[Formula], together: bool) -> Formula:
    kind = stl.Conjunction if together else stl.Disjunction
    flat: list[Formula] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    has_holes = any(part.open_places for part in flat)
    neutral, deciding = stl.Constant(together), stl.Constant(not together)
    if deciding in flat and not has_holes:
        return deciding
    closed = {part: None for part in flat if not part.open_places and part != neutral}
    left = [*closed, *(part for part in flat if part.open_places)]
    if not left:
        return neutral
    if len(left) == 1:
        return left[0]
    return kind(sorted(left, key=order))


def _nest(kind: type[stl.Always] | type[stl.Eventually], window: Window | None, inner: Formula) -> Formula:
    if window is None and isinstance(inner, stl.Constant):
        return inner
    if isinstance(inner, kind):
        try:
            return kind(windows.add_windows(window, inner.window), inner.inner)
        except ValueError:
            pass
    return kind(window, inner)


_RANKS = {
    kind: rank
    for rank, kind in enumerate(
        [
            stl.Limit,
            stl.Proposition,
            stl.Negation,
            stl.Constant,
            stl.OpenFormula,
            stl.Conjunction,
            stl.Disjunction,
            stl.Always,
            stl.Eventually,
            stl.Until,
            stl.Implication,
        ]
    )
}


def order(formula: Formula) -> tuple[Any, ...]:
    """A key by which formulas are sorted: limits by variable and number first, then what is built from them."""
    rank = _RANKS[type(formula)]
    match formula:
        case stl.Limit(variable, relation, number):
            return rank, _slot(variable), _slot(number), _slot(relation)
        case stl.Proposition(variable):
            return rank, variable
        case stl.Constant(value):
            return rank, value
        case stl.Conjunction(parts) | stl.Disjunction(parts):
            return rank, len(parts), *(order(part) for part in parts)
        case stl.Always(window, inner) | stl.Eventually(window, inner):
            return rank, order(inner), _window(window)
        case stl.Until(left, window, right):
            return rank, order(left), order(right), _window(window)
        case _:
            return rank, *(order(child) for child in formula.children)


def _slot(value: Any) -> tuple[Any, ...]:
    if isinstance(value, windows.Hole):
        return (2,)
    return (1, value.minutes) if isinstance(value, Duration) else (0, value)


def _window(window: Window | None) -> tuple[Any, ...]:
    if window is None:
        return (0,)
    return 1, window.whole_hole, _slot(window.low), _slot(window.high)


class OpenPlace(NamedTuple):
    """What may fill a hole (formula, variable, relation, number, interval or bound), and where in the text it is."""

    kind: str
    place: int


def holes(template: Formula) -> tuple[OpenPlace, ...]:
    """The holes in the order written."""
    return tuple(map(OpenPlace, _kinds(template), hole_places(template)))


def fill(template: Formula, values: Sequence[Any]) -> Formula:
    """The template with one value for each hole, in the order written; "?" leaves a hole as it is."""
    if len(values) != template.open_places:
        raise FormulaError(
            f"there are {template.open_places} holes to fill and {len(values)} values", show(template)
        )
    return _fill(template, _Filling(template, values))


def fill_hole(template: Formula, index: int, value: Any) -> Formula:
    """The template with one hole filled."""
    if not 0 <= index < template.open_places:
        raise FormulaError(
            f"there is no hole {index}; they are numbered from 0, and there are {template.open_places}",
            show(template),
        )
    values: list[Any] = [HOLE] * template.open_places
    values[index] = value
    return fill(template, values)


def matches(template: Formula, rule: Formula | str) -> bool:
    """Whether the holes can be filled so that the template is the rule; a rule has no holes itself."""
    if isinstance(rule, str):
        rule = parse(rule)
    if rule.open_places:
        raise FormulaError("a rule to be matched has no holes", show(rule))
    return match_canonical(canonical(template), canonical(rule))


def match_canonical(template: Formula, rule: Formula) -> bool:
    """`matches` of two formulas that are canonical already, as a search over many keeps them."""
    if isinstance(template, stl.OpenFormula):
        return True
    if not template.open_places:
        return template == rule
    if type(template) is not type(rule) or template.size > rule.size:
        return False
    match template, rule:
        case stl.Limit(), stl.Limit():
            return all(
                _fits(one, other) for one, other in zip(template._values(), rule._values(), strict=True)
            )
        case (stl.Conjunction(wanted), stl.Conjunction(parts)) | (
            stl.Disjunction(wanted),
            stl.Disjunction(parts),
        ):
            return _match_parts(wanted, parts)
        case (
            (stl.Always(window), stl.Always(other))
            | (stl.Eventually(window), stl.Eventually(other))
            | (stl.Until(window=window), stl.Until(window=other))
        ):
            return _fits_window(window, other) and _match_children(template, rule)
        case (stl.Negation(), stl.Negation()) | (stl.Implication(), stl.Implication()):
            return _match_children(template, rule)
    return False


def _match_children(template: Formula, rule: Formula) -> bool:
    return all(
        match_canonical(one, other) for one, other in zip(template.children, rule.children, strict=True)
    )


def _match_parts(wanted: Sequence[Formula], parts: Sequence[Formula]) -> bool:
    """Parts of the template to different parts of the rule; each bare hole takes one or more of those left over."""
    closed = {part for part in wanted if not part.open_places}
    free = sum(isinstance(part, stl.OpenFormula) for part in wanted)
    rest = [part for part in parts if part not in closed]
    if len(parts) - len(rest) != len(closed):
        return False
    partial = [part for part in wanted if part.open_places and not isinstance(part, stl.OpenFormula)]
    left_over = len(rest) - len(partial)
    if left_over < free or (left_over and not free):
        return False
    edges = [[place for place, part in enumerate(rest) if match_canonical(one, part)] for one in partial]
    return _assign(edges, len(rest))


def _assign(edges: Sequence[Sequence[int]], places: int) -> bool:
    """Whether each row can have a place of its own among those it may take (augmenting paths)."""
    owners: list[int | None] = [None] * places

    def settle(row: int, tried: set[int]) -> bool:
        for place in edges[row]:
            if place not in tried:
                tried.add(place)
                owner = owners[place]
                if owner is None or settle(owner, tried):
                    owners[place] = row
                    return True
        return False

    return all(settle(row, set()) for row in range(len(edges)))


def _fits(one: Any, other: Any) -> bool:
    return isinstance(one, windows.Hole) or bool(one == other)


def _fits_window(one: Window | None, other: Window | None) -> bool:
    if one is None or other is None or one.whole_hole:
        return one == other or (one is not None and one.whole_hole)
    return _fits(one.low, other.low) and _fits(one.high, other.high)


def _kinds(template: Formula) -> Iterator[str]:
    match template:
        case stl.OpenFormula():
            yield "formula"
        case stl.Limit(variable, relation, number):
            for kind, value in (("variable", variable), ("relation", relation), ("number", number)):
                if value is HOLE:
                    yield kind
        case stl.Until(left, window, right):
            yield from _kinds(left)
            yield from _window_kinds(window)
            yield from _kinds(right)
        case _:
            yield from _window_kinds(getattr(template, "window", None))
            for child in template.children:
                yield from _kinds(child)


def _window_kinds(window: Window | None) -> Iterator[str]:
    if window is not None:
        yield from ["interval"] if window.whole_hole else ["bound"] * window.holes


class _Filling:
    """The values still to be filled in, and the template for errors."""

    def __init__(self, template: Formula, values: Sequence[Any]) -> None:
        self.template, self.values, self.index = template, values, 0

    def take(self, check: Any) -> Any:
        """The next value as `check` reads it; an error points at its hole."""
        value = self.values[self.index]
        self.index += 1
        if value is HOLE or (isinstance(value, str) and value.strip() == "?"):
            return HOLE
        try:
            return check(value)
        except ValueError as error:
            raise self.error(str(error)) from None

    def error(self, problem: str) -> FormulaError:
        """The error, pointing at the hole that was filled last."""
        return point_at(problem, show(self.template), hole_places(self.template)[self.index - 1])


def _fill(template: Formula, filling: _Filling) -> Formula:
    if not template.open_places:
        return template
    match template:
        case stl.OpenFormula():
            value = filling.take(_read_formula)
            return template if value is HOLE else value
        case stl.Limit(variable, relation, number):
            return stl.Limit(
                filling.take(_read_variable) if variable is HOLE else variable,
                filling.take(_read_relation) if relation is HOLE else relation,
                filling.take(_read_number) if number is HOLE else number,
            )
        case stl.Always(window, inner) | stl.Eventually(window, inner):
            window = _fill_window(window, filling)
            return type(template)(window, _fill(inner, filling))
        case stl.Until(left, window, right):
            left = _fill(left, filling)
            window = _fill_window(window, filling)
            return stl.Until(left, window, _fill(right, filling))
    return stl.with_children(template, tuple([_fill(child, filling) for child in template.children]))


def _fill_window(window: Window | None, filling: _Filling) -> Window | None:
    if window is None or not window.holes:
        return window
    if window.whole_hole:
        value = filling.take(_read_window)
        return windows.ANY_WINDOW if value is HOLE else value
    low = filling.take(_read_bound) if window.low is HOLE else window.low
    high = filling.take(_read_bound) if window.high is HOLE else window.high
    try:
        return windows.check_window(low, high)
    except ValueError as error:
        raise filling.error(f"the interval {error}") from None


def _read_formula(value: Any) -> Formula:
    if isinstance(value, str):
        return parse(value)
    if not isinstance(value, Formula):
        raise ValueError(f"{value!r} is no formula")
    return value


def _read_variable(value: Any) -> str:
    if not (isinstance(value, str) and value):
        raise ValueError(f"{value!r} is no name of a variable")
    return value


def _read_relation(value: Any) -> str:
    if value not in stl.RELATIONS:
        raise ValueError(f"{value!r} is none of {' '.join(stl.RELATIONS)}")
    return str(value)


def _read_number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise ValueError(f"{value!r} is no number")
    try:
        return float(value)
    except TypeError:
        raise ValueError(f"{value!r} is no number") from None


def _read_bound(value: Any) -> windows.Bound:
    return windows.read_bound(value) if isinstance(value, str) else windows.check_bound(value)


def _read_window(value: Any) -> Window | None:
    if value is None:
        return None
    try:
        low, high = value[:2] if isinstance(value, Window) else value
    except (TypeError, ValueError):
        raise ValueError(
            f"{value!r} is no interval; it is two bounds, or None for the rest of the stay"
        ) from None
    return windows.check_window(_read_bound(low), _read_bound(high))
