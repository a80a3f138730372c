"""Who stays connected to the gateway: no peer shuts others out by connections that wait, or by heavy messages.

- *Protects:* senders, from a peer that opens connections and sends nothing, slowly, or a lot.
- *How:* a peer has at most half of the places and of the bytes that are kept. Where all are taken, the peer that holds
  most loses the connection that has waited longest. Two messages of a peer are decided at a time.
- *Cost:* a connection that waits may be closed, and its sender connects anew.
- *Assumes:* a peer is an address (of IPv6, its first 64 bits). Senders behind one proxy are one peer, and whoever has
  many addresses is many.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

log = logging.getLogger("concilium.gateway")

Result = TypeVar("Result")

MOST_CONNECTIONS = 200
MOST_BYTES_KEPT = 128 * 1024 * 1024
DECISIONS = 4
SECONDS_BETWEEN_WARNINGS = 60.0


@dataclass(eq=False)
class Connection:
    """A place that a peer has taken: since when it has been waited for, if it is, and how many bytes are kept of it."""

    peer: str
    close: Callable[[], None]
    waiting_since: float | None = None
    kept: int = 0

    def wait(self) -> None:
        """The peer is to send something; nothing of it is kept."""
        self.waiting_since, self.kept = time.monotonic(), 0

    def work(self) -> None:
        """All of a message is here: the connection is not closed before it is answered."""
        self.waiting_since = None


class Connections:
    """The places of one port."""

    def __init__(self, most: int | None = None, most_kept: int | None = None) -> None:
        self._most = MOST_CONNECTIONS if most is None else most
        self._most_kept = MOST_BYTES_KEPT if most_kept is None else most_kept
        self._connections: set[Connection] = set()
        self._warned = -SECONDS_BETWEEN_WARNINGS

    def admit(self, peer: str, close: Callable[[], None]) -> Connection | None:
        """A place for a new connection, if need be another's; None where all that could be closed are at work."""
        held = Counter(one.peer for one in self._connections)
        if held[peer] >= max(1, self._most // 2):
            room = self._close([one for one in self._connections if one.peer == peer])
        else:
            room = len(self._connections) < self._most or self._close(self._connections)
        if not room:
            return None
        connection = Connection(peer, close)
        connection.wait()
        self._connections.add(connection)
        return connection

    def keep(self, connection: Connection, size: int) -> bool:
        """Whether so many bytes of an unfinished message can be kept; others that wait may be closed for it."""
        connection.kept = size
        while True:
            kept = Counter[str]()
            for one in self._connections:
                kept[one.peer] += one.kept
            if kept[connection.peer] > self._most_kept // 2:
                peer = connection.peer
            elif kept.total() > self._most_kept:
                peer = max(kept, key=kept.__getitem__)
            else:
                return True
            others = self._connections - {connection}
            if not self._close([one for one in others if one.peer == peer and one.kept]):
                return False

    def release(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def _close(self, connections: Iterable[Connection]) -> bool:
        """Close one that waits: of the peer with the most, the one that has waited longest."""
        held = Counter(one.peer for one in self._connections)
        waiting = [(one.waiting_since, one) for one in connections if one.waiting_since is not None]
        if time.monotonic() - self._warned >= SECONDS_BETWEEN_WARNINGS:
            self._warned = time.monotonic()
            log.warning("all places are taken: connections that wait are closed, others turned away")
        if not waiting:
            return False
        _, connection = max(waiting, key=lambda pair: (held[pair[1].peer], -pair[0]))
        self.release(connection)
        connection.close()
        return True


Address = tuple[str, int]


class TimedConnections(Connections):
    """The same for a web server: each connection with the time in which it must send a request, or read its answer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self._by_address: dict[Address, tuple[Connection, asyncio.TimerHandle]] = {}

    def find(self, address: Address) -> Connection | None:
        """The connection from there; None where it has gone."""
        found = self._by_address.get(address)
        return None if found is None else found[0]

    def enter(self, transport: asyncio.Transport) -> Address | None:
        """Take a connection, or end it where there is no place; where it is from, which TLS forgets when it ends."""
        place = transport.get_extra_info("peername")
        connection = self.admit(name_peer(transport), transport.abort) if place else None
        if connection is None:
            transport.abort()
            return None
        timer = asyncio.get_running_loop().call_later(0, lambda: None)
        address: Address = place[:2]
        self._by_address[address] = connection, timer
        self.wait(address)
        return address

    def leave(self, address: Address | None) -> None:
        """Forget a connection that has ended."""
        connection, timer = (None, None) if address is None else self._by_address.pop(address, (None, None))
        if connection is not None and timer is not None:
            timer.cancel()
            self.release(connection)

    def wait(self, address: Address) -> None:
        """Give the other side its time to read an answer and send a request."""
        if address not in self._by_address:
            return
        connection, timer = self._by_address[address]
        timer.cancel()
        connection.wait()
        loop = asyncio.get_running_loop()
        self._by_address[address] = connection, loop.call_later(self.seconds, self._end, connection)

    def _end(self, connection: Connection) -> None:
        if connection.waiting_since is not None:
            connection.close()


class Decisions:
    """Decides about a few messages at a time, each in a thread, and about one of a peer: two at a time take turns, and
    together longer."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(DECISIONS, "decision")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, peer: str, decide: Callable[[], Result]) -> Result:
        turn = self._turns.get(peer)
        if turn is None:
            turn = self._turns[peer] = asyncio.Lock()
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self._threads, decide)


def name_peer(transport: asyncio.BaseTransport) -> str:
    """Whose connection it is: an address, of IPv6 the network of 64 bits that one machine can take any address of."""
    host = str((transport.get_extra_info("peername") or ("",))[0])
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return str(address if address.version == 4 else address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
