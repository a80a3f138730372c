"""Where a table of patients can come from, and which reader takes it.

DataFrames, SQLite files and spreadsheets are read here. A spreadsheet (xlsx, xls, ods) is read by calamine: the first
row that says something names the columns. A small file may unfold to more than any memory holds, so that calamine runs
in a process of its own (confined.py). A cell of a spreadsheet has a type of its own, so that nothing is known of a
column but what all its cells say: what should be read cell by cell is stated, by a schema or a dictionary.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import numpy as np

from concilium.errors import MORE_MEMORY, MissingExtra, RecordsError, lacks_memory, nearest
from concilium.records.batches import KEEPER, DeclaredColumn, code_batches, encode_cells, join_cells
from concilium.records.coding import (
    Chooser,
    Place,
    ReadingKind,
    Schema,
    natural_value,
    plan_reading,
    stated_kind,
)
from concilium.records.cohort_file import CohortFile, is_cohort_file
from concilium.records.columns import EXACT, Coded, Column, RowValues, label
from concilium.records.confined import read_confined
from concilium.records.database import find_table
from concilium.records.grammar import BLANKS, DEFAULT_MISSING, tidy_moment

if TYPE_CHECKING:
    import pyarrow

    from concilium.records.column_store import Store
    from concilium.records.unchanged import Identity

log = logging.getLogger(__name__)

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
    if KEEPER.get() is None:
        _log_large(source)
    tokens = _tokens(missing if missing is not None else ())
    if is_frame(source):
        _refuse_table(table, "a DataFrame")
        return _read_frame(source, schema, tokens)
    if not isinstance(source, str | os.PathLike):
        if hasattr(type(source), "__arrow_c_stream__"):
            from concilium.records.relation import read_arrow

            _refuse_table(table, f"a {type(source).__name__}")
            return read_arrow(source, schema, tokens)
        lazy = "; collect() it first" if type(source).__name__ == "LazyFrame" else ""
        raise RecordsError(
            f"patients cannot be read from a {type(source).__name__}{lazy}; give a path, a PostgreSQL URL or a "
            f"DataFrame, and rows to Records.from_rows"
        )
    address = os.fspath(source)
    if is_cohort_file(source):
        return _read_cohort(address, table, schema, tokens)
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
        if _is_sqlite(path):
            return _read_sqlite(path, table, schema, tokens)
        from concilium.records.relation import read_duckdb

        return read_duckdb(path, table, schema, tokens)
    if ending in SPREADSHEETS:
        own = tokens if missing is not None else _tokens(DEFAULT_MISSING)
        return _read_spreadsheet(path, table, schema, own)
    _refuse_table(table, str(path))
    if ending in TEXT_FILES:
        from concilium.records.delimited import read_delimited

        return read_delimited(path, schema, tokens if missing is not None else _tokens(DEFAULT_MISSING))
    if ending in ARROW_FILES:
        from concilium.records.relation import read_arrow_file

        return read_arrow_file(path, schema, tokens)
    from concilium.records.relation import read_parquet

    return read_parquet(path, schema, tokens)


def _read_cohort(path: str, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table that a cohort file makes of an OMOP database, or of FHIR resources."""
    from concilium.records.omop import choose_table, read_tables
    from concilium.records.relation import scan_table

    file = CohortFile.read(path)
    chosen = choose_table(table, file)
    return scan_table(read_tables(file, [chosen])[chosen], path, schema, missing)


def open_store(
    source: Any,
    table: str | None,
    root: str | os.PathLike[str],
    reading: Mapping[str, Any],
    read: Callable[[], object],
) -> Store | None:
    """The column store of a large table, which is read into it where it was not yet, or has changed; None for a small
    one, and where the source cannot tell whether it has changed."""
    identify = _find_identity(source, table)
    identity = None if identify is None else identify()
    if identify is None or identity is None:
        return None
    from concilium import __version__
    from concilium.records.column_store import find_store, write_store

    reading = {**reading, "version": __version__}
    return find_store(Path(root), identity, reading) or write_store(Path(root), identify, reading, read)


@contextmanager
def saying_memory(source: Any) -> Iterator[None]:
    """A sentence where memory does not suffice to read a source."""
    try:
        yield
    except Exception as error:
        if not lacks_memory(error):
            raise
        raise RecordsError(f"{_call(source)}: there is not enough memory to read it; {MORE_MEMORY}") from None


