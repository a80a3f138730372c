"""Folds that leave sites out, learned in one conversation instead of one each (docs/methods.md, section 1.14).

Under `exact` the house sees each site's numbers, so a sum without some sites is a sum of numbers it has already. The
conversations of all folds go in step: what several of them ask is asked once, of all sites, and every fold is sent the
answers of its own. The model of a fold is the one that a house of its sites alone would learn. A site enters each
number that it releases once, however many folds use it. Patients are protected as `exact` protects them: not at all.

Crosstables of many trees are one question: nodes that trees have in common are counted once. A node is known by the
conditions that lead to it, in whatever order a tree asks them. The question is one partial tree in which a node may be
split several ways. Every site counts its own patients; each tree then gets the sum over its own sites, in its own order
of values.

Across machines nobody holds all records, and `measure_left_out` measures every hospital by a model of the others,
through the gate. Under `private` each fold is a study of its own, charged as the model is. Then one study measures all
of them (models/validation.py): its one question carries the model of each
fold, and a hospital counts its patients by the model that had no part of them. So a patient is in one cell of one
table, whatever the number of folds, and measuring is charged once. The sum over hospitals is the table of all patients;
under `exact` the house sees that of each. Bins are those of log odds, and the threshold is that of the model of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import HouseError, MessageError
from concilium.evaluation.leave_out import Fold
from concilium.models.measuring import RiskTable
from concilium.models.method import Method
from concilium.models.validation import Validation
from concilium.protocol.attributes import MOST_EDGES, Attribute
from concilium.protocol.card import Card
from concilium.protocol.counts import AskCounts, Counts, split_counts
from concilium.protocol.house import House
from concilium.protocol.messages import encode
from concilium.protocol.questions import MOST_NUMBERS, Among, Asked, BySite, Gathered, Learned, Summed
from concilium.protocol.run import Run, SitesChanged
from concilium.protocol.schema import SchemaSeen
from concilium.protocol.splits import STAYS, Split, distinct
from concilium.protocol.sums import read_sum
from concilium.records.columns import Value, label

# A value's label, where a bin begins, None: missing. Trees may have chosen different edges: a bin of one of them is
# several bins of the shared order, which has the edges of all.
Name = str | float | None
# The conditions that lead to a node, in order: the number of an attribute, and the cells of a group of its values.
Condition = tuple[int, tuple[int, ...]]
Path = tuple[Condition, ...]


@dataclass(frozen=True)
class _Request:
    """Crosstables that one tree needs, added up over the sites it learns from."""

    question: AskCounts
    learn: frozenset[str]


@dataclass(frozen=True)
class _FoldLayout:
    """One tree's own order: its attributes, the values of each by cell, and its classes by cell."""

    attributes: tuple[Attribute, ...]
    names: list[list[Name]]
    classes: list[Name]


