"""`concilium gateway`: a server that filters messages by a hospital's constraint graphs, over HTTP and MLLP."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.output import say, warn
from concilium.errors import PolicyError


def gateway(
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A policy file, or a file of constraint graphs.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 finds a free one.")] = 8600,
    host: Annotated[str, typer.Option(help="The address to listen on, IPv4 or IPv6.")] = "127.0.0.1",
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where decisions are logged; standard error if not said."),
    ] = None,
    hl7_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where to take HL7 v2 messages over MLLP; 0 finds a free port."),
    ] = None,
    hl7_to: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where filtered HL7 v2 messages go on to, over MLLP."),
    ] = None,
    hl7_charset: Annotated[
        str, typer.Option(metavar="NAME", help="What HL7 v2 messages are in that do not say so in MSH-18.")
    ] = "ASCII",
    hl7_idle: Annotated[
        int,
        typer.Option(
            metavar="SECONDS", min=1, help="How long an MLLP connection may be idle before it is closed."
        ),
    ] = 300,
) -> None:
    """Filter messages on their way out: post a graph, a FHIR bundle or HL7 v2, get it back filtered, or refused.

    HL7 v2 messages also come in over MLLP (--hl7-port) and go on filtered to their receiver (--hl7-to), whose
    acknowledgement the sender gets. A changed policy holds from the next message on.

    \b
    Examples:
      concilium gateway policy.toml
      curl --data @bundle.json http://127.0.0.1:8600/transactions
      concilium gateway policy.toml --hl7-port 2575 --hl7-to 127.0.0.1:2576
    """
    from concilium.console.gateway import Gateway, PolicyFile, listen, serve, write_address
    from concilium.console.mllp import MllpChannel, Patience, running
    from concilium.policy.hl7v2 import find_character_set, require_parser

    if (hl7_port is None) != (hl7_to is None):
        raise PolicyError("--hl7-port, where HL7 v2 messages come in, needs --hl7-to, where they go on to")
    receiver = None if hl7_to is None else _read_address(hl7_to)
    if receiver is not None:
        require_parser()
    host = host.removeprefix("[").removesuffix("]")
    gate = Gateway(PolicyFile(policy), find_character_set(hl7_charset, "ascii"))
    _start_log(log)
    if host not in LOOPBACK:
        warn(
            f"listening on {host}: whoever can reach it can send messages, unencrypted; put a proxy with TLS before it"
        )
    with contextlib.ExitStack() as stack:
        if receiver is not None and hl7_port is not None:
            if receiver[0] not in LOOPBACK:
                warn(f"HL7 v2 messages go on to {receiver[0]} unencrypted; put a tunnel (TLS, VPN) between")
            listener = stack.enter_context(listen(host, hl7_port, "--hl7-port"))
            stack.enter_context(running(MllpChannel(gate, *receiver, Patience(idle=hl7_idle)), listener))
            address = write_address(host, listener.getsockname()[1])
            say(f"filtering HL7 v2 sent to {address} (MLLP) on its way to {hl7_to}")
        serve(gate, host, port, lambda address: say(f"filtering messages posted to {address}/transactions"))


LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _read_address(text: str) -> tuple[str, int]:
    """HOST:PORT; a PolicyError where it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise PolicyError(f"--hl7-to is HOST:PORT, such as 127.0.0.1:2576; got {text}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _start_log(path: Path | None) -> None:
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
