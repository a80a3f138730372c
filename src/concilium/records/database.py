"""Which of the tables of a database is meant."""

from __future__ import annotations

from concilium.errors import RecordsError, nearest


def find_table(wanted: str | None, found: list[tuple[str, str]], usual: str, source: str) -> tuple[str, str]:
    """The schema and name of the table meant; a name without a schema is looked for in the usual one."""
    known = {name if schema == usual else f"{schema}.{name}": (schema, name) for schema, name in found}
    if wanted is None:
        if len(found) == 1:
            return found[0]
        listed = ", ".join(sorted(known)[:10]) or "none"
        raise RecordsError(f"{source}: say which table to read with table=...; there are: {listed}")
    for spelling in (wanted, wanted.removeprefix(f"{usual}.")):
        if spelling in known:
            return known[spelling]
    if not known:
        raise RecordsError(f"{source} holds no tables, so there is no table {wanted!r}")
    hint = nearest(wanted, known) or f"; there are: {', '.join(sorted(known)[:10])}"
    raise RecordsError(f"{source}: there is no table {wanted!r}{hint}")
