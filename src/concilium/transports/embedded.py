"""The embedded transport: sites in this process, asked in parallel on daemon threads (counting releases the GIL), or,
where their answers are short and they wait for nothing, one after the other on the house's own.

It carries the same bytes as a network would, so a simulation is not a second code path. A transport gives, for
every site asked, either the bytes it sent or the reason why there are none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping

from concilium.protocol.transport import Answering, Introducible, Silence
from concilium.transports import lingering_workers

# Short answers are all Python, and threads would only take the interpreter from each other. Sites are asked beside each
# other where an answer takes so many seconds, or where this process is busy for less than this share of the time: then
# they wait for their disks, or the machine is shared with others.
LONG_ANSWER = 0.005
BUSY = 0.8
# Sites that never wait answer on the house's own thread while they take less than that each.
SHORT_ENOUGH = 0.015


class Embedded:
    """Sites of this process. A site that does not return in time is left behind on its thread, if it has one. Sites
    that never wait (`Site.never_waits`) have none while answers are short: another thread is another core, and what
    house and sites both look at would go to and fro between the two, a fifth of the time of a masked study."""

    def __init__(self, sites: Mapping[str, Answering]) -> None:
        self._sites = dict(sites)
        self._workers = 1  # as many as the last round needed

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sites)

    @property
    def hospitals(self) -> list[Introducible]:
        """The sites that can be introduced, those behind regions of this process among them."""
        found: list[Introducible] = []
        for site in self._sites.values():
            below = getattr(site, "hospitals", None)
            found += [site] if isinstance(site, Introducible) else below or []
        return found

    def introduce(self, house: str) -> bool:
        sites = self.hospitals
        peers = {site.name: site.identity.fingerprint for site in sites}
        took_our_word = [site.introduce(peers, house) for site in sites]
        return any(took_our_word)

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        replies: dict[str, bytes | Silence] = {}
        waiting = deque(messages)
        complete = threading.Event()

        def answer(name: str) -> None:
            try:
                replies[name] = self._sites[name].answer(messages[name])
            except Exception as error:
                replies[name] = Silence(f"{type(error).__name__}: {error}")
            if len(replies) == len(messages):
                complete.set()

        def work() -> None:
            while True:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                answer(name)

        start, busy = time.monotonic(), time.process_time()

        def is_idle() -> bool:
            return time.process_time() - busy < BUSY * (time.monotonic() - start)

        most = self._most_workers(messages)
        workers = min(self._workers, most, max(1, len(messages)))
        here = workers == 1 and all(getattr(self._sites[name], "never_waits", False) for name in messages)
        while here and waiting and time.monotonic() - start < SHORT_ENOUGH * max(1, len(replies)):
            answer(waiting.popleft())
        workers = most if here and waiting else workers  # answers are long
        for _ in range(min(workers, len(waiting))):
            lingering_workers.start(work)
        while len(replies) < len(messages) and (left := start + timeout - time.monotonic()) > 0:
            answered, may_grow = len(replies), workers < most
            complete.wait(min(left, LONG_ANSWER if may_grow else min(1.0, timeout / 10)))
            # A site that hangs holds its worker: one more is started then, however many there are, so that it cannot
            # silence others.
            if waiting and (len(replies) == answered or (may_grow and is_idle())):
                lingering_workers.start(work)
                workers += 1
        limit = SHORT_ENOUGH if here else LONG_ANSWER
        long = (time.monotonic() - start) * workers >= limit * len(messages)
        self._workers = most if long or (is_idle() and not here) else 1
        waiting.clear()
        late = Silence(f"no answer within {timeout:g} s")
        return {name: replies.get(name, late) for name in messages}

    def _most_workers(self, names: Iterable[str]) -> int:
        """How many sites may be answering at once: one for each core, but regions that ask sites of this process leave
        that to their own houses."""
        if all(getattr(self._sites[name], "asks_here", False) for name in names):
            return 1
        return os.cpu_count() or 1
