"""`concilium check` and `concilium dictionary`: does a hospital's table fit a study, and what could a dictionary of it
say? Nothing leaves the hospital.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concilium.cli.output import Json, escape_controls, say, say_json, say_table
from concilium.errors import StudyError

if TYPE_CHECKING:
    from concilium.consult.table_check import TableCheck

WORDS = {"fault": "fix:  ", "odd": "check:"}


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A study file (TOML), to check the tables of its sites; or a table or a cohort file, with the options "
            "below.",
        ),
    ],
    site: Annotated[str | None, typer.Option(help="Of a study file, this site alone.")] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The dictionary: its file, a study file, or terms (JSON)."),
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="The hospital's map of this table.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="The hospital's policy.")] = None,
    query: Annotated[str, typer.Option(help="The study's query.")] = "",
    target: Annotated[str, typer.Option(help="The column that the study predicts.")] = "",
    table: Annotated[str | None, typer.Option(help="The table in a database.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A page with pictures (HTML), for the hospital alone.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a hospital's table, where it lies, against dictionary, map and policy (exit code 2 if it does not fit).

    \b
    Examples:
      concilium check study.toml --site north --out north.html
      concilium check north.csv --dictionary heart.toml --map north.map.toml --policy north.toml
    """
    from concilium.records.cohort_file import names_cohort

    options = [dictionary, map_file, policy, query, target, table]
    if source.lower().endswith(".toml") and not names_cohort(source):
        from concilium.study import Study
        from concilium.study.running import check_study

        if any(options):
            raise StudyError(
                "a study file names dictionary, maps, policies, query and target itself: leave those out"
            )
        checks = check_study(Study.read(source), site)
    else:
        if site is not None:
            raise StudyError("--site goes with a study file; a table is one site's")
        checks = [_check_table(source, dictionary, map_file, policy, query, target, table)]
    if out is not None:
        from concilium.consult.table_check import render_check
        from concilium.study.results import write_whole

        write_whole(out, render_check(checks, Path(source).name).encode())
    if as_json:
        say_json([one.to_dict() for one in checks])
    else:
        for one in checks:
            _tell(one)
        if out is not None:
            say(f"{out}: the same with pictures, for this hospital alone")
    if not all(one.fits for one in checks):
        raise typer.Exit(2)


def _check_table(
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


def _tell(check: TableCheck) -> None:
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
        say(escape_controls(f"{WORDS[finding.level]} {column}{finding.what}"))


def dictionary(
    records: Annotated[
        list[str],
        typer.Argument(metavar="TABLES", help="The tables of all hospitals, as a study takes them."),
    ],
    table: Annotated[str | None, typer.Option(help="The table in a database.")] = None,
    map_files: Annotated[
        list[Path] | None,
        typer.Option("--map", metavar="FILE", help="The hospital's map of its table; once for every table."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file for the draft.")] = None,
) -> None:
    """Draft a dictionary from the tables of a study, locally: TOML to complete, and then to share.

    A private study may start from the draft: it states values and ranges that hold for all tables.

    \b
    Example:
      concilium dictionary north.csv south.csv west.csv --out heart.toml
    """
    from concilium.errors import StudyError
    from concilium.protocol.schema import say_left_out
    from concilium.records.cohort_dictionary import complete_draft
    from concilium.records.cohort_file import CohortFile, is_cohort_file
    from concilium.records.drafting import draft_dictionary
    from concilium.records.table import Records
    from concilium.records.table_map import TableMap

    if map_files and len(map_files) != len(records):
        raise StudyError(
            f"give --map once for every table, in their order: {len(records)}, not {len(map_files)}"
        )
    files: list[Path | None] = [*map_files] if map_files else [None] * len(records)
    maps = [None if file is None else TableMap.read(file) for file in files]
    tables = {
        name: Records.read(source, table=table, map=own)
        for name, source, own in zip(_name_sources(records), records, maps, strict=True)
    }
    draft = draft_dictionary(tables)
    for source in filter(is_cohort_file, records):
        draft = complete_draft(draft, CohortFile.read(source))
    text = draft.to_toml(list(tables))
    if out is None:
        say(text.rstrip())
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StudyError(f"{out} is there already; name another file, or move it away") from None
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None
    say(f"{out}: a draft of {len(draft.dictionary)} columns; check it before you share it")
    if draft.left_out:
        say(escape_controls(say_left_out(draft.left_out)))


def _name_sources(sources: list[str]) -> list[str]:
    """What each table is called in a draft: its file's name, with the folder where two are alike; no address of a
    database, which may hold a password."""
    names = [Path(source).name if "://" not in source else "a database" for source in sources]
    if len(set(names)) < len(names):
        names = [source if "://" not in source else "a database" for source in sources]
    seen = [names[:place].count(name) for place, name in enumerate(names)]
    return [
        name if not before else f"{name} ({before + 1})" for name, before in zip(names, seen, strict=True)
    ]
