"""`concilium dictionary`: a draft of a study's dictionary from a hospital's own table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concilium.cli.output import say


def dictionary(
    records: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table, as a study takes it.", show_default=False)
    ],
    table: Annotated[str | None, typer.Option("--table", help="The table in a database.")] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="The hospital's map of this table.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="A new file for the draft.", show_default=False),
    ] = None,
) -> None:
    """Draft a dictionary from a table, locally: TOML for people to mend, and then to share.

    \b
    Example:
      concilium dictionary north.csv --out heart.toml
    """
    from concilium.errors import StudyError
    from concilium.records.drafting import draft_dictionary
    from concilium.records.table import Records
    from concilium.records.table_map import TableMap

    patients = Records.read(records, table=table, map=None if map_file is None else TableMap.read(map_file))
    text = draft_dictionary(patients).to_toml(Path(records).name if "://" not in records else "a database")
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
    say(f"{out}: a draft of {len(patients.names)} columns; mend it before you share it")
