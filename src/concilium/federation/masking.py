"""The steps that set up and open masked rounds, and a site's memberships in masked studies.

The masked release (releases/masked.py) says when they are taken, privacy/membership.py what a site checks on the way.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MaskError
from concilium.federation.messages import Envelope, decode
from concilium.federation.questions import Reply, Step
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity, fingerprint, statement
from concilium.privacy.ledger import Head, Ledger
from concilium.privacy.manifest import Manifest
from concilium.privacy.mask_store import MOST_STUDIES, SqliteMaskStore, say_names
from concilium.privacy.masks import WIRE, MaskedVector, Seed, Shown
from concilium.privacy.membership import Membership
from concilium.privacy.study_keys import Roll, StudyKey, Witness

UNDER_MASKS = frozenset({"masked", "private"})


class Joined(Reply, frozen=True):
    """The site takes part; this is its key for the study."""

    key: StudyKey


class Done(Reply, frozen=True):
    """Nothing but that it was done."""


class Covered(Reply, frozen=True):
    """A vector under masks."""

    masked: MaskedVector


class Opened(Reply, frozen=True):
    """The seed of the site's own mask for one vector."""

    seed: Seed


class Greeting(Reply, frozen=True):
    """What a manifest must say of this site; its identity is in the answer around it. A region names those whom it
    passes messages on to, and takes no part itself."""

    colluders: int
    below: tuple[str, ...] = ()


class Hello(Step, frozen=True, kw_only=True):
    """Who are you, and how many colluding sites do you want tolerated?"""

    kind: ClassVar[str] = "mask.hello"
    before_study: ClassVar[bool] = True
    releases: ClassVar[frozenset[str]] = UNDER_MASKS


class Join(Step, frozen=True, kw_only=True):
    """Take part in the study: its manifest follows from its terms."""

    kind: ClassVar[str] = "mask.join"
    releases: ClassVar[frozenset[str]] = UNDER_MASKS


class Meet(Step, frozen=True, kw_only=True):
    """All participants have joined (the template holds the keys of your neighbours): agree on masks with them."""

    kind: ClassVar[str] = "mask.meet"
    releases: ClassVar[frozenset[str]] = UNDER_MASKS


class Open(Step, frozen=True, kw_only=True, dict=True):
    """All participants have answered the question of this content (the template holds hashes of it): open yours."""

    kind: ClassVar[str] = "mask.open"
    releases: ClassVar[frozenset[str]] = UNDER_MASKS

    kind_asked: str
    body: bytes

    @cached_property
    def content(self) -> bytes:
        return write_content(self.kind_asked, hashlib.sha256(self.body).digest())


class End(Step, frozen=True, kw_only=True):
    """The study is over: forget its keys."""

    kind: ClassVar[str] = "mask.end"
    releases: ClassVar[frozenset[str]] = UNDER_MASKS


