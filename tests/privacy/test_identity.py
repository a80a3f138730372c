from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.errors import MaskError, PolicyError
from concilium.policy.policy import Policy
from concilium.privacy.identity import (
    Identity,
    fingerprint,
    has_fingerprint,
    is_signed,
    read_fingerprint,
    statement,
)

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are a matter of POSIX")


def test_a_saved_identity_is_the_same_when_loaded(tmp_path: Path) -> None:
    identity = Identity.create()
    identity.save(tmp_path / "site.key")
    again = Identity.load(tmp_path / "site.key")
    assert again.public == identity.public
    assert again.sign(b"yes") == identity.sign(b"yes")  # Ed25519 is deterministic


def test_two_identities_differ() -> None:
    assert Identity.create().public != Identity.create().public


@posix
def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Identity.create().save(tmp_path / "site.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    first = Identity.create()
    first.save(tmp_path / "site.key")
    with pytest.raises(MaskError, match="never overwritten"):
        Identity.create().save(tmp_path / "site.key")
    assert Identity.load(tmp_path / "site.key").public == first.public


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "site.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MaskError, match="never overwritten"):
        Identity.create().save(tmp_path / "site.key")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MaskError, match="cannot be written"):
        Identity.create().save(tmp_path / "nowhere" / "site.key")


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_file_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "site.key"
    Identity.create().save(path)
    path.chmod(mode)
    with pytest.raises(MaskError, match=f"mode {mode:04o}"):
        Identity.load(path)


def test_what_is_no_identity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MaskError, match="cannot be read"):
        Identity.load(tmp_path / "nothing.key")
    nonsense = tmp_path / "nonsense.key"
    nonsense.touch(0o600)
    nonsense.write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(MaskError, match="not an identity file"):
        Identity.load(nonsense)
    other = tmp_path / "other.key"
    other.touch(0o600)
    key = generate_private_key(SECP256R1())
    other.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(MaskError, match="not Ed25519"):
        Identity.load(other)


def test_the_key_is_not_shown() -> None:
    identity = Identity.create()
    raw = identity._key.private_bytes_raw()
    assert raw.hex() not in repr(identity)
    assert repr(raw) not in repr(identity)


def test_a_fingerprint_is_the_start_of_the_hash_in_base32() -> None:
    public = bytes(range(32))
    letters = fingerprint(public).replace("-", "")
    assert base64.b32decode(letters) == hashlib.sha256(public).digest()[:20]
    assert [len(group) for group in fingerprint(public).split("-")] == [4] * 8


def test_a_fingerprint_is_recognised_however_it_was_copied() -> None:
    public = Identity.create().public
    text = fingerprint(public)
    for copied in (text, text.lower(), text.replace("-", " "), text.replace("-", ""), f" {text}\n"):
        assert has_fingerprint(public, copied)
    for wrong in ("", "-", text[:-1], text + "A", fingerprint(Identity.create().public)):
        assert not has_fingerprint(public, wrong)


@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(0, 511))
def test_a_signature_holds_for_its_bytes_and_its_key_only(message: bytes, bit: int) -> None:
    identity = Identity.create()
    signature = identity.sign(message)
    assert is_signed(message, signature, identity.public)
    assert not is_signed(message + b"\0", signature, identity.public)
    assert not is_signed(message, signature, Identity.create().public)
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not is_signed(message, bytes(flipped), identity.public)


def test_malformed_keys_and_signatures_sign_nothing() -> None:
    identity = Identity.create()
    assert not is_signed(b"x", b"", identity.public)
    assert not is_signed(b"x", identity.sign(b"x"), b"short")


@given(
    st.tuples(st.text(max_size=8), st.lists(st.binary(max_size=8), max_size=4)),
    st.tuples(st.text(max_size=8), st.lists(st.binary(max_size=8), max_size=4)),
)
def test_a_statement_can_be_read_in_one_way_only(
    one: tuple[str, list[bytes]], other: tuple[str, list[bytes]]
) -> None:
    assert (statement(one[0], *one[1]) == statement(other[0], *other[1])) == (one == other)


def test_parts_do_not_run_into_each_other() -> None:
    assert statement("p", b"ab", b"c") != statement("p", b"a", b"bc")
    assert statement("p", b"ab") != statement("p", b"ab", b"")


@settings(max_examples=200)
@given(key=st.binary(min_size=32, max_size=32), data=st.data())
def test_a_fingerprint_is_read_however_it_is_spaced_and_nothing_else_is(
    key: bytes, data: st.DataObject
) -> None:
    """A slip of the pen had been taken for a pin that no hospital fits, and said nothing."""
    shown = fingerprint(key)
    spaced = data.draw(
        st.sampled_from([shown, shown.lower(), shown.replace("-", ""), shown.replace("-", " - ")])
    )
    assert read_fingerprint(spaced) == shown
    place = data.draw(st.integers(0, len(shown) - 1).filter(lambda place: shown[place] != "-"))
    slip = data.draw(st.sampled_from(["", "0", "1", "8", "9", "AB", "\u0410", "!"]))
    wrong = shown[:place] + slip + shown[place + 1 :]
    with pytest.raises(MaskError, match="is not a fingerprint"):
        read_fingerprint(wrong)
    section = data.draw(st.sampled_from(["peers", "houses", "revoked"]))
    with pytest.raises(PolicyError, match=rf"\[{section}\] mercy: .* is not a fingerprint"):
        Policy(**{section: {"mercy": wrong}})
