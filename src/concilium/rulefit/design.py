"""The terms of a rule model and the matrix they make of patients (section 2.1 of federated RuleFit).

Columns are, in this order: rules (0 or 1), linear terms (winsorised, as multiples of a shared scale, 0 where missing)
and steps (one height for each code of an attribute). `coef_` multiplies exactly these.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.federation.cohort import Cohort, View, bin_codes, numbers
from concilium.federation.histograms import find_codes
from concilium.federation.messages import decode
from concilium.records.table import Coded, Records
from concilium.rulefit.packed import Bits, add_up, combine, cross, pack_rules, unpack
from concilium.rulefit.rules import Attribute, Rule, check_rules

MOST_COLUMNS = 100_000
# Winsorising bounds are this far apart at most, in units of the scale, so that sums keep their precision.
WIDEST = 1000.0


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A number held between `low` and `high`, as the distance from `center` in units of 1/`scale`."""

    attribute: int
    low: float
    high: float
    center: float
    scale: float


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A height for each code of an attribute: a shape function, learned before."""

    attribute: int
    heights: tuple[float, ...]


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the columns of a model are, over which attributes. `norm` scales each patient's row down to that length
    where it is longer, as a private fit needs it."""

    attributes: tuple[Attribute, ...]
    rules: tuple[Rule, ...] = ()
    lines: tuple[Line, ...] = ()
    steps: tuple[Steps, ...] = ()
    norm: float | None = None

    def __len__(self) -> int:
        return len(self.rules) + len(self.lines) + len(self.steps)

    def check(self) -> None:
        """MessageError unless all of it fits together."""
        if len(self) > MOST_COLUMNS:
            raise MessageError(f"a model may have at most {MOST_COLUMNS} terms; this one has {len(self)}")
        if len({attribute.name for attribute in self.attributes}) != len(self.attributes):
            raise MessageError("an attribute is named twice")
        for attribute in self.attributes:
            attribute.check()
        check_rules(self.rules, self.attributes)
        for terms in (self.lines, self.steps):
            # What is no bit is a number for every patient: there are no more of those than the table has.
            if len({term.attribute for term in terms}) != len(terms):
                raise MessageError("an attribute has two linear terms, or two shapes")
        for line in self.lines:
            self._check_line(line)
        for steps in self.steps:
            if not 0 <= steps.attribute < len(self.attributes):
                raise MessageError("a shape is of no attribute of the model")
            if len(steps.heights) != self.attributes[steps.attribute].size or not _tame(steps.heights):
                raise MessageError("a shape does not fit its attribute")
        if self.norm is not None and not 0 < self.norm <= WIDEST:
            raise MessageError("the norm of a patient's row is out of range")

    def _check_line(self, line: Line) -> None:
        if not 0 <= line.attribute < len(self.attributes) or not self.attributes[line.attribute].numeric:
            raise MessageError("a linear term needs a number")
        span = [line.scale * (end - line.center) for end in (line.low, line.high)]
        if not (line.low <= line.center <= line.high and line.scale > 0 and _tame(span)):
            raise MessageError("the bounds of a linear term are out of range")