def _call(source: Any) -> str:
    """A source as a log may name it; the address of a server may hold a password."""
    is_path = isinstance(source, str | os.PathLike) and "://" not in os.fspath(source)
    return (
        os.fspath(source)
        if is_path
        else f"a {'database' if isinstance(source, str) else type(source).__name__}"
    )


def _log_large(source: Any) -> None:
    """Say in the log what is about to be read into memory, if it is not small: a process that the system ends has then
    said so."""
    name = _call(source)
    with suppress(OSError):  # whoever reads it says what is wrong
        size = Path(name).stat().st_size if name == str(source) else None
        if size is None or size >= WORTH_A_LINE:
            about = "" if size is None else f" ({size / 1e6:.3g} MB)"
            log.info("%s%s is read into memory", name, about)


def read_long(
    source: Any,
    table: str | None,
    choose: Chooser,
    missing: Iterable[str] | None,
    columns: str | os.PathLike[str] | None,
    choice: object,
) -> Mapping[str, Column]:
    """The columns of a table with several rows of each patient. With a folder for `columns` a large one is read into
    it once (`open_store`), and mapped. `choice` is what decides how `choose` chooses."""
    if columns is None:
        return read_columns(source, table, choose, missing)
    asked: list[tuple[list[str], str]] = []

    def note(names: Sequence[str], name: str) -> Mapping[str, ReadingKind | None]:
        asked.append((list(names), name))
        return choose(names, name)

    def read() -> None:
        from concilium.records.streaming import NotStreamed

        for name, column in read_columns(source, table, note, missing).items():
            if isinstance(column, Coded) and isinstance(column.values, RowValues):
                raise NotStreamed(f"column {name!r} has very many different values")

    reading = {
        "table": table,
        "missing": None if missing is None else sorted(_tokens(missing)),
        "long": repr(choice),
    }
    store = open_store(source, table, columns, reading, read)
    if store is None:
        return read_columns(source, table, choose, missing)
    from concilium.records.column_store import StoredColumns

    names, name = store.recall(
        "names", lambda: asked[-1] if asked else (find_names(source, table), str(source))
    )
    if not asked:
        choose(names, name)
    return StoredColumns(store)


def _find_identity(source: Any, table: str | None) -> Callable[[], Identity | None] | None:
    """What says whether a large source has changed; None for a small one, and for one in memory."""
    if not isinstance(source, str | os.PathLike):
        return None
    from concilium.records.column_store import LARGE
    from concilium.records.unchanged import identify_file, identify_table

    address = os.fspath(source)
    if is_cohort_file(source):
        return _find_cohort_identity(CohortFile.read(address), table)
    if address.partition("://")[0].lower() in SERVERS:

        def identify() -> Identity | None:
            found = identify_table(address, table)
            return found if found is not None and found["bytes"] >= BYTES_OF_A_CELL * LARGE else None

        return identify
    return partial(identify_file, Path(source)) if "://" not in address and _is_large(Path(source)) else None


def _find_cohort_identity(file: CohortFile, table: str | None) -> Callable[[], Identity | None] | None:
    """The same of what a cohort file makes of a large OMOP database."""
    database = _find_identity(file.omop, "*") if file.omop else None

    def identify() -> Identity | None:
        found = None if database is None else database()
        said = hashlib.sha256(repr((file, table)).encode()).hexdigest()  # an address may hold a password
        return found and {**found, "path": str(file.path.absolute()), "cohort": said}

    return identify


def find_names(source: Any, table: str | None = None) -> list[str]:
    """The names of a source's columns; of its cells, those of one column are read."""
    found: list[str] = []

    def choose(names: Sequence[str], _: str) -> dict[str, ReadingKind | None]:
        found.extend(names)
        return dict.fromkeys(names[:1])

    read_columns(source, table, choose, None)
    return found


WORTH_A_LINE = 1 << 18  # bytes of a file: before more is read, the log says so
# Bytes of a file for each cell of its table, roughly; of Parquet it is known how many cells there are.
BYTES_OF_A_CELL = 4


def _is_large(path: Path) -> bool:
    """Whether a table is kept in a column store: by how much there is of it, and not by what it holds."""
    from concilium.records import column_store

    name = path.name.lower()
    try:
        size = path.stat().st_size
        if name.endswith(".parquet"):
            from pyarrow import parquet

            about = parquet.read_metadata(path)
            return bool(about.num_rows * about.num_columns >= column_store.LARGE)
    except (OSError, ValueError):  # of which Arrow's are
        return False  # whoever reads it says what is wrong
    in_files = (*TEXT_FILES, *DATABASES, *ARROW_FILES)
    return name.endswith(in_files) and size >= BYTES_OF_A_CELL * column_store.LARGE


