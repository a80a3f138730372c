"""A table that DuckDB can scan (a Parquet file, a table of a DuckDB file, the cells of a text file) as columns.

Columns are read one at a time and coded inside DuckDB, so that a category costs one Python object and not
one per patient.

Every connection reads one file, or none, and is then locked. Protects: every other file of this machine, from whoever
wrote the one that is read (a view of it may hold any SQL). Cost: a view that reads files is refused. Assumes: DuckDB
keeps to `enable_external_access` and `lock_configuration`. Extensions are neither installed nor loaded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records.coding import (
    SAFE_NUMBER,
    Kind,
    Numbering,
    Place,
    ReadingKind,
    Schema,
    code_dictionary,
    code_numbers,
    code_texts,
    plan_reading,
    reads_as_number,
    stated_kind,
)
from concilium.records.columns import EXACT, Column, Moments, keep_raw
from concilium.records.database import find_table
from concilium.records.grammar import (
    BLANKS,
    DEFAULT_MISSING,
    LOSING,
    PLAIN_MOMENT,
    STATED_NUMBER,
    WHOLE,
    tidy_moment,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FEW_TEXTS = 4096  # with no more distinct texts than this, guessing looks at each of them
MOST_ENUM = 65535  # beyond it DuckDB's enums are slower than Python's own dictionaries
WILD = frozenset("*?[")
WORKING_BYTES = (
    16  # of one column while it is read, for each row; and at least one byte for each cell that is kept
)
MOST_TEXT = 1 << 34  # bytes of one column, with each cell counted

FLOATS = frozenset({"FLOAT", "DOUBLE", "TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER"})
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
            # Five values in a list become a join, which returns rows in any order; columns are read one by one.
            connection.execute("SET disabled_optimizers = 'in_clause'")
            place = Path(folder)
            if source is not None:
                place = plain_path(source, place)
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


def find_memory() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def literal(text: str) -> str:
    """Text as SQL text."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name as an SQL name, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def plain_path(path: Path, folder: Path) -> Path:
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
class Relation:
    """What can stand after FROM, and what is known about its columns."""

    connection: DuckDBPyConnection
    table: str
    source: str
    missing: frozenset[str] = frozenset()

    def fetch(self, expression: str) -> NDArray[Any]:
        cells = self.connection.execute(f"SELECT {expression} AS cell FROM {self.table}").fetchnumpy()["cell"]
        return np.asarray(np.ma.filled(cells, None) if cells.dtype == object else cells)

    def ask(self, expression: str) -> Any:
        row = self.connection.execute(f"SELECT {expression} FROM {self.table}").fetchone()
        return row[0] if row else None

    def columns(self, schema: Schema) -> dict[str, Column]:
        """All columns of a typed table: NULL is missing, the types say what is a number. They leave no guess: each cell
        has a label of its own, whatever the others hold."""
        described = self.connection.execute(f"DESCRIBE SELECT * FROM {self.table}").fetchall()
        types = {str(row[0]): str(row[1]) for row in described}
        kinds = plan_reading(schema, [str(row[0]) for row in described], self.source)
        rows = self.ask("count(*)")
        if not rows:
            raise RecordsError(f"{self.source} holds no patients")
        # A few bytes can stand for any number of equal cells.
        if rows * (WORKING_BYTES + len(kinds)) > find_memory():
            raise RecordsError(
                f"{self.source} holds {rows:,} rows of {len(kinds)} columns, more than the memory of this machine"
            )
        return {
            name: replace(
                self._typed(identifier(name), types[name], kind, Place(self.source, name)),
                by_itself=True,
            )
            for name, kind in kinds.items()
        }

    def _typed(self, cell: str, kind_of_cell: str, reading: ReadingKind | None, place: Place) -> Column:
        if reading == "time" and (kind_of_cell == "DATE" or kind_of_cell.startswith("TIMESTAMP")):
            moments = self._moments(cell, f"{cell} IS NOT NULL", zoned=kind_of_cell.endswith("TIME ZONE"))
            if moments is not None:
                return moments
        kind = stated_kind(reading)
        if kind_of_cell == "BOOLEAN":
            codes = self.fetch(f"CASE WHEN {cell} THEN 2 WHEN NOT {cell} THEN 1 ELSE 0 END::UTINYINT")
            return code_dictionary(codes, (False, True), kind, place)
        whole = kind_of_cell in WIDE or (kind_of_cell.startswith("DECIMAL") and kind_of_cell.endswith(",0)"))
        if kind_of_cell in FLOATS or kind_of_cell.startswith("DECIMAL") or whole:
            large = f"bool_or({cell} >= {EXACT} OR {cell} <= -{EXACT})"
            if kind == "number" or not (whole and self.ask(large)):
                return code_numbers(self.fetch(f"coalesce({cell}::DOUBLE, 'nan'::DOUBLE)"), kind)
        text = f"{cell}::VARCHAR"
        if (self.ask(f"sum(strlen({text}))") or 0) > MOST_TEXT:
            raise RecordsError(
                f"{self.source}: column {place.name!r} holds more than {MOST_TEXT >> 30} GiB of text; leave it out"
            )
        codes, texts = self.code_in_database(text, self.ask(f"count(DISTINCT {text})"))
        if kind_of_cell.startswith("TIMESTAMP"):
            texts = [tidy_moment(text) for text in texts]
        # Whether whole numbers come this way depends on all of them, so that no text stands for missing among them.
        return code_texts(codes, texts, kind, place, frozenset() if whole else self.missing)

    def guessed(self, cell: str, reading: ReadingKind | None, place: Place) -> Column:
        """A column of a text file: what its texts stand for is guessed unless stated."""
        text = f"coalesce({cell}, '')"
        if reading == "time":
            tokens = ", ".join(map(literal, sorted(self.missing)))
            present = f"trim({text}, {literal(BLANKS)}) NOT IN ({tokens})" if tokens else "true"
            plain = f"regexp_full_match({text}, {_padded(PLAIN_MOMENT)})"
            if self.ask(f"bool_and({plain} OR NOT ({present}))"):
                moments = self._moments(f"TRY_CAST(trim({text}, {literal(BLANKS)}) AS TIMESTAMP)", present)
                if moments is not None:
                    return moments
        kind = stated_kind(reading)
        distinct = self.ask(f"count(DISTINCT {text})")
        if reading == "text":
            return code_texts(*self.code_in_database(text, distinct), kind, place, self.missing)
        if distinct > FEW_TEXTS and kind != "code" and self._all_numbers(text, kind):
            numbers = code_numbers(self.fetch(f"coalesce({self._number(text)}, 'nan'::DOUBLE)"), kind)
            losing = self._say_losing(text, kind)
            if not losing or not self.ask(f"bool_or({losing})"):
                return numbers
            codes, texts = self.code_in_database(text, distinct)
            return replace(numbers, raw=keep_raw(codes, texts))
        codes, texts = self.code_in_database(text, distinct)
        return code_texts(codes, texts, kind, place, self.missing, guess=True)

    def _moments(self, moment: str, present: str, zoned: bool = False) -> Moments | None:
        """Times in microseconds; None where some cell is present and yet no moment that has a number."""
        number = f"epoch_us({moment}::{'TIMESTAMPTZ' if zoned else 'TIMESTAMP'})::DOUBLE"
        if self.ask(f"coalesce(bool_or(({present}) AND {number} IS NULL), false)"):
            return None
        return Moments(
            self.fetch(f"coalesce(CASE WHEN {present} THEN {number} END, 'nan'::DOUBLE)"), zoned=zoned
        )

    def _say_losing(self, text: str, kind: Kind | None) -> str:
        """As a condition, that the number of a text is too little to tell the text (as `code_texts` has it)."""
        tokens = ", ".join(map(literal, sorted(self.missing.difference(DEFAULT_MISSING))))
        lost = [f"trim({text}, {literal(BLANKS)}) IN ({tokens})"] if tokens else []
        return " OR ".join([*lost, *([f"regexp_full_match({text}, {_padded(LOSING)})"] if kind else [])])

    def _all_numbers(self, text: str, kind: Kind | None) -> bool:
        """Whether every text is a number or missing; only what has not the common form leaves DuckDB."""
        safe = f"regexp_full_match({text}, {_padded(WHOLE)}) AND abs(TRY_CAST({text} AS DOUBLE)) < {EXACT}"
        odd = self.connection.execute(
            f"SELECT DISTINCT {text} FROM {self.table}"
            f" WHERE NOT regexp_full_match({text}, {_padded(STATED_NUMBER if kind else SAFE_NUMBER)})"
            f" AND NOT ({safe}) LIMIT {FEW_TEXTS}"
        ).fetchall()
        bare = [text.strip(BLANKS) for (text,) in odd]
        return all(text in self.missing or (not kind and reads_as_number(text)) for text in bare)

    def _number(self, text: str) -> str:
        """The number of a text, or NULL; a number may itself be named as missing, as 999 often is."""
        tokens = ", ".join(literal(token) for token in sorted(self.missing) if reads_as_number(token))
        number = f"TRY_CAST({text} AS DOUBLE)"
        return (
            f"CASE WHEN trim({text}, {literal(BLANKS)}) NOT IN ({tokens}) THEN {number} END"
            if tokens
            else number
        )

    def code_in_database(self, text: str, distinct: int) -> tuple[NDArray[np.integer], list[str]]:
        """Codes (0: NULL) and the texts they stand for, one Python object for each distinct text."""
        if distinct == 0:
            return np.zeros(self.ask("count(*)"), dtype=np.uint8), []
        if distinct > MOST_ENUM:
            return self._code_many(text)
        # In a query of its own, or the name would be that of a column which the table may have.
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TYPE texts AS ENUM"
            f" (SELECT DISTINCT cell FROM (SELECT {text} AS cell FROM {self.table}) WHERE cell IS NOT NULL"
            " ORDER BY cell)"
        )
        rows = self.connection.execute("SELECT unnest(enum_range(NULL::texts))::VARCHAR").fetchall()
        codes = self.fetch(f"coalesce(enum_code(({text})::texts)::UINTEGER + 1, 0)::UINTEGER")
        return codes, [row[0] for row in rows]

    def _code_many(self, text: str) -> tuple[NDArray[np.integer], list[str]]:
        """The same for a column, such as an identifier, with nearly as many texts as patients."""
        numbering = Numbering()
        codes = numbering.code(self.fetch(text))
        return codes, [str(text) for text in numbering.distinct]


def _padded(pattern: str) -> str:
    return literal(f"[{BLANKS}]*(?:{pattern})[{BLANKS}]*")


def read_parquet(path: Path, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a Parquet file."""
    with (
        in_one_sentence(f"{path} cannot be read as a Parquet file"),
        scratch_database(path) as (connection, file),
    ):
        table = f"read_parquet({literal(str(file))}, hive_partitioning = false)"
        return Relation(connection, table, str(path), missing).columns(schema)


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
                # A query may return its rows in another order each time, and columns are read one by one.
                connection.execute(f"CREATE TEMP TABLE patients AS SELECT * FROM {reference}")
                reference = "patients"
            return Relation(connection, reference, f"{path}, table {full_name[1]!r}", missing).columns(schema)
