"""A table that DuckDB can scan (a Parquet file, a table of a DuckDB file, an Arrow table) as batches.

DuckDB turns every cell into a number, a truth value, a moment or text. It scans Arrow tables (polars, pyarrow and
whatever else speaks the Arrow interface) where they are: nothing is copied, and they read as the same table in a
Parquet file would.

Every connection reads one file, or none, and is then locked. Protects: every other file of this machine, from whoever
wrote the one that is read (a view of it may hold any SQL). Cost: a view that reads files is refused. Assumes: DuckDB
keeps to `enable_external_access` and `lock_configuration`. Extensions are neither installed nor loaded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import RecordsError
from concilium.records.batches import KEEPER, DeclaredColumn, NotContinued, code_batches
from concilium.records.coding import Place, ReadingKind, Schema, plan_reading, stated_kind
from concilium.records.columns import EXACT, Column
from concilium.records.database import find_table
from concilium.records.grammar import tidy_moment

if TYPE_CHECKING:
    import pyarrow
    from duckdb import DuckDBPyConnection

WILD = frozenset("*?[")
WORKING_BYTES = (
    16  # of one column while it is read, for each row; and at least one byte for each cell that is kept
)
BATCH_ROWS = 1 << 17
MOST_TEXT = 1 << 34  # bytes of one column, with each cell counted

FLOATS = frozenset({"FLOAT", "DOUBLE", "TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER"})
WHOLE = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})
WIDE = frozenset({"BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM", "VARINT"})


@contextmanager
def scratch_database(
    source: Path | None = None, *, attach: bool = False, threads: int | None = None
) -> Iterator[tuple[DuckDBPyConnection, Path]]:
    """A DuckDB in memory that reads this file and no other, and the path that it has there.

    `attach` opens the file as the database `hospital`. Without a file the path is that of a private folder, where goes
    what does not fit in memory; the folder is deleted at the end.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="concilium-") as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": folder,
        }
        if threads is not None:
            settings["threads"] = threads
        connection = duckdb.connect(":memory:", config=settings)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET enable_progress_bar = false")
            connection.execute("SET arrow_large_buffer_size = true")  # a batch may hold 2 GiB of text
            # Five values in a list become a join, which returns rows in any order.
            connection.execute("SET disabled_optimizers = 'in_clause'")
            place = Path(folder)
            if source is not None:
                place = _plain_path(source, place)
                file = literal(str(place))
                connection.execute(
                    f"ATTACH {file} AS hospital (READ_ONLY, TYPE duckdb)"
                    if attach
                    else f"SET allowed_paths = [{file}]"
                )
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection, place
        finally:
            connection.close()


def _find_memory() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def literal(text: str) -> str:
    """Text as SQL text."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name as an SQL name, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def _plain_path(path: Path, folder: Path) -> Path:
    """The same file under a name that DuckDB does not take for a pattern."""
    whole = path.absolute()
    if not WILD & set(str(whole)):
        return whole
    link = folder / "source"
    link.symlink_to(whole)
    return link


@contextmanager
def in_one_sentence(problem: str) -> Iterator[None]:
    """DuckDB's own messages run over many lines and quote cells; ours name the source and say what to do."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise RecordsError(f"{problem}: there is not enough memory") from None
    except duckdb.Error:
        raise RecordsError(problem) from None


