"""The manifest of a masked study: who takes part, under which key, how many of them may collude, and the
ring.

Who is protected: each site, from a house that adds puppets of its own, leaves sites out or lowers the
number of tolerated colluders. At what price: a study is fixed before it starts; changing anything is a new
study. Assumption: the site's own peers (name and fingerprint) were pinned out of band. What is signed later
(study_keys.py) is the hash of these bytes, so a site that signs has agreed to all of it, and two sites that
were shown different manifests share no key; who shares a mask with whom follows from it.
Reference: Bonawitz et al. 2017, CCS, sections 6 and 7.

Who shares a mask with whom: each site with its nearest on a circle, so many that no colluders split the rest.

Claim. What a house and the sites that side with it can compute from everything they are sent, for one question, are
sums over the connected parts that the other, honest sites form in this graph. The graph stays in one part whoever of
its sites are taken away, as long as they are fewer than its degree; the degree is above t. So they get the sum over
all honest sites or nothing, as if every pair shared a mask. The argument:

- An honest site opens one vector for a question in a study, under one label (membership.py, mask_store.py). A stream
  between two honest sites is in what the one opens and, with the other sign, in what the other opens under the same
  label, and nowhere else; it looks uniform to everybody else. A combination of opened vectors in which the two do not
  have the same weight therefore says nothing: also where the other opened nothing, or under another label because it
  was shown other keys. So the weights are equal along every edge between honest sites, hence on every connected part.
- Sites stand on a circle, and each shares a mask with the `degree / 2` next ones on either side. To part two sites,
  all of `degree / 2` sites side by side must be taken away on both ways round: that takes `degree` of them at least.

Nothing here rests on chance. The places follow from a hash of the whole manifest, all identities and t among it; but
a house may compose as many manifests as it likes (another nonce, another purpose), and take the one whose places suit
it. Fewer colluders than the degree gain nothing by that, wherever they stand. From so many on a house that searches
can have them stand around one hospital, and the graph is worse than a complete one: this is why the degree is 2 (t +
1) + log2 n and not t + 1, and why t is what each hospital says it must be. Puppets of the house are not among the
participants: each of these is pinned by every site, neighbour or not (manifest.py).

What a site checks of all others, and why its neighbours are enough: section 0.7 of docs/methods.md, and
membership.py. References: Bell, Bonawitz, Gascon, Lepoint, Raykova 2020, "Secure single-server aggregation with
(poly)logarithmic overhead", CCS (a random graph; here one that needs no luck); Harary 1962 (the connectivity of such
circles).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

import msgspec

from concilium.errors import MaskError, nearest
from concilium.privacy import randomness
from concilium.privacy.identity import fingerprint, has_fingerprint, statement
from concilium.privacy.shares import HALF_RING


def _choose_degree(sites: int, colluders: int) -> int:
    """With how many others each site shares a mask: 2 (t + 1) + log2 n, rounded up to an even number, or all."""
    degree = 2 * (colluders + 1) + (sites - 1).bit_length()
    return min(degree + degree % 2, sites - 1)


class _MaskGraph:
    """`_MaskGraph(study_id, {name: identity, ...}, degree)`: the circle of a study's participants."""

    def __init__(self, study_id: bytes, identities: Mapping[str, bytes], degree: int) -> None:
        seats = {
            name: hashlib.sha256(statement("concilium/place@1", study_id, name.encode(), key)).digest()
            for name, key in identities.items()
        }
        self.order = tuple(sorted(seats, key=seats.__getitem__))
        self.degree = degree
        self.is_complete = degree >= len(self.order) - 1
        self.places = {name: place for place, name in enumerate(self.order)}

    def neighbours(self, name: str) -> tuple[str, ...]:
        """With whom a site shares masks, in order of names."""
        size, place = len(self.order), self.places[name]
        if self.is_complete:
            return tuple(sorted(other for other in self.order if other != name))
        steps = range(1, self.degree // 2 + 1)
        return tuple(sorted(self.order[(place + way * step) % size] for step in steps for way in (-1, 1)))

    def locate(self, names: Iterable[str]) -> dict[int, str]:
        """The places of these sites on the circle, and who stands there."""
        return {self.places[name]: name for name in names}


KEY_BYTES = 32
NONCE_BYTES = 16
MAX_NAME = 100


class Participant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site by name and identity."""

    name: str
    identity: bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What all participants agree to. It follows from the terms of a study (`compose`), and is never sent.

    colluders: how many sites may side with the house before anything but sums is lost (t in docs/methods.md);
    largest: the largest number, in units of the ring, that one site may enter;
    nonce: makes two runs of the same study two studies.
    """

    format: Literal["concilium/manifest@3"] = "concilium/manifest@3"
    study: str
    participants: tuple[Participant, ...]
    colluders: int
    largest: int
    nonce: bytes

    # All sites of a process share one manifest: what follows from it is worked out once.
    @cached_property
    def encoded(self) -> bytes:
        """The one way to write this manifest down."""
        return msgspec.json.encode(self)

    @cached_property
    def study_id(self) -> bytes:
        return hashlib.sha256(self.encoded).digest()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(participant.name for participant in self.participants)

    @cached_property
    def identities(self) -> dict[str, bytes]:
        return {participant.name: participant.identity for participant in self.participants}

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        return {name: fingerprint(identity) for name, identity in self.identities.items()}

    @cached_property
    def graph(self) -> _MaskGraph:
        """Who shares a mask with whom."""
        degree = _choose_degree(len(self.names), self.colluders)
        return _MaskGraph(self.study_id, self.identities, degree)

    @cached_property
    def circle(self) -> bytes:
        """The participants as a hash of their names and identities, the same in every study of theirs."""
        parts = [part for name, identity in self.identities.items() for part in (name.encode(), identity)]
        return hashlib.sha256(statement("concilium/participants@1", *parts)).digest()

    @cached_property
    def problem(self) -> str | None:
        """What is wrong with its form, in words."""
        study, names = self.study, self.names
        if not 1 <= len(study) <= 1000 or not study.isprintable():
            return "a manifest must name its study in 1 to 1000 printable characters"
        for name in names:
            if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
                return (
                    f"a participant's name must have 1 to {MAX_NAME} printable characters; got {name[:200]!r}"
                )
        if self.colluders < 0:
            return f"study {study!r} tolerates {self.colluders} colluders; that number cannot be negative"
        try:
            require_participants(study, len(names), self.colluders)
        except MaskError as error:
            return str(error)
        for first, second in itertools.pairwise(names):
            if first == second:
                return f"study {study!r} lists {first} twice; every participant needs a name of its own"
            if first > second:
                return (
                    f"study {study!r} must list its participants in order of names: {second} before {first}"
                )
        owners: dict[bytes, str] = {}
        for participant in self.participants:
            if len(participant.identity) != KEY_BYTES:
                return f"the identity of {participant.name} in study {study!r} must be {KEY_BYTES} bytes"
            other = owners.setdefault(participant.identity, participant.name)
            if other != participant.name:
                return (
                    f"{other} and {participant.name} have the same key in study {study!r}; one poses as two"
                )
        if self.largest < 1 or len(names) * self.largest >= HALF_RING:
            return (
                f"numbers up to {self.largest} from {len(names)} sites do not fit sums modulo 2^64 in study "
                f"{study!r}; the largest must be between 1 and {(HALF_RING - 1) // len(names)}"
            )
        if len(self.nonce) != NONCE_BYTES:
            return f"the nonce of study {study!r} must be {NONCE_BYTES} bytes"
        return None


def compose(
    study: str,
    participants: Iterable[Participant],
    *,
    colluders: int = 1,
    largest: int | None = None,
    nonce: bytes | None = None,
) -> Manifest:
    """The manifest of a new study, in order of names; `largest` is by default all that the ring can hold, and the nonce
    is drawn unless the study's name is one of its own already."""
    members = tuple(sorted(participants, key=lambda participant: participant.name))
    if largest is None:
        largest = (HALF_RING - 1) // max(1, len(members))
    manifest = Manifest(
        study=study,
        participants=members,
        colluders=colluders,
        largest=largest,
        nonce=randomness.draw_bytes(NONCE_BYTES) if nonce is None else nonce,
    )
    _check_form(manifest)
    return manifest


def accept(
    manifest: Manifest,
    name: str,
    identity: bytes,
    peers: Mapping[str, str],
    *,
    colluders: int = 1,
) -> None:
    """MaskError unless the site of this name can agree to the manifest.

    `peers` pins the other sites: name and fingerprint. `colluders` is the least number this site wants
    tolerated.
    """
    _check_form(manifest)
    if manifest.colluders < colluders:
        raise MaskError(
            f"study {manifest.study!r} tolerates {manifest.colluders} colluding sites and {name} asks for "
            f"{colluders}; the house must compose it with colluders = {colluders} or more"
        )
    own = manifest.identities.get(name)
    if own is None:
        raise MaskError(
            f"{name} is not a participant of study {manifest.study!r}{nearest(name, manifest.names)}"
        )
    if own != identity:
        raise MaskError(
            f"study {manifest.study!r} lists {name} under a key that is not its own "
            f"({fingerprint(own)}); do not take part until the house explains it"
        )
    # All of them, and not only those it shares masks with: t colluders are counted among hospitals, not puppets.
    for other, shown in manifest.fingerprints.items():
        pin = peers.get(other)
        if pin == shown or other == name:
            continue
        if pin is None:
            raise MaskError(
                f"{other} takes part in study {manifest.study!r} but is not pinned at {name}; "
                f"compare fingerprints with that hospital and enter it under [peers]{nearest(other, peers)}"
            )
        if not has_fingerprint(manifest.identities[other], pin):
            raise MaskError(
                f"{other} has the key {shown} in study {manifest.study!r}, not the one pinned at {name}; "
                "somebody poses as that hospital, or it has a new identity"
            )


def _check_form(manifest: Manifest) -> None:
    if manifest.problem is not None:
        raise MaskError(manifest.problem)


def require_participants(study: str, participants: int, colluders: int) -> None:
    """MaskError where a study under masks would have too few participants."""
    if participants < colluders + 2:
        few = f"{participants} participant{'' if participants == 1 else 's'}"
        tolerated = f"{colluders} tolerated colluder{'' if colluders == 1 else 's'}"
        raise MaskError(
            f"study {study[:12]!r} has {few}; with {tolerated} at least {colluders + 2} are needed, or a sum would be "
            "one hospital's answer. Add hospitals, or take release = 'exact', which shows each hospital's own numbers"
        )
