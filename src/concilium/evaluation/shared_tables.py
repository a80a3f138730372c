"""Crosstables for many trees in one question: nodes that trees have in common are counted once (DIDT chapter 6).

A node is known by the conditions that lead to it, in whatever order a tree asks them. The question is one partial
tree in which a node may be split several ways. Every site counts its own patients; each tree then gets the sum over
its own sites, in its own order of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.federation.arrays import Counts, unpack
from concilium.federation.messages import decode, encode
from concilium.federation.run import Run
from concilium.trees.crosstables import MOST_CELLS, AskCrosstables, AskedAttribute, Split, distinct
from concilium.trees.routing import STAYS
from concilium.trees.schema import ConditionalSchema, Known, name_of

# So many numbers are asked for at once; a larger level is asked for in parts.
MOST_NUMBERS = MOST_CELLS

# An attribute and its edges (trees may have chosen different ones); a value's label, or the number of a bin.
Key = tuple[str, tuple[float, ...]]
Name = str | int | None
# The conditions that lead to a node, in order: the number of an attribute, and those of a group of its values.
Condition = tuple[int, tuple[int, ...]]
Path = tuple[Condition, ...]


@dataclass(frozen=True)
class Request:
    """Crosstables that one tree needs, added up over the sites it learns from."""

    question: AskCrosstables
    templates: Mapping[str, bytes]
    learn: frozenset[str]


@dataclass(frozen=True)
class Layout:
    """One tree's own order: its attributes, the values of each by position, and its classes."""

    keys: list[Key]
    values: list[list[Name]]
    classes: list[Name]


class SharedTables:
    """The tables of many trees over the sites of one run. Values are numbered in the order they become known."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._values: dict[Key, dict[Name, int]] = {}
        self._classes: dict[Name, int] = {}
        self._known: dict[str, dict[Key, Known]] = {}
        self._known_classes: dict[str, Known] = {}
        self._layouts: dict[int, tuple[Mapping[str, bytes], Layout]] = {}
        self._order: Order | None = None
        self._templates: dict[str, bytes] = {}

    def meet(self, request: Request) -> None:
        """Take note of the attributes and values that a tree knows of."""
        self._read(request)

    def can_share(self, request: Request) -> bool:
        """Whether every site can be asked what this tree asks; to be called when all trees were met."""
        question = request.question
        plain = question.sample is None and question.schema is None and question.variance is None
        return plain and self._common().issuperset(self._read(request).keys)

    def ask(self, requests: Sequence[Request]) -> list[NDArray[np.int64]]:
        """For each request its counts, [node, cell, class]; all requests are about the same part of the patients."""
        order = self._agree()
        trees = [Tree(request, self._read(request), order) for request in requests]
        counted = sorted({index for tree in trees for index in tree.counted})
        numbers = (1 + sum(order.sizes[index] for index in counted)) * len(self._classes)
        for paths in batch([tree.paths for tree in trees], most=max(1, MOST_NUMBERS // numbers)):
            splits, ends = plant(paths, order.sizes)
            question = msgspec.structs.replace(
                requests[0].question,
                classes=len(self._classes),
                attributes=order.attributes,
                tree=splits,
                nodes=ends,
                counted=None if len(counted) == len(order.keys) else counted,
            )
            answers = self._gather(question)
            total = add_up(answers.values())
            place = {frozenset(path): index for index, path in enumerate(paths)}
            for tree in trees:
                tree.take(total, answers, place, order.find_cells(counted))
        return [tree.counts for tree in trees]

    def _read(self, request: Request) -> Layout:
        """The order of a tree, from what its sites are told; remembered, since it is the same at every level."""
        met = self._layouts.get(id(request.templates))
        if met is not None:
            return met[1]
        attributes = request.question.attributes
        keys: list[Key] = [(attribute.name, tuple(attribute.edges)) for attribute in attributes]
        values: list[list[Name]] = [list(range(attribute.size)) for attribute in attributes]
        classes: list[Name] = list(range(request.question.classes))
        for site, template in request.templates.items():
            told = read_template(template)
            self._known_classes[site] = told.classes
            self._known.setdefault(site, {}).update(zip(keys, told.attributes, strict=True))
            for names, known in [(classes, told.classes), *zip(values, told.attributes, strict=True)]:
                for position, value in zip(known.positions, known.values, strict=True):
                    names[position] = name_of(value)
        for key, own in zip(keys, values, strict=True):
            number(own, self._values.setdefault(key, {}))
        number(classes, self._classes)
        layout = Layout(keys, values, classes)
        self._layouts[id(request.templates)] = (request.templates, layout)
        return layout

    def _common(self) -> set[Key]:
        """What every site knows."""
        return set(self._values).intersection(*(self._known.get(site, {}) for site in self._run.sites))

    def _agree(self) -> Order:
        """The order for the next question; as long as nothing new became known, that of the last."""
        common = self._common()
        keys = [key for key in self._values if key in common]
        sizes = [len(self._values[key]) for key in keys]
        last = self._order
        if last is None or (last.keys, last.sizes, len(last.classes)) != (keys, sizes, len(self._classes)):
            values = {key: dict(self._values[key]) for key in keys}
            self._order = last = Order(keys, sizes, values, dict(self._classes))
            self._templates = {site: self._tell(site, last) for site in self._run.sites}
        return last

    def _tell(self, site: str, order: Order) -> bytes:
        """What one site is told: where its own values stand, nothing of the others'."""
        known = self._known[site]
        return encode(
            ConditionalSchema(
                classes=renumber(self._known_classes[site], self._classes),
                attributes=[
                    known[key] if key[1] else renumber(known[key], self._values[key]) for key in order.keys
                ],
            )
        )

    def _gather(self, question: AskCrosstables) -> dict[str, NDArray[np.generic]]:
        shape = (len(question.nodes), question.cells, question.classes)
        answers = {}
        for site, body in self._run.gather("tree.crosstables", question, self._templates).items():
            try:
                answers[site] = unpack(decode(body, Counts).counts, shape)
            except MessageError as error:
                raise HouseError(f"{site} answered with what cannot be added up: {error}") from None
        return answers


