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
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from concilium.errors import HouseError, KitError, MaskError, StudyError
from concilium.privacy.identity import Identity, has_fingerprint, read_fingerprint
from concilium.protocol.house import KnownSite
from concilium.protocol.terms import today
from concilium.study.sections import Text, read_columns, read_section
from concilium.study.work_in_progress import WorkInProgress, write_whole
from concilium.transports.flare.site_file import FILE, read_toml

KEPT_DAYS = 7
Fingerprint = Annotated[str, Meta(description="a fingerprint, such as ABCD-EFGH-...")]


class HouseFolder(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: where it keeps what lasts."""

    folder: Text = "../../house-state"


@dataclass(frozen=True)
class HouseFile:
    """`HouseFile.read(kit)`. `pins` are the fingerprints that the house believes, by site; those that are `revoked` it
    never believes again."""

    folder: Path
    pins: dict[str, str]
    revoked: tuple[str, ...] = ()

    @classmethod
    def read(cls, kit: Path) -> HouseFile:
        """The file of a kit; KitError says which key is wrong and how."""
        path = kit / FILE
        document = read_toml(path, ("house", "sites", "revoked"))
        try:
            section = read_section(path, "house", document, HouseFolder)
            pins = read_pins(path, "sites", document)
            revoked = set(read_pins(path, "revoked", document).values())
        except StudyError as error:
            raise KitError(str(error)) from None
        for site, pin in pins.items():
            if pin in revoked:
                raise KitError(
                    f"{path}: [sites] {site}: {pin} stands under [revoked]; enter its new fingerprint"
                )
        folder = (path.parent / section.folder).resolve()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KitError(f"{folder}: cannot be written ({error.strerror})") from None
        own = cls(folder, pins, tuple(sorted(revoked)))
        own._expect_pinned()
        return own

    def _expect_pinned(self) -> None:
        """Forget the identity of a site that the house pins by another one now, and not how far its ledger had come."""
        if not self.memory.exists():
            return
        try:
            known = msgspec.json.decode(self.memory.read_bytes(), type=dict[str, KnownSite])
            changed = {
                site: msgspec.structs.replace(said, identity="")
                for site, said in known.items()
                if site in self.pins and said.identity
                if not has_fingerprint(bytes.fromhex(said.identity), self.pins[site])
            }
        except (OSError, ValueError) as error:
            raise KitError(
                f"{self.memory}: this is not what a house remembers of its sites ({error})"
            ) from None
        if changed:
            write_whole(self.memory, msgspec.json.encode(known | changed))
            self.memory.chmod(0o600)

    @property
    def identity(self) -> Identity:
        """By which hospitals know this house, made on first use."""
        return Identity.at(self.folder / "house.identity")

    @property
    def memory(self) -> Path:
        return self.folder / "sites.json"

    @contextlib.contextmanager
    def take_up(self, ticket: str, days: int, resumed: bool = False) -> Iterator[WorkInProgress]:
        """The work of a study under way, or of a new one; HouseError where another job is at it.

        Protects: the hospitals' budgets. A study that is `resumed` must be known here, or it would be charged anew.
        """
        if not re.fullmatch("[0-9a-f]{32}", ticket):
            raise HouseError("a study is taken up by its ticket of 32 hexadecimal digits")
        self._clear()
        work = WorkInProgress(self.folder / "studies" / ticket)
        if resumed and not work.folder.is_dir():
            raise HouseError(
                "this house holds no work of the study that is to go on: it never began there, or its last day is "
                "over; submit it without --resume, which proposes it again, and hospitals charge it again"
            )
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


def read_pins(path: Path, section: str, document: dict[str, Any]) -> dict[str, str]:
    """The fingerprints of a section, each in its usual form; KitError names the one that is none."""
    pins = read_columns(path, section, document, Fingerprint)
    try:
        return {name: read_fingerprint(text) for name, text in pins.items()}
    except MaskError as error:
        raise KitError(f"{path}: [{section}]: {error}") from None


def keep_until(folder: Path, days: int) -> None:
    write_whole(folder / "until", (today() + timedelta(days=days)).isoformat().encode())
