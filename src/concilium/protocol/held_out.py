"""Patients that every site holds out of learning, chosen without a word between sites: for pruning, by held-out counts.

A patient's ticket is a hash, under a key that only the site has, of all that the site's table says of the patient (each
value as it reads by itself, whatever the others have), and of how many rows before say exactly the same. The lowest
tickets are held out. So membership follows from the patient and the site's key alone: with one patient more or fewer,
the patients held out are the same but for that one (of several rows that say the same it does not matter which is
gone), and likewise those who are not. That is what lets the noise of a private count, which is for one patient, cover a
count over either part; the claim needs the hash of rows (128 bits of SHA-256) to be free of collisions.

Who is protected: a patient whose whole record the house knows, from a house that would have that patient on the side of
its choice and subtract. Without the key nobody can tell who is held out, and there is nothing to choose: the query and
the target have no say, so that other words divide the same patients in the same way, in every study, for as long as the
site has its identity (Site.division_key). The one thing a house names is the share. No share holds out those of
another and a few more: each whole percent divides anew, so that the counts of two shares differ by patients on both
sides; and under `exact` differencing compares the parts as it does whole cohorts (disclosure.py).

Under `exact` and `masked` a site of which either part would have fewer than its policy's `minimum_patients` holds out
nobody, and where small counts are left out of tables no part is told at all: what is left out of one part could be had
from the whole and the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.cohort import Cohort, View
from concilium.protocol.disclosure import Population
from concilium.records.grammar import canonical, measure
from concilium.records.row_hashes import APART, count_before, mix
from concilium.records.table import Column, Numbers, Records

MOST_PERCENT = 90
REMEMBERED_PARTS = 4
ROWS_AT_ONCE = 1024

Tickets = NDArray[np.uint64]
Cells = NDArray[np.uint64]  # two for every value

# Whoever runs a simulation has all tables in hand; so that it comes out the same again, and pooled patients are divided
# as their hospitals divide them.
SIMULATION_KEY = b"concilium: a simulation"

NUMBER = int.from_bytes(b"a number", "little")

TICKETS: WeakKeyDictionary[View, Tickets] = WeakKeyDictionary()
PARTS: WeakKeyDictionary[View, dict[tuple[bytes, Part, int], tuple[NDArray[np.int32], Population]]] = (
    WeakKeyDictionary()
)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `percent` of the patients who are held out, or (not `held`) all the others."""

    percent: int
    held: bool

    def check(self) -> None:
        if not 1 <= self.percent <= MOST_PERCENT:
            raise MessageError(f"1 to {MOST_PERCENT} percent of the patients can be held out")

    def choose(self, cohort: Cohort, least: int) -> Cohort:
        """Those of the cohort who are in this part; nobody is held out where a part would have fewer than `least`."""
        if cohort.floored:
            raise MessageError("a site that leaves small counts out does not tell part of its patients apart")
        parts = PARTS.setdefault(cohort.view, {})
        key = (cohort.population.digest, self, least)
        if key not in parts:
            held = self._held(cohort)
            if min(int(held.sum()), int((~held).sum())) < least:
                held[:] = False
            rows = cohort.rows[held == self.held]
            for oldest in list(islice(parts, max(0, len(parts) - REMEMBERED_PARTS + 1))):
                parts.pop(oldest, None)
            parts[key] = rows, Population(cohort.view.patients[rows])
        rows, population = parts[key]
        return replace(cohort, rows=rows, population=population)

    def _held(self, cohort: Cohort) -> NDArray[np.bool_]:
        tickets = TICKETS.get(cohort.view)
        if tickets is None:
            tickets = TICKETS[cohort.view] = find_tickets(cohort.view.records, cohort.view.division_key)
        drawn = mix(tickets[cohort.rows], self.percent)
        held: NDArray[np.bool_] = drawn < np.uint64((self.percent << 64) // 100)
        return held


def find_tickets(records: Records, key: bytes) -> Tickets:
    """A number for every row: a hash under this key of what it says, and of how many rows before say the same."""
    columns = [read_cells(records[name]) for name in sorted(records.names)]
    digests = np.empty((len(records), 2), dtype=np.uint64)
    secret = np.frombuffer(hashlib.sha256(key).digest() * ROWS_AT_ONCE, dtype="<u8").reshape(ROWS_AT_ONCE, -1)
    for start in range(0, len(records), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        content = [read(rows) for read in columns]
        # All rows are of one length and no hash is ever shown, so that a key before the row is enough.
        cells = np.concatenate([secret[: len(content[0])], *content], axis=1)
        hashed = b"".join([hashlib.sha256(row).digest()[:16] for row in cells])
        digests[rows] = np.frombuffer(hashed, dtype="<u8").reshape(-1, 2)
    before = count_before(digests.T)
    if before is None:
        return digests[:, 0].copy()
    tickets: Tickets = digests[:, 0] + before * APART
    return tickets


def read_cells(column: Column) -> Callable[[slice], Cells]:
    """What some rows of a column say, as it is hashed: two numbers each, zero where it is missing."""
    if isinstance(column, Numbers):
        numbers = column.numbers
        return lambda rows: as_cells(numbers[rows])
    values = [np.nan, *map(measure, column.values)]
    cells, codes = as_cells(np.array(values)), column.codes
    for code, value in enumerate(column.values, start=1):
        if np.isnan(values[code]):
            text = hashlib.sha256(canonical(value).encode()).digest()[:16]
            cells[code] = np.frombuffer(text, dtype="<u8")
    return lambda rows: np.take(cells, codes[rows], axis=0)


def as_cells(numbers: NDArray[np.float64]) -> Cells:
    known = ~np.isnan(numbers)
    bits = np.where(known, numbers + 0.0, 0.0).astype("<f8").view("<u8")  # -0.0 and 0.0 are one number
    return np.stack([bits, np.where(known, np.uint64(NUMBER), np.uint64(0))], axis=1)
