"""What a ledger remembers beside its chain: whom plain answers were about, with whom masked sums were opened, and how
far the ledgers of other hospitals had come.

Who is protected: patients and hospitals, from two answers of which one is subtracted from the other (the rules are in
protocol/disclosure.py and protocol/masking.py). What is remembered inside a charge is on disk with its entry, or
not at all. None of it is bound to one state of the table: patients are remembered by a lasting number each, which goes
with what the table says of them (or with their id) and not with their row, so that a table in another order, read in
another way, or with other patients more or fewer is compared as far as it holds the same patients. Where the number
goes with an id, what was held of each patient is remembered beside it (protocol/patient_states.py).

Those numbers are kept with 64 bits of each patient's hash (records/row_hashes.py), enciphered under a key that is drawn
for the ledger: who has a patient's row and not the file cannot tell whether two hospitals know the same patient. Who
has the file and a row can tell whether the patient was among those of the table, as from any list of patients; the file
is for its owner only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from concilium.errors import LedgerError
from concilium.ledger.chain import Head, holds
from concilium.ledger.file import LedgerFile, require_text
from concilium.privacy.masks import LINK_BYTES, Standing
from concilium.privacy.randomness import draw_bytes

_TABLES = {
    "patient_key": "CREATE TABLE IF NOT EXISTS patient_key (key BLOB NOT NULL, columns TEXT NOT NULL)",
    "patient_names": """CREATE TABLE IF NOT EXISTS patient_names (
    first INTEGER PRIMARY KEY, token BLOB NOT NULL, names BLOB NOT NULL)""",
    "remembered_population": """CREATE TABLE IF NOT EXISTS remembered_population (
    number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, patients BLOB NOT NULL)""",
    "patient_state": """CREATE TABLE IF NOT EXISTS patient_state (
    number INTEGER PRIMARY KEY, aspect TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, states BLOB NOT NULL)""",
    "answered_state": """CREATE TABLE IF NOT EXISTS answered_state (
    population BLOB NOT NULL, state INTEGER NOT NULL, PRIMARY KEY (population, state)) WITHOUT ROWID""",
    "state_part": """CREATE TABLE IF NOT EXISTS state_part (
    state INTEGER NOT NULL, part INTEGER NOT NULL, PRIMARY KEY (state, part)) WITHOUT ROWID""",
    "mask_circle": """CREATE TABLE IF NOT EXISTS mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID""",
    "masked_entry": """CREATE TABLE IF NOT EXISTS masked_entry (
    sequence INTEGER PRIMARY KEY, hash TEXT NOT NULL)""",
    "peer_ledger": """CREATE TABLE IF NOT EXISTS peer_ledger (
    fingerprint TEXT PRIMARY KEY, count INTEGER NOT NULL, hash TEXT NOT NULL, links BLOB NOT NULL) WITHOUT ROWID""",
}
_BY_ROW = "disclosure_population"
"""Where version 0.1 remembered populations, by the rows of one table in its order."""
KEY_BYTES = 16
# How many earlier charges a site shows its neighbours, and how many they remember: studies run at the same time.
MOST_PAST = 16
MOST_LINKS = 256
FORGOTTEN = (
    "remembered_population",
    "patient_names",
    "patient_key",
    "patient_state",
    "answered_state",
    "state_part",
)


PATIENT_TABLES = tuple(_TABLES[name] for name in ("patient_key", "patient_names", "remembered_population"))


@dataclass(frozen=True)
class PatientMemory:
    """Under which key and by which columns (None: by their id) patients are told apart, and whom answers were about:
    number, digest and patients of each population, as they were given."""

    key: bytes
    columns: tuple[str, ...] | None
    populations: list[tuple[int, bytes, bytes]]


class LedgerMemory:
    """What a ledger remembers; inside the `seal` of a charge it is part of that transaction."""

    _file: LedgerFile

    def recall_patients(self) -> PatientMemory | None:
        """What was remembered of patients, with all populations; None where nothing was yet."""
        rows = self._recollect(
            "patient_key",
            "SELECT key, columns, number, digest, patients FROM patient_key"
            " LEFT JOIN remembered_population ORDER BY number",
        )
        if not rows:
            return None
        try:
            columns = json.loads(rows[0][1])
        except ValueError:
            self._file.damaged("how it tells patients apart cannot be read")
        populations = [(number, digest, patients) for _, _, number, digest, patients in rows if number]
        return PatientMemory(rows[0][0], None if columns is None else tuple(columns), populations)

    def begin_patients(self, columns: tuple[str, ...] | None) -> PatientMemory:
        """Settle by what patients are told apart, and draw the key."""
        key = draw_bytes(KEY_BYTES)
        with self._file.joining(to_write=True):
            if not self._file.has_table("patient_key"):
                for table in PATIENT_TABLES:
                    self._file.run(table)
            self._file.run("INSERT INTO patient_key VALUES (?, ?)", (key, json.dumps(columns)))
        return PatientMemory(key, columns, [])

    def remember_population(self, digest: bytes, patients: bytes) -> None:
        """Keep whom a plain answer was about, once; inside `seal`, if and only if the charge stands."""
        statement = "INSERT OR IGNORE INTO remembered_population (digest, patients) VALUES (?, ?)"
        with self._file.joining(to_write=True):
            self._file.run(statement, (digest, patients))

    def patient_blocks(self) -> list[tuple[int, bytes]]:
        """The blocks in which patients were given their numbers: the first number of each, and what tells it from
        another that was entered in its place after a charge had failed."""
        with self._file.joining():
            return list(self._file.rows("SELECT first, token FROM patient_names ORDER BY first"))

    def patient_names(self) -> bytes:
        """The names of all patients with a number, 8 bytes each, in the order of their numbers."""
        query = "SELECT names FROM patient_names ORDER BY first"
        return b"".join(names for (names,) in self._recollect("patient_names", query))

    def remember_names(self, first: int, names: bytes) -> bytes:
        """Give patients numbers, from `first` on; what tells this block from others is returned."""
        token = draw_bytes(8)
        with self._file.joining(to_write=True):
            self._file.run("INSERT INTO patient_names VALUES (?, ?, ?)", (first, token, names))
        return token

    def answered_states(self) -> dict[bytes, list[tuple[int, str]]]:
        """In which states of the patients each population was told about: by its digest, number and aspect of each."""
        found: dict[bytes, list[tuple[int, str]]] = {}
        query = "SELECT population, number, aspect FROM answered_state JOIN patient_state ON state = number"
        for population, number, aspect in self._recollect("answered_state", query):
            found.setdefault(population, []).append((number, aspect))
        return found

    def patient_states(self, number: int) -> bytes:
        """What was held of each patient then, a number each, in the order of their numbers."""
        query = "SELECT states FROM patient_state WHERE number = ?"
        return b"".join(states for (states,) in self._recollect("patient_state", query, (number,)))

    def states_of(self, aspect: str) -> list[tuple[int, bytes]]:
        """All states that were kept of an aspect, by their numbers, the last first."""
        query = "SELECT number, states FROM patient_state WHERE aspect = ? ORDER BY number DESC"
        return self._recollect("patient_state", query, (aspect,))

    def parts_of_state(self, number: int) -> list[tuple[int, str]]:
        """Number and aspect of the states that a state was kept in parts as."""
        query = "SELECT number, aspect FROM state_part JOIN patient_state ON part = number WHERE state = ?"
        return self._recollect("state_part", query, (number,))

    def remember_state(self, aspect: str, states: bytes) -> tuple[int, bool]:
        """Keep a state of the patients, once: its number, and whether it is new. Inside `seal`, if and only if the
        charge stands."""
        digest = hashlib.sha256(aspect.encode() + b"\n" + states).digest()
        known = "SELECT number FROM patient_state WHERE digest = ?"
        with self._file.joining(to_write=True):
            self._file.run(_TABLES["patient_state"])
            before = self._recollect("patient_state", known, (digest,))
            if before:
                return before[0][0], False
            self._file.run(
                "INSERT INTO patient_state (aspect, digest, states) VALUES (?, ?, ?)",
                (aspect, digest, states),
            )
            return self._recollect("patient_state", known, (digest,))[0][0], True

    def complete_state(self, number: int, aspect: str, states: bytes) -> None:
        """Enter more patients into a state that was kept."""
        digest = hashlib.sha256(aspect.encode() + b"\n" + states).digest()
        with self._file.joining(to_write=True):
            self._file.run(
                "UPDATE patient_state SET digest = ?, states = ? WHERE number = ?", (digest, states, number)
            )

    def remember_answered(self, population: bytes, state: int) -> None:
        """Keep that a population was told about in a state."""
        statement = "INSERT OR IGNORE INTO answered_state VALUES (?, ?)"
        self._remember("answered_state", statement, (population, state))

    def remember_part(self, state: int, part: int) -> None:
        """Keep that a state was kept in parts, of which this is one."""
        self._remember("state_part", "INSERT OR IGNORE INTO state_part VALUES (?, ?)", (state, part))

    def populations_by_row(self) -> list[tuple[str, bytes]]:
        """What version 0.1 remembered: the former digest of the table, and the patients by their rows in it."""
        return self._recollect(_BY_ROW, f"SELECT records, patients FROM {_BY_ROW} ORDER BY number")

    def drop_by_row(self, records: str) -> None:
        """Drop what version 0.1 remembered of these records, now that it is remembered by lasting numbers."""
        with self._file.joining(to_write=True):
            self._file.run(f"DELETE FROM {_BY_ROW} WHERE records = ?", (records,))

    def circles(self) -> list[tuple[str, ...]]:
        """The circles of hospitals that masked sums were opened with, whatever the records were."""
        try:
            rows = self._recollect("mask_circle", "SELECT DISTINCT names FROM mask_circle")
            return [_read_circle(names) for (names,) in rows]
        except (ValueError, TypeError):
            self._file.damaged("a circle of hospitals in it cannot be read")

    def remember_circle(self, records: str, names: tuple[str, ...]) -> None:
        """Keep with whom a masked sum was opened, once for each state of the records; inside `seal`, if and only if the
        charge stands."""
        statement = "INSERT OR IGNORE INTO mask_circle VALUES (?, ?)"
        self._remember("mask_circle", statement, (records, _write_circle(names)))

    def remember_masked(self, head: Head) -> None:
        """Keep which entry charges for a masked answer; inside `seal`, if and only if the charge stands."""
        self._remember("masked_entry", "INSERT INTO masked_entry VALUES (?, ?)", (head.count, head.hash))
        with self._file.joining(to_write=True):
            self._file.run(
                "DELETE FROM masked_entry WHERE sequence <= (SELECT sequence FROM masked_entry"
                " ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                (MOST_PAST + 1,),
            )

    def stood_at(self, standing: Standing) -> bool:
        """Whether this is, or was, our own chain."""
        with self._file.joining():
            return holds(self._file, Head(standing.entries, standing.head.hex()))

    def standing(self) -> Standing:
        """How far the charges for masked answers have come, for neighbours to compare."""
        query = "SELECT sequence, hash FROM masked_entry ORDER BY sequence DESC"
        rows = self._recollect("masked_entry", query)
        if not rows:
            return Standing()
        (count, link), *before = rows
        past = b"".join(bytes.fromhex(hash_)[:LINK_BYTES] for _, hash_ in before[:MOST_PAST])
        return Standing(count, bytes.fromhex(link), past)

    def follow_peer(self, fingerprint: str, standing: Standing, held: bytes = b"") -> str | None:
        """Remember how far another hospital's ledger has come, by its identity; what is wrong with it, or None.

        Protects: the patients of that hospital, from answers beyond its budget out of a ledger that was put back to an
        older copy, head file and all. From: any house; what is compared is tagged by the hospital itself (masks.py).
        Claim: all entries for which this returns None are of one chain. A ledger is followed only where it shows that
        it holds the newest entry that is remembered here (among its last ones, or those `held`), or where the entry is
        remembered here already. Assumes: this ledger was not put back too.
        """
        if not 0 <= standing.entries < 2**63:
            raise LedgerError(f"the ledger of {fingerprint} cannot be at entry {standing.entries!r}")
        query = "SELECT count, hash, links FROM peer_ledger WHERE fingerprint = ?"
        before = self._recollect("peer_ledger", query, (require_text(fingerprint, "fingerprint"),))
        shown = _split_links(standing.head[:LINK_BYTES] + standing.past)
        links = shown
        for count, link, known in before:
            newest, links = bytes.fromhex(link)[:LINK_BYTES], _split_links(known)
            if standing.head[:LINK_BYTES] in links:
                return None
            if newest not in (*shown, *_split_links(held)):
                return (
                    f"entry {count} of its ledger is remembered here, and its ledger (at entry {standing.entries} now) "
                    "does not show that it holds it: a restored backup, or another ledger"
                )
            links = list(dict.fromkeys([*shown, *links]))[:MOST_LINKS]
        if standing.head:
            values = (fingerprint, standing.entries, standing.head.hex(), b"".join(links))
            self._remember("peer_ledger", "INSERT OR REPLACE INTO peer_ledger VALUES (?, ?, ?, ?)", values)
        return None

    def peer_heads(self) -> dict[str, Head]:
        """How far other hospitals' ledgers had come, by their identities."""
        rows = self._recollect("peer_ledger", "SELECT fingerprint, count, hash FROM peer_ledger")
        return {fingerprint: Head(count, link) for fingerprint, count, link in rows}

    def _forget_peer(self, fingerprint: str) -> None:
        with self._file.joining(to_write=True):
            self._file.run("DELETE FROM peer_ledger WHERE fingerprint = ?", (fingerprint,))

    def _forget_patients(self) -> int:
        """Forget whom answers were about; how many there were."""
        count = 0
        for table in ("remembered_population", _BY_ROW):
            count += sum(number for (number,) in self._recollect(table, f"SELECT count(*) FROM {table}"))
        with self._file.joining(to_write=True):
            for table in (*FORGOTTEN, _BY_ROW):
                if self._file.has_table(table):
                    self._file.run(f"DELETE FROM {table}")
        return count

    def _refuse_to_forget(self, records: str | None) -> None:
        """What version 0.1 remembered by rows is lost with the table whose rows they are."""
        count = sum(of == records for of, _ in self.populations_by_row())
        if count:
            raise LedgerError(
                f"{self._file.path} remembers the patients of {count} answers by the rows of the table that it is "
                "bound to, as version 0.1 did, and could not compare them with another table: open the site once with "
                "the table as it was, which remembers them in a lasting way, or have them forgotten, with a reason"
            )

    def _recollect(self, table: str, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._file.joining():
            return list(self._file.rows(query, values)) if self._file.has_table(table) else []

    def _remember(self, table: str, statement: str, values: tuple[object, ...]) -> None:
        with self._file.joining(to_write=True):
            self._file.run(_TABLES[table])
            self._file.run(statement, values)


# With a thousand hospitals and every question: kept.
@lru_cache(maxsize=32)
def _read_circle(names: str) -> tuple[str, ...]:
    return tuple(json.loads(names))


@lru_cache(maxsize=32)
def _write_circle(names: tuple[str, ...]) -> str:
    return json.dumps(names)


def _split_links(links: bytes) -> list[bytes]:
    return [links[at : at + LINK_BYTES] for at in range(0, len(links), LINK_BYTES)]
