"""`concilium identity`: the fingerprint by which others know a hospital or a house, and a new one for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.ledger import ShowByDefault, existing
from concilium.cli.output import Json, say, say_json

app = typer.Typer(cls=ShowByDefault, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def identity() -> None:
    """A hospital's or a house's fingerprint. `identity FILE` is short for `identity show FILE`.

    \b
    Example:
      concilium identity north.ledger.identity
    """


@app.command(short_help="Show the fingerprint, for others to pin.")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The identity file; made if it is not there.")],
    as_json: Json = False,
) -> None:
    """Show a hospital's fingerprint, for its peers to enter under [peers] of their policies (a house's: [houses]).

    A site keeps its identity beside its ledger, in LEDGER.identity. Tell the fingerprint to the other hospitals by a
    way that the clearing house does not control: read it out over the telephone.

    \b
    Example:
      concilium identity north.ledger.identity
    """
    from concilium.privacy.identity import Identity

    is_new = not file.exists()
    fingerprint = Identity.at(file).fingerprint
    if as_json:
        say_json({"identity": str(file), "fingerprint": fingerprint, "made": is_new})
    else:
        say(f"{fingerprint}{'   (new)' if is_new else ''}")


@app.command(short_help="Make a new identity, and keep all that lasts.")
def rotate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The identity file.", exists=True)],
    reason: Annotated[str, typer.Option(help="Why; it is entered in the hospital's ledger.")],
    ledger: Annotated[
        Path | None, typer.Option(metavar="LEDGER", help="The hospital's ledger, if not beside FILE.")
    ] = None,
    house: Annotated[bool, typer.Option("--house", help="It is a house's, which has no ledger.")] = False,
    as_json: Json = False,
) -> None:
    """Make a new identity for a hospital or a house whose key may be known to others; stop it first.

    The ledger, what people decided and who is held out stay. The old file is kept beside the new one. Studies under
    way end with the old key: finish them before, or have them proposed anew.

    \b
    Example:
      concilium identity rotate north-state/north.ledger.identity --reason "a laptop was stolen"
      concilium identity rotate house-state/house.identity --house --reason "yearly"
    """
    from concilium.errors import LedgerError
    from concilium.ledger.rotation import rotate_identity

    beside = file.with_suffix("") if file.suffix == ".identity" else None
    if ledger is None and not house and beside is not None and beside.exists():
        ledger = beside
    if (ledger is None) != house:
        raise LedgerError(
            f"{file}: say whose identity it is: --ledger LEDGER of the hospital, which must know of it, or --house"
        )
    made = rotate_identity(file, None if ledger is None else existing(ledger), reason)
    if as_json:
        say_json({"identity": str(file), "old": made.old, "new": made.new, "kept": str(made.aside)})
        return
    say(f"old: {made.old}   (kept in {made.aside})")
    say(f"new: {made.new}")
    say("tell both by telephone or on paper, never over the network:")
    if house:
        say("- hospitals enter the new one under [houses] of their policies, and the old one under [revoked]")
        say("- studies under way are proposed anew: submit them without --resume")
    else:
        say(
            "- the other hospitals enter the new one under [peers] of their policies, and the old one under [revoked]"
        )
        say(
            "- the house enters the new one under [sites] of its local/concilium.toml, and the old one under [revoked]"
        )
        say("- masked questions that were opened before are not opened again with this hospital's new key")


@app.command(short_help="Sign a pass: who somebody is, and may ask as.")
def vouch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The hospital's identity file.", exists=True)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for.")],
    ends: Annotated[str, typer.Option(metavar="DAY", help="The last day, such as 2027-06-30.")],
    out: Annotated[Path, typer.Option(metavar="PASS", help="The file of the pass.")],
    role: Annotated[list[str] | None, typer.Option(help="A role of theirs; may be given again.")] = None,
) -> None:
    """Sign a pass with which somebody asks hospitals about patients like theirs (`concilium ask --pass`).

    A consultation lists who may ask, by name or role, and whose passes count (`signers`: fingerprints). Whoever has
    the file is taken for its owner until its last day: keep it as a key card.

    \b
    Example:
      concilium identity vouch north.ledger.identity "Dr. Weiss" --role cardiology --ends 2027-06-30 --out weiss.pass
    """
    from concilium.consultations.passes import RequesterPass
    from concilium.privacy.identity import Identity

    signed = RequesterPass.sign(Identity.load(file), name, role or (), ends=ends)
    signed.save(out)
    say(f"{out}: {name} until {signed.ends}, signed by {signed.signer}")
