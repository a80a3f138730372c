"""Text files read by Python's csv module alone, each text of a column at once: what reading by Arrow must equal."""

from __future__ import annotations

from collections.abc import Mapping

from concilium.errors import RecordsError
from concilium.records.coding import Numbering, Place, ReadingKind, code_texts, stated_kind
from concilium.records.columns import Column
from concilium.records.delimited import Layout, rows


def read_carefully(
    layout: Layout, kinds: Mapping[str, ReadingKind | None], missing: frozenset[str]
) -> dict[str, Column]:
    fields = [fields for _, fields in rows(layout)]
    if not fields:
        raise RecordsError(f"{layout.path} holds no patients: there is a header line and nothing after it")
    columns = {}
    for name, kind in kinds.items():
        numbering = Numbering()
        codes = numbering.code([row[layout.names.index(name)] for row in fields])
        place = Place(str(layout.path), name, layout.row)
        columns[name] = code_texts(
            codes, numbering.distinct, stated_kind(kind), place, missing, guess=kind != "text"
        )
    return columns
