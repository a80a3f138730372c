"""A small OpenID Connect provider on this machine, in a thread of the test; it logs in whoever asks."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

SECRET = "a secret of the client"
CLIENT = "concilium"


class Provider:
    """What it says of whoever logs in (`person`), and how it lies (`changes` of claims, `key` that signs)."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.known = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self.key = self.known
        self.person: dict[str, Any] = {"sub": "7", "preferred_username": "Dr. Meyer", "groups": ["icu"]}
        self.changes: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}

    def authorize(self, query: str) -> str:
        """Where the browser is sent back to."""
        asked = dict(parse_qsl(query))
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def give_token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """The tokens for a code, once, to the client that has its secret and the verifier."""
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or authorization != f"Basic {basic}" or challenge != asked["code_challenge"]:
            return None
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.person,
            **self.changes,
        }
        signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        return {"access_token": "unused", "token_type": "Bearer", "id_token": signed}


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts, own = urlsplit(self.path), self.provider
        if parts.path == "/.well-known/openid-configuration":
            self._say(
                {
                    "issuer": own.issuer,
                    "authorization_endpoint": f"{own.issuer}/authorize",
                    "token_endpoint": f"{own.issuer}/token",
                    "jwks_uri": f"{own.issuer}/keys",
                }
            )
        elif parts.path == "/keys":
            self._say({"keys": [own.known.as_dict(private=False)]})
        else:
            self.send_response(303)
            self.send_header("location", own.authorize(parts.query))
            self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        token = self.provider.give_token(form, self.headers.get("authorization", ""))
        self._say(token or {"error": "invalid_grant"}, 200 if token else 400)

    def _say(self, content: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider that listens on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    provider = Provider(server.server_address[1])
    server.RequestHandlerClass = type("Handler", (_Handler,), {"provider": provider})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
