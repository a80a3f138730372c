"""Formulas as a list of instructions for the kernel: shared parts once, each only for the rows that are asked of it.

Composite parts that several formulas share are computed once for a block of patients and their memory is given back
after the last use. Limits are not kept: comparing anew costs less than keeping them in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concilium.errors import nearest
from concilium.records.series import Series
from concilium.temporal.formula import (
    Always,
    Conjunction,
    Constant,
    Disjunction,
    Eventually,
    Formula,
    Implication,
    Limit,
    Negation,
    Proposition,
    Until,
)
from concilium.temporal.parsing import point_at
from concilium.temporal.printing import hole_places, places, show
from concilium.temporal.windows import Bound, Duration, Window

(
    LESS,
    AT_MOST,
    MORE,
    AT_LEAST,
    EQUAL,
    UNEQUAL,
    CONSTANT,
    DENY,
    BOTH,
    EITHER,
    IMPLY,
    ALWAYS,
    EVENTUALLY,
    ALWAYS_ON,
    EVENTUALLY_ON,
    HOLD,
    HOLD_ON,
    RESULT,
) = range(18)

_RELATIONS = {"<": LESS, "<=": AT_MOST, ">": MORE, ">=": AT_LEAST, "=": EQUAL, "!=": UNEQUAL}
_HALF = 0.5


@dataclass(slots=True)
class _Part:
    """One part of a plan: what it is, which rows are asked of it, and how often it is still to be read."""

    formula: Formula
    children: tuple[int, ...]
    window: tuple[int, int] | None
    first: int = 1 << 30
    last: int = -1
    readers: int = 0
    slot: int = -1

    def ask(self, first: int, last: int) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)


@dataclass(slots=True)
class EvaluationPlan:
    """Instructions [operation, out, one, other, first row, last row, low, high], and a number for each."""

    variables: list[str]
    slots: int = 0
    rows: int = 1
    """How many rows the largest part has."""
    reach: int = 1
    """How many rows of the variables are read."""
    instructions: list[tuple[int, ...]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    def add(
        self,
        operation: int,
        out: int,
        one: int,
        other: int,
        first: int,
        last: int,
        low: int = 0,
        high: int = 0,
        *,
        number: float = 0.0,
    ) -> None:
        """Adds an instruction."""
        self.instructions.append((operation, out, one, other, first, last, low, high))
        self.numbers.append(number)

    def take_slot(self, free: list[int]) -> int:
        """A place for a part, one that is free if there is any."""
        if free:
            return free.pop()
        self.slots += 1
        return self.slots - 1

    @property
    def code(self) -> NDArray[np.int32]:
        """The instructions as the kernel reads them."""
        return np.array(self.instructions, dtype=np.int32).reshape(-1, 8)


def make_plan(
    formulas: Sequence[Formula], series: Series, first: int, last: int, absent: bool = False
) -> EvaluationPlan:
    """How to compute the formulas at the rows from first to last, after checking that they fit the series.

    With `absent`, a variable that no patient has a value of is unknown, and no error.
    """
    fitting = _Check(series, absent)
    for formula in formulas:
        fitting.check(formula)
    grid = fitting.grid
    parts: list[_Part] = []
    numbered: dict[Formula, int] = {}
    roots = [_collect(formula, parts, numbered, series.step_hours) for formula in formulas]
    for root in roots:
        parts[root].ask(first, last)
        parts[root].readers += 1
    for part in reversed(parts):  # whoever reads a part comes after it
        _ask_children(part, parts, grid)
    names = sorted(fitting.measured)
    plan = EvaluationPlan(names)
    columns = {name: index for index, name in enumerate(names)}
    results: dict[int, list[int]] = {}
    for result, root in enumerate(roots):
        results.setdefault(root, []).append(result)
    free: list[int] = []
    for index, part in enumerate(parts):
        _emit(part, parts, plan, columns, free)
        for result in results.get(index, ()):
            plan.add(RESULT, result, part.slot, 0, first, last)
            _release(part, free)
    return plan


def _collect(formula: Formula, parts: list[_Part], numbered: dict[Formula, int], step_hours: float) -> int:
    """The number of the formula among the parts, with all that it is made of before it."""
    index = numbered.get(formula)
    if index is not None:
        return index
    children = tuple([_collect(child, parts, numbered, step_hours) for child in formula.children])
    window: Window | None = getattr(formula, "window", None)
    steps = (
        None
        if window is None
        else (_count_steps(window.low, step_hours), _count_steps(window.high, step_hours))
    )
    for child in children:
        parts[child].readers += 1
    parts.append(_Part(formula, children, steps))
    if children:
        numbered[formula] = len(parts) - 1
    return len(parts) - 1


def _ask_children(part: _Part, parts: list[_Part], grid: int) -> None:
    if part.last < 0:
        return
    match part.formula:
        case Always() | Eventually() | Until():
            if part.window is None:
                first, last = part.first, grid - 1
            else:
                low = 0 if isinstance(part.formula, Until) else part.window[0]
                first, last = min(part.first + low, grid - 1), min(part.last + part.window[1], grid - 1)
        case _:
            first, last = part.first, part.last
    for child in part.children:
        parts[child].ask(first, last)


def _emit(
    part: _Part, parts: list[_Part], plan: EvaluationPlan, columns: dict[str, int], free: list[int]
) -> None:
    slots = [parts[child].slot for child in part.children]
    part.slot = plan.take_slot(free)
    first, last = part.first, part.last
    low, high = part.window or (0, 0)
    plan.rows = max(plan.rows, last - first + 1)
    match part.formula:
        case Limit(variable=str(variable), relation=str(relation), number=float(number)):
            plan.add(_RELATIONS[relation], part.slot, columns[variable], 0, first, last, number=number)
            plan.reach = max(plan.reach, last + 1)
        case Proposition(variable):
            plan.add(AT_LEAST, part.slot, columns[variable], 0, first, last, number=_HALF)
            plan.reach = max(plan.reach, last + 1)
        case Constant(value):
            plan.add(CONSTANT, part.slot, 0, 0, first, last, number=1.0 if value else -1.0)
        case Negation():
            plan.add(DENY, part.slot, slots[0], 0, first, last)
        case Conjunction() | Disjunction():
            operation = BOTH if isinstance(part.formula, Conjunction) else EITHER
            plan.add(operation, part.slot, slots[0], slots[1], first, last)
            for further in slots[2:]:
                plan.add(operation, part.slot, part.slot, further, first, last)
        case Implication():
            plan.add(IMPLY, part.slot, slots[0], slots[1], first, last)
        case Always():
            plan.add(ALWAYS if part.window else ALWAYS_ON, part.slot, slots[0], 0, first, last, low, high)
        case Eventually():
            plan.add(
                EVENTUALLY if part.window else EVENTUALLY_ON, part.slot, slots[0], 0, first, last, low, high
            )
        case Until() if part.window is None:
            plan.add(HOLD_ON, part.slot, slots[0], slots[1], first, last)
        case Until():
            # The right side in the interval, the unbounded U from its begin on, and the left side until then.
            plan.add(EVENTUALLY, part.slot, slots[1], 0, first, last, low, high)
            beside = plan.take_slot(free)
            plan.add(HOLD, beside, slots[0], slots[1], first, last, low, high)
            plan.add(BOTH, part.slot, part.slot, beside, first, last)
            if low:
                plan.add(ALWAYS, beside, slots[0], 0, first, last, 0, low - 1)
                plan.add(BOTH, part.slot, part.slot, beside, first, last)
            free.append(beside)
    for child in part.children:
        _release(parts[child], free)


def _release(part: _Part, free: list[int]) -> None:
    part.readers -= 1
    if not part.readers:
        free.append(part.slot)


def _count_steps(bound: Bound, step_hours: float) -> int:
    """A bound in steps, of which it is checked that it is a whole number."""
    steps = bound.steps(step_hours) if isinstance(bound, Duration) else bound
    assert isinstance(steps, int)
    return steps


class _Check:
    """Whether formulas fit a series; an error says where one does not."""

    def __init__(self, series: Series, absent: bool) -> None:
        self.series, self.absent = series, absent
        self.grid = series.points
        self.measured: set[str] = set()

    def check(self, formula: Formula) -> None:
        if formula.open_places:
            raise point_at(
                "a template is filled before it is evaluated", show(formula), hole_places(formula)[0]
            )
        try:
            self._visit(formula, None, 0, False)
        except _Unfit as unfit:
            text, where = places(formula)
            error = point_at(unfit.problem, text, where[id(unfit.part)])
        else:
            return
        raise error

    def _visit(self, part: Formula, outer: type | None, reach: int, denied: bool) -> None:
        """Follows `G[a,b] G[c,d]` (also with not in between) as the one interval that it means."""
        match part:
            case Limit(variable=str(variable)) | Proposition(variable=variable):
                if variable not in self.measured:
                    self._check_variable(variable, part)
                return
            case Negation(inner):
                self._visit(inner, outer, reach, not denied)
                return
            case Always(window, inner) | Eventually(window, inner):
                kind = Always if isinstance(part, Always) is not denied else Eventually
                if window is None:
                    self._visit(inner, None, 0, False)
                else:
                    reach = self._check_window(window, part, reach if kind is outer else 0)
                    self._visit(inner, type(part), reach, False)
                return
            case Until(window=Window() as window):
                self._check_window(window, part, 0)
        for child in part.children:
            self._visit(child, None, 0, False)

    def _check_variable(self, name: str, part: Formula) -> None:
        stays = self.series.stays.get(name)
        if stays is None:
            raise _Unfit(f"there is no variable {name!r}{nearest(name, self.series.names)}", part)
        if not self.absent and len(self.series) and np.isnan(stays).all():
            raise _Unfit(f"no patient has a value of {name!r}", part)
        self.measured.add(name)

    def _check_window(self, window: Window, part: Formula, before: int) -> int:
        for bound in window[:2]:
            if isinstance(bound, Duration) and bound.steps(self.series.step_hours) is None:
                raise _Unfit(f"{bound} is no whole number of steps of {self.series.step}", part)
        reach = before + _count_steps(window.high, self.series.step_hours)
        if reach >= self.grid:
            more = f" (with those around it, to step {reach})" if before else ""
            raise _Unfit(
                f"the interval {window}{more} is longer than any stay: there are {self.grid} points in time",
                part,
            )
        return reach


class _Unfit(Exception):
    def __init__(self, problem: str, part: Formula) -> None:
        self.problem, self.part = problem, part
        super().__init__(problem)
