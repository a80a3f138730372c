"""Log-in by OpenID Connect: people log in at their hospital's provider, and their groups there say their roles here.

The authorization code flow with PKCE, state and nonce (OpenID Connect Core 1.0, section 3.1); Authlib builds requests
and checks claims. *Protects:* from whoever has no account there, from a code or an answer that was meant for somebody
else, from a token that others signed. *Assumes:* the provider tells the truth about who somebody is and in which
groups; a change of groups counts at the next log-in, and a session ends after eight hours.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from concilium.console.access import MOST_NAME, ROLES, AccessError
from concilium.errors import ConciliumError, MissingExtra, nearest

ALGORITHMS = ("RS256", "PS256", "ES256")
SECRET = "CONCILIUM_OPENID_SECRET"
MOST_WAITING = 1000
WAIT_SECONDS, FRESH_SECONDS, TIMEOUT = 600.0, 3600.0, 10.0
LEEWAY = 60
CALLBACK = "/login/openid/back"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _OpenidSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that configures it.

    issuer        the provider; its /.well-known/openid-configuration is read
    client        the name by which the provider knows this console
    address       where people open this console, such as https://console.hospital.example
    roles         for each role here, the groups there that have it
    groups, name  the claims with somebody's groups, and with the name that stands in the audit log
    secret_file   a file with the client's secret; the variable CONCILIUM_OPENID_SECRET has it otherwise
    """

    issuer: str
    client: str
    address: str
    roles: dict[str, list[str]]
    groups: str = "groups"
    name: str = "preferred_username"
    secret_file: str = ""


@dataclass(frozen=True)
class _Waiting:
    """A log-in that was begun: what the answer must fit."""

    nonce: str
    verifier: str
    browser: str
    begun: float


class OpenidLogin:
    """`OpenidLogin(path)`: begins log-ins at the provider of a file, and reads who came back."""

    def __init__(self, path: Path) -> None:
        self.settings, self._secret = _read_settings(path)
        self._waiting: dict[str, _Waiting] = {}
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, Any], Any] | None = None
        _require_authlib()

    @property
    def host(self) -> str:
        """The provider, as people know it."""
        return urlsplit(self.settings.issuer).hostname or self.settings.issuer

    def begin(self) -> tuple[str, str]:
        """Where to send somebody's browser, and a secret that it keeps until it is back."""
        metadata, _ = self._look_up()
        state, nonce, browser = (secrets.token_urlsafe(32) for _ in range(3))
        verifier = secrets.token_urlsafe(48)
        with self._open_client() as client:
            place, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        with self._lock:
            now = time.monotonic()
            self._waiting = {key: one for key, one in self._waiting.items() if now - one.begun < WAIT_SECONDS}
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[state] = _Waiting(nonce, verifier, browser, now)
        return str(place), browser

    def finish(self, state: str, code: str, browser: str) -> tuple[str, frozenset[str]]:
        """Who came back, and with which roles; AccessError where the answer is not one to a log-in of this browser."""
        with self._lock:
            begun = self._waiting.pop(state, None)  # an answer counts once
        if (
            begun is None
            or time.monotonic() - begun.begun > WAIT_SECONDS
            or not secrets.compare_digest(begun.browser.encode(), browser.encode())
        ):
            raise AccessError("This log-in was begun elsewhere, or too long ago. Begin it again.")
        if not code:
            raise AccessError("The provider did not log you in.")
        return self._read_person(self._fetch_claims(code, begun))

    def _fetch_claims(self, code: str, begun: _Waiting) -> Mapping[str, Any]:
        from authlib.common.errors import AuthlibBaseError
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from requests import RequestException

        metadata, keys = self._look_up()
        try:
            with self._open_client() as client:
                token = client.fetch_token(
                    metadata["token_endpoint"], code=code, code_verifier=begun.verifier, timeout=TIMEOUT
                )
            signed = jwt.decode(token["id_token"], keys, algorithms=list(ALGORITHMS))
            claims = CodeIDToken(
                signed.claims,
                signed.header,
                {
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client},
                },
                {
                    "nonce": begun.nonce,
                    "client_id": self.settings.client,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY)
        except (AuthlibBaseError, JoseError, RequestException, KeyError, TypeError, ValueError):
            # The provider's text could hold who it is about.
            raise AccessError(
                "The provider's answer could not be verified, so nobody was logged in."
            ) from None
        return dict(claims)

    def _read_person(self, claims: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
        name = claims.get(self.settings.name)
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
            raise AccessError(f"The provider says no name of yours that can be used ({self.settings.name}).")
        listed = claims.get(self.settings.groups, [])
        groups = {one for one in listed if isinstance(one, str)} if isinstance(listed, list) else set()
        roles = frozenset(role for role, named in self.settings.roles.items() if groups & set(named))
        if not roles:
            raise AccessError("Your account is in no group that has a role here. Ask who keeps this console.")
        return name.strip(), roles

    def _open_client(self) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        return OAuth2Session(
            self.settings.client,
            self._secret,
            scope="openid profile",
            redirect_uri=self.settings.address.rstrip("/") + CALLBACK,
            code_challenge_method="S256",
        )

    def _look_up(self) -> tuple[dict[str, Any], Any]:
        """What the provider says of itself, and its keys; read again once an hour."""
        import requests
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        known = self._known
        if known is not None and time.monotonic() - known[0] < FRESH_SECONDS:
            return known[1], known[2]
        try:
            place = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
            metadata = requests.get(place, timeout=TIMEOUT, allow_redirects=False).json()
            if metadata.get("issuer") != self.settings.issuer:
                raise ValueError
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                _check_address(str(metadata[name]), name)
            keys = KeySet.import_key_set(
                requests.get(metadata["jwks_uri"], timeout=TIMEOUT, allow_redirects=False).json()
            )
        except (requests.RequestException, JoseError, KeyError, TypeError, ValueError, AttributeError):
            raise AccessError(
                f"{self.host} cannot be asked who you are at the moment. Try again later."
            ) from None
        except OpenidError as error:
            raise AccessError(f"{self.host} cannot be used: {error}") from None
        self._known = time.monotonic(), metadata, keys
        return metadata, keys


class OpenidError(ConciliumError):
    """A file for OpenID Connect that is wrong."""


def _read_settings(path: Path) -> tuple[_OpenidSettings, str]:
    try:
        settings = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _OpenidSettings)
        secret = os.environ.get(SECRET, "")
        if settings.secret_file:
            secret = (path.parent / settings.secret_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise OpenidError(f"{path}: it, or its secret_file, cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise OpenidError(f"{path}: is no file for OpenID Connect: {error}") from None
    for role in settings.roles:
        if role not in ROLES:
            raise OpenidError(f"{path}: [roles] has no role {role!r}{nearest(role, ROLES)}")
    if not settings.roles:
        raise OpenidError(f"{path}: [roles] names no group, so that nobody could log in")
    if not secret:
        raise OpenidError(
            f"{path}: the client's secret is missing: name its file as secret_file, or set {SECRET}"
        )
    for name in ("issuer", "address"):
        try:
            _check_address(getattr(settings, name), name)
        except OpenidError as error:
            raise OpenidError(f"{path}: {error}") from None
    return settings, secret


def _check_address(place: str, name: str) -> None:
    """OpenidError for an address over which others could read along."""
    parts = urlsplit(place)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise OpenidError(f"{name} must begin with https://")


def _require_authlib() -> None:
    try:
        import authlib.integrations.requests_client  # noqa: F401
    except ImportError:
        raise MissingExtra("web", "OpenID Connect") from None
