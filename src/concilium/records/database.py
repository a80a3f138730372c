"""Which table of a database is meant, and a table or view of a hospital's PostgreSQL server as columns.

It is read in one read-only transaction. The server turns every cell into a number, a truth value or text, so that the
same table gives the same columns from here as from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from concilium.errors import MissingExtra, RecordsError, nearest
from concilium.records.batches import DeclaredColumn, code_batches
from concilium.records.coding import Place, ReadingKind, Schema, plan_reading, stated_kind
from concilium.records.columns import EXACT, Column
from concilium.records.grammar import tidy_moment

OMOP_TABLES = {"person", "observation_period"}
"""What tells a database in the OMOP Common Data Model from others."""


def find_table(table: str | None, tables: list[tuple[str, str]], usual: str, source: str) -> tuple[str, str]:
    """The schema and name of the table meant; a name without a schema is looked for in the usual one."""
    names: dict[str, tuple[str, str]] = {}
    twice = set()
    for schema, name in tables:
        spelling = name if schema == usual else f"{schema}.{name}"
        if names.setdefault(spelling, (schema, name)) != (schema, name):
            twice.add(spelling)
    listing = ", ".join(sorted(names)[:10]) or "none"
    if table is None:
        if len(tables) == 1:
            return tables[0]
        if {name.lower() for _, name in tables} >= OMOP_TABLES:
            raise RecordsError(
                f"{source}: is an OMOP database, which has a patient in many tables. Say in a file, such as "
                f'patients.toml, where it is ([source] omop = "..."), who is in ([cohort] entry = {{ condition = '
                '4027663 }) and what is known of them ([covariates] age = "age"), and read that file (docs/omop.md); '
                "or say which table to read with table=..., such as person"
            )
        raise RecordsError(f"{source}: say which table to read with table=...; there are: {listing}")
    for spelling in (table, table.removeprefix(f"{usual}.")):
        if spelling in twice:  # as the table "a.b" of the usual schema and the table "b" of the schema "a"
            raise RecordsError(f"{source}: two tables are called {spelling!r}; rename one of them")
        if spelling in names:
            return names[spelling]
    if not names:
        raise RecordsError(f"{source} holds no tables, so there is no table {table!r}")
    hint = nearest(table, names) or f"; there are: {listing}"
    raise RecordsError(f"{source}: there is no table {table!r}{hint}")


ROWS = 10_000  # rows fetched at once
PATIENCE = 10  # seconds to wait for a server that the address does not set a time for

BOOL, NUMERIC, INT8, MOMENT_TYPES = 16, 1700, 20, (1114, 1184)
NARROW = (21, 23, 700, 701)  # int2, int4, float4, float8

CASTS = {
    "number": "{}::float8",
    "whole": "trunc(nullif({}::numeric, 'NaN'))::text",
    "digits": "CASE WHEN {0} = trunc({0}) THEN nullif(trunc({0})::text, 'NaN') ELSE ({0})::float8::text END",
    "truth": "{}",
    "moment": "{}::text",
    "text": "{}::text",
}
ARROW_TYPES = {"number": "float64", "truth": "bool"}  # of what is not text
TIDY: dict[str, Callable[[str], str]] = {
    "digits": lambda text: text.replace("Infinity", "inf"),
    "moment": tidy_moment,
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
        put_built_in_first(connection)
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


def put_built_in_first(connection: Any) -> None:
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
    import pyarrow
    from psycopg import sql

    description = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table)).description
    kinds = plan_reading(schema, [column.name for column in description], source)
    types = {
        column.name: _type(connection, table, column, kinds[column.name])
        for column in description
        if column.name in kinds
    }
    # Whether a numeric is read with all its digits is found out from all of its cells, where it is not stated.
    guessed = {
        column.name
        for column in description
        if column.type_code == NUMERIC and stated_kind(kinds.get(column.name)) is None
    }

    def read(names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        selection = sql.SQL(", ").join(
            sql.SQL(CASTS[types[name]]).format(sql.Identifier(name)) for name in names
        )
        forms = [ARROW_TYPES.get(types[name], "string") for name in names]
        with connection.cursor(name="patients", binary=True) as cursor:
            cursor.execute(sql.SQL("SELECT {} FROM {}").format(selection, table))
            while block := cursor.fetchmany(ROWS):
                arrays = [
                    pyarrow.array(cells, form)
                    for cells, form in zip(zip(*block, strict=True), forms, strict=True)
                ]
                yield pyarrow.RecordBatch.from_arrays(arrays, list(names))

    declared = {
        name: DeclaredColumn(
            kinds[name] if type_ == "digits" else stated_kind(kinds[name]),
            missing if type_ in ("text", "moment") else frozenset(),
            guess=type_ == "digits",
            by_itself=name not in guessed,
            tidy=TIDY.get(type_),
        )
        for name, type_ in types.items()
    }
    return code_batches(read, declared, lambda name: Place(source, name), f"{source} holds no patients")


def _type(connection: Any, table: Any, column: Any, kind: ReadingKind | None) -> str:
    """What the server is asked to turn a column into; whole numbers with too many digits become text."""
    from psycopg import sql

    if column.type_code == BOOL:
        return "truth"
    if column.type_code in MOMENT_TYPES:
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
