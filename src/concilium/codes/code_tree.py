"""A tree of codes, and how far apart two of its leaves are (Bonomi, Gousheh and Fan 2023, Eq. 4).

Children are in the order of their texts, whoever lists them, and the leaves in the order of the tree: so the leaves
of a node lie next to each other, and the place of a leaf among those of any ancestor is its place in the whole less
that of the first. That is the paper's "sorted L(c)".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, nearest
from concilium.records.coding import ReadingKind
from concilium.records.columns import list_texts
from concilium.records.sources import is_frame, name_row, read_columns

ROOT = "(root)"
"""The name of the top of every tree; as a code it says nothing, and stands for what was suppressed."""


class CodeTree:
    """`parent_of` names the parent of each node, ROOT for those at the top; who is nobody's parent is a leaf."""

    def __init__(self, parent_of: Mapping[str, str]) -> None:
        children: dict[str, list[str]] = {ROOT: []}
        for node, parent in parent_of.items():
            children.setdefault(parent, []).append(node)
        self.parent_of = dict(parent_of)
        self.children = {parent: tuple(sorted(nodes)) for parent, nodes in children.items()}
        levels = dict(self._walk())
        nodes = list(levels)
        if len(nodes) <= len(parent_of):
            lost = min(set(parent_of).difference(nodes))
            raise RecordsError(f"{lost!r} is under itself or under something that has no parent of its own")
        self.depth = max(levels.values())
        self.leaves: tuple[str, ...] = tuple(node for node in nodes if node not in self.children)
        """The leaves, in the order of the tree."""
        self.place_of: dict[str, int] = {leaf: place for place, leaf in enumerate(self.leaves)}

    def _walk(self) -> Iterator[tuple[str, int]]:
        """The nodes in the order of the tree, each with its level."""
        waiting = [(ROOT, 0)]
        while waiting:
            node, level = waiting.pop()
            yield node, level
            waiting.extend((child, level + 1) for child in reversed(self.children.get(node, ())))

    def __contains__(self, node: object) -> bool:
        return node in self.parent_of

    def path(self, node: str) -> tuple[str, ...]:
        """The nodes from below the root down to this one."""
        upwards = []
        while node != ROOT:
            upwards.append(node)
            node = self.parent_of[node]
        return tuple(reversed(upwards))

    def leaves_under(self, node: str) -> tuple[str, ...]:
        """The leaves of the subtree of a node, in the order of the tree; a leaf has itself."""
        first, count = self._spans[node]
        return self.leaves[first : first + count]

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        """For each node the place of its first leaf, and how many it has."""
        spans: dict[str, tuple[int, int]] = {}
        for place, leaf in enumerate(self.leaves):
            spans[leaf] = (place, 1)
            node = leaf
            while node != ROOT:
                node = self.parent_of[node]
                first, count = spans.get(node, (place, 0))
                spans[node] = (first, count + 1)
        return spans

    def measure(self, leaves: Sequence[str], alpha: float) -> NDArray[np.float64]:
        """The dissimilarity of every pair of these leaves, [k, k]; ROOT among them is 1 from everything.

        alpha (|L(c)| - 1) / (n - 1) + (1 - alpha) |idx(i) - idx(j)| / |L(c)|, where c is the lowest common ancestor,
        L(c) its leaves and n all leaves: 0 for a leaf and itself, below 1 for any two.
        """
        suppressed = np.array([leaf == ROOT for leaf in leaves], dtype=bool)
        paths = [(ROOT,) if leaf == ROOT else self.path(leaf) for leaf in leaves]
        depth = max(map(len, paths), default=0)
        number_of: dict[str, int] = {}
        numbers = np.zeros((depth, len(paths)), dtype=np.int64)
        for column, path in enumerate(paths):
            # What ends early is repeated: there it equals nobody but itself.
            whole = (*path, *path[-1:] * (depth - len(path)))
            numbers[:, column] = [number_of.setdefault(node, len(number_of)) for node in whole]
        sizes = np.array([self._spans[node][1] for node in number_of], dtype=np.int64)
        places = np.array([self.place_of.get(leaf, 0) for leaf in leaves], dtype=np.int64)
        common = np.full((len(paths), len(paths)), len(self.leaves), dtype=np.int64)
        together = np.ones(common.shape, dtype=bool)
        for level in numbers:
            together &= level[:, None] == level
            np.copyto(common, sizes[level], where=together)
        apart = np.abs(places[:, None] - places)
        distances: NDArray[np.float64] = (
            alpha * (common - 1) / max(len(self.leaves) - 1, 1) + (1 - alpha) * apart / common
        )
        distances[suppressed] = 1.0
        distances[:, suppressed] = 1.0
        return distances


def _read_texts(
    source: Any, table: str | None, wanted: Mapping[str, str | None]
) -> tuple[str, dict[str, Sequence[str | None]]]:
    """The name of the source, and the texts of the column that each role names; of one that names none, nothing."""
    found: list[str] = []
    named = {role: column for role, column in wanted.items() if column is not None}

    def choose(columns: Sequence[str], name: str) -> Mapping[str, ReadingKind | None]:
        found.append(name)
        for role, column in named.items():
            if column not in columns:
                raise RecordsError(
                    f"{name}: {role} names a column {column!r} that is not there{nearest(column, columns)}"
                )
        return dict.fromkeys(named.values(), "text")

    columns = read_columns(source, table, choose, None)
    texts: dict[str, Sequence[str | None]] = {
        role: list_texts(columns[column]) for role, column in named.items()
    }
    rows = len(next(iter(texts.values())))
    return found[0], {role: texts.get(role, [None] * rows) for role in wanted}


def read_list(source: Any, code: str, title: str | None) -> tuple[str, dict[str, str]]:
    """The name of the source, and the title of each code, empty where there is none."""
    name, texts = _read_texts(source, None, {"code": code, "title": title})
    pairs = zip(texts["code"], texts["title"], strict=True)
    return os.path.basename(name), {text: words or "" for text, words in pairs if text is not None}  # noqa: PTH119


def read_tree(
    source: Any, table: str | None, parent: str, child: str, title: str | None
) -> tuple[str, dict[str, str], dict[str, str]]:
    """The name of the source, the parent of each node, and the titles; `Taxonomy.read` says what the arguments mean."""
    name, texts = _read_texts(source, table, {"parent": parent, "child": child, "title": title})
    where = None if is_frame(source) else source
    parent_of: dict[str, str] = {}
    titles: dict[str, str] = {}
    for row, (above, node, words) in enumerate(zip(*texts.values(), strict=True)):
        if node is None:
            raise RecordsError(f"{name}: {name_row(where, row)} names no {child!r}")
        if node in parent_of and parent_of[node] != (above or ROOT):
            raise RecordsError(
                f"{name}: {node!r} has two parents, {parent_of[node]!r} and {above or ROOT!r}; a tree has one"
            )
        parent_of[node] = above or ROOT
        if words is not None:
            titles[node] = words
    for above in list(parent_of.values()):
        if above != ROOT:
            parent_of.setdefault(above, ROOT)
    return os.path.basename(name), parent_of, titles  # noqa: PTH119
