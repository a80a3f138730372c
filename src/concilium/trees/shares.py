"""What a node says of the patients who rest there: the share of each class."""

from __future__ import annotations

from collections.abc import Sequence


def class_shares(counts: Sequence[int]) -> list[float]:
    """The share of each class; where noise left nobody, no class is likelier than another."""
    everyone = sum(counts)
    return [count / everyone if everyone else 1 / len(counts) for count in counts]
