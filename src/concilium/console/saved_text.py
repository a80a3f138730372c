"""Text files that people change on a page: never over what somebody else has saved meanwhile."""

from __future__ import annotations

import hashlib
from pathlib import Path

from concilium.errors import ConciliumError
from concilium.study.results import write_whole


class SavedMeanwhile(ConciliumError):
    """Somebody else saved the file after this text was opened."""


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def digest_text(text: str) -> str:
    """By what a page knows which text it was opened with."""
    return hashlib.sha256(text.encode()).hexdigest()


def save_text(path: Path, text: str, opened: str) -> None:
    """Write a text to its file, all or nothing; SavedMeanwhile where the file is not the one that was opened."""
    before = read_text(path)
    if opened != digest_text(before):
        raise SavedMeanwhile(
            f"{path.name} was changed since you opened it, so it was not written over. Your text is below. Open the "
            "page again to see the other."
        )
    if text != before:
        write_whole(path, text.encode())