def name_row(source: Any, row: int, table: str | None = None) -> str:
    """How people find a row, counted from 0, in a source: by its line in a text file, by its number in a sheet."""
    if is_text_file(source):
        from concilium.records.delimited import look

        return look(Path(source)).row(row)
    if isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(SPREADSHEETS):
        return _name_sheet_row(Path(source), table, row)
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
    from concilium.records.database import read_postgres

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


# A DataFrame is read by its own methods, so that pandas is never imported here.

FRAME = "the DataFrame"


def _read_frame(frame: Any, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a DataFrame; its index is not a column."""
    import pyarrow

    names = [str(name) for name in frame.columns]
    kinds = plan_reading(schema, names, FRAME)
    for name, form in zip(names, frame.dtypes, strict=True):
        # Codes are no numbers, though they may look like them.
        if name in kinds and kinds[name] is None and hasattr(form, "categories"):
            kinds[name] = "code"

    def read(chosen: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        arrays = [
            _to_arrow(frame.iloc[:, names.index(name)], kinds[name], Place(FRAME, name)) for name in chosen
        ]
        yield pyarrow.RecordBatch.from_arrays(arrays, list(chosen))

    return code_batches(
        read,
        {name: DeclaredColumn(kind, missing) for name, kind in kinds.items()},
        lambda name: Place(FRAME, name),
        empty=f"{FRAME} holds no patients",
    )


def _to_arrow(series: Any, reading: ReadingKind | None, place: Place) -> pyarrow.Array:
    """A column by its type: numbers and truth values as such, all else as cells."""
    import pyarrow

    form = series.dtype.kind
    if reading == "time" and form == "M":
        return _list_moments(series)
    if hasattr(series.dtype, "categories"):
        return _join_distinct(series.cat.codes.to_numpy(), series.cat.categories, place)
    if form == "b":
        truth = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return pyarrow.array(truth == 1, mask=np.isnan(truth))
    if form in "iu" and isinstance(series.dtype, np.dtype):
        numbers = series.to_numpy()
        if reading == "number" or (
            int(numbers.max(initial=0)) < EXACT and int(numbers.min(initial=0)) > -EXACT
        ):
            return pyarrow.array(numbers)
    elif form == "f" or (form in "iu" and (reading == "number" or not _large(series))):
        return pyarrow.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if form in "Mm" or "string" in type(series.dtype).__name__.lower():
        codes, distinct = series.factorize()
        return _join_distinct(codes, distinct, place)
    return encode_cells(series.astype(object).tolist(), place)


def _list_moments(series: Any) -> pyarrow.Array:
    import pyarrow

    zone = getattr(series.dtype, "tz", None)
    if zone is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = pyarrow.array(series.to_numpy(dtype="datetime64[us]"))  # NaT is null
    return moments.cast(pyarrow.timestamp("us", None if zone is None else "UTC"))


def _large(series: Any) -> bool:
    """Whether some whole number, of a type of pandas' own, would lose digits as a float64."""
    present = series.dropna()
    return len(present) > 0 and (int(present.max()) >= EXACT or int(present.min()) <= -EXACT)


def _join_distinct(codes: Any, distinct: Any, place: Place) -> pyarrow.Array:
    """Cells that pandas has already numbered; there -1 is missing."""
    values = [natural_value(value, row, place) for row, value in enumerate(distinct.tolist())]
    return join_cells(codes.astype(np.int64) + 1, values)


ROWS = 10_000  # rows of a batch
MAGIC = b"SQLite format 3\x00"
TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"


def _is_sqlite(path: Path) -> bool:
    """Whether a file is SQLite's, whatever it is called."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _read_sqlite(path: Path, table: str | None, schema: Schema, missing: frozenset[str]) -> dict[str, Column]:
    """All columns of a table or view of a SQLite file, which is opened read-only.

    A cell of SQLite has a type of its own, so that what should be read cell by cell is stated, by a schema or a
    dictionary.
    """
    import pyarrow

    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            tables = [("main", str(name)) for (name,) in connection.execute(TABLES)]
            _, name = find_table(table, tables, "main", str(path))
            quoted = name.replace('"', '""')
            query = f'SELECT * FROM "{quoted}"'
            names = [str(column[0]) for column in connection.execute(query).description]
            source = f"{path}, table {name!r}"
            kinds = plan_reading(schema, names, source)

            def read(chosen: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
                cursor, start = connection.execute(query), 0
                while rows := cursor.fetchmany(ROWS):
                    arrays = [
                        encode_cells(
                            (_tidy(row[number]) for row in rows), Place(source, names[number]), start
                        )
                        for number in map(names.index, chosen)
                    ]
                    yield pyarrow.RecordBatch.from_arrays(arrays, list(chosen))
                    start += len(rows)

            return code_batches(
                read,
                {name: DeclaredColumn(stated_kind(kind), missing) for name, kind in kinds.items()},
                lambda name: Place(source, name),
                empty=f"{source} holds no patients",
            )
    except sqlite3.Error as error:
        raise RecordsError(f"{path} cannot be read as a SQLite file: {error}") from None


def _tidy(cell: Any) -> Any:
    return tidy_moment(cell) if isinstance(cell, str) else cell


MOMENTS: dict[str, type[date] | type[time]] = {"date": date, "time": time, "datetime": datetime}


def _read_spreadsheet(
    path: Path, sheet: str | None, schema: Schema, missing: frozenset[str]
) -> dict[str, Column]:
    """All columns of a sheet; it must be named where there are several."""
    import pyarrow

    first, rows = _read_rows(path, sheet)
    if not rows:
        raise RecordsError(f"{path} holds no patients: there is no row but the names of columns")
    names = [label(name).strip() if name is not None else "" for name in first.cells]
    while names and not names[-1] and all(row.cell(len(names) - 1) is None for row in rows):
        names.pop()
    kinds = plan_reading(schema, names, str(path))

    def place(name: str) -> Place:
        return Place(str(path), name, lambda row: f"row {rows[row].number}")

    def read(chosen: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        arrays = []
        for name in chosen:
            cells = [row.cell(names.index(name)) for row in rows]
            values = [None if isinstance(cell, str) and cell.strip() in missing else cell for cell in cells]
            arrays.append(encode_cells(values, place(name)))
        yield pyarrow.RecordBatch.from_arrays(arrays, list(chosen))

    declared = {name: DeclaredColumn(stated_kind(kind), missing) for name, kind in kinds.items()}
    return code_batches(read, declared, place, empty=f"{path} holds no patients")


def _name_sheet_row(path: Path, sheet: str | None, row: int) -> str:
    """How people find a row of patients, counted from 0, in a sheet."""
    return f"row {_read_rows(path, sheet)[1][row].number}"


class _SheetRow:
    """A row of a sheet by its number there."""

    def __init__(self, number: int, cells: list[Any]) -> None:
        self.number = number
        self.cells = [_read_cell(cell) for cell in cells]

    def cell(self, place: int) -> Any:
        return self.cells[place] if place < len(self.cells) else None

    def __bool__(self) -> bool:
        return any(cell is not None for cell in self.cells)


def _read_rows(path: Path, sheet: str | None) -> tuple[_SheetRow, list[_SheetRow]]:
    if importlib.util.find_spec("python_calamine") is None:
        raise MissingExtra("excel", "reading spreadsheets")
    content = read_confined(
        "sheet", str(path.absolute()), sheet or "", problem=f"{path} cannot be read as a spreadsheet"
    )
    names, cells = msgspec.msgpack.decode(content, type=tuple[list[str], list[list[Any]] | None])
    if sheet is None and len(names) > 1:
        raise RecordsError(
            f"{path}: say which sheet to read with table=...; there are: {', '.join(names[:10])}"
        )
    if cells is None:
        hint = nearest(str(sheet), names) or f"; there are: {', '.join(names[:10])}"
        raise RecordsError(f"{path}: there is no sheet {sheet!r}{hint}")
    rows = [row for row in (_SheetRow(number, own) for number, own in enumerate(cells, start=1)) if row]
    if not rows:
        raise RecordsError(f"{path} is empty; a table of patients starts with a row of column names")
    return rows[0], rows[1:]


def _read_cell(cell: Any) -> Any:
    """A cell as calamine gives it, from how confined_process.py writes it."""
    if cell == "":
        return None
    if not isinstance(cell, list):
        return cell
    kind, value = cell
    return timedelta(microseconds=value) if kind == "timedelta" else MOMENTS[kind].fromisoformat(value)
