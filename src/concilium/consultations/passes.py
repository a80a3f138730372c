"""A pass: a hospital says, signed, who somebody is, what roles they have, and until when.

*Protects:* the list of those who may ask, *from:* somebody who merely writes another's name, *cost:* none,
*assumes:* the hospital's key stays there. A pass is like a key card: whoever holds the file is taken for its owner
until its last day. It is checked where the counts are handed out (the house of a network) and by each question asked
through this software. Whoever holds the file of a release can read it without any pass: which is why a hospital agrees
to `requesters` and `signers` before counts leave, and to a release that it would show all of them.
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from concilium.errors import ModelError, name_some
from concilium.privacy.identity import fingerprint, has_fingerprint, is_signed, statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from concilium.privacy.identity import Identity

MOST_BYTES = 1 << 14


class RequesterPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`RequesterPass.sign(Identity.load(file), "Dr. Weiss", ["cardiology"], ends="2027-06-30")`."""

    name: str
    roles: tuple[str, ...] = ()
    ends: str
    identity: bytes
    signature: bytes = b""

    @classmethod
    def sign(
        cls, identity: Identity, name: str, roles: Sequence[str] = (), *, ends: str | date
    ) -> RequesterPass:
        """The pass of somebody, as the holder of this identity knows them; ModelError where it names nobody."""
        try:
            last = date.fromisoformat(str(ends)).isoformat()
        except ValueError:
            raise ModelError(f"a pass ends on a day such as 2027-06-30; got {str(ends)!r}") from None
        if not all(text.isprintable() and text.strip() for text in (name, *roles)):
            raise ModelError("a pass names somebody, and roles: give words that can be printed")
        unsigned = cls(name=name, roles=tuple(roles), ends=last, identity=identity.public)
        return msgspec.structs.replace(unsigned, signature=identity.sign(unsigned._signed))

    @classmethod
    def read(cls, path: str | Path) -> RequesterPass:
        """The pass in a file; ModelError where there is none."""
        try:
            with Path(path).open("rb") as file:
                return cls.parse(file.read(MOST_BYTES + 1))
        except OSError as error:
            raise ModelError(f"{path}: the pass cannot be read ({error.strerror})") from None
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, content: bytes) -> RequesterPass:
        """The pass in these bytes; ModelError where they are none."""
        try:
            if len(content) > MOST_BYTES:
                raise ValueError
            return msgspec.json.decode(content, type=cls)
        except ValueError:
            raise ModelError(
                "this is not a pass: a hospital makes one by `concilium identity vouch`"
            ) from None

    @property
    def encoded(self) -> bytes:
        """What its file holds."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def save(self, path: str | Path) -> None:
        """Write it to a new file that only its owner can read; ModelError where that cannot be."""
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(self.encoded)
        except OSError as error:
            raise ModelError(f"{path}: the pass cannot be written ({error.strerror})") from None

    @property
    def _signed(self) -> bytes:
        parts = [self.name, self.ends, *self.roles]
        return statement("concilium/requester@1", self.identity, *(part.encode() for part in parts))

    @property
    def listed_as(self) -> tuple[str, ...]:
        """By what a list may name its holder: name and roles."""
        return self.name, *self.roles

    @property
    def signer(self) -> str:
        """The fingerprint of the hospital that signed it."""
        return fingerprint(self.identity)

    def check(self, signers: Sequence[str], day: str) -> None:
        """ModelError unless one of these hospitals signed it and it holds on this day."""
        if not is_signed(self._signed, self.signature, self.identity):
            raise ModelError(
                f"the pass of {self.name!r} was changed after it was signed: have the hospital sign a new one"
            )
        if not any(has_fingerprint(self.identity, one) for one in signers):
            raise ModelError(
                f"the pass of {self.name!r} is signed by {self.signer}, and this consultation takes those of "
                f"{name_some(signers)}: have one of these hospitals sign it"
            )
        if day > self.ends:
            raise ModelError(
                f"the pass of {self.name!r} ended on {self.ends}: have the hospital sign a new one"
            )
