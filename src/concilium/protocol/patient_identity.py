"""Numbers that a hospital's patients keep, whatever becomes of the order, the reading and the rest of its table.

A patient is the same while the table says the same in the columns that it had when its first patient was remembered, or
while the id is the same, where there is a column of ids; columns that are added later change nobody. Of rows that say
the same, the first is the same as the first was, and so on.

Numbers in a release (`derive_order`). Where a hospital shares entries of each patient, patients are numbered 1, 2,
... in an order that follows from the hospital's identity, the study and the patients' ids. So the hospital, and
nobody else, can tell later who has which number (`Site.name_patients`), and the numbers of two studies have nothing
to do with each other. *Assumes:* the identity stays secret, and SHA-256 with a secret key looks random to whoever has
no key.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from concilium.errors import LedgerError
from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import PatientMemory
from concilium.privacy.identity import Identity, statement
from concilium.records.blocks import (
    count_codes,
    each_block,
    fill_room,
    is_large,
    list_blocks,
    make_room,
    read_block,
    split_hashes,
    write_block,
)
from concilium.records.columns import Coded, Column, RowValues, Value, label, take_block
from concilium.records.patients import Patients
from concilium.records.row_hashes import Hashes, are_distinct, hash_rows
from concilium.records.table import Records

if TYPE_CHECKING:
    from concilium.protocol.cohort import View

Names = NDArray[np.uint64]


class PatientIdentity:
    """The numbers of one table's patients in one ledger, where those of this table are entered when they are first
    needed; asked inside a transaction of the ledger."""

    def __init__(self, ledger: Ledger, patients: Patients) -> None:
        self._ledger, self._patients = ledger, patients
        self._found: tuple[bytes, list[tuple[int, bytes]], NDArray[np.uint32]] | None = None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """By what this table's patients are told apart in a ledger that does not say yet; None is by their id."""
        table = self._patients.table
        return None if self._patients.by is not None or table is None else tuple(sorted(table.lasting_names))

    def find(self, memory: PatientMemory) -> NDArray[np.uint32]:
        """The number of the patient in each row."""
        blocks = self._ledger.patient_blocks()
        if self._found is None or self._found[:2] != (memory.key, blocks):
            if is_large(len(self._patients)):
                blocks, numbers = self._find_many(memory, blocks)
                self._found = memory.key, blocks, numbers
                return numbers
            names = self._name(memory)
            known = self._read_names() if blocks else names[:0]
            numbers, is_new = _look_up(names, known)
            if is_new.any():
                # Each once, should two patients have one name; in the order of rows, which makes for short bitmaps.
                new = names[is_new]
                fresh = new if are_distinct(new) else new[np.sort(np.unique(new, return_index=True)[1])]
                token = self._ledger.remember_names(len(known), fresh.astype("<u8").tobytes())
                numbers, _ = _look_up(names, np.concatenate([known, fresh]) if blocks else fresh)
                blocks = [*blocks, (len(known), token)]
            self._found = memory.key, blocks, numbers
        return self._found[2]

    def _find_many(
        self, memory: PatientMemory, blocks: list[tuple[int, bytes]]
    ) -> tuple[list[tuple[int, bytes]], NDArray[np.uint32]]:
        """The same of a large table, with the blocks there are then. Its new patients are numbered in the order of
        their names, and so found again without sorting; what was found is kept with the columns of the table."""
        table = self._patients.table
        room, store = (None, None) if table is None else (table.room, table.store)
        state = [memory.key.hex(), memory.columns, [(first, token.hex()) for first, token in blocks]]
        if store is not None and (found := store.recall_numbers(state)) is not None:
            return blocks, found
        names, numbers = self._name(memory, room), make_room(len(self._patients), np.uint32, room)
        is_new, next_number = np.ones(len(names), dtype=np.bool_), 0
        for run in self._list_runs(blocks):
            known = make_room(sum(size for _, size in run), np.uint64, room)
            for first, size in run:
                begin = first - run[0][0]
                write_block(known, slice(begin, begin + size), self._read_names(first))
            _enter_known(names, known, run[0][0], numbers, is_new)
            next_number = run[0][0] + len(known)

        def sort_new(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Names, NDArray[np.int64]]:
            own = rows[is_new[rows]]
            return own, *np.unique(names[own], return_inverse=True)

        for own, fresh, places in each_block(split_hashes(names) if is_new.any() else [], sort_new):
            numbers[own] = places + next_number
            for block in list_blocks(len(fresh)):
                token = self._ledger.remember_names(next_number, fresh[block].astype("<u8").tobytes())
                blocks = [*blocks, (next_number, token)]
                next_number += block.stop - block.start
        if store is not None:
            state[2] = [(first, token.hex()) for first, token in blocks]
            store.keep_numbers(state, numbers)
        return blocks, numbers

    def _list_runs(self, blocks: list[tuple[int, bytes]]) -> list[list[tuple[int, int]]]:
        """The blocks of known names, first number and size of each, those together that are in one order."""
        runs: list[list[tuple[int, int]]] = []
        last: np.uint64 | None = None
        for first, _ in blocks:
            names = self._read_names(first)
            ordered = bool(np.all(names[1:] > names[:-1]))
            if not (ordered and last is not None and names[0] > last):
                runs.append([])
            runs[-1].append((first, len(names)))
            last = names[-1] if ordered else None
        return runs

    def count_known(self, memory: PatientMemory) -> tuple[int, int]:
        """How many patients have a number, and how many of them are in the table."""
        known = self._read_names()
        return len(known), int(np.isin(known, self._name(memory)).sum())

    def _read_names(self, first: int | None = None) -> Names:
        """The known names, or those of the block that begins with this number."""
        held = self._ledger.patient_names() if first is None else self._ledger.names_from(first)
        return np.frombuffer(held, dtype="<u8").astype(np.uint64)

    def _name(self, memory: PatientMemory, room: Path | None = None) -> Names:
        table = self._patients.table
        if memory.columns is None:
            if self._patients.by is None and table is not None:
                raise LedgerError(_say(self._ledger, "their ids, and no column of ids is named"))
        elif table is None or not set(memory.columns) <= set(table.lasting_names):
            absent = set(memory.columns) - set(() if table is None else table.lasting_names)
            raise LedgerError(_say(self._ledger, f"columns that are gone, such as {min(absent)!r}"))
        hashes = self._patients.tell_apart(memory.columns)
        return fill_room(
            hashes.shape[1], np.uint64, room, lambda block: _encipher(read_block(hashes, block), memory.key)
        )


