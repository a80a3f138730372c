"""Who may see and do what in the console: users with roles, sessions, and a limit on guessing.

*Protects:* patients, budgets and studies, from who has no account, from other web pages in the same browser (SameSite
cookies and a token in every form), and from guessing passwords. *Cost:* a log-in takes some tenths of a second.
*Assumes:* who can read the users file or this process's memory is the hospital's own administrator; on `localhost`
without a users file, whoever can read the terminal is the one person that uses it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from concilium.errors import ConciliumError, MissingExtra

if TYPE_CHECKING:
    from argon2 import PasswordHasher

    from concilium.console.openid import OpenidLogin

ROLES = ("viewer", "clinician", "steward", "scientist")
"""viewer: models and reports. clinician: and answers about patients. steward: and studies, ledgers, policies.
scientist: and checking and planning studies. Each sees what a viewer sees."""
SESSION_SECONDS = 8 * 3600
IDLE_SECONDS = 3600
MOST_SESSIONS = 1000
MOST_GUESSES, GUESS_SECONDS = 5, 300.0
MOST_NAME, LEAST_PASSWORD, MOST_PASSWORD = 60, 10, 200
MOST_COUNTED = 10_000
ONE_PERSON = "one person"


class AccessError(ConciliumError):
    """A log-in that is refused, or a users file that is wrong."""


@dataclass
class ConsoleSession:
    """Somebody who is logged in; `csrf` is in each of their forms."""

    user: str
    roles: frozenset[str]
    is_openid: bool = False
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    begun: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)

    def may(self, *roles: str) -> bool:
        return bool(self.roles & set(roles))

    def owns(self, token: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.csrf.encode(), token.encode())


class UserBook:
    """The users file: names, roles and argon2 hashes, never a password. Read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hasher = _make_hasher()
        self._nobody = self._hasher.hash(secrets.token_urlsafe(16))

    def read(self) -> dict[str, dict[str, object]]:
        try:
            content = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            raise AccessError(
                f"{self.path}: is not a users file; make it with `concilium console add-user`"
            ) from None
        if not isinstance(content, dict) or not all(_is_user(one) for one in content.values()):
            raise AccessError(f"{self.path}: is not a users file; make it with `concilium console add-user`")
        return content

    def add(self, name: str, roles: list[str], password: str) -> None:
        """Add a user, or give one another password and other roles."""
        name = name.strip()
        if not 0 < len(name) <= MOST_NAME or not name.isprintable():
            raise AccessError(f"a user's name is one line of at most {MOST_NAME} characters")
        if not roles or (unknown := sorted(set(roles) - set(ROLES))):
            wrong = f"; {unknown[0]!r} is none" if roles else ""
            raise AccessError(f"a user has one or more of the roles {', '.join(ROLES)}{wrong}")
        if not LEAST_PASSWORD <= len(password) <= MOST_PASSWORD:
            raise AccessError(f"a password has {LEAST_PASSWORD} to {MOST_PASSWORD} characters")
        users = self.read()
        users[name] = {"roles": sorted(set(roles)), "password": self._hasher.hash(password)}
        part = self.path.with_name(self.path.name + ".part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                json.dump(users, file, indent=1, ensure_ascii=False)
            part.replace(self.path)
        except OSError as error:
            raise AccessError(f"{self.path}: cannot be written ({error.strerror})") from None

    def check(self, name: str, password: str) -> frozenset[str] | None:
        """The roles of a user with this password; None otherwise, after the same work for a name that nobody has."""
        user = self.read().get(name)
        known = str(user["password"]) if user is not None else self._nobody
        try:
            self._hasher.verify(known, password[: MOST_PASSWORD + 1])
        except Exception:  # one of argon2's, for a wrong password or a hash that is none
            return None
        return frozenset(map(str, user["roles"])) if user is not None else None  # type: ignore[call-overload]


def _is_user(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("password"), str)
        and isinstance(one.get("roles"), list)
        and set(map(str, one["roles"])) <= set(ROLES)
    )


def _make_hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise MissingExtra("web", "the console") from None
    return PasswordHasher()


