"""The questions that set up and open masked rounds, and a site's seats in masked studies.

Under `masked` and `private` a statistic leaves a site in two steps: covered (its vector under masks, which tells
nothing and is not charged), and opened (the seed of the site's own mask, charged in the same transaction, once all
participants have committed to their vectors). Who is protected, from the house and up to `policy.colluders` other
sites: under `masked` a hospital's own numbers, and no patient; under `private` every patient too, at the price that
is charged, because each site adds its share of Gaussian noise before it masks (privacy/shares.py). The protocol is
in privacy/seat.py.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MaskError
from concilium.federation.messages import Envelope, Release, decode
from concilium.federation.questions import Gathered, Statistic
from concilium.policy.policy import Policy
from concilium.privacy.fixed_point import HALF_RING
from concilium.privacy.identity import Identity, statement
from concilium.privacy.ledger import Ledger
from concilium.privacy.manifest import read_manifest
from concilium.privacy.mask_store import SqliteMaskStore
from concilium.privacy.masks import Commitment, Masked, Seed
from concilium.privacy.seat import Seat
from concilium.privacy.shares import draw_gaussian_share, price_gaussian_shares
from concilium.privacy.study_keys import StudyKey

CIRCLES = """CREATE TABLE IF NOT EXISTS mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID"""
RELEASES = frozenset({"masked", "private"})


class Joined(Gathered, frozen=True, forbid_unknown_fields=True):
    """The site takes part; this is its key for the study."""

    key: StudyKey


class Done(Gathered, frozen=True, forbid_unknown_fields=True):
    """Nothing but that it was done."""


class Covered(Gathered, frozen=True, forbid_unknown_fields=True):
    """A vector under masks."""

    masked: Masked


class Opened(Gathered, frozen=True, forbid_unknown_fields=True):
    """The seed of the site's own mask for one vector."""

    seed: Seed


class Greeting(Gathered, frozen=True, forbid_unknown_fields=True):
    """What a manifest must say of this site; its identity is in the answer around it."""

    reveal_on_dropout: bool
    colluders: int


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who are you, and may the others go on without you when you are lost?"""

    releases: ClassVar[frozenset[str]] = RELEASES

    def check(self, release: str) -> None:
        """Nothing to check."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take part in the study of this manifest."""

    releases: ClassVar[frozenset[str]] = RELEASES
    manifest: bytes

    def check(self, release: str) -> None:
        read_manifest(self.manifest)


class Meet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These are the keys of all participants."""

    releases: ClassVar[frozenset[str]] = RELEASES
    keys: list[StudyKey]

    def check(self, release: str) -> None:
        """Nothing to check before the seat does."""


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All participants have answered the question of this content (the template holds their hashes): open yours."""

    releases: ClassVar[frozenset[str]] = RELEASES
    kind: str
    body: bytes
    attempt: int

    @cached_property
    def content(self) -> bytes:
        return content(self.kind, hashlib.sha256(self.body).digest())

    def check(self, release: str) -> None:
        """Nothing to check before the seat does."""


class Commitments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every participant committed to, with the tags that one site can check."""

    commitments: list[Commitment]


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The study is over: forget its keys."""

    releases: ClassVar[frozenset[str]] = RELEASES

    def check(self, release: str) -> None:
        """Nothing to check."""