class _SharedTables:
    """The tables of many trees over the sites of one run. Values are numbered in the order they become known."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names: dict[str, dict[Name, Value | None]] = {}
        self._numbers: dict[str, bool] = {}
        self._classes: dict[Name, Value | None] = {}
        self._layouts: dict[tuple[int, tuple[Value, ...]], tuple[tuple[Attribute, ...], _FoldLayout]] = {}
        self._order: _Order | None = None

    def meet(self, request: _Request) -> None:
        """Take note of the attributes and values that a tree knows of."""
        self._read(request)

    def can_share(self, request: _Request) -> bool:
        """Whether every site can be asked what this tree asks."""
        attributes = self._read(request).attributes
        # What is a number by the sites of one fold may be a category by those of another.
        if any(self._numbers[one.name] != one.numeric for one in attributes):
            return False
        if any(one.numeric and len(self._names[one.name]) > MOST_EDGES for one in attributes):
            return False
        names = {one.name for one in attributes}
        return all(names <= set(self._run.known.get(site, ())) for site in self._run.sites)

    def ask(self, requests: Sequence[_Request]) -> list[Counts]:
        """For each request its counts, [node, cell, class]; all requests are about the same part of the patients."""
        order = self._agree()
        trees = [_FoldTree(request, self._read(request), order) for request in requests]
        counted = sorted({index for tree in trees for index in tree.counted})
        sizes = [attribute.size for attribute in order.attributes]
        numbers = (1 + sum(sizes[index] for index in counted)) * len(self._classes)
        first = requests[0].question
        for paths in _batch([tree.paths for tree in trees], most=max(1, MOST_NUMBERS // numbers)):
            splits, ends = _plant(paths, sizes)
            question = msgspec.structs.replace(
                first,
                classes=order.name_classes(first.target),
                attributes=order.attributes,
                tree=splits,
                nodes=ends,
                counted=None if len(counted) == len(order.names) else counted,
            )
            answers = self._gather(question)
            total = _add_up(answers.values())
            place = {frozenset(path): index for index, path in enumerate(paths)}
            for tree in trees:
                tree.take(total, answers, place, order.find_starts(counted))
        return [tree.counts for tree in trees]

    def _read(self, request: _Request) -> _FoldLayout:
        """The order of a tree; remembered, since it is the same at every level."""
        attributes, classes = request.question.attributes, request.question.classes
        assert classes is not None
        # There is one empty tuple for all folds, whatever their classes.
        key = (id(attributes), classes.values)
        entry = self._layouts.get(key)
        if entry is not None:
            return entry[1]
        cells = [_list_cells(attribute) for attribute in attributes]
        for attribute, own in zip(attributes, cells, strict=True):
            if self._numbers.setdefault(attribute.name, attribute.numeric) == attribute.numeric:
                self._names.setdefault(attribute.name, {}).update(own)
        self._classes.update(_list_cells(classes))
        layout = _FoldLayout(attributes, [list(own) for own in cells], list(_list_cells(classes)))
        self._layouts[key] = attributes, layout
        return layout

    def _agree(self) -> _Order:
        """The order for the next question; as long as nothing new became known, that of the last."""
        everywhere = set.intersection(*(set(self._run.known.get(site, ())) for site in self._run.sites))
        names = {name: dict(values) for name, values in self._names.items() if name in everywhere}
        if self._order is None or (self._order.names, self._order.classes) != (names, self._classes):
            self._order = _Order(names, dict(self._classes))
        return self._order

    def _gather(self, question: AskCounts) -> dict[str, NDArray[np.integer]]:
        answers = {}
        for site, data in self._run.gather(question).items():
            try:
                answers[site] = read_sum(data, question)
            except MessageError as error:
                raise HouseError(f"{site} answered with what cannot be added up: {error}") from None
        return answers


def _list_cells(attribute: Attribute) -> dict[Name, Value | None]:
    """What stands in each cell of an attribute, by its name, and the value itself."""
    cells: dict[Name, Value | None] = {None: None} if attribute.missing else {}
    if attribute.edges:
        return {**cells, **dict.fromkeys((-math.inf, *attribute.edges))}
    return {**cells, **{label(value): value for value in attribute.values}}


@dataclass(frozen=True)
class _Order:
    """The order of attributes, values and classes that all trees share in a question."""

    names: Mapping[str, Mapping[Name, Value | None]]
    classes: Mapping[Name, Value | None]

    @cached_property
    def cells(self) -> dict[str, dict[Name, int]]:
        """For each attribute the cell of each of its values: missing first, the others as they became known; bins as
        they rise."""
        return {
            attribute: {name: cell for cell, name in enumerate(sorted(names, key=_rank))}
            for attribute, names in self.names.items()
        }

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        return tuple(
            Attribute(attribute, tuple(sorted(edge for edge in names if isinstance(edge, float))[1:]))
            if -math.inf in names
            else Attribute(
                attribute,
                values=tuple(value for value in names.values() if value is not None),
                missing=None in names,
                other=False,
            )
            for attribute, names in self.names.items()
        )

    def find_cells(self, attribute: Attribute, names: Sequence[Name]) -> list[list[int]]:
        """For each of a tree's own cells those of the shared order that it holds."""
        cells = self.cells[attribute.name]
        first = [cells[name] for name in names]
        if not attribute.numeric:
            return [[cell] for cell in first]
        # Missing, and then bins in order: each reaches to where the next begins.
        ends = [first[0] + 1, *first[2:], len(cells)]
        return [list(range(start, end)) for start, end in zip(first, ends, strict=True)]

    @cached_property
    def class_places(self) -> dict[Name, int]:
        return {name: place for place, name in enumerate(self.classes)}

    def name_classes(self, target: str) -> Attribute:
        values = tuple(value for value in self.classes.values() if value is not None)
        return Attribute(target, (), values, missing=False, other=False)

    def find_starts(self, counted: Sequence[int]) -> dict[str, int]:
        """Where the values of each counted attribute begin in an answer."""
        starts = np.cumsum([1, *(self.attributes[index].size for index in counted)])
        pairs = zip(counted, starts[:-1], strict=True)
        return {self.attributes[index].name: int(start) for index, start in pairs}


