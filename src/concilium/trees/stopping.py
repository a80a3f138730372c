"""How many experts: the stop rule of chapter 7 of the thesis (7.4, step 15), apart from how experts are made.

Ensembles of 1, 3, 5, ... experts are measured in turn. The best so far is final once neither of the next two beats it
by more than `delta`; otherwise the better of the two takes its place. The best then rises by more than `delta` each
time and cannot exceed 1, so that this ends. (The text of 7.5.2 names 11 experts where its own table and this rule give
13.)
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction


def grow_until_settled(measure: Callable[[int], Fraction], delta: Fraction) -> tuple[int, list[Fraction]]:
    """The stage that is final, and the measures of all stages that were tried; stage s has 2s + 1 experts.

    `measure` is called once for each stage, in order.
    """
    tried = [measure(0)]
    best = 0
    while True:
        while len(tried) <= best + 2:
            tried.append(measure(len(tried)))
        first, second = tried[best + 1], tried[best + 2]
        if max(first, second) <= tried[best] + delta:
            return best, tried
        best += 2 if second > first else 1


def experts_at(stage: int) -> int:
    """How many experts vote at a stage: always odd, so that no vote is a tie."""
    return 2 * stage + 1


def balanced_accuracy(confusion: list[list[int]]) -> Fraction:
    """Mean of sensitivity and specificity, exactly, from counts [truth][vote]; 0 where a class has nobody."""
    shares = [
        Fraction(row[index], sum(row)) if sum(row) else Fraction(0) for index, row in enumerate(confusion)
    ]
    return sum(shares, Fraction(0)) / 2
