"""The house's own file, `local/concilium.toml` of its kit, and its folder: identity, memory, and studies under way.

A study under way is kept by its ticket, a number that whoever submits it draws: it holds the journal of finished rounds
(journal.py: under `exact`, each hospital's numbers), readable by the owner only, until it has been finished for a week
or nothing can be answered in it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from concilium.errors import HouseError, KitError, StudyError
from concilium.federation.terms import today
from concilium.flare.site_file import FILE, read_toml
from concilium.privacy.identity import Identity
from concilium.study.sections import Text, read_columns, read_section
from concilium.study.work_in_progress import WorkInProgress, write_whole

KEPT_DAYS = 7
Fingerprint = Annotated[str, Meta(min_length=32, description="a fingerprint, such as ABCD-EFGH-...")]


class HouseFolder(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: where it keeps what lasts."""

    folder: Text = "../../house-state"


@dataclass(frozen=True)
class HouseFile:
    """`HouseFile.read(kit)`. `pins` are the fingerprints that the house believes, by site."""

    folder: Path
    pins: dict[str, str]

    @classmethod
    def read(cls, kit: Path) -> HouseFile:
        """The file of a kit; KitError says which key is wrong and how."""
        path = kit / FILE
        document = read_toml(path, ("house", "sites"))
        try:
            section = read_section(path, "house", document, HouseFolder)
            pins = read_columns(path, "sites", document, Fingerprint)
        except StudyError as error:
            raise KitError(str(error)) from None
        folder = (path.parent / section.folder).resolve()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KitError(f"{folder}: cannot be written ({error.strerror})") from None
        return cls(folder, pins)

    @property
    def identity(self) -> Identity:
        """By which hospitals know this house, made on first use."""
        return Identity.at(self.folder / "house.identity")

    @property
    def memory(self) -> Path:
        return self.folder / "sites.json"

    @contextlib.contextmanager
    def take_up(self, ticket: str, days: int) -> Iterator[WorkInProgress]:
        """The work of a study under way, or of a new one; HouseError where another job is at it."""
        if not re.fullmatch("[0-9a-f]{32}", ticket):
            raise HouseError("a study is taken up by its ticket of 32 hexadecimal digits")
        self._clear()
        work = WorkInProgress(self.folder / "studies" / ticket)
        work.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(work.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HouseError(
                    "this study is still under way in another job; wait for it to end (concilium flare status), or "
                    "have it ended there"
                ) from None
            keep_until(work.folder, days + 1)
            yield work
            keep_until(work.folder, KEPT_DAYS)
        finally:
            os.close(lock)

    def _clear(self) -> None:
        """Delete what nobody will take up any more."""
        for folder in (self.folder / "studies").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                if date.fromisoformat((folder / "until").read_text()) < today():
                    shutil.rmtree(folder)


def keep_until(folder: Path, days: int) -> None:
    write_whole(folder / "until", (today() + timedelta(days=days)).isoformat().encode())
