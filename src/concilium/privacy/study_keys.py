"""One X25519 key per site and study, signed by the site's identity: what pairs of sites agree on secrets
with.

Who is protected: every pair of sites that share masks, from a house that relays their keys and would like to put its
own in their place. At what price: one signature per site and study, and one verification per pair of neighbours.
Assumptions: Ed25519 cannot be forged and X25519 (Diffie-Hellman) cannot be solved. The signature covers the study's id,
hence the whole manifest, so a key cannot be moved to another study. Keys are deleted when the study ends,
so that a site broken into later gives away no earlier answer. References: RFC 7748; Bonawitz et al. 2017,
CCS, section 6.

Merkle's hash tree (1987) gives one hash for a long list, and a short proof that a few entries stand at their places
in it. Claim: who is shown a root, some entries with their places and the proof, knows that whoever made the root had
a list of that length with these entries there; two lists that differ anywhere have two roots. It says nothing about
the other entries: not that they are true, nor that anybody else was shown the same root. *Cost:* as many hashes as
entries are shown, and some two for each doubling of the list where they stand side by side. *Assumes:* SHA-256 does
not collide. Leaves, nodes and roots are hashed for different purposes, so that none passes for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from concilium.errors import MaskError
from concilium.privacy.identity import Identity, is_signed, statement
from concilium.privacy.manifest import KEY_BYTES, Manifest

HASH_BYTES = 32
NODE = statement("concilium/node@1")


def hash_leaf(name: str, content: bytes) -> bytes:
    """An entry of a list, and whose it is."""
    return hashlib.sha256(statement("concilium/leaf@1", name.encode(), content)).digest()


class HashTree:
    """All of a list, at least one leaf long, for whoever has to prove parts of it."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(level := self._levels[-1]) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            above = [_hash_node(left, right) for left, right in pairs]
            self._levels.append(above + level[len(level) & ~1 :])  # who has no partner moves up as it is
        self.root = _hash_root(self._levels[-1][0], len(leaves))

    def prove(self, places: Iterable[int]) -> list[bytes]:
        """What it takes, besides the leaves at these places, to come to the root."""
        known, proof = set(places), []
        for level in self._levels[:-1]:
            partners = sorted({place ^ 1 for place in known} - known)
            proof += [level[place] for place in partners if place < len(level)]
            known = {place >> 1 for place in known}
        return proof


def find_root(leaves: Mapping[int, bytes], size: int, proof: Sequence[bytes]) -> bytes:
    """The root of the list of this length that has these leaves at these places, if the proof is right (some other
    root, which nobody can choose, if it is not); MaskError where it has not as many hashes as it takes."""
    if not leaves or not 0 <= min(leaves) <= max(leaves) < size:
        raise MaskError("what is shown of a list does not stand in it")
    if any(len(one) != HASH_BYTES for one in proof):
        raise MaskError(f"the proof of what is shown of a list must be of hashes of {HASH_BYTES} bytes")
    known, unused, length = dict(leaves), iter(proof), size
    while length > 1:
        above = {}
        for place in sorted({place & ~1 for place in known}):
            # In the order of `prove`: of each pair one is known at least, and the other is proven where there is one.
            left = known.get(place) or next(unused, None)
            right = known.get(place + 1) or (next(unused, None) if place + 1 < length else b"")
            if left is None or right is None:
                raise MaskError("the proof of what is shown of a list is too short")
            above[place >> 1] = _hash_node(left, right) if right else left
        known, length = above, (length + 1) >> 1
    if next(unused, None) is not None:
        raise MaskError("the proof of what is shown of a list is too long")
    return _hash_root(known[0], size)


def _hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(NODE + left + right).digest()


def _hash_root(top: bytes, size: int) -> bytes:
    return hashlib.sha256(statement("concilium/root@1", size.to_bytes(8, "little"), top)).digest()


class Witness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a site remembers its peers' ledgers to have come, by their fingerprints, as "12 HASH": whoever's ledger
    was put back to an older copy, head file and all, is told so, and no house has to be trusted with that."""

    peers: dict[str, str] = msgspec.field(default_factory=dict)


class StudyKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's public key for one study, with its signature over the study's id, its name, the key and its witness."""

    name: str
    key: bytes
    signature: bytes
    witness: Witness = Witness()


class Roll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the keys of all participants those that one site has to do with, its own and its neighbours', and that they
    stand in one list of all, whose root is in everything that is done with them: whom the house shows
    another key of anybody has another root, and shares no mask with those who were not."""

    keys: tuple[StudyKey, ...]
    root: bytes
    proof: tuple[bytes, ...]


def sign_study_key(
    identity: Identity, study_id: bytes, name: str, key: X25519PrivateKey, witness: Witness | None = None
) -> StudyKey:
    """What a site shows to the others, through the house."""
    public, witness = key.public_key().public_bytes_raw(), witness or Witness()
    signature = identity.sign(_signed_bytes(study_id, name, public, witness))
    return StudyKey(name, public, signature, witness)


def verify_study_keys(
    manifest: Manifest, keys: Iterable[StudyKey], names: Sequence[str] | None = None
) -> dict[str, bytes]:
    """The key of every participant, or of those named: MaskError unless each one signed its own."""
    study_id, study = manifest.study_id, manifest.study
    needed = manifest.names if names is None else names
    by_name: dict[str, StudyKey] = {}
    for key in keys:
        if key.name not in manifest.identities:
            raise MaskError(f"{key.name[:100]!r} shows a key for study {study!r} but is no participant of it")
        if by_name.setdefault(key.name, key) != key:
            raise MaskError(f"two different keys of {key.name} are shown for study {study!r}")
    owners: dict[bytes, str] = {}
    for name in needed:
        if name not in by_name:
            raise MaskError(f"{name} has shown no key for study {study!r}: wait for it, or stop")
        key = by_name[name]
        signed = _signed_bytes(study_id, name, key.key, key.witness)
        genuine = is_signed(signed, key.signature, manifest.identities[name])
        if len(key.key) != KEY_BYTES or not genuine:
            raise MaskError(
                f"the key shown for {name} in study {study!r} is not signed by {name} for this manifest; "
                "somebody put it in the place of the hospital's own"
            )
        other = owners.setdefault(key.key, name)
        if other != name:
            raise MaskError(f"{other} and {name} show the same key for study {study!r}; one poses as two")
    return {name: by_name[name].key for name in needed}


def call_roll(manifest: Manifest, keys: Iterable[StudyKey]) -> dict[str, Roll]:
    """What the house shows each site of the keys of all."""
    graph, by_name = manifest.graph, {key.name: key for key in keys}
    tree = HashTree([hash_leaf(name, by_name[name].key) for name in graph.order])
    rolls = {}
    for name in manifest.names:
        shown = (name, *graph.neighbours(name))
        proof = tree.prove(graph.locate(shown))
        rolls[name] = Roll(tuple(by_name[one] for one in shown), tree.root, tuple(proof))
    return rolls


def agree(key: X25519PrivateKey, name: str, peer: bytes) -> bytes:
    """The secret shared with the peer of this name, which only the two of them can compute."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise MaskError(f"the key shown for {name} gives no secret (it is not a proper X25519 key)") from None


def _signed_bytes(study_id: bytes, name: str, key: bytes, witness: Witness) -> bytes:
    seen = msgspec.json.encode(witness, order="sorted")
    return statement("concilium/study-key@3", study_id, name.encode(), key, seen)
