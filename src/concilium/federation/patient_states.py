"""What a hospital says of each of its patients now, as a number each: so that a correction is seen as one.

Where patients are known by an id, a patient stays the same when a cell is corrected, and two plain answers about the
same patients, before and after, would tell what was corrected. So a ledger remembers, for every state of the tables
that an answer was given in, a number for what was held of each patient: of the table what may be told (the columns
that policy leaves, as the map reads them), and of everything held beside it. They are compared part by part, the table
over the columns that it had then; columns that came later change nobody. Where one of those columns is gone, or cannot
be told any more, nothing can be compared, and answers from before are compared by who they were about alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.federation.lasting_numbers import Names, encipher
from concilium.records.patients import Patients
from concilium.records.row_hashes import hash_rows
from concilium.records.table import Records

if TYPE_CHECKING:
    from concilium.federation.cohort import View


@dataclass(frozen=True)
class Aspect:
    """What of a patient is compared: a part of what is held, of the table these columns."""

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

    def _name(self, aspect: Aspect, key: bytes) -> Names | None:
        """By the rows of the hospital's table; whoever policy leaves out is no patient of any answer."""
        patients = self._patients
        part = patients.parts.get(aspect.part)
        if part is None:
            return None
        ids = patients.tell_apart(None)
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


def find_changed(now: Names, then: Names) -> NDArray[np.intp]:
    """The numbers of patients of whom something else is said now; of those who were not there once, nothing is."""
    both = min(len(now), len(then))
    before, after = then[:both], now[:both]
    return np.flatnonzero((before != after) & (before != 0) & (after != 0))


def find_added(now: Names, then: Names) -> NDArray[np.intp]:
    """The numbers of patients who are there now and were not then."""
    before = np.zeros(len(now), dtype=np.uint64)
    before[: len(then)] = then[: len(now)]
    return np.flatnonzero((now != 0) & (before == 0))
