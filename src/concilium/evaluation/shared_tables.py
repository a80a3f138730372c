"""Crosstables for many trees in one question: nodes that trees have in common are counted once (docs/methods.md, 1.14).

A node is known by the conditions that lead to it, in whatever order a tree asks them. The question is one partial
tree in which a node may be split several ways. Every site counts its own patients; each tree then gets the sum over
its own sites, in its own order of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts, Counts
from concilium.protocol.questions import MOST_NUMBERS
from concilium.protocol.routing import STAYS
from concilium.protocol.run import Run
from concilium.protocol.splits import Split, distinct
from concilium.protocol.sums import read_sum
from concilium.records.columns import Value, label

# An attribute and its edges (trees may have chosen different ones); a value's label, a bin's number, None: missing.
Key = tuple[str, tuple[float, ...]]
Name = str | int | None
# The conditions that lead to a node, in order: the number of an attribute, and the cells of a group of its values.
Condition = tuple[int, tuple[int, ...]]
Path = tuple[Condition, ...]


@dataclass(frozen=True)
class Request:
    """Crosstables that one tree needs, added up over the sites it learns from."""

    question: AskCounts
    learn: frozenset[str]


@dataclass(frozen=True)
class FoldLayout:
    """One tree's own order: its attributes, the values of each by cell, and its classes by cell."""

    keys: list[Key]
    names: list[list[Name]]
    classes: list[Name]


class SharedTables:
    """The tables of many trees over the sites of one run. Values are numbered in the order they become known."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names: dict[Key, dict[Name, Value | None]] = {}
        self._classes: dict[Name, Value | None] = {}
        self._layouts: dict[int, tuple[tuple[Attribute, ...], FoldLayout]] = {}
        self._order: Order | None = None

    def meet(self, request: Request) -> None:
        """Take note of the attributes and values that a tree knows of."""
        self._read(request)

    def can_share(self, request: Request) -> bool:
        """Whether every site can be asked what this tree asks."""
        names = {name for name, _ in self._read(request).keys}
        return all(names <= set(self._run.known.get(site, ())) for site in self._run.sites)

    def ask(self, requests: Sequence[Request]) -> list[Counts]:
        """For each request its counts, [node, cell, class]; all requests are about the same part of the patients."""
        order = self._agree()
        trees = [FoldTree(request, self._read(request), order) for request in requests]
        counted = sorted({index for tree in trees for index in tree.counted})
        sizes = [attribute.size for attribute in order.attributes]
        numbers = (1 + sum(sizes[index] for index in counted)) * len(self._classes)
        first = requests[0].question
        for paths in batch([tree.paths for tree in trees], most=max(1, MOST_NUMBERS // numbers)):
            splits, ends = plant(paths, sizes)
            question = msgspec.structs.replace(
                first,
                classes=order.name_classes(first.target),
                attributes=order.attributes,
                tree=splits,
                nodes=ends,
                counted=None if len(counted) == len(order.keys) else counted,
            )
            answers = self._gather(question)
            total = add_up(answers.values())
            place = {frozenset(path): index for index, path in enumerate(paths)}
            for tree in trees:
                tree.take(total, answers, place, order.find_starts(counted))
        return [tree.counts for tree in trees]

    def _read(self, request: Request) -> FoldLayout:
        """The order of a tree; remembered, since it is the same at every level."""
        attributes, classes = request.question.attributes, request.question.classes
        entry = self._layouts.get(id(attributes))
        if entry is not None:
            return entry[1]
        assert classes is not None
        keys: list[Key] = [(attribute.name, attribute.edges) for attribute in attributes]
        cells = [list_cells(attribute) for attribute in attributes]
        for key, own in zip(keys, cells, strict=True):
            self._names.setdefault(key, {}).update(own)
        self._classes.update(list_cells(classes))
        layout = FoldLayout(keys, [list(own) for own in cells], list(list_cells(classes)))
        self._layouts[id(attributes)] = attributes, layout
        return layout

    def _agree(self) -> Order:
        """The order for the next question; as long as nothing new became known, that of the last."""
        everywhere = set.intersection(*(set(self._run.known.get(site, ())) for site in self._run.sites))
        names = {key: dict(values) for key, values in self._names.items() if key[0] in everywhere}
        if self._order is None or (self._order.names, self._order.classes) != (names, self._classes):
            self._order = Order(names, dict(self._classes))
        return self._order

    def _gather(self, question: AskCounts) -> dict[str, NDArray[np.integer]]:
        answers = {}
        for site, data in self._run.gather(question).items():
            try:
                answers[site] = read_sum(data, question)
            except MessageError as error:
                raise HouseError(f"{site} answered with what cannot be added up: {error}") from None
        return answers


def list_cells(attribute: Attribute) -> dict[Name, Value | None]:
    """What stands in each cell of an attribute, by its name, and the value itself."""
    cells: dict[Name, Value | None] = {None: None} if attribute.missing else {}
    if attribute.edges:
        return {**cells, **dict.fromkeys(range(attribute.inner))}
    return {**cells, **{label(value): value for value in attribute.values}}


@dataclass(frozen=True)
class Order:
    """The order of attributes, values and classes that all trees share in a question."""

    names: Mapping[Key, Mapping[Name, Value | None]]
    classes: Mapping[Name, Value | None]

    @cached_property
    def keys(self) -> list[Key]:
        return list(self.names)

    @cached_property
    def cells(self) -> dict[Key, dict[Name, int]]:
        """For each attribute the cell of each of its values: missing first, the others as they became known."""
        return {
            key: {name: cell for cell, name in enumerate(sorted(names, key=lambda name: name is not None))}
            for key, names in self.names.items()
        }

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        return tuple(
            Attribute(name, edges)
            if edges
            else Attribute(
                name,
                values=tuple(value for value in names.values() if value is not None),
                missing=None in names,
                other=False,
            )
            for (name, edges), names in self.names.items()
        )

    @cached_property
    def class_places(self) -> dict[Name, int]:
        return {name: place for place, name in enumerate(self.classes)}

    def name_classes(self, target: str) -> Attribute:
        values = tuple(value for value in self.classes.values() if value is not None)
        return Attribute(target, (), values, missing=False, other=False)

    def find_starts(self, counted: Sequence[int]) -> dict[Key, int]:
        """Where the values of each counted attribute begin in an answer."""
        starts = np.cumsum([1, *(self.attributes[index].size for index in counted)])
        return {self.keys[index]: int(start) for index, start in zip(counted, starts[:-1], strict=True)}


class FoldTree:
    """One tree's nodes in the shared order, and its counts as they come in."""

    def __init__(self, request: Request, layout: FoldLayout, order: Order) -> None:
        question = request.question
        self._learn, self._layout, self._order = request.learn, layout, order
        self._counting = question.counting
        index = {key: place for place, key in enumerate(order.keys)}
        self.counted = [index[layout.keys[attribute]] for attribute in self._counting]
        path_to: dict[int, Path] = {0: ()}
        for split in question.tree:
            key, names = layout.keys[split.attribute], layout.names[split.attribute]
            groups: dict[int, list[int]] = {}
            for name, child in zip(names, split.children, strict=True):
                groups.setdefault(child, []).append(order.cells[key][name])
            for child in distinct(split.children):
                path_to[child] = (*path_to[split.node], (index[key], tuple(sorted(groups[child]))))
        self.paths = [path_to[node] for node in question.nodes]
        self.counts = np.zeros(question.shape, dtype=np.int64)

    def take(
        self,
        total: NDArray[np.int64],
        answers: Mapping[str, NDArray[np.integer]],
        place: Mapping[frozenset[Condition], int],
        starts: Mapping[Key, int],
    ) -> None:
        """The sums over the tree's own sites of those of its nodes that are in these answers."""
        pairs = [(own, place.get(frozenset(path), STAYS)) for own, path in enumerate(self.paths)]
        own = [here for here, row in pairs if row != STAYS]
        rows = [row for _, row in pairs if row != STAYS]
        if not rows:
            return
        others = [answer for site, answer in answers.items() if site not in self._learn]
        mine = [answer for site, answer in answers.items() if site in self._learn]
        if len(others) < len(mine):
            sums = total[rows] - add_up(other[rows] for other in others) if others else total[rows]
        else:
            sums = add_up(answer[rows] for answer in mine)
        cells = [0]
        for attribute in self._counting:
            key = self._layout.keys[attribute]
            places = self._order.cells[key]
            cells += [starts[key] + places[name] for name in self._layout.names[attribute]]
        classes = [self._order.class_places[name] for name in self._layout.classes]
        self.counts[own] = pick(pick(sums, cells, 1), classes, 2)