def _tame(heights: Sequence[float]) -> bool:
    return all(-WIDEST <= height <= WIDEST for height in heights)


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

    def combine(self, chosen: Sequence[int], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """For every patient the sum of weight x column over some columns; `weights` is [column, candidate]."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        inside = index < rules
        total = combine(self.bits[:, index[inside]], weights[inside], self.patients)
        if not inside.all():
            total += self.dense[:, index[~inside] - rules] @ weights[~inside]
        return total if self.shrink is None else total * self.shrink[:, None]

    def cross(self, chosen: Sequence[int], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of weight x column x column over the patients, for every two of the intercept and some columns."""
        index = np.asarray(chosen, dtype=np.intp)
        rules = self.bits.shape[1]
        if self.shrink is not None:
            weights = weights * self.shrink**2
        inside = index < rules
        bits = np.ascontiguousarray(self.bits[:, index[inside]])
        plain = np.column_stack([np.ones(self.patients), self.dense[:, index[~inside] - rules]])
        weighted = plain * weights[:, None]
        order = np.concatenate([[0], 1 + np.flatnonzero(~inside), 1 + np.flatnonzero(inside)])
        size = plain.shape[1]
        table = np.empty((len(order), len(order)))
        table[:size, :size] = weighted.T @ plain
        for column in range(size):
            table[column, size:] = table[size:, column] = add_up(bits, weighted[:, column])
        table[size:, size:] = cross(bits, weights)
        result = np.empty_like(table)
        result[np.ix_(order, order)] = table
        return result

    def matrix(self) -> NDArray[np.float64]:
        """All columns."""
        return self.columns(range(self.bits.shape[1] + self.dense.shape[1]))


CodesOf = Callable[[Attribute], NDArray[np.unsignedinteger]]
NumbersOf = Callable[[str], NDArray[np.float64]]


def build(terms: Terms, patients: int, codes_of: CodesOf, numbers_of: NumbersOf) -> Design:
    """The design of these terms, from each attribute's codes and numbers."""
    used = {condition[0] for rule in terms.rules for condition in rule} | {s.attribute for s in terms.steps}
    codes = {index: codes_of(terms.attributes[index]) for index in sorted(used)}
    bits = pack_rules(terms.rules, terms.attributes, codes.__getitem__, patients)
    dense = np.empty((patients, len(terms.lines) + len(terms.steps)), order="F")
    for column, line in enumerate(terms.lines):
        values = numbers_of(terms.attributes[line.attribute].name)
        held = np.clip(values, line.low, line.high)
        dense[:, column] = np.where(np.isnan(values), 0.0, line.scale * (held - line.center))
    for column, steps in enumerate(terms.steps, start=len(terms.lines)):
        dense[:, column] = np.asarray(steps.heights)[codes[steps.attribute]]
    shrink = None
    if terms.norm is not None:
        squared = 1 + _count_bits(bits, patients) + (dense**2).sum(axis=1)
        shrink = np.minimum(1.0, terms.norm / np.sqrt(squared))
    return Design(patients, bits, dense, shrink)


def _count_bits(bits: Bits, patients: int) -> NDArray[np.float64]:
    """How many rules each patient fulfils."""
    total = np.zeros(patients)
    for start in range(0, bits.shape[1], 256):
        total += unpack(bits, np.arange(start, min(start + 256, bits.shape[1])), patients).sum(axis=1)
    return total


@functools.lru_cache(maxsize=8)
def read_terms(data: bytes) -> Terms:
    """The terms that a question carries, checked. Every question of a fit carries the same ones, so that a site needs
    no memory of earlier questions; what is remembered here only saves the time to read them again."""
    terms = decode(data, Terms)
    terms.check()
    return terms


LAST: weakref.WeakKeyDictionary[View, tuple[tuple[bytes, Hashable], Design]] = weakref.WeakKeyDictionary()


def build_at_site(terms: bytes, cohort: Cohort, about: Hashable) -> Design:
    """The design of a site's patients, those that a question is `about`. All questions of one fit ask for the same, so
    the last is remembered."""
    last = LAST.get(cohort.view)
    if last is not None and last[0] == (terms, about):
        return last[1]
    design = build(
        read_terms(terms),
        len(cohort),
        lambda attribute: codes_at_site(attribute, cohort),
        lambda name: cohort.view.measured(name)[cohort.rows],
    )
    LAST[cohort.view] = ((terms, about), design)
    return design


def codes_at_site(attribute: Attribute, cohort: Cohort) -> NDArray[np.unsignedinteger]:
    """The codes of an attribute for the cohort's patients."""
    if attribute.numeric:
        codes = cohort.view.binned(attribute.name, attribute.edges)
        return codes if cohort.everyone else codes[cohort.rows]
    column = cohort.view.coded(attribute.name)
    codes = column.codes if cohort.everyone else column.codes[cohort.rows]
    return np.take(place_codes(column, attribute), codes)


def place_codes(column: Coded, attribute: Attribute) -> NDArray[np.unsignedinteger]:
    """For each code of a column of categories the model's code: 0 missing, the value's place, or the last: other."""
    return find_codes(column, attribute.values).astype(np.min_scalar_type(attribute.size))


def build_for(terms: Terms, records: Records) -> Design:
    """The design of any patients, to predict."""

    def codes_of(attribute: Attribute) -> NDArray[np.unsignedinteger]:
        if attribute.numeric:
            return bin_codes(numbers(records, attribute.name), attribute.edges)
        column = records[attribute.name]
        if isinstance(column, Coded):
            return np.take(place_codes(column, attribute), column.codes)
        found, codes = np.unique(column.numbers, return_inverse=True)
        known = tuple(float(value) for value in found[~np.isnan(found)])
        coded = Coded(np.where(codes < len(known), codes + 1, 0).astype(np.uint32), known)
        return np.take(place_codes(coded, attribute), coded.codes)

    return build(terms, len(records), codes_of, lambda name: numbers(records, name))


def keep(terms: Terms, columns: Sequence[int]) -> Terms:
    """The terms with these columns only, and the attributes that they need."""
    rules, lines = len(terms.rules), len(terms.lines)
    kept_rules = [terms.rules[c] for c in columns if c < rules]
    kept_lines = [terms.lines[c - rules] for c in columns if rules <= c < rules + lines]
    kept_steps = [terms.steps[c - rules - lines] for c in columns if c >= rules + lines]
    used = sorted(
        {condition[0] for rule in kept_rules for condition in rule}
        | {line.attribute for line in kept_lines}
        | {steps.attribute for steps in kept_steps}
    )
    place: Mapping[int, int] = {attribute: index for index, attribute in enumerate(used)}
    return Terms(
        attributes=tuple(terms.attributes[index] for index in used),
        rules=tuple(tuple((place[c[0]], *c[1:]) for c in rule) for rule in kept_rules),
        lines=tuple(msgspec.structs.replace(t, attribute=place[t.attribute]) for t in kept_lines),
        steps=tuple(msgspec.structs.replace(t, attribute=place[t.attribute]) for t in kept_steps),
        norm=terms.norm,
    )
