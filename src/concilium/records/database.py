"""Which of the tables of a database is meant."""

from __future__ import annotations

from concilium.errors import RecordsError, nearest


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
