from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from mask_circle import changed, hospitals

from concilium.errors import MaskError
from concilium.privacy.identity import is_signed, statement
from concilium.privacy.study_keys import agree, sign_study_key, verify_study_keys


def test_both_sides_of_a_pair_agree_on_one_secret() -> None:
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    shared = agree(one, "other", other.public_key().public_bytes_raw())
    assert shared == agree(other, "one", one.public_key().public_bytes_raw())
    assert shared != agree(one, "one", one.public_key().public_bytes_raw())


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_a_key_that_gives_no_secret_is_refused(point: bytes) -> None:
    """Low-order points would make a pair's masks known to everyone (RFC 7748, section 6.1)."""
    with pytest.raises(MaskError, match="the key shown for cedar"):
        agree(X25519PrivateKey.generate(), "cedar", point)


def test_the_signature_is_over_study_name_and_key() -> None:
    group = hospitals(3)
    manifest = group.compose()
    key = sign_study_key(group.identities["cedar"], manifest.study_id, "cedar", X25519PrivateKey.generate())
    signed = statement("concilium/study-key@3", manifest.study_id, b"cedar", key.key, b'{"peers":{}}')
    assert is_signed(signed, key.signature, group.identities["cedar"].public)


def test_all_keys_come_back_in_order_of_names() -> None:
    circle = hospitals(4).gather()
    verified = verify_study_keys(circle.manifest, reversed(circle.keys))
    assert list(verified) == list(circle.manifest.names)
    assert verified == {key.name: key.key for key in circle.keys}
    assert verify_study_keys(circle.manifest, circle.keys + circle.keys) == verified


def test_a_missing_a_foreign_and_a_second_key_are_refused() -> None:
    group = hospitals(4)
    circle = group.gather(group.compose(["ashford", "brook", "cedar"]))
    keys = circle.keys
    with pytest.raises(MaskError, match="cedar has shown no key"):
        verify_study_keys(circle.manifest, keys[:2])
    private = X25519PrivateKey.generate()
    foreign = sign_study_key(group.identities["dale"], circle.manifest.study_id, "dale", private)
    with pytest.raises(MaskError, match=r"'dale' shows a key .* no participant"):
        verify_study_keys(circle.manifest, [*keys, foreign])
    second = sign_study_key(group.identities["cedar"], circle.manifest.study_id, "cedar", private)
    with pytest.raises(MaskError, match="two different keys of cedar"):
        verify_study_keys(circle.manifest, [*keys, second])


def test_a_site_that_copies_another_sites_key_is_refused() -> None:
    group = hospitals(3)
    manifest = group.compose()
    private = X25519PrivateKey.generate()
    copied = [
        sign_study_key(group.identities[name], manifest.study_id, name, private) for name in group.names
    ]
    with pytest.raises(MaskError, match="ashford and brook show the same key"):
        verify_study_keys(manifest, copied)


@pytest.mark.parametrize("field", ["key", "signature"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: b""]
)
def test_a_damaged_key_is_refused(field: str, damage: Callable[[bytes], bytes]) -> None:
    circle = hospitals(3).gather()
    bad = changed(circle.keys[1], **{field: damage(getattr(circle.keys[1], field))})
    with pytest.raises(MaskError, match="not signed by brook"):
        verify_study_keys(circle.manifest, [circle.keys[0], bad, circle.keys[2]])
