"""The file under a ledger: made whole or not at all, read without a trace, locked while it is written.

One SQLite connection shared by the threads of one process behind a lock; between processes SQLite locks. A write is
one BEGIN IMMEDIATE transaction in WAL mode with synchronous FULL: on disk when `writing` is left, or undone.

A write happens only to the file that was opened: not if another was put in its place or in that of its log, and not if
something other than SQLite wrote over it. SQLite itself would go on from what it has in memory and lose it later.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

from concilium.errors import LedgerError

TICK = 20_000_000  # ns; that of Linux is at most half of it
WHOLE_SECONDS = 2_500_000_000  # ns
_GONE = (0, 0, 0, 0)


class _FolderWatch:
    """One folder, and how it was when its files were last known to be the right ones.

    Looking at a file that is written all the time is expensive: since Linux 6.13 the next write after a look gets a
    time of its own, and with it the disk writes the file's entry anew, in 0.8 more writes for each entry of a ledger.
    A folder is written when a name in it is made, removed or given to another file, and then its own times change.

    Claim. Whoever puts another file in the place of one of these is noticed with the next look at the folder.
    Assumption: the folder's file system keeps times as fine as it shows them, or to 2 s where it shows whole seconds,
    and the clock's tick is no longer than TICK: a folder that changed more recently is not yet taken for unchanged.
    Not noticed: a file system that an administrator mounts over one file alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: tuple[int, ...] | None = None

    def look(self) -> tuple[int, ...] | None:
        """How the folder is now; None where it is as when it was last trusted."""
        try:
            status = self._folder.stat()
        except OSError:
            return _GONE
        state = status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        return None if state == self._known else state

    def trust(self, state: tuple[int, ...]) -> None:
        """The files are the right ones, and were looked at after the folder was: they are while it stays so."""
        changed = max(state[:2])
        settled = TICK if changed % 1_000_000_000 else WHOLE_SECONDS
        self._known = state if time.time_ns() - changed > settled else None


BUSY_SECONDS = 60.0
CHECKPOINT_SECONDS = 5.0
# After so many commits, or more bytes of log than that, its pages are moved to the file. The log is then written anew
# from its beginning, and keeps its length up to that size: a disk takes longer over a file that grows.
MOST_COMMITS, MOST_LOG = 250, 1 << 22


class _StateKeeper(Protocol):
    """What keeps how the last checkpoint left the file: its size and the time of its last change."""

    def check_identity(self) -> None: ...

    def read_state(self) -> tuple[int, int] | None: ...

    def write_state(self, state: tuple[int, int]) -> None: ...

    def alone(self) -> AbstractContextManager[bool]: ...


