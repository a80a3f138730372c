"""What crosses between house and site: an envelope with one question in, an answer or a refusal out.

All of it is msgpack of closed, typed structs: unknown fields, wrong types and unknown versions are errors, no
message can name code, and decoding takes memory in proportion to the message. What a kind of
question holds is inside `body`, decoded only once the kind is known (questions.py).

How much memory reading a message takes is found before it is read. *Protects:* the site and the house, *from:* a
small message that becomes a large one in memory. An empty list is one byte of msgpack and 72 of Python, and tidying
up millions of them takes longer than making them. So whatever is not raw bytes may take MOST_MEMORY in all, by the
weights below, which are what CPython and msgspec take at most; bytes are copied as they are, at most three times on
their way in (envelope, step, terms). A message then takes four times its size and a few times MOST_MEMORY, whatever
it says. The walk ends where the limit is reached: it takes a fraction of a second at most. What is too short to reach
the limit is not walked through.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from concilium.errors import MessageError
from concilium.ledger.chain import Head
from concilium.privacy.identity import Identity, statement

MOST_MEMORY = 1 << 25

# With the pointer to each, rounded up as the allocator does. A whole number may be asked for as a float, a list
# be a struct whose other fields have defaults, a map be a struct or a dict that is just growing.
POINTER, NUMBER, TEXT, BYTES, LIST, MAP, ENTRY = 8, 40, 72, 56, 96, 200, 104
WIDEST = 4  # bytes for each character of a text in which one is beyond the Basic Multilingual Plane

UNREAD = MOST_MEMORY // LIST  # no byte of msgpack becomes more than an empty list

# For each first byte: the bytes that follow it, of which so many say a length.
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _check_memory(data: bytes, what: str) -> None:
    """MessageError where reading these bytes would take more than MOST_MEMORY beside the raw bytes in them."""
    if len(data) > UNREAD and _measure_memory(data) > MOST_MEMORY:
        raise MessageError(
            f"this {what} of {len(data):,} bytes would take more than {MOST_MEMORY >> 20} MB of memory to read: ask "
            "about fewer things at a time"
        )


def _measure_memory(data: bytes) -> int:
    """What the objects in a msgpack message take at most, but for raw bytes; counting stops beyond MOST_MEMORY.

    What is not msgpack is measured up to there: reading it ends there as well.
    """
    at, end, objects, memory = 0, len(data), 1, 0
    while objects and at < end and memory <= MOST_MEMORY:
        objects -= 1
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            memory += NUMBER
        elif first < 0x90:
            objects += 2 * (first & 15)
            memory += MAP + ENTRY * (first & 15)
        elif first < 0xA0:
            objects += first & 15
            memory += LIST
        elif first < 0xC0:
            memory += _measure_text(data, at, first & 31)
            at += first & 31
        elif first in _FIXED:
            memory += NUMBER
            at += _FIXED[first]
        elif first in _SIZES:
            length = int.from_bytes(data[at : at + _SIZES[first]], "big")
            at += _SIZES[first]
            if first >= 0xDE:
                objects += 2 * length
                memory += MAP + ENTRY * min(length, end - at)
            elif first >= 0xDC:
                objects += length
                memory += LIST
            elif first >= 0xD9:
                memory += _measure_text(data, at, length)
                at += length
            else:
                memory += BYTES
                at += length
        elif first in (0xC0, 0xC2, 0xC3):
            memory += POINTER
        else:  # an extension, of which no message of ours is made
            break
    return memory


def _measure_text(data: bytes, at: int, length: int) -> int:
    if length > MOST_MEMORY:
        return length
    return TEXT + length * (1 if data[at : at + length].isascii() else WIDEST)


VERSION = 3
MAX_MESSAGE = 1 << 26

S = TypeVar("S", bound=msgspec.Struct)


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One question to one site. `body` is the same for all sites; `template` is what this site alone is told
    (its conditional schema). `seen` echoes the last ledger head the house saw from this site, and `proof` says that it
    is the house of the study who asks (terms.py)."""

    version: int
    id: str
    study: str
    kind: str
    release: str
    body: bytes
    template: bytes = b""
    seen: Head | None = None
    proof: bytes = b""

    @cached_property
    def digest(self) -> str:
        """What must be equal for two messages to be the same question; `seen` and `proof` are not part of it."""
        return digest_question(self.study, self.kind, self.release, self.body_digest, self.template)

    @property
    def content(self) -> str:
        """What is asked, whoever asks: neither the study nor the id, which are names of the house's choosing."""
        named = f"{self.kind}\n{self.release}".encode()
        return hashlib.sha256(
            statement("concilium/content@1", named, self.body_digest, self.template)
        ).hexdigest()

    @cached_property
    def body_digest(self) -> bytes:
        """The body may be long: it is hashed once, and everything else is over this."""
        return hashlib.sha256(self.body).digest()


def digest_question(study: str, kind: str, release: str, body_digest: bytes, template: bytes) -> str:
    """The digest of an envelope with these contents."""
    named = f"{study}\n{kind}\n{release}".encode()
    return hashlib.sha256(statement("concilium/envelope@3", named, body_digest, template)).hexdigest()


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the site entered in its ledger for an answer; `cost` is None for releases without a bound.

    `capped` is false where the answer has a cost and the hospital set its budget to unlimited.
    """

    release: str
    cost: str | None
    numbers: int
    capped: bool = True


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", forbid_unknown_fields=True):
    """A site's answer: the kind's own body, what it was charged, and the ledger's head after the charge.

    `charge` is None where nothing about a patient was released. `signature` is that of the site's identity over
    the whole answer with the signature left empty: nobody else can have said it, nor can the site deny it. `below` is
    how many hospitals a region answers for; 0: a hospital answers for itself.
    """

    version: int
    id: str
    site: str
    body: bytes
    charge: Charge | None
    ledger: Head
    identity: bytes
    signature: bytes = b""
    below: int = 0


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal", forbid_unknown_fields=True):
    """A refusal is an answer: which rule, why, and for budgets what was asked, is spent, is left, would fit.

    It is signed as an answer is, so that nobody on the way can drop a hospital in its name.
    """

    version: int
    id: str
    site: str
    rule: str
    reason: str
    asked: str | None = None
    spent: str | None = None
    left: str | None = None
    would_fit: str | None = None
    identity: bytes = b""
    signature: bytes = b""


def find_signed(reply: Answer | Refusal) -> bytes:
    """What a reply's signature is over: a SHA-256 digest, which takes less time to sign than a long answer."""
    purpose = "concilium/answer@2" if isinstance(reply, Answer) else "concilium/refusal@1"
    content = encode(msgspec.structs.replace(reply, signature=b""))
    return statement(purpose, hashlib.sha256(content).digest())


def _write_signed(reply: Answer | Refusal, identity: Identity) -> bytes:
    """A reply as bytes, signed by the identity that it names."""
    return encode(msgspec.structs.replace(reply, signature=identity.sign(find_signed(reply))))


def write_answer(
    identity: Identity,
    site: str,
    question: str,
    body: msgspec.Struct,
    ledger: Head,
    charge: Charge | None = None,
    below: int = 0,
) -> bytes:
    """The signed answer of a site, or of a region, to the question of this id."""
    answer = Answer(
        version=VERSION,
        id=question,
        site=site,
        body=encode(body),
        charge=charge,
        ledger=ledger,
        identity=identity.public,
        below=below,
    )
    return _write_signed(answer, identity)


def write_refusal(
    identity: Identity,
    site: str,
    question: str,
    rule: str,
    reason: str,
    *,
    asked: str | None = None,
    spent: str | None = None,
    left: str | None = None,
    would_fit: str | None = None,
) -> bytes:
    """The signed refusal of a site, or of a region, of the question of this id."""
    refusal = Refusal(
        version=VERSION,
        id=question,
        site=site,
        rule=rule,
        reason=reason,
        asked=asked,
        spent=spent,
        left=left,
        would_fit=would_fit,
        identity=identity.public,
    )
    return _write_signed(refusal, identity)


def encode(message: msgspec.Struct) -> bytes:
    """A message (or a kind's body) as bytes."""
    return msgspec.msgpack.encode(message)


_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_making = threading.Lock()
_replies = msgspec.msgpack.Decoder(Answer | Refusal)


def decode(data: bytes, kind: type[S]) -> S:
    """Bytes as a struct of the given kind, or MessageError in one sentence."""
    _check_memory(data, kind.__name__)
    decoder = _decoders.get(kind)
    if decoder is None:
        # Under a lock: two threads that have msgspec look at a new struct at the same time can crash the interpreter
        # (msgspec 0.22, when garbage is collected meanwhile). Using a decoder is safe.
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
    try:
        message: S = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MessageError(f"this is not a well-formed {kind.__name__}: {str(error)[:200]}") from None
    return message


def open_envelope(data: bytes) -> Envelope:
    """The envelope in these bytes, of a version we speak, or MessageError."""
    if len(data) > MAX_MESSAGE:
        raise MessageError(f"a message may have at most {MAX_MESSAGE} bytes; this one has {len(data)}")
    envelope = decode(data, Envelope)
    if envelope.version != VERSION:
        raise MessageError(
            f"message version {envelope.version} is not spoken here; this site speaks {VERSION}"
        )
    if (
        not 8 <= len(envelope.id) <= 128
        or len(envelope.study) > 128
        or len(envelope.kind) > 64
        or len(envelope.release) > 64
    ):
        raise MessageError(
            "a question's id must have 8 to 128 characters, its study at most 128, its kind and release at most 64"
        )
    # They end up in the hospital's ledger and log, and on its steward's terminal.
    if not all(name.isprintable() for name in (envelope.id, envelope.study, envelope.kind, envelope.release)):
        raise MessageError("the id, study, kind and release of a question must be printable characters")
    return envelope


def open_reply(data: bytes) -> Answer | Refusal:
    """What a site sent back, or MessageError."""
    _check_memory(data, "reply")
    try:
        reply: Answer | Refusal = _replies.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageError(f"this is not a well-formed reply: {str(error)[:200]}") from None
    if reply.version != VERSION:
        raise MessageError(f"reply version {reply.version} is not spoken here")
    return reply


class Refused(Exception):
    """A rule says no; becomes a Refusal, which may say what was asked, is spent, is left and would fit."""

    def __init__(self, rule: str, reason: str, **receipt: str) -> None:
        self.rule, self.reason, self.receipt = rule, reason, receipt
        super().__init__(reason)


class Answering(Protocol):
    """Anything that answers like a site."""

    name: str

    def answer(self, message: bytes) -> bytes: ...


@runtime_checkable
class Introducible(Protocol):
    """A site of this process that can be told who its peers are."""

    name: str
    identity: Identity

    def introduce(self, peers: Mapping[str, str], house: str) -> bool: ...


class Silence(Exception):
    """A site gave no answer; the text says what was seen."""


class Transport(Protocol):
    """How a house reaches its sites."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:
        """One message to each named site; returns when all have answered or the timeout has passed."""

    def introduce(self, house: str) -> bool:
        """Make the house of this fingerprint known to the sites, and sites without pinned peers to each other, where
        sites trust the transport with that; True if any site took its word for its peers."""