class Seats:
    """The masked studies a site takes part in. `introduced` are peers that an embedded house vouched for."""

    def __init__(self, site: str, identity: Identity, policy: Policy, ledger: Ledger, records: str) -> None:
        self._site, self._identity, self._policy = site, identity, policy
        self._ledger, self._records = ledger, records
        self._store: SqliteMaskStore | None = None
        self._introduced: Mapping[str, str] = {}
        self._seats: dict[str, Seat] = {}
        self._lock = threading.Lock()

    def introduce(self, peers: Mapping[str, str]) -> bool:
        """Pin these peers for want of own ones; False where the policy pins its own, which then stand."""
        if self._policy.peers:
            return False
        self._introduced = peers
        return True

    def set_up(self, study: str, question: Hello | Join | Meet | End) -> Gathered:
        """The steps of a masked study that tell nothing about patients."""
        match question:
            case Hello():
                return Greeting(self._policy.reveal_on_dropout, self._policy.colluders)
            case Join(manifest):
                return Joined(self._join(study, manifest).key)
            case Meet(keys):
                self.at(study).meet(keys)
            case End():
                self.at(study).forget()
        return Done()

    def _join(self, study: str, manifest: bytes) -> Seat:
        """Take (or take again) the seat of a study."""
        opened = read_manifest(manifest)
        if opened.study_id.hex() != study:
            raise MaskError("the manifest is not that of the study it came with")
        if opened.largest != fitting(len(opened.participants)):
            # A limit of the house's choosing would answer, by a refusal, whether a count of ours is above it.
            raise MaskError(
                "the manifest sets a limit of its own for what a site may enter; the ring sets that"
            )
        seat = Seat(
            opened,
            self._site,
            self._identity,
            self._policy.peers or self._introduced,
            self._open_store(),
            colluders=self._policy.colluders,
            reveal_on_dropout=self._policy.reveal_on_dropout,
        )
        with self._lock:
            self._seats[study] = seat
        return seat

    def _open_store(self) -> SqliteMaskStore:
        """Where masked studies are kept, made for the first of them: no other step comes before a site has joined."""
        with self._lock:
            if self._store is None:
                with self._ledger.sharing() as connection:
                    connection.execute(CIRCLES)
                self._store = self._ledger.mask_store()
            return self._store

    def at(self, study: str) -> Seat:
        with self._lock:
            seat = self._seats.get(study)
        if seat is None:
            raise MaskError(f"{self._site} has not joined this study (or was restarted since): join first")
        return seat

    def covered(self, envelope: Envelope) -> Masked | None:
        """The stored answer to this attempt of a statistic, if it was answered before.

        MaskError where opening it would let sums over two circles of hospitals be compared: their difference is
        the answer of whoever is in one and not in the other. Under `private` the noise covers that.
        """
        if envelope.release == "masked" and not self._policy.other_circles:
            self._check_circle(self.at(envelope.study).manifest.names)
        asked = content(envelope.kind, envelope.body_digest)
        return self.at(envelope.study).recall(
            asked, envelope.attempt, comparable=envelope.release == "private"
        )

    def cover(self, envelope: Envelope, question: Statistic, counts: NDArray[np.unsignedinteger]) -> Masked:
        """A statistic under masks, stored before it is returned; a private one with this site's share of the
        noise, drawn once: a repeated question gets the stored vector."""
        seat = self.at(envelope.study)
        vector = counts.astype(np.int64).reshape(-1)
        if envelope.release == "private":
            manifest = seat.manifest
            sites = len(manifest.participants)
            vector = vector + draw_gaussian_share(vector.size, question.noise, sites, manifest.colluders)
            vector = np.clip(vector, -manifest.largest, manifest.largest)  # a refusal would tell
        elif question.largest > seat.manifest.largest:
            # By what could be, not by what is: a refusal of the numbers themselves would tell how large they are.
            raise MaskError(
                f"this question may have numbers of up to {question.largest}, and sums over so many sites hold "
                f"{seat.manifest.largest} of each: ask with fewer binary places"
            )
        return seat.mask(
            content(envelope.kind, envelope.body_digest),
            envelope.attempt,
            vector.view(np.uint64),
            comparable=envelope.release == "private",
        )

    def price(self, study: str, question: Statistic) -> Fraction:
        """What opening a private statistic costs: rho, from the question and the manifest alone."""
        manifest = self.at(study).manifest
        return price_gaussian_shares(
            question.sensitivity_squared,
            question.noise,
            question.numbers,
            len(manifest.participants),
            manifest.colluders,
        )

    def length(self, study: str, question: Open, release: Release) -> int:
        """How many numbers opening this answer adds to the sum."""
        found = self.at(study).measure(question.content, question.attempt, comparable=release == "private")
        if found is None:
            raise MaskError(f"{self._site} has not answered this question yet: ask it first")
        return found

    def open(self, study: str, question: Open, template: bytes, release: Release) -> Seed:
        """Take the site's own mask off; called inside the transaction that enters the charge."""
        shown = decode(template, Commitments).commitments
        asked, private = question.content, release == "private"
        if not private and not self._policy.other_circles:
            self._check_circle(self.at(study).manifest.names)
            self._remember_circle(self.at(study).manifest.names)
        return self.at(study).reveal(asked, question.attempt, shown, charge_on_disk=True, comparable=private)

    def _check_circle(self, names: tuple[str, ...]) -> None:
        # Whatever the records were then: a table that changes by a patient a day hides no other hospital's answer.
        with self._ledger.sharing() as connection:
            rows = connection.execute("SELECT DISTINCT names FROM mask_circle").fetchall()
        for (before,) in rows:
            if before != json.dumps(names):
                raise MaskError(
                    f"{self._site} has opened masked sums with {', '.join(json.loads(before))}, and opens none with "
                    "another circle of hospitals: the sums would differ by the answers of those who are in one only"
                )

    def _remember_circle(self, names: tuple[str, ...]) -> None:
        with self._ledger.sharing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO mask_circle VALUES (?, ?)", (self._records, json.dumps(names))
            )


def fitting(participants: int) -> int:
    """The largest number that each of so many sites may enter without the sum wrapping round."""
    return (HALF_RING - 1) // participants


def content(kind: str, body_digest: bytes) -> bytes:
    """Everything that changes what a site computes: the same for all sites, or they would add up other things."""
    return statement("concilium/question@2", kind.encode(), body_digest)
