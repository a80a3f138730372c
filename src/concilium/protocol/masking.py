"""The steps that set up and open masked rounds, and a site's memberships in masked studies.

The masked release (releases/masked.py) says when they are taken, protocol/membership.py what a site checks on the way.

The house's side (`MaskedStudy`) has the keys, and two exchanges for every sum. It sees each site's vector only under
masks; what it can compute from all it holds is the one sum per question (privacy/masks.py says under which
assumptions). Participants are fixed by the terms they agreed to.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MaskError, MessageError
from concilium.ledger.chain import Head
from concilium.ledger.ledger import Ledger
from concilium.ledger.mask_store import MOST_STUDIES, SqliteMaskStore, say_names
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity, fingerprint, statement
from concilium.privacy.manifest import Manifest, accept
from concilium.privacy.masks import LINK_BYTES, MaskedRound, MaskedVector, Seed, Shown
from concilium.privacy.shares import SMALLEST_VARIANCE, variance_within
from concilium.privacy.study_keys import Roll, StudyKey, Witness, call_roll, verify_study_keys
from concilium.protocol.membership import Membership
from concilium.protocol.messages import Envelope, decode, encode
from concilium.protocol.questions import UNDER_MASKS, Reply, Step, Summed
from concilium.protocol.sums import check_counts

if TYPE_CHECKING:
    from concilium.protocol.run import Run

FORGET = (
    "Nothing is added up with it until it puts its newest ledger back, or accepts this one and each of the others "
    "takes note (concilium ledger forget-peer)"
)


class Joined(Reply, frozen=True):
    """The site takes part; this is its key for the study."""

    key: StudyKey


class _Done(Reply, frozen=True):
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
    """The masked studies a site takes part in. `introduced` are peers whose identity an embedded house asserted."""

    def __init__(self, site: str, identity: Identity, policy: Policy, ledger: Ledger, records: str) -> None:
        self._site, self._identity, self._policy = site, identity, policy
        self._ledger, self._records = ledger, records
        self._store: SqliteMaskStore | None = None
        self._introduced: Mapping[str, str] = {}
        self._memberships: dict[str, Membership] = {}
        self._shown: dict[str, bytes] = {}  # which entry of our ledger each neighbour was shown last
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
                membership = self.at(study)
                membership.meet(
                    decode(template, Roll), partial(self._compare_ledgers, membership.manifest.fingerprints)
                )
            case End():
                self.at(study).forget()
                with self._lock:
                    self._memberships.pop(study, None)
            case _:
                raise MaskError(f"{step.kind!r} sets nothing up")
        return _Done()

    def check(self, manifest: Manifest) -> None:
        """MaskError unless we would take part with these participants: pinned all, and enough of them."""
        accept(
            manifest,
            self._site,
            self._identity.public,
            self._policy.peers or self._introduced,
            colluders=self._policy.colluders,
        )

    def join(self, study: str, manifest: Manifest) -> Joined:
        """Become (or become again) a member of a study, of which everything is in its terms: nothing of the house's
        choosing may answer, by a refusal, whether a count of ours is above it."""
        for name, identity in manifest.identities.items():
            if self._policy.revokes(identity):
                raise MaskError(
                    f"{name} takes part under {fingerprint(identity)}, which is revoked at {self._site}"
                )
        with self._lock:  # made for the first study: no other step comes before a site has joined
            store = self._store = self._store or self._ledger.mask_store()
        membership = Membership(
            manifest,
            self._site,
            self._identity,
            self._policy.peers or self._introduced,
            store,
            colluders=self._policy.colluders,
            witness=self._bear_witness(manifest),
            standing=self._ledger.standing,
            shown=lambda name: self._shown.get(manifest.fingerprints[name], b""),
        )
        with self._lock:
            self._memberships[study] = membership
            if len(self._memberships) > MOST_STUDIES:  # who comes back joins again, as after a restart
                del self._memberships[next(iter(self._memberships))]
        return Joined(membership.key)

    def _bear_witness(self, manifest: Manifest) -> Witness:
        """How far the ledgers of our neighbours had come when we last opened a sum with them: who shares masks with
        whom changes from study to study, so that in time each hospital is known to many."""
        remembered = self._ledger.peer_heads()
        others = [manifest.fingerprints[name] for name in manifest.graph.neighbours(self._site)]
        peers = {
            one: f"{remembered[one].count} {remembered[one].hash}" for one in others if one in remembered
        }
        return Witness(peers)

    def _compare_ledgers(self, names: Mapping[str, str], keys: Sequence[StudyKey]) -> dict[str, bytes]:
        """Which entry of our ledger each neighbour remembers; MaskError where one of them remembers what ours does not
        hold. The keys are those that their owners signed; `names` are the fingerprints of all."""
        own, held = names[self._site], {}
        for key in keys:
            entries, _, link = key.witness.peers.get(own, "").partition(" ")
            if key.name == self._site or not entries:
                continue
            if not (entries.isdecimal() and self._ledger.holds(Head(int(entries[:19]), link))):
                raise MaskError(
                    f"{key.name} remembers entry {entries[:19]} of this hospital's ledger, which does not hold it: an "
                    f"older copy was put in its place, or another ledger. {FORGET}"
                )
            held[key.name] = bytes.fromhex(link)[:LINK_BYTES]
        return held

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
        if not comparable:
            check_circle(self._policy, self._ledger, membership.manifest.names)
        return membership.recall(write_content(envelope.kind, envelope.body_digest), comparable=comparable)

    def open(self, study: str, step: Open, template: bytes, comparable: bool) -> Seed:
        """Take the site's own mask off, for what was charged when it was covered, and remember how far the ledgers of
        all neighbours have come; called inside a transaction.

        MaskError where one of them does not go on from what we remember: then there is no sum.
        """
        membership = self.at(study)
        if not comparable and not self._policy.other_circles:
            check_circle(self._policy, self._ledger, membership.manifest.names)
            self._ledger.remember_circle(self._records, membership.manifest.names)
        shown = decode(template, Shown)
        seed = membership.reveal(step.content, shown, charge_on_disk=True, comparable=comparable)
        by_name = {one.name: one for one in shown.commitments}  # checked: neighbours, and ourselves
        own = by_name.pop(self._site).standing
        is_ours = self._ledger.stood_at(own)  # the house may say anything of ourselves
        for name, one in by_name.items():
            known = membership.manifest.fingerprints[name]
            problem = self._ledger.follow_peer(known, one.standing, one.held.get(self._site, b""))
            if problem is not None:
                raise MaskError(f"{self._site} opens nothing with {name}: {problem}. {FORGET}")
            if is_ours:
                self._shown[known] = own.head[:LINK_BYTES]
        return seed


def check_circle(policy: Policy, ledger: Ledger, names: tuple[str, ...]) -> None:
    """MaskError where sums were opened with other hospitals, with what can be done about it now.

    Protects: each hospital that is in one circle and not in the other, from a house that subtracts the two sums.
    """
    if policy.other_circles:
        return
    # Whatever the records were then: a table that changes by a patient a day hides no other hospital's answer.
    for before in ledger.circles():
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


ASSERTED = (
    "the house asserted who each site is, and nobody verified it: this is a simulation. Between real hospitals "
    "each site pins the fingerprints of its peers in its own policy"
)


class MaskedStudy:
    """Set up once per run (again after a restart: sites that were restarted become members anew)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._manifest = run.begin().manifest
        joined = run.gather(Join(), live=True)
        keys = [decode(data, Joined).key for data in joined.values()]
        verify_study_keys(self._manifest, keys)
        rolls = call_roll(self._manifest, keys)
        self._roll = rolls[self._manifest.names[0]].root
        run.gather(Meet(), {site: encode(roll) for site, roll in rolls.items()}, live=True)

    @property
    def least_variance(self) -> Fraction:
        """The least noise of a private sum: a share below what adds up to a Gaussian would be refused."""
        return Fraction(SMALLEST_VARIANCE * (len(self._manifest.participants) - self._manifest.colluders))

    @property
    def noise_factor(self) -> Fraction:
        """How much more noise a private sum has than was asked for: shares are as if the colluders added none."""
        sites = len(self._manifest.participants)
        return Fraction(sites, sites - self._manifest.colluders)

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        """The noise of a private sum that costs rho, or less where even the least noise is more than that."""
        return max(variance_within(rho, squared_sensitivity), self.least_variance)

    def add_up(self, question: Summed, release: str) -> NDArray[np.int64]:
        """The sum over all participants of their answers to one question."""
        opening = Open(kind_asked=question.kind, body=encode(question))
        covered = self._run.gather(question)
        vectors = [decode(answer, Covered).masked for answer in covered.values()]
        round_ = MaskedRound(self._manifest, self._roll, opening.content)
        commitments = round_.commitments(vectors)
        shown = {site: encode(part) for site, part in round_.show(commitments).items()}
        opened = self._run.gather(opening, shown, release=release)
        total = round_.unmask(vectors, [decode(answer, Opened).seed for answer in opened.values()])
        if total.size != question.numbers:
            raise HouseError(
                f"the sites added up {total.size} numbers where {question.numbers} were asked for"
            )
        sums = total.view(np.int64).reshape(question.shape)
        try:
            check_counts(sums, question)
        except MessageError as error:
            raise HouseError(f"the sites added up what cannot be: {error}") from None
        return sums

    def end(self) -> list[str]:
        """Have every site forget its keys; what the card must say of how the masks were set up."""
        with suppress(HouseError):
            self._run.gather(End(), live=True)
        return [ASSERTED] if self._run.asserted else []
