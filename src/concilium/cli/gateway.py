"""`concilium gateway`: a web server that filters messages by a hospital's constraint graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.output import say, warn
from concilium.errors import PolicyError


def gateway(
    policy: Annotated[
        Path,
        typer.Argument(
            metavar="POLICY", help="A policy file, or a file of constraint graphs.", show_default=False
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 finds a free one.")
    ] = 8600,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Where decisions are logged; standard error if not said."),
    ] = None,
) -> None:
    """Filter messages on their way out: post a graph or a FHIR bundle, get it back filtered, or refused.

    \b
    Example:
      concilium gateway policy.toml
      curl --data @bundle.json http://127.0.0.1:8600/transactions
    """
    from concilium.console.gateway import Gateway, serve
    from concilium.policy.policy import read_rules

    graphs = read_rules(policy).graphs()
    if graphs is None:
        raise PolicyError(
            f"{policy}: there is no constraint graph in it, so a gateway would let everything through"
        )
    if graphs.needs_secret and not graphs.has_secret:
        raise PolicyError(
            f"{policy}: hash and shift_dates need a secret here; name a file with it as `secret` under [constraints]"
        )
    start_log(log)
    if host not in ("127.0.0.1", "::1", "localhost"):
        warn(
            f"listening on {host}: whoever can reach it can send messages, unencrypted; put a proxy with TLS before it"
        )
    serve(
        Gateway(graphs),
        host,
        port,
        lambda address: say(f"filtering messages posted to {address}/transactions"),
    )


def start_log(path: Path | None) -> None:
    """Decisions with their time, to a file or standard error."""
    import logging

    try:
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise PolicyError(f"{path}: the log cannot be written ({error.strerror})") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("concilium.gateway")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
