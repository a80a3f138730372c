"""Tables in the Arrow format: polars, pyarrow and whatever else speaks its interface, and Arrow files. DuckDB scans
them where they are, so that they read as the same table in a Parquet file would; nothing is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from concilium.errors import RecordsError
from concilium.records.coding import Schema
from concilium.records.columns import Column
from concilium.records.relation import Relation, in_one_sentence, scratch_database


def read_arrow(source: Any, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table that speaks Arrow."""
    import pyarrow

    name = f"the {type(source).__module__.partition('.')[0]} {type(source).__name__}"
    try:
        table = pyarrow.table(source)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise RecordsError(f"{name} cannot be read as a table: {str(error)[:200]}") from None
    return _scan(table, name, schema, missing)


def read_arrow_file(path: Path, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of an Arrow file, in the file format (Feather) or as a stream."""
    import pyarrow
    from pyarrow import ipc

    try:
        with pyarrow.memory_map(str(path)) as source:
            opened = ipc.open_file if source.read(6) == b"ARROW1" else ipc.open_stream
            source.seek(0)
            return _scan(opened(source).read_all(), str(path), schema, missing)
    except (pyarrow.ArrowException, OSError):
        raise RecordsError(f"{path} cannot be read as an Arrow file") from None


def _scan(table: Any, source: str, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    names = [str(name) for name in table.column_names]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordsError(f"{source}: two columns are named {twice!r}; rename one of them")
    # Columns are read one by one, and must all come in the order of the rows: by one thread.
    with (
        in_one_sentence(f"{source} cannot be read as a table"),
        scratch_database(threads=1) as (connection, _),
    ):
        connection.register("patients", table)
        return Relation(connection, "patients", source, missing).columns(schema)
