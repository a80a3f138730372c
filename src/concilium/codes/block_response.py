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
events took place, and how many; what unprotected codes say about the others, which is kept small by other means
(docs/methods.md, section 7.4). p_S is rounded up to a multiple of 2^-64 and the rest is drawn without bias, so the
ratio never exceeds e^E.

Blocks: each protected code has the b - 1 protected codes most like it. The expected clinical information loss of a
code e (Eq. 5), with x = e^E, is ((x - 1) * sum of d over the block + sum of d over all protected codes) / (n + (x -
1) b). Block sizes are compared on the *original* sensitive codes: Eq. 8 of the source sums over a set that grows,
and rewards adding easy codes. Codes that make good company for sensitive ones may be added, each time the one that
lowers the loss most. The choice costs nothing: it looks at distances, epsilon, the sets and auxiliary patients,
never at patients who are shared (docs/methods.md, section 7.6).

docs/methods.md, section 7.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.privacy import randomness
from concilium.privacy.mechanisms import find_replacement_threshold, toss, warn_if_noiseless

TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Blocking:
    """The size of a block, the candidates added to the protected codes, and the loss expected for a sensitive code."""

    size: int
    added: NDArray[np.intp]
    loss: float


def _form_blocks(distances: NDArray[np.float64], size: int) -> NDArray[np.intp]:
    """In row i, i itself and the `size - 1` others nearest to it; of two equally near the first.

    Rows beyond the columns are of codes that are not among those of the columns: the `size` nearest.
    """
    count = distances.shape[1]
    check_size(size, count)
    ranked = distances.copy()
    ranked[np.arange(count), np.arange(count)] = -1.0
    return np.argsort(ranked, axis=1, kind="stable")[:, :size]


def check_size(size: int, protected: int) -> None:
    """A block is smaller than the protected set: with all in one block every code would be reported alike."""
    if protected < 2:
        raise StudyError(
            f"randomised response needs at least two protected codes to choose from, and there are {protected}: "
            "name more sensitive codes, or leave the block size open so that similar codes are added"
        )
    if not 1 <= size < protected:
        raise StudyError(
            f"a block must be smaller than the set of protected codes: a size of {size} does not fit {protected} "
            f"protected codes; take 1 to {protected - 1}"
        )


