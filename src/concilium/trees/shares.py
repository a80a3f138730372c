"""What a node says of the patients who rest there: the share of each class, and the class that is predicted."""

from __future__ import annotations

from collections.abc import Sequence


def class_shares(counts: Sequence[int]) -> list[float]:
    """The share of each class; where noise left nobody, no class is likelier than another."""
    everyone = sum(counts)
    return [count / everyone if everyone else 1 / len(counts) for count in counts]


def predicted(counts: Sequence[int]) -> int:
    """Which class is predicted: the commonest, and the first of those that are equally common."""
    return max(range(len(counts)), key=lambda index: (counts[index], -index))
