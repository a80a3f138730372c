"""Randomised response by blocks: ClinSimRR, and with blocks of one code UMAXRR and k-RR.

Of n protected codes Y_P, each has a block of b. With probability p_S = n/(n - b + b e^E) any code, protected or
not, becomes one of Y_P, all alike; or else a protected code becomes one of its block, all alike, and any other
stays what it is. That is Eqs. 6 and 7 of the source with equalities: a protected code stays in its block with
probability p_T = b e^E/(n - b + b e^E). With b = 1 it is UMAXRR, and with all codes protected k-RR.

Codes that are hidden for what they say about others need not be outputs: those of `never_shown` have a block of b
codes of Y_P as well, and leave as one of Y_P always. So n stays small, and sensitive codes lose no more than
without them.

Claim. Protected: each recorded code by itself, from everybody who sees an output in Y_P, whatever else is known:
for any two inputs x, x' and any y in Y_P, P(y | x) <= e^E P(y | x'). Cost: pure epsilon E for each event; k events
cost k E. Assumption: the operating system's generator. Not protected: an output outside of Y_P is its input; when
events took place, and how many; what codes in the clear say about the others, which is kept small by other means
(docs/methods.md, section 7.4). p_S is rounded up to a multiple of 2^-64 and the rest is drawn without bias, so the
ratio never exceeds e^E.

docs/methods.md, section 7.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.codes.blocks import check_size, form_blocks
from concilium.privacy import randomness
from concilium.privacy.bits import find_replacement_threshold, toss
from concilium.privacy.mechanisms import warn_if_noiseless

CODES_AT_ONCE = 1 << 18
UNREADABLE = -1


@dataclass(frozen=True, eq=False)
class BlockResponse:
    """The mechanism for `size` codes 0 ... size - 1: `protected` are those of Y_P; `blocks` has a row of places in
    `protected` for each of them, and then for each code that is `never_shown`."""

    size: int
    protected: NDArray[np.int32]
    blocks: NDArray[np.intp]
    epsilon: Fraction
    never_shown: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def __post_init__(self) -> None:
        check_size(self.block_size, len(self.protected))

    @classmethod
    def from_distances(
        cls,
        size: int,
        protected: NDArray[np.int32],
        distances: NDArray[np.float64],
        block_size: int,
        epsilon: Fraction,
        never_shown: NDArray[np.int32] | None = None,
    ) -> BlockResponse:
        """Blocks of the codes nearest to each, by the distances to the protected codes.

        There is a row for each of them, and then one for each that is never shown.
        """
        blocks = form_blocks(distances, block_size)
        if never_shown is None:
            return cls(size, protected, blocks, epsilon)
        return cls(size, protected, blocks, epsilon, never_shown)

    @classmethod
    def without_blocks(cls, size: int, protected: NDArray[np.int32], epsilon: Fraction) -> BlockResponse:
        """UMAXRR; or k-RR where all codes are protected."""
        return cls(size, protected, np.arange(len(protected))[:, None], epsilon)

    @property
    def block_size(self) -> int:
        """b."""
        return int(self.blocks.shape[1])

    @cached_property
    def _threshold(self) -> int:
        return find_replacement_threshold(len(self.protected), self.epsilon, self.block_size)

    @cached_property
    def replaced(self) -> Fraction:
        """p_S, exactly as it is drawn: a code becomes one of Y_P at random, whatever it was."""
        return Fraction(self._threshold, 2**64)

    @property
    def elsewhere(self) -> Fraction:
        """P(y | x) of a y in Y_P that is not in the block of x."""
        return self.replaced / len(self.protected)

    @property
    def inside(self) -> Fraction:
        """P(y | x) of a y in the block of x."""
        return self.elsewhere + (1 - self.replaced) / self.block_size

    @property
    def hidden_outputs(self) -> NDArray[np.int32]:
        """The outputs that do not tell their input."""
        return self.protected

    @cached_property
    def places(self) -> NDArray[np.int32]:
        """The row of each code in `blocks`; -1 for codes in the clear."""
        places = np.full(self.size, -1, dtype=np.int32)
        places[np.concatenate([self.protected, self.never_shown])] = np.arange(
            len(self.blocks), dtype=np.int32
        )
        return places

    @cached_property
    def _table(self) -> NDArray[np.int32]:
        return self.protected[self.blocks]

    def randomize(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Each code randomised by itself, independent of all others. What is no code (UNREADABLE) becomes any of Y_P:
        its ratio to every other input is at most e^E, too, as p_S >= e^-E and n P(y | x) <= e^E."""
        warn_if_noiseless(self.epsilon, f"epsilon = {float(self.epsilon):g}")
        answers = np.array(codes, dtype=np.int32)
        unreadable = np.flatnonzero(answers == UNREADABLE)
        answers[unreadable] = self.protected[randomness.draw_below(len(self.protected), len(unreadable))]
        if randomness.noise_is_zero():
            return answers
        drawn = answers[unreadable]
        for first in range(0, len(answers), CODES_AT_ONCE):
            self._randomize_some(answers[first : first + CODES_AT_ONCE])
        answers[unreadable] = drawn
        return answers

    def _randomize_some(self, answers: NDArray[np.int32]) -> None:
        coins = toss(len(answers), self._threshold)
        replaced = np.flatnonzero(coins)
        if self.block_size > 1 or len(self.never_shown):
            places = self.places[answers]
            kept = np.flatnonzero((places >= 0) & ~coins)
            answers[kept] = self._table[places[kept], randomness.draw_below(self.block_size, len(kept))]
        answers[replaced] = self.protected[randomness.draw_below(len(self.protected), len(replaced))]

    def find_hidden(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """P(y | x) for each input x (rows) and each hidden output y."""
        matrix = np.full((len(inputs), len(self.protected)), float(self.elsewhere))
        places = self.places[inputs]
        rows = np.flatnonzero(places >= 0)
        matrix[rows[:, None], self.blocks[places[rows]]] = float(self.inside)
        return matrix

    def find_shown(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """The probability that each input leaves as it is, in the clear."""
        return np.where(self.places[inputs] >= 0, 0.0, float(1 - self.replaced))
