"""Disclosure rules for what a site tells in plain: small cells, dominance, and differences between questions.

Who is protected: patients in small groups, from a house that reads a site's numbers one by one, or subtracts them from
each other. A guard and never a guarantee: numbers that each look harmless can still single people out together, and a
house that asks about the same patients in other words (other trees, other hospitals, sums under masks) is not seen
through. Not for sums: `masked` shows no site's numbers, and `private` has its own bound and no rule that looks at the
data. Small cells and dominance are the frequency rules of statistical disclosure control (Hundepool et al.,
"Statistical Disclosure Control", 2012, chapter 4), with the secondary suppression that one tree needs; differencing is
the tracker attack of Denning, Denning and Schwartz, "The Tracker", 1979.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import PatientMemory
from concilium.protocol.patient_identity import (
    Aspect,
    Marks,
    PatientIdentity,
    PatientStates,
    find_added,
    find_changed,
    join_marks,
)
from concilium.records.blocks import hash_array, is_large, list_blocks, read_block
from concilium.records.patients import Patients

if TYPE_CHECKING:
    from concilium.protocol.cohort import View

Counts = NDArray[np.integer]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Guard:
    """Which tables a site does not tell: with a cell of 1 to `minimum_cell` - 1 patients, or where one class has more
    than the share `dominance` of the patients with one value (or one value, of the patients of one class)."""

    minimum_cell: int = 0
    dominance: float | None = None

    @property
    def on(self) -> bool:
        return self.minimum_cell > 1 or self.dominance is not None

    def withholds(self, tables: Counts) -> Flags:
        """For each table [..., value, class] whether it is left out."""
        small: Flags = np.any((tables > 0) & (tables < self.minimum_cell), axis=(-2, -1))
        return small | self._dominated(tables, -1) | self._dominated(tables, -2)

    def withholds_classes(self, counts: Counts) -> bool:
        """The same of the class counts of all patients together, which are one row of a table."""
        small = (counts > 0) & (counts < self.minimum_cell)
        return bool(small.any() or self._dominated(counts[None, :], -1))

    def _dominated(self, tables: Counts, axis: int) -> Flags:
        if self.dominance is None:
            return np.zeros(tables.shape[:-2], dtype=np.bool_)
        whole, largest = tables.sum(axis=axis), tables.max(axis=axis)
        found: Flags = (largest > self.dominance * whole).any(axis=-1)
        return found


@dataclass(frozen=True)
class Family:
    """A split of a partial tree: node, the attribute that is asked there, and all that its patients go to."""

    parent: int
    attribute: int
    children: Sequence[int]


def withhold(
    guard: Guard, classes: Counts, tables: Sequence[Counts], families: Sequence[Family]
) -> tuple[Flags, Flags]:
    """What a site leaves out of one tree: [attribute, node] tables, and [node] all there is of a node.

    `classes` are the class counts of all patients, and `tables` holds for each attribute its counts [node, value,
    class] at every node, also at those that are not asked for; parents come before their children. A table that is
    left out could be had by subtraction (a node's table is the sum of its children's, and the class counts of the
    children are the table of the attribute that was asked), so it takes others with it: where a child's table must
    not be told, neither are its siblings', nor any below; and where the table of the attribute that was asked is not
    told, nothing below is.
    """
    nodes = 1 + sum(len(family.children) for family in families)
    own = np.array([guard.withholds(table) for table in tables], dtype=np.bool_).reshape(len(tables), nodes)
    dropped = own.copy()
    empty = np.zeros(nodes, dtype=np.bool_)
    empty[0] = guard.withholds_classes(classes)
    for family in families:
        children = list(family.children)
        below = dropped[:, family.parent] | own[:, children].any(axis=1)
        dropped[:, children] = below[:, None]
        empty[children] = empty[family.parent] | dropped[family.attribute, family.parent]
    return dropped, empty


@dataclass(frozen=True)
class Population:
    """The patients a question is about, by their row in the site's table: after query and policy, before tables."""

    rows: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def digest(self) -> bytes:
        return hash_array(self.rows, "<u4")


