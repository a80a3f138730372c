"""The embedded transport: sites in this process, asked in parallel on daemon threads (counting releases the GIL).

It carries the same bytes as a network would, so a simulation is not a second code path. A transport gives, for
every site asked, either the bytes it sent or the reason why there are none.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from concilium.privacy.identity import Identity


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
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[str, bytes | Silence]] = queue.SimpleQueue()
        for name in messages:
            waiting.put(name)

        def work() -> None:
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((name, self._sites[name].answer(messages[name])))
                except Exception as error:
                    done.put((name, Silence(f"{type(error).__name__}: {error}")))

        def start_worker() -> None:
            threading.Thread(target=work, name="concilium-site", daemon=True).start()

        cores = os.cpu_count() or 1
        for _ in range(min(len(messages), cores)):
            start_worker()
        deadline = time.monotonic() + timeout
        # A site that hangs holds its worker: now and then one more is started, so that it cannot silence others.
        patience = min(1.0, timeout / 10)
        while len(replies) < len(messages):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                name, reply = done.get(timeout=min(left, patience))
                replies[name] = reply
            except queue.Empty:
                if not waiting.empty():
                    start_worker()
        late = Silence(f"no answer within {timeout:g} s")
        return {name: replies.get(name, late) for name in messages}