class Memberships:
    """The masked studies a site takes part in. `introduced` are peers that an embedded house vouched for."""

    def __init__(self, site: str, identity: Identity, policy: Policy, ledger: Ledger, records: str) -> None:
        self._site, self._identity, self._policy = site, identity, policy
        self._ledger, self._records = ledger, records
        self._store: SqliteMaskStore | None = None
        self._introduced: Mapping[str, str] = {}
        self._memberships: dict[str, Membership] = {}
        self._lock = threading.Lock()

    def introduce(self, peers: Mapping[str, str]) -> bool:
        """Pin these peers for want of own ones; False where the policy pins its own, which then stand."""
        if self._policy.peers:
            return False
        self._introduced = peers
        return True

    def set_up(self, study: str, step: Step, template: bytes) -> Reply:
        """The steps of a masked study that tell nothing about patients."""
        match step:
            case Hello():
                return Greeting(self._policy.colluders)
            case Meet():
                roll = decode(template, Roll)
                self.at(study).meet(roll)
                self._compare_ledgers(self.at(study).manifest, roll.keys)
            case End():
                self.at(study).forget()
                with self._lock:
                    self._memberships.pop(study, None)
            case _:
                raise MaskError(f"{step.kind!r} sets nothing up")
        return Done()

    def join(self, study: str, manifest: Manifest) -> Joined:
        """Become (or become again) a member of a study, of which everything is in its terms: nothing of the house's
        choosing may answer, by a refusal, whether a count of ours is above it."""
        membership = Membership(
            manifest,
            self._site,
            self._identity,
            self._policy.peers or self._introduced,
            self._open_store(),
            colluders=self._policy.colluders,
            witness=self._bear_witness(manifest),
        )
        with self._lock:
            self._memberships[study] = membership
            if len(self._memberships) > MOST_STUDIES:  # who comes back joins again, as after a restart
                del self._memberships[next(iter(self._memberships))]
        return Joined(membership.key)

    def _bear_witness(self, manifest: Manifest) -> Witness:
        """How far our ledger has come, and how far those of our neighbours had when we last met: who shares masks with
        whom changes from study to study, so that in time each hospital is known to many."""
        head, remembered = self._ledger.head(), self._ledger.peer_heads()
        others = [manifest.fingerprints[name] for name in manifest.graph.neighbours(self._site)]
        peers = {
            one: f"{remembered[one].count} {remembered[one].hash}" for one in others if one in remembered
        }
        return Witness(head.count, head.hash, peers)

    def _compare_ledgers(self, manifest: Manifest, keys: Sequence[StudyKey]) -> None:
        """Remember how far the others' ledgers have come; MaskError where one of them remembers what ours does not
        hold, or shows another ledger than before. The keys are those that their owners signed."""
        own, before = fingerprint(self._identity.public), self._ledger.peer_heads()
        for key in keys:
            if key.name == self._site:
                continue
            entries, _, link = key.witness.peers.get(own, "").partition(" ")
            if entries and not (entries.isdecimal() and self._ledger.holds(Head(int(entries[:19]), link))):
                raise MaskError(
                    f"{key.name} remembers entry {entries[:19]} of this hospital's ledger, which does not hold it: an "
                    "older copy was put in its place, or another ledger; nothing is answered from it"
                )
            name = manifest.fingerprints[key.name]
            head = Head(key.witness.entries, key.witness.head)
            last = before.get(name)
            if last is not None and last.count == head.count and last.hash != head.hash:
                raise MaskError(
                    f"{key.name} shows another ledger than before: its entry {head.count} has changed"
                )
            if head.hash and (last is None or last.count < head.count):
                self._ledger.remember_peer_head(name, head)

    def _open_store(self) -> SqliteMaskStore:
        """Where masked studies are kept, made for the first of them: no other step comes before a site has joined."""
        with self._lock:
            if self._store is None:
                self._store = self._ledger.mask_store()
            return self._store

    def at(self, study: str) -> Membership:
        with self._lock:
            membership = self._memberships.get(study)
        if membership is None:
            raise MaskError(f"{self._site} has not joined this study (or was restarted since): join first")
        return membership

    def recall(self, envelope: Envelope, comparable: bool) -> MaskedVector | None:
        """The stored answer to a statistic, if it was answered before.

        MaskError where opening it would let sums over two circles of hospitals be compared: their difference is
        the answer of whoever is in one and not in the other. Where sums are `comparable` the noise covers that.
        """
        membership = self.at(envelope.study)
        if not comparable and not self._policy.other_circles:
            self._check_circle(membership.manifest.names)
        return membership.recall(write_content(envelope.kind, envelope.body_digest), comparable=comparable)

    def cover(self, envelope: Envelope, words: NDArray[np.int64], comparable: bool) -> MaskedVector:
        """A statistic under masks, stored before it is returned."""
        content = write_content(envelope.kind, envelope.body_digest)
        return self.at(envelope.study).mask(content, words.view(np.uint64), comparable=comparable)

    def count_numbers(self, study: str, step: Open) -> int:
        """How many numbers opening this answer adds to the sum."""
        size = self.at(study).measure(step.content)
        if size is None:
            raise MaskError(f"{self._site} has not answered this question yet: ask it first")
        return size // WIRE.itemsize

    def open(self, study: str, step: Open, template: bytes, comparable: bool) -> Seed:
        """Take the site's own mask off; called inside the transaction that enters the charge."""
        membership = self.at(study)
        if not comparable and not self._policy.other_circles:
            self._check_circle(membership.manifest.names)
            self._ledger.remember_circle(self._records, membership.manifest.names)
        shown = decode(template, Shown)
        return membership.reveal(step.content, shown, charge_on_disk=True, comparable=comparable)

    def _check_circle(self, names: tuple[str, ...]) -> None:
        """MaskError where sums were opened with other hospitals, with what can be done about it now.

        Protects: each hospital that is in one circle and not in the other, from a house that subtracts the two sums.
        """
        # Whatever the records were then: a table that changes by a patient a day hides no other hospital's answer.
        for before in self._ledger.circles():
            if before != names:
                raise MaskError(
                    f"this hospital has opened masked sums with {say_names(before)}, and opens none with another "
                    "circle of hospitals: two sums would differ by the answers of those who are in one only. What "
                    "works now: a masked study with those same hospitals, or release = 'private' with any. A steward "
                    "who accepts that risk for all of them sets other_circles = true under [release] of the policy; "
                    "a question that was opened before stays with its circle even then"
                )


def write_content(kind: str, body_digest: bytes) -> bytes:
    """Everything that changes what a site computes: the same for all sites, or they would add up other things."""
    return statement("concilium/question@2", kind.encode(), body_digest)
