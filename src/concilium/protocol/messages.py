"""What crosses between house and site: an envelope with one question in, an answer or a refusal out.

All of it is msgpack of closed, typed structs: unknown fields, wrong types and unknown versions are errors, no
message can name code, and decoding takes memory in proportion to the message (message_memory.py). What a kind of
question holds is inside `body`, decoded only once the kind is known (questions.py).
"""

from __future__ import annotations

import hashlib
import threading
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from concilium.errors import MessageError
from concilium.privacy.identity import Identity, statement
from concilium.protocol.message_memory import check_memory

VERSION = 3
MAX_MESSAGE = 1 << 26

S = TypeVar("S", bound=msgspec.Struct)


class LedgerHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many entries a site's ledger has, and the hash of the last: travels in every answer, and back."""

    count: int
    hash: str


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
    seen: LedgerHead | None = None
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
    ledger: LedgerHead
    identity: bytes
    signature: bytes = b""
    below: int = 0

    @property
    def signed(self) -> bytes:
        return digest_unsigned("concilium/answer@2", self)


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

    @property
    def signed(self) -> bytes:
        return digest_unsigned("concilium/refusal@1", self)


def digest_unsigned(purpose: str, reply: Answer | Refusal) -> bytes:
    """What a signature is over: the SHA-256 digest, which takes less time to sign than a long answer."""
    content = encode(msgspec.structs.replace(reply, signature=b""))
    return statement(purpose, hashlib.sha256(content).digest())


def write_signed(reply: Answer | Refusal, identity: Identity) -> bytes:
    """A reply as bytes, signed by the identity that it names."""
    return encode(msgspec.structs.replace(reply, signature=identity.sign(reply.signed)))


def encode(message: msgspec.Struct) -> bytes:
    """A message (or a kind's body) as bytes."""
    return msgspec.msgpack.encode(message)


def decoder(kind: type[S]) -> msgspec.msgpack.Decoder[S]:
    """The one decoder of a kind. It is made under a lock: two threads that have msgspec look at a new struct at the
    same time can crash the interpreter (msgspec 0.22, when garbage is collected meanwhile); using it is safe."""
    found = _decoders.get(kind)
    if found is None:
        with _making:
            found = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return found


_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_making = threading.Lock()
_replies = msgspec.msgpack.Decoder(Answer | Refusal)


def decode(data: bytes, kind: type[S]) -> S:
    """Bytes as a struct of the given kind, or MessageError in one sentence."""
    check_memory(data, kind.__name__)
    try:
        return decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MessageError(f"this is not a well-formed {kind.__name__}: {str(error)[:200]}") from None


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
    check_memory(data, "reply")
    try:
        reply: Answer | Refusal = _replies.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageError(f"this is not a well-formed reply: {str(error)[:200]}") from None
    if reply.version != VERSION:
        raise MessageError(f"reply version {reply.version} is not spoken here")
    return reply
