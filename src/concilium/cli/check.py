"""`concilium check`: does a hospital's table fit a study, its own map and its own policy? Nothing leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import escape_controls, say, say_json, say_table
from concilium.errors import StudyError

if TYPE_CHECKING:
    from concilium.consult.table_check import TableCheck

WORDS = {"fault": "mend", "odd": "look"}


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A study file (TOML), to check the tables of its sites; or a table, with the options below.",
            show_default=False,
        ),
    ],
    site: Annotated[str | None, typer.Option("--site", help="Of a study file, this site alone.")] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            "--dictionary", metavar="FILE", help="The dictionary: its file, a study file, or terms (JSON)."
        ),
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="The hospital's map of this table.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="The hospital's policy.")
    ] = None,
    query: Annotated[str, typer.Option("--query", help="The study's query.")] = "",
    target: Annotated[str, typer.Option("--target", help="The column that the study predicts.")] = "",
    table: Annotated[str | None, typer.Option("--table", help="The table in a database.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="A page with pictures (HTML), for the hospital alone.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Check a hospital's table, where it lies, against dictionary, map and policy (exit code 2 if it does not fit).

    \b
    Examples:
      concilium check study.toml --site north --out north.html
      concilium check north.csv --dictionary heart.toml --map north.map.toml --policy north.toml
    """
    options = [dictionary, map_file, policy, query, target, table]
    if source.lower().endswith(".toml"):
        from concilium.study import Study
        from concilium.study.checking import check_study

        if any(options):
            raise StudyError(
                "a study file names dictionary, maps, policies, query and target itself: leave those out"
            )
        checks = check_study(Study.read(source), site)
    else:
        if site is not None:
            raise StudyError("--site goes with a study file; a table is one site's")
        checks = [check_table(source, dictionary, map_file, policy, query, target, table)]
    if out is not None:
        write_page(out, checks, source)
    if as_json:
        say_json([one.to_dict() for one in checks])
    else:
        for one in checks:
            tell(one)
        if out is not None:
            say(f"{out}: the same with pictures, for this hospital alone")
    if not all(one.fits for one in checks):
        raise typer.Exit(2)


def check_table(
    source: str,
    dictionary: Path | None,
    map_file: Path | None,
    policy: Path | None,
    query: str,
    target: str,
    table: str | None,
) -> TableCheck:
    from concilium.consult.table_check import TableUnderStudy
    from concilium.policy.policy import Policy
    from concilium.records.dictionary import Dictionary
    from concilium.records.table_map import TableMap, read_mapped

    known = Dictionary() if dictionary is None else Dictionary.read(dictionary)
    problems: dict[str, str] = {}
    records = read_mapped(
        source,
        table,
        dictionary=known,
        map=None if map_file is None else TableMap.read(map_file),
        problems=problems,
    )
    return TableUnderStudy(
        Path(source).name if "://" not in source else "the database",
        records,
        known,
        Policy() if policy is None else Policy.read(policy),
        query,
        target,
        problems=problems,
    ).check()


def write_page(out: Path, checks: list[TableCheck], source: str) -> None:
    from concilium.consult.check_page import render_check

    try:
        out.write_text(render_check(checks, Path(source).name), encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None


def tell(check: TableCheck) -> None:
    """A line, the columns, and what was found."""
    left = "" if check.selected is None else f", {check.selected} of them left by query and policy"
    say(
        f"{escape_controls(check.name)}: {'fits' if check.fits else 'does NOT fit'}; {check.patients} patients{left}"
    )
    say_table(
        ["column", "known", "missing", "holds"],
        [
            [escape_controls(cell) for cell in (one.name, str(one.known), str(one.missing), one.summary)]
            for one in check.columns
        ],
    )
    for finding in check.findings:
        column = f"{finding.column}: " if finding.column else ""
        say(escape_controls(f"{WORDS[finding.level]}  {column}{finding.what}"))
