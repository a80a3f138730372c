"""Where a constraint graph's motif is found in a transaction (docs/methods.md, section 3.2).

1. A node *fits* a tag if the tag's own condition is definitely true for it and, where edges or comparisons tie the tag
   to others, if every tag of that connected part can be given a node of its own (this one among them) so that all its
   edges are there and all its comparisons are definitely true. An edge joins two nodes whichever way round it is
   written; it fits an edge's tag if such a placement has its two nodes at the tag's ends. Tags that may stand for no
   node are not needed for the others to fit.
2. The motif *matches* if every tag that needs a node can be given one of its own with all edges there and all
   comparisons true, and the other nodes that fit something can be shared out too, each to one tag that it fits and none
   left over, so that every tag gets as many as its quantifier says.

So `{3}` means that exactly three nodes fit, not that three can be picked. Sets of nodes and of edges are integers, one
bit each: the same code decides about ten nodes of a message and a million patients of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from concilium.policy.judging import (
    Attributes,
    Judge,
    canonical_labels,
    judge,
    judge_listed,
    judge_parts,
    judge_placed,
)
from concilium.policy.language import ConstraintGraph, MotifEdge, Node, conjuncts, tags_of
from concilium.records.expression import TRUE, And, AttributeComparison, Expression, names
from concilium.records.grammar import all_labels

MOST_TRIES = 50_000
VALUES_A_TRY = 10
FEW = 64
"""Up to so many nodes a list of them is smaller than a set."""


class TooEntangled(Exception):
    """A transaction with so many edges that the motif was not found or ruled out within `MOST_TRIES` tries."""


def own_condition(statement: Node | MotifEdge) -> Expression | None:
    """What the condition of a tag says about the tag alone."""
    own = [part for part in conjuncts(statement.condition) if tags_of(part) <= {statement.tag}]
    return None if not own else own[0] if len(own) == 1 else And(tuple(own))


def judge_of(statement: Node | MotifEdge) -> Judge | None:
    """Whether a node or edge of a transaction fulfils what its tag says of it alone; None: every one does."""
    condition = own_condition(statement)
    judges = [] if condition is None else [judge(condition)]
    if isinstance(statement, Node) and statement.quantifier.listed:
        judges.insert(0, judge_listed(all_labels(statement.quantifier.listed)))
    return judges[0] if len(judges) == 1 else judge_parts(judges, min, TRUE) if judges else None


@dataclass(frozen=True)
class _Tie:
    """A condition that compares tags: whose it is, all that it mentions, and for `x.a = y.b` the two sides."""

    owner: tuple[int, ...]
    mentioned: frozenset[int]
    nodes: frozenset[int]
    holds: Callable[[Any], int] = field(compare=False)
    attributes: tuple[tuple[str, str], ...]
    equal: tuple[tuple[int, str], tuple[int, str]] | None = None


@dataclass(frozen=True)
class Motif:
    """Some tags of a constraint graph, those that must match together; all else is by their position in `tags`.

    Nodes come first, then the edges of which more is asked or to which something is done; `ends` are theirs.
    """

    tags: tuple[str | None, ...]
    least: tuple[int, ...]
    most: tuple[int | None, ...]
    neighbours: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, int], ...]
    ties: tuple[_Tie, ...]

    @cached_property
    def has_edges(self) -> bool:
        return any(self.neighbours) or bool(self.ties)

    @cached_property
    def needed(self) -> frozenset[int]:
        """The nodes' tags that may not stand for nothing."""
        return frozenset(index for index, least in enumerate(self.least) if least > 0)

    @cached_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """For each tag, in which order it and what is connected with it are placed: itself first, or its ends."""
        first_edge = len(self.least)
        nodes = [self._with_edges(self._connected([tag]), [tag]) for tag in range(first_edge)]
        edges = [
            self._with_edges(self._connected(ends), [*ends, first_edge + number])
            for number, ends in enumerate(self.ends)
        ]
        return (*nodes, *edges)

    @cached_property
    def core(self) -> tuple[int, ...]:
        """In which order all that is needed is placed."""
        nodes: list[int] = []
        for tag in sorted(self.needed):
            nodes += [other for other in self._connected([tag]) if other not in nodes]
        return self._with_edges(nodes, [])

    @cached_property
    def ties_of(self) -> tuple[tuple[_Tie, ...], ...]:
        """The comparisons that mention each tag."""
        return tuple(tuple(tie for tie in self.ties if tag in tie.mentioned) for tag in range(len(self.tags)))

    @cached_property
    def edges_of(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each node's tag the edges of `ends` at it, each with the tag at its other end."""
        return tuple(
            tuple(
                (number, other)
                for number, ends in enumerate(self.ends)
                for one, other in (ends, ends[::-1])
                if one == tag
            )
            for tag in range(len(self.least))
        )

    def _connected(self, start: Sequence[int]) -> list[int]:
        """The start and the needed tags that edges and comparisons connect it with, each after one it is tied to."""
        nodes = list(start)
        allowed = self.needed | set(start)
        for member in nodes:
            reached = set(self.neighbours[member])
            for tie in self.ties:
                if member in tie.nodes and allowed.issuperset(tie.owner):
                    reached |= tie.nodes
            nodes += sorted((reached & self.needed) - set(nodes))
        return nodes

    def _with_edges(self, nodes: Sequence[int], start: Sequence[int]) -> tuple[int, ...]:
        """The start, then the other nodes in order, and every edge among them as soon as both its ends are placed."""
        order = [*start, *(tag for tag in nodes if tag not in start)]
        for edge, ends in enumerate(self.ends, start=len(self.least)):
            if edge not in order and set(ends) <= set(nodes):
                order.insert(max(len(start) - 1, *map(order.index, ends)) + 1, edge)
        return tuple(order)


@dataclass(eq=False)
class Links:
    """How a transaction's nodes are joined, and what nodes and edges have: what a motif with edges is looked for in."""

    nodes: Sequence[Attributes] = ()
    edges: Sequence[Attributes] = ()
    ends: Sequence[tuple[int, int]] = ()

    @cached_property
    def neighbours(self) -> list[int]:
        neighbours = [0] * len(self.nodes)
        for left, right in self.ends:
            neighbours[left] |= 1 << right
            neighbours[right] |= 1 << left
        return neighbours


ALONE = Links(({},))
"""A record: one node and no edges."""


def motif_edges(graph: ConstraintGraph) -> tuple[MotifEdge, ...]:
    """The edges of which more is asked than to be there, or to which something is done."""
    wanted = {action.tag for action in graph.actions}.union(
        *(tags_of(one.condition) for one in graph.statements if one.condition is not None)
    )
    return tuple(edge for edge in graph.edges if edge.condition is not None or edge.tag in wanted)


def motif_of(graph: ConstraintGraph, tags: frozenset[str] | None = None) -> Motif:
    """The motif of a constraint graph, or of some of its nodes' tags."""
    nodes = [node for node in graph.nodes if tags is None or node.tag in tags]
    position = {node.tag: index for index, node in enumerate(nodes)}
    neighbours: list[set[int]] = [set() for _ in nodes]
    for edge in graph.edges:
        if edge.left in position and edge.right in position:
            neighbours[position[edge.left]].add(position[edge.right])
            neighbours[position[edge.right]].add(position[edge.left])
    edges = [edge for edge in motif_edges(graph) if edge.left in position and edge.right in position]
    ends = tuple((position[edge.left], position[edge.right]) for edge in edges)
    return Motif(
        (*position, *(edge.tag for edge in edges)),
        tuple(node.quantifier.least for node in nodes),
        tuple(node.quantifier.most for node in nodes),
        tuple(tuple(sorted(others)) for others in neighbours),
        ends,
        tuple(_ties([*nodes, *edges], ends)),
    )


def _ties(statements: Sequence[Node | MotifEdge], ends: Sequence[tuple[int, int]]) -> Iterator[_Tie]:
    place = {statement.tag: index for index, statement in enumerate(statements) if statement.tag is not None}
    first_edge = len(statements) - len(ends)

    def nodes_of(variable: int) -> tuple[int, ...]:
        return (variable,) if variable < first_edge else ends[variable - first_edge]

    for variable, statement in enumerate(statements):
        for part in conjuncts(statement.condition):
            if tags_of(part) <= {statement.tag}:
                continue
            mentioned = frozenset(place[tag] for tag in tags_of(part)) | {variable}
            equal = None
            if isinstance(part, AttributeComparison) and part.operator == "=":
                sides = [(place[name.tag or ""], name.attribute) for name in (part.left, part.right)]
                if max(sides[0][0], sides[1][0]) < first_edge:
                    equal = (sides[0], sides[1])
            nodes = frozenset(node for one in mentioned for node in nodes_of(one))
            attributes = tuple((name.tag or "", name.attribute) for name in names(part))
            yield _Tie(nodes_of(variable), mentioned, nodes, judge_placed(part), attributes, equal)


def scope(graph: ConstraintGraph, targets: frozenset[str]) -> frozenset[str]:
    """The nodes' tags that must match for actions on the targets to happen: actions are independent of each other.

    These are the targets (of an edge, the tags that it joins), the tags to which no action is done, nor to an edge of
    theirs (they are conditions of all the others), and whatever edges or comparisons tie to any of them.
    """
    ends = {edge.tag: {edge.left, edge.right} for edge in graph.edges if edge.tag is not None}

    def nodes_of(tags: frozenset[str] | set[str]) -> set[str]:
        return {node for tag in tags for node in ends.get(tag, {tag})}

    acted_on = nodes_of({action.tag for action in graph.actions})
    tied = [{edge.left, edge.right} for edge in graph.edges]
    for statement in graph.statements:
        own = {statement.tag} if isinstance(statement, Node) else {statement.left, statement.right}
        tied += [nodes_of(tags_of(part)) | own for part in conjuncts(statement.condition)]
    tags = nodes_of(targets) | {node.tag for node in graph.nodes if node.tag not in acted_on}
    while True:
        reached = {tag for group in tied if tags & group for tag in group}
        if reached <= tags:
            return frozenset(tags)
        tags |= reached


def match(motif: Motif, candidates: Sequence[int], links: Links = ALONE) -> Sequence[int] | None:
    """The nodes that fit each tag where the motif matches, then the edges; None where it does not.

    `candidates` are the nodes, then the edges, that fulfil what each tag says of itself alone; `links` is not looked at
    where the motif has no edges and no comparisons.
    """
    if not motif.has_edges:
        return candidates if _can_share_out(candidates, motif.least, motif.most) else None
    search = _Search(motif, candidates, links)
    fits = search.fitting()
    return fits if search.matches(fits[: len(motif.least)]) else None


def match_alone(motif: Motif, candidates: Sequence[int]) -> Sequence[int] | None:
    """The same for a record, which is one node without edges."""
    return match(motif, [*candidates, *(0 for _ in motif.ends)])


def _can_share_out(fits: Sequence[int], least: Sequence[int], most: Sequence[int | None]) -> bool:
    """Whether every node that fits a tag can be given to one, each tag getting as many as it may.

    Hall's condition both ways: any tags have enough nodes between them for their least numbers, and room enough
    for the nodes that fit nothing else. Both together suffice (Mendelsohn and Dulmage, 1958).
    """
    if len(fits) == 1:
        count = fits[0].bit_count()
        return least[0] <= count and (most[0] is None or count <= most[0])
    everything = (1 << len(fits)) - 1
    unions, needs, room = [0], [0], [0.0]
    for subset in range(1, everything + 1):
        last = subset.bit_length() - 1
        rest = subset ^ (1 << last)
        limit = most[last]
        unions.append(unions[rest] | fits[last])
        needs.append(needs[rest] + least[last])
        room.append(room[rest] + (math.inf if limit is None else limit))
    if any(unions[subset].bit_count() < needs[subset] for subset in range(1, everything + 1)):
        return False
    return all(
        math.isinf(room[subset])
        or (unions[everything] & ~unions[everything ^ subset]).bit_count() <= room[subset]
        for subset in range(1, everything + 1)
    )


class _Search:
    """Puts different nodes at tags so that all edges are there and all comparisons true, counting how often it tries.

    Variables are the tags: `first_edge` of them are nodes, the others edges, each placed once both its ends are.
    """

    def __init__(self, motif: Motif, candidates: Sequence[int], links: Links) -> None:
        self.motif, self.candidates, self.links = motif, candidates, links
        self.first_edge = len(motif.least)
        self.joined: list[dict[tuple[int, int], list[int]]] = []
        self.near: list[dict[int, int]] = []
        for edges in candidates[self.first_edge :]:
            self._join(edges)
        self.indexes: dict[tuple[int, str], dict[str, list[int] | int]] = {}
        self.equals: dict[tuple[tuple[int, str], str, int], int] = {}
        self.tries = 0

    def _join(self, edges: int) -> None:
        """For an edge's tag, which edges join which nodes, and which nodes they join each with, both ways round."""
        joined: dict[tuple[int, int], list[int]] = {}
        near: dict[int, int] = {}
        for edge in each(edges):
            left, right = self.links.ends[edge]
            for one, other in {(left, right), (right, left)}:
                joined.setdefault((one, other), []).append(edge)
                near[one] = near.get(one, 0) | 1 << other
        self.joined.append(joined)
        self.near.append(near)

    def fitting(self) -> list[int]:
        """The nodes that fit each tag, then the edges."""
        fits = [0] * len(self.candidates)
        for tag in range(self.first_edge):
            order = self.motif.orders[tag]
            if len(order) == 1:
                fits[tag] = self.candidates[tag]
                continue
            for node in each(self.candidates[tag]):
                if not fits[tag] >> node & 1:
                    self._note(fits, next(self._place(order, {tag: node}, 1 << node), None), tag, (tag,))
        for tag, ends in enumerate(self.motif.ends, start=self.first_edge):
            for edge in each(self.candidates[tag]):
                for one, other in (self.links.ends[edge], self.links.ends[edge][::-1]):
                    start = {ends[0]: one, ends[1]: other, tag: edge}
                    if not fits[tag] >> edge & 1 and one != other and self._may_start(start):
                        placements = self._place(self.motif.orders[tag], start, 1 << one | 1 << other)
                        self._note(fits, next(placements, None), tag, ends)
        return fits

    def matches(self, fits: Sequence[int]) -> bool:
        motif = self.motif
        for placement in self._place(motif.core, {}, 0):
            self._spend(1 << max(0, len(fits) - 4))  # as many sets of tags are looked at
            in_use = sum(1 << node for tag, node in placement.items() if tag < self.first_edge)
            least = [least - (tag in placement) for tag, least in enumerate(motif.least)]
            most = [
                None if most is None else most - (tag in placement) for tag, most in enumerate(motif.most)
            ]
            if _can_share_out([found & ~in_use for found in fits], least, most):
                return True
        return False

    def _note(
        self, fits: list[int], placement: dict[int, int] | None, asked: int, start: Sequence[int]
    ) -> None:
        """Mark what a placement proves to fit. One that includes a tag which may be absent proves nothing of others."""
        if placement is None:
            return
        if self.motif.needed.issuperset(start):
            for tag, item in placement.items():
                fits[tag] |= 1 << item
        else:
            fits[asked] |= 1 << placement[asked]

    def _may_start(self, placement: dict[int, int]) -> bool:
        """Whether both ends of an edge fulfil their own tags, and what compares them and the edge is true."""
        return all(self.candidates[tag] >> item & 1 for tag, item in placement.items()) and all(
            self._is_true(tie, placement) for tie in self.motif.ties if tie.mentioned <= placement.keys()
        )

    def _place(
        self, order: Sequence[int], placement: dict[int, int], in_use: int
    ) -> Iterator[dict[int, int]]:
        if len(placement) == len(order):
            yield placement
            return
        tag = order[len(placement)]
        ties = self.motif.ties_of[tag]
        for item in self._choices(tag, order, placement, in_use):
            self._spend(1)
            further = {**placement, tag: item}
            if not ties or all(
                self._is_true(tie, further) for tie in ties if tie.mentioned <= further.keys()
            ):
                taken = in_use | 1 << item if tag < self.first_edge else in_use
                yield from self._place(order, further, taken)

    def _spend(self, tries: int) -> None:
        self.tries += tries
        if self.tries > MOST_TRIES:
            raise TooEntangled

    def _choices(
        self, tag: int, order: Sequence[int], placement: dict[int, int], in_use: int
    ) -> Iterable[int]:
        """What may be put at a tag, as far as edges and equalities with what is placed already tell."""
        motif = self.motif
        if tag >= self.first_edge:
            left, right = motif.ends[tag - self.first_edge]
            return self.joined[tag - self.first_edge].get((placement[left], placement[right]), ())
        nodes = self.candidates[tag] & ~in_use
        for end in motif.neighbours[tag]:
            if end in placement:
                nodes &= self.links.neighbours[placement[end]]
        if not motif.ends and not motif.ties:
            return each(nodes)
        for number, other in motif.edges_of[tag]:
            if other in placement:
                nodes &= self.near[number].get(placement[other], 0)
        for tie in motif.ties_of[tag]:
            if tie.equal is None or not tie.mentioned.issubset(order):
                continue
            here, there = tie.equal if tie.equal[0][0] == tag else tie.equal[::-1]
            if there[0] in placement:
                nodes &= self._equal_to(here, there[1], placement[there[0]])
        return each(nodes)

    def _equal_to(self, side: tuple[int, str], attribute: str, other: int) -> int:
        """The nodes whose attribute equals that of another, by an index that is made once."""
        key = (side, attribute, other)
        if key not in self.equals:
            index = self._index(side)
            found = 0
            for text in canonical_labels(self.links.nodes[other].get(attribute)):
                nodes = index.get(text, ())
                found |= nodes if isinstance(nodes, int) else sum(1 << node for node in nodes)
            self.equals[key] = found
        return self.equals[key]

    def _index(self, side: tuple[int, str]) -> dict[str, list[int] | int]:
        """The nodes that have each label: a list, or where they are many a set, which takes memory for every node."""
        index = self.indexes.get(side)
        if index is None:
            nodes_of: dict[str, list[int]] = {}
            for node in each(self.candidates[side[0]]):
                for text in canonical_labels(self.links.nodes[node].get(side[1])):
                    nodes_of.setdefault(text, []).append(node)
            index = self.indexes[side] = {
                text: nodes if len(nodes) <= FEW else sum(1 << node for node in nodes)
                for text, nodes in nodes_of.items()
            }
        return index

    def _is_true(self, tie: _Tie, placement: dict[int, int]) -> bool:
        placed = {
            self.motif.tags[tag] or "": (self.links.nodes if tag < self.first_edge else self.links.edges)[
                placement[tag]
            ]
            for tag in tie.mentioned
        }
        for tag, attribute in tie.attributes:
            value = placed[tag].get(attribute)
            if isinstance(value, list):
                self._spend(len(value) // VALUES_A_TRY)
        return tie.holds(placed) == TRUE


def each(nodes: int) -> Iterator[int]:
    """The nodes of a set, by position."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest
