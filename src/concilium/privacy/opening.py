"""When a site may take its self-mask off: one question is opened once, for one set of participants.

Who is protected: each site, from a house that asks the same question in several attempts or with other
participants and compares the sums (two sums that differ by one site differ by its whole answer; two private
sums of one question carry two draws of noise for one charge). At what price: a site keeps its masked vector
and seed on disk until the study ends; an attempt that was never opened is void, costs nothing and tells
nothing, since its self-mask stays on. Assumption: what the site stored is not rolled back (the ledger's
head, echoed by the house, is what notices that). Reference: Bonawitz et al. 2017, CCS, section 6 (the self-
mask, and consistent answers against an active server).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from concilium.errors import MaskError


@dataclass(frozen=True)
class Attempt:
    """A site's own answer to one attempt of one question, as stored before it is sent.

    `content` and `participants` are digests; `opened` is the transcript the seed was revealed for, or None.
    """

    study: bytes
    content: bytes
    number: int
    label: bytes
    participants: bytes
    names: tuple[str, ...]
    seed: bytes = field(repr=False)
    vector: bytes = field(repr=False)
    opened: bytes | None = None


@dataclass(frozen=True)
class Opening:
    """That a question was opened here before: in which study, and for whom."""

    study: bytes
    participants: bytes
    names: tuple[str, ...]


class MaskStore(Protocol):
    """Where a site keeps its keys and attempts. Everything changes inside `transaction`, which joins the
    caller's own where one is open, so that a charge and an opening reach the disk together."""

    def transaction(self) -> AbstractContextManager[None]:
        """All changes inside, or none."""

    def enroll(self, study: bytes, key: bytes) -> None:
        """Keep the private key of a study."""

    def study_key(self, study: bytes) -> bytes | None:
        """The private key of a study; None where there is none (yet, or any more)."""

    def has_ended(self, study: bytes) -> bool:
        """Whether the study was ended here."""

    def latest(self, study: bytes, content: bytes) -> Attempt | None:
        """The last attempt of a question in a study."""

    def openings(self, content: bytes) -> list[Opening]:
        """Where a question was opened, in whatever study, ended or not."""

    def keep(self, attempt: Attempt) -> None:
        """Store an attempt; an earlier one of the same question in the same study is deleted."""

    def mark_opened(self, study: bytes, content: bytes, transcript: bytes) -> None:
        """The last attempt of this question is the one that was opened."""

    def end(self, study: bytes) -> None:
        """Delete the study's key, seeds and vectors; that it ended and what it opened is kept."""


def find_attempt(store: MaskStore, study: bytes, content: bytes, number: int, label: bytes) -> Attempt | None:
    """The stored answer to exactly this attempt; None where a new one may be made; MaskError where not."""
    before = store.latest(study, content)
    if before is None:
        return None
    if number == before.number:
        if label != before.label:
            raise MaskError(
                f"attempt {number} of this question was answered for other participants or other keys "
                f"({', '.join(before.names)}); ask it as attempt {number + 1}"
            )
        return before
    if before.opened is not None:
        raise MaskError(
            f"this question is already opened in attempt {before.number} and is opened once only; "
            f"ask for attempt {before.number} again, its answer is stored"
        )
    if number < before.number:
        raise MaskError(f"attempt {number} of this question is void since attempt {before.number} was asked")
    return None


def check_participants(store: MaskStore, content: bytes, participants: bytes, names: tuple[str, ...]) -> None:
    """MaskError if the question was ever opened here for other participants, in whatever study."""
    for opening in store.openings(content):
        if opening.participants != participants:
            differing = sorted(set(opening.names).symmetric_difference(names))
            whose = " and ".join(differing) if differing else "a site with a new identity"
            raise MaskError(
                f"this question was opened here for {', '.join(opening.names)} and is not opened for "
                f"{', '.join(names)}: the two sums would differ by the answer of {whose}"
            )


def open_attempt(store: MaskStore, attempt: Attempt, transcript: bytes) -> bytes:
    """The seed of an attempt, now opened for this transcript; MaskError if it was for another."""
    if attempt.opened is None:
        store.mark_opened(attempt.study, attempt.content, transcript)
    elif attempt.opened != transcript:
        raise MaskError(
            f"attempt {attempt.number} of this question was opened for other answers than those shown now; "
            "the first opening stands"
        )
    return attempt.seed
