"""Where a table of patients can come from, and which reader takes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from concilium.errors import RecordsError, nearest
from concilium.records.coding import Schema
from concilium.records.columns import Column
from concilium.records.grammar import BLANKS, DEFAULT_MISSING

TEXT_FILES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
DATABASES = (".duckdb", ".db", ".sqlite", ".sqlite3")
SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
ARROW_FILES = (".arrow", ".feather", ".ipc")
ENDINGS = (*TEXT_FILES, ".parquet", *DATABASES, *SPREADSHEETS, *ARROW_FILES)
SERVERS = ("postgresql", "postgres")


def read_columns(
    source: Any, table: str | None, schema: Schema, missing: Iterable[str] | None
) -> dict[str, Column]:
    """The columns of any source; `Records.read` says what the arguments mean. The schema may also choose columns."""
    tokens = _tokens(missing if missing is not None else ())
    if is_frame(source):
        from concilium.records.frame import read_frame

        _refuse_table(table, "a DataFrame")
        return read_frame(source, schema, tokens)
    if not isinstance(source, str | os.PathLike):
        if hasattr(type(source), "__arrow_c_stream__"):
            from concilium.records.arrow import read_arrow

            _refuse_table(table, f"a {type(source).__name__}")
            return read_arrow(source, schema, tokens)
        lazy = "; collect() it first" if type(source).__name__ == "LazyFrame" else ""
        raise RecordsError(
            f"patients cannot be read from a {type(source).__name__}{lazy}; give a path, a PostgreSQL URL or a "
            f"DataFrame, and rows to Records.from_rows"
        )
    address = os.fspath(source)
    if "://" in address:
        return _read_server(address, table, schema, tokens)
    path = Path(address)
    ending = next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)
    if ending is None:
        raise RecordsError(
            f"{path}: cannot tell what kind of file this is; its name must end in one of {', '.join(ENDINGS)}"
        )
    _check_file(path)
    if ending in DATABASES:
        from concilium.records.sqlite import is_sqlite, read_sqlite

        if is_sqlite(path):
            return read_sqlite(path, table, schema, tokens)
        from concilium.records.relation import read_duckdb

        return read_duckdb(path, table, schema, tokens)
    if ending in SPREADSHEETS:
        from concilium.records.spreadsheet import read_spreadsheet

        own = tokens if missing is not None else _tokens(DEFAULT_MISSING)
        return read_spreadsheet(path, table, schema, own)
    _refuse_table(table, str(path))
    if ending in TEXT_FILES:
        from concilium.records.delimited import read_delimited

        return read_delimited(path, schema, tokens if missing is not None else _tokens(DEFAULT_MISSING))
    if ending in ARROW_FILES:
        from concilium.records.arrow import read_arrow_file

        return read_arrow_file(path, schema, tokens)
    from concilium.records.relation import read_parquet

    return read_parquet(path, schema, tokens)


def name_row(source: Any, row: int, table: str | None = None) -> str:
    """How people find a row, counted from 0, in a source: by its line in a text file, by its number in a sheet."""
    if is_text_file(source):
        from concilium.records.delimited import look

        return look(Path(source)).row(row)
    if isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(SPREADSHEETS):
        from concilium.records.spreadsheet import name_sheet_row

        return name_sheet_row(Path(source), table, row)
    return f"row {row + 1}"


def is_text_file(source: Any) -> bool:
    """Whether this is a file of text, whose cells have no types."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(TEXT_FILES)


def is_frame(source: object) -> bool:
    """Whether this is a pandas DataFrame; whoever holds one has imported pandas already."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def _tokens(missing: Iterable[str]) -> frozenset[str]:
    return frozenset(token.strip(BLANKS) for token in ((missing,) if isinstance(missing, str) else missing))


def _read_server(url: str, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    scheme = url.partition("://")[0].lower()
    if scheme not in SERVERS:
        raise RecordsError(
            f"cannot read from a {scheme}:// address{nearest(scheme, SERVERS)}; "
            f"databases are read by postgresql:// addresses, files by their path"
        )
    from concilium.records.postgres import read_postgres

    return read_postgres(url, table, schema, missing)


def _refuse_table(table: str | None, source: str) -> None:
    if table is not None:
        raise RecordsError(f"{source} is one table, so table={table!r} has no meaning here; leave it out")


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise RecordsError(f"{path} is a folder, not a file")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise RecordsError(f"there is no file {path}") from None
    except OSError as fault:
        raise RecordsError(
            f"{path} cannot be opened: {(fault.strerror or 'unknown reason').lower()}"
        ) from None
    if empty:
        raise RecordsError(f"{path} is empty")
