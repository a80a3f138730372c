"""A sharing of codes that a steward signs: whether the copy may go to whoever asked for it.

The signature is the hospital's, over the page that was read and the copy that it is about, each by its hash. It shows
that this person decided this on that day, to whoever has the hospital's key. It does not move the copy: whoever sends
it looks whether it is signed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concilium.errors import ConciliumError, LedgerError, MaskError
from concilium.ledger.ledger import Ledger
from concilium.privacy.identity import Identity, is_signed, statement
from concilium.study.results import write_whole

MOST_WORDS = 500
RELEASED, WITHHELD = "released", "withheld"


@dataclass(frozen=True)
class _SharingSignature:
    """Who decided what, when and why, about which page and copy (SHA-256), signed by the hospital."""

    decision: str
    who: str
    why: str
    when: str
    page: str
    copy: str
    signature: str

    @property
    def message(self) -> bytes:
        parts = (self.decision, self.who, self.why, self.when, self.page, self.copy)
        return statement("concilium/sharing-page@1", *(part.encode() for part in parts))

    def holds(self, public: bytes) -> bool:
        try:
            return is_signed(self.message, bytes.fromhex(self.signature), public)
        except ValueError:
            return False


@dataclass(frozen=True)
class SharingView:
    """A page to sign: the copy it is about, whether that is as it was written, and who signed; the ledger it was
    charged to, where that is in the folder."""

    page: Path
    facts: dict[str, Any]
    copy: Path
    copy_is_here: bool
    signed: tuple[tuple[_SharingSignature, bool], ...]
    ledger: Path | None


def look_at_sharing(page: Path, ledgers: dict[str, Path]) -> SharingView:
    facts = json.loads(page.with_suffix(".json").read_bytes())
    copy = page.parent / Path(str(facts["file"].get("name", ""))).name
    ledger = _find_ledger(str(facts["study"]), page, ledgers)
    public = None if ledger is None else _read_public(ledger)
    now = _digest(page), _digest(copy)
    signed = tuple(
        (one, public is not None and one.holds(public) and (one.page, one.copy) == now)
        for one in _read_signatures(page)
    )
    written = str(facts["file"].get("sha256", ""))
    return SharingView(page, facts, copy, copy.is_file() and now[1] == written, signed, ledger)


def sign_sharing(view: SharingView, decision: str, who: str, why: str) -> None:
    """Add a signed decision beside the page; ConciliumError where it cannot be signed."""
    who, why = who.strip(), why.strip()
    if decision not in (RELEASED, WITHHELD):
        raise LedgerError("this form says no decision")
    if not (who and why and f"{who}{why}".isprintable() and len(who + why) <= MOST_WORDS):
        raise LedgerError("who signs, and why, are each a line of printable characters")
    if decision == RELEASED and not view.copy_is_here:
        raise LedgerError(
            f"{view.copy.name} is not the copy that this page is about, so it cannot be signed for"
        )
    if view.ledger is None:
        raise LedgerError(
            "the ledger that this sharing was charged to is not in this folder, nor is its identity"
        )
    try:
        identity = Identity.load(f"{view.ledger}.identity")
    except MaskError:
        raise LedgerError(
            "the hospital's identity is not beside its ledger here, so nothing can be signed"
        ) from None
    when = datetime.now(UTC).isoformat(timespec="seconds")
    unsigned = _SharingSignature(decision, who, why, when, _digest(view.page), _digest(view.copy), "")
    signature = _SharingSignature(**{**asdict(unsigned), "signature": identity.sign(unsigned.message).hex()})
    listed = [asdict(one) for one in [*_read_signatures(view.page), signature]]
    write_whole(_place(view.page), json.dumps(listed, indent=1, ensure_ascii=False).encode())


def _place(page: Path) -> Path:
    return page.with_suffix(".signed.json")


def _read_signatures(page: Path) -> list[_SharingSignature]:
    try:
        return [_SharingSignature(**one) for one in json.loads(_place(page).read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise LedgerError(f"{_place(page).name}: is no file of signatures") from None


def _find_ledger(study: str, page: Path, ledgers: dict[str, Path]) -> Path | None:
    """The ledger that knows the study, those beside the page first."""
    for path in sorted(ledgers.values(), key=lambda one: one.parent != page.parent):
        try:
            with Ledger.open_readonly(path) as ledger:
                ledger.studies.get(study)
                return path
        except ConciliumError:
            continue
    return None


def _read_public(ledger: Path) -> bytes | None:
    try:
        return Identity.load(f"{ledger}.identity").public
    except MaskError:
        return None


def _digest(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
