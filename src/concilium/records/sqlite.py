"""A table or view of a SQLite file as columns; the file is opened read-only. A cell of SQLite has a type of its own, so
that what should be read cell by cell is stated, by a schema or a dictionary."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from concilium.errors import RecordsError
from concilium.records.coding import Place, Schema, code_values, plan_reading, stated_kind
from concilium.records.columns import Column
from concilium.records.database import find_table
from concilium.records.grammar import tidy_moment

MAGIC = b"SQLite format 3\x00"
TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"


def is_sqlite(path: Path) -> bool:
    """Whether a file is SQLite's, whatever it is called."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_sqlite(path: Path, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table or view."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            tables = [("main", str(name)) for (name,) in connection.execute(TABLES)]
            _, name = find_table(table, tables, "main", str(path))
            quoted = name.replace('"', '""')
            cursor = connection.execute(f'SELECT * FROM "{quoted}"')
            names = [str(column[0]) for column in cursor.description]
            source = f"{path}, table {name!r}"
            kinds = plan_reading(schema, names, source)
            rows = cursor.fetchall()
    except sqlite3.Error as error:
        raise RecordsError(f"{path} cannot be read as a SQLite file: {error}") from None
    if not rows:
        raise RecordsError(f"{source} holds no patients")
    return {
        name: code_values(
            [_tidy(row[place]) for row in rows], stated_kind(kind), Place(source, name), missing
        )
        for name, kind in kinds.items()
        for place in (names.index(name),)
    }


def _tidy(cell: Any) -> Any:
    return tidy_moment(cell) if isinstance(cell, str) else cell
