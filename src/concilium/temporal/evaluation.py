"""Formulas on the series of a cohort: truth with three values, robustness with its bounds.

A value that is missing, or lies after the end of a stay, can be anything: a formula is true or false where that does
not matter and unknown where it does; its robustness lies between two bounds and is a number where they agree. Nothing
is guessed, and a patient's values depend on no other patient's (docs/methods.md, section 6.1).

Formulas become a list of instructions for the kernel. Composite parts that several formulas share are computed once for
a block of patients, each only for the rows that are asked of it, and their memory is given back after the last use.
Limits are not kept: comparing anew costs less than keeping them in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import FormulaError, nearest
from concilium.records.series import Series
from concilium.temporal import formula as stl
from concilium.temporal.formula import Formula
from concilium.temporal.parsing import hole_places, places, point_at, show
from concilium.temporal.windows import Duration, Window

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
class _EvaluationPlan:
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


def _make_plan(
    formulas: Sequence[Formula], series: Series, first: int, last: int, absent: bool = False
) -> _EvaluationPlan:
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
    plan = _EvaluationPlan(names)
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
    steps = None if window is None else window.steps(step_hours)
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
        case stl.Always() | stl.Eventually() | stl.Until():
            if part.window is None:
                first, last = part.first, grid - 1
            else:
                low = 0 if isinstance(part.formula, stl.Until) else part.window[0]
                first, last = min(part.first + low, grid - 1), min(part.last + part.window[1], grid - 1)
        case _:
            first, last = part.first, part.last
    for child in part.children:
        parts[child].ask(first, last)


def _emit(
    part: _Part, parts: list[_Part], plan: _EvaluationPlan, columns: dict[str, int], free: list[int]
) -> None:
    slots = [parts[child].slot for child in part.children]
    part.slot = plan.take_slot(free)
    first, last = part.first, part.last
    low, high = part.window or (0, 0)
    plan.rows = max(plan.rows, last - first + 1)
    match part.formula:
        case stl.Limit(variable=str(variable), relation=str(relation), number=float(number)):
            plan.add(_RELATIONS[relation], part.slot, columns[variable], 0, first, last, number=number)
            plan.reach = max(plan.reach, last + 1)
        case stl.Proposition(variable):
            plan.add(AT_LEAST, part.slot, columns[variable], 0, first, last, number=_HALF)
            plan.reach = max(plan.reach, last + 1)
        case stl.Constant(value):
            plan.add(CONSTANT, part.slot, 0, 0, first, last, number=1.0 if value else -1.0)
        case stl.Negation():
            plan.add(DENY, part.slot, slots[0], 0, first, last)
        case stl.Conjunction() | stl.Disjunction():
            operation = BOTH if isinstance(part.formula, stl.Conjunction) else EITHER
            plan.add(operation, part.slot, slots[0], slots[1], first, last)
            for further in slots[2:]:
                plan.add(operation, part.slot, part.slot, further, first, last)
        case stl.Implication():
            plan.add(IMPLY, part.slot, slots[0], slots[1], first, last)
        case stl.Always():
            plan.add(ALWAYS if part.window else ALWAYS_ON, part.slot, slots[0], 0, first, last, low, high)
        case stl.Eventually():
            plan.add(
                EVENTUALLY if part.window else EVENTUALLY_ON, part.slot, slots[0], 0, first, last, low, high
            )
        case stl.Until() if part.window is None:
            plan.add(HOLD_ON, part.slot, slots[0], slots[1], first, last)
        case stl.Until():
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
            case stl.Limit(variable=str(variable)) | stl.Proposition(variable=variable):
                if variable not in self.measured:
                    self._check_variable(variable, part)
                return
            case stl.Negation(inner):
                self._visit(inner, outer, reach, not denied)
                return
            case stl.Always(window, inner) | stl.Eventually(window, inner):
                kind = stl.Always if isinstance(part, stl.Always) is not denied else stl.Eventually
                if window is None:
                    self._visit(inner, None, 0, False)
                else:
                    reach = self._check_window(window, part, reach if kind is outer else 0)
                    self._visit(inner, type(part), reach, False)
                return
            case stl.Until(window=Window() as window):
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
        try:
            reach = before + window.steps(self.series.step_hours)[1]
        except ValueError as error:
            raise _Unfit(f"{error} of {self.series.step}", part) from None
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


Truths = np.ma.MaskedArray[Any, np.dtype[np.bool_]]
"""True or false, masked where that is unknown."""
At = int | Literal["all"]

# What is unknown at least and at most, false, and true.
_ROBUST_ENDS = np.array([-np.inf, np.inf, -np.inf, np.inf], dtype=np.float32)
_TRUTH_ENDS = np.array([0, 0, -1, 1], dtype=np.float32)

BLOCK_BYTES = 48 * 1024
"""A part of a block of patients, so that a few of them stay in the cache of one core."""


def robustness_all(
    formulas: Sequence[Formula], series: Series, at: At = 0, *, absent: bool = False
) -> NDArray[np.float32]:
    """The robustness of each formula for each patient, [formula, patient]; NaN where it is unknown.

    With `at="all"`, [formula, time, patient]. Parts that formulas share are computed once. A variable that no patient
    has a value of is an error or, with `absent`, unknown.
    """
    return _evaluate(formulas, series, at, "ROBUSTNESS", _ROBUST_ENDS, absent)[0]


def bounds_all(
    formulas: Sequence[Formula], series: Series, at: At = 0, *, absent: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The least and the greatest robustness that each formula can have for each patient."""
    return _evaluate(formulas, series, at, "BOUNDS", _ROBUST_ENDS, absent)


