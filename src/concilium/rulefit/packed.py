"""Rule columns as bits: eight patients to a byte, so that thousands of rules over ten thousand patients fit in memory.

Sums over the patients of every rule use one table of 256 partial sums for every eight patients (the method of the four
Russians): one look-up does the work of eight additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.rulefit.rules import Condition, Rule, share, tabulate

Bits = NDArray[np.uint8]

# So many conditions at a time are looked up for every patient, before they are packed.
BLOCK = 256


def pack_rules(
    conditions: Conditions, codes_of: Callable[[int], NDArray[np.unsignedinteger]], patients: int
) -> Bits:
    """The columns of rules as bits, [eight patients, rule]; each condition is looked up only once."""
    groups = (patients + 7) // 8
    fulfilled = np.empty((conditions.count, groups), dtype=np.uint8)
    for index, (rows, tables) in conditions.of.items():
        codes = codes_of(index)
        for start in range(0, len(rows), BLOCK):
            block = slice(start, start + BLOCK)
            fulfilled[rows[block]] = np.packbits(tables[block][:, codes], axis=1, bitorder="little")
    bits = np.empty((groups, len(conditions.ends)), dtype=np.uint8)
    if len(conditions.ends):
        _conjoin(fulfilled, conditions.listed, conditions.ends, bits)
    return bits


@dataclass(frozen=True)
class Conditions:
    """The different conditions of rules: of each attribute the places of its own, with a table [condition, code] of
    what fulfils them. Rule after rule `listed` has the places of its conditions, up to its one of `ends`."""

    count: int
    of: dict[int, tuple[list[int], NDArray[np.bool_]]]
    listed: NDArray[np.int64]
    ends: NDArray[np.int64]


def list_conditions(rules: Sequence[Rule], sizes: Sequence[int]) -> Conditions:
    """The conditions of these rules, over attributes with so many codes."""
    place: dict[Condition, int] = {}
    listed = list(chain.from_iterable(rules))
    place_of = {key: place.setdefault(condition, len(place)) for key, condition in share(listed).items()}
    own: dict[int, list[Condition]] = {}
    for condition in place:
        own.setdefault(condition[0], []).append(condition)
    return Conditions(
        len(place),
        {
            index: ([place[condition] for condition in conditions], tabulate(conditions, sizes[index]))
            for index, conditions in own.items()
        },
        np.fromiter(map(place_of.__getitem__, map(id, listed)), dtype=np.int64, count=len(listed)),
        np.cumsum(list(map(len, rules)), dtype=np.int64),
    )


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


def combine(bits: Bits, weights: NDArray[np.float64], patients: int) -> NDArray[np.float64]:
    """For every patient the sum of the weights of his columns; `weights` is [column, candidate]."""
    total = np.zeros((8 * len(bits), weights.shape[1]))
    _combine(np.ascontiguousarray(bits), np.ascontiguousarray(weights), total)
    return total[:patients]


def cross(bits: Bits, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every two columns, each with itself and those behind it, the sum of the weights of the patients who have
    both; zero below the diagonal."""
    padded = np.zeros(8 * len(bits))
    padded[: len(weights)] = weights
    total = np.zeros((bits.shape[1], bits.shape[1]))
    _cross(np.ascontiguousarray(bits), padded, total)
    return total


@compiled(boundscheck=False)
def pick_upper(table: NDArray[np.float64], place: NDArray[np.intp]) -> NDArray[np.float64]:
    """Row after row the upper triangle of a symmetric table, of which the lower one may be empty, after putting its
    rows and columns into another order: `place` says where each is."""
    size = len(place)
    picked = np.empty(size * (size + 1) // 2)
    at = 0
    for row in range(size):
        for column in range(row, size):
            one, other = place[row], place[column]
            picked[at] = table[one, other] if one <= other else table[other, one]
            at += 1
    return picked


@compiled(boundscheck=False)
def unfold(upper: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The symmetric table of which this is the upper triangle, row after row."""
    table = np.empty((size, size))
    at = 0
    for row in range(size):
        for column in range(row, size):
            table[row, column] = table[column, row] = upper[at]
            at += 1
    return table


@compiled(boundscheck=False)
def _conjoin(fulfilled: Bits, listed: NDArray[np.int64], ends: NDArray[np.int64], bits: Bits) -> None:
    groups = fulfilled.shape[1]
    start = 0
    for rule in range(len(ends)):
        for group in range(groups):
            byte = fulfilled[listed[start], group]
            for place in range(start + 1, ends[rule]):
                byte &= fulfilled[listed[place], group]
            bits[group, rule] = byte
        start = ends[rule]


@compiled(boundscheck=False)
def _combine(bits: Bits, weights: NDArray[np.float64], total: NDArray[np.float64]) -> None:
    for group in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            byte = bits[group, column]
            if byte:
                for bit in range(8):
                    if byte >> bit & 1:
                        for candidate in range(weights.shape[1]):
                            total[8 * group + bit, candidate] += weights[column, candidate]


@compiled(boundscheck=False)
def _cross(bits: Bits, weights: NDArray[np.float64], total: NDArray[np.float64]) -> None:
    table = np.zeros(256)
    for group in range(bits.shape[0]):
        for bit in range(8):
            half = 1 << bit
            for index in range(half):
                table[half + index] = table[index] + weights[8 * group + bit]
        row = bits[group]
        for one in range(len(row)):
            byte = row[one]
            if byte:
                for other in range(one, len(row)):
                    total[one, other] += table[byte & row[other]]


@compiled(boundscheck=False)
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
