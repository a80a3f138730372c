"""Whether a source of patients is still as it was read, found without reading it.

A file is taken for the one that was read while path, size, both times and inode are the same, and so are its first and
last bytes (of Parquet: all that its footer says of its row groups), and likewise the log that a database keeps beside
its file. *Not noticed:* a change inside the file by a program that sets both times back, which takes the clock of the
machine.

A table of a PostgreSQL server is taken for the one that was read while the server has not been started anew and counts
no row that was inserted, changed or deleted since, in the table, or, for a view, in any table of its database; and
while its columns and its file on the server are the same. *Not noticed:* for some ten seconds, what a session that
waits has not reported; and what a view reads from elsewhere than tables. Servers before version 15 may lose such
reports, and are read every time; so is a database with foreign tables, which count nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from concilium.errors import ConciliumError

END_BYTES = 1 << 16
PARQUET = b"PAR1"
LOGS = (".wal", "-wal", "-journal")  # of DuckDB and SQLite
COUNTING_VERSION = 15_00_00

Identity = Mapping[str, Any]
"""What tells a source from others, and from itself after a change. Its `path` is how people call it."""


def identify_file(path: Path) -> dict[str, Any]:
    """A file as it is now."""
    with path.open("rb") as file:
        size = path.stat().st_size
        ends = file.read(END_BYTES)
        file.seek(max(len(ends), size - _measure_end(file.fileno(), ends, size)))
        ends += file.read()
    status = path.stat()
    return {
        "path": str(path.absolute()),
        "size": status.st_size,
        "modified": status.st_mtime_ns,
        "changed": status.st_ctime_ns,
        "inode": status.st_ino,
        "ends": hashlib.sha256(ends).hexdigest(),
        "logs": [_describe_log(path.with_name(path.name + ending)) for ending in LOGS],
    }


def _describe_log(path: Path) -> list[int] | None:
    """A log that has something in it, but for the time at which whoever reads it may have touched it."""
    with suppress(FileNotFoundError):
        status = path.stat()
        if status.st_size:
            return [status.st_size, status.st_mtime_ns, status.st_ino]
    return None


def _measure_end(file: int, beginning: bytes, size: int) -> int:
    """How many of the last bytes are looked at: of Parquet the footer, whose length stands before the last four."""
    tail = os.pread(file, 8, max(0, size - 8))
    if beginning[:4] == tail[4:] == PARQUET:
        return max(END_BYTES, min(size, int.from_bytes(tail[:4], "little") + 8))
    return END_BYTES


def identify_table(url: str, table: str | None) -> dict[str, Any] | None:
    """A table of a PostgreSQL server as it is now, or all of a database where no table is named (`*`); None where the
    server cannot tell."""
    from concilium.records.database import TABLES, connect_to, find_table

    with suppress(ConciliumError), connect_to(url) as (connection, server):
        if connection.info.server_version < COUNTING_VERSION:
            return None
        ask = connection.execute
        if ask("SHOW track_counts").fetchone()[0] != "on":
            return None
        name, kind, described = "", "", []
        if table != "*":
            usual = ask("SELECT coalesce(pg_catalog.current_schema(), 'public')").fetchone()[0]
            schema, relation = find_table(table, ask(TABLES).fetchall(), usual, server)
            name = f"{schema}.{relation}"
            found = ask(DESCRIBED, [schema, relation]).fetchone()
            kind, described = str(found[1]), [str(one) for one in found]
        alone = kind in ("r", "m") and described[-1] == "False"
        if not alone and ask("SELECT 1 FROM pg_catalog.pg_class WHERE relkind = 'f'").fetchone():
            return None
        counted = ask(COUNTED.format("c.oid = %s::oid" if alone else "true"), [described[0]] if alone else [])
        *counts, size = map(str, counted.fetchone())
        info = connection.info
        return {
            "path": f"{server}, {info.dbname} {name}".strip(),
            "user": info.user,
            "started": str(ask("SELECT pg_postmaster_start_time()").fetchone()[0]),
            "described": described,
            "counts": counts,
            "bytes": int(size),
        }
    return None


DESCRIBED = """
    SELECT c.oid, c.relkind, c.relfilenode, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
        (SELECT string_agg(a.attname || ' ' || a.atttypid, ',' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0),
        EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
COUNTED = """
    SELECT count(*), sum(pg_stat_get_tuples_inserted(c.oid)), sum(pg_stat_get_tuples_updated(c.oid)),
        sum(pg_stat_get_tuples_deleted(c.oid)), md5(string_agg(c.oid || ' ' || c.relfilenode, ',' ORDER BY c.oid)),
        coalesce(sum(pg_table_size(c.oid)), 0)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND {}
"""
