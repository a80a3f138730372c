"""One X25519 key per site and study, signed by the site's identity: what pairs of sites agree on secrets
with.

Who is protected: every pair of sites, from a house that relays their keys and would like to put its own in
their place. At what price: one signature per site and study, and one verification per pair. Assumptions:
Ed25519 cannot be forged and X25519 (Diffie-Hellman) cannot be solved. The signature covers the study's id,
hence the whole manifest, so a key cannot be moved to another study. Keys are deleted when the study ends,
so that a site broken into later gives away no earlier answer. References: RFC 7748; Bonawitz et al. 2017,
CCS, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from concilium.errors import MaskError
from concilium.privacy.identity import Identity, is_signed, statement
from concilium.privacy.manifest import KEY_BYTES, Manifest


class Witness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a site's own ledger has come (entries, and the hash of the last), and what it remembers of its peers' by
    their fingerprints, as "12 HASH": whoever's ledger was put back to an older copy, head file and all, is told so by
    its peers, and no house has to be trusted with that."""

    entries: int = 0
    head: str = ""
    peers: dict[str, str] = msgspec.field(default_factory=dict)


class StudyKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's public key for one study, with its signature over the study's id, its name, the key and its witness."""

    name: str
    key: bytes
    signature: bytes
    witness: Witness = Witness()


def sign_study_key(
    identity: Identity, study_id: bytes, name: str, key: X25519PrivateKey, witness: Witness | None = None
) -> StudyKey:
    """What a site shows to the others, through the house."""
    public, witness = key.public_key().public_bytes_raw(), witness or Witness()
    signature = identity.sign(_signed_bytes(study_id, name, public, witness))
    return StudyKey(name, public, signature, witness)


def verify_study_keys(manifest: Manifest, keys: Iterable[StudyKey]) -> dict[str, bytes]:
    """The key of every participant, in order of names: MaskError unless each one signed its own."""
    study_id, study, names = manifest.study_id, manifest.study, manifest.names
    by_name: dict[str, StudyKey] = {}
    for key in keys:
        if key.name not in names:
            raise MaskError(f"{key.name[:100]!r} shows a key for study {study!r} but is no participant of it")
        if by_name.setdefault(key.name, key) != key:
            raise MaskError(f"two different keys of {key.name} are shown for study {study!r}")
    owners: dict[bytes, str] = {}
    for participant in manifest.participants:
        name = participant.name
        if name not in by_name:
            raise MaskError(f"{name} has shown no key for study {study!r}: wait for it, or stop")
        key = by_name[name]
        signed = _signed_bytes(study_id, name, key.key, key.witness)
        genuine = is_signed(signed, key.signature, participant.identity)
        if len(key.key) != KEY_BYTES or not genuine:
            raise MaskError(
                f"the key shown for {name} in study {study!r} is not signed by {name} for this manifest; "
                "somebody put it in the place of the hospital's own"
            )
        other = owners.setdefault(key.key, name)
        if other != name:
            raise MaskError(f"{other} and {name} show the same key for study {study!r}; one poses as two")
    return {name: by_name[name].key for name in names}


def agree(key: X25519PrivateKey, name: str, peer: bytes) -> bytes:
    """The secret shared with the peer of this name, which only the two of them can compute."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise MaskError(f"the key shown for {name} gives no secret (it is not a proper X25519 key)") from None


def _signed_bytes(study_id: bytes, name: str, key: bytes, witness: Witness) -> bytes:
    seen = msgspec.json.encode(witness, order="sorted")
    return statement("concilium/study-key@2", study_id, name.encode(), key, seen)
