"""The transport across machines: one message to each hospital over NVIDIA FLARE, as bytes, and its answer.

FLARE connects the processes: mutual TLS, and hospitals only dial out. It is trusted with delivery and with nothing
else: a question is proven by the house's own key, an answer signed by the hospital's own (terms.py, messages.py), so
that whoever provisions the network, or sits on it with a certificate, can lose messages and cannot ask or answer in
another's name. What the house may read it reads; masks hide from it what it may not.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import msgspec

import concilium
from concilium.errors import MessageError
from concilium.privacy.identity import has_fingerprint
from concilium.protocol.messages import Silence, decode, encode, open_reply

log = logging.getLogger(__name__)

# What a message is: a greeting, a question to the gate, or a knock (is anybody there?).
HELLO, QUESTION, KNOCK = "concilium.hello", "concilium.question", "concilium.knock"

# Seconds until a site's process must show itself; how long it then may read its records the study says.
UNTIL_SEEN = 60.0
ONE_HELLO = 10.0
# Where an answer takes longer than this, its site is knocked at: one whose process is gone is not waited for.
KNOCKED_AFTER, ONE_KNOCK = 4.0, 3.0
# A clock that is off by more than this is wrong: days on which studies end are told by it.
CLOCKS_DIFFER = 300.0

NOT_THERE = (
    "it is not connected to the house: start `concilium flare site` there, or see why it ended in its log"
)
GONE = "its process ended, or its connection broke, before it answered"


class Unreachable(Silence):
    """Nobody is there who could answer."""


class Ended(Unreachable):
    """Nobody is there any more, nor will be."""


class FlareHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which version the house runs, and what time it is there."""

    version: str
    time: float


class FlareGreeting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's: `ready` once it has read its records; `problem` where it cannot answer, in words for others to read."""

    version: str
    time: float
    ready: bool
    problem: str = ""


class _Send(Protocol):
    """One message to one site: what it sends back, or why nothing came; Unreachable where nobody is there."""

    def __call__(self, site: str, topic: str, message: bytes, timeout: float) -> bytes | Silence: ...


