"""Tables of a page that sort by any column and find words, by the server: they work without script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

MOST_WANTED = 100


@dataclass(frozen=True)
class TableColumn:
    """A column: its key in addresses, its heading, and whether it holds numbers."""

    key: str
    heading: str
    is_number: bool = False


@dataclass(frozen=True)
class TableCell:
    """A cell as it is read, and by what it is sorted (None: last, in either direction); `note` is smaller, below."""

    text: str
    order: float | str | None = None
    link: str = ""
    is_alarm: bool = False
    note: str = ""


@dataclass(frozen=True)
class SortedTable:
    """The rows that hold the words, in the order that was chosen."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]
    total: int
    sort: str = ""
    down: bool = False
    find: str = ""

    def link(self, column: TableColumn) -> str:
        """The address that sorts by a column, and turns the order of the one that it is sorted by."""
        down = not self.down if column.key == self.sort else column.is_number
        return "?" + urlencode({"sort": column.key, "down": int(down), "find": self.find})

    def direction(self, column: TableColumn) -> str:
        """What a screen reader says of a column."""
        if column.key != self.sort:
            return "none"
        return "descending" if self.down else "ascending"


def arrange(
    columns: Sequence[TableColumn], rows: Iterable[Sequence[TableCell]], wanted: Mapping[str, str]
) -> SortedTable:
    """Rows as an address wants them: `sort`, `down` and `find`; what it says otherwise counts for nothing."""
    listed = list(rows)
    find = wanted.get("find", "")[:MOST_WANTED].strip()
    kept = [row for row in listed if _holds(row, find)]
    names = [column.key for column in columns]
    sort, down = wanted.get("sort", ""), wanted.get("down") == "1"
    if sort not in names:
        return SortedTable(columns, kept, len(listed), "", False, find)
    place = names.index(sort)
    known = [row for row in kept if row[place].order is not None]
    known.sort(key=lambda row: _order(row[place].order), reverse=down)
    return SortedTable(
        columns, [*known, *(row for row in kept if row[place].order is None)], len(listed), sort, down, find
    )


def _order(value: Any) -> tuple[int, Any]:
    return (1, value.casefold()) if isinstance(value, str) else (0, value)


def _holds(row: Sequence[TableCell], find: str) -> bool:
    text = " ".join(cell.text for cell in row).casefold()
    return all(word in text for word in find.casefold().split())


def number(value: float | None, form: str = ".3g") -> TableCell:
    """A number, or a dash."""
    return TableCell("–") if value is None else TableCell(format(value, form), float(value))


def span(low: float | None, high: float | None, form: str = ".3g") -> str:
    """An interval in words; nothing where an end is not known."""
    return "" if low is None or high is None else f"{format(low, form)} to {format(high, form)}"
