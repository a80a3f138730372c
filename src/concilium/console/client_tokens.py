"""Who calls a CDS service: tokens that EHRs sign (JWT, ES384 or RS384), by keys that a hospital keeps as files.

*Protects:* the service, from callers who are not on the list and from a call that is sent a second time, *from:*
whoever can reach the port, *cost:* none, *assumes:* TLS, clocks that agree to half a minute, and keys that came to the
hospital by a way it trusts. A token's own `jku` is not followed: nobody makes this process call an address.
"""

from __future__ import annotations

import heapq
import json
import math
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from concilium.errors import ConciliumError, MissingExtra

ALGORITHMS = ("ES384", "RS384")
LONGEST_LIFE = 3600
LEEWAY = 30
MOST_BYTES = 8192
MOST_REMEMBERED = 200_000
MOST_NAME = 256
LEAST_RSA_BITS = 2048


class ClientError(ConciliumError):
    """A file of clients that cannot be used."""


class TokenError(ConciliumError):
    """A call whose token does not count; it says why, and nothing of what the token holds."""


class _Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuer: str
    jwks: str


class _Clients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client: list[_Client]


class ClientBook:
    """`ClientBook(Path("clients.toml"), "https://cds.example.org").check(header, path)` is the issuer.

    The file has for each EHR a section [[client]] with its issuer and the file of its keys (a JWK Set). Both are read
    again when they change. `now` is a clock.
    """

    def __init__(
        self,
        path: Path,
        base: str,
        now: Callable[[], float] = time.time,
        *,
        since: float | None = None,
    ) -> None:
        try:
            import jwt  # noqa: F401 - whether it is there
        except ImportError:
            raise MissingExtra("cds", "checking the tokens of clients") from None
        if not base.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise ClientError(
                "--clients needs --base-url, the https address by which clients call: tokens are made out to it"
            )
        self.path, self.base, self._now = path, base.rstrip("/"), now
        self._since = now() if since is None else since
        self._lock = threading.Lock()
        self._used: dict[tuple[str, str], float] = {}
        self._ends: list[tuple[float, tuple[str, str]]] = []
        self._seen: list[tuple[Path, int, int]] = []
        self._keys: dict[tuple[str, str], Any] = {}
        self._read()

    def check(self, authorization: str, path: str) -> str:
        """The issuer of the token of a call to this path; TokenError where it does not count."""
        import jwt

        kind, _, token = authorization.partition(" ")
        if kind.casefold() != "bearer" or not token:
            raise TokenError("this service wants a token that your EHR signs: Authorization: Bearer ...")
        if len(token) > MOST_BYTES:
            raise TokenError("the token is too long")
        keys = self._find_keys()
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise TokenError("the token is no JWT") from None
        issuer, key = claims.get("iss"), header.get("kid")
        if not isinstance(issuer, str) or not isinstance(key, str) or (issuer, key) not in keys:
            raise TokenError(
                "the token is of an issuer, or signed with a key (kid), that is not on the list here"
            )
        found = keys[issuer, key]
        try:
            claims = jwt.decode(
                token,
                found.key,
                algorithms=[found.algorithm_name],
                options={
                    "require": ["iss", "aud", "exp", "iat", "jti"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                    "verify_aud": False,
                },
            )
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"the token has no {error.claim}") from None
        except jwt.InvalidSignatureError:
            raise TokenError("the token's signature is wrong") from None
        except jwt.InvalidAlgorithmError:
            raise TokenError("the token is not signed as its key says (ES384 or RS384)") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise TokenError("the token is no JWT as CDS Hooks has it") from None
        self._check_claims(claims, path)
        self._use(issuer, claims["jti"], float(claims["exp"]))
        return issuer

    def _check_claims(self, claims: dict[str, Any], path: str) -> None:
        now = self._now()
        named = claims["aud"]
        if f"{self.base}{path}" not in (named if isinstance(named, list) else [named]):
            raise TokenError(f"the token is not made out (aud) to {self.base}{path}")
        times = [claims["exp"], claims["iat"], claims.get("nbf", 0)]
        if not all(isinstance(one, int | float) and math.isfinite(one) for one in times):
            raise TokenError("the token's times are no numbers")
        expires, issued, valid_from = times
        if now > expires + LEEWAY:
            raise TokenError("the token has expired: make a new one for each call")
        if issued > now + LEEWAY or valid_from > now + LEEWAY:
            raise TokenError("the token is of a time to come: set the clocks")
        if expires > now + LONGEST_LIFE:
            raise TokenError(
                "the token is valid for more than an hour: make one for each call, of a few minutes"
            )
        if issued < self._since:
            raise TokenError("the token is older than this service, which has just started: make a new one")
        jti = claims["jti"]
        if not isinstance(jti, str) or not 1 <= len(jti) <= MOST_NAME:
            raise TokenError("the token's jti is no text")

    def _use(self, issuer: str, jti: str, expires: float) -> None:
        """Take a token as used; TokenError where it was before."""
        with self._lock:
            now = self._now()
            while self._ends and self._ends[0][0] < now:
                del self._used[heapq.heappop(self._ends)[1]]
            if (issuer, jti) in self._used:
                raise TokenError("the token was used before (jti): make a new one for each call")
            if len(self._used) >= MOST_REMEMBERED:
                raise TokenError("too many tokens are still valid: make them valid for a minute")
            self._used[issuer, jti] = expires
            heapq.heappush(self._ends, (expires + LEEWAY, (issuer, jti)))

    def _find_keys(self) -> dict[tuple[str, str], Any]:
        with self._lock:
            if any(_look(path) != (path, size, when) for path, size, when in self._seen):
                self._read()
            return self._keys

    def _read(self) -> None:
        """Take the keys of all clients; ClientError names the file that is wrong."""
        seen = [_look(self.path)]
        try:
            listed = msgspec.convert(tomllib.loads(self.path.read_text(encoding="utf-8")), _Clients)
        except OSError as error:
            raise ClientError(f"{self.path}: cannot be read ({error.strerror})") from None
        except (ValueError, msgspec.ValidationError) as error:
            raise ClientError(
                f"{self.path}: must have for each EHR a section [[client]] with issuer and jwks: {error}"
            ) from None
        keys: dict[tuple[str, str], Any] = {}
        for one in listed.client:
            place = self.path.parent / one.jwks
            seen.append(_look(place))
            keys |= {(one.issuer, name): key for name, key in _read_keys(place).items()}
        self._keys, self._seen = keys, seen