@dataclass(frozen=True)
class _Relation:
    """What can stand after FROM, and what is known about its columns."""

    connection: DuckDBPyConnection
    table: str
    source: str
    missing: frozenset[str] = frozenset()
    plain: _PlainParquet | None = None

    def ask(self, expression: str) -> Any:
        rows = self.connection.execute(f"SELECT {expression} FROM {self.table}").fetchall()
        return rows[0][0]

    def columns(self, schema: Schema) -> dict[str, Column]:
        """All columns of a typed table: NULL is missing, the types say what is a number. They leave no guess: each cell
        has a label of its own, whatever the others hold."""

        described = self.connection.execute(f"DESCRIBE SELECT * FROM {self.table}").fetchall()
        types = {str(row[0]): str(row[1]) for row in described}
        kinds = plan_reading(schema, [str(row[0]) for row in described], self.source)
        rows = self.ask("count(*)")
        # A few bytes can stand for any number of equal cells.
        streams = KEEPER.get() is not None
        if not streams and rows * (WORKING_BYTES + len(kinds)) > _find_memory():
            raise RecordsError(
                f"{self.source} holds {rows:,} rows of {len(kinds)} columns, more than the memory of this machine"
            )
        empty = f"{self.source} holds no patients"
        if not rows:
            raise RecordsError(empty)
        casts = {name: self._cast(name, types[name], kind) for name, kind in kinds.items()}

        def read(names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
            if self._is_plain(types, {name: casts[name][0] for name in names}):
                assert self.plain is not None
                return self.plain.read(names)
            cells = ", ".join(f"{casts[name][0]} AS {identifier(name)}" for name in names)
            query = self.connection.sql(f"SELECT {cells} FROM {self.table}")
            return iter(query.to_arrow_reader(BATCH_ROWS))

        def read_later(names: Sequence[str], before: Mapping[str, Any]) -> Iterator[pyarrow.RecordBatch]:
            if not self._is_plain(types, {name: casts[name][0] for name in names}):
                raise NotContinued("it has columns that DuckDB turns into text")
            assert self.plain is not None
            return self.plain.read(names, before["groups"])

        declared = {name: column for name, (_, column) in casts.items()}
        return code_batches(read, declared, lambda name: Place(self.source, name), empty, read_later)

    def _is_plain(self, types: dict[str, str], casts: dict[str, str]) -> bool:
        """Whether Arrow can read these columns; dates only of the years that both write in the same way."""
        if self.plain is None or not self.plain.has(types, casts):
            return False
        dates = [identifier(name) for name in casts if types[name] == "DATE"]
        within = " AND ".join(f"{one} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'" for one in dates)
        return not dates or bool(self.ask(f"coalesce(bool_and({within}), true)"))

    def _cast(self, name: str, type_: str, reading: ReadingKind | None) -> tuple[str, DeclaredColumn]:
        """The SQL of a column's cells as moments, truth values, numbers or text, and what is declared of it."""
        cell, kind = identifier(name), stated_kind(reading)
        typed = DeclaredColumn(kind, by_itself=True)
        if reading == "time" and (type_ == "DATE" or type_.startswith("TIMESTAMP")):
            moment = f"{cell}::{'TIMESTAMPTZ' if type_.endswith('TIME ZONE') else 'TIMESTAMP'}"
            # An infinite moment has no number, and the column is read as text.
            if not self.ask(f"coalesce(bool_or({cell} IS NOT NULL AND epoch_us({moment}) IS NULL), false)"):
                return moment, typed
        if type_ == "BOOLEAN":
            return cell, typed
        whole = type_ in WIDE or (type_.startswith("DECIMAL") and type_.endswith(",0)"))
        if type_ in FLOATS or type_.startswith("DECIMAL") or whole:
            large = f"bool_or({cell} >= {EXACT} OR {cell} <= -{EXACT})"
            if kind == "number" or not (whole and self.ask(large)):
                # Whole numbers as they are: they take less, and are coded without a look at their fractions.
                return (cell if type_ in WHOLE and kind is None else f"{cell}::DOUBLE"), typed
        text = f"{cell}::VARCHAR"
        if (self.ask(f"sum(strlen({text}))") or 0) > MOST_TEXT:
            raise RecordsError(
                f"{self.source}: column {name!r} holds more than {MOST_TEXT >> 30} GiB of text; leave it out"
            )
        tidy = tidy_moment if type_.startswith("TIMESTAMP") else None
        # Whether whole numbers come this way depends on all of them, so that no text stands for missing among them.
        return text, replace(typed, missing=frozenset() if whole else self.missing, tidy=tidy)


PLAIN = {
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "DATE": "date32[day]",
}
AS_TEXT = ("VARCHAR", "DATE")


class _PlainParquet:
    """A Parquet file whose cells Arrow reads as DuckDB does, and gives as it has them: texts with their dictionary,
    which takes less time. What a column is, and whether the file is damaged, DuckDB decides all the same."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, types: dict[str, str], casts: dict[str, str]) -> bool:
        """Whether these columns, with the types of all that DuckDB sees, can be read so."""
        from pyarrow import parquet

        schema = parquet.read_schema(self._path)
        return schema.names == list(types) and all(
            "." not in name
            and PLAIN.get(types[name]) == str(schema.field(name).type)
            and cell.removeprefix(identifier(name))
            in (["::VARCHAR"] if types[name] in AS_TEXT else ["", "::DOUBLE"])
            for name, cell in casts.items()
        )

    def read(self, names: Sequence[str], start: int = 0) -> Iterator[pyarrow.RecordBatch]:
        """The cells of these columns, from this row group on."""
        import pyarrow
        from pyarrow import parquet

        try:
            texts = [
                name for name in names if str(parquet.read_schema(self._path).field(name).type) == "string"
            ]
            with parquet.ParquetFile(self._path, read_dictionary=texts, buffer_size=1 << 20) as file:
                groups = list(range(start, file.num_row_groups))
                for batch in file.iter_batches(BATCH_ROWS, groups, columns=list(names)):
                    yield pyarrow.record_batch(list(map(_write_dates, batch.columns)), list(names))
        except (pyarrow.ArrowException, OSError):
            raise RecordsError(f"{self._path} cannot be read as a Parquet file") from None


def _write_dates(array: Any) -> Any:
    """An array of dates as texts; others as they are."""
    import pyarrow

    if not pyarrow.types.is_date(array.type):
        return array
    encoded = array.dictionary_encode()
    return pyarrow.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pyarrow.string()))


def read_parquet(path: Path, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a Parquet file."""
    with (
        in_one_sentence(f"{path} cannot be read as a Parquet file"),
        scratch_database(path) as (connection, file),
    ):
        table = f"read_parquet({literal(str(file))}, hive_partitioning = false)"
        plain = _PlainParquet(path) if KEEPER.get() is not None else None
        return _Relation(connection, table, str(path), missing, plain).columns(schema)


def read_duckdb(path: Path, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table or view of a DuckDB file, which is opened read-only. A view reads this file alone."""
    with ExitStack() as stack:
        with in_one_sentence(
            f"{path} cannot be opened as a DuckDB file; it is damaged, of a newer DuckDB, or open for writing elsewhere"
        ):
            connection, _ = stack.enter_context(scratch_database(path, attach=True))
            listed = connection.execute(
                "SELECT table_schema, table_name, table_type FROM information_schema.tables"
                " WHERE table_catalog = 'hospital' ORDER BY ALL"
            ).fetchall()
            tables = [(schema_name, name) for schema_name, name, _ in listed]
            views = {(schema_name, name) for schema_name, name, kind in listed if kind == "VIEW"}
        full_name = find_table(table, tables, "main", str(path))
        view = full_name in views
        remedy = "; a view reads tables of its own file, and no other file" if view else ""
        with in_one_sentence(f"{path}: table {full_name[1]!r} cannot be read{remedy}"):
            reference = ".".join(identifier(part) for part in ("hospital", *full_name))
            if view:
                # A query may return other rows each time, and the table is asked more than once.
                connection.execute(f"CREATE TEMP TABLE patients AS SELECT * FROM {reference}")
                reference = "patients"
            return _Relation(connection, reference, f"{path}, table {full_name[1]!r}", missing).columns(
                schema
            )


def read_arrow(source: Any, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table that speaks Arrow."""
    import pyarrow

    name = f"the {type(source).__module__.partition('.')[0]} {type(source).__name__}"
    try:
        table = pyarrow.table(source)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise RecordsError(f"{name} cannot be read as a table: {str(error)[:200]}") from None
    return scan_table(table, name, schema, missing)


def read_arrow_file(path: Path, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of an Arrow file, in the file format (Feather) or as a stream."""
    import pyarrow
    from pyarrow import ipc

    try:
        with pyarrow.memory_map(str(path)) as source:
            opened = ipc.open_file if source.read(6) == b"ARROW1" else ipc.open_stream
            source.seek(0)
            return scan_table(opened(source).read_all(), str(path), schema, missing)
    except (pyarrow.ArrowException, OSError):
        raise RecordsError(f"{path} cannot be read as an Arrow file") from None


def scan_table(table: Any, source: str, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of an Arrow table, which errors call `source`."""
    names = [str(name) for name in table.column_names]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordsError(f"{source}: two columns are named {twice!r}; rename one of them")
    # Several threads scan an Arrow table in any order.
    with (
        in_one_sentence(f"{source} cannot be read as a table"),
        scratch_database(threads=1) as (connection, _),
    ):
        connection.register("patients", table)
        return _Relation(connection, "patients", source, missing).columns(schema)
