"""Formulas of signal temporal logic as values (docs/methods.md, section 6.1).

A formula is immutable, and its hash, size and depth are computed once, when it is made: a search makes millions. What
is done with one is in its own file: reading (`parsing`), writing (`printing`), the canonical form (`canonical`),
templates (`templates`), and evaluation on series (`evaluation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from concilium.errors import FormulaError
from concilium.temporal.windows import HOLE, MOST_STEPS, Hole, Window, check_window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from concilium.records.series import Series
    from concilium.temporal.evaluation import Truths
    from concilium.temporal.templates import OpenPlace

RELATIONS: Final = ("<", "<=", ">", ">=", "=", "!=")
DEEPEST: Final = 100
"""How deep a formula may be nested; more than anybody reads, and far less than a stack holds."""
LARGEST_SIZE: Final = 100_000
LARGEST_NUMBER: Final = 3.4e38

_set = object.__setattr__


class Formula:
    """A formula or, where something is left open as `?`, a template; made by `parse` or from its parts."""

    __slots__ = ("_hash", "depth", "open_places", "size")
    __match_args__: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()

    size: int
    """How many operators, limits and propositions there are."""
    depth: int
    """How many of them lie above each other at most."""
    open_places: int
    """How many holes there are."""
    _hash: int

    def _finish(self, parts: Sequence[Formula] = (), holes: int = 0) -> None:
        depth, size = 0, 1
        for part in parts:
            if not isinstance(part, Formula):
                raise FormulaError(f"{part!r} is no formula; parse it first", repr(part))
            size += part.size
            holes += part.open_places
            if part.depth > depth:
                depth = part.depth
        if depth >= DEEPEST:
            raise FormulaError(f"formulas are nested at most {DEEPEST} deep", "")
        if size > LARGEST_SIZE:
            raise FormulaError(f"a formula has at most {LARGEST_SIZE:,} parts", "")
        _set(self, "size", size)
        _set(self, "depth", depth + 1)
        _set(self, "open_places", holes)
        _set(self, "_hash", hash((type(self).__name__, self._values())))

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.fields])

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Formula):
            return NotImplemented
        return self._hash == other._hash and type(self) is type(other) and self._values() == other._values()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a formula does not change; make another one to set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a formula does not change; {name!r} stays")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()

    def __str__(self) -> str:
        from concilium.temporal.parsing import show

        return show(self)

    def __repr__(self) -> str:
        return f"stl.parse({str(self)!r})"

    @property
    def children(self) -> tuple[Formula, ...]:
        """The formulas that this one is made of, in the order written."""
        return ()

    @property
    def variables(self) -> frozenset[str]:
        """The variables and propositions that occur."""
        return frozenset(
            part.variable
            for part in self.walk()
            if isinstance(part, Limit | Proposition) and isinstance(part.variable, str)
        )

    def walk(self) -> Iterator[Formula]:
        """This formula and all within it, in the order written."""
        yield self
        for child in self.children:
            yield from child.walk()

    def canonical(self) -> Formula:
        """The one formula that stands for all that mean the same by the rules of `canonical`."""
        from concilium.temporal.templates import canonical

        return canonical(self)

    @property
    def holes(self) -> tuple[OpenPlace, ...]:
        """What is left open, in the order written: what may stand there, and where in the text."""
        from concilium.temporal.templates import holes

        return holes(self)

    def fill(self, *values: Any) -> Formula:
        """The formula with its holes filled, one value for each hole in the order written.

        A formula (or its text) for a formula, a name for a variable, one of `< <= > >= = !=` for a relation, a number,
        a bound (6 or "6h"), and for an interval two bounds or None, the rest of the stay. "?" leaves a hole as it is.
        """
        from concilium.temporal.templates import fill

        return fill(self, values)

    def fill_hole(self, index: int, value: Any) -> Formula:
        """The formula with one hole filled, by its place in `holes`; a formula filled in may have holes itself."""
        from concilium.temporal.templates import fill_hole

        return fill_hole(self, index, value)

    def matches(self, rule: Formula | str) -> bool:
        """Whether the holes of this template can be filled so that it is the rule (or its text), whatever the order of
        and and or."""
        from concilium.temporal.templates import matches

        return matches(self, rule)

    def robustness(self, series: Series, at: int | Literal["all"] = 0) -> NDArray[np.float32]:
        """How far each patient is from breaking (positive) or fulfilling (negative) the formula; NaN where unknown.

        One number for each patient, at the first point in time or another one; `at="all"` gives all, [time, patient].
        """
        from concilium.temporal.evaluation import robustness_all

        values: NDArray[np.float32] = robustness_all([self], series, at)[0]
        return values

    def bounds(
        self, series: Series, at: int | Literal["all"] = 0
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The least and the greatest that the robustness can be, whatever the missing values are."""
        from concilium.temporal.evaluation import bounds_all

        low, high = bounds_all([self], series, at)
        return low[0], high[0]

    def satisfied(self, series: Series, at: int | Literal["all"] = 0) -> Truths:
        """Whether each patient fulfils the formula; masked where that is unknown."""
        from concilium.temporal.evaluation import satisfied_all

        truths: Truths = satisfied_all([self], series, at)[0]
        return truths


