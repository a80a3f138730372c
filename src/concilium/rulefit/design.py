"""The matrix that the terms of a rule model make of patients: rules as bits, everything else as numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute, Source, recode
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.work import CALL, Workload, estimate_columns
from concilium.rulefit.packed import BLOCK, Bits, add_up, combine, cross, pack_rules, pick_upper, unpack
from concilium.rulefit.terms import RuleTerms, read_terms


class MeasuredSource(Source, Protocol):
    """Columns of patients that can also be had as numbers."""

    def measured(self, name: str) -> NDArray[np.float64]:
        """A column as numbers, NaN where missing."""


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
        table[:, inside] = unpack(self.bits, index[inside], self.patients)
        table[:, ~inside] = self.dense[:, index[~inside] - rules]
        return table if self.shrink is None else table * self.shrink[:, None]

    def add_up(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """For every column the sum of weight x column over the patients."""
        weights = weights if self.shrink is None else weights * self.shrink
        return np.concatenate([add_up(self.bits, weights), self.dense.T @ weights])

    def combine(
        self, chosen: Sequence[int] | NDArray[np.intp], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """For every patient the sum of weight x column over some columns; `weights` is [column, candidate]."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        inside = index < rules
        total = combine(self.bits[:, index[inside]], weights[inside], self.patients)
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
            table[column, size:] = add_up(bits, weighted[:, column])
        table[size:, size:] = cross(bits, weights)
        place = np.zeros(count, dtype=np.intp)
        place[1:][~inside], place[1:][inside] = np.arange(1, size), np.arange(size, count)
        return pick_upper(table, place)

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
        measured = source.measured(terms.attributes[line.attribute].name)
        values = measured if rows is None else measured[rows]
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
    attribute: Attribute, source: Source, rows: NDArray[np.int32] | None = None
) -> NDArray[np.unsignedinteger]:
    """The attribute's code of each patient."""
    codes, cells = recode(attribute, source)
    codes = codes if rows is None else codes[rows]
    if attribute.numeric:  # with a cell for missing its cells are the codes themselves
        return codes
    return np.take(cells.astype(np.min_scalar_type(attribute.size)), codes)


def _count_bits(bits: Bits, patients: int) -> NDArray[np.float64]:
    """How many rules each patient fulfils."""
    total = np.zeros(patients)
    for start in range(0, bits.shape[1], BLOCK):
        block = np.ascontiguousarray(bits[:, start : start + BLOCK])
        total += np.unpackbits(block, axis=0, count=patients, bitorder="little").sum(axis=1)
    return total


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


LAST: WeakKeyDictionary[View, tuple[tuple[bytes, Hashable], Design]] = WeakKeyDictionary()


def recall_at_site(terms: bytes, cohort: Cohort, about: Hashable) -> Design:
    """The same for those that a plain question is `about`. All questions of one fit ask for the same, so the last is
    remembered."""
    last = LAST.get(cohort.view)
    if last is None or last[0] != (terms, about):
        last = LAST[cohort.view] = ((terms, about), build_at_site(read_terms(terms), cohort))
    return last[1]