class _DiskWatch:
    """The file on disk under a connection: whether it and its log are those that were opened, as we left them."""

    def __init__(self, path: str) -> None:
        self._path, self._place = path, Path(path)
        self._real = self._place.resolve()
        self._real_log = Path(f"{self._real}-wal")
        self.folder = _FolderWatch(self._real.parent)
        self.keeper: _StateKeeper | None = None
        self._state: tuple[int, int] | None = None
        self._identity = self._find_identity()
        self._log: int | None = None
        self._touched: tuple[int, int] | None = None
        self._commits = 0

    def check_place(self) -> None:
        """Refuse a file that was removed or replaced since it was opened."""
        if self._identity != self._find_identity():
            raise LedgerError(
                f"{self._path} was removed or replaced while in use; put it back, or restart to open the new one"
            )

    def check_untouched(self) -> None:
        """Refuse a file that was written over, or whose log was taken away, since this process wrote last.

        SQLite writes to the file itself only in checkpoints, and those are made here: whoever makes one keeps how it
        left the file. Another process may be at it just now, and says so soon.
        """
        if self.keeper is None:
            return
        if (folder := self.folder.look()) is not None:
            self._check_log()
            self.keeper.check_identity()
            self.folder.trust(folder)
        now = self._state
        if now == self._touched:
            return
        until = time.monotonic() + CHECKPOINT_SECONDS
        while now != self._touched:
            now = _look_at(self._real)
            if self.keeper.read_state() == now:
                self._touched = now
            elif now != self._touched and time.monotonic() > until:
                raise LedgerError(
                    f"{self._path} was written over while in use, by something other than this program: nothing more "
                    "is entered in it; restart to see what it holds now, and restore the newest copy if that is not all"
                )
            else:
                time.sleep(0.01)

    def move_log(self, connection: sqlite3.Connection) -> None:
        """After some commits, or some growth, have SQLite move the log's pages to the file; keep how that left it."""
        if self.keeper is None or self._log is None:
            return
        self._commits += 1
        is_due = self._commits >= MOST_COMMITS or os.lseek(self._log, 0, os.SEEK_END) > MOST_LOG
        if not is_due:
            return
        # Of two who move it at once, one would keep how it was before the other, and no third could tell who wrote it.
        with self.keeper.alone() as alone:
            # A file that was written over is left as it is: the next one to write says so.
            if alone and _look_at(self._real) == self._touched:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._touched, self._commits = _look_at(self._real), 0
                self.keeper.write_state(self._touched)

    def close(self, connection: sqlite3.Connection) -> None:
        """Close the connection, which moves the log if nobody else has the file open; keep how that left the file."""
        if self._log is not None:
            os.close(self._log)
        if self.keeper is not None:
            with suppress(OSError), self.keeper.alone() as alone:
                is_untouched = alone and _look_at(self._real) == self._touched
                connection.close()
                if is_untouched and not self._real_log.exists():
                    self.keeper.write_state(_look_at(self._real))
        connection.close()

    def _check_log(self) -> None:
        """Refuse a log that is not the one that was there first; it is held open, to be measured at no cost to it."""
        if self._log is None:
            self._touched = _look_at(self._real)
            if not self._real_log.exists():  # where a disk cannot share memory there is none
                return
        with suppress(OSError):
            if self._log is None:
                self._log = os.open(self._real_log, os.O_RDONLY)
            if os.path.samestat(os.fstat(self._log), self._real_log.stat()):
                return
        raise LedgerError(
            f"the log of {self._path} (its name and -wal) was removed or replaced while in use: nothing more is "
            "entered; restart, and restore the newest copy if entries are missing then"
        )

    def _find_identity(self) -> tuple[int, int] | None:
        try:
            status = self._place.stat()
        except OSError:
            return None
        self._state = status.st_size, status.st_mtime_ns
        return status.st_dev, status.st_ino


