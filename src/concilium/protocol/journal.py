"""The house's checkpoint: every finished round, on disk, so that an interrupted run resumes where it stopped.

Methods need no code for this. A run asks the same questions in the same order; what the journal holds is not
asked again. It holds what the house saw anyway (under `exact`, each site's numbers): only its owner can read it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from concilium.errors import HouseError, RunStopped

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (id TEXT NOT NULL, fingerprint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS replies (question TEXT PRIMARY KEY, reply BLOB, silence TEXT);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


def open_for_owner(path: str | Path, flags: int = 0) -> int:
    """A descriptor of a file that only its owner can read, made where there is none, before anything is written."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    if os.name == "posix" and os.fstat(descriptor).st_mode & 0o077:  # one that was made otherwise
        os.fchmod(descriptor, 0o600)
    return descriptor


class Journal:
    """Finished rounds of one run: replies by question id (a silence is kept as its reason)."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            os.close(open_for_owner(path))  # what SQLite keeps beside it has the same mode
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + SCHEMA)
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise HouseError(f"{path}: cannot be used as a journal ({reason})") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """RunStopped where the disk is full: what was kept before stays, and hospitals answer again at no cost."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):
                    self._database.rollback()
                raise RunStopped(
                    f"{self._path}: the journal cannot be written ({error}); make room"
                ) from None

    def begin(self, run: str, fingerprint: str) -> str:
        """The id of the run under way in this journal, or `run` entered as a new one."""
        with self._writing():
            row = self._database.execute("SELECT id, fingerprint FROM run").fetchone()
            if row is None:
                self._database.execute("INSERT INTO run VALUES (?, ?)", (run, fingerprint))
                return run
        if row[1] != fingerprint:
            raise HouseError(
                f"{self._path}: this journal belongs to another study or other sites; "
                "start without resuming, or take the study it was begun with"
            )
        return str(row[0])

    def recall(self, question: str) -> bytes | str | None:
        """What a question of a finished round brought: a reply, the text of a silence, or None if never asked."""
        with self._lock:
            row = self._database.execute(
                "SELECT reply, silence FROM replies WHERE question = ?", (question,)
            ).fetchone()
        return None if row is None else row[0] if row[0] is not None else str(row[1])

    def keep(self, replies: Mapping[str, bytes | str]) -> None:
        """A finished round (replies by question id), durably, in one transaction."""
        rows = [
            (question, reply, None) if isinstance(reply, bytes) else (question, None, reply)
            for question, reply in replies.items()
        ]
        with self._writing():
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")

    def note(self, name: str, value: bytes) -> bytes:
        """What was noted under this name at first, which is `value` if nothing was."""
        with self._writing():
            self._database.execute("INSERT OR IGNORE INTO notes VALUES (?, ?)", (name, value))
            row = self._database.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return bytes(row[0])

    def list_notes(self) -> list[bytes]:
        """All that was noted, under whatever name."""
        with self._lock:
            return [bytes(value) for (value,) in self._database.execute("SELECT value FROM notes")]

    def close(self) -> None:
        with self._lock:
            self._database.close()
