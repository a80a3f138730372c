"""What the codes left in the clear say about a sensitive one, and which of them are hidden with it.

leakage(e_i) = sum over clear codes e' of P(e_i | e') P(e') must be at most gamma for every sensitive e_i, and that
is an average: a rare code that gives e_i away passes. So no clear code may say more than gamma_max by itself
either: max over clear e' of P(e_i | e') <= gamma_max. Codes above gamma_max are hidden first; then, greedily, the
one that takes most off what is above gamma. Codes hidden here are hidden for what they say: nothing need be hidden
on their account.

Claim: a bound on a model, not on an adversary. It holds for codes one at a time and for the counts of the auxiliary
patients; what several codes say together is measured by the attack (docs/methods.md, sections 7.9 and 7.10).

docs/methods.md, section 7.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError

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
    before = find_leakage(shares, left), find_worst(conditionals, left)
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
        find_leakage(shares, left),
        before[1],
        find_worst(conditionals, left),
    )


def find_leakage(shares: NDArray[np.float64], left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each sensitive code, the sum of P(e_i | e') P(e') over the codes left in the clear."""
    sums: NDArray[np.float64] = shares[left].sum(axis=0)
    return sums


def find_worst(conditionals: NDArray[np.float64], left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each sensitive code, the largest P(e_i | e') of a code left in the clear."""
    largest: NDArray[np.float64] = conditionals[left].max(axis=0, initial=0.0)
    return largest


def _hide(
    shares: NDArray[np.float64], clear: NDArray[np.bool_], gamma: NDArray[np.float64], most: int
) -> NDArray[np.intp] | None:
    """The codes to hide so that every leakage is at most its gamma; None where `most` do not do."""
    left, hidden = clear.copy(), list[int]()
    while (excess := find_leakage(shares, left) - gamma).max(initial=-1.0) > SLACK:
        if len(hidden) >= most:
            return None
        relief = np.minimum(shares, np.maximum(excess, 0.0)).sum(axis=1)
        chosen = int(np.where(left, relief, -1.0).argmax())
        hidden.append(chosen)
        left[chosen] = False
    return np.array(hidden, dtype=np.intp)


def _find_smallest(shares: NDArray[np.float64], clear: NDArray[np.bool_], codes: int, most: int) -> str:
    """The smallest bound, the same for all, that hiding so many codes meets, found by halving."""
    low, high = 0.0, float(find_leakage(shares, clear).max(initial=0.0))
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
