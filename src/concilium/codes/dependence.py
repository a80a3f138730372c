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

Leakage is what codes left unprotected say about a sensitive one. leakage(e_i) = sum over clear codes e' of P(e_i |
e') P(e') must be at most gamma for every sensitive e_i. That is an average, which a rare code that gives e_i away
passes. So no clear code may say more than gamma_max by itself either: max over clear e' of P(e_i | e') <=
gamma_max. Codes above gamma_max are hidden first; then, greedily, the one that takes most off what is above gamma.
Nothing need be hidden on account of codes hidden here (docs/methods.md, section 7.4).

Claim: a bound on a model, not on an adversary. It holds for codes one at a time and for the counts of the auxiliary
patients; what several codes say together is measured by the attack (docs/methods.md, sections 7.9 and 7.10).

docs/methods.md, section 7.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from concilium.codes.sharing_parameters import MOST_STEPS, PRIOR
from concilium.errors import StudyError

PAIRS_AT_ONCE = 4_000_000


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


# Sums of many products; a bound that is met exactly must not fail in the last digit.
SLACK = 1e-12
HALVINGS = 24


@dataclass(frozen=True, eq=False)
class Extension:
    """Which codes are hidden besides the sensitive ones, in the order they were found, and what that changed.

    Leakage and the worst single code, for each sensitive code: before, with the sensitive ones alone hidden, and after.
    """

    above_worst: NDArray[np.intp]
    by_average: NDArray[np.intp]
    leakage_before: NDArray[np.float64]
    leakage_after: NDArray[np.float64]
    worst_before: NDArray[np.float64]
    worst_after: NDArray[np.float64]

    @property
    def added(self) -> NDArray[np.intp]:
        """All of them."""
        return np.concatenate([self.above_worst, self.by_average])


def extend_protection(
    conditionals: NDArray[np.float64],
    frequencies: NDArray[np.float64],
    clear: NDArray[np.bool_],
    gamma: NDArray[np.float64],
    gamma_max: float,
    most: int,
) -> Extension:
    """Hide clear codes until both bounds hold.

    `conditionals` has P(e_i | e') in row e' and a column for each sensitive e_i, `frequencies` P(e'), `gamma` a bound
    for each e_i; at most `most` codes are hidden.
    """
    shares = conditionals * frequencies[:, None]
    left = clear.copy()
    before = _find_leakage(shares, left), _find_worst(conditionals, left)
    above_worst = np.flatnonzero(left & (conditionals.max(axis=1, initial=0.0) > gamma_max + SLACK))
    if len(above_worst) > most:
        strongest = np.sort(conditionals[left].max(axis=1, initial=0.0))[::-1]
        raise StudyError(
            f"gamma_max = {gamma_max:g} cannot be met by hiding {most} more codes: {len(above_worst)} of the codes in "
            f"the clear say more about a sensitive one; the smallest that can is {_round_up(strongest[most])}"
        )
    left[above_worst] = False
    by_average = _hide(shares, left, gamma, most - len(above_worst))
    if by_average is None:
        smallest = _find_smallest(shares, left, len(gamma), most - len(above_worst))
        raise StudyError(
            f"gamma = {_say(gamma)} cannot be met by hiding {most} more codes; "
            f"the smallest gamma that can is {smallest}"
        )
    left[by_average] = False
    return Extension(
        above_worst,
        by_average,
        before[0],
        _find_leakage(shares, left),
        before[1],
        _find_worst(conditionals, left),
    )


def _find_leakage(shares: NDArray[np.float64], left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each sensitive code, the sum of P(e_i | e') P(e') over the codes left unprotected."""
    sums: NDArray[np.float64] = shares[left].sum(axis=0)
    return sums


def _find_worst(conditionals: NDArray[np.float64], left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each sensitive code, the largest P(e_i | e') of a code left unprotected."""
    largest: NDArray[np.float64] = conditionals[left].max(axis=0, initial=0.0)
    return largest


def _hide(
    shares: NDArray[np.float64], clear: NDArray[np.bool_], gamma: NDArray[np.float64], most: int
) -> NDArray[np.intp] | None:
    """The codes to hide so that every leakage is at most its gamma; None where `most` do not do."""
    left, hidden = clear.copy(), list[int]()
    while (excess := _find_leakage(shares, left) - gamma).max(initial=-1.0) > SLACK:
        if len(hidden) >= most:
            return None
        relief = np.minimum(shares, np.maximum(excess, 0.0)).sum(axis=1)
        chosen = int(np.where(left, relief, -1.0).argmax())
        hidden.append(chosen)
        left[chosen] = False
    return np.array(hidden, dtype=np.intp)


def _find_smallest(shares: NDArray[np.float64], clear: NDArray[np.bool_], codes: int, most: int) -> str:
    """The smallest bound, the same for all, that hiding so many codes meets, found by halving."""
    low, high = 0.0, float(_find_leakage(shares, clear).max(initial=0.0))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _hide(shares, clear, np.full(codes, middle), most) is None:
            low = middle
        else:
            high = middle
    return _round_up(high)


def _round_up(value: float) -> str:
    """Three digits, never less than the value: what is printed can be met."""
    if value <= 0:
        return "0"
    digits = 2 - int(np.floor(np.log10(value)))
    return f"{np.ceil(value * 10.0**digits + 1e-9) / 10.0**digits:.{max(digits, 0)}f}"


def _say(gamma: NDArray[np.float64]) -> str:
    low, high = float(gamma.min()), float(gamma.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