class Limit(Formula):
    """A variable compared with a number, `HR >= 90`."""

    __slots__ = ("number", "relation", "variable")
    fields = __match_args__ = ("variable", "relation", "number")

    variable: str | Hole
    relation: str | Hole
    number: float | Hole

    def __init__(self, variable: str | Hole, relation: str | Hole, number: float | Hole) -> None:
        if variable is not HOLE and not (isinstance(variable, str) and variable):
            raise FormulaError(f"{variable!r} is no name of a variable", str(variable))
        if relation is not HOLE and relation not in RELATIONS:
            raise FormulaError(f"{relation!r} is none of {' '.join(RELATIONS)}", str(relation))
        if not isinstance(number, Hole):
            number = float(number) + 0.0  # and no -0.0
            if not abs(number) <= LARGEST_NUMBER:
                raise FormulaError("a limit is a number that fits 32 bits", str(number))
        _set(self, "variable", variable)
        _set(self, "relation", relation)
        _set(self, "number", number)
        self._finish(holes=(variable is HOLE) + (relation is HOLE) + (number is HOLE))


class Proposition(Formula):
    """A variable that is 0 or 1: it holds where the value is 0.5 or more."""

    __slots__ = ("variable",)
    fields = __match_args__ = ("variable",)

    variable: str

    def __init__(self, variable: str) -> None:
        if not (isinstance(variable, str) and variable):
            raise FormulaError(f"{variable!r} is no name of a proposition", str(variable))
        _set(self, "variable", variable)
        self._finish()


class Constant(Formula):
    """`true` or `false`."""

    __slots__ = ("value",)
    fields = __match_args__ = ("value",)

    value: bool

    def __init__(self, value: bool) -> None:
        _set(self, "value", bool(value))
        self._finish()


