"""The embedded transport: sites in this process, asked in parallel on daemon threads (counting releases the GIL).

It carries the same bytes as a network would, so a simulation is not a second code path. A transport gives, for
every site asked, either the bytes it sent or the reason why there are none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping

from concilium.protocol.messages import Answering, Introducible, Silence

# One more worker starts after so many seconds, or this share of the timeout, in which no site answered.
STALLED, STALLED_SHARE = 1.0, 0.1


class Embedded:
    """Sites of this process, asked by one worker thread for each core.

    A site that hangs holds its worker, so another worker starts when no site answers for a while: it cannot silence
    the others. A site that does not return in time is left behind on its thread.

    Threads are made for each round. Adapting their number to the answers and keeping them took 0.95 to 1.03 times the
    processor time (RuleFit and trees, exact and masked, five and ten sites in memory, 16 to 60 alternating fits on a
    busy machine); answering on the house's own thread, 0.94 to 0.95 times that of threads for the trees.
    """

    def __init__(self, sites: Mapping[str, Answering]) -> None:
        self._sites = dict(sites)
        self.names = tuple(sites)

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

        def work() -> None:
            while True:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                replies[name] = self._ask_one(name, messages[name])
                if len(replies) == len(messages):
                    complete.set()

        end = time.monotonic() + timeout
        starting = min(os.cpu_count() or 1, len(messages))
        while len(replies) < len(messages) and (left := end - time.monotonic()) > 0:
            for _ in range(starting):
                threading.Thread(target=work, name="concilium-site", daemon=True).start()
            answered = len(replies)
            complete.wait(min(left, STALLED, STALLED_SHARE * timeout))
            starting = int(bool(waiting) and len(replies) == answered)
        waiting.clear()
        late = Silence(f"no answer within {timeout:g} s")
        return {name: replies.get(name, late) for name in messages}

    def _ask_one(self, name: str, message: bytes) -> bytes | Silence:
        try:
            return self._sites[name].answer(message)
        except Exception as error:
            return Silence(f"{type(error).__name__}: {error}")
