"""What a ledger remembers beside its chain: whom plain answers were about, with whom masked sums were opened, and how
far the ledgers of other hospitals had come.

Who is protected: patients and hospitals, from two answers of which one is subtracted from the other (the rules are in
protocol/disclosure.py and protocol/masking.py). What is remembered inside a charge is on disk with its entry, or
not at all. None of it is bound to one state of the table: patients are remembered by a number each, which goes
with what the table says of them (or with their id) and not with their row, so that a table in another order, read in
another way, or with other patients more or fewer is compared as far as it holds the same patients. Where the number
goes with an id, what was held of each patient is remembered beside it (protocol/patient_identity.py).

Those numbers are kept with 64 bits of each patient's hash (records/row_hashes.py), enciphered under a key that is drawn
for the ledger: who has a patient's row and not the file cannot tell whether two hospitals know the same patient. Who
has the file and a row can tell whether the patient was among those of the table, as from any list of patients; the file
is for its owner only.

Why they are in the ledger and not among the columns of the table (records/column_store.py): those may be removed at any
time, and are made anew from the table as it is then. Who was answered about before, and is no longer in it, could not
be named from that, and the numbers by which earlier answers are compared would mean other patients. Nor are they in a
file of their own beside the ledger: they are settled by the same commit as the charge that needs them, copied with it
and forgotten with it, of which two files could only do one after the other. They take 8 bytes of each patient, in
blocks of a million sorted names, each one cell of one row, which is read as it is; SQLite adds one in a hundred.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from concilium.errors import LedgerError
from concilium.ledger import chain as chain
from concilium.ledger.budgets import find_end
from concilium.ledger.chain import Head, Tail, holds
from concilium.ledger.file import LedgerFile, require_text
from concilium.privacy.masks import LINK_BYTES, Standing
from concilium.privacy.randomness import draw_bytes

MEMORY_TABLES = (
    "CREATE TABLE patient_key (key BLOB NOT NULL, columns TEXT NOT NULL)",
    """CREATE TABLE patient_names (
    first INTEGER PRIMARY KEY, token BLOB NOT NULL, names BLOB NOT NULL)""",
    """CREATE TABLE remembered_population (
    number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, patients BLOB NOT NULL)""",
    """CREATE TABLE patient_state (
    number INTEGER PRIMARY KEY, aspect TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, states BLOB NOT NULL)""",
    """CREATE TABLE answered_state (
    population BLOB NOT NULL, state INTEGER NOT NULL, PRIMARY KEY (population, state)) WITHOUT ROWID""",
    """CREATE TABLE state_part (
    state INTEGER NOT NULL, part INTEGER NOT NULL, PRIMARY KEY (state, part)) WITHOUT ROWID""",
    """CREATE TABLE mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID""",
    """CREATE TABLE masked_entry (
    sequence INTEGER PRIMARY KEY, hash TEXT NOT NULL)""",
    """CREATE TABLE peer_ledger (
    fingerprint TEXT PRIMARY KEY, count INTEGER NOT NULL, hash TEXT NOT NULL, links BLOB NOT NULL) WITHOUT ROWID""",
)
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
        self._remember("INSERT INTO patient_key VALUES (?, ?)", (key, json.dumps(columns)))
        return PatientMemory(key, columns, [])

    def remember_population(self, digest: bytes, patients: bytes) -> None:
        """Keep whom a plain answer was about, once; inside `seal`, if and only if the charge stands."""
        statement = "INSERT OR IGNORE INTO remembered_population (digest, patients) VALUES (?, ?)"
        self._remember(statement, (digest, patients))

    def patient_blocks(self) -> list[tuple[int, bytes]]:
        """The blocks in which patients were given their numbers: the first number of each, and what tells it from
        another that was entered in its place after a charge had failed."""
        return self._recollect("SELECT first, token FROM patient_names ORDER BY first")

    def patient_names(self) -> bytes:
        """The names of all patients with a number, 8 bytes each, in the order of their numbers."""
        query = "SELECT names FROM patient_names ORDER BY first"
        return b"".join(names for (names,) in self._recollect(query))

    def names_from(self, first: int) -> bytes:
        """The same of the block that begins with this number."""
        query = "SELECT names FROM patient_names WHERE first = ?"
        return b"".join(names for (names,) in self._recollect(query, (first,)))

    def remember_names(self, first: int, names: bytes) -> bytes:
        """Give patients numbers, from `first` on; what tells this block from others is returned."""
        token = draw_bytes(8)
        self._remember("INSERT INTO patient_names VALUES (?, ?, ?)", (first, token, names))
        return token

    def answered_states(self) -> dict[bytes, list[tuple[int, str]]]:
        """In which states of the patients each population was told about: by its digest, number and aspect of each."""
        found: dict[bytes, list[tuple[int, str]]] = {}
        query = "SELECT population, number, aspect FROM answered_state JOIN patient_state ON state = number"
        for population, number, aspect in self._recollect(query):
            found.setdefault(population, []).append((number, aspect))
        return found

    def patient_states(self, number: int) -> bytes:
        """What was held of each patient then, a number each, in the order of their numbers."""
        query = "SELECT states FROM patient_state WHERE number = ?"
        return b"".join(states for (states,) in self._recollect(query, (number,)))

    def states_of(self, aspect: str) -> list[tuple[int, bytes]]:
        """All states that were kept of an aspect, by their numbers, the last first."""
        query = "SELECT number, states FROM patient_state WHERE aspect = ? ORDER BY number DESC"
        return self._recollect(query, (aspect,))

    def parts_of_state(self, number: int) -> list[tuple[int, str]]:
        """Number and aspect of the states that a state was kept in parts as."""
        query = "SELECT number, aspect FROM state_part JOIN patient_state ON part = number WHERE state = ?"
        return self._recollect(query, (number,))

    def remember_state(self, aspect: str, states: bytes) -> tuple[int, bool]:
        """Keep a state of the patients, once: its number, and whether it is new. Inside `seal`, if and only if the
        charge stands."""
        digest = _digest_state(aspect, states)
        known = "SELECT number FROM patient_state WHERE digest = ?"
        with self._file.joining(to_write=True):
            before = self._recollect(known, (digest,))
            if before:
                return before[0][0], False
            self._file.run(
                "INSERT INTO patient_state (aspect, digest, states) VALUES (?, ?, ?)",
                (aspect, digest, states),
            )
            return self._recollect(known, (digest,))[0][0], True

    def complete_state(self, number: int, aspect: str, states: bytes) -> None:
        """Enter more patients into a state that was kept."""
        digest = _digest_state(aspect, states)
        statement = "UPDATE patient_state SET digest = ?, states = ? WHERE number = ?"
        self._remember(statement, (digest, states, number))

    def remember_answered(self, population: bytes, state: int) -> None:
        """Keep that a population was told about in a state."""
        statement = "INSERT OR IGNORE INTO answered_state VALUES (?, ?)"
        self._remember(statement, (population, state))

    def remember_part(self, state: int, part: int) -> None:
        """Keep that a state was kept in parts, of which this is one."""
        self._remember("INSERT OR IGNORE INTO state_part VALUES (?, ?)", (state, part))

    def circles(self) -> list[tuple[str, ...]]:
        """The circles of hospitals that masked sums were opened with, whatever the records were."""
        try:
            rows = self._recollect("SELECT DISTINCT names FROM mask_circle")
            return [_read_circle(names) for (names,) in rows]
        except (ValueError, TypeError):
            self._file.damaged("a circle of hospitals in it cannot be read")

    def remember_circle(self, records: str, names: tuple[str, ...]) -> None:
        """Keep with whom a masked sum was opened, once for each state of the records; inside `seal`, if and only if the
        charge stands."""
        statement = "INSERT OR IGNORE INTO mask_circle VALUES (?, ?)"
        self._remember(statement, (records, _write_circle(names)))

    def remember_masked(self, head: Head) -> None:
        """Keep which entry charges for a masked answer; inside `seal`, if and only if the charge stands."""
        self._remember("INSERT INTO masked_entry VALUES (?, ?)", (head.count, head.hash))
        self._remember(
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
        rows = self._recollect(query)
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
        before = self._recollect(query, (require_text(fingerprint, "fingerprint"),))
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
            self._remember("INSERT OR REPLACE INTO peer_ledger VALUES (?, ?, ?, ?)", values)
        return None

    def peer_heads(self) -> dict[str, Head]:
        """How far other hospitals' ledgers had come, by their identities."""
        rows = self._recollect("SELECT fingerprint, count, hash FROM peer_ledger")
        return {fingerprint: Head(count, link) for fingerprint, count, link in rows}

    def _forget_peer(self, fingerprint: str) -> None:
        self._remember("DELETE FROM peer_ledger WHERE fingerprint = ?", (fingerprint,))

    def _forget_patients(self) -> int:
        """Forget whom answers were about; how many there were."""
        with self._file.joining(to_write=True):
            (count,) = self._file.get("SELECT count(*) FROM remembered_population")
            for table in FORGOTTEN:
                self._file.run(f"DELETE FROM {table}")
        return int(count)

    def _recollect(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._file.joining():
            return list(self._file.rows(query, values))

    def _remember(self, statement: str, values: tuple[object, ...]) -> None:
        with self._file.joining(to_write=True):
            self._file.run(statement, values)


# With a thousand hospitals and every question: kept.
@lru_cache(maxsize=32)
def _read_circle(names: str) -> tuple[str, ...]:
    return tuple(json.loads(names))


@lru_cache(maxsize=32)
def _write_circle(names: tuple[str, ...]) -> str:
    return json.dumps(names)


def _digest_state(aspect: str, states: bytes) -> bytes:
    hasher = hashlib.sha256(f"{aspect}\n".encode())
    hasher.update(states)
    return hasher.digest()


def _split_links(links: bytes) -> list[bytes]:
    return [links[at : at + LINK_BYTES] for at in range(0, len(links), LINK_BYTES)]


MOST_NOTES = 10_000
LASTING_RULE = "patients"
"""The rule whose refusals depend on patients: they are counted by month (protocol/studies.py)."""

# By what was asked, under whatever name: a question counts once in a month.
REFUSAL_TABLE = """CREATE TABLE refused_for_patients (
    month TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (month, content)) WITHOUT ROWID"""

OF_HOUSE = "(substr(content, 1, instr(content, ' ') - 1) = ? OR instr(content, ' ') = 0)"


@dataclass(frozen=True)
class RefusalNote:
    """One line of the log of refusals, which is not part of the chain: nothing was released."""

    time: datetime
    study: str
    kind: str
    question: str
    rule: str


class RefusalLog:
    """The refusals of a ledger.

    It has a log of all refusals, and a count of those that depended on patients. Neither is part of the chain:
    nothing was released. The count protects patients in small groups, from houses that feel their way along the
    limits (protocol/studies.py). It is on disk before the refusal leaves, kept apart from the log, where nothing that
    is refused later can push it out, and begins anew with a month and not with a clock that is put back.
    """

    _file: LedgerFile

    def writing(self) -> AbstractContextManager[Tail]:
        raise NotImplementedError

    def refuse(self, study: str, kind: str, question: str, rule: str) -> None:
        """Log a refusal and the rule behind it; the log is for the hospital and not part of the chain.

        A question that is asked again and refused by the same rule is noted once. Of more than MOST_NOTES the oldest
        are dropped, those of the lasting rule last: a house cannot fill the disk, nor have the site forget, by asking.
        """
        names = ("study", "kind", "question id", "rule")
        texts = [
            require_text(value, name)
            for value, name in zip((study, kind, question, rule), names, strict=True)
        ]
        with self.writing():
            self._note_refusal(*texts)

    def refuse_for_patients(
        self, study: str, kind: str, question: str, content: str, house: str = ""
    ) -> None:
        """Log a refusal by the lasting rule and count it, once for each house, content and month: on disk on return.

        The count is kept apart from the log, where nothing that is refused later can push it out.
        """
        with self.writing():
            values = (self._find_month(), f"{house} {require_text(content, 'content')}")
            if self._file.find("SELECT 1 FROM refused_for_patients WHERE month = ? AND content = ?", values):
                return
            self._file.run("INSERT INTO refused_for_patients VALUES (?, ?)", values)
            self._note_refusal(study, kind, question, LASTING_RULE)

    def refusals(self, study: str | None = None) -> list[RefusalNote]:
        """The log of refusals, oldest first."""
        with self._file.reading():
            rows = self._file.rows(
                "SELECT time, study, kind, question, rule FROM refusals WHERE study = ifnull(?, study) ORDER BY number",
                (study,),
            )
            return [RefusalNote(chain.parse_time(self._file, when), *rest) for when, *rest in rows]

    def count_refused(self, house: str = "") -> tuple[int, str]:
        """To how many different questions of a house the lasting rule said no this month, and the day that ends the
        month. What an older release noted of no house counts for all of them."""
        with self._file.reading():
            if (
                self._file.find("SELECT 1 FROM refused_for_patients LIMIT 1") is None
            ):  # nearly always the answer
                return 0, ""
            month = self._find_month()
            (count,) = self._file.get(
                f"SELECT count(*) FROM refused_for_patients WHERE month = ? AND {OF_HOUSE}", (month, house)
            )
        return int(count), find_end(month)

    def _find_month(self) -> str:
        """The month, such as 2026-11 (UTC); a clock that is put back begins no month anew."""
        (latest,) = self._file.get("SELECT ifnull(max(month), '') FROM refused_for_patients")
        return max(chain.now(), chain.read_tail(self._file).time, str(latest))[:7]

    def _note_refusal(self, *texts: str) -> None:
        if self._file.find(
            "SELECT 1 FROM refusals WHERE study = ? AND kind = ? AND question = ? AND rule = ?", texts
        ):
            return
        self._file.run(
            "INSERT INTO refusals (time, study, kind, question, rule) VALUES (?, ?, ?, ?, ?)",
            (chain.now(), *texts),
        )
        (notes,) = self._file.get("SELECT count(*) FROM refusals")
        if notes > MOST_NOTES:
            self._file.run(
                "DELETE FROM refusals WHERE number IN"
                " (SELECT number FROM refusals ORDER BY rule = ?, number LIMIT ?)",
                (LASTING_RULE, notes - MOST_NOTES),
            )
