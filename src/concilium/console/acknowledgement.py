"""Acknowledgements of HL7 v2 messages (HL7 v2.5.1, 2.9): who answers whom, about which message, and how it went.

In original mode the answer is AA (accepted), AE (an error: the same message would meet it again) or AR (rejected for
now: it may be sent again). In enhanced mode a message says in MSH-15 when its neighbour answers (CA, CE, CR) and in
MSH-16 when its application does (AA, AE, AR): always (AL), never (NE), on errors only (ER), on success only (SU; table
0155). Original mode is the same as NE with AL (HL7 v2.8.2, 2.9.3). One of the two is ours to follow: MSH-15 where it
asks for anything, otherwise MSH-16. An answer repeats the control id of its message (MSH-10) in MSA-2, and of the rest
who sent it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from concilium.errors import PolicyError
from concilium.policy.v2_text import Delimiters

_PLAIN = Delimiters("|", "^", "~", "\\", "&")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class V2Header:
    """What an answer needs of a message: its header (MSH), as far as it can be read."""

    delimiters: Delimiters = _PLAIN
    fields: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: bytes) -> V2Header:
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


def ask_always(message: bytes) -> bytes:
    """The same message, asking for an answer however it goes where it would have had one on errors or success only.

    Which of the two silence means could only be guessed from how long it lasts.
    """
    header = V2Header.read(message)
    if header.condition not in ("ER", "SU"):
        return message
    place = 14 if header.is_commit else 15
    changed = [*header.fields[:place], "AL", *header.fields[place + 1 :]]
    before, after = (
        header.delimiters.field.join(fields).encode("latin-1") for fields in (header.fields, changed)
    )
    return after + message[len(before) :]


def make_acknowledgement(header: V2Header, code: str, said: str = "") -> bytes:
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


def read_acknowledgement(data: bytes) -> tuple[str, str] | None:
    """Whether a message was taken (A, E or R), and which, by its control id; None where this is no answer."""
    header = V2Header.read(data)
    lines = data.replace(b"\n", b"\r").decode("latin-1").split("\r")
    answers = [line.split(header.delimiters.field) for line in lines if line.startswith("MSA")]
    if not header.fields or len(answers) != 1 or len(answers[0]) < 3:
        return None
    _, code, control_id, *_ = answers[0]
    return (code[1], control_id) if code in ("AA", "AE", "AR", "CA", "CE", "CR") else None
