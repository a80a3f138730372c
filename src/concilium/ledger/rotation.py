"""Rotation: a new identity for a hospital or a house, its file and its ledger changed together.

Who is protected: hospitals and house, from whoever may have copied the old key. At what price: peers and house pin the
new fingerprint and revoke the old one, by hand (docs/keys.md). What stays: the ledger with all that it remembers, what
people decided, and the lasting secrets (who is held out). A process that is killed on the way leaves `FILE.next`, and
the same command ends what it began. Assumption: fingerprints are told by a way that the house does not control.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from concilium.errors import MaskError
from concilium.ledger.file import sync_folder
from concilium.ledger.ledger import Ledger
from concilium.privacy import randomness
from concilium.privacy.identity import Identity


@dataclass(frozen=True)
class _Rotation:
    """The fingerprints before and after, and where the old file lies now."""

    old: str
    new: str
    aside: Path


def rotate_identity(file: Path, ledger: Path | None, reason: str) -> _Rotation:
    """Give the holder of an identity file a new one. With a ledger it is a hospital's, and entered there."""
    old = Identity.load(file)
    coming = file.with_name(f"{file.name}.next")
    aside = file.with_name(f"{file.name}.{old.fingerprint}.old")
    try:
        if not coming.exists():
            part = file.with_name(f"{file.name}.{randomness.draw_bytes(8).hex()}.part")
            old.rotate().save(part)
            part.rename(coming)
            sync_folder(file.parent)
        new = Identity.load(coming)
        if ledger is not None:
            with Ledger(ledger) as book:
                book.replace_identity(old, new, reason)
        with suppress(FileExistsError):
            os.link(file, aside)
        coming.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise MaskError(f"{file}: cannot be rotated ({error.strerror})") from None
    return _Rotation(old.fingerprint, new.fingerprint, aside)