def _gather(numbers: NDArray[np.uint32], rows: NDArray[np.integer]) -> BitMap:
    """The numbers of the patients in these rows."""
    if not is_large(len(rows)):
        return BitMap(array("I", numbers[rows].tobytes()))
    patients, is_here = BitMap(), np.zeros(1 + max(_find_largest(numbers)), dtype=np.bool_)
    for block in list_blocks(len(rows)):
        is_here[numbers[read_block(rows, block)]] = True
    for block in list_blocks(len(is_here)):  # in order, which is quicker to enter
        own = (np.flatnonzero(is_here[block]) + block.start).astype(np.uint32)
        patients |= BitMap(array("I", own.tobytes()))
    patients.run_optimize()
    return patients


def _find_largest(numbers: NDArray[np.uint32]) -> Iterator[int]:
    for block in list_blocks(len(numbers)):
        yield int(read_block(numbers, block).max(initial=0))


class Populations:
    """The populations of all plain answers so far, in the ledger's file and written together with their charges.

    Claim. Protected: patients in small groups, from whoever subtracts one plain answer of the site from another, also
    where the table was reordered, read under another schema, bound anew or changed in between: populations are compared
    by patient identity (patient_identity.py), and a patient whom an earlier answer was about and the table
    does not hold any more counts as one by whom the two differ. So does, on both sides, one of whom the hospital says
    something else than before: answers before and after tell apart what was corrected. Without a column of ids that
    follows from the numbers, for the columns that the table had when its first patient was remembered (a correction in
    one that came later is not seen); with one, what is held of each patient is remembered for every state of the tables
    that an answer was given in, and compared (patient_identity.py says over what, and what is not seen). Not protected:
    who is among as many patients or more who were added, corrected or taken out together.
    """

    def __init__(self, ledger: Ledger, patients: Patients, least: int, view: View | None = None) -> None:
        self._ledger, self._least = ledger, least
        self._numbers = PatientIdentity(ledger, patients)
        self._states = None if view is None else PatientStates(patients, view)

    def admit(self, population: Population) -> bool:
        """Remember a population; False if it, or its difference to an earlier one either way, is of 1 to k - 1 people.

        Called inside the transaction in which a study begins: it is remembered if and only if that stands. Nothing is
        kept here of what was compared, for the transaction may be undone.
        """
        memory = self._ledger.recall_patients() or self._ledger.begin_patients(self._numbers.columns)
        numbers = self._numbers.find(memory)
        patients = _gather(numbers, population.rows)
        if 0 < len(patients) < self._least:
            return False
        content = patients.serialize()
        own = hashlib.sha256(content).digest()
        corrected = self._find_corrected(memory, numbers)
        for _, digest, before in memory.populations:
            earlier = BitMap.deserialize(before)
            common = patients & earlier
            changes = [0, *(len(common & changed) for changed in corrected(digest))]
            if not all(self._differ_safely(patients, earlier, len(common) - change) for change in changes):
                return False
        if own not in {digest for _, digest, _ in memory.populations}:
            self._ledger.remember_population(own, content)
        self._remember_states(memory, numbers, own)
        return True

    def count_news(self) -> tuple[int, int, int]:
        """How many patients were added, corrected and taken out since the last version of the tables that was answered
        from and is not this one; of the patients that policy leaves, where they are known by an id."""
        memory = self._ledger.recall_patients()
        if memory is None or memory.columns is not None or self._states is None:
            return 0, 0, 0
        with self._ledger.writing():
            numbers = self._numbers.find(memory)
        total = BitMap(), BitMap(), BitMap()
        told: set[str] = set()
        states = {state for answered in self._ledger.answered_states().values() for state in answered}
        for number, text in sorted(states, reverse=True):
            aspect = Aspect.read(text)
            now = None if aspect.part in told else self._states.find(aspect, memory.key, numbers)
            if now is None:
                continue
            then = np.frombuffer(self._ledger.patient_states(number), dtype="<u8")
            changes = find_added(now, then), find_changed(now, then), find_added(then, now)
            if any(map(len, changes)):
                told.add(aspect.part)
                for patients, some in zip(total, changes, strict=True):
                    patients |= BitMap(some.tolist())
        added, changed, gone = map(len, total)
        return added, changed, gone

    def count_known(self) -> tuple[int, int]:
        """How many patients have a number, and how many of them are in the table; LedgerError where that cannot be
        told."""
        memory = self._ledger.recall_patients()
        return (0, 0) if memory is None else self._numbers.count_known(memory)

    def _find_corrected(
        self, memory: PatientMemory, numbers: NDArray[np.uint32]
    ) -> Callable[[bytes], Iterator[BitMap]]:
        """For an earlier population, by its digest, the patients of whom something else is said now: in each aspect of
        each state that it was told about in."""
        states = self._states
        if memory.columns is not None or states is None:
            return lambda digest: iter(())
        answered = self._ledger.answered_states()

        @cache
        def find(number: int, aspect: str) -> list[BitMap]:
            now = states.find(Aspect.read(aspect), memory.key, numbers)
            if now is None:
                return self._compare_columns(states, number, memory.key, numbers)
            then = np.frombuffer(self._ledger.patient_states(number), dtype="<u8")
            return [BitMap(find_changed(now, then).tolist())]

        return lambda digest: (changed for state in answered.get(digest, ()) for changed in find(*state))

    def _compare_columns(
        self, states: PatientStates, number: int, key: bytes, numbers: NDArray[np.uint32]
    ) -> list[BitMap]:
        """The patients of whom the columns that are left say something else than in a state of which some are gone; and
        once more for each two of a column that is gone and one that is new, as if that were its other name. (Columns
        that say the same of nearly everybody are alike without being the same.)"""
        same, gone = BitMap(), []
        known: set[str] = set()
        for part, text in self._ledger.parts_of_state(number):
            aspect = Aspect.read(text)
            known.update(aspect.columns)
            then = np.frombuffer(self._ledger.patient_states(part), dtype="<u2")
            now = states.mark(aspect, key, numbers)
            if now is not None:
                same |= BitMap(find_changed(now, then).tolist())
            elif len(aspect.columns) == 1:
                gone.append(then)
        added = [
            states.mark(one, key, numbers)
            for one in states.columns
            if not known & set(one.columns) and states.count_uncommon(one) >= 2 * self._least
        ]
        renamed = (find_changed(now, then) for now in added if now is not None for then in gone)
        return [same, *(same | BitMap(one.tolist()) for one in renamed)]

    def _remember_states(self, memory: PatientMemory, numbers: NDArray[np.uint32], own: bytes) -> None:
        """With ids: in which state of the patients they were told about."""
        if memory.columns is not None or self._states is None:
            return
        for aspect in self._states.aspects:
            states = self._states.find(aspect, memory.key, numbers)
            if states is None:
                continue
            number, is_new = self._ledger.remember_state(aspect.write(), states.astype("<u8").tobytes())
            self._ledger.remember_answered(own, number)
            if is_new and aspect.columns:
                for column in self._states.columns:
                    marks = self._states.mark(column, memory.key, numbers)
                    if marks is not None:
                        self._ledger.remember_part(number, self._remember_marks(column.write(), marks))

    def _remember_marks(self, aspect: str, marks: Marks) -> int:
        """Keep what a column says of patients: with what it said before, where it says the same of whoever is in both.
        So a version costs what is new in it. Of patients whom an answer was not about nothing is compared."""
        for number, before in self._ledger.states_of(aspect):
            earlier = np.frombuffer(before, dtype="<u2")
            joined = join_marks(earlier, marks)
            if joined is not None:
                if not np.array_equal(joined, earlier):
                    self._ledger.complete_state(number, aspect, joined.astype("<u2").tobytes())
                return number
        return self._ledger.remember_state(aspect, marks.astype("<u2").tobytes())[0]

    def _differ_safely(self, asked: BitMap, before: BitMap, common: int) -> bool:
        return not any(0 < len(one) - common < self._least for one in (asked, before))
