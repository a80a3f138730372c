"""A site's identity: one Ed25519 key it makes itself, and the fingerprint by which other sites know it.

Who is protected: a site, from a house (or whoever provisions the network) that poses as one of its peers.
At what price: fingerprints are compared once, out of band, and pinned in each site's policy under
`[peers]`. Assumptions: Ed25519 signatures cannot be forged, the key file stays with the site, and people
did compare the fingerprints over a channel the house does not control. Reference: RFC 8032; the
authenticated key exchange that Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving
Machine Learning", CCS, section 6) need against an active server.

A key is rotated by `rotate` (rotation.py does it with a site's ledger). What must stay the same for as long as the
hospital does (who is held out, shifted dates, patients' numbers) follows from its first key, which the new file holds
too, and which signs nothing any more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
import struct
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from concilium.errors import ConciliumError, MaskError
from concilium.privacy import randomness

FINGERPRINT_BYTES = (
    20  # 160 bits: no second key can be found to fit, and 32 letters can be read out over a telephone
)
GROUP = 4
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
BEGIN = b"-----BEGIN"


class Identity:
    """What a site signs with. The key is never shown; `public` (32 bytes) and `fingerprint` are for everyone, and so is
    `exchange_key`: what somebody needs, besides a key of the same sort, to share a secret with us."""

    def __init__(self, key: Ed25519PrivateKey, first: Ed25519PrivateKey | None = None) -> None:
        self._key, self._first = key, first
        self.public = key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public)
        # Made of the signing key by a one-way function, so that neither tells the other and nothing is stored.
        secret = hmac.digest(key.private_bytes_raw(), b"concilium/exchange-key@1", "sha256")
        self._exchange = X25519PrivateKey.from_private_bytes(secret)
        self.exchange_key = self._exchange.public_key().public_bytes_raw()

    @classmethod
    def create(cls) -> Identity:
        """A new identity, drawn from the operating system's generator."""
        return cls(Ed25519PrivateKey.from_private_bytes(randomness.draw_bytes(32)))

    def rotate(self) -> Identity:
        """Another identity of the same hospital: a new key to sign with, the same lasting secrets."""
        return Identity(Identity.create()._key, self._first or self._key)

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The identity in a file that only its owner can read; MaskError otherwise."""
        content = _read_own_file(path, "identity", MaskError)
        blocks = [BEGIN + block for block in content.split(BEGIN)]
        try:
            keys = [load_pem_private_key(block, password=None) for block in blocks[1:] or [content]]
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise MaskError(
                f"{path}: this is not an identity file; it must hold an Ed25519 key as PEM (after a rotation two)"
            ) from None
        if len(keys) > 2 or not all(isinstance(key, Ed25519PrivateKey) for key in keys):
            raise MaskError(f"{path}: this key is not Ed25519; make an identity of its own for the site")
        return cls(*(key for key in keys if isinstance(key, Ed25519PrivateKey)))

    @classmethod
    def at(cls, path: str | Path) -> Identity:
        """The identity in this file, made on first use. It appears there whole: a process killed meanwhile leaves
        no half of one, and of two that make it at once both get the same."""
        if not Path(path).exists():
            partial = Path(f"{path}.{randomness.draw_bytes(8).hex()}.part")
            cls.create().save(partial)
            try:
                os.link(partial, path)
            except FileExistsError:
                pass
            except OSError as error:
                raise MaskError(f"{path}: the identity cannot be written ({error.strerror})") from None
            finally:
                partial.unlink(missing_ok=True)
        return cls.load(path)

    def save(self, path: str | Path) -> None:
        """Write the identity to a new file only its owner can read; no file is ever replaced."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise MaskError(f"{path}: there is a file already; an identity is never overwritten") from None
        except OSError as error:
            raise MaskError(f"{path}: the identity cannot be written ({error.strerror})") from None
        with os.fdopen(descriptor, "wb") as file:
            for key in filter(None, (self._key, self._first)):
                file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def derive(self, message: bytes) -> bytes:
        """A lasting secret of the hospital for a purpose: the hash of a signature by its first key, never sent."""
        return hashlib.sha256((self._first or self._key).sign(message)).digest()

    def share_secret(self, exchange_key: bytes, about: bytes) -> bytes:
        """The secret about something that only we and the holder of that exchange key can compute (RFC 7748)."""
        try:
            shared = self._exchange.exchange(X25519PublicKey.from_public_bytes(exchange_key))
        except ValueError:
            raise MaskError("an exchange key gives no secret (it is not a proper X25519 key)") from None
        return hmac.digest(shared, statement("concilium/shared-secret@1", about), "sha256")


def _read_own_file(path: str | Path, what: str, refuse: type[ConciliumError]) -> bytes:
    """The secret in a file that only its owner can read (of a longer one the beginning), or that error."""
    try:
        with Path(path).open("rb") as file:
            # Asked of the open file, so that it cannot be exchanged between the check and the reading.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise refuse(
                    f"{path}: others can read this {what} (mode {mode:04o}); chmod it to 600, or make a new one if it "
                    "may have been copied"
                )
            return file.read(4097)
    except OSError as error:
        raise refuse(f"{path}: the {what} cannot be read ({error.strerror})") from None


def is_signed(message: bytes, signature: bytes, public: bytes) -> bool:
    """Whether the holder of this public key signed exactly these bytes."""
    try:
        _read_key(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=4096)
def _read_key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(maxsize=4096)
def fingerprint(public: bytes) -> str:
    """A public key as people compare it: eight groups of four letters."""
    letters = base64.b32encode(hashlib.sha256(public).digest()[:FINGERPRINT_BYTES]).decode()
    return _group(letters)


def _group(letters: str) -> str:
    return "-".join(letters[start : start + GROUP] for start in range(0, len(letters), GROUP))


def has_fingerprint(public: bytes, pinned: str) -> bool:
    """Whether a pinned text is this key's fingerprint, however it was spaced or capitalised when copied."""
    letters = "".join(pinned.split()).replace("-", "").upper()
    return letters == fingerprint(public).replace("-", "")


def read_fingerprint(text: str) -> str:
    """A fingerprint as a person wrote it down, in its usual form; MaskError where it is none."""
    letters = "".join(text.split()).replace("-", "").upper()
    strange = sorted(set(letters) - set(LETTERS))
    if len(letters) != FINGERPRINT_BYTES * 8 // 5 or strange:
        why = f"it has {', '.join(map(repr, strange))}" if strange else f"it has {len(letters)}"
        raise MaskError(
            f"{text!r} is not a fingerprint, which has 32 letters from A to Z and digits from 2 to 7 ({why}): have it "
            "read out again"
        )
    return _group(letters)


def statement(purpose: str, *parts: bytes) -> bytes:
    """Bytes to sign or hash: what they are for, then each part after its length, so that no two lists of
    parts and no two purposes ever give the same bytes."""
    frames = [_frame(purpose)]
    for part in parts:
        frames += (_LENGTH(len(part)), part)
    return b"".join(frames)


_LENGTH = struct.Struct("<Q").pack


@lru_cache(maxsize=256)
def _frame(purpose: str) -> bytes:
    named = purpose.encode()
    return _LENGTH(len(named)) + named
