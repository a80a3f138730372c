"""`concilium ask`: patients like mine, in seconds, as often as needed."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import Json, say, say_json, warn
from concilium.errors import ConciliumError, ModelError

if TYPE_CHECKING:
    from concilium.cli.consult import Patient


def ask(
    consultation: Annotated[
        Path,
        typer.Argument(
            metavar="CONSULTATION",
            help="The study file of a consultation, the model.json of its release, or, with --outcome, tables.",
        ),
    ],
    patient: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATIENT]",
            help="A JSON file (a FHIR Bundle too), - for standard input, or attribute=value pairs; without it, a form.",
        ),
    ] = None,
    outcome: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="What is asked about, where hospitals' tables are given; it writes a study file, to go on with.",
        ),
    ] = "",
    requester: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who asks, where the agreement lists names.")
    ] = "",
    signed: Annotated[
        Path | None,
        typer.Option(
            "--pass",
            metavar="FILE",
            envvar="CONCILIUM_PASS",
            help="Your pass, signed by your hospital (`concilium identity vouch`), where the agreement wants one.",
        ),
    ] = None,
    kit: Annotated[
        Path | None,
        typer.Option(
            "--kit",
            metavar="DIR",
            help="Your own kit: hospitals are on machines of their own, and the house releases each month's counts.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Of a FHIR Bundle: a dictionary that adds codes of attributes to the study's own.",
        ),
    ] = None,
    oldest: Annotated[
        int, typer.Option(metavar="DAYS", min=0, help="Of a FHIR Bundle, how old an observation may be.")
    ] = 365,
    as_json: Json = False,
) -> None:
    """Ask hospitals about patients like this one: how many, how likely, why, and what to measure next.

    The first question of a month has hospitals release counts, as they agreed. All further ones are answered from
    these: no hospital is asked again, and none is charged.

    \b
    Examples:
      concilium ask north.csv south.csv west.csv --outcome death age=63 sex=f
      concilium ask heart.toml age=63 sex=male "chol=240 mg/dl"
      concilium ask heart.toml
      concilium ask heart.toml bundle.json --as "Dr. Weiss"
      concilium ask heart.toml age=63 sex=male --kit kits/ana@example.org
      concilium ask heart.asked/2026-11/model.json age=63 sex=m --json
    """
    import msgspec

    from concilium.cli.consult import read_patients
    from concilium.consultations.passes import RequesterPass
    from concilium.study.consulting import ask as ask_about

    if signed is not None and requester:
        raise ModelError("say who asks by a name (--as) or by a pass (--pass), not by both")
    who = requester if signed is None else RequesterPass.read(signed)
    tell = None if as_json else warn
    drafted = False
    if outcome:
        consultation, patient, drafted = _draft_study([str(consultation), *(patient or [])], outcome)
    elif consultation.suffix not in (".toml", ".json") and consultation.is_file():
        raise ModelError(
            f"{consultation}: is no study file: of tables, say what is asked about, --outcome COLUMN"
        )
    fetch = None
    if kit is not None:
        from concilium.cli.flare import open_fetch

        fetch, own = open_fetch(kit, consultation, who, warn)
        who = who or own
    try:
        patients = read_patients(patient) if patient else [_fill_in(consultation, elsewhere=kit is not None)]
        answers = [
            ask_about(
                consultation, one, requester=who, tell=tell, fetch=fetch, oldest=oldest, mapping=mapping
            )
            for one in patients
        ]
    except ConciliumError:
        if drafted:
            consultation.unlink()
        raise
    if as_json:
        plain = [msgspec.to_builtins(one) for one in answers]
        say_json(plain[0] if len(plain) == 1 else plain)
        return
    for number, answer in enumerate(answers, start=1):
        if len(answers) > 1:
            say(("" if number == 1 else "\n") + f"patient {number}")
        say(str(answer))
    if drafted:
        warn(
            f"{consultation}: the study file; to go on: concilium ask {consultation} {shlex.join(patient or [])}"
        )


def _draft_study(arguments: list[str], outcome: str) -> tuple[Path, list[str], bool]:
    """The study file of these tables, what is said of the patient, and whether the file was written just now."""
    from concilium.study.consulting import draft_study

    def is_table(one: str) -> bool:
        return "=" not in one and one != "-" and not one.endswith(".json")

    tables = list(itertools.takewhile(is_table, arguments))
    if absent := [one for one in tables if not Path(one).is_file()]:
        raise ModelError(f"{absent[0]}: there is no such table")
    path, is_new = draft_study([Path(one) for one in tables], outcome)
    return path, arguments[len(tables) :], is_new


def _fill_in(consultation: Path, *, elsewhere: bool) -> Patient:
    """A form: every attribute in turn, the grid first. What is impossible is asked for again."""
    from concilium.consultations.answers import read_request
    from concilium.records.dictionary import describe_entry
    from concilium.study.consulting import list_attributes

    entries = list_attributes(consultation, elsewhere=elsewhere)
    patient: Patient = {}
    warn("Press Enter for what is not known.")
    for name, entry in entries.items():
        hint = f" ({describe_entry(entry)})" if entry is not None else ""
        while text := typer.prompt(f"{name}{hint}", default="", show_default=False, err=True).strip():
            try:
                known = {one: found for one, found in entries.items() if found is not None}
                read_request({name: text}, [name], list(entries), known)
            except ModelError as error:
                warn(str(error))
            else:
                patient[name] = text
                break
    return patient
