"""A branch of a tree in words: `sex = f`, `race in {1, 2, 5}`, `40 <= age < 60`, `smoker = n or missing`."""

from __future__ import annotations

from collections.abc import Sequence

from concilium.protocol.attributes import find_runs
from concilium.records.columns import Value, label


def condition(
    attribute: str, values: Sequence[Value | None], edges: Sequence[float] | None, rest: bool = False
) -> str:
    """What a patient must fulfil to take a branch for these values (for a binned attribute, numbers of bins), and with
    `rest` for all that no branch names."""
    named = [value for value in values if value is not None]
    besides = ["missing"] * (None in values) + ["anything else"] * rest
    if not named:
        return f"{attribute} is {' or '.join(besides)}"
    if edges is not None:
        parts = [say_range(attribute, *run, edges) for run in find_runs(map(int, named))]
    elif len(named) == 1:
        parts = [f"{attribute} = {label(named[0])}"]
    else:
        parts = [f"{attribute} in {{{', '.join(map(label, named))}}}"]
    return " or ".join([*parts, *besides])


def say_range(attribute: str, first: int, last: int, edges: Sequence[float]) -> str:
    """The bins from first to last."""
    if first == 0:
        return f"{attribute} is known" if last == len(edges) else f"{attribute} < {edges[last]:g}"
    if last == len(edges):
        return f"{attribute} >= {edges[first - 1]:g}"
    return f"{edges[first - 1]:g} <= {attribute} < {edges[last]:g}"
