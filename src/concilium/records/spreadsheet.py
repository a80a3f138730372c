"""Tables in spreadsheets (xlsx, xls, ods), read by calamine: the first row that says something names the columns.

A small file may unfold to more than any memory holds, so that calamine runs in a process of its own (confined.py).

A cell of a spreadsheet has a type of its own, so that nothing is known of a column but what all its cells say: what
should be read cell by cell is stated, by a schema or a dictionary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import msgspec

from concilium.errors import MissingExtra, RecordsError, nearest
from concilium.records.batches import DeclaredColumn, code_batches, encode_cells
from concilium.records.coding import Place, Schema, plan_reading, stated_kind
from concilium.records.columns import Column, label
from concilium.records.confined import read_confined

MOMENTS: dict[str, type[date] | type[time]] = {"date": date, "time": time, "datetime": datetime}


def read_spreadsheet(
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


def name_sheet_row(path: Path, sheet: str | None, row: int) -> str:
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
