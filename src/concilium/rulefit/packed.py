"""Rule columns as bits: eight patients to a byte, so that thousands of rules over ten thousand patients fit in memory.

Sums over the patients of every rule use one table of 256 partial sums for every eight patients (the method of the four
Russians): one look-up does the work of eight additions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]


def pack(columns: Sequence[NDArray[np.bool_]], patients: int) -> Bits:
    """Columns of yes and no as bits, [eight patients, column]."""
    groups = (patients + 7) // 8
    bits = np.empty((groups, len(columns)), dtype=np.uint8)
    for index, column in enumerate(columns):
        bits[:, index] = np.packbits(column, bitorder="little")
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