def _rank(name: Name) -> tuple[bool, float]:
    """What is missing first, bins by where they begin; labels stay in order."""
    return name is not None, name if isinstance(name, float) else 0.0


class _FoldTree:
    """One tree's nodes in the shared order, and its counts as they come in."""

    def __init__(self, request: _Request, layout: _FoldLayout, order: _Order) -> None:
        question = request.question
        self._learn, self._layout, self._order = request.learn, layout, order
        self._counting = question.counting
        index = {name: place for place, name in enumerate(order.names)}
        self._cells = [
            order.find_cells(attribute, names)
            for attribute, names in zip(layout.attributes, layout.names, strict=True)
        ]
        self.counted = [index[layout.attributes[attribute].name] for attribute in self._counting]
        path_to: dict[int, Path] = {0: ()}
        for split in question.tree:
            place = index[layout.attributes[split.attribute].name]
            groups: dict[int, list[int]] = {}
            for cells, child in zip(self._cells[split.attribute], split.children, strict=True):
                groups.setdefault(child, []).extend(cells)
            for child in distinct(split.children):
                path_to[child] = (*path_to[split.node], (place, tuple(sorted(groups[child]))))
        self.paths = [path_to[node] for node in question.nodes]
        self.counts = np.zeros(question.shape, dtype=np.int64)

    def take(
        self,
        total: NDArray[np.int64],
        answers: Mapping[str, NDArray[np.integer]],
        place: Mapping[frozenset[Condition], int],
        starts: Mapping[str, int],
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
            sums = total[rows] - _add_up(other[rows] for other in others) if others else total[rows]
        else:
            sums = _add_up(answer[rows] for answer in mine)
        cells = [[0]]
        for attribute in self._counting:
            start = starts[self._layout.attributes[attribute].name]
            cells += [[start + cell for cell in group] for group in self._cells[attribute]]
        classes = [self._order.class_places[name] for name in self._layout.classes]
        self.counts[own] = _pick(_pick_sums(sums, cells), classes, 2)


def _batch(trees: Iterable[Sequence[Path]], most: int) -> Iterator[list[Path]]:
    """The nodes of all trees, each once, by depth (none is above another in one question), `most` at a time."""
    distinct = {frozenset(path): path for paths in trees for path in paths}
    by_depth: dict[int, list[Path]] = {}
    for path in distinct.values():
        by_depth.setdefault(len(path), []).append(path)
    for paths in by_depth.values():
        for start in range(0, len(paths), most):
            yield paths[start : start + most]


def _plant(paths: Sequence[Path], sizes: Sequence[int]) -> tuple[list[Split], list[int]]:
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


def _add_up(answers: Iterable[NDArray[np.integer]]) -> NDArray[np.int64]:
    """The sum of arrays of counts."""
    arrays = iter(answers)
    total: NDArray[np.int64] = next(arrays).astype(np.int64)
    for array in arrays:
        np.add(total, array, out=total, casting="unsafe")
    return total


def _pick_sums(counts: NDArray[np.int64], groups: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The counts of groups of cells, [node, group, class]."""
    picked = _pick(counts, [cell for group in groups for cell in group], 1)
    if picked.shape[1] == len(groups):
        return picked
    starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    return np.add.reduceat(picked, starts, axis=1)


def _pick(counts: NDArray[np.int64], places: Sequence[int], axis: int) -> NDArray[np.int64]:
    """The counts at these places of an axis; as they are where these are all of its places in order."""
    if list(places) == list(range(counts.shape[axis])):
        return counts
    return np.take(counts, places, axis=axis)


# So many folds are learned side by side; more would hold too many tables at once.
AT_ONCE = 64

M = TypeVar("M", bound=Method[Any])


@dataclass(frozen=True)
class _FoldModels(Generic[M]):
    """A model for every fold; `card` is that of the conversation in which `together` of them were learned."""

    models: list[M]
    together: int
    card: Card | None


def learn_folds(
    make: Callable[[], M], folds: Sequence[Fold], open_house: Callable[[Fold | None], House]
) -> _FoldModels[M]:
    """A model for every fold. `open_house` opens the house of a fold's sites, or (None) that of all sites."""
    models: dict[int, M] = {}
    with open_house(None).open(make().draft(models=max(1, len(folds)))) as run:
        shared, start = _SharedAnswers(run), 0
        while start < len(folds):
            group = range(start, min(start + AT_ONCE, len(folds)))
            try:
                models |= _learn_together(shared, make, {number: folds[number] for number in group})
                start = group.stop
            except SitesChanged:
                # What was learned so far is of other sites; sites only ever get fewer, so this ends.
                models, shared, start = {}, _SharedAnswers(run), 0
        together = len(models)
        patients = {site.name: site.patients for model in models.values() for site in model.card.sites}
        card = run.finish(patients, [_describe(together)]) if together else None
    for number, fold in enumerate(folds):
        if number not in models:
            models[number] = make().fit(open_house(fold))
    return _FoldModels([models[number] for number in range(len(folds))], together, card)


def _describe(folds: int) -> str:
    return (
        f"{folds} folds were learned in one conversation: every number was released, and entered in its site's ledger, "
        "once for all folds that use it"
    )


def _learn_together(shared: _SharedAnswers, make: Callable[[], M], folds: Mapping[int, Fold]) -> dict[int, M]:
    """The models of those folds whose questions can all be asked together."""
    conversations = {
        number: _FoldConversation(make(), fold, shared.run.house) for number, fold in folds.items()
    }
    models: dict[int, M] = {}
    while conversations := {number: one for number, one in conversations.items() if one.asked is not None}:
        answers = shared.answer({number: one for number, one in conversations.items() if one.can_share})
        for number, one in list(conversations.items()):
            if number not in answers:  # it asks what cannot be shared: it is learned alone
                del conversations[number]
            elif one.send(answers[number]):
                models[number] = one.method
    return models


class _FoldConversation(Generic[M]):
    """One fold's conversation; `asked` is what it waits for. It asks no site itself."""

    def __init__(self, method: M, fold: Fold, everyone: House) -> None:
        self.method, self.fold = method, fold
        house = _FoldHouse(everyone, fold)
        self._run = house.open(method.draft())
        self._conversation = method.converse(self._run) if method.way_out.by_site else None
        self.asked: Asked | None = None if self._conversation is None else next(self._conversation)

    @property
    def can_share(self) -> bool:
        return self.asked is not None and not isinstance(self.asked, Among | BySite) and self.asked.merges

    def send(self, answer: Any) -> bool:
        """Go on with an answer; whether the conversation is over, and the method has its model."""
        assert self._conversation is not None
        self._run.rounds += 1
        if isinstance(answer, dict):
            self._run.sites = list(answer)
        try:
            self.asked = self._conversation.send(answer)
        except StopIteration as end:
            self.asked = None
            result: Learned[Any] = end.value
            note = (
                "one of several folds learned in one conversation; what was released is on the card of that"
            )
            card = self._run.finish(result.patients, [*result.warnings, note], result.decision)
            self.method.take(result.body, card)
            return True
        return False


class _FoldHouse(House):
    """The house of one fold: its sites are some of those that the conversation asks."""

    def __init__(self, everyone: House, fold: Fold) -> None:
        super().__init__(transport=everyone.transport, identity=everyone.identity)
        self.heads, self.identities = everyone.heads, everyone.identities
        self._fold = fold

    @property
    def names(self) -> tuple[str, ...]:
        return self._fold.learn


def _join_histograms(asked: Iterable[Asked | None]) -> dict[tuple[str, bytes], AskCounts]:
    """For each question for histograms of numbers one that answers all of them: it has the edges of all."""
    plain = {
        (one.kind, encode(one)): one
        for one in asked
        if isinstance(one, AskCounts)
        and (one.classes, one.noise, one.counted, one.totals, one.tree) == (None, None, None, False, [])
        and all(attribute.numeric for attribute in one.attributes)
    }
    edges: dict[str, set[float]] = {}
    for one in plain.values():
        for attribute in one.attributes:
            edges.setdefault(attribute.name, set()).update(attribute.edges)
    named = {attribute.name: attribute for one in plain.values() for attribute in one.attributes}
    if len(plain) < 2 or any(len(own) > MOST_EDGES for own in edges.values()):
        return {}
    attributes = tuple(
        msgspec.structs.replace(named[name], stated_edges=tuple(sorted(own)), grid=None)
        for name, own in sorted(edges.items())
    )
    return {key: msgspec.structs.replace(one, attributes=attributes) for key, one in plain.items()}


def _take_histograms(by_site: Mapping[str, Any], joint: Asked, asked: Asked) -> Mapping[str, Any]:
    """The answers to one question for histograms out of those to one that has its edges, and others."""
    if joint is asked:
        return by_site
    assert isinstance(joint, AskCounts)
    assert isinstance(asked, AskCounts)
    wide = {attribute.name: attribute for attribute in joint.attributes}
    taken = {}
    for site, counts in by_site.items():
        own = split_counts(joint.attributes, counts)
        parts = []
        for attribute in asked.attributes:
            # A bin begins at an edge, of this question as of the other: sums over the bins between two.
            starts = np.searchsorted(wide[attribute.name].edges, attribute.edges) + 1
            bins = np.add.reduceat(own[attribute.name][1:], [0, *starts], axis=0)
            parts += [own[attribute.name][:1], bins]
        taken[site] = np.concatenate(parts)[np.newaxis]
    return taken


class _SharedAnswers:
    """What all folds ask, in as few questions as possible, over the sites of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tables = _SharedTables(run)

    def answer(self, folds: Mapping[int, _FoldConversation[Any]]) -> dict[int, Any]:
        """What each fold asked; those that cannot be answered together are left out."""
        answers: dict[int, Any] = {}
        by_question: dict[tuple[str, bytes], Mapping[str, Any]] = {}
        requests: dict[int, _Request] = {}
        joint = _join_histograms(one.asked for one in folds.values())
        for number, one in folds.items():
            asked, learn = one.asked, one.fold.learn
            assert asked is not None
            assert not isinstance(asked, Among | BySite)
            if isinstance(asked, AskCounts) and asked.classes is not None:
                if asked.sample is None:
                    requests[number] = _Request(asked, frozenset(learn))
                continue
            key = (asked.kind, encode(asked))
            if key not in by_question:
                united = joint.get(key, asked)
                joint_key = (united.kind, encode(united))
                if joint_key not in by_question:
                    by_question[joint_key] = self._ask(united)
                by_question[key] = _take_histograms(by_question[joint_key], united, asked)
            by_site = by_question[key]
            # A site that leaves small counts out looks at the whole tree to do so: it is asked about one at a time.
            if any(isinstance(reply, SchemaSeen) and reply.floored for reply in by_site.values()):
                continue
            own = {site: by_site[site] for site in learn if site in by_site}
            if not own:
                raise HouseError("no site answered of those that this fold learns from")
            answers[number] = own if isinstance(asked, Gathered) else _add_up(own.values())
        return answers | self._count_together(requests)

    def _count_together(self, requests: Mapping[int, _Request]) -> dict[int, Any]:
        """The tables of folds that can share them, those of one part of the patients at once."""
        answers: dict[int, Any] = {}
        for request in requests.values():
            self._tables.meet(request)
        shareable = {n: request for n, request in requests.items() if self._tables.can_share(request)}
        for part in dict.fromkeys(request.question.part for request in shareable.values()):
            alike = {n: request for n, request in shareable.items() if request.question.part == part}
            answers |= zip(alike, self._tables.ask(list(alike.values())), strict=True)
        return answers

    def _ask(self, question: Gathered[Any] | Summed) -> dict[str, Any]:
        """One question to all sites: replies, or arrays, by site."""
        if isinstance(question, Gathered):
            return self.run.gather_replies(question)
        answers: dict[str, Any] = {}
        for site, data in self.run.gather(question).items():
            try:
                answers[site] = read_sum(data, question)
            except MessageError as error:
                raise HouseError(f"{site} answered with what was not asked for: {error}") from None
        return answers


def measure_left_out(
    model: Method[Any],
    make: Callable[[], Method[Any]],
    open_house: Callable[[str, Fold | None], House],
    **how: Any,
) -> RiskTable:
    """Leave every hospital of a fitted model out in turn, learn by the same method from the others, and measure.

    `open_house` opens the house of a fold's sites, or of all (None), for the part of the work that is named: folds,
    fold-1, ..., validation. `how` is what `Validation.of` takes: positive, epsilon, delta, subgroups.
    """
    names = [site.name for site in model.card.sites]
    folds = [Fold((name,), tuple(other for other in names if other != name)) for name in names]
    if model.way_out.by_site:

        def open_fold(fold: Fold | None) -> House:
            return open_house("folds" if fold is None else f"fold-{folds.index(fold) + 1}", fold)

        models = learn_folds(make, folds, open_fold).models
    else:
        models = [make().fit(open_house(f"fold-{n}", fold)) for n, fold in enumerate(folds, start=1)]
    study = Validation.of(model, release=model.release, left_out=dict(zip(names, models, strict=True)), **how)
    return study.fit(open_house("validation", None)).body
