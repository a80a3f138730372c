"""How many experts: the stop rule (docs/methods.md, section 1.13), apart from how experts are made.

Ensembles of 1, 3, 5, ... experts are measured in turn. The best so far is final once neither of the next two beats it
by more than `delta`; otherwise the better of the two takes its place. The best then rises by more than `delta` each
time and cannot exceed 1, so that this ends. (The thesis, 7.5.2, names 11 experts where its own table and this rule give
13.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def find_final(measures: Sequence[Fraction], delta: Fraction) -> int | None:
    """The stage that is final by the measures of stages 0, 1, ...; None where the next one must be measured."""
    best = 0
    while best + 2 < len(measures):
        first, second = measures[best + 1 : best + 3]
        if max(first, second) <= measures[best] + delta:
            return best
        best += 2 if second > first else 1
    return None


def experts_at(stage: int) -> int:
    """How many experts vote at a stage: always odd, so that no vote is a tie."""
    return 2 * stage + 1


def balanced_accuracy(confusion: list[list[int]]) -> Fraction:
    """Mean of sensitivity and specificity, exactly, from counts [truth][vote]; 0 where a class has nobody."""
    shares = [
        Fraction(row[index], sum(row)) if sum(row) else Fraction(0) for index, row in enumerate(confusion)
    ]
    return sum(shares, Fraction(0)) / 2