def _say(ledger: Ledger, what: str) -> str:
    return (
        f"{ledger.path} remembers the patients of earlier answers by {what}, and cannot compare them with this table: "
        "bring that back, or rebind the ledger and have it forget them, with a reason"
    )


def _look_up(names: Names, known: Names) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The place of each name among the known ones, and whether it is not there."""
    if not len(known):
        return np.zeros(len(names), dtype=np.uint32), np.ones(len(names), dtype=np.bool_)
    if len(known) == len(names) and np.array_equal(known, names):
        return np.arange(len(names), dtype=np.uint32), np.zeros(len(names), dtype=np.bool_)
    order = np.argsort(known, kind="stable")
    places = np.minimum(np.searchsorted(known, names, sorter=order), len(known) - 1)
    numbers = order[places]
    return numbers.astype(np.uint32), known[numbers] != names


def _enter_known(
    names: Names, known: Names, first: int, numbers: NDArray[np.uint32], is_new: NDArray[np.bool_]
) -> None:
    """Enter the numbers of those names that are among the known ones, which are numbered from `first` on."""
    order = None if np.all(known[1:] > known[:-1]) else np.argsort(known, kind="stable")
    for block in list_blocks(len(names)):
        here = read_block(names, block)
        rows = np.argsort(here)  # so that the known ones are gone over in their order
        places = np.minimum(np.searchsorted(known, here[rows], sorter=order), len(known) - 1)
        places = places if order is None else order[places]
        found = known[places] == here[rows]
        rows = rows[found] + block.start
        numbers[rows], is_new[rows] = first + places[found], False


def _encipher(hashes: Hashes, key: bytes) -> Names:
    """Names of patients: 64 bits of each hash under AES. Block by block, since that equal ones stay equal is the point;
    no two patients share a block."""
    blocks = np.ascontiguousarray(hashes.T.astype("<u8")).tobytes()
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    names = np.frombuffer(cipher.update(blocks) + cipher.finalize(), dtype="<u8").reshape(-1, 2)[:, 0]
    return names.astype(np.uint64)


def derive_order(identity: Identity, study: str) -> bytes:
    """The key that orders the patients of a study, the same also after a rotation of the identity."""
    return identity.derive(statement("concilium/patient-numbers@1", study.encode()))


def order_patients(key: bytes, ids: Sequence[Value | None]) -> NDArray[np.intp]:
    """The rows of these patients in the order of their numbers."""
    tickets = [hmac.digest(key, label(patient).encode("utf-8", "surrogatepass"), "sha256") for patient in ids]
    return np.array(sorted(range(len(tickets)), key=tickets.__getitem__), dtype=np.intp)


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
    """The states of one hospital's patients, each worked out when it is first needed.

    Where patients are known by an id, a patient stays the same when a cell is corrected, and two plain answers about
    the same patients, before and after, would disclose what was corrected. So a ledger remembers, for every state of
    the tables that an answer was given in, a number for what was held of each patient: of the table what may be told
    (the columns that policy leaves, as the map reads them), and of everything held beside it. They are compared part
    by part, the table over the columns that it had then; columns that came later change nobody.

    Where one of those columns is gone, or may not be told any more, that number says nothing of the others. So a
    smaller one is kept of each column too, 16 bits of a patient's cell: by those a table is compared over the columns
    that it still has, and a column that is gone with each that is new, which may be the same under another name. Such
    a correction goes unseen with a chance of 2^-16 for each cell. Columns of very large tables are taken together in
    groups (MOST_CELLS), of which one column gone leaves the others of its group uncompared.
    """

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
        """The state of each patient, by these numbers of the rows (0: not here); None where there is none."""
        found = self._found.get((aspect, key))
        if found is None:
            by_row = self._name(aspect, key)
            if by_row is None:
                return None
            found = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.uint64)
            for block in list_blocks(len(numbers)):  # of several rows, all that they say
                np.add.at(found, read_block(numbers, block), read_block(by_row, block))
            self._found[aspect, key] = found
        return found

    @property
    def columns(self) -> list[Aspect]:
        """The columns of the table one by one, or in groups where there would be too many cells."""
        names = sorted(self._view.records.names)
        groups = max(1, min(len(names), MOST_CELLS // max(1, len(self._patients))))
        return [Aspect(CELLS, tuple(names[first::groups])) for first in range(groups)]

    def mark(self, aspect: Aspect, key: bytes, numbers: NDArray[np.uint32]) -> Marks | None:
        """What these columns say of each patient, by patient identity as in `find`; None where one is not there."""
        found = self._marked.get((aspect, key))
        seen = self._view.records
        if found is None and set(aspect.columns) <= set(seen.names):
            # Without their names, by which the same column may have gone.
            columns = {str(place): seen[name] for place, name in enumerate(aspect.columns)}
            found = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.uint16)
            for rows, names in self._encipher_rows(columns, key):
                own = numbers[rows]
                np.add.at(found, own, names.astype(np.uint16))
            for rows in self._list_rows():
                own = numbers[rows]
                found[own] = np.maximum(found[own], 1)
            self._marked[aspect, key] = found
        return found

    def count_uncommon(self, aspect: Aspect) -> int:
        """Of a column, the patients of whom it does not say what it says of most."""
        column = self._view.records[aspect.columns[0]]
        if isinstance(column, Coded):
            values = len(column) if isinstance(column.values, RowValues) else len(column.values)
            return len(column) - int(count_codes(column.codes, values + 1).max(initial=0))
        held = column.numbers
        return len(held) - int(np.unique(held, return_counts=True, equal_nan=True)[1].max(initial=0))

    def _name(self, aspect: Aspect, key: bytes) -> Names | None:
        """By the rows of the hospital's table; whoever policy leaves out is no patient of any answer."""
        patients = self._patients
        part = patients.parts.get(aspect.part)
        if part is None:
            return None
        ids = self._ids
        if not isinstance(part, Records):
            return _encipher(part.hashes + ids, key)
        seen = self._view.records
        if not set(aspect.columns) <= set(seen.names):
            return None
        names: Names = make_room(len(patients), np.uint64, seen.room)
        for rows, own in self._encipher_rows({name: seen[name] for name in aspect.columns}, key):
            names[rows] = own
        return names

    def _list_rows(self) -> Iterator[NDArray[np.integer]]:
        """The rows of the view's patients in the hospital's table, by blocks."""
        for block in list_blocks(len(self._view.records)):
            yield read_block(self._view.patients, block)

    def _encipher_rows(
        self, columns: Mapping[str, Column], key: bytes
    ) -> Iterator[tuple[NDArray[np.integer], Names]]:
        """What these columns say of the view's patients, with their ids, block by block: by their rows in the
        hospital's table."""
        for block, rows in zip(list_blocks(len(self._view.records)), self._list_rows(), strict=True):
            some = {name: take_block(column, block, raw=True) for name, column in columns.items()}
            yield rows, _encipher(hash_rows(some, len(rows)) + self._ids[:, rows], key)


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
