"""A branch of a tree in words: `sex = f`, `race in {1, 2, 5}`, `40 <= age < 60`, `smoker = n or missing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from concilium.records.columns import Value, label


def condition(
    attribute: str, values: Sequence[Value | None], edges: Sequence[float] | None, rest: bool = False
) -> str:
    """What a patient must fulfil to take a branch for these values (for a binned attribute, numbers of bins), and with
    `rest` for all that no branch names."""
    known = [value for value in values if value is not None]
    besides = ["missing"] * (len(known) < len(values)) + ["anything else"] * rest
    if not known:
        return f"{attribute} is {' or '.join(besides)}"
    if edges is not None:
        said = [say_range(attribute, *run, edges) for run in runs(int(bin_) for bin_ in known)]
    elif len(known) == 1:
        said = [f"{attribute} = {label(known[0])}"]
    else:
        said = [f"{attribute} in {{{', '.join(map(label, known))}}}"]
    return " or ".join([*said, *besides])


def say_range(attribute: str, first: int, last: int, edges: Sequence[float]) -> str:
    """The bins from first to last."""
    if first == 0:
        return f"{attribute} is known" if last == len(edges) else f"{attribute} < {edges[last]:g}"
    if last == len(edges):
        return f"{attribute} >= {edges[first - 1]:g}"
    return f"{edges[first - 1]:g} <= {attribute} < {edges[last]:g}"


def runs(bins: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers of bins as runs without a gap, (first, last) each."""
    found: list[tuple[int, int]] = []
    for bin_ in sorted(bins):
        if found and found[-1][1] + 1 == bin_:
            found[-1] = (found[-1][0], bin_)
        else:
            found.append((bin_, bin_))
    return found