class OpenFormula(Formula):
    """A formula left open, `?`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._finish(holes=1)


class Negation(Formula):
    """`not f`."""

    __slots__ = ("inner",)
    fields = __match_args__ = ("inner",)

    inner: Formula

    def __init__(self, inner: Formula) -> None:
        _set(self, "inner", inner)
        self._finish((inner,))

    @property
    def children(self) -> tuple[Formula, ...]:
        return (self.inner,)


class _Joined(Formula):
    __slots__ = ("parts",)
    fields = __match_args__ = ("parts",)

    parts: tuple[Formula, ...]

    def __init__(self, parts: Iterable[Formula]) -> None:
        parts = tuple(parts)
        if len(parts) < 2:
            raise FormulaError("'and' and 'or' join two formulas or more", "")
        _set(self, "parts", parts)
        self._finish(parts)

    @property
    def children(self) -> tuple[Formula, ...]:
        return self.parts


class Conjunction(_Joined):
    """`f and g and ...`."""

    __slots__ = ()


class Disjunction(_Joined):
    """`f or g or ...`."""

    __slots__ = ()


class Implication(Formula):
    """`f -> g`: where f holds, g does."""

    __slots__ = ("premise", "result")
    fields = __match_args__ = ("premise", "result")

    premise: Formula
    result: Formula

    def __init__(self, premise: Formula, result: Formula) -> None:
        _set(self, "premise", premise)
        _set(self, "result", result)
        self._finish((premise, result))

    @property
    def children(self) -> tuple[Formula, ...]:
        return (self.premise, self.result)


class _Windowed(Formula):
    __slots__ = ("inner", "window")
    fields = __match_args__ = ("window", "inner")

    window: Window | None
    inner: Formula

    def __init__(self, window: Window | tuple[Any, Any] | None, inner: Formula) -> None:
        checked = make_window(window)
        _set(self, "window", checked)
        _set(self, "inner", inner)
        self._finish((inner,), checked.holes if checked else 0)

    @property
    def children(self) -> tuple[Formula, ...]:
        return (self.inner,)


class Always(_Windowed):
    """`G[a,b] f`: at every step of the interval; without one, to the end of the stay."""

    __slots__ = ()


class Eventually(_Windowed):
    """`F[a,b] f`: at some step of the interval; without one, before the end of the stay."""

    __slots__ = ()


class Until(Formula):
    """`f U[a,b] g`: g at some step of the interval, and f at every step before that one, from now on."""

    __slots__ = ("left", "right", "window")
    fields = __match_args__ = ("left", "window", "right")

    left: Formula
    window: Window | None
    right: Formula

    def __init__(self, left: Formula, window: Window | tuple[Any, Any] | None, right: Formula) -> None:
        checked = make_window(window)
        _set(self, "left", left)
        _set(self, "window", checked)
        _set(self, "right", right)
        self._finish((left, right), checked.holes if checked else 0)

    @property
    def children(self) -> tuple[Formula, ...]:
        return (self.left, self.right)


def make_window(window: Any) -> Window | None:
    """A checked interval of two bounds; a FormulaError where they make none."""
    if window is None or (isinstance(window, Window) and window.whole_hole):
        return window
    try:
        low, high = window[:2]
        if type(low) is int and type(high) is int and 0 <= low <= high <= MOST_STEPS:
            return window if type(window) is Window else Window(low, high)
        return check_window(low, high)
    except (TypeError, ValueError) as error:
        raise FormulaError(str(error), str(window)) from None


def rebuild(formula: Formula, change: Callable[[Formula], Formula]) -> Formula:
    """The formula with `change` made to each of its parts, from the leaves upwards."""
    parts = formula.children
    if parts:
        changed = tuple(rebuild(part, change) for part in parts)
        if any(new is not old for new, old in zip(changed, parts, strict=True)):
            formula = with_children(formula, changed)
    return change(formula)


def replace_part(formula: Formula, place: int, part: Formula) -> Formula:
    """The formula with one part replaced, counted in the order of `walk` (0 is the whole)."""
    if place == 0:
        return part
    place -= 1
    children = list(formula.children)
    for index, child in enumerate(children):
        count = sum(1 for _ in child.walk())
        if place < count:
            children[index] = replace_part(child, place, part)
            return with_children(formula, tuple(children))
        place -= count
    raise IndexError("a formula has no such part")


def with_children(formula: Formula, children: tuple[Formula, ...]) -> Formula:
    """The same operator about other formulas."""
    match formula:
        case Conjunction() | Disjunction():
            return type(formula)(children)
        case Negation():
            return Negation(*children)
        case Implication():
            return Implication(*children)
        case Always() | Eventually():
            return type(formula)(formula.window, *children)
        case Until():
            return Until(children[0], formula.window, children[1])
    return formula
