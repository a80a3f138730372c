from __future__ import annotations

import hashlib
import hmac
import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_circle import NAMES, Vector, hospitals

from concilium.privacy.masks import (
    PairKey,
    Standing,
    _Commitment,
    _stream,
    add_masks,
    commit,
    derive_pair_key,
    hash_seed,
    hash_transcript,
    hash_vector,
    is_from,
    make_label,
)

RING = 2**64
# RFC 8439, appendix A.1, test vectors 1 and 2: the keystream of the zero key, blocks 0 and 1.
ZERO_KEYSTREAM = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def extract_and_expand(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 of 64 bytes as RFC 5869 writes it, from the standard library."""
    key = hmac.digest(salt, secret, "sha256")
    first = hmac.digest(key, info + b"\x01", "sha256")
    return first + hmac.digest(key, first + info + b"\x02", "sha256")


def pairs_of(names: tuple[str, ...], label: bytes = b"label") -> dict[str, dict[str, PairKey]]:
    """Pair keys of a whole group, from synthetic shared secrets."""
    pairs: dict[str, dict[str, PairKey]] = {name: {} for name in names}
    for one, other in itertools.combinations(names, 2):
        shared = hashlib.sha256(f"{one} and {other}".encode()).digest()
        pairs[one][other] = derive_pair_key(shared, b"study", label, one, other)
        pairs[other][one] = derive_pair_key(shared, b"study", label, other, one)
    return pairs


def test_the_stream_is_chacha20_read_as_little_endian_words() -> None:
    expected = [int.from_bytes(ZERO_KEYSTREAM[place : place + 8], "little") for place in range(0, 128, 8)]
    assert [int(number) for number in _stream(bytes(32), 16)] == expected
    assert len(_stream(bytes(32), 0)) == 0


def test_the_pair_key_is_hkdf_bound_to_study_label_and_names() -> None:
    info = framed(b"concilium/pair@1", b"label", b"ashford", b"brook")
    expected = extract_and_expand(b"shared", b"study", info)
    derived = derive_pair_key(b"shared", b"study", b"label", "brook", "ashford")
    assert derived.stream + derived.tag == expected


def test_both_sides_derive_the_same_pair_key_and_nobody_else_does() -> None:
    arguments = (b"shared", b"study", b"label", "ashford", "brook")
    key = derive_pair_key(*arguments)
    assert key == derive_pair_key(b"shared", b"study", b"label", "brook", "ashford")
    for place, other in enumerate((b"shares", b"studz", b"lapel", "cedar", "cedar")):
        changed = derive_pair_key(*(other if at == place else part for at, part in enumerate(arguments)))
        assert changed.stream != key.stream
        assert changed.tag != key.tag


def test_the_label_is_the_hash_of_study_question_and_the_list_of_keys() -> None:
    bound = framed(b"concilium/label@3", b"study", b"content", b"roll")
    label = make_label(b"study", b"content", b"roll")
    assert label == hashlib.sha256(bound).digest()
    others = [
        make_label(b"studz", b"content", b"roll"),
        make_label(b"study", b"contend", b"roll"),
        make_label(b"study", b"content", b"role"),
        make_label(b"studyc", b"ontent", b"roll"),
    ]
    assert len({label, *others}) == 5


def test_the_first_name_adds_the_pairs_stream_and_the_other_subtracts_it() -> None:
    names = NAMES[:4]
    pairs = pairs_of(names)
    vector = np.array([0, 1, RING - 1, 12345], dtype=np.uint64)
    seed = b"s" * 32
    got = np.frombuffer(add_masks("brook", vector, pairs["brook"], seed), dtype="<u8")
    for place, number in enumerate(vector):
        expected = int(number) + int(_stream(seed, 4)[place])
        expected -= int(_stream(pairs["brook"]["ashford"].stream, 4)[place])
        expected += int(_stream(pairs["brook"]["cedar"].stream, 4)[place])
        expected += int(_stream(pairs["brook"]["dale"].stream, 4)[place])
        assert int(got[place]) == expected % RING


@st.composite
def groups_of_vectors(draw: st.DrawFn, low: int = 0, high: int = RING - 1) -> dict[str, list[int]]:
    names = NAMES[: draw(st.integers(3, 10))]
    length = draw(st.integers(0, 20))
    numbers = st.lists(st.integers(low, high), min_size=length, max_size=length)
    return {name: draw(numbers) for name in names}


@settings(deadline=None)
@given(groups_of_vectors())
def test_masks_in_pairs_cancel_whatever_the_vectors(group: dict[str, list[int]]) -> None:
    pairs = pairs_of(tuple(group))
    length = len(next(iter(group.values())))
    total = np.zeros(length, dtype=np.uint64)
    for name, numbers in group.items():
        seed = hashlib.sha256(name.encode()).digest()
        masked = add_masks(name, np.array(numbers, dtype=np.uint64), pairs[name], seed)
        total += np.frombuffer(masked, dtype="<u8")
        total -= _stream(seed, length)
    assert [int(number) for number in total] == [
        sum(column) % RING for column in zip(*group.values(), strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(groups_of_vectors(-(2**59), 2**59))
def test_a_whole_round_gives_the_plain_sum(group: dict[str, list[int]]) -> None:
    circle = hospitals(len(group)).gather()
    vectors = {name: np.array(numbers, dtype=np.int64).view(np.uint64) for name, numbers in group.items()}
    total = circle.add_up(b"how many?", vectors)
    assert total.view(np.int64).tolist() == [sum(column) for column in zip(*group.values(), strict=True)]


def test_a_vector_is_not_changed_by_masking_it() -> None:
    vector: Vector = np.arange(5, dtype=np.uint64)
    add_masks("ashford", vector, pairs_of(NAMES[:3])["ashford"], b"s" * 32)
    assert vector.tolist() == [0, 1, 2, 3, 4]


def test_hashes_are_of_all_they_name() -> None:
    vector = framed(b"concilium/vector@1", b"label", b"ashford", b"seed hash", b"vector")
    assert hash_vector(b"label", "ashford", b"seed hash", b"vector") == hashlib.sha256(vector).digest()
    seed = framed(b"concilium/seed@1", b"label", b"ashford", b"seed")
    assert hash_seed(b"label", "ashford", b"seed") == hashlib.sha256(seed).digest()
    transcript = framed(b"concilium/transcript@2", b"label", b"root")
    assert hash_transcript(b"label", b"root") == hashlib.sha256(transcript).digest()


def test_a_commitment_is_known_by_its_tag_for_each_reader() -> None:
    pairs = pairs_of(NAMES[:3])
    commitment = commit("ashford", b"digest", pairs["ashford"])
    assert set(commitment.tags) == {"brook", "cedar"}
    standing = msgspec.msgpack.encode(Standing())
    expected = hmac.digest(
        pairs["brook"]["ashford"].tag,
        framed(b"concilium/tag@2", b"ashford", b"digest", standing, b""),
        "sha256",
    )
    assert commitment.tags["brook"] == expected[:16]
    assert is_from(commitment, "ashford", "brook", pairs["brook"]["ashford"])
    assert is_from(commitment, "ashford", "cedar", pairs["cedar"]["ashford"])


def test_a_commitment_passes_for_nothing_else() -> None:
    pairs = pairs_of(NAMES[:3])
    key = pairs["brook"]["ashford"]
    commitment = commit("ashford", b"digest", pairs["ashford"])
    swapped = {"brook": commitment.tags["cedar"]}
    for lie in (
        _Commitment("ashford", b"digesu", commitment.tags),
        _Commitment("ashford", b"digest", {}),
        _Commitment("ashford", b"digest", swapped),
        _Commitment("ashford", b"digest", {"brook": commitment.tags["brook"][:8]}),
        _Commitment("ashford", b"digest", {"brook": b""}),
    ):
        assert not is_from(lie, "ashford", "brook", key)
    assert not is_from(commitment, "ashford", "brook", pairs_of(NAMES[:3], b"lapel")["brook"]["ashford"])
    shown = commit("ashford", b"digest", pairs["ashford"], Standing(5, b"head", b"past"), {"brook": b"held"})
    assert is_from(shown, "ashford", "brook", key)
    for lie in (
        {"standing": Standing(6, b"head", b"past")},
        {"standing": Standing(5, b"heat", b"past")},
        {"standing": Standing(5, b"head", b"pass")},
        {"standing": Standing()},
        {"held": {"brook": b"helm"}},
        {"held": {}},
    ):
        assert not is_from(msgspec.structs.replace(shown, **lie), "ashford", "brook", key)
    reflected = commit("brook", b"digest", pairs["brook"])
    turned = _Commitment("ashford", b"digest", {"brook": reflected.tags["ashford"]})
    assert not is_from(turned, "ashford", "brook", key)


@pytest.mark.parametrize("secret", ["stream", "tag"])
def test_keys_are_not_shown(secret: str) -> None:
    key = derive_pair_key(b"shared", b"study", b"label", "ashford", "brook")
    assert repr(getattr(key, secret)) not in repr(key)
