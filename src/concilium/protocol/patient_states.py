"""What a hospital says of each of its patients now, as a number each: so that a correction is seen as one.

Where patients are known by an id, a patient stays the same when a cell is corrected, and two plain answers about the
same patients, before and after, would tell what was corrected. So a ledger remembers, for every state of the tables
that an answer was given in, a number for what was held of each patient: of the table what may be told (the columns
that policy leaves, as the map reads them), and of everything held beside it. They are compared part by part, the table
over the columns that it had then; columns that came later change nobody.

Where one of those columns is gone, or may not be told any more, that number says nothing of the others. So a smaller
one is kept of each column too, 16 bits of a patient's cell: by those a table is compared over the columns that it still
has, and a column that is gone with each that is new, which may be the same under another name. Such a correction goes
unseen with a chance of 2^-16 for each cell. Columns of very large tables are taken together in groups (MOST_CELLS), of
which one column gone leaves the others of its group uncompared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.protocol.lasting_numbers import Names, encipher
from concilium.records.columns import Coded
from concilium.records.patients import Patients
from concilium.records.row_hashes import Hashes, hash_rows
from concilium.records.table import Records

if TYPE_CHECKING:
    from concilium.protocol.cohort import View


CELLS = "cells"
MOST_CELLS = 1 << 24  # cells of one version, 2 bytes each

States = NDArray[np.unsignedinteger]
Marks = NDArray[np.uint16]
"""A number for what one column, or a group of them, says of each patient; 0 where the patient is not there."""


@dataclass(frozen=True)
class Aspect:
    """What of a patient is compared: a part of what is held, of the table these columns; or CELLS of these columns."""

    part: str
    columns: tuple[str, ...] = ()

    def write(self) -> str:
        return json.dumps([self.part, *self.columns])

    @classmethod
    def read(cls, text: str) -> Aspect:
        part, *columns = json.loads(text)
        return cls(part, tuple(columns))


class PatientStates:
    """The states of one hospital's patients, each worked out when it is first needed."""

    def __init__(self, patients: Patients, view: View) -> None:
        self._patients, self._view = patients, view
        self._found: dict[tuple[Aspect, bytes], Names] = {}
        self._marked: dict[tuple[Aspect, bytes], Marks] = {}

    @cached_property
    def _ids(self) -> Hashes:
        return self._patients.tell_apart(None)

    @property
    def aspects(self) -> list[Aspect]:
        """All that there is to compare."""
        parts = [Aspect(name) for name in self._patients.reads if name != "table"]
        table = self._patients.table
        return parts if table is None else [Aspect("table", tuple(sorted(self._view.records.names))), *parts]

    def find(self, aspect: Aspect, key: bytes, numbers: NDArray[np.uint32]) -> Names | None:
        """The state of each patient, by these lasting numbers of the rows (0: not here); None where there is none."""
        found = self._found.get((aspect, key))
        if found is None:
            by_row = self._name(aspect, key)
            if by_row is None:
                return None
            found = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.uint64)
            found[numbers] = by_row
            self._found[aspect, key] = found
        return found

    @property
    def columns(self) -> list[Aspect]:
        """The columns of the table one by one, or in groups where there would be too many cells."""
        names = sorted(self._view.records.names)
        groups = max(1, min(len(names), MOST_CELLS // max(1, len(self._patients))))
        return [Aspect(CELLS, tuple(names[first::groups])) for first in range(groups)]

    def mark(self, aspect: Aspect, key: bytes, numbers: NDArray[np.uint32]) -> Marks | None:
        """What these columns say of each patient, by lasting numbers as in `find`; None where one is not there."""
        found = self._marked.get((aspect, key))
        seen = self._view.records
        if found is None and set(aspect.columns) <= set(seen.names):
            rows = self._view.patients
            # Without their names, by which the same column may have gone.
            columns = {str(place): seen[name] for place, name in enumerate(aspect.columns)}
            ids = self._ids[:, rows]
            found = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.uint16)
            found[numbers[rows]] = np.maximum(
                encipher(hash_rows(columns, len(seen)) + ids, key).astype(np.uint16), 1
            )
            self._marked[aspect, key] = found
        return found

    def count_uncommon(self, aspect: Aspect) -> int:
        """Of a column, the patients of whom it does not say what it says of most."""
        column = self._view.records[aspect.columns[0]]
        held = column.codes if isinstance(column, Coded) else column.numbers
        return len(held) - int(np.unique(held, return_counts=True, equal_nan=True)[1].max(initial=0))

    def _name(self, aspect: Aspect, key: bytes) -> Names | None:
        """By the rows of the hospital's table; whoever policy leaves out is no patient of any answer."""
        patients = self._patients
        part = patients.parts.get(aspect.part)
        if part is None:
            return None
        ids = self._ids
        if not isinstance(part, Records):
            return encipher(part.hashes + ids, key)
        seen = self._view.records
        if not set(aspect.columns) <= set(seen.names):
            return None
        rows = self._view.patients
        names = np.zeros(len(patients), dtype=np.uint64)
        hashes = hash_rows({name: seen[name] for name in aspect.columns}, len(seen))
        names[rows] = encipher(hashes + ids[:, rows], key)
        return names


def join_marks(one: Marks, other: Marks) -> Marks | None:
    """What both say of patients; None where they say different things of one."""
    size = max(len(one), len(other))
    joined, more = np.zeros(size, dtype=np.uint16), np.zeros(size, dtype=np.uint16)
    joined[: len(one)], more[: len(other)] = one, other
    if ((joined != more) & (joined != 0) & (more != 0)).any():
        return None
    return np.maximum(joined, more)


def find_changed(now: States, then: States) -> NDArray[np.intp]:
    """The numbers of patients of whom something else is said now; of those who were not there once, nothing is."""
    both = min(len(now), len(then))
    before, after = then[:both], now[:both]
    return np.flatnonzero((before != after) & (before != 0) & (after != 0))


def find_added(now: Names, then: Names) -> NDArray[np.intp]:
    """The numbers of patients who are there now and were not then."""
    before = np.zeros(len(now), dtype=np.uint64)
    before[: len(then)] = then[: len(now)]
    return np.flatnonzero((now != 0) & (before == 0))