def batch(trees: Iterable[Sequence[Path]], most: int) -> Iterator[list[Path]]:
    """The nodes of all trees, each once, by depth (none is above another in one question), `most` at a time."""
    distinct = {frozenset(path): path for paths in trees for path in paths}
    by_depth: dict[int, list[Path]] = {}
    for path in distinct.values():
        by_depth.setdefault(len(path), []).append(path)
    for paths in by_depth.values():
        for start in range(0, len(paths), most):
            yield paths[start : start + most]


def plant(paths: Sequence[Path], sizes: Sequence[int]) -> tuple[list[Split], list[int]]:
    """A partial tree with all of these nodes, and the number of each; a node may be split several ways."""
    below: dict[tuple[int, int], list[list[int]]] = {}
    nodes: dict[tuple[int, Condition], int] = {}
    ends = []
    for path in paths:
        node = 0
        for condition in path:
            if (node, condition) not in nodes:
                nodes[node, condition] = len(nodes) + 1
                attribute, values = condition
                splits = below.setdefault((node, attribute), [])
                # Trees that group the values otherwise need a split of their own.
                fits = (split for split in splits if all(split[value] == STAYS for value in values))
                children = next(fits, None)
                if children is None:
                    children = [STAYS] * sizes[attribute]
                    splits.append(children)
                for value in values:
                    children[value] = nodes[node, condition]
            node = nodes[node, condition]
        ends.append(node)
    return [
        Split(node, attribute, children) for (node, attribute), splits in below.items() for children in splits
    ], ends


def add_up(answers: Iterable[NDArray[np.integer]]) -> NDArray[np.int64]:
    """The sum of arrays of counts."""
    arrays = iter(answers)
    total: NDArray[np.int64] = next(arrays).astype(np.int64)
    for array in arrays:
        np.add(total, array, out=total, casting="unsafe")
    return total


def pick(counts: NDArray[np.int64], places: Sequence[int], axis: int) -> NDArray[np.int64]:
    """The counts at these places of an axis; as they are where these are all of its places in order."""
    if list(places) == list(range(counts.shape[axis])):
        return counts
    return np.take(counts, places, axis=axis)