@dataclass(frozen=True)
class Order:
    """The order of attributes, values and classes that all trees share in a question."""

    keys: list[Key]
    sizes: list[int]
    values: Mapping[Key, Mapping[Name, int]]
    classes: Mapping[Name, int]

    @cached_property
    def attributes(self) -> list[AskedAttribute]:
        pairs = zip(self.keys, self.sizes, strict=True)
        return [AskedAttribute(name, size, list(edges)) for (name, edges), size in pairs]

    def find_cells(self, counted: Sequence[int]) -> dict[Key, int]:
        """Where the values of each counted attribute begin in an answer."""
        starts = np.cumsum([1, *(self.sizes[index] for index in counted)])
        return {self.keys[index]: int(start) for index, start in zip(counted, starts[:-1], strict=True)}


class Tree:
    """One tree's nodes in the shared order, and its counts as they come in."""

    def __init__(self, request: Request, layout: Layout, order: Order) -> None:
        question = request.question
        self._learn, self._layout, self._order = request.learn, layout, order
        self._counting = question.counting
        index = {key: place for place, key in enumerate(order.keys)}
        self.counted = [index[layout.keys[attribute]] for attribute in self._counting]
        reached: dict[int, Path] = {0: ()}
        for split in question.tree:
            key, names = layout.keys[split.attribute], layout.values[split.attribute]
            groups: dict[int, list[int]] = {}
            for name, child in zip(names, split.children, strict=True):
                groups.setdefault(child, []).append(order.values[key][name])
            for child in distinct(split.children):
                reached[child] = (*reached[split.node], (index[key], tuple(sorted(groups[child]))))
        self.paths = [reached[node] for node in question.nodes]
        self.counts = np.zeros((len(self.paths), question.cells, question.classes), dtype=np.int64)

    def take(
        self,
        total: NDArray[np.int64],
        answers: Mapping[str, NDArray[np.generic]],
        place: Mapping[frozenset[Condition], int],
        starts: Mapping[Key, int],
    ) -> None:
        """The sums over the tree's own sites of those of its nodes that are in these answers."""
        found = [(own, place.get(frozenset(path), STAYS)) for own, path in enumerate(self.paths)]
        own = [here for here, row in found if row != STAYS]
        rows = [row for _, row in found if row != STAYS]
        if not rows:
            return
        others = [answer for site, answer in answers.items() if site not in self._learn]
        mine = [answer for site, answer in answers.items() if site in self._learn]
        if len(others) < len(mine):
            summed = total[rows] - add_up(other[rows] for other in others) if others else total[rows]
        else:
            summed = add_up(answer[rows] for answer in mine)
        cells = [0]
        for attribute in self._counting:
            key = self._layout.keys[attribute]
            places = self._order.values[key]
            cells += [starts[key] + places[name] for name in self._layout.values[attribute]]
        classes = [self._order.classes[name] for name in self._layout.classes]
        self.counts[own] = pick(pick(summed, cells, 1), classes, 2)


def number(names: Iterable[Name], places: dict[Name, int]) -> None:
    """Give every new name the next place."""
    for name in names:
        places.setdefault(name, len(places))


def renumber(known: Known, places: Mapping[Name, int]) -> Known:
    """Where a site's own values stand in the shared order."""
    return Known([places[name_of(value)] for value in known.values], known.values)


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
    planted: dict[tuple[int, Condition], int] = {}
    ends = []
    for path in paths:
        node = 0
        for condition in path:
            if (node, condition) not in planted:
                planted[node, condition] = len(planted) + 1
                attribute, values = condition
                splits = below.setdefault((node, attribute), [])
                # Trees that group the values otherwise need a split of their own.
                fits = (split for split in splits if all(split[value] == STAYS for value in values))
                children = next(fits, None)
                if children is None:
                    children = [STAYS] * sizes[attribute]
                    splits.append(children)
                for value in values:
                    children[value] = planted[node, condition]
            node = planted[node, condition]
        ends.append(node)
    return [
        Split(node, attribute, children) for (node, attribute), splits in below.items() for children in splits
    ], ends


def add_up(answers: Iterable[NDArray[np.generic]]) -> NDArray[np.int64]:
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


@lru_cache(maxsize=1024)
def read_template(template: bytes) -> ConditionalSchema:
    return decode(template, ConditionalSchema)
