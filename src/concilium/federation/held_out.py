"""Patients that every site holds out of learning, chosen without a word between sites: for pruning, by held-out counts.

A patient's ticket is a hash of the question's query, target and share, of all that the site's table says of the
patient (each value as it reads by itself, whatever the others have), and of how many rows before say exactly the same.
The lowest tickets are held out. So membership follows from the patient alone: with one patient more or fewer, the
patients held out are the same but for that one (of several rows that say the same it does not matter which is gone),
and likewise those who are not. That is what lets the noise of a private count, which is for one patient, cover a count
over either part; the claim needs the hash of rows (128 bits of SHA-256) to be free of collisions. The house cannot aim
at anyone: it names no seed, and all it can do is ask in other words.

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
from concilium.federation.cohort import Cohort, View
from concilium.federation.disclosure import Population
from concilium.records.grammar import canonical, measure
from concilium.records.table import Column, Numbers, Records

MOST_PERCENT = 90
REMEMBERED_PARTS = 4
ROWS_AT_ONCE = 1024

Tickets = NDArray[np.uint64]
Cells = NDArray[np.uint64]  # two for every value

NUMBER = int.from_bytes(b"a number", "little")

TICKETS: WeakKeyDictionary[View, Tickets] = WeakKeyDictionary()
PARTS: WeakKeyDictionary[View, dict[tuple[str, str, Part, int], tuple[NDArray[np.int32], Population]]] = (
    WeakKeyDictionary()
)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `percent` of the patients who are held out, or (not `held`) all the others."""

    percent: int
    held: bool

    def check(self) -> None:
        if not 1 <= self.percent <= MOST_PERCENT:
            raise MessageError(f"1 to {MOST_PERCENT} percent of the patients can be held out")

    def choose(self, cohort: Cohort, query: str, target: str, least: int) -> Cohort:
        """Those of the cohort who are in this part; nobody is held out where a part would have fewer than `least`."""
        if cohort.floored:
            raise MessageError("a site that leaves small counts out does not tell part of its patients apart")
        parts = PARTS.setdefault(cohort.view, {})
        key = (query, target, self, least)
        if key not in parts:
            held = self._held(cohort, query, target)
            if min(int(held.sum()), int((~held).sum())) < least:
                held[:] = False
            rows = cohort.rows[held == self.held]
            for oldest in list(islice(parts, max(0, len(parts) - REMEMBERED_PARTS + 1))):
                parts.pop(oldest, None)
            parts[key] = rows, Population(cohort.view.patients[rows])
        rows, population = parts[key]
        return replace(cohort, rows=rows, population=population)

    def _held(self, cohort: Cohort, query: str, target: str) -> NDArray[np.bool_]:
        words = "".join(f"{len(word)}:{word}" for word in (query, target, str(self.percent)))
        key = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little")
        tickets = TICKETS.get(cohort.view)
        if tickets is None:
            tickets = TICKETS[cohort.view] = find_tickets(cohort.view.records)
        drawn = mix(tickets[cohort.rows], key)
        held: NDArray[np.bool_] = drawn < np.uint64((self.percent << 64) // 100)
        return held


def mix(numbers: Tickets, key: int) -> Tickets:
    """SplitMix64's output function on numbers and a key: it scatters, and never maps two numbers to one."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: Tickets = mixed ^ (mixed >> np.uint64(31))
    return scattered


def find_tickets(records: Records) -> Tickets:
    """A number for every row: a hash of what it says and of how many rows before say the same."""
    columns = [read_cells(records[name]) for name in sorted(records.names)]
    digests = np.empty((len(records), 2), dtype=np.uint64)
    for start in range(0, len(records), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        cells = np.concatenate([read(rows) for read in columns], axis=1)
        hashed = b"".join([hashlib.sha256(row).digest()[:16] for row in cells])
        digests[rows] = np.frombuffer(hashed, dtype="<u8").reshape(-1, 2)
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal rows stay in order
    ordered = digests[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    places = np.arange(len(order))
    before = np.empty(len(order), dtype=np.uint64)
    before[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    tickets: Tickets = digests[:, 0] + before * np.uint64(0xD1342543DE82EF95)
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
