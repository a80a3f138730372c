"""Where a site keeps its study keys and its masked answers, in the ledger's own file; and when it may take its
self-mask off: one question is opened once, for one set of participants.

Who is protected: each site, from a house that has the same question answered twice or by other participants and
compares the sums (two sums that differ by one site differ by its whole answer; two private sums of one question carry
two draws of noise for one charge); and a site that crashes or is asked twice, from answering one label with two vectors
(their difference would show, masks cancelled). At what price: one row per question, with its masked vector and seed,
until the study ends, and then some 40 bytes; a question whose participants have changed their keys waits for a new
study. Assumptions: a caller commits before it sends; what the site stored is not rolled back (its neighbours notice
that, by the ledger that it shows them: `LedgerMemory.follow_peer`); the file is readable by the site alone, since the
study key and the seeds of unopened answers are in it until the study ends. What ends is overwritten (`secure_delete`);
copies in a write-ahead log vanish with its next checkpoint. Reference: Bonawitz et al. 2017, CCS, section 6 (the self-
mask, and consistent answers against an active server).

What is forgotten, and why that is safe:
- Unopened answers. An answer under masks tells nothing, since the self-mask stays on: where none has a price a house
  could fill the disk by asking. Of more than MOST_UNOPENED, or MOST_BYTES of them, the oldest are deleted. One
  that is asked for again gets another vector under the same label, and that tells nothing: the seed of the first was
  shown to nobody and is gone.
- Opened vectors and their seeds, the oldest of more than MOST_BYTES. That they were opened, and under which label and
  transcript, is kept as long as the study's key is: another vector under that label could be subtracted from the first
  (under `private`, two draws of one site's noise beside the same noise of the others). So such a question is refused
  when it is asked, or opened, again.
- Studies that nobody ended: after MOST_DAYS without a question, and of more than MOST_STUDIES those that were asked
  last longest ago, such as opened nothing first. They are ended, as by the house: with the key goes all that could be
  made under a label of the study, since a label is a hash of all participants' keys.
- That a study ended, the oldest of more than MOST_ENDED. Who joins it again draws another key, so that all its labels
  are others: it is a new study under an old name, which a house can have at any time by composing one.
- Never: for which participants a question was opened, in whatever study. Two sums over circles that differ by one
  hospital differ by its whole answer, however much later. That is a hash for each question that was charged, and the
  names of each circle once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from concilium.errors import MaskError

TABLES = (
    """CREATE TABLE IF NOT EXISTS mask_study (
        study BLOB PRIMARY KEY, key BLOB, used INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS mask_attempt (
        study BLOB NOT NULL, content BLOB NOT NULL, label BLOB NOT NULL,
        participants BLOB NOT NULL, names BLOB NOT NULL, seed BLOB, vector BLOB, opened BLOB,
        PRIMARY KEY (study, content))""",
    """CREATE TABLE IF NOT EXISTS mask_party (
        number INTEGER PRIMARY KEY, participants BLOB NOT NULL UNIQUE, names BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS mask_opened (
        content BLOB NOT NULL, party INTEGER NOT NULL, PRIMARY KEY (content, party)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS mask_attempt_unopened ON mask_attempt (length(vector)) WHERE opened IS NULL",
)

MOST_UNOPENED = 1000
MOST_BYTES = 1 << 28
MOST_DAYS = 30
MOST_STUDIES = 1000
MOST_ENDED = 1000
SAID = 6


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
        self._opened_bytes = self._count_opened()

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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the connection, for looks after which nothing is decided for good: what is stored or opened is looked at
        again inside its own transaction."""
        with self._lock:
            yield

    def enroll(self, study: bytes, key: bytes) -> None:
        """Keep the private key of a study, and end those that nobody uses any more."""
        self._connection.execute("INSERT INTO mask_study VALUES (?, ?, ?)", (study, key, _find_day()))
        self._end_unused(study)

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
            "SELECT label, participants, names, seed, vector, opened FROM mask_attempt"
            " WHERE study = ? AND content = ?",
            (study, content),
        ).fetchone()
        if row is None:
            return None
        label, participants, names, seed, vector, opened = row
        return MaskedAnswer(study, content, label, participants, _read_names(names), seed, vector, opened)

    def find_answer(self, study: bytes, content: bytes, label: bytes) -> MaskedAnswer | None:
        """The same; MaskError where the question was answered under another label, or is no longer kept."""
        answer = self.find(study, content)
        if answer is not None and answer.label != label:
            raise MaskError(
                "this question was answered for other participants or other keys of theirs "
                f"({say_names(answer.names)}), and is answered once in a study; start a new one"
            )
        if answer is not None and not answer.seed:
            raise MaskError(
                "this question was answered and opened so long ago that its answer is no longer kept, and it is "
                "answered once in a study; start a new one"
            )
        return answer

    def measure(self, study: bytes, content: bytes) -> int | None:
        """How many bytes the stored answer to a question has."""
        row = self._connection.execute(
            "SELECT length(vector) FROM mask_attempt WHERE study = ? AND content = ?", (study, content)
        ).fetchone()
        return None if row is None else row[0]

    def openings(self, content: bytes) -> dict[bytes, tuple[str, ...]]:
        """For which participants a question was opened, and their names, in whatever study, ended or not."""
        rows = self._connection.execute(
            "SELECT participants, names FROM mask_opened JOIN mask_party ON party = number WHERE content = ?",
            (content,),
        )
        return {participants: _read_names(names) for participants, names in rows}

    def check_participants(self, content: bytes, participants: bytes, names: tuple[str, ...]) -> None:
        """MaskError if the question was ever opened here for other participants, in whatever study."""
        for others, before in self.openings(content).items():
            if others != participants:
                difference = sorted(set(before).symmetric_difference(names))
                whose = say_names(difference) if difference else "a site with a new identity"
                raise MaskError(
                    f"this question was opened here for {say_names(before)} and is not opened for "
                    f"{say_names(names)}: the two sums would differ by the answer of {whose}. Ask it of the same "
                    "hospitals, or with release = 'private'"
                )

    def open(self, answer: MaskedAnswer, transcript: bytes) -> bytes:
        """The seed of an answer, now opened for this transcript; MaskError if it was for another."""
        if answer.opened is None:
            self._connection.execute(
                "UPDATE mask_attempt SET opened = ? WHERE study = ? AND content = ?",
                (transcript, answer.study, answer.content),
            )
            self._connection.execute(
                "INSERT OR IGNORE INTO mask_party (participants, names) VALUES (?, ?)",
                (answer.participants, _write_names(answer.names)),
            )
            self._connection.execute(
                "INSERT OR IGNORE INTO mask_opened SELECT ?, number FROM mask_party WHERE participants = ?",
                (answer.content, answer.participants),
            )
            self._opened_bytes += len(answer.vector)
            if self._opened_bytes > MOST_BYTES:
                self._drop_opened()
        elif answer.opened != transcript:
            raise MaskError(
                "this question was opened for other answers than those shown now; the first opening stands"
            )
        return answer.seed

    def keep(self, answer: MaskedAnswer) -> None:
        """Store the answer to a question that has none in its study; of too many unopened ones the oldest go."""
        self._connection.execute(
            "INSERT INTO mask_attempt "
            "(study, content, label, participants, names, seed, vector, opened) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                answer.study,
                answer.content,
                answer.label,
                answer.participants,
                _write_names(answer.names),
                answer.seed,
                answer.vector,
                answer.opened,
            ),
        )
        today = _find_day()
        self._connection.execute(
            "UPDATE mask_study SET used = ? WHERE study = ? AND used < ?", (today, answer.study, today)
        )
        unopened = self._connection.execute(
            "SELECT rowid, length(vector) FROM mask_attempt INDEXED BY mask_attempt_unopened WHERE opened IS NULL"
        ).fetchall()
        total = 0
        for count, (row, size) in enumerate(sorted(unopened, reverse=True), start=1):
            total += size
            if count > 1 and (count > MOST_UNOPENED or total > MOST_BYTES):
                self._connection.execute("DELETE FROM mask_attempt WHERE rowid = ?", (row,))

    def _drop_opened(self) -> None:
        """Of the opened vectors leave the newest, up to half of what may be, so that it is not done again at once."""
        answers = self._connection.execute(
            "SELECT rowid, length(vector) FROM mask_attempt WHERE opened IS NOT NULL AND seed != x''"
            " ORDER BY rowid DESC"
        ).fetchall()
        total = 0
        for place, (row, size) in enumerate(answers):
            total += size
            if place and total > MOST_BYTES // 2:
                self._connection.execute(
                    "UPDATE mask_attempt SET seed = x'', vector = x'' WHERE rowid = ?", (row,)
                )
        self._opened_bytes = self._count_opened()

    def _count_opened(self) -> int:
        query = "SELECT ifnull(sum(length(vector)), 0) FROM mask_attempt WHERE opened IS NOT NULL"
        return int(self._connection.execute(query).fetchone()[0])

    def _end_unused(self, newest: bytes) -> None:
        """End studies that were not asked for long, or that are too many, but for the newest."""
        unused = self._connection.execute(
            "SELECT study FROM mask_study WHERE key IS NOT NULL AND used < ? AND study != ?",
            (_find_day() - MOST_DAYS, newest),
        ).fetchall()
        for (study,) in unused:
            self.end(study)
        (running,) = self._connection.execute(
            "SELECT count(*) FROM mask_study WHERE key IS NOT NULL"
        ).fetchone()
        if running > MOST_STUDIES:
            most = self._connection.execute(
                "SELECT study FROM mask_study WHERE key IS NOT NULL AND study != ? ORDER BY EXISTS (SELECT 1 FROM "
                "mask_attempt WHERE mask_attempt.study = mask_study.study AND opened IS NOT NULL), used LIMIT ?",
                (newest, running - MOST_STUDIES),
            ).fetchall()
            for (study,) in most:
                self.end(study)
        self._connection.execute(
            "DELETE FROM mask_study WHERE key IS NULL AND study NOT IN"
            " (SELECT study FROM mask_study WHERE key IS NULL ORDER BY used DESC LIMIT ?)",
            (MOST_ENDED,),
        )

    def end(self, study: bytes) -> None:
        """Delete the study's key, seeds and vectors; that it ended and for whom it opened what is kept."""
        self._connection.execute(
            "INSERT OR REPLACE INTO mask_study VALUES (?, NULL, ?)", (study, _find_day())
        )
        self._connection.execute("DELETE FROM mask_attempt WHERE study = ?", (study,))
        self._opened_bytes = self._count_opened()


# Kept for the studies that run, since the names of a thousand hospitals are read with every question.
@lru_cache(maxsize=32)
def _read_names(names: bytes) -> tuple[str, ...]:
    return msgspec.json.decode(names, type=tuple[str, ...])


@lru_cache(maxsize=32)
def _write_names(names: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(names)


def say_names(names: Sequence[str]) -> str:
    """So many hospitals as a sentence bears."""
    more = f" and {len(names) - SAID} more" if len(names) > SAID + 1 else ""
    return ", ".join(names[:SAID] if more else names) + more


def _find_day() -> int:
    """The day, counted from 1970 (UTC)."""
    return int(time.time() // 86_400)
