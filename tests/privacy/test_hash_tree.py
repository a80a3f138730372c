"""One hash for a list, against a tree that is written out by hand and against every lie about an entry."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import MaskError
from concilium.privacy.study_keys import HashTree, find_root, hash_leaf


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def leaves_of(size: int, mark: str = "") -> list[bytes]:
    return [hash_leaf(f"site {place}", f"{mark}{place}".encode()) for place in range(size)]


def recursive_root(leaves: list[bytes]) -> bytes:
    """The same tree by the definition: halves of the largest power of two that is less than the list."""

    def top(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        half = 1 << (len(part) - 1).bit_length() - 1
        return hashlib.sha256(framed(b"concilium/node@1") + top(part[:half]) + top(part[half:])).digest()

    size = len(leaves).to_bytes(8, "little")
    return hashlib.sha256(framed(b"concilium/root@1", size, top(leaves))).digest()


def test_a_leaf_is_the_hash_of_whose_it_is_and_what() -> None:
    assert hash_leaf("a", b"b") == hashlib.sha256(framed(b"concilium/leaf@1", b"a", b"b")).digest()
    assert hash_leaf("ab", b"") != hash_leaf("a", b"b")


@pytest.mark.parametrize("size", range(1, 40))
def test_the_root_is_that_of_the_definition(size: int) -> None:
    assert HashTree(leaves_of(size)).root == recursive_root(leaves_of(size))


def test_every_part_of_every_small_list_is_proven() -> None:
    for size in range(1, 9):
        leaves, tree = leaves_of(size), HashTree(leaves_of(size))
        for count in range(1, size + 1):
            for places in itertools.combinations(range(size), count):
                shown = {place: leaves[place] for place in places}
                assert find_root(shown, size, tree.prove(places)) == tree.root
        assert tree.prove(range(size)) == []


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 300), st.data())
def test_no_other_entry_place_length_or_proof_comes_to_the_root(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    tree = HashTree(leaves)
    places = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=12))
    shown, proof = {place: leaves[place] for place in places}, tree.prove(places)
    assert find_root(shown, size, proof) == tree.root
    place = data.draw(st.sampled_from(sorted(places)))
    lies = [({**shown, place: hash_leaf(f"site {place}", b"another")}, size, proof)]
    elsewhere = data.draw(st.integers(0, size - 1))
    if elsewhere not in places:
        moved = {at: leaf for at, leaf in shown.items() if at != place} | {elsewhere: leaves[place]}
        lies.append((moved, size, proof))
    lies += [(shown, other, proof) for other in (size - 1, size + 1, 2 * size) if other > max(places)]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        lies.append((shown, size, [*proof[:at], bytes(32), *proof[at + 1 :]]))
        lies.append((shown, size, proof[:-1]))
        lies.append((shown, size, [*proof[:at], b"", *proof[at + 1 :]]))
        lies.append((shown, size, [proof[-1], *proof[1:-1], proof[0]] if len(proof) > 1 else []))
    lies.append((shown, size, [*proof, bytes(32)]))
    for lie in lies:
        with suppress(MaskError):
            assert find_root(*lie) != tree.root


def test_neighbours_on_a_circle_take_a_short_proof() -> None:
    size, near = 1000, 7
    tree = HashTree(leaves_of(size))
    for place in range(size):
        around = {(place + step) % size for step in range(-near, near + 1)}
        assert len(tree.prove(around)) <= 2 * 10


@pytest.mark.parametrize("places", [{}, {-1: bytes(32)}, {3: bytes(32)}])
def test_what_does_not_stand_in_the_list_is_refused(places: dict[int, bytes]) -> None:
    with pytest.raises(MaskError, match="does not stand in it"):
        find_root(places, 3, [])
