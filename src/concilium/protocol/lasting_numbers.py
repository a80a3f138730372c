"""Numbers that a hospital's patients keep, whatever becomes of the order, the reading and the rest of its table.

A patient is the same while the table says the same in the columns that it had when its first patient was remembered, or
while the id is the same, where there is a column of ids; columns that are added later change nobody. Of rows that say
the same, the first is the same as the first was, and so on.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from concilium.errors import LedgerError
from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import PatientMemory
from concilium.records.patients import Patients
from concilium.records.row_hashes import Hashes, are_distinct

Names = NDArray[np.uint64]


class LastingNumbers:
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
            names = self._name(memory)
            known = self._read_names() if blocks else names[:0]
            numbers, is_new = look_up(names, known)
            if is_new.any():
                # Each once, should two patients have one name; in the order of rows, which makes for short bitmaps.
                new = names[is_new]
                fresh = new if are_distinct(new) else new[np.sort(np.unique(new, return_index=True)[1])]
                token = self._ledger.remember_names(len(known), fresh.astype("<u8").tobytes())
                numbers, _ = look_up(names, np.concatenate([known, fresh]) if blocks else fresh)
                blocks = [*blocks, (len(known), token)]
            self._found = memory.key, blocks, numbers
        return self._found[2]

    def count_known(self, memory: PatientMemory) -> tuple[int, int]:
        """How many patients have a number, and how many of them are in the table."""
        known = self._read_names()
        return len(known), int(np.isin(known, self._name(memory)).sum())

    def _read_names(self) -> Names:
        return np.frombuffer(self._ledger.patient_names(), dtype="<u8").astype(np.uint64)

    def _name(self, memory: PatientMemory) -> Names:
        table = self._patients.table
        if memory.columns is None:
            if self._patients.by is None and table is not None:
                raise LedgerError(_say(self._ledger, "their ids, and no column of ids is named"))
        elif table is None or not set(memory.columns) <= set(table.lasting_names):
            absent = set(memory.columns) - set(() if table is None else table.lasting_names)
            raise LedgerError(_say(self._ledger, f"columns that are gone, such as {min(absent)!r}"))
        return encipher(self._patients.tell_apart(memory.columns), memory.key)


def _say(ledger: Ledger, what: str) -> str:
    return (
        f"{ledger.path} remembers the patients of earlier answers by {what}, and cannot compare them with this table: "
        "bring that back, or rebind the ledger and have it forget them, with a reason"
    )


def look_up(names: Names, known: Names) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The place of each name among the known ones, and whether it is not there."""
    if not len(known):
        return np.zeros(len(names), dtype=np.uint32), np.ones(len(names), dtype=np.bool_)
    if len(known) == len(names) and np.array_equal(known, names):
        return np.arange(len(names), dtype=np.uint32), np.zeros(len(names), dtype=np.bool_)
    order = np.argsort(known, kind="stable")
    places = np.minimum(np.searchsorted(known, names, sorter=order), len(known) - 1)
    numbers = order[places]
    return numbers.astype(np.uint32), known[numbers] != names


def encipher(hashes: Hashes, key: bytes) -> Names:
    """Names of patients: 64 bits of each hash under AES. Block by block, since that equal ones stay equal is the point;
    no two patients share a block."""
    blocks = np.ascontiguousarray(hashes.T.astype("<u8")).tobytes()
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    names = np.frombuffer(cipher.update(blocks) + cipher.finalize(), dtype="<u8").reshape(-1, 2)[:, 0]
    return names.astype(np.uint64)
