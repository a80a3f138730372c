from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_circle import hospitals

from concilium.errors import MaskError
from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Manifest, Participant, accept, compose
from concilium.privacy.shares import HALF_RING

KEYS = [bytes([place]) * 32 for place in range(12)]


def three(**fields: object) -> Manifest:
    manifest = compose("s", [Participant(name, key) for name, key in zip("abc", KEYS, strict=False)])
    return msgspec.structs.replace(manifest, **fields)


def test_the_hash_of_a_manifest_is_the_study() -> None:
    manifest = three()
    assert manifest.study_id == hashlib.sha256(manifest.encoded).digest()


def test_the_order_in_which_sites_are_named_does_not_matter() -> None:
    sites = [Participant(name, key) for name, key in zip("cab", KEYS, strict=False)]
    assert compose("s", sites).names == ("a", "b", "c")


def test_two_runs_of_one_study_are_two_studies() -> None:
    assert three().study_id != three().study_id


@pytest.mark.parametrize(
    "fields",
    [
        {"study": "t"},
        {"colluders": 0},
        {"largest": 5},
        {"nonce": b"n" * 16},
        {
            "participants": (
                *(Participant(n, k) for n, k in zip("ab", KEYS, strict=False)),
                Participant("c", KEYS[9]),
            )
        },
    ],
)
def test_every_field_is_part_of_the_study(fields: dict[str, object]) -> None:
    manifest = three()
    assert msgspec.structs.replace(manifest, **fields).study_id != manifest.study_id


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"study": ""}, "name its study"),
        ({"study": "a\nb"}, "name its study"),
        ({"colluders": -1}, "cannot be negative"),
        ({"colluders": 2}, "at least 4 are needed"),
        ({"largest": 0}, "do not fit"),
        ({"largest": HALF_RING // 3 + 1}, "do not fit"),
        ({"nonce": b""}, "nonce"),
        (
            {"participants": tuple(Participant(name, key) for name, key in zip("aab", KEYS, strict=False))},
            "lists a twice",
        ),
        (
            {"participants": tuple(Participant(name, key) for name, key in zip("acb", KEYS, strict=False))},
            "b before c",
        ),
        ({"participants": tuple(Participant(name, KEYS[0]) for name in "abc")}, "poses as two"),
        ({"participants": tuple(Participant(name, b"k") for name in "abc")}, "must be 32 bytes"),
        ({"participants": tuple(Participant(name, KEYS[0]) for name in ("", "b", "c"))}, "printable"),
        ({"participants": tuple(Participant(name, KEYS[0]) for name in ("a\n", "b", "c"))}, "printable"),
        ({"participants": tuple(Participant(name, KEYS[0]) for name in ("a" * 101, "b", "c"))}, "printable"),
    ],
)
def test_an_inconsistent_manifest_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(MaskError, match=said):
        accept(three(**fields), "a", KEYS[0], {})


def test_the_default_ring_limit_is_the_most_that_cannot_wrap() -> None:
    manifest = three()
    assert 3 * manifest.largest < HALF_RING <= 3 * (manifest.largest + 1)


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(0, 10))
def test_fewer_than_two_more_than_the_colluders_are_refused(colluders: int, count: int) -> None:
    sites = [Participant(f"site {place:02}", KEYS[place]) for place in range(count)]
    if count >= colluders + 2:
        assert compose("s", sites, colluders=colluders).colluders == colluders
    else:
        with pytest.raises(MaskError, match=f"at least {colluders + 2} are needed"):
            compose("s", sites, colluders=colluders)


def test_an_honest_manifest_is_accepted_by_each_site() -> None:
    group = hospitals(5)
    for name in group.names:
        accept(group.compose(), name, group.identities[name].public, group.peers)


def test_a_site_need_not_pin_itself() -> None:
    group = hospitals(3)
    peers = {name: text for name, text in group.peers.items() if name != "brook"}
    accept(group.compose(), "brook", group.identities["brook"].public, peers)


def test_a_site_refuses_a_study_that_is_not_its_own() -> None:
    group = hospitals(4)
    manifest = group.compose(["brook", "cedar", "dale"])
    with pytest.raises(MaskError, match="ashford is not a participant"):
        accept(manifest, "ashford", group.identities["ashford"].public, group.peers)


def test_a_site_refuses_fewer_tolerated_colluders_than_it_asks_for() -> None:
    group = hospitals(3)
    public = group.identities["ashford"].public
    with pytest.raises(MaskError, match="tolerates 0 colluding sites and ashford asks for 1"):
        accept(group.compose(colluders=0), "ashford", public, group.peers)
    accept(group.compose(colluders=0), "ashford", public, group.peers, colluders=0)


def test_a_mistyped_peer_is_named() -> None:
    group = hospitals(3)
    peers = {"brok" if name == "brook" else name: text for name, text in group.peers.items()}
    with pytest.raises(MaskError, match=r"brook .* not pinned at ashford.*did you mean 'brok'"):
        accept(group.compose(), "ashford", group.identities["ashford"].public, peers)


def test_a_peer_with_a_new_identity_is_refused() -> None:
    group = hospitals(3)
    pinned = group.peers
    group.identities["cedar"] = Identity.create()
    with pytest.raises(MaskError, match=r"cedar has the key .* not the one pinned at ashford"):
        accept(group.compose(), "ashford", group.identities["ashford"].public, pinned)
