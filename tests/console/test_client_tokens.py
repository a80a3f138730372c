"""Tokens of EHRs: what counts, and what is refused in a sentence."""

from __future__ import annotations

import base64
import json

import pytest

from concilium.console.client_tokens import LONGEST_LIFE, ClientBook, ClientError, TokenError
from consult.cds_patients import EXPIRES, JWKS, TOKEN

jwt = pytest.importorskip("jwt")

BASE, PATH, ISSUER = "https://cds.example.org", "/cds-services/some-service", "https://fhir-ehr.example.com/"
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def keys():
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    return {
        "ES384": ec.generate_private_key(ec.SECP384R1()),
        "RS384": rsa.generate_private_key(65537, 2048),
        "stranger": ec.generate_private_key(ec.SECP384R1()),
    }


def write_clients(folder, keys, **more):
    algorithms = {"ES384": jwt.algorithms.ECAlgorithm, "RS384": jwt.algorithms.RSAAlgorithm}
    listed = [
        {**algorithms[name].to_jwk(keys[name].public_key(), as_dict=True), "kid": name, "use": "sig", **more}
        for name in algorithms
    ]
    (folder / "ehr.json").write_text(json.dumps({"keys": listed}))
    (folder / "clients.toml").write_text(f'[[client]]\nissuer = "{ISSUER}"\njwks = "ehr.json"\n')
    return folder / "clients.toml"


@pytest.fixture
def book(tmp_path, keys):
    return ClientBook(write_clients(tmp_path, keys), BASE, lambda: NOW, since=NOW - 10)


def sign(keys, key="ES384", algorithm=None, kid=None, **claims):
    said = {"iss": ISSUER, "aud": BASE + PATH, "iat": NOW, "exp": NOW + 60, "jti": "one", **claims}
    said = {name: value for name, value in said.items() if value is not None}
    token = jwt.encode(said, keys[key], algorithm=algorithm or key, headers={"kid": kid or key})
    return f"Bearer {token}"


@pytest.mark.parametrize("key", ["ES384", "RS384"])
def test_a_signed_token_counts_once(book, keys, key):
    token = sign(keys, key, aud=[BASE + PATH])
    assert book.check(token, PATH) == ISSUER
    with pytest.raises(TokenError, match="used before"):
        book.check(token, PATH)
    assert book.check(sign(keys, key, jti="two"), PATH) == ISSUER


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"iss": "https://other.example.com/"}, "is not on the list here"),
        ({"kid": "other"}, "is not on the list here"),
        ({"key": "stranger", "algorithm": "ES384", "kid": "ES384"}, "signature is wrong"),
        ({"key": "RS384", "algorithm": "RS256", "kid": "RS384"}, "not signed as its key says"),
        ({"aud": BASE + "/cds-services/other"}, "not made out"),
        ({"aud": 7}, "not made out|no JWT"),
        ({"exp": NOW - 60}, "has expired"),
        ({"exp": NOW + LONGEST_LIFE + 60}, "more than an hour"),
        ({"iat": NOW + 90}, "a time to come"),
        ({"iat": NOW - 20}, "older than this service"),
        ({"exp": "soon"}, "no numbers|no JWT"),
        ({"jti": ""}, "jti is no text"),
        ({"jti": None}, "has no jti"),
        ({"exp": None}, "has no exp"),
    ],
)
def test_any_other_token_is_refused_in_a_sentence(book, keys, change, said):
    with pytest.raises(TokenError, match=said) as refused:
        book.check(sign(keys, **change), PATH)
    assert "other.example" not in str(refused.value)


def test_tokens_without_a_signature_or_of_a_shared_key_are_refused(book, keys):
    def encode(part):
        return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()

    claims = {"iss": ISSUER, "aud": BASE + PATH, "iat": NOW, "exp": NOW + 60, "jti": "one"}
    for header in ({"alg": "none", "kid": "ES384"}, {"alg": "HS384", "kid": "ES384"}):
        with pytest.raises(TokenError):
            book.check(f"Bearer {encode(header)}.{encode(claims)}.", PATH)
    for token in ("", "Bearer", "Bearer x", "Bearer a.b.c", f"Bearer {'x' * 9000}", "Basic eA=="):
        with pytest.raises(TokenError):
            book.check(token, PATH)


def test_the_example_of_the_specification_is_signed_rightly(tmp_path):
    (tmp_path / "ehr.json").write_text(json.dumps(JWKS))
    (tmp_path / "clients.toml").write_text(f'[[client]]\nissuer = "{ISSUER}"\njwks = "ehr.json"\n')
    book = ClientBook(tmp_path / "clients.toml", BASE, lambda: EXPIRES - 1.0, since=0.0)
    assert book.check(f"Bearer {TOKEN}", PATH) == ISSUER
    changed = TOKEN[:-4] + ("AAAA" if not TOKEN.endswith("AAAA") else "BBBB")
    with pytest.raises(TokenError, match="signature is wrong"):
        book.check(f"Bearer {changed}", PATH)


def test_used_tokens_are_forgotten_when_they_have_expired(tmp_path, keys):
    clock = [NOW]
    book = ClientBook(write_clients(tmp_path, keys), BASE, lambda: clock[0], since=NOW)
    for turn in range(5):
        clock[0] = NOW + 100 * turn
        book.check(sign(keys, iat=clock[0], exp=clock[0] + 60, jti=f"{turn}"), PATH)
        assert len(book._used) == 1


def test_a_key_that_is_taken_off_the_list_counts_no_longer(tmp_path, keys, book):
    assert book.check(sign(keys, jti="before"), PATH) == ISSUER
    listed = json.loads((tmp_path / "ehr.json").read_text())["keys"]
    (tmp_path / "ehr.json").write_text(json.dumps({"keys": [one for one in listed if one["kid"] == "RS384"]}))
    with pytest.raises(TokenError, match="not on the list"):
        book.check(sign(keys, jti="after"), PATH)
    (tmp_path / "ehr.json").write_text("nothing")
    with pytest.raises(ClientError, match="is no JWK Set"):
        book.check(sign(keys, "RS384", jti="later"), PATH)


@pytest.mark.parametrize(
    ("jwks", "said"),
    [
        ("{}", "is no JWK Set"),
        ('{"keys": []}', "has no key for ES384"),
        (json.dumps({"keys": [{**JWKS["keys"][0], "d": "x"}]}), "holds a private key"),
        (json.dumps({"keys": [{**JWKS["keys"][0], "crv": "P-256"}]}), "is no JWK Set|has no key"),
        (json.dumps({"keys": [{"kty": "oct", "k": "x", "kid": "a"}]}), "has no key for ES384"),
    ],
)
def test_keys_that_cannot_be_used_are_named_at_the_start(tmp_path, jwks, said):
    (tmp_path / "ehr.json").write_text(jwks)
    (tmp_path / "clients.toml").write_text(f'[[client]]\nissuer = "{ISSUER}"\njwks = "ehr.json"\n')
    with pytest.raises(ClientError, match=said):
        ClientBook(tmp_path / "clients.toml", BASE)


def test_a_list_of_clients_needs_the_address_that_they_call(tmp_path, keys):
    with pytest.raises(ClientError, match="needs --base-url"):
        ClientBook(write_clients(tmp_path, keys), "http://cds.example.org")
    (tmp_path / "clients.toml").write_text("client = 3")
    with pytest.raises(ClientError, match=r"a section \[\[client\]\]"):
        ClientBook(tmp_path / "clients.toml", BASE)