class LedgerFile:
    """An open database; every failure is a LedgerError that names it. One in memory has no `disk` to watch."""

    def __init__(self, path: str, connection: sqlite3.Connection, *, readonly: bool = False) -> None:
        self.path, self.readonly = path, readonly
        self._connection = connection
        # One for all statements that are done when they return: a connection remembers each cursor that it ever gave.
        self._cursor = connection.cursor()
        self.in_memory = path == ":memory:"
        self.disk = None if self.in_memory else _DiskWatch(path)
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._closed = self._inside = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the connection, if the file can still be trusted to be the one that was opened."""
        with self.lock:
            self._check_usable()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: on disk when the block ends, undone when it raises."""
        with self.lock:
            self._check_usable(to_write=True)
            self.run("BEGIN IMMEDIATE")
            self._inside = True
            try:
                if self.disk is not None:
                    self.disk.check_untouched()
                yield
                self.run("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._inside = False
            if self.disk is not None:
                self.disk.move_log(self._connection)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold the connection and look at one moment of the file, whatever other processes write meanwhile."""
        with self.reading():
            self.run("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def joining(self, *, to_write: bool = False) -> Iterator[sqlite3.Connection]:
        """Hold the connection; allowed inside a charge, of whose transaction it is then a part."""
        with self.lock:
            inside, self._inside = self._inside, False
            try:
                self._check_usable(to_write=to_write)
                yield self._connection
            finally:
                self._inside = inside

    def run(self, statement: str, values: tuple[object, ...] = ()) -> None:
        try:
            self._cursor.execute(statement, values)
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error

    def rows(self, query: str, values: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, values)
        except UnicodeDecodeError:
            self.damaged("a text in it is not text")
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error

    def find(self, query: str, values: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        try:
            rows: list[tuple[Any, ...]] = self._cursor.execute(query, values).fetchall()
        except UnicodeDecodeError:
            self.damaged("a text in it is not text")
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error
        return rows[0] if rows else None

    def get(self, query: str, values: tuple[object, ...] = ()) -> tuple[Any, ...]:
        """The first row, which a sound file has."""
        row = self.find(query, values)
        if row is None:
            self.damaged("something is missing from it")
        return row

    def damaged(self, what: str) -> NoReturn:
        raise LedgerError(f"{self.path} is damaged ({what}); restore the newest copy of it")

    def copy(self, other: LedgerFile) -> None:
        """Become a copy of another database."""
        with other.lock:
            other._connection.backup(self._connection)

    def make_durable(self) -> None:
        if self.in_memory:
            return
        self.run("PRAGMA synchronous = FULL")
        self.run("PRAGMA fullfsync = ON")  # macOS: fsync alone stops at the drive's cache
        self.run("PRAGMA cell_size_check = ON")
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA wal_autocheckpoint = 0")  # `move_log` does that, and looks at the size
        self.run(f"PRAGMA journal_size_limit = {MOST_LOG}")

    def empty_log(self) -> None:
        """Have all that is in the log written to the file itself; LedgerError where that fails."""
        _, logged, moved = self.get("PRAGMA wal_checkpoint(PASSIVE)")
        if moved < logged:
            raise LedgerError(f"{self.path} cannot be written to the end; check the disk and try again")

    def close(self) -> None:
        with self.lock:
            if self._closed or self._process != os.getpid():
                return
            self._closed = True
            if self.disk is None:
                self._connection.close()
            else:
                self.disk.close(self._connection)

    def _check_usable(self, *, to_write: bool = False) -> None:
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed; open it again")
        if self._process != os.getpid():
            raise LedgerError(
                f"the ledger {self.path} was opened in another process; open it again in this one"
            )
        if self._inside:
            raise LedgerError(
                f"the ledger {self.path} was asked from inside a charge; ask before or after it"
            )
        if self.disk is not None:
            self.disk.check_place()
        if to_write and self.readonly:
            raise LedgerError(f"{self.path} was opened for reading only; open it with Ledger(path) to write")


def _look_at(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def open_to_write(path: str | os.PathLike[str], begin: Callable[[LedgerFile], None]) -> LedgerFile:
    """Open a file, making it with `begin` where there is none; ':memory:' is a new one that is never on disk."""
    if os.fspath(path) == ":memory:":
        file = open_in_memory()
        begin(file)
        return file
    place = Path(path)
    if not _exists(place):
        _make(place, begin)
    return LedgerFile(str(place), _connect_named(place, "mode=rw"))


def open_in_memory() -> LedgerFile:
    return LedgerFile(":memory:", _connect(":memory:"))


def no_ledger(path: str | os.PathLike[str]) -> LedgerError:
    """What to say where a ledger is asked for that is not there."""
    return LedgerError(
        f"there is no ledger {os.fspath(path)}; check the path (a study makes one for a [[site]] with a line "
        'ledger = "north.ledger")'
    )


def open_to_read(path: str | os.PathLike[str]) -> LedgerFile:
    """Open an existing file; nothing beside it is made or changed, so it may lie on a read-only disk.

    SQLite itself would put -wal and -shm files beside it. Where there are none the file is at rest, and is read as
    it stood on opening.
    """
    place = Path(path)
    if not _exists(place):
        raise no_ledger(place)
    real = place.resolve()
    log, index = Path(f"{real}-wal"), Path(f"{real}-shm")
    if log.exists() and index.exists():
        connection = _connect_named(real, "mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise _explain(str(place), error) from error
        else:
            return LedgerFile(str(place), connection, readonly=True)
    if log.exists() and log.stat().st_size:
        return LedgerFile(str(place), _connect_copy(place, log), readonly=True)
    return LedgerFile(str(place), _connect_named(real, "mode=ro&immutable=1"), readonly=True)


def write_copy(file: LedgerFile, place: Path) -> None:
    """Copy a file, with all that is in its log by now, to a new one that only its owner can read."""
    if _exists(place):
        raise LedgerError(f"{place}: there is a file already, and a copy replaces none; name another")
    with file.reading():
        _make(place, lambda other: other.copy(file))


def _exists(place: Path) -> bool:
    try:
        exists = place.exists()
        if exists and not place.is_file():
            raise LedgerError(f"{place} is not a file, so it cannot be a ledger; give the path of a file")
        if exists and place.stat().st_size == 0:
            raise LedgerError(
                f"{place} is empty, not a ledger; restore the newest copy, or remove it to begin anew"
            )
    except OSError as error:
        raise LedgerError(
            f"{place} cannot be opened ({error.strerror}); check the path and permissions"
        ) from error
    return exists


def _make(place: Path, begin: Callable[[LedgerFile], None]) -> None:
    """Write the new file under another name and link it to its own when it is complete.

    So a crash leaves no half ledger, two processes that start at once end up with the same one, and an empty file
    is never mistaken for a new beginning.
    """
    if not place.parent.is_dir():
        raise LedgerError(
            f"the ledger {place} cannot be made: there is no folder {place.parent}; make it first"
        )
    try:
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".new", dir=place.parent)
        os.close(handle)
        draft = Path(name)
        try:
            file = LedgerFile(name, _connect_named(draft, "mode=rw"))
            try:
                begin(file)
                file.empty_log()  # closing would do it too, and not say that the disk is full
            except LedgerError as error:
                raise LedgerError(str(error).replace(name, str(place))) from error
            finally:
                file.close()
            with suppress(FileExistsError):
                place.hardlink_to(draft)
            sync_folder(place.parent)
        finally:
            for ending in ("", "-wal", "-shm"):
                Path(name + ending).unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LedgerError(f"the ledger {place} cannot be made ({reason}); check its folder") from error


def sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _connect_named(place: Path, options: str) -> sqlite3.Connection:
    try:
        return _connect(f"{place.absolute().as_uri()}?{options}")
    except sqlite3.Error as error:
        raise _explain(str(place), error) from error


def _connect_copy(place: Path, log: Path) -> sqlite3.Connection:
    """A copy in memory: a killed site left its log behind where we must not write the index that reads it."""
    memory = _connect(":memory:")
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copyfile(place, copy)
            shutil.copyfile(log, f"{copy}-wal")
            connection = _connect_named(copy, "mode=rw")
            try:
                connection.backup(memory)
            finally:
                connection.close()
    except sqlite3.Error as error:
        raise _explain(str(place), error) from error
    except OSError as error:
        raise LedgerError(f"{place} cannot be read ({error.strerror}); check its permissions") from error
    return memory


def _explain(path: str, error: sqlite3.Error) -> LedgerError:
    """SQLite's complaint as a sentence that names the file and says what to do."""
    name = getattr(error, "sqlite_errorname", "")
    for start, sentence in (
        ("SQLITE_BUSY", f"{path} has been in use by another process for {BUSY_SECONDS:.0f} s; try again"),
        ("SQLITE_READONLY", f"{path} cannot be written; make the file and its folder writable for this user"),
        ("SQLITE_CANTOPEN", f"{path} cannot be opened; check the permissions of the file and its folder"),
        (
            "SQLITE_FULL",
            f"{path} cannot grow: the disk is full, so nothing was released; make room and ask again",
        ),
        ("SQLITE_NOTADB", f"{path} is not a ledger, not even a database; check the path or restore a copy"),
        ("SQLITE_CORRUPT", f"{path} is damaged; restore the newest copy of it"),
        ("SQLITE_IOERR", f"{path} cannot be read or written: the disk reports an error; check the disk"),
    ):
        if name.startswith(start):
            return LedgerError(sentence)
    return LedgerError(
        f"{path} cannot be used as a ledger ({error}); check the path or restore the newest copy"
    )


def require_text(value: str, name: str) -> str:
    if not isinstance(value, str):
        raise LedgerError(f"the {name} must be text; got {value!r}, a {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LedgerError(f"the {name} must be text that UTF-8 can write; got {value!r}") from None
    return value
