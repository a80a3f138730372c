"""`concilium console`: pages for clinicians, stewards and scientists, over a folder of studies and results."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.ledger import ShowByDefault
from concilium.cli.output import say


class _OpenByDefault(ShowByDefault):
    """`console FOLDER` is `console open FOLDER`."""

    default = "open"


app = typer.Typer(cls=_OpenByDefault, no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of studies and results.")]
Users = Annotated[
    Path | None,
    typer.Option("--users", metavar="FILE", help="The users file; FOLDER/.console/users.json without."),
]
PASSWORD = "CONCILIUM_PASSWORD"


@app.callback()
def console() -> None:
    """Pages for clinicians, stewards and scientists. `console FOLDER` is short for `console open FOLDER`.

    \b
    Example:
      concilium console concilium-demo
    """


@app.command("open", short_help="Serve the pages of a folder.")
def open_console(
    folder: Folder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 finds a free one.")] = 8700,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    users: Users = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for TLS, in PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, in PEM.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy of yours has TLS and forwards to this port.")
    ] = False,
    kit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your kit of a network: studies without records run across it."),
    ] = None,
    openid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For OpenID Connect; FOLDER/.console/openid.toml without."),
    ] = None,
) -> None:
    """Serve the models, studies and ledgers of a folder as pages. Without users, for one person on this machine.

    \b
    Examples:
      concilium console concilium-demo
      concilium console /srv/studies --host 0.0.0.0 --certificate cert.pem --key key.pem
    """
    from concilium.console.serving import ConsoleError, serve_console

    if (certificate is None) != (key is None):
        raise ConsoleError("--certificate and --key go together")
    tls = None if certificate is None or key is None else (certificate, key)
    serve_console(
        folder,
        host.removeprefix("[").removesuffix("]"),
        port,
        lambda address: say(f"The console is open at {address}\nPress Ctrl+C to end it."),
        users=users,
        tls=tls,
        behind_proxy=behind_proxy,
        kit=kit,
        openid=openid,
    )


@app.command("add-user", short_help="Add a user, or change one.")
def add_user(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who logs in by it.")],
    role: Annotated[
        list[str],
        typer.Option("--role", metavar="ROLE", help="viewer, clinician, steward or scientist; repeatable."),
    ],
    users: Users = None,
) -> None:
    """Add a user, or give one another password and other roles. The password is asked for, twice.

    From a script: in the environment variable CONCILIUM_PASSWORD.

    \b
    Example:
      concilium console add-user concilium-demo "Dr. Meyer" --role clinician --role steward
    """
    from concilium.console.access import UserBook
    from concilium.console.serving import PRIVATE, USERS

    place = users or folder / PRIVATE / USERS
    book = UserBook(place)
    password = os.environ.get(PASSWORD)
    if password is None:
        if not sys.stdin.isatty():
            from concilium.console.access import AccessError

            raise AccessError(f"a password is typed at a terminal, or in the environment variable {PASSWORD}")
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    book.add(name, role, password)
    say(f"{place}: {name} may log in as {', '.join(sorted(set(role)))}")


@app.command("audit", short_help="Check that no line of the audit log was changed.")
def audit(folder: Folder) -> None:
    """Check that no line of the audit log was changed, taken out or put in between.

    \b
    Example:
      concilium console audit concilium-demo
    """
    from concilium.console.audit_trail import TrailError, verify
    from concilium.console.serving import PRIVATE, TRAIL

    place = folder / PRIVATE / TRAIL
    if not place.is_file():
        raise TrailError(f"{place}: there is no audit log yet")
    say(f"{place}: {verify(place)} lines, unbroken")
