"""The matrix that the terms of a rule model make of patients: rules as bits, everything else as numbers.

Bits have eight patients to a byte, so that thousands of rules over ten thousand patients fit in memory. Sums over the
patients of every rule use one table of 256 partial sums for every eight patients (the method of the four Russians): one
look-up does the work of eight additions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from concilium.compiling import compiled
from concilium.protocol.attributes import CALL, Attribute, Source, Workload, estimate_columns, recode
from concilium.protocol.cohort import Cohort, View
from concilium.records.blocks import is_large, look_up
from concilium.rulefit.terms import Conditions, RuleTerms, read_terms

Bits = NDArray[np.uint8]

# So many rules at a time are counted for every patient.
BLOCK = 256
# So many patients at a time, of more than MANY_PATIENTS: a column that is no rule takes as much as 64 rules.
PATIENTS_AT_ONCE = 1 << 16
MANY_PATIENTS = 1 << 18


def pack_rules(
    conditions: Conditions, codes_of: Callable[[int], NDArray[np.unsignedinteger]], patients: int
) -> Bits:
    """The columns of rules as bits, [eight patients, rule]; each condition is looked up only once."""
    groups = (patients + 7) // 8
    fulfilled = np.empty((conditions.count, groups), dtype=np.uint8)
    for index, (rows, tables) in conditions.of.items():
        codes = codes_of(index).astype(np.uint32)  # one type, for which there is one kernel
        _look_up(tables, codes, np.array(rows, dtype=np.int64), fulfilled)
    bits = np.empty((groups, len(conditions.ends)), dtype=np.uint8)
    if len(conditions.ends):
        _conjoin(fulfilled, conditions.listed, conditions.ends, bits)
    return bits


def _unpack(bits: Bits, columns: Sequence[int] | NDArray[np.intp], patients: int) -> NDArray[np.float64]:
    """Some columns as numbers 0 and 1, [patient, column]."""
    chosen = np.ascontiguousarray(bits[:, columns])
    return np.unpackbits(chosen, axis=0, count=patients, bitorder="little").astype(np.float64)


def _add_up_bits(bits: Bits, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every column the sum of the weights of its patients."""
    padded = np.zeros(8 * len(bits))
    padded[: len(weights)] = weights
    total = np.zeros(bits.shape[1])
    _add_up(bits, padded, total)
    return total


def _combine_bits(bits: Bits, weights: NDArray[np.float64], patients: int) -> NDArray[np.float64]:
    """For every patient the sum of the weights of his columns; `weights` is [column, candidate]."""
    total = np.zeros((8 * len(bits), weights.shape[1]))
    _combine(np.ascontiguousarray(bits), np.ascontiguousarray(weights), total)
    return total[:patients]


