"""Describing windows that all have the same outcome: the tightest formulas that hold in every one of them.

docs/methods.md, section 6.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concilium.records.series import Series
from concilium.temporal.formula import Always, Conjunction, Eventually, Formula, Limit
from concilium.temporal.search_space import SearchSpace


def describe_windows(space: SearchSpace, series: Series, most: int) -> list[tuple[Formula, float]]:
    """At most so many formulas, the tightest first, each with how tight it is: of all that `>=` and `<` can say of its
    variable and the public limits, the share that it says, which is at most a half.

    Of each variable: between which limits it always is, and what it rises above and falls below at some time, each in
    the interval where that says most. Where a variable was not measured throughout, nothing is said of it.
    """
    described: list[tuple[Formula, float]] = []
    for name in space.names:
        values = series[name]
        numbers = np.array(space.limits[name], dtype=np.float32)
        best: dict[str, tuple[float, int, Formula]] = {}
        for first, last in space.intervals:
            part = values[first : last + 1]
            if np.isnan(part).any() or (series.lengths <= last).any():
                continue
            for kind, formula, tightness in _describe_course(
                name, numbers, part, (first, last), space.limits[name]
            ):
                # As tight as another, always says more of a long interval, at some time of a short one.
                rank = tightness, last - first if kind == "always" else first - last
                if kind not in best or rank > best[kind][:2]:
                    best[kind] = (*rank, formula)
        described += [(formula, round(tightness, 6)) for tightness, _, formula in best.values()]
    return sorted(described, key=lambda one: (-one[1], one[0].size))[:most]


def _describe_course(
    name: str,
    numbers: NDArray[np.float32],
    part: NDArray[np.float32],
    interval: tuple[int, int],
    limits: tuple[float, ...],
) -> list[tuple[str, Formula, float]]:
    """What holds of one variable in one interval of every window; numbers are those of `limits` in 32 bits."""
    count = len(numbers)
    floor = int(np.searchsorted(numbers, part.min(), side="right")) - 1  # the largest limit that is reached
    ceiling = int(np.searchsorted(numbers, part.max(), side="right"))  # the smallest that never is
    always = []
    if floor >= 0:
        always.append(Limit(name, ">=", limits[floor]))
    if ceiling < count:
        always.append(Limit(name, "<", limits[ceiling]))
    described: list[tuple[str, Formula, float]] = []
    if always:
        ruled_out = (floor + 1) / count + (count - ceiling) / count
        inner = always[0] if len(always) == 1 else Conjunction(always).canonical()
        described.append(("always", Always(interval, inner), ruled_out / 2))
    # At some time in every window: the peak of the lowest window, and the trough of the highest.
    peak = int(np.searchsorted(numbers, part.max(axis=0).min(), side="right")) - 1
    if peak > floor:
        rises = Eventually(interval, Limit(name, ">=", limits[peak]))
        described.append(("rises", rises, (peak + 1) / count / 2))
    trough = int(np.searchsorted(numbers, part.min(axis=0).max(), side="right"))
    if trough < ceiling and trough < count:
        falls = Eventually(interval, Limit(name, "<", limits[trough]))
        described.append(("falls", falls, (count - trough) / count / 2))
    return described
