"""Blocks: for each protected code the b - 1 protected codes most like it, and how large b should be.

The expected clinical information loss of a code e (Eq. 5), with x = e^E and n protected codes, is ((x - 1) * sum of
d over the block + sum of d over all protected codes) / (n + (x - 1) b). It is compared on the *original* sensitive
codes: Eq. 8 of the source sums over a set that grows in the course, and rewards adding easy codes. Codes that would
make good company for sensitive ones may be added, each time the one that lowers the loss most.

Nothing here looks at patients who are shared: distances, epsilon, the sets and auxiliary patients decide, so
choosing costs nothing.

docs/methods.md, section 7.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError

TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Blocking:
    """The size of a block, the candidates added to the protected codes, and the loss expected for a sensitive code."""

    size: int
    added: NDArray[np.intp]
    loss: float


def form_blocks(distances: NDArray[np.float64], size: int) -> NDArray[np.intp]:
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
