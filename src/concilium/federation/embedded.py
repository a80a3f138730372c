"""The embedded transport: sites in this process, asked in parallel on daemon threads (counting releases the GIL).

It carries the same bytes as a network would, so a simulation is not a second code path. A transport gives, for
every site asked, either the bytes it sent or the reason why there are none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from concilium.privacy.identity import Identity

# Seconds after which an answer counts as long, and another site is asked beside it.
LONG_ANSWER = 0.01


class Answering(Protocol):
    """Anything that answers like a site."""

    name: str

    def answer(self, message: bytes) -> bytes: ...


@runtime_checkable
class Introducible(Protocol):
    """A site of this process that can be told who its peers are."""

    name: str
    identity: Identity

    def introduce(self, peers: Mapping[str, str]) -> bool: ...


class Silence(Exception):
    """A site gave no answer; the text says what was seen."""


class Transport(Protocol):
    """How a house reaches its sites."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        """One message to each named site; returns when all have answered or the timeout has passed."""

    def introduce(self) -> bool:
        """Make sites without pinned peers known to each other, where sites trust the transport with that; True
        if any site took its word."""


class Embedded:
    """Sites of this process. A site that does not return in time is left behind on its thread."""

    def __init__(self, sites: Mapping[str, Answering]) -> None:
        self._sites = dict(sites)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sites)

    def introduce(self) -> bool:
        sites = [site for site in self._sites.values() if isinstance(site, Introducible)]
        peers = {site.name: site.identity.fingerprint for site in sites}
        took_our_word = [site.introduce(peers) for site in sites]
        return any(took_our_word)

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        replies: dict[str, bytes | Silence] = {}
        waiting = deque(messages)
        complete = threading.Event()

        def work() -> None:
            while True:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                try:
                    replies[name] = self._sites[name].answer(messages[name])
                except Exception as error:
                    replies[name] = Silence(f"{type(error).__name__}: {error}")
                if len(replies) == len(messages):
                    complete.set()

        def start_worker() -> None:
            threading.Thread(target=work, name="concilium-site", daemon=True).start()

        start_worker()
        workers, most = 1, self._most_workers(messages)
        deadline = time.monotonic() + timeout
        while len(replies) < len(messages) and (left := deadline - time.monotonic()) > 0:
            may_grow = workers < most
            answered, busy, since = len(replies), time.process_time(), time.monotonic()
            complete.wait(min(left, LONG_ANSWER if may_grow else min(1.0, timeout / 10)))
            idle = time.process_time() - busy < (time.monotonic() - since) / 2
            # A site that hangs holds its worker: one more is started then, however many there are, so that it cannot
            # silence others.
            if waiting and (len(replies) == answered or (may_grow and idle)):
                start_worker()
                workers += 1
        waiting.clear()
        late = Silence(f"no answer within {timeout:g} s")
        return {name: replies.get(name, late) for name in messages}

    def _most_workers(self, names: Iterable[str]) -> int:
        """How many sites should be answering at once. Short answers are all Python, and threads would only take the
        interpreter from each other: a second worker is for sites that count long or wait for their disks, and regions
        that ask sites of this process leave that to their own houses."""
        if all(getattr(self._sites[name], "asks_here", False) for name in names):
            return 1
        return os.cpu_count() or 1
