"""Who saw and did what in the console: a file of lines that is only ever added to, each bound to the one before.

*Protects:* the hospital, from doubt about who looked at a model or decided on a study: a line that was changed, taken
out or put in between breaks the chain (`verify`). *Does not:* from who may write the file and makes all of it anew.
No value of a patient is in it, no query and no address: who, when, what they did with which model or study, and how it
ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from concilium.errors import ConciliumError

FIRST = "0" * 64
MOST_ABOUT = 200


class TrailError(ConciliumError):
    """A trail that cannot be written, or was changed."""


class AuditTrail:
    """`AuditTrail(path).enter("Dr. Meyer", "answer", "ward/results", "answered")`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._last = FIRST
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise TrailError(f"{path}: the audit log cannot be written ({error.strerror})") from None
        self._seen = 0

    def enter(self, user: str, action: str, about: str = "", outcome: str = "") -> None:
        """Add a line, on disk before this returns."""
        with self._lock, self._holding():
            self._catch_up()
            line = json.dumps(
                {
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "user": user,
                    "action": action,
                    "about": about[:MOST_ABOUT],
                    "outcome": outcome[:MOST_ABOUT],
                    "before": self._last,
                },
                ensure_ascii=False,
            ).encode()
            try:
                os.write(self._file, line + b"\n")
                os.fsync(self._file)
            except OSError as error:
                raise TrailError(f"{self.path}: the audit log cannot be written ({error.strerror})") from None
            self._last = _digest(line)
            self._seen += len(line) + 1

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        """Keep other consoles of the same folder from adding meanwhile."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """The last line is whoever's; one within which a machine stopped stays as it is, and is ended."""
        size = os.fstat(self._file).st_size
        if size == self._seen:
            return
        new = self.path.read_bytes()[self._seen :] if size > self._seen else self.path.read_bytes()
        if new and not new.endswith(b"\n"):
            os.write(self._file, b"\n")
            size += 1
        for line in new.splitlines():
            self._last = _digest(line)
        self._seen = size

    def close(self) -> None:
        os.close(self._file)


def verify(path: Path) -> int:
    """How many lines an unbroken trail has; TrailError names the first that does not follow the one before."""
    last, count = FIRST, 0
    for line in path.read_bytes().splitlines():
        count += 1
        try:
            before = json.loads(line)["before"]
        except (ValueError, KeyError, TypeError):
            before = None
        if before != last:
            raise TrailError(f"{path}: line {count} does not follow the one before: the log was changed")
        last = _digest(line)
    return count


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