class FlareTransport:
    """Sites of a FLARE job. `sites` are those of the study, `connected` those who were sent the job; `pins` are
    fingerprints by which the house knows sites."""

    def __init__(
        self,
        sites: Iterable[str],
        connected: Iterable[str],
        send: _Send,
        pins: Mapping[str, str] | None = None,
    ) -> None:
        self._names = tuple(sites)
        self._send = send
        self._pins = dict(pins or {})
        here = frozenset(connected)
        self.absent = {site: NOT_THERE for site in self._names if site not in here}
        self._ready: set[str] = set()
        self.took: list[float] = []
        # A call that is late keeps its thread until it ends, and the next one and a knock need theirs.
        self._pool = ThreadPoolExecutor(4 * len(self._names) + 4, thread_name_prefix="concilium-flare")

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def introduce(self, house: str) -> bool:
        """Sites elsewhere take nobody's word: houses and peers are pinned in their policies."""
        return False

    def greet(self, until_ready: float, until_seen: float = UNTIL_SEEN) -> None:
        """Wait for the sites' processes: until each is seen, and from then on until it has read its records.

        Those that cannot answer are absent from here on, with the reason.
        """
        limits = {
            site: (
                time.monotonic() + until_seen,
                f"it did not start within {until_seen:g} s: its own log says why",
            )
            for site in self._names
            if site not in self.absent
        }
        greeted: set[str] = set()
        while limits:
            hellos = {
                site: self._pool.submit(self._send, site, HELLO, _write_hello(), self._left(limit))
                for site, (limit, _) in limits.items()
            }
            wait(hellos.values())
            for site, hello in hellos.items():
                reply = hello.result()
                if isinstance(reply, Ended):
                    self.absent[site] = str(reply)
                elif not isinstance(reply, Silence):
                    self._take_greeting(site, reply)
                    if site not in greeted:
                        greeted.add(site)
                        limits[site] = (
                            time.monotonic() + until_ready,
                            f"it was still reading its records after {until_ready:g} s, [house] timeout",
                        )
                limit, reason = limits[site]
                if site not in self._ready and site not in self.absent and time.monotonic() > limit:
                    self.absent[site] = reason
            limits = {
                site: limit
                for site, limit in limits.items()
                if site not in self.absent and site not in self._ready
            }
            if limits:
                time.sleep(0.05)

    @staticmethod
    def _left(limit: float) -> float:
        """Seconds that one greeting may take."""
        return max(0.1, min(ONE_HELLO, limit - time.monotonic()))

    def _take_greeting(self, site: str, reply: bytes) -> None:
        try:
            greeting = decode(reply, FlareGreeting)
        except MessageError as error:
            self.absent[site] = f"it greeted with something else: {error}"
            return
        problem = greeting.problem or find_discord(greeting.version, greeting.time)
        if problem:
            self.absent[site] = problem
        elif greeting.ready:
            self._ready.add(site)

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        start = time.perf_counter()
        try:
            return self._ask(messages, timeout)
        finally:
            self.took.append(time.perf_counter() - start)

    def describe_rounds(self) -> str:
        """How many rounds there were, and how long one took."""
        return f"{len(self.took)} rounds, median {1000 * statistics.median(self.took):.1f} ms"

    def _ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        replies: dict[str, bytes | Silence] = {
            site: Silence(self.absent[site]) for site in messages if site in self.absent
        }
        end = time.monotonic() + timeout
        calls = {
            self._pool.submit(self._send, site, QUESTION, message, timeout): site
            for site, message in messages.items()
            if site not in replies
        }
        missed: Counter[str] = Counter()
        waiting = set(calls)
        while waiting and (left := end - time.monotonic()) > 0:
            done, waiting = wait(waiting, min(left, KNOCKED_AFTER))
            for call in done:
                replies[calls[call]] = self._take(calls[call], call)
            for site in self._knock([calls[call] for call in waiting]):
                missed[site] += 1
                if missed[site] > 1:
                    replies[site] = Unreachable(GONE)
            waiting = {call for call in waiting if calls[call] not in replies}
        late = Silence(f"no answer within {timeout:g} s")
        return {site: replies.get(site, late) for site in messages}

    def _knock(self, sites: Iterable[str]) -> list[str]:
        """Those of the sites where nobody is."""
        knocks = {site: self._pool.submit(self._send, site, KNOCK, b"", ONE_KNOCK) for site in sites}
        return [site for site, knock in knocks.items() if isinstance(knock.result(), Unreachable)]

    def _take(self, site: str, call: Future[bytes | Silence]) -> bytes | Silence:
        reply = call.result()
        pin = self._pins.get(site)
        if pin is None or isinstance(reply, Silence):
            return reply
        try:
            if not has_fingerprint(open_reply(reply).identity, pin):
                return Silence("it signs with another identity than the one that the house pins")
        except MessageError as error:
            return Silence(str(error))
        del self._pins[site]  # from here on the run holds the site to the identity of its first answer
        return reply

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _write_hello() -> bytes:
    return encode(FlareHello(concilium.__version__, time.time()))


def find_discord(version: str, clock: float) -> str:
    """Why one's own process and another's do not go together, in words that name the remedy; empty where they do."""
    own = concilium.__version__
    if version != own:
        return (
            f"it runs concilium {version}, and the house {own}: install {own} there (pip install "
            f"'concilium[flare]=={own}') and start it again"
        )
    ahead = clock - time.time()
    if abs(ahead) > CLOCKS_DIFFER:
        way = "ahead of" if ahead > 0 else "behind"
        return f"its clock is {abs(ahead):.0f} s {way} the house's: set it, best by NTP, and start it again"
    return ""
