"""Where the console listens, and what it must have to do so beyond this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from concilium.console.access import Access, UserBook
from concilium.console.audit_trail import AuditTrail
from concilium.console.gateway import listen, make_server, run_server, write_address
from concilium.console.guard import GuardedApp
from concilium.console.results_folder import FileCache, ResultsFolder, read_figures
from concilium.console.study_form import read_study_form
from concilium.errors import ConciliumError, MissingExtra

if TYPE_CHECKING:
    from concilium.console.ledger_view import LedgerViews
    from concilium.console.openid import OpenidLogin
    from concilium.console.scientist_pages import CheckedStudy

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PRIVATE = ".console"
USERS, TRAIL, OPENID = "users.json", "audit.jsonl", "openid.toml"
"""What the console keeps of its own, in a hidden folder of the results: who may log in, and who did what."""

PAGES = (
    ("/compare", "Compare", ()),
    ("/steward", "Studies", ("steward",)),
    ("/scientist", "Study files", ("scientist",)),
)


class ConsoleError(ConciliumError):
    """A console that must not start so."""


def _check_place(host: str, tls: tuple[Path, Path] | None, behind_proxy: bool, has_users: bool) -> None:
    """ConsoleError where others could listen in, or use it without an account."""
    if host in LOOPBACK and not behind_proxy:
        return
    if tls is None and not behind_proxy:
        raise ConsoleError(
            f"on {host} others could read along: give --certificate and --key for TLS, or --behind-proxy where a "
            "proxy of yours has TLS; without either the console listens on this machine only"
        )
    if not has_users:
        raise ConsoleError(
            "others could reach this console, and it has no users yet; make one first: concilium console add-user"
        )
    for path in tls or ():
        if not path.is_file():
            raise ConsoleError(f"{path}: is not a file; --certificate and --key are files in PEM")


def make_console(
    folder: Path,
    *,
    users: Path | None = None,
    secure: bool = False,
    behind_proxy: bool = False,
    host: str = "",
    kit: Path | None = None,
    openid: Path | None = None,
    warm: bool = False,
) -> tuple[GuardedApp, Access]:
    """The console of a folder as an application, and its access (whose `token` opens it where it has no users). With
    `warm` it looks at all of the folder in the background, so that the first visitor need not wait for that."""
    try:
        from concilium.console import results_pages, scientist_pages, steward_pages
        from concilium.console.ledger_view import LedgerViews
        from concilium.console.study_runs import StudyRuns
        from concilium.console.web import ConsoleState, make_app
    except ImportError:
        raise MissingExtra("web", "the console") from None
    found = ResultsFolder(folder)
    book = _find_users(folder, users)
    access = Access(book, _find_openid(folder, openid))
    state = ConsoleState(found, access, AuditTrail(found.path / PRIVATE / TRAIL), secure, behind_proxy)
    local = host in LOOPBACK and not behind_proxy
    names = frozenset({"127.0.0.1", "[::1]", "localhost"}) if local else frozenset()
    inside = found.path if access.has_users else None
    views, studies = LedgerViews(), scientist_pages.open_studies(inside, kit)
    routers = [
        results_pages.make_router(),
        steward_pages.make_router(views, inside),
        scientist_pages.make_router(inside, StudyRuns(found.path), studies, kit),
    ]
    if warm:
        threading.Thread(
            target=_look_ahead, args=(found, views, studies), name="looking ahead", daemon=True
        ).start()
    pages = make_app(state, routers, PAGES)
    return GuardedApp(pages, hosts=names, secure=secure), access


def _look_ahead(folder: ResultsFolder, views: LedgerViews, studies: FileCache[CheckedStudy]) -> None:
    """Look at all ledgers and study files of a folder, and load what pages need."""
    found = folder.find()
    for ledger in found.ledgers.values():
        with contextlib.suppress(ConciliumError):
            view = views.look(ledger, found)
            _ = view.spent, view.left  # which take longer than the rest
    for study in found.studies.values():
        with contextlib.suppress(ConciliumError):
            studies.get(study)
    for model in found.models.values():
        read_figures(model)
    read_study_form("")


def _find_openid(folder: Path, openid: Path | None) -> OpenidLogin | None:
    """How people log in at a provider: of a file that is named, or of the one in the folder, if it is there."""
    if openid is not None and not openid.is_file():
        raise ConsoleError(f"{openid}: is not a file")
    place = openid or folder / PRIVATE / OPENID
    if not place.exists():
        return None
    from concilium.console.openid import OpenidLogin as Login

    return Login(place)


def _find_users(folder: Path, users: Path | None) -> UserBook | None:
    """The users of a console: of a file that is named, or of the one in the folder, if it is there."""
    if users is not None and not users.is_file():
        raise ConsoleError(f"{users}: is not a file; make it with `concilium console add-user`")
    place = users or folder / PRIVATE / USERS
    return UserBook(place) if place.exists() else None


def serve_console(
    folder: Path,
    host: str,
    port: int,
    announce: Callable[[str], None],
    *,
    users: Path | None = None,
    tls: tuple[Path, Path] | None = None,
    behind_proxy: bool = False,
    kit: Path | None = None,
    openid: Path | None = None,
) -> None:
    """Listen until interrupted; `announce` gets the address to open."""
    has_users = _find_users(folder, users) is not None or _find_openid(folder, openid) is not None
    _check_place(host, tls, behind_proxy, has_users)
    app, access = make_console(
        folder,
        users=users,
        secure=tls is not None or behind_proxy,
        behind_proxy=behind_proxy,
        host=host,
        kit=kit,
        openid=openid,
        warm=True,
    )
    settings = {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
    server = make_server(app, app.connections, "the console", **settings)
    with listen(host, port, "--port") as listener:
        place = write_address(host, listener.getsockname()[1])
        token = f"/login?token={access.token}" if access.token else "/"
        announce(f"{'http' if tls is None else 'https'}://{place}{token}")
        with contextlib.suppress(KeyboardInterrupt):
            run_server(server, listener)
