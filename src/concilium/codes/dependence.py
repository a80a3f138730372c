"""Which codes come together: how many auxiliary patients have one within so many days of another.

The source draws an edge from the earlier code to the later one. What came before a sensitive code gives it away as
well as what came after, so here a pair counts when its two events are at most `within` days apart, in either order,
and codes of one day are a pair too. A patient counts once per pair, however often the pair is recorded: what is
asked is how many of those who have e' also have e_i.

Claim: none. Auxiliary patients are not protected by anything here: they are public, or the hospital's to look at,
and disjoint from those whose codes are shared (docs/methods.md, section 7.2).

P(e_i | e') is shrunk towards the share of all patients who have e_i, as if `prior` patients more had e': that one
patient in one has both says little, and one who guesses by Bayes' rule would not be sure of it either. With prior =
0 it is what was counted.

docs/methods.md, section 7.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError

PAIRS_AT_ONCE = 4_000_000
MOST_STEPS = 3
PRIOR = 5.0


@dataclass(frozen=True, eq=False)
class DependenceGraph:
    """Counts over auxiliary patients, for k codes.

    `events[a]`: how often a was recorded; `patients[a]`: how many have it; `joint[a, b]`: how many have both within
    the window, and on the diagonal how many have a twice; `population`: how many there are.
    """

    events: NDArray[np.int64]
    patients: NDArray[np.int64]
    joint: NDArray[np.int32]
    population: int
    prior: float = PRIOR

    @property
    def size(self) -> int:
        """k."""
        return len(self.events)

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """P(e'): the share of each code among all events."""
        return self.events / max(int(self.events.sum()), 1)

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """P(b | a) in row a and column b, none from a code to itself; rows of codes nobody has are zero."""
        shares = self.patients / max(self.population, 1)
        weights = self.joint + self.prior * shares
        weights /= np.maximum(self.patients + self.prior, 1)[:, None]
        weights[self.patients == 0] = 0.0
        np.fill_diagonal(weights, 0.0)
        return weights

    def find_conditionals(self, targets: NDArray[np.intp], steps: int = 1) -> NDArray[np.float64]:
        """P(e_i | e') in row e' and one column for each target e_i; zero from a code to itself.

        With one step it is the edge. With more it is the sum over simple paths from e' to e_i of at most so
        many edges, each the product of its edges, and at most 1: an upper estimate (docs/methods.md, section 7.3).
        """
        if not 1 <= steps <= MOST_STEPS:
            raise StudyError(f"paths must have between 1 and {MOST_STEPS} steps, not {steps!r}")
        edges = self.edges
        direct = edges[:, targets]
        total = direct.copy()
        if steps > 1:
            twice = edges @ direct
            total += twice
        if steps > 2:
            # Walks of three edges, less those that come back to where they began, or to their end too early.
            around = np.einsum("ab,ba->a", edges, edges)
            total += edges @ twice - around[:, None] * direct - direct * around[targets]
            total += direct * direct * edges[targets].T
        total[targets, np.arange(len(targets))] = 0.0
        return np.minimum(total, 1.0)


def count_dependence(
    offsets: NDArray[np.int64],
    codes: NDArray[np.int32],
    times: NDArray[np.float64],
    size: int,
    within: float,
    prior: float = PRIOR,
) -> DependenceGraph:
    """The graph of patients whose events are `codes[offsets[p]:offsets[p + 1]]`, in order of their times (days)."""
    if not within >= 0:
        raise StudyError(f"the window must be a number of days of at least 0, not {within!r}")
    events = np.asarray(codes, dtype=np.int64)
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    having = _list_distinct(owners * size + events)[0] % size
    joint = np.zeros((size, size), dtype=np.int32)
    for first, last in _split_patients(offsets):
        keys = _find_pairs(owners[first:last], events[first:last], times[first:last], size, within)
        pairs, counts = _list_distinct(keys % (size * size))
        low, high = pairs // size, pairs % size
        joint[low, high] += counts.astype(np.int32)
        different = low != high
        joint[high[different], low[different]] += counts[different].astype(np.int32)
    return DependenceGraph(
        np.bincount(events, minlength=size).astype(np.int64),
        np.bincount(having, minlength=size).astype(np.int64),
        joint,
        len(offsets) - 1,
        prior,
    )


def _find_pairs(
    owners: NDArray[np.int64],
    codes: NDArray[np.int64],
    times: NDArray[np.float64],
    size: int,
    within: float,
) -> NDArray[np.int64]:
    """Each patient's distinct pairs of codes (the smaller first), as whole numbers: patient, smaller, larger."""
    if not len(codes):
        return codes
    patients = owners - owners[0]
    found = []
    left = np.arange(len(codes) - 1)
    lag = 1
    while len(left):
        right = left + lag
        near = (owners[left] == owners[right]) & (times[right] - times[left] <= within)
        left = left[near]  # events are in order: who is too far at this lag is too far at the next
        right = left + lag
        low, high = np.minimum(codes[left], codes[right]), np.maximum(codes[left], codes[right])
        found.append((patients[left] * size + low) * size + high)
        left = left[left + lag + 1 < len(codes)]
        lag += 1
    return _list_distinct(np.concatenate(found))[0] if found else codes[:0]


def _list_distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As np.unique with counts; by sorting, which is several times faster on whole numbers than its hash table."""
    ordered = np.sort(keys)
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else keys
    return ordered[firsts], np.diff(firsts, append=len(ordered))


def _split_patients(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of events of whole patients, with about so many pairs at most in each."""
    lengths = np.diff(offsets)
    runs = np.cumsum(lengths * lengths // 2) // PAIRS_AT_ONCE
    for run in np.unique(runs):
        patients = np.flatnonzero(runs == run)
        yield int(offsets[patients[0]]), int(offsets[patients[-1] + 1])
