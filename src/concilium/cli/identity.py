"""`concilium identity`: the fingerprint by which other hospitals know this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.output import say, say_json


def identity(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The identity file; made if it is not there.", show_default=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
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
