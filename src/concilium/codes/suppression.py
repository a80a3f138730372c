"""Suppression, what is done today: sensitive codes are blotted out, all others stay as they are.

Claim: none. Whoever sees the blot knows that a sensitive code was there, and the codes beside it say which.

docs/methods.md, section 7.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Suppression:
    """The mechanism for `size` codes 0 ... size - 1: each of `protected` becomes the blot, which is number `size`."""

    size: int
    protected: NDArray[np.int32]

    @property
    def hidden_outputs(self) -> NDArray[np.int32]:
        """The outputs that do not tell their input: the blot."""
        return np.array([self.size], dtype=np.int32)

    @cached_property
    def places(self) -> NDArray[np.int32]:
        """0 for codes that are blotted out, -1 for codes in the clear."""
        places = np.full(self.size, -1, dtype=np.int32)
        places[self.protected] = 0
        return places

    def randomize(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The codes, the protected ones blotted out; nothing is random."""
        return np.where(self.places[codes] >= 0, np.int32(self.size), codes).astype(np.int32)

    def find_hidden(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """P(blot | x) for each input."""
        return (self.places[inputs] >= 0).astype(np.float64)[:, None]

    def find_shown(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """The probability that each input leaves as it is, in the clear."""
        return (self.places[inputs] < 0).astype(np.float64)
