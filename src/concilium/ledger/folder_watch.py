"""Whether the names in a folder still mean the files that they meant, without looking at the files.

Looking at a file that is written all the time is dear: since Linux 6.13 the next write after a look is given a time of
its own, and with it the disk writes the file's entry anew, in 0.8 more writes for each entry of a ledger. A folder is
written when a name in it is made, removed or given to another file, and then its own times change.

Claim. Whoever puts another file in the place of one of these is noticed with the next look at the folder. Assumption:
the folder's file system keeps times as fine as it shows them, or to 2 s where it shows whole seconds, and the clock's
tick is no longer than TICK: a folder that changed more recently is not yet taken for unchanged. Not noticed: a file
system that an administrator mounts over one file alone.
"""

from __future__ import annotations

import time
from pathlib import Path

TICK = 20_000_000  # ns; that of Linux is at most half of it
WHOLE_SECONDS = 2_500_000_000  # ns
_GONE = (0, 0, 0, 0)


class FolderWatch:
    """One folder, and how it was when its files were last known to be the right ones."""

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
