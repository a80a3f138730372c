"""HL7 v2 over MLLP: a message comes in, its filtered copy goes on to the receiver, and the sender gets an answer.

MLLP (HL7 v2.5.1, appendix C) puts a message between <VT> and <FS><CR>, many on one connection, each answered before the
next. Who is protected: the people in a message, from its receiver, as far as rules name what identifies them. Nothing
goes on that was not read, decided about and written anew: what cannot be read, a frame that is cut off, too large, too
slow or not as MLLP has it goes no further, and neither does anything after it on that connection. AA is said only after
the receiver has said it; and where silence says so (ER), it means nothing else as long as the connection lasts.
Assumption: whoever can reach the port may send, and both ways are as safe as the network is, since MLLP has neither
accounts nor encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from concilium.console.connections import Connection, Connections, Decisions, name_peer
from concilium.console.gateway import MOST_BYTES, TOO_LARGE, Gateway
from concilium.errors import PolicyError
from concilium.policy.hl7v2 import Delimiters

# Acknowledgements (HL7 v2.5.1, 2.9). In original mode the answer is AA (accepted), AE (an error: sending it again
# would not help) or AR (rejected for now: it may be sent again). In enhanced mode MSH-15 says when the neighbour
# answers (CA, CE, CR) and MSH-16 when the application does: always (AL), never (NE), on errors (ER), on success (SU;
# table 0155). Original mode is NE with AL (HL7 v2.8.2, 2.9.3). The gateway follows MSH-15 where it asks for anything,
# otherwise MSH-16. An answer repeats the control id (MSH-10) in MSA-2, and of the rest only who sent it.

_PLAIN = Delimiters("|", "^", "~", "\\", "&")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class _V2Header:
    """What an answer needs of a message: its header (MSH), as far as it can be read."""

    delimiters: Delimiters = _PLAIN
    fields: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: bytes) -> _V2Header:
        """The header of whatever came; an empty one where there is none."""
        text = data[:65536].replace(b"\n", b"\r").split(b"\r", 1)[0].decode("latin-1")
        try:
            delimiters = Delimiters.read(text) if text.startswith("MSH") else None
        except PolicyError:
            delimiters = None
        return cls() if delimiters is None else cls(delimiters, tuple(text.split(delimiters.field)))

    def __getitem__(self, number: int) -> str:
        """A field as it was written, counted as HL7 does (MSH-1 is the separator)."""
        return self.fields[number - 1] if 2 <= number <= len(self.fields) else ""

    @property
    def is_commit(self) -> bool:
        """Whether the answer is the neighbour's (CA, CE, CR), not the application's."""
        return self._condition(15) not in ("", "NE")

    @property
    def condition(self) -> str:
        """When this message is to be answered: AL, NE, ER or SU, or whatever else it says."""
        if not self._condition(15) and not self._condition(16):
            return "AL"
        return self._condition(15 if self.is_commit else 16) or "NE"

    @property
    def asks_twice(self) -> bool:
        """Whether the application is to answer as well, after the neighbour."""
        return self.is_commit and self._condition(16) not in ("", "NE")

    def wants(self, code: str) -> bool:
        """Whether an answer of A, E or R is sent. An error is, too, where nobody can tell what the message asks for."""
        return self.condition not in (("NE", "ER") if code == "A" else ("NE", "SU"))

    def _condition(self, number: int) -> str:
        return "" if self[number] == '""' else self[number]  # HL7's sign for "nothing"


def _ask_always(message: bytes) -> bytes:
    """The same message, asking for an answer however it goes where it would have had one on errors or success only.

    Which of the two silence means could only be guessed from how long it lasts.
    """
    header = _V2Header.read(message)
    if header.condition not in ("ER", "SU"):
        return message
    place = 14 if header.is_commit else 15
    changed = [*header.fields[:place], "AL", *header.fields[place + 1 :]]
    before, after = (
        header.delimiters.field.join(fields).encode("latin-1") for fields in (header.fields, changed)
    )
    return after + message[len(before) :]


def _make_acknowledgement(header: _V2Header, code: str, said: str = "") -> bytes:
    """The answer to a message: `code` is A, E or R, `said` one sentence for people (MSA-3)."""
    signs = header.delimiters
    _, _, event = header[9].partition(signs.component)
    kind = ["ACK", *([event.split(signs.component)[0], "ACK"] if event else [])]
    now, number = time.gmtime(), next(_numbers) % 10_000
    msh = [
        "MSH",
        signs.written,
        header[5],
        header[6],
        header[3],
        header[4],
        time.strftime("%Y%m%d%H%M%S+0000", now),
        "",
        signs.component.join(kind),
        f"{time.strftime('%Y%m%d%H%M%S', now)}{number:04d}",
        header[11] or "P",
        header[12] or "2.5.1",
    ]
    if header[18]:
        msh += ["", "", "", "", "", header[18]]
    msa = ["MSA", ("C" if header.is_commit else "A") + code, header[10]]
    if said:
        msa.append(signs.escaped(said).encode("ascii", "replace").decode())
    text = "\r".join(signs.field.join(segment) for segment in (msh, msa))
    return f"{text}\r".encode("latin-1")


def _read_acknowledgement(data: bytes) -> tuple[str, str] | None:
    """Whether a message was taken (A, E or R), and which, by its control id; None where this is no answer."""
    header = _V2Header.read(data)
    lines = data.replace(b"\n", b"\r").decode("latin-1").split("\r")
    answers = [line.split(header.delimiters.field) for line in lines if line.startswith("MSA")]
    if not header.fields or len(answers) != 1 or len(answers[0]) < 3:
        return None
    _, code, control_id, *_ = answers[0]
    return (code[1], control_id) if code in ("AA", "AE", "AR", "CA", "CE", "CR") else None


log = logging.getLogger("concilium.gateway")

START, END = b"\x0b", b"\x1c\r"
CHUNK_BYTES = 64 * 1024


class Patience(NamedTuple):
    """Seconds that are waited: for a next message, for one that has begun, for the receiver, and for its answer."""

    idle: float = 300.0
    message: float = 30.0
    connection: float = 10.0
    answer: float = 30.0


class _BadFrame(Exception):
    """Bytes that are not as MLLP has them; says what is wrong, never what they are."""


class _Undelivered(Exception):
    """The receiver could not be reached, or did not answer."""


class _Verdict(NamedTuple):
    """What the sender is told: A, E or R, and a sentence."""

    code: str
    said: str = ""


async def _read_frame(
    reader: asyncio.StreamReader,
    idle: float,
    patience: float,
    keep: Callable[[int], bool] = lambda size: True,
) -> bytes | None:
    """The next message; None where the other side has ended. BadFrame where it is none.

    `keep` is asked whether so many bytes of it can be kept.
    """
    try:
        first = b"\r"
        while first in (b"\r", b"\n"):  # some put a line end between frames
            first = await asyncio.wait_for(reader.read(1), idle)
    except TimeoutError:
        return None
    if first == b"":
        return None
    if first != START:
        raise _BadFrame("a message begins with <VT>")
    try:
        data = await asyncio.wait_for(_read_until_end(reader, keep), patience)
    except TimeoutError:
        raise _BadFrame(f"a message must be there within {patience:g} s of its beginning") from None
    except asyncio.IncompleteReadError:
        raise _BadFrame("the connection ended within a message") from None
    message = data.removesuffix(END)
    if START in message or END[:1] in message:
        raise _BadFrame("a message ends with <FS><CR>, and neither <VT> nor <FS> stands within it")
    return message


async def _read_until_end(reader: asyncio.StreamReader, keep: Callable[[int], bool]) -> bytes:
    data = bytearray()
    while True:
        try:
            end = await reader.readuntil(END)
        except asyncio.LimitOverrunError as more:
            end = b""
            data += await reader.readexactly(more.consumed)
        if len(data) + len(end) > MOST_BYTES + len(END):
            raise _BadFrame(TOO_LARGE)
        if not keep(len(data) + len(end)):
            raise _BadFrame("too much is being sent at once; send it again")
        if end:
            return bytes(data) + end


async def _write_frame(writer: asyncio.StreamWriter, message: bytes, patience: float) -> None:
    writer.write(START + message + END)
    await asyncio.wait_for(writer.drain(), patience)


class _Receiver:
    """Where filtered messages go on to: one connection, opened when there is something to send."""

    def __init__(self, host: str, port: int, patience: Patience) -> None:
        self._host, self._port, self._patience = host, port, patience
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        # Some answer also what asked for no answer, or here what is answered twice: that must not be taken for the
        # answer to what came after.
        self._unasked: deque[str] = deque(maxlen=1_000)

    async def deliver(self, message: bytes) -> str:
        """Whether the receiver took it: A, E or R. Undelivered where it did not say so."""
        message = _ask_always(message)
        header = _V2Header.read(message)
        try:
            reader, writer = await self._open()
            await _write_frame(writer, message, self._patience.answer)
            if not header.wants("A"):
                self._unasked.append(header[10])
                return "A"
            code = await self._answer(reader, header[10])
            if header.asks_twice:
                self._unasked.append(header[10])
        except (OSError, TimeoutError, _BadFrame):
            code = None
        if code is None:
            # What it says later could be taken for the answer to another message.
            await self.close()
            raise _Undelivered
        return code

    async def _answer(self, reader: asyncio.StreamReader, control_id: str) -> str | None:
        async with asyncio.timeout(self._patience.answer):
            while True:
                data = await _read_frame(reader, self._patience.answer, self._patience.answer)
                answer = None if data is None else _read_acknowledgement(data)
                if answer is None or answer[1] == control_id or answer[1] not in self._unasked:
                    return answer[0] if answer is not None and answer[1] == control_id else None
                self._unasked.remove(answer[1])

    async def close(self) -> None:
        if self._streams is not None:
            await close(self._streams[1])
        self._streams = None
        self._unasked.clear()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            await self.close()
        if self._streams is None:
            self._streams = await asyncio.wait_for(
                asyncio.open_connection(self._host, self._port, limit=CHUNK_BYTES), self._patience.connection
            )
        return self._streams


class MllpChannel:
    """Answers senders, each connection by itself and each message before the next."""

    def __init__(self, gateway: Gateway, host: str, port: int, patience: Patience | None = None) -> None:
        self.gateway = gateway
        self._to = (host, port)
        self._patience = patience or Patience()
        self._connections, self._decisions = Connections(), Decisions()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Take connections until told to stop; what is under way then is cut off, unanswered."""
        server = await asyncio.start_server(self._welcome, sock=listener, limit=CHUNK_BYTES)
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Ours until it is done, its connection closed: `serve` leaves none pending.
        task = asyncio.get_running_loop().create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._connections.admit(name_peer(writer.transport), writer.transport.abort)
        if connection is None:
            await close(writer)
            return
        receiver = _Receiver(*self._to, self._patience)
        try:
            await self._converse(reader, writer, receiver, connection)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the sender has gone, or we go; what it was not told it will send again
        except Exception as error:
            # By its name alone: the text of an unforeseen error may hold a value.
            log.error("failure hl7: %s", type(error).__name__)
        finally:
            self._connections.release(connection)
            try:
                await receiver.close()
            finally:
                await close(writer)

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receiver: _Receiver,
        connection: Connection,
    ) -> None:
        keep = partial(self._connections.keep, connection)
        while True:
            connection.wait()
            try:
                message = await _read_frame(reader, self._patience.idle, self._patience.message, keep)
            except _BadFrame as error:
                log.info("error hl7")
                answer = _make_acknowledgement(_V2Header(), "E", str(error))
                await _write_frame(writer, answer, self._patience.answer)
                await _discard(reader, writer)
                return
            if message is None:
                return
            connection.work()
            header = _V2Header.read(message)
            code, said = await self._decide(message, header, receiver, connection.peer)
            if header.wants(code):
                answer = _make_acknowledgement(header, code, said)
                await _write_frame(writer, answer, self._patience.answer)

    async def _decide(self, message: bytes, header: _V2Header, receiver: _Receiver, peer: str) -> _Verdict:
        if header.condition not in ("AL", "NE", "ER", "SU"):
            log.info("error hl7")
            field = "MSH-15" if header.is_commit else "MSH-16"
            return _Verdict("E", f"{field} is none of AL, NE, ER and SU, so that nobody knows when to answer")
        reply = await self._decisions.run(peer, lambda: self.gateway.handle_v2(message))
        if reply.status == 403:
            return _Verdict("E", f"refused by graph {reply.content['refused_by']}")
        if reply.status != 200:
            return _Verdict("E" if reply.status == 400 else "R", reply.content["error"])
        try:
            code = await receiver.deliver(reply.content)
        except _Undelivered:
            log.warning("undelivered hl7")
            return _Verdict("R", "the receiver could not be reached or did not answer; send it again")
        if code != "A":
            log.warning("undelivered hl7: the receiver did not take it")
            return _Verdict(code, "the receiver did not take it")
        return _Verdict("A")


async def _discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read away for a moment what the other side still sends: it would otherwise not get to read the answer."""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(2):
            while await reader.read(65536):
                pass


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 5)


@contextlib.contextmanager
def running(channel: MllpChannel, listener: socket.socket) -> Iterator[None]:
    """The channel at work in a thread of its own, as long as the block lasts."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(channel.serve(listener, stop))

    thread = threading.Thread(target=run, name="mllp", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)
