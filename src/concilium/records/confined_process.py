"""The program that reads one file within limits (confined.py): `JOB MEMORY SECONDS OUTPUT ARGUMENT ...`.

It runs by itself and imports nothing of Concilium. It writes `+` or `-`, the length in 8 bytes, and then what it read
or what is wrong. No sentence of it quotes the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any

MOST_CELLS = 1 << 27
MOST_COLUMNS = 2000
ROWS = 1 << 13  # rows that are copied at once


class _Unreadable(Exception):
    """What is wrong with the file, for people."""


def _confine(memory: int, seconds: int, output: int) -> None:
    """Hold this process to its limits; more is refused by the system, which ends it."""
    import resource

    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: output,
        resource.RLIMIT_CORE: 0,
    }
    for limit, most in limits.items():
        _, hard = resource.getrlimit(limit)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (least, least))


def _read_sheet(path: str, sheet: str = "") -> bytes:
    """The names of the sheets and the cells of the one that is named, or of the only one."""
    import msgspec
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        with CalamineWorkbook.from_path(path) as book:
            names = list(book.sheet_names)
            chosen = sheet or (names[0] if len(names) == 1 else "")
            cells = None
            if chosen in names:
                rows = book.get_sheet_by_name(chosen).to_python(skip_empty_area=False)
                cells = [list(map(_write_cell, row)) for row in rows]
    except (CalamineError, OSError, ValueError):
        raise _Unreadable("save it again, without a password") from None
    return msgspec.msgpack.encode((names, cells))


def _write_cell(cell: Any) -> Any:
    """A cell as msgpack has it: a moment or a span of time is a pair of its kind and its text."""
    if isinstance(cell, datetime | date | time):
        return (type(cell).__name__, cell.isoformat())
    if isinstance(cell, timedelta):
        return ("timedelta", cell // timedelta(microseconds=1))
    return cell


def _copy_parquet(path: str, copy: str) -> bytes:
    """Write a flat Parquet file anew, without compression: the copy takes as much memory as its size says."""
    import pyarrow
    from pyarrow import parquet, types

    plain = (
        types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string,
        types.is_large_string, types.is_date, types.is_timestamp, types.is_null,
    )  # fmt: skip
    try:
        with parquet.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            fields = []
            for field in file.schema_arrow:
                kind = field.type.value_type if types.is_dictionary(field.type) else field.type
                if not any(is_kind(kind) for is_kind in plain):
                    raise _Unreadable("a column holds neither numbers, nor text, nor times")
                fields.append(pyarrow.field(field.name, kind))
            rows = file.metadata.num_rows
            if not 0 < len(fields) <= MOST_COLUMNS or rows * len(fields) > MOST_CELLS:
                raise _Unreadable(f"it may have {MOST_COLUMNS} columns and {MOST_CELLS} cells at most")
            schema = pyarrow.schema(fields)
            with parquet.ParquetWriter(copy, schema, compression="none", use_dictionary=False) as writer:
                copied = 0
                for batch in file.iter_batches(ROWS, use_threads=False):
                    copied += batch.num_rows
                    if copied > rows:
                        raise _Unreadable("it has more rows than it says")
                    writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
    except (pyarrow.ArrowException, OSError, ValueError):
        raise _Unreadable("it is damaged") from None
    return b""


def _check_toml(path: str) -> bytes:
    """See whether a file is TOML that can be read in the time there is."""
    import tomllib

    try:
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib takes a third of the time that this needs)
            tomllib.load(file)
    except (ValueError, RecursionError):
        raise _Unreadable("it is not TOML") from None
    return b""


JOBS: dict[str, Callable[..., bytes]] = {"sheet": _read_sheet, "parquet": _copy_parquet, "toml": _check_toml}


def main(job: str, memory: str, seconds: str, output: str, *arguments: str) -> None:
    _confine(int(memory), int(seconds), int(output))
    try:
        sign, content = b"+", JOBS[job](*arguments)
    except _Unreadable as problem:
        sign, content = b"-", str(problem).encode()
    sys.stdout.buffer.write(sign + len(content).to_bytes(8, "big") + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
