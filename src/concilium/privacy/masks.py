"""Masks in pairs that cancel in the sum: a site adds them so that the house can read nothing but the total.

Who is protected: each hospital's answer, from the house and from up to t other sites that side with it.
They see the sum over the remaining sites (two at least) and nothing else; a site's vector alone is
indistinguishable from uniform numbers modulo 2^64. What is not hidden: the sum itself, hence which
*patient* in it, and a question only one hospital's patients can satisfy has that hospital's answer as its
sum. Nor is a site kept from entering a false number. At what price: vectors of the same size as the plain
ones, for each neighbour (manifest.py) and question one key derivation and one stream, and two exchanges.
Assumptions: X25519 is a hard Diffie-Hellman group, HKDF-SHA256 and ChaCha20 are pseudorandom, SHA-256 hides a
random seed and does not collide, identities were pinned (identity.py). Reference: Bonawitz et al. 2017,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS, sections 4 and 6: masks in pairs and
a self-mask. Here no secret is shared out, so a lost site is waited for instead of being reconstructed (mask_store.py).

The house's side checks what every site sent, takes the self-masks off and reads the one sum. It holds no secret and
protects nobody; it makes sure that a wrong sum is never taken for a right one and that the site at fault is named.
*Cost:* one hash per vector and one stream per site. *Assumes:* a site that enters a false number cannot be told from
an honest one. Reference: Bonawitz et al. 2017, CCS, figure 4, the server's rounds 2 and 4.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from concilium.errors import MaskError
from concilium.privacy.identity import statement
from concilium.privacy.manifest import Manifest
from concilium.privacy.study_keys import HashTree, hash_leaf

Ring = NDArray[np.uint64]

SEED_BYTES = 32
TAG_BYTES = 16
LINK_BYTES = 16
WIRE = np.dtype("<u8")


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a site's ledger has come with its charges for masked answers: how many entries there are at the last of
    them, its hash, and the hashes (LINK_BYTES of each) of those before it."""

    entries: int = 0
    head: bytes = b""
    past: bytes = b""


class _Commitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hash of a site's masked vector, with one tag for each of its neighbours: the house can pass it on
    but not make one up, so whoever is shown a commitment knows that its site answered this question.

    The tag also covers how far the site's ledger has come, the charge for this answer included, and entries that the
    ledger holds and the neighbour was shown before (`held`): an older copy of a ledger cannot show both.
    """

    name: str
    digest: bytes
    tags: dict[str, bytes]
    standing: Standing = Standing()
    held: dict[str, bytes] = msgspec.field(default_factory=dict)

    def for_reader(self, reader: str) -> _Commitment:
        """What one neighbour needs of it."""
        tags, held = (
            {who: one for who, one in part.items() if who == reader} for part in (self.tags, self.held)
        )
        return msgspec.structs.replace(self, tags=tags, held=held)


class MaskedVector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a round: a masked vector (uint64, little-endian) and what it is bound to."""

    label: bytes
    vector: bytes
    seed_hash: bytes
    commitment: _Commitment


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of what all participants committed to, what one site can check: its own commitment and those of its neighbours,
    with the tags made for it alone, and that they stand in one list of all (study_keys.py), whose root it opens for."""

    commitments: tuple[_Commitment, ...]
    root: bytes
    proof: tuple[bytes, ...]


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The second message of a round: what takes a site's self-mask off."""

    name: str
    label: bytes
    seed: bytes


@dataclass(frozen=True)
class PairKey:
    """What two sites hold in common for one label: the key of their stream, and the key of their tags."""

    stream: bytes = field(repr=False)
    tag: bytes = field(repr=False)


def make_label(study_id: bytes, content: bytes, roll: bytes) -> bytes:
    """What a mask is good for: this study, question and list of all participants' keys, and nothing else."""
    return hashlib.sha256(statement("concilium/label@3", study_id, content, roll)).digest()


def derive_pair_key(shared: bytes, study_id: bytes, label: bytes, one: str, other: str) -> PairKey:
    """The pair's key for one label, the same on both sides."""
    lower, higher = sorted((one, other))
    info = statement("concilium/pair@1", label, lower.encode(), higher.encode())
    keys = HKDF(algorithm=hashes.SHA256(), length=64, salt=study_id, info=info).derive(shared)
    return PairKey(stream=keys[:32], tag=keys[32:])


