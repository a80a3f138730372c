"""A table of a hospital's PostgreSQL server as columns, read in one read-only transaction.

The server turns every cell into a number, a truth value or text, so that the same table gives the same
columns from here as from a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra, RecordsError
from concilium.records.coding import (
    Numbering,
    Place,
    ReadingKind,
    Schema,
    code_natural,
    code_numbers,
    code_texts,
    plan_reading,
    stated_kind,
)
from concilium.records.columns import EXACT, Column
from concilium.records.database import find_table
from concilium.records.grammar import tidy_moment

ROWS = 10_000  # rows fetched at once
PATIENCE = 10  # seconds to wait for a server that the address does not set a time for

BOOL, NUMERIC, INT8, MOMENTS = 16, 1700, 20, (1114, 1184)
NARROW = (21, 23, 700, 701)  # int2, int4, float4, float8

CASTS = {
    "number": "{}::float8",
    "whole": "trunc(nullif({}::numeric, 'NaN'))::text",
    "digits": "CASE WHEN {0} = trunc({0}) THEN nullif(trunc({0})::text, 'NaN') ELSE ({0})::float8::text END",
    "truth": "{}",
    "moment": "{}::text",
    "text": "{}::text",
}
TABLES = """
    SELECT table_schema, table_name FROM information_schema.tables
    WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
    UNION SELECT schemaname, matviewname FROM pg_catalog.pg_matviews ORDER BY 1, 2
"""


def read_postgres(url: str, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table or view behind a postgresql:// address."""
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("postgres", "reading a PostgreSQL table") from None

    with connect_to(url) as (connection, server):
        usual = connection.execute("SELECT coalesce(pg_catalog.current_schema(), 'public')").fetchone()[0]
        _put_built_in_first(connection)
        full_name = find_table(table, connection.execute(TABLES).fetchall(), usual, server)
        source = f"{server}, table {full_name[1]!r}"
        try:
            return _read_table(connection, psycopg.sql.Identifier(*full_name), source, schema, missing)
        except psycopg.errors.InsufficientPrivilege:
            raise RecordsError(f"{source}: this user may not read it; ask for the right to SELECT") from None
        except psycopg.Error as fault:
            raise RecordsError(f"{source} could not be read to its end ({type(fault).__name__})") from None


@contextmanager
def connect_to(url: str) -> Iterator[tuple[Any, str]]:
    """A read-only transaction that sees one state of the database, and the server's name without secrets."""
    import psycopg

    try:
        settings = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise RecordsError(
            "this is not a PostgreSQL address; it has the form postgresql://user@host:5432/database"
        ) from None
    server = f"PostgreSQL at {settings.get('host', 'localhost')}:{settings.get('port', 5432)}"
    try:
        patience = settings.get("connect_timeout") or PATIENCE
        address = psycopg.conninfo.make_conninfo(url, connect_timeout=patience, client_encoding="utf8")
        connection = psycopg.connect(address)
    except psycopg.Error as fault:
        raise RecordsError(f"{server} {_why(str(fault))}") from None
    with connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute("SET LOCAL timezone = 'UTC'")
        connection.execute("SET LOCAL datestyle = 'ISO'")
        yield connection, server


def _put_built_in_first(connection: Any) -> None:
    """Find PostgreSQL's own functions, operators and types before others of the same name.

    Protects: what is read, from whoever may create a schema in the database. The rest of the path stays, since
    functions in the hospital's views may need it.
    """
    path = connection.execute("SHOW search_path").fetchone()[0]
    path = f"pg_catalog, {path}" if path else "pg_catalog"
    connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", [path])


def _why(fault: str) -> str:
    """The driver's text may quote the address and runs over many lines; this is its gist."""
    if "authentication failed" in fault or "no password supplied" in fault:
        return "does not accept this user and password"
    if "database" in fault and "does not exist" in fault:
        return "has no such database"
    return "does not answer; check the address and that the server is running"


def _read_table(
    connection: Any, table: Any, source: str, schema: Schema, missing: frozenset[str]
) -> dict[str, Column]:
    from psycopg import sql

    description = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table)).description
    plan = plan_reading(schema, [column.name for column in description], source)
    kinds = {name: stated_kind(kind) for name, kind in plan.items()}
    description = [column for column in description if column.name in kinds]
    names = list(kinds)
    types = [_type(connection, table, column, plan[column.name]) for column in description]
    selection = sql.SQL(", ").join(
        sql.SQL(CASTS[kind]).format(sql.Identifier(name)) for kind, name in zip(types, names, strict=True)
    )
    numberings = [Numbering() for _ in names]
    parts: list[list[NDArray[Any]]] = [[] for _ in names]
    with connection.cursor(name="patients", binary=True) as cursor:
        cursor.execute(sql.SQL("SELECT {} FROM {}").format(selection, table))
        while block := cursor.fetchmany(ROWS):
            for kind, numbering, part, cells in zip(
                types, numberings, parts, zip(*block, strict=True), strict=True
            ):
                part.append(np.array(cells, np.float64) if kind == "number" else numbering.code(cells))
    if not parts or not parts[0]:
        raise RecordsError(f"{source} holds no patients")
    columns: dict[str, Column] = {}
    for name, kind, numbering, part in zip(names, types, numberings, parts, strict=True):
        codes, values, stated, place = (
            np.concatenate(part),
            numbering.distinct,
            kinds[name],
            Place(source, name),
        )
        if kind == "number":
            columns[name] = code_numbers(codes, stated)
        elif kind == "digits":
            texts = [str(text).replace("Infinity", "inf") for text in values]
            columns[name] = code_texts(codes, texts, stated, place, guess=True)
        else:
            values = [tidy_moment(str(text)) for text in values] if kind == "moment" else values
            tokens = frozenset() if kind == "whole" else missing
            columns[name] = code_natural(codes, values, stated, place, tokens)
    # Whether a numeric is read with all its digits is found out from all of its cells, where it is not stated.
    guessed = {column.name for column in description if column.type_code == NUMERIC}
    guessed -= {name for name, kind in kinds.items() if kind is not None}
    return {name: replace(column, by_itself=name not in guessed) for name, column in columns.items()}


def _type(connection: Any, table: Any, column: Any, kind: ReadingKind | None) -> str:
    """What the server is asked to turn a column into; whole numbers with too many digits become text."""
    from psycopg import sql

    if column.type_code == BOOL:
        return "truth"
    if column.type_code in MOMENTS:
        return "moment"
    if column.type_code in NARROW:
        return "number"
    if column.type_code not in (NUMERIC, INT8):
        return "text"
    if column.type_code == NUMERIC and kind in ("code", "text"):
        return "digits"
    question = sql.SQL(
        "SELECT bool_and(x = trunc(x)) AND bool_or(abs(x) >= {})"
        " FROM (SELECT nullif({}::numeric, 'NaN') AS x FROM {}) AS cells"
    ).format(sql.Literal(EXACT), sql.Identifier(column.name), table)
    return "whole" if kind != "number" and connection.execute(question).fetchone()[0] else "number"
