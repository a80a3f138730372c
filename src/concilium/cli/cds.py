"""`concilium cds`: models as CDS Hooks services, which an EHR calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from concilium.cli.output import say, warn
from concilium.errors import ModelError


def cds(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Model files (model.json), each as FILE or NAME=FILE; without a name, that of its folder.",
        ),
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="FILE", help="A dictionary that adds codes of attributes to the models' own."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 finds a free one.")] = 8800,
    host: Annotated[str, typer.Option(help="The address to listen on, IPv4 or IPv6.")] = "127.0.0.1",
    clients: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The EHRs that may call, each with issuer and keys (JWK Set)."),
    ] = None,
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="The address by which EHRs call; tokens are made out to it.")
    ] = "",
    console: Annotated[
        str, typer.Option(metavar="URL", help="The console, to whose page of the model cards link.")
    ] = "",
    audit: Annotated[
        Path, typer.Option(metavar="FILE", help="Where feedback is entered, line by line.")
    ] = Path("cds-audit.jsonl"),
    oldest: Annotated[
        int, typer.Option(metavar="DAYS", min=0, help="How old observations and medications may be.")
    ] = 365,
    flagged_only: Annotated[
        bool, typer.Option("--flagged-only", help="No card for patients who are not flagged.")
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A page that may call from a browser, such as a sandbox."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For TLS: the certificate (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="For TLS: its key (PEM).")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy of yours has TLS and passes calls on.")
    ] = False,
) -> None:
    """Serve models to an EHR by CDS Hooks 2.0: cards with risk, interval and reasons, from prefetched FHIR.

    \b
    Examples:
      concilium cds results/model.json --map heart.toml
      concilium cds chest-pain=results/model.json --console https://models.example.org
      concilium cds results/model.json --host 0.0.0.0 --certificate tls.pem --key tls.key \\
        --clients clients.toml --base-url https://cds.example.org
    """
    from concilium.console.audit_trail import AuditTrail
    from concilium.console.cds_server import CdsApp, check_place, serve_cds
    from concilium.console.client_tokens import ClientBook, ClientError
    from concilium.console.serving import ConsoleError
    from concilium.consult.cds_hooks import make_services, make_slug
    from concilium.consult.fhir_validation import require_validation
    from concilium.consult.fhir_values import find_mapping, is_found, list_inputs
    from concilium.models.model_file import load, name_by_content
    from concilium.records.dictionary import Dictionary

    require_validation()
    if (certificate is None) != (key is None):
        raise ConsoleError("--certificate and --key go together")
    if clients is None and base_url:
        raise ClientError("--base-url is what tokens are made out to, and needs --clients")
    host = host.removeprefix("[").removesuffix("]")
    tls = None if certificate is None or key is None else (certificate, key)
    book = None if clients is None else ClientBook(clients, base_url)
    check_place(host, tls, behind_proxy, book)
    methods: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for one in models:
        given, _, file = one.rpartition("=")
        name = make_slug(given or Path(file).resolve().parent.name)
        if not name:
            raise ModelError(f"{one}: has no name that an address could have: write NAME={file}")
        if name in methods:
            raise ModelError(f"{one}: {name} is the name of two models: write NAME={file}")
        method = load(file)
        if why := method.find_why_silent():
            raise ModelError(f"{file}: has no answer about one patient: {why}")
        methods[name], keys[name] = method, name_by_content(Path(file))
    described = {*Dictionary.read(mapping).entries} if mapping is not None else set()
    about = [name for name, method in methods.items() if described & {*list_inputs(method)}]
    named = {
        name: (method, find_mapping(method, mapping if name in about or not about else None))
        for name, method in methods.items()
    }
    services = make_services(named, console=console, keys=keys, oldest=oldest, flagged_only=flagged_only)
    for service in services.values():
        if unmapped := [name for name in service.inputs if not is_found(name, service.entries)]:
            warn(f"{service.id}: has no codes of {', '.join(unmapped)}, and so never knows them")
    app = CdsApp(services, AuditTrail(audit), clients=book, origins=frozenset(origin or ()))
    _start_log()
    serve_cds(app, host, port, lambda address: say(f"{', '.join(services)}: listed at {address}"), tls=tls)


def _start_log() -> None:
    """What was answered, with its time, to standard error; never about whom."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("concilium.cds")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
