"""The database behind a cohort file: a DuckDB file, PostgreSQL or SQL Server, read-only, in Arrow batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MissingExtra, RecordsError, nearest
from concilium.records.database import ROWS, connect_to, put_built_in_first
from concilium.records.omop_statements import DUCKDB, POSTGRESQL, SQL_SERVER, Dialect
from concilium.records.relation import in_one_sentence, scratch_database

if TYPE_CHECKING:
    import pyarrow

    from concilium.records.cohort_file import CohortFile

SERVERS = ("postgresql", "postgres", "mssql")
COLUMNS = "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS"


class Cdm(Protocol):
    """A database that answers statements. `usual` is the schema where none is named."""

    @property
    def name(self) -> str: ...

    @property
    def usual(self) -> str: ...

    @property
    def dialect(self) -> Dialect: ...

    def batches(self, statement: str) -> Iterator[pyarrow.RecordBatch]: ...

    def list_columns(self) -> list[tuple[str, str, str]]: ...

    def name_people(self, persons: NDArray[np.int64]) -> list[str]: ...


@contextmanager
def open_cdm(file: CohortFile) -> Iterator[Cdm]:
    """The database of a cohort file."""
    if file.fhir:
        from concilium.records.fhir_cdm import open_fhir

        with open_fhir(file) as staged:
            yield staged
        return
    scheme = file.omop.partition("://")[0].lower() if "://" in file.omop else ""
    if not scheme:
        with _open_duckdb(Path(file.omop)) as cdm:
            yield cdm
    elif scheme == "mssql":
        with _open_sql_server(file.omop) as cdm:
            yield cdm
    elif scheme in SERVERS:
        with _open_postgres(file.omop) as cdm:
            yield cdm
    else:
        raise RecordsError(
            f"cannot read a CDM from a {scheme}:// address{nearest(scheme, SERVERS)}; give a DuckDB file, "
            "postgresql://... or mssql://..."
        )


@dataclass(frozen=True)
class DuckDBCdm:
    """A CDM in a DuckDB connection, attached as `hospital`."""

    connection: Any
    name: str
    usual: str = "main"
    dialect: Dialect = DUCKDB
    catalog: str = "hospital"

    def batches(self, statement: str) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        with in_one_sentence(f"{self.name}: a table of the CDM cannot be read as CDM 5.3 or 5.4 has it"):
            yield from pyarrow.RecordBatchReader.from_stream(self.connection.sql(statement))

    def list_columns(self) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = self.connection.execute(
            f"{COLUMNS} WHERE TABLE_CATALOG = ?", [self.catalog]
        ).fetchall()
        return rows

    def name_people(self, persons: NDArray[np.int64]) -> list[str]:
        return list(map(str, persons.tolist()))


@contextmanager
def _open_duckdb(path: Path) -> Iterator[Cdm]:
    if not path.is_file():
        raise RecordsError(f"there is no file {path}")
    with ExitStack() as stack:
        with in_one_sentence(
            f"{path} cannot be opened as a DuckDB file; it is damaged, of a newer DuckDB, or open for writing elsewhere"
        ):
            connection, _ = stack.enter_context(scratch_database(path, attach=True))
        yield DuckDBCdm(connection, str(path))


@dataclass(frozen=True)
class ServerCdm:
    """A CDM behind cursors of Python's database interface."""

    open_cursor: Callable[[], Any]
    name: str
    usual: str
    dialect: Dialect
    failure: type[Exception]

    def batches(self, statement: str) -> Iterator[pyarrow.RecordBatch]:
        try:
            cursor = self.open_cursor()
            cursor.execute(statement)
            width = len(cursor.description)
            while block := cursor.fetchmany(ROWS):
                yield _to_batch(block, width)
            cursor.close()
        except self.failure as fault:
            raise RecordsError(
                f"{self.name} could not be read ({type(fault).__name__}): may this user SELECT from all tables of the "
                "CDM, and are they as CDM 5.3 or 5.4 has them?"
            ) from None

    def list_columns(self) -> list[tuple[str, str, str]]:
        cursor = self.open_cursor()
        cursor.execute(COLUMNS)
        rows = [(str(row[0]), str(row[1]), str(row[2])) for row in cursor.fetchall()]
        cursor.close()
        return rows

    def name_people(self, persons: NDArray[np.int64]) -> list[str]:
        return list(map(str, persons.tolist()))