def _look(path: Path) -> tuple[Path, int, int]:
    try:
        state = path.stat()
    except OSError:
        return path, -1, -1
    return path, state.st_size, state.st_mtime_ns


def _read_keys(path: Path) -> dict[str, Any]:
    """The public keys of a JWK Set by their names."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        listed = json.loads(path.read_bytes())["keys"]
        found: dict[str, Any] = {}
        for one in listed:
            if "d" in one:
                raise ClientError(
                    f"{path}: holds a private key: keep that at the EHR, and give the public one"
                )
            algorithm = {"EC": "ES384", "RSA": "RS384"}.get(one.get("kty"), "")
            if one.get("alg", algorithm) not in ALGORITHMS or one.get("use", "sig") != "sig" or not algorithm:
                continue
            key = jwt.PyJWK.from_dict(one, algorithm)
            strong = (
                isinstance(key.key, EllipticCurvePublicKey) and isinstance(key.key.curve, SECP384R1)
            ) or (isinstance(key.key, RSAPublicKey) and key.key.key_size >= LEAST_RSA_BITS)
            if strong and isinstance(one.get("kid"), str):
                found[one["kid"]] = key
    except OSError as error:
        raise ClientError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError):
        raise ClientError(f"{path}: is no JWK Set") from None
    if not found:
        raise ClientError(
            f"{path}: has no key for ES384 (P-384) or RS384 (RSA, {LEAST_RSA_BITS} bits or more) with a kid"
        )
    return found
