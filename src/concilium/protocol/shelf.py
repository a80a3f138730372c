"""What a hospital works out once and keeps for itself, beside its ledger: `north.ledger.shelf/`.

Nothing on it leaves the hospital, and whoever may read it may as well read the patients' records: files are the
owner's. Without a ledger file it is kept in memory. It can be deleted at any time; what is missing is worked out again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from concilium.protocol.journal import open_for_owner

NAME = re.compile(r"[a-z]+-[0-9a-f]{64}")


class Shelf:
    """Bytes by name, such as `expert-` and a digest; a file that cannot be read or written is as if it were not."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: dict[str, bytes] = {}

    def find(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._kept.get(name)
        try:
            return self._place(name).read_bytes()
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Written beside its place and moved there whole."""
        if self.folder is None:
            self._kept[name] = content
            return
        place = self._place(name)
        partial = place.with_name(f"{place.name}.{os.getpid()}.part")
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(open_for_owner(partial, os.O_TRUNC), "wb") as file:
                file.write(content)
            partial.replace(place)
        except OSError:
            partial.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        assert self.folder is not None
        assert NAME.fullmatch(name), name
        return self.folder / name
