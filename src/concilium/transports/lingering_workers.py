"""Threads that linger: a round of an embedded house takes milliseconds, and a thread made anew for each of them would
begin on another core, with nothing of what the sites need in its caches: a fifth of the time of a masked study.

A worker that has done its work waits a moment for more and then ends. One that never comes back (its site hangs) is
simply not there when the next is wanted. What it worked on it forgets: sites and ledgers are let go with their house.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

LINGER = 1.0  # seconds

_spare: list[Worker] = []
_lock = threading.Lock()


class Worker:
    """A daemon thread that does what it is handed, one thing after the other."""

    def __init__(self) -> None:
        self._handed: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="concilium-site", daemon=True).start()

    def hand(self, work: Callable[[], None]) -> None:
        self._handed.put(work)

    def _run(self) -> None:
        while True:
            try:
                work = self._handed.get(timeout=LINGER)
            except Empty:
                with _lock:
                    if self in _spare:
                        _spare.remove(self)
                        return
                continue  # it was taken just now, and its work is on the way
            work()
            del work
            with _lock:
                _spare.append(self)


def start(work: Callable[[], None]) -> None:
    """Have this done on a thread of its own, which nobody waits for."""
    with _lock:
        worker = _spare.pop() if _spare else None
    (worker or Worker()).hand(work)


def _begin_anew() -> None:
    """In a forked process no thread but the one that forked is left."""
    global _lock
    _lock = threading.Lock()
    _spare.clear()


os.register_at_fork(after_in_child=_begin_anew)
