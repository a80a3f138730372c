"""How far a ledger had come, in a small file beside it (`north.ledger.head`): by it a restored backup is noticed.

Claim. Protected: the hospital's budget and all that its ledger remembers, from a copy of the ledger that is put back in
its place, by mistake or by somebody who can write the ledger and not this file, without trust in any house. The head is
written after each entry and checked when the ledger is opened and with each entry: one that does not hold it stops. It
is on its way to the disk when an entry returns, and forced there when SYNC_SECONDS have passed since the last time,
when settings change and on closing: a killed process loses at most the last entry's head, a power cut those of the last
moments, and the ledger is then ahead of its head, which is fine; what is lost is only that a copy from in between would
go unnoticed. Two processes that write at once may leave it one entry behind.

File and head put back together are not noticed here. The hospitals with which masked sums are opened notice it, without
trust in any house (`Ledger.follow_peer`). An honest house does, by the heads in answers that it echoes; a hostile one
can leave them out, or echo an old one. So what leaves a hospital without its neighbours (`noised`, `local`, `exact`) is
protected from such a restore by a head elsewhere only: where the file beside the ledger is a symbolic link, the head
lies where it leads, such as on another disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from concilium.errors import ConciliumError, LedgerError
from concilium.ledger import chain as chain
from concilium.ledger.chain import Head
from concilium.ledger.file import LedgerFile, sync_folder
from concilium.privacy.identity import Identity

FORM = "concilium/ledger-head@1"
RECORD_BYTES = 256  # within one sector of any disk, which is written as a whole
SYNC_SECONDS = 0.1


class HeadFile:
    """The head of one ledger, and how its file was left: two records, written in place, readable by its owner only."""

    def __init__(self, ledger: Path) -> None:
        # A link leads to another disk, which is not put back together with the ledger.
        self.path = Path(os.path.realpath(f"{ledger}.head"))
        self._handle: int | None = None
        self._identity: tuple[int, int] | None = None
        self._synced, self._dirty = 0.0, False
        self._latest: tuple[bytes, Head | None] = b"", None

    def read(self) -> Head | None:
        """The head that was kept last; None where there is no file yet."""
        try:
            if self._handle is None:
                try:
                    self._handle = os.open(self.path, os.O_RDWR)
                except PermissionError:
                    self._handle = os.open(self.path, os.O_RDONLY)  # the ledger says what may not be written
                self._identity = self._find_identity()
            record = os.pread(self._handle, RECORD_BYTES, 0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._complain(error) from error
        head = self._remember(record)
        if head is None:
            raise LedgerError(
                f"{self.path} cannot be read, so that nobody can tell whether the ledger beside it is the newest; "
                "if it is, say so with `concilium ledger accept-restored`"
            )
        return head

    def check_identity(self) -> None:
        """Refuse to go on where this name no longer means the file that was opened."""
        try:
            current = self._find_identity()
        except FileNotFoundError:
            current = None
        except OSError as error:
            raise self._complain(error) from error
        if self._handle is not None and current != self._identity:
            raise LedgerError(
                f"{self.path} was removed or replaced while its ledger was in use; put it back and restart"
            )

    def write(self, head: Head, *, at_once: bool) -> None:
        """Keep a head, unless another process kept a later one; `at_once` has it on disk on return."""
        try:
            assert self._handle is not None
            current = self._remember(os.pread(self._handle, RECORD_BYTES, 0))
            if current is not None and current.count >= head.count:
                return
            self._put(head)
            now = time.monotonic()
            if at_once or now - self._synced > SYNC_SECONDS:
                self._sync(now)
        except OSError as error:
            raise self._complain(error) from error

    def make(self, head: Head) -> Head:
        """Make the file, whole or not at all; where another process made it meanwhile, that one stands."""
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent)
            try:
                os.write(handle, _write(head.count, head.hash))
                os.fsync(handle)
                with suppress(FileExistsError):
                    self.path.hardlink_to(name)
                sync_folder(self.path.parent)
            finally:
                os.close(handle)
                Path(name).unlink()
        except OSError as error:
            raise self._complain(error) from error
        return self.read() or head

    def replace(self, head: Head) -> None:
        """Make the file anew, for a ledger that was accepted and may have come less far."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.make(head)

    def read_state(self) -> tuple[int, int] | None:
        """How the last checkpoint left the ledger: its size and the time of its last change (file.py)."""
        if self._handle is None:
            return None
        fields = _parse(os.pread(self._handle, RECORD_BYTES, RECORD_BYTES))
        return None if fields is None else (int(fields[0]), int(fields[1]))

    def write_state(self, state: tuple[int, int]) -> None:
        """Keep how a checkpoint left the ledger; of use while it is open somewhere, so it is not forced to disk."""
        if self._handle is not None:
            os.pwrite(self._handle, _write(*state), RECORD_BYTES)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else is between these lines, from another opening of the file: they do not wait for each
        other."""
        if self._handle is None:
            yield False
            return
        alone = True
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        except OSError:  # a file system without locks, on which SQLite lets one program in as well
            pass
        try:
            yield alone
        finally:
            if alone:
                with suppress(OSError):
                    fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                if self._dirty:
                    self._sync(time.monotonic())
                os.close(self._handle)
            self._handle = None

    def _put(self, head: Head) -> None:
        assert self._handle is not None
        record = _write(head.count, head.hash)
        os.pwrite(self._handle, record, 0)
        self._latest, self._dirty = (record, head), True

    def _remember(self, record: bytes) -> Head | None:
        """The head of a record, which is nearly always the latest that was read or written."""
        if record != self._latest[0]:
            fields = _parse(record)
            self._latest = record, None if fields is None else Head(int(fields[0]), fields[1])
        return self._latest[1]

    def _sync(self, now: float) -> None:
        assert self._handle is not None
        getattr(os, "fdatasync", os.fsync)(self._handle)
        self._synced, self._dirty = now, False

    def _find_identity(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino

    def _complain(self, error: OSError) -> LedgerError:
        return LedgerError(f"{self.path} cannot be read or written ({error.strerror}); check its permissions")


def read_head(ledger: Path) -> Head | None:
    """The head beside a ledger that is only looked at; None where there is none that can be read."""
    try:
        fields = _parse(Path(f"{ledger}.head").read_bytes()[:RECORD_BYTES])
    except OSError:
        return None
    return None if fields is None else Head(int(fields[0]), fields[1])


def find_problem(file: LedgerFile, kept: Head | None, head: Head) -> str | None:
    """Why a ledger, at this head, is not the newest one, by the head that was kept beside it."""
    name = f"{Path(file.path).resolve().name}.head"
    if kept is None:
        if file.in_memory or head.count == 0:
            return None
        trouble = f"its head file {name} is missing, so that nobody can tell whether it is the newest"
    elif chain.holds(file, kept):
        return None
    elif kept.count > head.count:
        trouble = f"it has {head.count} entries, and {name} says that it had {kept.count}: a restored backup"
    else:
        trouble = f"it does not hold entry {kept.count} as {name} has it: another ledger, or a changed one"
    if swapped := find_swap(file.path, chain.read_settings(file).site):
        return swapped
    return (
        f"{file.path} is not as it was left: {trouble}. Nothing is released from it; put the newest copy back, or "
        f"go on with this one knowingly: concilium ledger accept-restored {file.path} --reason ..."
    )


def find_swap(ledger: str, site: str | None) -> str | None:
    """What to say where the identity beside a ledger is not that of the site it is bound to; None where it is, or one
    of the two is not there. Whoever went on with such a ledger would write into another hospital's book."""
    beside = Path(f"{ledger}.identity")
    if site is None or not beside.exists():
        return None
    try:
        own = Identity.load(beside).fingerprint
    except ConciliumError:
        return None
    if f"({own})" in site:
        return None
    return (
        f"{ledger} is the ledger of {name_site(site)!r}, and {beside.name} beside it is another hospital's: "
        "files were swapped, or copied over each other. Nothing is released from it, or entered; put ledger, head "
        "and identity of each hospital back together"
    )


def name_site(site: str) -> str:
    """The name of the site that a ledger is bound to, without its fingerprint."""
    return site.rsplit(" (", 1)[0]


def _write(number: int, other: int | str) -> bytes:
    text = f"{FORM} {number} {other} "
    return (f"{text}{_sum(text)}".ljust(RECORD_BYTES - 1) + "\n").encode("ascii")


def _parse(record: bytes) -> tuple[str, str] | None:
    """The two fields of a record; None where it is none, or not whole."""
    with suppress(ValueError):
        text, _, check = record.decode("ascii").rstrip().rpartition(" ")
        form, number, other = text.split(" ")
        if form == FORM and check == _sum(f"{text} "):
            return number, other
    return None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