class Access:
    """Sessions by their cookies, in memory: they end when the console does.

    With `users`, people log in by name and password; with `openid`, at a provider; without either, one person opens the
    address with its token, once.
    """

    def __init__(self, users: UserBook | None, openid: OpenidLogin | None = None) -> None:
        try:
            from itsdangerous import TimestampSigner
        except ImportError:
            raise MissingExtra("web", "the console") from None
        self.users, self.openid = users, openid
        self.token = "" if self.has_users else secrets.token_urlsafe(32)
        self._signer = TimestampSigner(secrets.token_bytes(32), salt="concilium.console")
        self._sessions: dict[str, ConsoleSession] = {}
        self._guesses: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    @property
    def has_users(self) -> bool:
        """Whether people log in by name, here or at a provider."""
        return self.users is not None or self.openid is not None

    def open_by_token(self, token: str) -> str:
        """A cookie for who has the address that the terminal shows; it opens once."""
        with self._lock:
            right = bool(self.token) and hmac.compare_digest(self.token.encode(), token.encode())
            if right:
                self.token = ""
        if not right:
            raise AccessError(
                "This address was used already, or is not the one that the terminal shows. Go on in the browser where "
                "it was opened, or start the console again."
            )
        return self._begin(ConsoleSession(ONE_PERSON, frozenset(ROLES)))

    def log_in(self, name: str, password: str, peer: str) -> str:
        """A cookie for a user; AccessError for a wrong password, and for a name or an address that guesses."""
        if self.users is None:
            raise AccessError("This console has no users: open the address that the terminal shows.")
        keys = (f"name {name[:MOST_NAME]}", f"peer {peer}")
        if wait := self._count_guess(keys):
            raise AccessError(f"Too many log-ins failed. Wait {wait} seconds and try again.")
        roles = self.users.check(name.strip(), password)
        if roles is None:
            raise AccessError("Name or password is wrong.")
        with self._lock:
            for key in keys:
                self._guesses.pop(key, None)
        return self._begin(ConsoleSession(name.strip(), roles))

    def come_back(self, state: str, code: str, browser: str, peer: str) -> tuple[str, str]:
        """A cookie for who logged in at the provider, and their name; AccessError where the answer does not fit."""
        if self.openid is None:
            raise AccessError("This console has no other place to log in.")
        keys = (f"openid {peer}",)
        if wait := self._count_guess(keys):
            raise AccessError(f"Too many log-ins failed. Wait {wait} seconds and try again.")
        name, roles = self.openid.finish(state, code, browser)
        with self._lock:
            self._guesses.pop(keys[0], None)
        return self._begin(ConsoleSession(name, roles, is_openid=True)), name

    def _count_guess(self, keys: tuple[str, ...]) -> int:
        """Count an attempt; for how many seconds there may be no more, 0 where this one is allowed."""
        now = time.monotonic()
        with self._lock:
            if len(self._guesses) > MOST_COUNTED:
                self._guesses = {
                    key: times for key, times in self._guesses.items() if times[-1] > now - GUESS_SECONDS
                }
            for key in keys:
                times = self._guesses.setdefault(key, deque())
                while times and times[0] <= now - GUESS_SECONDS:
                    times.popleft()
                if len(times) >= MOST_GUESSES:
                    return int(times[0] + GUESS_SECONDS - now) + 1
            for key in keys:
                self._guesses[key].append(now)
        return 0

    def _begin(self, session: ConsoleSession) -> str:
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old()
            if len(self._sessions) >= MOST_SESSIONS:
                self._sessions.pop(min(self._sessions, key=lambda one: self._sessions[one].seen))
            self._sessions[name] = session
        return self._signer.sign(name).decode()

    def _drop_old(self) -> None:
        now = time.monotonic()
        for name, one in list(self._sessions.items()):
            if now - one.begun > SESSION_SECONDS or now - one.seen > IDLE_SECONDS:
                del self._sessions[name]

    def find_session(self, cookie: str) -> ConsoleSession | None:
        """Whose cookie it is; None for one that is forged, over or unknown. A user who was taken out of the users file,
        or has other roles there, has no session any more."""
        name = self._read_cookie(cookie)
        with self._lock:
            self._drop_old()
            session = self._sessions.get(name or "")
        if session is None:
            return None
        if self.users is not None and not session.is_openid:
            user: Mapping[str, object] = self.users.read().get(session.user, {})
            if frozenset(map(str, user.get("roles", ()))) != session.roles:  # type: ignore[call-overload]
                self.end(cookie)
                return None
        session.seen = time.monotonic()
        return session

    def end(self, cookie: str) -> None:
        with self._lock:
            self._sessions.pop(self._read_cookie(cookie) or "", None)

    def _read_cookie(self, cookie: str) -> str | None:
        from itsdangerous import BadSignature

        try:
            return str(self._signer.unsign(cookie, max_age=SESSION_SECONDS).decode())
        except BadSignature:
            return None