def satisfied_all(formulas: Sequence[Formula], series: Series, at: At = 0, *, absent: bool = False) -> Truths:
    """Whether each formula holds for each patient, [formula, patient], masked where that is unknown."""
    truth, _ = _evaluate(formulas, series, at, "TRUTH", _TRUTH_ENDS, absent)
    return np.ma.MaskedArray(truth > 0, mask=truth == 0)


def _evaluate(
    formulas: Sequence[Formula], series: Series, at: At, wanted: str, ends: NDArray[np.float32], absent: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    from concilium.temporal import kernel

    grid = series.points
    first, last = (0, grid - 1) if at == "all" else (at, at)
    if not (isinstance(first, int) and 0 <= first < grid):
        raise FormulaError(f"there is no point in time {at!r}; they are 0 to {grid - 1}, or 'all'", "")
    plan = _make_plan(formulas, series, first, last, absent)
    mode = getattr(kernel, wanted)
    patients, rows = len(series), last - first + 1
    least = np.empty((len(formulas), rows, patients), dtype=np.float32)
    greatest = np.empty(least.shape if mode == kernel.BOUNDS else (0, 0, 0), dtype=np.float32)
    code, numbers = plan.code, np.array(plan.numbers, dtype=np.float32)
    block = _block(plan, patients)
    lows = np.empty((max(plan.slots, 1), plan.rows * block), dtype=np.float32)
    highs = lows if mode == kernel.TRUTH else np.empty_like(lows)
    spare = np.empty((4, plan.rows * block), dtype=np.float32)
    variables = np.empty((len(plan.variables), plan.reach * block), dtype=np.float32)
    missing = np.zeros((len(plan.variables), plan.reach + 1), dtype=np.int32)
    for start in range(0, patients, block):
        lengths = np.ascontiguousarray(series.lengths[start : start + block])
        begins = series.starts[start : start + len(lengths)]
        for index, name in enumerate(plan.variables):
            kernel.load(series.stays[name], begins, lengths, plan.reach, variables[index], missing[index])
        kernel.run(
            code, numbers, variables, missing, lengths, grid, mode,
            lows, highs, spare, ends, least, greatest, start,
        )  # fmt: skip
    if at == "all":
        return least, greatest
    return least[:, 0], greatest[:, 0] if mode == kernel.BOUNDS else greatest


def _block(plan: _EvaluationPlan, patients: int) -> int:
    """How many patients are computed together: as many as fit, in whole vectors of the processor."""
    width = BLOCK_BYTES // (4 * plan.rows) // 16 * 16
    return max(1, min(max(width, 16), patients))


def count_points(rule: Formula, step_hours: float) -> int:
    """How many points in time a rule looks at, at most: where a stay is shorter, what comes after it is unknown.

    Intervals inside each other add up; those side by side do not."""
    return _reach(rule, step_hours) + 1


def _reach(rule: Formula, step_hours: float) -> int:
    window: Window | None = getattr(rule, "window", None)
    last = 0
    if window is not None and isinstance(window.high, int | Duration):
        high = window.high
        last = (high.steps(step_hours) or 0) if isinstance(high, Duration) else high
    return last + max((_reach(child, step_hours) for child in rule.children), default=0)
