"""One hash for a long list, and a short proof that a few entries stand at their places in it (Merkle, 1987).

What it claims: who is shown a root, some entries with their places and the proof, knows that whoever made the root
had a list of that length with these entries there; two lists that differ anywhere have two roots. It says nothing
about the other entries: not that they are true, nor that anybody else was shown the same root. At what price: as many
hashes as entries are shown, and some two for each doubling of the list where they stand side by side. Assumption:
SHA-256 does not collide. Leaves, nodes and roots are hashed for different purposes, so that none passes for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from concilium.errors import MaskError
from concilium.privacy.identity import statement

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
