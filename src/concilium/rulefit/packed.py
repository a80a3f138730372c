"""Rule columns as bits: eight patients to a byte, so that thousands of rules over ten thousand patients fit in memory.

Sums over the patients of every rule use one table of 256 partial sums for every eight patients (the method of the four
Russians): one look-up does the work of eight additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from concilium.rulefit.rules import Attribute, Condition, Rule, fulfils

Bits = NDArray[np.uint8]


def pack_rules(
    rules: Sequence[Rule],
    attributes: Sequence[Attribute],
    codes_of: Callable[[int], NDArray[np.unsignedinteger]],
    patients: int,
) -> Bits:
    """The columns of rules as bits, [eight patients, rule]; each condition is looked up only once."""
    fulfilled: dict[Condition, Bits] = {}
    bits = np.empty(((patients + 7) // 8, len(rules)), dtype=np.uint8)
    for column, rule in enumerate(rules):
        for place, condition in enumerate(rule):
            here = fulfilled.get(condition)
            if here is None:
                table = fulfils(condition, attributes[condition[0]].size)
                here = np.packbits(table[codes_of(condition[0])], bitorder="little")
                fulfilled[condition] = here
            if place:
                bits[:, column] &= here
            else:
                bits[:, column] = here
    return bits


def unpack(bits: Bits, columns: Sequence[int] | NDArray[np.intp], patients: int) -> NDArray[np.float64]:
    """Some columns as numbers 0 and 1, [patient, column]."""
    chosen = np.ascontiguousarray(bits[:, columns])
    return np.unpackbits(chosen, axis=0, count=patients, bitorder="little").astype(np.float64)


def add_up(bits: Bits, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every column the sum of the weights of its patients."""
    padded = np.zeros(8 * len(bits))
    padded[: len(weights)] = weights
    total = np.zeros(bits.shape[1])
    _add_up(bits, padded, total)
    return total


@numba.njit(nogil=True, cache=True, boundscheck=False)
def _add_up(bits: Bits, weights: NDArray[np.float64], total: NDArray[np.float64]) -> None:
    table = np.zeros(256)
    for group in range(bits.shape[0]):
        for bit in range(8):
            half = 1 << bit
            weight = weights[8 * group + bit]
            for index in range(half):
                table[half + index] = table[index] + weight
        row = bits[group]
        for column in range(len(total)):
            total[column] += table[row[column]]
