"""The instructions of a plan, run on a block of patients: minima and maxima of rows that stay in the cache.

A part is rows [time, patient], one after the other. In the robust semantics it has a least and a greatest value, and
only the one where they are equal (`exact`); the boolean semantics is the same arithmetic on -1, 0 (unknown) and 1.
Everything is unknown after the end of a stay and of the grid. Intervals are minima of minima, by doubling; U in an
interval is F in that interval together with the unbounded U (Donzé, Ferrère, Maler 2013), which is one pass backwards
(docs/methods.md, section 6.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.temporal import evaluation as ops

TRUTH, ROBUSTNESS, BOUNDS = range(3)
"""What is wanted: whether formulas hold, their robustness where it is one number, or its bounds."""

Values = NDArray[np.float32]


@compiled()
def load(
    stays: Values,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int32],
    rows: int,
    into: Values,
    missing: NDArray[np.int32],
) -> None:
    """Lays out a variable of a block of patients, and counts the rows with missing values up to each."""
    count, width = 0, len(begins)
    for row in range(rows):
        missing[row] = count
        lacking = 0
        for patient in range(width):
            value = stays[begins[patient] + row] if row < lengths[patient] else np.float32(np.nan)
            into[row * width + patient] = value
            lacking += value != value
        count += lacking > 0
    missing[rows] = count


@compiled()
def run(
    code: NDArray[np.int32],
    numbers: Values,
    variables: Values,  # [variable, row * patient]
    missing: NDArray[np.int32],  # [variable, row]
    lengths: NDArray[np.int32],
    grid: int,
    mode: int,
    lows: Values,  # [slot, row * patient]
    highs: Values,
    spare: Values,  # [4, row * patient]
    ends: Values,  # what is unknown at least and at most, and the least and the greatest of all
    least: Values,  # [result, row, patient]
    greatest: Values,
    start: int,
) -> None:
    """Runs the instructions for the patients from `start` on."""
    width = len(lengths)
    shortest = grid
    for patient in range(width):
        shortest = min(shortest, lengths[patient])
    firsts = np.zeros(len(lows), np.int32)
    exact = np.zeros(len(lows), np.bool_)
    for step in range(len(code)):
        operation, out, one, other = code[step, 0], code[step, 1], code[step, 2], code[step, 3]
        first, last, low, high = code[step, 4], code[step, 5], code[step, 6], code[step, 7]
        cells = (last - first + 1) * width
        if operation == ops.RESULT:
            upper = lows[one] if exact[one] else highs[one]
            begin = (first - firsts[one]) * width
            _hand_over(mode, exact[one], lows[one], upper, begin, least[out], greatest, out, start, width)
            continue
        firsts[out] = first
        if operation <= ops.UNEQUAL:
            values = variables[one][first * width : (last + 1) * width]
            exact[out] = mode == TRUTH or missing[one, last + 1] == missing[one, first]
            if mode == TRUTH:
                _judge(operation, values, numbers[step], lows[out][:cells])
            elif exact[out]:
                _measure(operation, values, numbers[step], lows[out][:cells])
            else:
                _measure(operation, values, numbers[step], spare[0][:cells])
                _open(spare[0], lows[out][:cells], highs[out])
            continue
        if operation == ops.CONSTANT:
            _hold_constant(numbers[step] > 0, first, last, lengths, ends, lows[out], highs[out])
            exact[out] = mode == TRUTH or shortest > last
            continue
        unary = operation in (ops.DENY, ops.ALWAYS, ops.EVENTUALLY, ops.ALWAYS_ON, ops.EVENTUALLY_ON)
        one_exact, other_exact = exact[one], unary or exact[other]
        exact[out] = one_exact and other_exact
        if mode != TRUTH and operation in (ops.ALWAYS, ops.EVENTUALLY, ops.HOLD) and last + high >= grid:
            exact[out] = False
        if out == one and one_exact and not exact[out]:
            _copy(lows[out], highs[out][:cells])
            one_exact = False
        # What an operator reads begins at its first row, or where its interval does.
        at_one = (first + low - firsts[one]) * width
        at_other = 0 if unary else (first + low - firsts[other]) * width
        for side in range(1 if exact[out] else 2):
            unknown = ends[side]
            into = lows[out] if side == 0 else highs[out]
            a = (lows[one] if side == 0 or one_exact else highs[one])[at_one:]
            turned = (highs[one] if side == 0 and not one_exact else lows[one])[at_one:]
            b = (lows[other] if side == 0 or other_exact else highs[other])[at_other:]
            if operation == ops.DENY:
                _deny(turned, into[:cells])
            elif operation in (ops.BOTH, ops.EITHER):
                if out == one:
                    _join(operation == ops.BOTH, b, into[:cells])
                else:
                    _combine(operation == ops.BOTH, a, b, into[:cells])
            elif operation == ops.IMPLY:
                _imply(turned, b, into[:cells])
            elif operation in (ops.ALWAYS, ops.EVENTUALLY):
                minimum = operation == ops.ALWAYS
                _slide(minimum, a, into, first, last, low, high, grid, width, unknown, spare)
            elif operation in (ops.ALWAYS_ON, ops.EVENTUALLY_ON):
                minimum = operation == ops.ALWAYS_ON
                _carry(minimum, a, into, first, last, grid, lengths, shortest, unknown, ends, spare)
            elif operation == ops.HOLD:
                _hold(a, b, into, first, last, low, high, grid, width, unknown, ends, spare)
            elif operation == ops.HOLD_ON:
                _hold_on(a, b, into, first, last, grid, lengths, shortest, unknown, ends, spare)


@compiled()
def _hand_over(
    mode: int,
    exact: bool,
    lower: Values,
    upper: Values,
    begin: int,
    least: Values,
    greatest: Values,
    result: int,
    start: int,
    width: int,
) -> None:
    """The rows that were asked for, to where the caller finds them."""
    for row in range(len(least)):
        at = begin + row * width
        if mode == BOUNDS:
            for patient in range(width):
                least[row, start + patient] = lower[at + patient]
                greatest[result, row, start + patient] = upper[at + patient]
        elif mode == TRUTH or exact:
            for patient in range(width):
                least[row, start + patient] = lower[at + patient]
        else:
            for patient in range(width):
                x = lower[at + patient]
                least[row, start + patient] = x if x == upper[at + patient] else np.nan


@compiled()
def _measure(operation: int, values: Values, number: float, out: Values) -> None:
    """The distance to a limit, positive where it is kept."""
    if operation in (ops.MORE, ops.AT_LEAST):
        for i in range(len(out)):
            out[i] = values[i] - number
    elif operation in (ops.LESS, ops.AT_MOST):
        for i in range(len(out)):
            out[i] = number - values[i]
    elif operation == ops.EQUAL:
        for i in range(len(out)):
            out[i] = -abs(values[i] - number)
    else:
        for i in range(len(out)):
            out[i] = abs(values[i] - number)


@compiled()
def _open(values: Values, low: Values, high: Values) -> None:
    """What is missing can be anything."""
    for i in range(len(low)):
        x = values[i]
        low[i] = x if x == x else -np.inf
        high[i] = x if x == x else np.inf


@compiled()
def _judge(operation: int, values: Values, number: float, out: Values) -> None:
    """Whether a limit is kept: 1, -1, or 0 where the value is missing."""
    if operation == ops.LESS:
        for i in range(len(out)):
            out[i] = np.float32(values[i] < number) - np.float32(values[i] >= number)
    elif operation == ops.AT_MOST:
        for i in range(len(out)):
            out[i] = np.float32(values[i] <= number) - np.float32(values[i] > number)
    elif operation == ops.MORE:
        for i in range(len(out)):
            out[i] = np.float32(values[i] > number) - np.float32(values[i] <= number)
    elif operation == ops.AT_LEAST:
        for i in range(len(out)):
            out[i] = np.float32(values[i] >= number) - np.float32(values[i] < number)
    else:
        sign = np.float32(1) if operation == ops.EQUAL else np.float32(-1)
        for i in range(len(out)):
            equal = np.float32(values[i] == number)
            different = np.float32(values[i] < number) + np.float32(values[i] > number)
            out[i] = sign * (equal - different)


@compiled()
def _hold_constant(
    true: bool, first: int, last: int, lengths: NDArray[np.int32], ends: Values, low: Values, high: Values
) -> None:
    """A constant, during the stay."""
    width = len(lengths)
    value = ends[3] if true else ends[2]
    for row in range(last - first + 1):
        for patient in range(width):
            inside = first + row < lengths[patient]
            low[row * width + patient] = value if inside else ends[0]
            high[row * width + patient] = value if inside else ends[1]


@compiled()
def _put(value: float, out: Values) -> None:
    for i in range(len(out)):
        out[i] = value


@compiled()
def _copy(a: Values, out: Values) -> None:
    for i in range(len(out)):
        out[i] = a[i]


@compiled()
def _mask(a: Values, row: int, lengths: NDArray[np.int32], otherwise: float, out: Values) -> None:
    """The values of a row during the stay."""
    for i in range(len(lengths)):
        out[i] = a[i] if row < lengths[i] else otherwise


@compiled()
def _deny(a: Values, out: Values) -> None:
    for i in range(len(out)):
        out[i] = -a[i]


@compiled()
def _imply(premise: Values, b: Values, out: Values) -> None:
    for i in range(len(out)):
        x, y = -premise[i], b[i]
        out[i] = x if x > y else y


@compiled()
def _combine(minimum: bool, a: Values, b: Values, out: Values) -> None:
    if minimum:
        for i in range(len(out)):
            x, y = a[i], b[i]
            out[i] = x if x < y else y
    else:
        for i in range(len(out)):
            x, y = a[i], b[i]
            out[i] = x if x > y else y


@compiled()
def _join(minimum: bool, b: Values, out: Values) -> None:
    # In place, a comparison would be compiled to a branch around the store, and not to a vector instruction.
    if minimum:
        for i in range(len(out)):
            out[i] = np.minimum(out[i], b[i])
    else:
        for i in range(len(out)):
            out[i] = np.maximum(out[i], b[i])


@compiled()
def _slide(
    minimum: bool,
    source: Values,
    into: Values,
    first: int,
    last: int,
    low: int,
    high: int,
    grid: int,
    width: int,
    unknown: float,
    spare: Values,
) -> None:
    """The minimum (or maximum) of the rows from t + low to t + high for every row t from first to last."""
    rows = last - first + 1
    wide = high - low + 1
    there = min(last + high, grid - 1) - (first + low) + 1
    if there <= 0:
        _put(unknown, into[: rows * width])
        return
    current = source[: there * width]
    kept = min(rows, there) * width
    _put(unknown, into[kept : rows * width])
    doublings = 0
    while 2 << doublings <= wide:
        doublings += 1
    if rows * (wide - 1) <= there * doublings:
        _copy(current, into[:kept])
        for offset in range(1, min(wide, there)):
            _join(minimum, current[offset * width :], into[: min(kept, (there - offset) * width)])
    else:
        covered, turn = 1, 0
        while 2 * covered <= wide:
            following = spare[turn][: there * width]
            both = max(there - covered, 0) * width
            _combine(minimum, current, current[covered * width :], following[:both])
            _copy(current[both:], following[both:])
            current, covered, turn = following, 2 * covered, 1 - turn
        shift = wide - covered
        both = max(min(rows, there - shift), 0) * width
        _combine(minimum, current, current[shift * width :], into[:both])
        _copy(current[both:], into[both:kept])
    if there < rows + wide - 1:
        cut = into[max(there - wide + 1, 0) * width : kept]
        for i in range(len(cut)):
            cut[i] = np.minimum(cut[i], unknown) if minimum else np.maximum(cut[i], unknown)


@compiled()
def _carry(
    minimum: bool,
    source: Values,
    into: Values,
    first: int,
    last: int,
    grid: int,
    lengths: NDArray[np.int32],
    shortest: int,
    unknown: float,
    ends: Values,
    spare: Values,
) -> None:
    """The minimum (or maximum) from every row to the end of the stay."""
    width = len(lengths)
    neutral = ends[3] if minimum else ends[2]
    carried, masked = spare[0][:width], spare[1]
    _put(neutral, carried)
    for row in range(grid - 1, first - 1, -1):
        values = source[(row - first) * width :]
        if row >= shortest:
            _mask(values, row, lengths, neutral, masked)
            values = masked
        _join(minimum, values, carried)
        if row <= last:
            at = (row - first) * width
            if row < shortest:
                _copy(carried, into[at : at + width])
            else:
                _mask(carried, row, lengths, unknown, into[at:])


@compiled()
def _hold(
    left: Values,
    right: Values,
    into: Values,
    first: int,
    last: int,
    low: int,
    high: int,
    grid: int,
    width: int,
    unknown: float,
    ends: Values,
    spare: Values,
) -> None:
    """For every row t the unbounded `left U right` at t + low, of which no more than t + high is seen."""
    rows, begin = last - first + 1, first + low
    later, turn = spare[0][:width], 1
    _put(unknown if last + high >= grid else ends[2], later)
    _put(unknown, into[min(max(grid - begin, 0), rows) * width : rows * width])
    for row in range(min(last + high, grid - 1), begin - 1, -1):
        here = spare[turn][:width]
        _step_back(left[(row - begin) * width :], right[(row - begin) * width :], later, here)
        later, turn = here, 1 - turn
        if row <= last + low:
            at = (row - begin) * width
            _copy(here, into[at : at + width])


@compiled()
def _step_back(left: Values, right: Values, later: Values, out: Values) -> None:
    for i in range(len(out)):
        out[i] = np.maximum(right[i], np.minimum(left[i], later[i]))


@compiled()
def _hold_on(
    left: Values,
    right: Values,
    into: Values,
    first: int,
    last: int,
    grid: int,
    lengths: NDArray[np.int32],
    shortest: int,
    unknown: float,
    ends: Values,
    spare: Values,
) -> None:
    """`left U right` until the end of the stay."""
    width = len(lengths)
    later, turn = spare[0][:width], 1
    _put(ends[2], later)
    for row in range(grid - 1, first - 1, -1):
        one, other = left[(row - first) * width :], right[(row - first) * width :]
        if row >= shortest:
            _mask(one, row, lengths, ends[2], spare[2])
            _mask(other, row, lengths, ends[2], spare[3])
            one, other = spare[2], spare[3]
        here = spare[turn][:width]
        _step_back(one, other, later, here)
        later, turn = here, 1 - turn
        if row <= last:
            at = (row - first) * width
            if row < shortest:
                _copy(here, into[at : at + width])
            else:
                _mask(here, row, lengths, unknown, into[at:])