def _stream(key: bytes, count: int) -> Ring:
    """`count` numbers modulo 2^64 from a key. The nonce is constant because no key is ever used for a second
    stream: a pair's key belongs to one label, a seed to one vector."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), dtype=WIRE)


def add_masks(name: str, vector: Ring, pairs: Mapping[str, PairKey], seed: bytes) -> bytes:
    """A site's vector under the masks it shares with each peer and under its own, as it goes over the wire.

    The site whose name comes first adds the pair's stream and the other subtracts it.
    """
    total = vector + _stream(seed, len(vector))
    for peer, key in pairs.items():
        if name < peer:
            total += _stream(key.stream, len(vector))
        else:
            total -= _stream(key.stream, len(vector))
    return total.astype(WIRE, copy=False).tobytes()


def hash_seed(label: bytes, name: str, seed: bytes) -> bytes:
    """Fixes a seed before it is revealed."""
    return hashlib.sha256(statement("concilium/seed@1", label, name.encode(), seed)).digest()


def hash_vector(label: bytes, name: str, seed_hash: bytes, vector: bytes) -> bytes:
    """What a site commits to: this masked vector and this seed, under this label."""
    return hashlib.sha256(statement("concilium/vector@1", label, name.encode(), seed_hash, vector)).digest()


def commit(
    name: str,
    digest: bytes,
    pairs: Mapping[str, PairKey],
    standing: Standing | None = None,
    held: Mapping[str, bytes] | None = None,
) -> _Commitment:
    """The commitment of a site to its vector, tagged for each peer."""
    standing, held = standing or Standing(), dict(held or {})
    tags = {peer: _tag(key, name, digest, standing, held.get(peer, b"")) for peer, key in pairs.items()}
    return _Commitment(name, digest, tags, standing, held)


def is_from(commitment: _Commitment, peer: str, reader: str, key: PairKey) -> bool:
    """Whether the peer of this name itself made the commitment, for the label of this key."""
    tag, held = commitment.tags.get(reader, b""), commitment.held.get(reader, b"")
    return hmac.compare_digest(tag, _tag(key, peer, commitment.digest, commitment.standing, held))


def hash_transcript(label: bytes, root: bytes) -> bytes:
    """All that a round's participants committed to, in one hash; `root` is that of their list."""
    return hashlib.sha256(statement("concilium/transcript@2", label, root)).digest()


def _tag(key: PairKey, name: str, digest: bytes, standing: Standing, held: bytes) -> bytes:
    # The sender's name keeps the house from reflecting a site's own tag back at it.
    tagged = statement("concilium/tag@2", name.encode(), digest, msgspec.msgpack.encode(standing), held)
    return hmac.digest(key.tag, tagged, "sha256")[:TAG_BYTES]


M = TypeVar("M")


@dataclass(frozen=True)
class MaskedRound:
    """One question to all participants, as the house holds it together.

    `roll` is the root of the list of all keys. `commitments` first, `show` to every site its part of them; `unmask`
    once all seeds are there.
    """

    manifest: Manifest
    roll: bytes
    content: bytes
    _checked: dict[str, MaskedVector] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def label(self) -> bytes:
        return make_label(self.manifest.study_id, self.content, self.roll)

    def commitments(self, answers: Iterable[MaskedVector]) -> tuple[_Commitment, ...]:
        """What all have committed to: MaskError names a site whose answer is missing or misplaced."""
        return tuple(answer.commitment for answer in self._check_answers(answers).values())

    def show(self, commitments: Iterable[_Commitment]) -> dict[str, Shown]:
        """What each site needs to be shown of them: its neighbours' hashes with the tags made for it alone."""
        graph, by_name = self.manifest.graph, {one.name: one for one in commitments}
        tree = HashTree([hash_leaf(name, by_name[name].digest) for name in graph.order])
        shown = {}
        for reader in self.manifest.names:
            near = (reader, *graph.neighbours(reader))
            parts = [by_name[name].for_reader(reader) for name in near]
            shown[reader] = Shown(tuple(parts), tree.root, tuple(tree.prove(graph.locate(near))))
        return shown

    def unmask(self, answers: Iterable[MaskedVector], seeds: Iterable[Seed]) -> Ring:
        """The sum over all participants modulo 2^64: MaskError names the site with which it cannot be had."""
        by_name = self._check_answers(answers)
        seeds_by_name = self._one_of_each({seed.name: seed for seed in seeds}, "revealed its seed")
        label = self.label
        total = np.zeros(len(next(iter(by_name.values())).vector) // WIRE.itemsize, dtype=np.uint64)
        for name, answer in by_name.items():
            seed = seeds_by_name[name]
            genuine = len(seed.seed) == SEED_BYTES and hash_seed(label, name, seed.seed) == answer.seed_hash
            if seed.label != label or not genuine:
                raise MaskError(
                    f"the seed of {name} does not belong to the answer it sent; ask {name} to reveal again"
                )
            total += np.frombuffer(answer.vector, dtype=WIRE)
            total -= _stream(seed.seed, len(total))
        return total

    def _check_answers(self, answers: Iterable[MaskedVector]) -> dict[str, MaskedVector]:
        by_name = self._one_of_each({answer.commitment.name: answer for answer in answers}, "answered")
        label = self.label
        lengths: dict[int, str] = {}
        for name, answer in by_name.items():
            if answer.label != label:
                raise MaskError(f"{name} answered another question or set of participants than it was asked")
            if self._checked.get(name) is not answer:  # looked at when it came, and now again to be added up
                if hash_vector(label, name, answer.seed_hash, answer.vector) != answer.commitment.digest:
                    raise MaskError(
                        f"the answer of {name} does not match its hash; it was damaged on the way: ask again"
                    )
                self._checked[name] = answer
            lengths.setdefault(len(answer.vector), name)
        if len(lengths) > 1 or next(iter(lengths)) % WIRE.itemsize:
            text = " and ".join(f"{size // WIRE.itemsize} numbers ({name})" for size, name in lengths.items())
            raise MaskError(f"the answers to this question differ in length: {text}; they cannot be added up")
        return by_name

    def _one_of_each(self, messages: Mapping[str, M], what: str) -> dict[str, M]:
        names = self.manifest.names
        absent = [name for name in names if name not in messages]
        if absent:
            raise MaskError(
                f"{', '.join(absent)} has not {what}: wait until it is back and ask it again, or stop"
            )
        strangers = [name for name in messages if name not in self.manifest.identities]
        if strangers:
            raise MaskError(f"{strangers[0][:100]!r} has {what} but takes no part in this round")
        return {name: messages[name] for name in names}
