"""Formulas on the series of a cohort: truth with three values, robustness with its bounds.

A value that is missing, or lies after the end of a stay, can be anything: a formula is true or false where that does
not matter and unknown where it does; its robustness lies between two bounds and is a number where they agree. Nothing
is guessed, and a patient's values depend on no other patient's (docs/methods.md, section 6.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import FormulaError
from concilium.records.series import Series
from concilium.temporal.formula import Formula
from concilium.temporal.plan import EvaluationPlan, make_plan

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
    plan = make_plan(formulas, series, first, last, absent)
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


def _block(plan: EvaluationPlan, patients: int) -> int:
    """How many patients are computed together: as many as fit, in whole vectors of the processor."""
    width = BLOCK_BYTES // (4 * plan.rows) // 16 * 16
    return max(1, min(max(width, 16), patients))