def _to_batch(block: Sequence[Sequence[Any]], width: int) -> pyarrow.RecordBatch:
    """Rows as a batch of whole numbers, numbers and texts."""
    import pyarrow

    arrays = [pyarrow.array([_plain(row[place]) for row in block]) for place in range(width)]
    arrays = [one.cast("float64") if pyarrow.types.is_null(one.type) else one for one in arrays]
    return pyarrow.RecordBatch.from_arrays(arrays, [str(place) for place in range(width)])


def _plain(cell: Any) -> Any:
    return cell if cell is None or isinstance(cell, str | int | float) else float(cell)


@contextmanager
def _open_postgres(url: str) -> Iterator[Cdm]:
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("postgres", "reading a CDM in PostgreSQL") from None
    with connect_to(url) as (connection, server):
        usual = connection.execute("SELECT coalesce(pg_catalog.current_schema(), 'public')").fetchone()[0]
        put_built_in_first(connection)
        yield ServerCdm(lambda: connection.cursor(name="cdm"), server, usual, POSTGRESQL, psycopg.Error)


DRIVER = "ODBC Driver 18 for SQL Server"
SETTING = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*")


@contextmanager
def _open_sql_server(url: str) -> Iterator[Cdm]:
    """A CDM in SQL Server: mssql://user:password@host:1433/database?driver=..., other settings as ODBC calls them."""
    pyodbc = _import_odbc()
    try:
        parts = urlsplit(url)
        port = parts.port or 1433
    except ValueError:
        parts, port = urlsplit("mssql:"), 0
    database = unquote(parts.path.strip("/"))
    if not parts.hostname or not database:
        raise RecordsError(
            "this is no address of SQL Server; it has the form mssql://user@host:1433/database"
        )
    server = f"SQL Server at {parts.hostname}:{port}"
    settings = {"Driver": DRIVER, "Encrypt": "yes", "ApplicationIntent": "ReadOnly"}
    for name, value in parse_qsl(parts.query):
        if not SETTING.fullmatch(name):
            raise RecordsError(f"{server}: a setting of the address is no name")
        settings["Driver" if name.lower() == "driver" else name] = value
    settings |= {"Server": f"{parts.hostname},{port}", "Database": database}
    if parts.username:
        settings |= {"UID": unquote(parts.username), "PWD": unquote(parts.password or "")}
    else:
        settings["Trusted_Connection"] = "yes"
    driver = settings["Driver"]
    known = pyodbc.drivers()
    if driver not in known:
        raise RecordsError(
            f"{server}: the ODBC driver {driver!r} is not installed; there are: {', '.join(known) or 'none'}. Install "
            "it, or name another one in the address: mssql://...?driver=NAME"
        )
    text = ";".join(f"{name}={{{value.replace('}', '}}')}}}" for name, value in settings.items())
    try:
        connection = pyodbc.connect(text, autocommit=True, readonly=True, timeout=10)
    except pyodbc.Error:
        raise RecordsError(
            f"{server} does not answer, or does not accept this user; check address, user and driver"
        ) from None
    try:
        yield ServerCdm(connection.cursor, server, "dbo", SQL_SERVER, pyodbc.Error)
    finally:
        connection.close()


def _import_odbc() -> Any:
    try:
        import pyodbc
    except ModuleNotFoundError:
        raise MissingExtra("sqlserver", "reading a CDM in SQL Server") from None
    except ImportError:
        raise RecordsError(
            "reading a CDM in SQL Server needs the system's ODBC library, which is not installed (Debian, Ubuntu: "
            f"apt install unixodbc), and the driver {DRIVER!r}"
        ) from None
    return pyodbc
