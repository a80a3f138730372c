"""`concilium ask`: patients like mine, in seconds, as often as needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.output import Json, say, say_json, warn


def ask(
    consultation: Annotated[
        Path,
        typer.Argument(
            metavar="CONSULTATION", help="The study file of a consultation, or the model.json of its release."
        ),
    ],
    patient: Annotated[
        list[str],
        typer.Argument(
            metavar="PATIENT", help="A JSON file, - for standard input, or attribute=value pairs."
        ),
    ],
    requester: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who asks, where the agreement lists names.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Ask hospitals about patients like this one: how many, how likely, why, and what to measure next.

    The first question of a month has hospitals release counts, as they agreed. All further ones are answered from
    these: no hospital is asked again, and none is charged.

    \b
    Examples:
      concilium ask heart.toml age=63 sex=male "chol=240 mg/dl"
      concilium ask heart.toml patient.json --as "Dr. Weiss"
      concilium ask heart.asked/2026-11/model.json age=63 sex=m --json
    """
    import msgspec

    from concilium.cli.consult import read_patients
    from concilium.study.consulting import ask as ask_about

    answers = [
        ask_about(consultation, one, requester=requester, tell=None if as_json else warn)
        for one in read_patients(patient)
    ]
    if as_json:
        plain = [msgspec.to_builtins(one) for one in answers]
        say_json(plain[0] if len(plain) == 1 else plain)
        return
    for number, answer in enumerate(answers, start=1):
        if len(answers) > 1:
            say(("" if number == 1 else "\n") + f"patient {number}")
        say(str(answer))
