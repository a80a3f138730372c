"""A tree of codes from a table with a row for each node and its parent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from concilium.codes.code_tree import ROOT
from concilium.errors import RecordsError, nearest
from concilium.records.coding import ReadingKind
from concilium.records.sources import is_frame, name_row, read_columns
from concilium.records.text_columns import list_texts


def read_tree(
    source: Any, table: str | None, parent: str, child: str, title: str | None
) -> tuple[str, dict[str, str], dict[str, str]]:
    """The name of the source, the parent of each node, and the titles; `Taxonomy.read` says what the arguments mean."""
    wanted = {"parent": parent, "child": child, **({} if title is None else {"title": title})}
    names: list[str] = []

    def choose(columns: Sequence[str], name: str) -> Mapping[str, ReadingKind | None]:
        names.append(name)
        for role, column in wanted.items():
            if column not in columns:
                raise RecordsError(
                    f"{name}: {role} names a column {column!r} that is not there{nearest(column, columns)}"
                )
        return dict.fromkeys(wanted.values(), "text")

    columns = read_columns(source, table, choose, None)
    where = None if is_frame(source) else source
    parents, children = list_texts(columns[parent]), list_texts(columns[child])
    called = list_texts(columns[title]) if title is not None else [None] * len(children)
    parent_of: dict[str, str] = {}
    titles: dict[str, str] = {}
    for row, (above, node, words) in enumerate(zip(parents, children, called, strict=True)):
        if node is None:
            raise RecordsError(f"{names[0]}: {name_row(where, row)} names no {child!r}")
        if node in parent_of and parent_of[node] != (above or ROOT):
            raise RecordsError(
                f"{names[0]}: {node!r} has two parents, {parent_of[node]!r} and {above or ROOT!r}; a tree has one"
            )
        parent_of[node] = above or ROOT
        if words is not None:
            titles[node] = words
    for above in list(parent_of.values()):
        if above != ROOT:
            parent_of.setdefault(above, ROOT)
    return os.path.basename(names[0]), parent_of, titles  # noqa: PTH119
