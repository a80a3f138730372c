"""A branch of a tree in words: `sex = f`, `40 <= age < 60`, `smoker is missing`."""

from __future__ import annotations

from collections.abc import Sequence

from concilium.records.table import Value, label


def otherwise(attribute: str) -> str:
    """The branch of all values that no other branch names."""
    return f"{attribute} is anything else"


def condition(attribute: str, value: Value | None, edges: Sequence[float] | None) -> str:
    """What a patient must fulfil to take this branch; for a binned attribute, `value` is the bin's number."""
    if value is None:
        return f"{attribute} is missing"
    if edges is None:
        return f"{attribute} = {label(value)}"
    bin_ = int(value)
    if bin_ == 0:
        return f"{attribute} < {edges[0]:g}"
    if bin_ == len(edges):
        return f"{attribute} >= {edges[-1]:g}"
    return f"{edges[bin_ - 1]:g} <= {attribute} < {edges[bin_]:g}"
