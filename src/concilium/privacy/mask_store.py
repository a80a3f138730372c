"""Where a site keeps its study keys and its masked answers: in the ledger's own file.

Who is protected: a site that crashes or is asked twice, from answering one label with two vectors (their
difference would show, masks cancelled). At what price: one row per question and one per study. Assumption:
a caller commits before it sends; the file is readable by the site alone, since the study key and the seeds
of unopened answers are in it until the study ends. What ends is overwritten (`secure_delete`); copies in a
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
from dataclasses import dataclass, field

import msgspec

# The columns of the first ledgers. `number` counted how often a question was asked, and is always 1 now.
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


@dataclass(frozen=True)
class MaskedAnswer:
    """A site's own answer to one question of a study, as stored before it is sent.

    `content` and `participants` are digests; `opened` is the transcript the seed was revealed for, or None.
    """

    study: bytes
    content: bytes
    label: bytes
    participants: bytes
    names: tuple[str, ...]
    seed: bytes = field(repr=False)
    vector: bytes = field(repr=False)
    opened: bytes | None = None


@dataclass(frozen=True)
class Opening:
    """That a question was opened here before: in which study, and for whom."""

    study: bytes
    participants: bytes
    names: tuple[str, ...]


class SqliteMaskStore:
    """Tables of its own on the caller's connection. Everything changes inside `transaction`, which joins the
    caller's own where one is open, so that a charge and an opening reach the disk together.

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
        """All changes inside, or none."""
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
        """Keep the private key of a study."""
        self._connection.execute("INSERT INTO mask_study (study, key) VALUES (?, ?)", (study, key))

    def study_key(self, study: bytes) -> bytes | None:
        """The private key of a study; None where there is none (yet, or any more)."""
        row = self._connection.execute("SELECT key FROM mask_study WHERE study = ?", (study,)).fetchone()
        return None if row is None else row[0]

    def has_ended(self, study: bytes) -> bool:
        """Whether the study was ended here."""
        row = self._connection.execute("SELECT key FROM mask_study WHERE study = ?", (study,)).fetchone()
        return row is not None and row[0] is None

    def find(self, study: bytes, content: bytes) -> MaskedAnswer | None:
        """The answer to a question in a study."""
        row = self._connection.execute(
            "SELECT label, participants, names, seed, vector, opened FROM mask_attempt "
            "WHERE study = ? AND content = ?",
            (study, content),
        ).fetchone()
        if row is None:
            return None
        label, participants, names, seed, vector, opened = row
        return MaskedAnswer(study, content, label, participants, _read_names(names), seed, vector, opened)

    def openings(self, content: bytes) -> list[Opening]:
        """Where a question was opened, in whatever study, ended or not."""
        rows = self._connection.execute(
            "SELECT study, participants, names FROM mask_attempt WHERE content = ? AND opened IS NOT NULL",
            (content,),
        )
        return [Opening(study, participants, _read_names(names)) for study, participants, names in rows]

    def keep(self, answer: MaskedAnswer) -> None:
        """Store the answer to a question that has none in its study."""
        self._connection.execute(
            "INSERT INTO mask_attempt "
            "(study, content, number, label, participants, names, seed, vector, opened) "
            "VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?)",
            (
                answer.study,
                answer.content,
                answer.label,
                answer.participants,
                msgspec.json.encode(answer.names),
                answer.seed,
                answer.vector,
                answer.opened,
            ),
        )
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        answers = self._connection.execute(
            "SELECT rowid, length(vector) FROM mask_attempt INDEXED BY mask_attempt_unopened WHERE opened IS NULL"
        ).fetchall()
        total = 0
        for count, (row, size) in enumerate(sorted(answers, reverse=True), start=1):
            total += size
            if count > 1 and (count > MOST_UNOPENED or total > MOST_BYTES):
                self._connection.execute("DELETE FROM mask_attempt WHERE rowid = ?", (row,))

    def mark_opened(self, study: bytes, content: bytes, transcript: bytes) -> None:
        """The seed of this answer is revealed, for this transcript."""
        self._connection.execute(
            "UPDATE mask_attempt SET opened = ? WHERE study = ? AND content = ?", (transcript, study, content)
        )

    def end(self, study: bytes) -> None:
        """Delete the study's key, seeds and vectors; that it ended and what it opened is kept."""
        self._connection.execute("INSERT OR REPLACE INTO mask_study (study, key) VALUES (?, NULL)", (study,))
        self._connection.execute("DELETE FROM mask_attempt WHERE study = ? AND opened IS NULL", (study,))
        self._connection.execute("UPDATE mask_attempt SET seed = x'', vector = x'' WHERE study = ?", (study,))


def _read_names(data: bytes) -> tuple[str, ...]:
    return msgspec.json.decode(data, type=tuple[str, ...])