def find_losses(
    distances: NDArray[np.float64], growth: float, weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The expected loss for each block size from 1 on, as mean over the rows, weighted or not.

    `distances`: from each sensitive code (rows) to all n protected codes, itself included; `growth` is e^E - 1.
    """
    count = distances.shape[1]
    nearest = np.average(np.sort(distances, axis=1), axis=0, weights=weights)
    inside = np.cumsum(nearest)
    sizes = np.arange(1, count + 1)
    losses: NDArray[np.float64] = (growth * inside + inside[-1]) / (count + growth * sizes)
    return losses[: max(count - 1, 0)]


def choose_blocking(
    distances: NDArray[np.float64],
    candidates: NDArray[np.float64],
    epsilon: Fraction,
    most_added: int,
    weights: NDArray[np.float64] | None = None,
) -> Blocking:
    """The block size, and the candidates to protect as well, with the smallest loss on the sensitive codes.

    `distances` from each sensitive code to all protected ones, `candidates` from each sensitive code to those that may
    be added. For every size candidates are added greedily. `weights` say how often each sensitive code is recorded:
    what would lose more by them than blocks of one code without company is not taken.
    """
    growth = math.expm1(min(float(epsilon), 700.0))
    known = distances.shape[1]
    largest = known + min(most_added, candidates.shape[1]) - 1
    found = [_grow(distances, candidates, growth, size, most_added) for size in _list_sizes(largest)]
    choices = [one for one in found if one is not None]
    if known >= 2:
        none = np.zeros(0, dtype=np.intp)
        plain = find_losses(distances, growth)
        limit = find_losses(distances, growth, weights)[0] + TINY
        choices = [Blocking(size, none, float(loss)) for size, loss in enumerate(plain, 1)] + [
            one for one in choices if len(one.added)
        ]
        choices = [one for one in choices if _weigh(one, distances, candidates, growth, weights) <= limit]
    elif not choices:
        check_size(1, known)
    return min(choices, key=lambda one: (round(one.loss, 12), len(one.added), one.size))


def _weigh(
    blocking: Blocking,
    distances: NDArray[np.float64],
    candidates: NDArray[np.float64],
    growth: float,
    weights: NDArray[np.float64] | None,
) -> float:
    together = np.concatenate([distances, candidates[:, blocking.added]], axis=1)
    return float(find_losses(together, growth, weights)[blocking.size - 1])


def _list_sizes(largest: int) -> list[int]:
    """All small sizes, and above 16 about every tenth per cent: the loss changes little from one to the next."""
    sizes = list(range(1, min(largest, 16) + 1))
    while sizes and sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, round(sizes[-1] * 1.1))))
    return sizes


def _grow(
    distances: NDArray[np.float64],
    candidates: NDArray[np.float64],
    growth: float,
    size: int,
    most_added: int,
) -> Blocking | None:
    """The best set for one block size: codes are added while that lowers the loss, or while the block does not fit."""
    rows, count = distances.shape
    nearest = np.sort(distances, axis=1)
    total, added = float(distances.sum()), list[int]()
    free = np.ones(candidates.shape[1], dtype=bool)
    sums = candidates.sum(axis=0)

    def measure() -> float:
        inside = float(nearest[:, :size].sum())
        return float((growth * inside + total) / (rows * (count + growth * size)))

    loss = measure() if size < count else math.inf
    while len(added) < most_added and free.any():
        if size <= count:
            limit = nearest[:, size - 1]
            saved = np.maximum(limit[:, None] - candidates, 0.0).sum(axis=0)
            inside = float(nearest[:, :size].sum()) - saved
        else:
            inside = float(nearest.sum()) + sums
        after = (growth * inside + total + sums) / (rows * (count + 1 + growth * size))
        after[~free] = math.inf
        chosen = int(after.argmin())
        if size < count and after[chosen] >= loss - TINY:
            break
        free[chosen] = False
        added.append(chosen)
        total += float(sums[chosen])
        count += 1
        nearest = np.sort(np.concatenate([nearest, candidates[:, [chosen]]], axis=1), axis=1)
        if size < count:
            loss = measure()
    if size >= count:
        return None
    return Blocking(size, np.array(added, dtype=np.intp), loss)


@dataclass(frozen=True, eq=False)
class Suppression:
    """The mechanism for `size` codes 0 ... size - 1: each of `protected` becomes the blot, which is number `size`.

    Claim: none. Whoever sees the blot knows that a sensitive code was there, and the codes beside it say which
    (docs/methods.md, section 7.7).
    """

    size: int
    protected: NDArray[np.int32]

    @property
    def hidden_outputs(self) -> NDArray[np.int32]:
        """The outputs that do not tell their input: the blot."""
        return np.array([self.size], dtype=np.int32)

    @cached_property
    def places(self) -> NDArray[np.int32]:
        """0 for codes that are blotted out, -1 for unprotected codes."""
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
        """The probability that each input leaves as it is, unprotected."""
        return (self.places[inputs] < 0).astype(np.float64)


class CodeMechanism(Protocol):
    """Codes 0 ... size - 1 in; out comes a hidden output, or the code itself."""

    @property
    def size(self) -> int:
        """How many codes there are; a larger output is the blot of a suppressed code."""

    @property
    def hidden_outputs(self) -> NDArray[np.int32]:
        """The outputs that do not tell their input; any other is its input."""

    @property
    def places(self) -> NDArray[np.int32]:
        """Negative for unprotected codes; all others leave as they are by chance at most."""

    def randomize(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Each code by itself."""

    def find_hidden(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """P(y | x) for each input x (rows) and each hidden output y."""

    def find_shown(self, inputs: NDArray[np.intp]) -> NDArray[np.float64]:
        """The probability that each input leaves as it is, unprotected."""


def tabulate_channel(
    mechanism: CodeMechanism, inputs: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The possible outputs of these inputs, and P(output | input) in a row for each input."""
    hidden = mechanism.hidden_outputs.astype(np.intp)
    clear = np.flatnonzero(mechanism.places[inputs] < 0)
    matrix = np.zeros((len(inputs), len(hidden) + len(clear)))
    matrix[:, : len(hidden)] = mechanism.find_hidden(inputs)
    matrix[clear, len(hidden) + np.arange(len(clear))] = mechanism.find_shown(inputs)[clear]
    return np.concatenate([hidden, inputs[clear]]), matrix


CODES_AT_ONCE = 1 << 18
UNREADABLE = -1
NOBODY: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class BlockResponse:
    """The mechanism for `size` codes 0 ... size - 1: `protected` are those of Y_P; `blocks` has a row of places in
    `protected` for each of them, and then for each code that is `never_shown`."""

    size: int
    protected: NDArray[np.int32]
    blocks: NDArray[np.intp]
    epsilon: Fraction
    never_shown: NDArray[np.int32] = field(default_factory=lambda: NOBODY)

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
        never_shown: NDArray[np.int32] = NOBODY,
    ) -> BlockResponse:
        """Blocks of the codes nearest to each, by the distances to the protected codes.

        There is a row for each of them, and then one for each that is never shown.
        """
        return cls(size, protected, _form_blocks(distances, block_size), epsilon, never_shown)

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
        """The row of each code in `blocks`; -1 for unprotected codes."""
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
        """The probability that each input leaves as it is, unprotected."""
        return np.where(self.places[inputs] >= 0, 0.0, float(1 - self.replaced))
