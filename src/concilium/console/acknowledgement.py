"""Acknowledgements of HL7 v2 messages (HL7 v2.5.1, 2.9): who answers whom, about which message, and how it went.

In original mode the answer is AA (accepted), AE (an error: the same message would meet it again) or AR (rejected for
now: it may be sent again). A message that fills MSH-15 or MSH-16 asks for enhanced mode: CA, CE and CR instead, and
only if MSH-15 is AL. An answer repeats the control id of its message (MSH-10) in MSA-2, and of the rest who sent it.
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
    def is_enhanced(self) -> bool:
        return bool(self[15] or self[16])

    @property
    def wants_answer(self) -> bool:
        """Whether an answer is sent at all: always in original mode, in enhanced mode if MSH-15 says always."""
        return not self.is_enhanced or self[15] == "AL"


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
    msa = ["MSA", ("C" if header.is_enhanced else "A") + code, header[10]]
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
