"""What a house needs of a transport: for every site asked, the bytes it sent or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from concilium.privacy.identity import Identity


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
