"""Where a site keeps its study keys and its masked answers, in the ledger's own file; and when it may take its
self-mask off: one question is opened once, for one set of participants.

Who is protected: each site, from a house that has the same question answered twice or by other participants
and compares the sums (two sums that differ by one site differ by its whole answer; two private sums of one
question carry two draws of noise for one charge); and a site that crashes or is asked twice, from answering one label
with two vectors (their difference would show, masks cancelled). At what price: one row per question, with its masked
vector and seed until the study ends, and one per study; a question whose participants have changed their keys waits
for a new study. Assumptions: a caller commits before it sends; what the site stored is not rolled back (the ledger's
head, echoed by the house, is what notices that); the file is readable by the site alone, since the study key and the
seeds of unopened answers are in it until the study ends. What ends is overwritten (`secure_delete`); copies in a
write-ahead log vanish with its next checkpoint. Reference: Bonawitz et al. 2017, CCS, section 6 (the self-mask, and
consistent answers against an active server).

To answer under masks is free until it is opened, and tells nothing, since the self-mask stays on: a house could fill
the disk by asking. Of more unopened answers than MOST_UNOPENED, or MOST_BYTES of them, the oldest are deleted. One that
is asked for again gets another vector under the same label, and that tells nothing: the seed of the first was shown to
nobody and is gone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import msgspec

from concilium.errors import MaskError

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
        return next(self._read("study = ? AND content = ?", study, content), None)

    def find_answer(self, study: bytes, content: bytes, label: bytes) -> MaskedAnswer | None:
        """The same; MaskError where the question was answered under another label."""
        answer = self.find(study, content)
        if answer is not None and answer.label != label:
            raise MaskError(
                "this question was answered for other participants or other keys of theirs "
                f"({', '.join(answer.names)}), and is answered once in a study; start a new one"
            )
        return answer

    def openings(self, content: bytes) -> list[MaskedAnswer]:
        """The answers to a question that were opened, in whatever study, ended or not."""
        return list(self._read("content = ? AND opened IS NOT NULL", content))

    def check_participants(self, content: bytes, participants: bytes, names: tuple[str, ...]) -> None:
        """MaskError if the question was ever opened here for other participants, in whatever study."""
        for answer in self.openings(content):
            if answer.participants != participants:
                difference = sorted(set(answer.names).symmetric_difference(names))
                whose = " and ".join(difference) if difference else "a site with a new identity"
                raise MaskError(
                    f"this question was opened here for {', '.join(answer.names)} and is not opened for "
                    f"{', '.join(names)}: the two sums would differ by the answer of {whose}"
                )

    def open(self, answer: MaskedAnswer, transcript: bytes) -> bytes:
        """The seed of an answer, now opened for this transcript; MaskError if it was for another."""
        if answer.opened is None:
            self._connection.execute(
                "UPDATE mask_attempt SET opened = ? WHERE study = ? AND content = ?",
                (transcript, answer.study, answer.content),
            )
        elif answer.opened != transcript:
            raise MaskError(
                "this question was opened for other answers than those shown now; the first opening stands"
            )
        return answer.seed

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

    def end(self, study: bytes) -> None:
        """Delete the study's key, seeds and vectors; that it ended and what it opened is kept."""
        self._connection.execute("INSERT OR REPLACE INTO mask_study (study, key) VALUES (?, NULL)", (study,))
        self._connection.execute("DELETE FROM mask_attempt WHERE study = ? AND opened IS NULL", (study,))
        self._connection.execute("UPDATE mask_attempt SET seed = x'', vector = x'' WHERE study = ?", (study,))

    def _read(self, condition: str, *values: bytes) -> Iterator[MaskedAnswer]:
        for study, content, label, participants, names, *rest in self._connection.execute(
            "SELECT study, content, label, participants, names, seed, vector, opened FROM mask_attempt "
            f"WHERE {condition}",
            values,
        ):
            yield MaskedAnswer(
                study, content, label, participants, msgspec.json.decode(names, type=tuple[str, ...]), *rest
            )
