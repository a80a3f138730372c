"""Where a site keeps its study keys and its attempts: in the ledger's own file, or in memory for a
simulation.

Who is protected: a site that crashes or is asked twice, from answering one label with two vectors (their
difference would show, masks cancelled). At what price: one row per question and one per study. Assumption:
a caller commits before it sends; the file is readable by the site alone, since the study key and the seeds
of unopened attempts are in it until the study ends. What ends is overwritten (`secure_delete`); copies in a
write-ahead log vanish with its next checkpoint.

To answer under masks is free until it is opened, so that a house could fill the disk by asking. Of more unopened
answers than MOST_UNOPENED, or MOST_BYTES of them, the oldest are deleted. One that is asked for again gets another
vector under the same label, and that tells nothing: the seed of the first was shown to nobody and is gone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import msgspec

from concilium.privacy.opening import Attempt, Opening

TABLES = (
    "CREATE TABLE IF NOT EXISTS mask_study (study BLOB PRIMARY KEY, key BLOB) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS mask_attempt (
        study BLOB NOT NULL, content BLOB NOT NULL, number INTEGER NOT NULL, label BLOB NOT NULL,
        participants BLOB NOT NULL, names BLOB NOT NULL, seed BLOB, vector BLOB, opened BLOB,
        PRIMARY KEY (study, content))""",
    "CREATE INDEX IF NOT EXISTS mask_attempt_content ON mask_attempt (content)",
    "CREATE INDEX IF NOT EXISTS mask_attempt_unopened ON mask_attempt (length(vector)) WHERE opened IS NULL",
)

MOST_UNOPENED = 1000
MOST_BYTES = 1 << 28


class MemoryMaskStore:
    """For simulations and tests: gone with the process, and a transaction that fails is undone."""

    def __init__(self) -> None:
        self._keys: dict[bytes, bytes | None] = {}
        self._attempts: dict[tuple[bytes, bytes], Attempt] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        keys, attempts = dict(self._keys), dict(self._attempts)
        try:
            yield
        except BaseException:
            self._keys, self._attempts = keys, attempts
            raise

    def enroll(self, study: bytes, key: bytes) -> None:
        self._keys[study] = key

    def study_key(self, study: bytes) -> bytes | None:
        return self._keys.get(study)

    def has_ended(self, study: bytes) -> bool:
        return study in self._keys and self._keys[study] is None

    def latest(self, study: bytes, content: bytes) -> Attempt | None:
        return self._attempts.get((study, content))

    def openings(self, content: bytes) -> list[Opening]:
        return [
            Opening(attempt.study, attempt.participants, attempt.names)
            for attempt in self._attempts.values()
            if attempt.content == content and attempt.opened is not None
        ]

    def keep(self, attempt: Attempt) -> None:
        self._attempts[attempt.study, attempt.content] = attempt

    def mark_opened(self, study: bytes, content: bytes, transcript: bytes) -> None:
        self._attempts[study, content] = replace(self._attempts[study, content], opened=transcript)

    def end(self, study: bytes) -> None:
        self._keys[study] = None
        for place, attempt in list(self._attempts.items()):
            if attempt.study != study:
                continue
            if attempt.opened is None:
                del self._attempts[place]
            else:
                self._attempts[place] = replace(attempt, seed=b"", vector=b"")


class SqliteMaskStore:
    """Tables of its own on the caller's connection; joins the caller's transaction where one is open.

    Threads that share the connection must share `lock` too (reentrant): otherwise one could join a transaction
    that another one rolls back after the answer has left.
    """

    def __init__(
        self, connection: sqlite3.Connection, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._connection = connection
        self._lock = threading.RLock() if lock is None else lock
        connection.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            for table in TABLES:
                connection.execute(table)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise

    def enroll(self, study: bytes, key: bytes) -> None:
        self._connection.execute("INSERT INTO mask_study (study, key) VALUES (?, ?)", (study, key))

    def study_key(self, study: bytes) -> bytes | None:
        row = self._connection.execute("SELECT key FROM mask_study WHERE study = ?", (study,)).fetchone()
        return None if row is None else row[0]

    def has_ended(self, study: bytes) -> bool:
        row = self._connection.execute("SELECT key FROM mask_study WHERE study = ?", (study,)).fetchone()
        return row is not None and row[0] is None

    def latest(self, study: bytes, content: bytes) -> Attempt | None:
        row = self._connection.execute(
            "SELECT number, label, participants, names, seed, vector, opened FROM mask_attempt "
            "WHERE study = ? AND content = ?",
            (study, content),
        ).fetchone()
        if row is None:
            return None
        number, label, participants, names, seed, vector, opened = row
        return Attempt(study, content, number, label, participants, _read_names(names), seed, vector, opened)

    def openings(self, content: bytes) -> list[Opening]:
        rows = self._connection.execute(
            "SELECT study, participants, names FROM mask_attempt WHERE content = ? AND opened IS NOT NULL",
            (content,),
        )
        return [Opening(study, participants, _read_names(names)) for study, participants, names in rows]

    def keep(self, attempt: Attempt) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO mask_attempt "
            "(study, content, number, label, participants, names, seed, vector, opened) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.study,
                attempt.content,
                attempt.number,
                attempt.label,
                attempt.participants,
                msgspec.json.encode(attempt.names),
                attempt.seed,
                attempt.vector,
                attempt.opened,
            ),
        )
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        unopened = self._connection.execute(
            "SELECT rowid, length(vector) FROM mask_attempt INDEXED BY mask_attempt_unopened WHERE opened IS NULL"
        ).fetchall()
        held = 0
        for count, (row, size) in enumerate(sorted(unopened, reverse=True), start=1):
            held += size
            if count > 1 and (count > MOST_UNOPENED or held > MOST_BYTES):
                self._connection.execute("DELETE FROM mask_attempt WHERE rowid = ?", (row,))

    def mark_opened(self, study: bytes, content: bytes, transcript: bytes) -> None:
        self._connection.execute(
            "UPDATE mask_attempt SET opened = ? WHERE study = ? AND content = ?", (transcript, study, content)
        )

    def end(self, study: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO mask_study (study, key) VALUES (?, NULL)", (study,))
        self._connection.execute("DELETE FROM mask_attempt WHERE study = ? AND opened IS NULL", (study,))
        self._connection.execute("UPDATE mask_attempt SET seed = x'', vector = x'' WHERE study = ?", (study,))


def _read_names(stored: bytes) -> tuple[str, ...]:
    return msgspec.json.decode(stored, type=tuple[str, ...])
