"""A site's patients as a table, column-major: what every question is counted on.

Missing is a value of its own (code 0, or NaN). A table never changes: a selection is a new table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concilium.errors import DoesNotFit, RecordsError, nearest
from concilium.records.coding import Place, check_names, check_schema, code_values
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.grammar import DEFAULT_MISSING
from concilium.records.row_hashes import Hashes, digest_rows, hash_rows, tell_apart

if TYPE_CHECKING:
    from pandas import DataFrame

    from concilium.records.column_store import Store
    from concilium.records.dictionary import Dictionary
    from concilium.records.table_map import TableMap

__all__ = ["DEFAULT_MISSING", "Coded", "Column", "Numbers", "Records", "Value", "label"]


class Records:
    """A site's patients: `records["age"]` is a column, `len(records)` the number of patients.

    `raw` is the table as it was read, where a hospital's map made these columns of it: what a ledger is bound to.
    """

    def __init__(
        self, columns: Mapping[str, Column], raw: Records | None = None, room: Path | None = None
    ) -> None:
        if not columns:
            raise RecordsError("a table of patients needs at least one column")
        check_names(list(columns), "records")
        lengths = {name: len(column) for name, column in columns.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise RecordsError(
                    f"column {name!r} has {length} rows, but column {first!r} has {lengths[first]}"
                )
        self._columns: Mapping[str, Column] = dict(columns)
        # The folder for what is as long as this table and need not stay in memory; None where all of it does.
        self.room = room
        self.store: Store | None = None
        self._length = lengths[first]
        self._raw = raw
        self.has_header = True  # which columns there are does not depend on the rows
        self._whole: tuple[Records, NDArray[np.integer]] | None = None  # whose rows these are

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        table: str | None = None,
        schema: Mapping[str, str] | None = None,
        missing: Iterable[str] | None = None,
        dictionary: Dictionary | None = None,
        map: TableMap | None = None,
        columns: str | os.PathLike[str] | None = None,
    ) -> Records:
        """A table from a text file (.csv, .tsv, also .gz), .parquet, .arrow, .xlsx, a DuckDB or SQLite file, a
        PostgreSQL URL, a DataFrame of pandas or polars, or whatever speaks the Arrow interface.

        `table` names a table of a database, or a sheet, `clinic.patients` for one in a schema. `schema` states what
        inference would get wrong: `{"race": "code", "age": "number"}`; a stated column is read cell by cell
        (grammar.py), and only such columns can be asked about under `private`. `missing` lists the texts that stand
        for a missing cell (blanks around them do not count); text files use `DEFAULT_MISSING` unless it is
        given, the other sources have a missing value of their own and use only what is given. The text
        `None` is a value. `dictionary` says how the columns of a study are read, and which values they have
        (dictionary.py); `map` is the hospital's own and says how its table becomes those columns (table_map.py).
        `columns` is a folder, such as `north.ledger.columns`: a large table is read into it once, and mapped into
        memory from then on (column_store.py).
        """

        def read() -> Records:
            if dictionary is not None or map is not None:
                from concilium.records.table_map import read_mapped

                return read_mapped(source, table, schema, missing, dictionary, map)
            from concilium.records.sources import read_columns

            return cls(read_columns(source, table, schema, missing))

        from concilium.records.sources import open_store, saying_memory

        if columns is not None:
            own = None if missing is None else sorted({*([missing] if isinstance(missing, str) else missing)})
            how = {
                "table": table,
                "schema": dict(schema or {}),
                "missing": own,
                "dictionary": repr(dictionary),
                "map": repr(map),
            }
            with saying_memory(source):
                store = open_store(source, table, columns, how, read)
            if store is not None:
                return cls.of_store(store)
        with saying_memory(source):
            return read()

    @classmethod
    def of_store(cls, store: Store) -> Records:
        """A table that was read before: no column is opened until it is asked for."""
        from concilium.records.column_store import StoredColumns

        def open_columns(raw: Records | None, columns: StoredColumns) -> Records:
            records = object.__new__(cls)
            vars(records).update(_columns=columns, _length=store.rows, _raw=raw, _whole=None, has_header=True)
            vars(records).update(store=store, room=store.folder.parent, digest=store.digest)
            return records

        raw = store.manifest["raw"] and open_columns(None, StoredColumns(store, raw=True))
        return open_columns(raw, StoredColumns(store))

    @classmethod
    def from_rows(
        cls, rows: Sequence[Mapping[str, Value | None]], schema: Mapping[str, str] | None = None
    ) -> Records:
        """A table from one mapping per patient; a name that a row lacks is missing there."""
        if not rows:
            raise RecordsError("there are no rows, so there are no patients to read")
        for place, row in enumerate(rows, start=1):
            if not isinstance(row, Mapping):
                raise RecordsError(
                    f"row {place} must map names to values; a single patient is [{{'age': 63}}]"
                )
        names = list(dict.fromkeys(name for row in rows for name in row))
        kinds = check_schema(schema, names, "rows")
        table = cls(
            {
                name: code_values([row.get(name) for row in rows], kinds.get(name), Place("rows", name))
                for name in names
            }
        )
        table.has_header = False
        return table

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise DoesNotFit(f"there is no column {name!r}{nearest(name, self._columns)}") from None

    def __repr__(self) -> str:
        return f"Records({self._length} patients, {len(self._columns)} columns)"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._columns)

    @property
    def bytes_held(self) -> int:
        """The memory that the rows of its columns take; none where they are mapped from files."""
        if self.store is not None:
            return 0
        held = [
            array
            for column in self._columns.values()
            for array in ([column.codes] if isinstance(column, Coded) else [column.numbers])
        ]
        return sum(array.nbytes for array in held if not isinstance(array, np.memmap))

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Records:
        """The patients of a mask or of row numbers; every column keeps all its values, held or not."""
        numbers = number_rows(rows, len(self))
        part = Records({name: _take(column, numbers) for name, column in self._columns.items()}, self._raw)
        part.has_header = self.has_header
        whole, places = (self, numbers) if self._whole is None else (self._whole[0], self._whole[1][numbers])
        part._whole = whole, places
        return part

    def split(self, by: str) -> dict[str, Records]:
        """One table for each value of a column, under the value's label and without that column."""
        column = self[by]
        if isinstance(column, Numbers):
            raise RecordsError(
                f"column {by!r} holds measurements and cannot split a table; "
                f'state it as a "code" if it names sites'
            )
        absent = np.flatnonzero(column.codes == 0)
        if absent.size:
            raise RecordsError(
                f"column {by!r} is missing for {absent.size} of {len(self)} patients, first in row "
                f"{absent[0] + 1}, so they belong to no part; fill it in or take only the other patients"
            )
        rest = {name: other for name, other in self._columns.items() if name != by}
        if not rest:
            raise RecordsError(f"a table with no column but {by!r} cannot be split by it")
        order = np.argsort(column.codes, kind="stable")
        ends = np.cumsum(np.bincount(column.codes, minlength=len(column.values) + 1)[1:])
        parts = np.split(order, ends)[: len(column.values)]
        return {
            label(value): Records(
                {name: _take(other, part) for name, other in rest.items()},
                None if self._raw is None else self._raw.take(part),
            )
            for value, part in zip(column.values, parts, strict=True)
            if part.size
        }

    def values(self, name: str) -> list[Value | None]:
        """The natural values of a column, row by row; None is missing."""
        column = self[name]
        if isinstance(column, Coded):
            by_code: list[Value | None] = [None, *column.values]
            return [by_code[code] for code in column.codes.tolist()]
        return [None if number != number else number for number in column.numbers.tolist()]

    @cached_property
    def digest(self) -> str:
        """What a ledger is bound to: 64 hex digits of the patients' rows, whatever their order, their source, the order
        of the columns and the schema (row_hashes.py says what is claimed)."""
        return digest_rows(self.lasting_names, self._hashes)

    @property
    def lasting_names(self) -> tuple[str, ...]:
        """The columns by which a ledger tells patients apart: those of the table as it was read."""
        return self.names if self._raw is None else self._raw.lasting_names

    @cached_property
    def _hashes(self) -> Hashes:
        if self._whole is not None:
            whole, places = self._whole
            return whole._hashes[:, places]
        if self._raw is not None:
            return self._raw._hashes
        return hash_rows(self._columns, len(self)) if self.store is None else self.store.hashes

    def tell_apart(self, names: Sequence[str] | None = None) -> Hashes:
        """A hash for each patient of what these columns say (all of them by default), and of how many rows before, in
        the whole table that these are part of, say the same."""
        if self._whole is not None:
            whole, places = self._whole
            return whole.tell_apart(names)[:, places]
        if self._raw is not None:
            return self._raw.tell_apart(names)
        if names is None or sorted(names) == sorted(self.names):
            return self._told_apart
        own = hash_rows({name: self[name] for name in names}, len(self), self.room)
        return tell_apart(own, self.room)

    @cached_property
    def _told_apart(self) -> Hashes:
        return tell_apart(self._hashes, self.room)

    @cached_property
    def digest_in_order(self) -> str:
        """SHA-256 over names, kinds, natural values and cells as they are read, in their order."""
        hasher = hashlib.sha256(f"concilium/records@1 {len(self)} {len(self._columns)}\n".encode())

        def text(part: str) -> None:
            data = part.encode("utf-8", "surrogatepass")
            hasher.update(len(data).to_bytes(8, "little") + data)

        for name, column in self._columns.items():
            text(name)
            if isinstance(column, Coded):
                text("stated code" if column.stated else "code")
                hasher.update(len(column.values).to_bytes(8, "little"))
                for value in column.values:
                    text(f"{type(value).__name__} {label(value)}")
                hasher.update(np.ascontiguousarray(column.codes, column.codes.dtype.newbyteorder("<")).data)
            else:
                text("number")
                numbers = column.numbers + 0.0
                numbers[np.isnan(numbers)] = np.nan  # one bit pattern for missing
                hasher.update(np.ascontiguousarray(numbers, "<f8").data)
        return hasher.hexdigest()


def number_rows(rows: NDArray[np.bool_] | NDArray[np.integer], patients: int) -> NDArray[np.intp]:
    """The row numbers that a mask over so many patients, or a list of row numbers, stands for."""
    array = np.asarray(rows)
    if array.dtype != bool:
        return array.astype(np.intp) if array.size == 0 else array
    if len(array) != patients:
        raise RecordsError(f"a mask of {len(array)} rows does not fit a table of {patients} patients")
    return np.flatnonzero(array)


def _take(column: Column, rows: NDArray[np.integer]) -> Column:
    raw = None if column.raw is None else Coded(column.raw.codes[rows], column.raw.values)
    if isinstance(column, Coded):
        return Coded(column.codes[rows], column.values, column.stated, column.by_itself, raw)
    return Numbers(column.numbers[rows], column.by_itself, raw)