def _cross_bits(bits: Bits, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every two columns, each with itself and those behind it, the sum of the weights of the patients who have
    both; zero below the diagonal."""
    padded = np.zeros(8 * len(bits))
    padded[: len(weights)] = weights
    total = np.zeros((bits.shape[1], bits.shape[1]))
    _cross(np.ascontiguousarray(bits), padded, total)
    return total


@compiled(boundscheck=False)
def _pick_upper(table: NDArray[np.float64], place: NDArray[np.intp]) -> NDArray[np.float64]:
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
def _look_up(
    tables: NDArray[np.bool_], codes: NDArray[np.uint32], rows: NDArray[np.int64], fulfilled: Bits
) -> None:
    whole = len(codes) // 8
    for condition in range(len(rows)):
        table, packed = tables[condition], fulfilled[rows[condition]]
        for group in range(len(packed)):
            byte = 0
            for bit in range(8 if group < whole else len(codes) - 8 * whole):
                byte |= table[codes[8 * group + bit]] << bit
            packed[group] = byte


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


class MeasuredSource(Source, Protocol):
    """Columns of patients that can also be had as numbers."""

    def measured(self, name: str, rows: NDArray[np.int32] | None = None) -> NDArray[np.float64]:
        """A column, or some rows of it, as numbers, NaN where missing."""


@dataclass(frozen=True)
class Design:
    """The matrix of some patients: rules as bits, the rest as numbers."""

    patients: int
    bits: Bits
    dense: NDArray[np.float64]
    shrink: NDArray[np.float64] | None

    @property
    def ones(self) -> NDArray[np.float64]:
        """The column of the intercept."""
        return np.ones(self.patients) if self.shrink is None else self.shrink

    def columns(self, chosen: Sequence[int]) -> NDArray[np.float64]:
        """Some columns, [patient, column]."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        table = np.empty((self.patients, len(index)))
        inside = index < rules
        table[:, inside] = _unpack(self.bits, index[inside], self.patients)
        table[:, ~inside] = self.dense[:, index[~inside] - rules]
        return table if self.shrink is None else table * self.shrink[:, None]

    def add_up(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """For every column the sum of weight x column over the patients."""
        weights = weights if self.shrink is None else weights * self.shrink
        return np.concatenate([_add_up_bits(self.bits, weights), self.dense.T @ weights])

    def combine(
        self, chosen: Sequence[int] | NDArray[np.intp], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """For every patient the sum of weight x column over some columns; `weights` is [column, candidate]."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        inside = index < rules
        total = _combine_bits(self.bits[:, index[inside]], weights[inside], self.patients)
        if not inside.all():
            total += self.dense[:, index[~inside] - rules] @ weights[~inside]
        return total if self.shrink is None else total * self.shrink[:, None]

    def cross(self, chosen: Sequence[int], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of weight x column x column over the patients, for every two of the intercept and some columns: the
        upper triangle, row after row."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        if self.shrink is not None:
            weights = weights * self.shrink**2
        inside = index < rules
        bits = np.ascontiguousarray(self.bits[:, index[inside]])
        plain = np.column_stack([np.ones(self.patients), self.dense[:, index[~inside] - rules]])
        weighted = plain * weights[:, None]
        size, count = plain.shape[1], 1 + len(index)
        table = np.empty((count, count))
        table[:size, :size] = weighted.T @ plain
        for column in range(size):
            table[column, size:] = _add_up_bits(bits, weighted[:, column])
        table[size:, size:] = _cross_bits(bits, weights)
        place = np.zeros(count, dtype=np.intp)
        place[1:][~inside], place[1:][inside] = np.arange(1, size), np.arange(size, count)
        return _pick_upper(table, place)

    def matrix(self) -> NDArray[np.float64]:
        """All columns."""
        return self.columns(range(self.bits.shape[1] + self.dense.shape[1]))


def build(
    terms: RuleTerms, patients: int, source: MeasuredSource, rows: NDArray[np.int32] | None = None
) -> Design:
    """The design that these terms make of so many patients: all of the source, or those in these rows."""
    used = {condition[0] for rule in terms.rules for condition in rule} | {s.attribute for s in terms.steps}
    codes = {index: find_codes(terms.attributes[index], source, rows) for index in sorted(used)}
    bits = pack_rules(terms.conditions, codes.__getitem__, patients)
    dense = np.empty((patients, len(terms.lines) + len(terms.steps)), order="F")
    for column, line in enumerate(terms.lines):
        values = source.measured(terms.attributes[line.attribute].name, rows)
        held = np.clip(values, line.low, line.high)
        dense[:, column] = np.where(np.isnan(values), 0.0, line.scale * (held - line.center))
    for column, steps in enumerate(terms.steps, start=len(terms.lines)):
        dense[:, column] = np.asarray(steps.heights)[codes[steps.attribute]]
    shrink = None
    if terms.norm is not None:
        squared = 1 + _count_bits(bits, patients) + (dense**2).sum(axis=1)
        shrink = np.minimum(1.0, terms.norm / np.sqrt(squared))
    return Design(patients, bits, dense, shrink)


def find_codes(
    attribute: Attribute,
    source: Source,
    rows: NDArray[np.int32] | None = None,
    room: Path | None = None,
) -> NDArray[np.unsignedinteger]:
    """The attribute's code of each patient."""
    codes, cells = recode(attribute, source)
    codes = codes if rows is None else look_up(codes, rows, room)
    if attribute.numeric:  # with a cell for missing its cells are the codes themselves
        return codes
    return look_up(cells.astype(np.min_scalar_type(attribute.size)), codes, room)


def _count_bits(bits: Bits, patients: int) -> NDArray[np.float64]:
    """How many rules each patient fulfils."""
    total = np.zeros(patients)
    for start in range(0, bits.shape[1], BLOCK):
        block = np.ascontiguousarray(bits[:, start : start + BLOCK])
        total += np.unpackbits(block, axis=0, count=patients, bitorder="little").sum(axis=1)
    return total


def goes_by_parts(patients: int) -> bool:
    """Whether sums over these patients are added up part by part: in memory as on disk, for equal answers."""
    return patients > MANY_PATIENTS or is_large(patients)


def build_at_site(terms: RuleTerms, cohort: Cohort) -> Design:
    """The design of a site's patients."""
    return build(terms, len(cohort), cohort.view, None if cohort.everyone else cohort.rows)


def estimate_design(terms: RuleTerms, patients: int, *, each_by_itself: bool = False) -> Workload:
    """To build the design of so many patients, and to hold it."""
    rules, dense = len(terms.rules), len(terms.lines) + len(terms.steps)
    listed, distinct, cells = terms.extent
    lengths = 0 if terms.norm is None else 2 * rules + 2 * dense + 20
    return estimate_columns(terms.attributes, patients, each_by_itself=each_by_itself) + Workload(
        (3 * distinct + listed // 4 + 30 * dense + lengths + 10) * patients
        + CALL * (1 + distinct + dense)
        + 8 * cells,
        ((rules + distinct) // 8 + 1 + 17 * dense + BLOCK + BLOCK // 8 + 64) * patients
        + 8 * cells
        + 200 * (distinct + listed),
    )


LAST: WeakKeyDictionary[View, tuple[tuple[bytes, Hashable], dict[int, Design]]] = WeakKeyDictionary()


def recall_at_site(terms: bytes, cohort: Cohort, about: Hashable, start: int = 0) -> Design:
    """The same for those that a plain question is `about`, or a block of them from this one on. All questions of one
    fit ask for the same, so the last is remembered, unless the table is on disk since it may be larger than memory."""
    if cohort.view.room is not None and goes_by_parts(len(cohort.view.records)):
        return build_at_site(read_terms(terms), cohort)
    last = LAST.get(cohort.view)
    if last is None or last[0] != (terms, about):
        last = LAST[cohort.view] = ((terms, about), {})
    designs = last[1]
    if start not in designs:
        designs[start] = build_at_site(read_terms(terms), cohort)
    return designs[start]
