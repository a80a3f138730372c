"""Where a constraint graph's motif is found in a transaction (docs/methods.md, section 3.2).

1. A node *fits* a tag if the tag's condition is definitely true for it and, where edges touch the tag, if every
   tag of that connected part can be given a node of its own (this one among them) so that all its edges are there.
   An edge joins two nodes whichever way round it is written. Tags that may stand for no node are not needed for
   the others to fit.
2. The motif *matches* if every tag that needs a node can be given one of its own with all edges there, and the
   other nodes that fit something can be shared out too, each to one tag that it fits and none left over, so that
   every tag gets as many as its quantifier says.

So `{3}` means that exactly three nodes fit, not that three can be picked. Sets of nodes are integers, one bit a
node: the same code decides about ten nodes of a message and a million patients of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concilium.policy.language import ConstraintGraph, Node
from concilium.records.columns import label
from concilium.records.expression import (
    FALSE,
    TRUE,
    UNKNOWN,
    And,
    Comparison,
    Expression,
    ListMembership,
    Missing,
    Not,
    Or,
    Predicate,
    Range,
    bounds,
    literals,
    tester,
)
from concilium.records.grammar import all_labels

MOST_TRIES = 50_000

Attributes = Mapping[str, Any]
Judge = Callable[[Attributes], int]

_DENIED = frozenset({"", "0", "false", "no"})


class Unfit(Exception):
    """A value that cannot be compared as the policy asks; says which attribute, never which value."""

    def __init__(self, attribute: str, kind: str) -> None:
        self.attribute, self.kind = attribute, kind
        super().__init__(f"{attribute} cannot be compared with {kind}")


class TooEntangled(Exception):
    """A transaction with so many edges that the motif was not found or ruled out within `MOST_TRIES` tries."""


def judge_of(node: Node) -> Judge | None:
    """The function that tells whether a node of a transaction fulfils the tag's condition; None: every node does."""
    condition = None if node.condition is None else _judge(node.condition)
    if not node.quantifier.listed:
        return condition
    membership = _judge_listed(all_labels(node.quantifier.listed))
    return membership if condition is None else _judge_parts((membership, condition), min, TRUE)


def is_missing(value: Any) -> bool:
    """Whether there is no value: none given, not a number, or a list of nothing."""
    return value is None or value != value or value == []


def _judge(expression: Expression) -> Judge:
    match expression:
        case Not(inner):
            judge = _judge(inner)
            return lambda node: TRUE - judge(node)
        case And(parts):
            return _judge_parts(tuple(map(_judge, parts)), min, TRUE)
        case Or(parts):
            return _judge_parts(tuple(map(_judge, parts)), max, FALSE)
        case _:
            return judge_predicate(expression)


def _judge_parts(judges: tuple[Judge, ...], combine: Callable[[int, int], int], start: int) -> Judge:
    """`and`: the least verdict from TRUE on; `or`: the greatest from FALSE on. The opposite of the start settles it."""
    end = TRUE - start

    def judge_parts(node: Attributes) -> int:
        verdict = start
        for judge in judges:
            verdict = combine(verdict, judge(node))
            if verdict == end:
                break
        return verdict

    return judge_parts


def judge_predicate(predicate: Predicate) -> Judge:
    """The function that tells whether one predicate holds for a node."""
    attribute = predicate.name.attribute
    if isinstance(predicate, Missing):
        return lambda node: TRUE if is_missing(node.get(attribute)) else FALSE
    if isinstance(predicate, Comparison) and predicate.operator == "!=":
        # "Not any" rather than "any not", so that != stays the opposite of = for a list of values.
        same = judge_predicate(Comparison(predicate.name, "=", predicate.literal))
        return lambda node: TRUE - same(node)
    limits = bounds(predicate)
    if not limits:
        return _judge_equality(predicate)
    # Text is never missing and a whole number never NaN: the kinds that need no further look.
    holds, usual = tester(predicate), int if limits[0].kind == "number" else str
    convert = _as_number if usual is int else _as_text

    def judge(node: Attributes) -> int:
        value = node.get(attribute)
        if value.__class__ is usual:
            return TRUE if holds(value) else FALSE
        return _judge_any_of(value, lambda item: holds(convert(item, attribute)))

    return judge


def _judge_equality(predicate: Comparison | ListMembership | Range) -> Judge:
    attribute, holds = predicate.name.attribute, tester(predicate)
    labels = all_labels(literal.value for literal in literals(predicate))

    def judge(node: Attributes) -> int:
        value = node.get(attribute)
        if value.__class__ is str:
            return TRUE if value in labels else FALSE
        return _judge_any_of(value, holds)

    return judge


def _judge_any_of(value: Any, holds: Callable[[Any], bool]) -> int:
    """The verdict on a value of any kind; of a list, one item must do."""
    if is_missing(value):
        return UNKNOWN
    if isinstance(value, list):
        return TRUE if any(not is_missing(item) and holds(item) for item in value) else FALSE
    return TRUE if holds(value) else FALSE


def _as_number(value: Any, attribute: str) -> float:
    """The value as a number; text that reads as one counts, since messages often carry numbers as text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise Unfit(attribute, "a number")
    return number


def _as_text(value: Any, attribute: str) -> str:
    if not isinstance(value, str):
        raise Unfit(attribute, "text")
    return value


def _judge_listed(words: frozenset[str]) -> Judge:
    """`[a, b, c]`: the node has one of them, as its id, as a value, or as an attribute that is not denied."""

    def judge(node: Attributes) -> int:
        for name, value in node.items():
            for item in value if isinstance(value, list) else (value,):
                if not is_missing(item) and is_listed(name, item, words):
                    return TRUE
        return FALSE

    return judge


def is_listed(name: str, value: Any, words: frozenset[str]) -> bool:
    """Whether an attribute with this value makes its node one of the listed."""
    text = label(value)
    return text in words or (name in words and text.lower() not in _DENIED)


@dataclass(frozen=True)
class Motif:
    """Some tags of a constraint graph, those that must match together; all else is by their position in `tags`."""

    tags: tuple[str, ...]
    least: tuple[int, ...]
    most: tuple[int | None, ...]
    neighbours: tuple[tuple[int, ...], ...]
    has_edges: bool


def motif_of(graph: ConstraintGraph, tags: frozenset[str] | None = None) -> Motif:
    """The motif of a constraint graph, or of some of its tags."""
    nodes = [node for node in graph.nodes if tags is None or node.tag in tags]
    position = {node.tag: index for index, node in enumerate(nodes)}
    neighbours: list[set[int]] = [set() for _ in nodes]
    for left, right in graph.edges:
        if left in position and right in position:
            neighbours[position[left]].add(position[right])
            neighbours[position[right]].add(position[left])
    return Motif(
        tuple(position),
        tuple(node.quantifier.least for node in nodes),
        tuple(node.quantifier.most for node in nodes),
        tuple(tuple(sorted(ends)) for ends in neighbours),
        any(neighbours),
    )


def scope(graph: ConstraintGraph, targets: frozenset[str]) -> frozenset[str]:
    """The tags that must match for actions on the targets to happen: actions are independent of each other.

    These are the targets, the tags that carry no action (they are conditions of all the others), and whatever
    edges tie to any of them.
    """
    acted_on = {action.tag for action in graph.actions}
    tags = set(targets) | {node.tag for node in graph.nodes if node.tag not in acted_on}
    while True:
        neighbours = {end for pair in graph.edges if tags & set(pair) for end in pair}
        if neighbours <= tags:
            return frozenset(tags)
        tags |= neighbours


def match(motif: Motif, candidates: Sequence[int], neighbours: Sequence[int]) -> Sequence[int] | None:
    """The nodes that fit each tag where the motif matches; None where it does not.

    `candidates` are the nodes that fulfil each tag's condition, `neighbours` those of each node (not
    looked at where the motif has no edges).
    """
    if not motif.has_edges:
        return candidates if _can_share_out(candidates, motif.least, motif.most) else None
    search = _Search(motif, candidates, neighbours)
    fits = search.fitting()
    return fits if search.matches(fits) else None


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
    """Puts different nodes at tags so that all edges are there, counting how often it tries."""

    def __init__(self, motif: Motif, candidates: Sequence[int], neighbours: Sequence[int]) -> None:
        self.motif, self.candidates, self.neighbours = motif, candidates, neighbours
        self.needed = {index for index, least in enumerate(motif.least) if least > 0}
        self.tries = 0

    def fitting(self) -> list[int]:
        """The nodes that fit each tag."""
        fits = [0] * len(self.candidates)
        for tag, nodes in enumerate(self.candidates):
            order = self._connected(tag)
            if len(order) == 1:
                fits[tag] = nodes
                continue
            for node in each(nodes):
                if not fits[tag] >> node & 1:
                    placement = next(self._place(order, {tag: node}, 1 << node), None)
                    for other, other_node in (placement or {}).items():
                        # A placement that includes a tag which may be absent proves nothing about the others.
                        if other == tag or tag in self.needed:
                            fits[other] |= 1 << other_node
        return fits

    def matches(self, fits: Sequence[int]) -> bool:
        motif = self.motif
        order: list[int] = []
        for tag in sorted(self.needed):
            order += [other for other in self._connected(tag) if other not in order]
        for placement in self._place(order, {}, 0):
            in_use = sum(1 << node for node in placement.values())
            least = [least - (tag in placement) for tag, least in enumerate(motif.least)]
            most = [
                None if most is None else most - (tag in placement) for tag, most in enumerate(motif.most)
            ]
            if _can_share_out([nodes & ~in_use for nodes in fits], least, most):
                return True
        return False

    def _connected(self, tag: int) -> list[int]:
        """The tag and the needed tags that edges connect it with, each after one that it is joined to."""
        order = [tag]
        for member in order:
            order += [end for end in self.motif.neighbours[member] if end in self.needed and end not in order]
        return order

    def _place(
        self, order: Sequence[int], placement: dict[int, int], in_use: int
    ) -> Iterator[dict[int, int]]:
        if len(placement) == len(order):
            yield placement
            return
        tag = order[len(placement)]
        nodes = self.candidates[tag] & ~in_use
        for end in self.motif.neighbours[tag]:
            if end in placement:
                nodes &= self.neighbours[placement[end]]
        for node in each(nodes):
            self.tries += 1
            if self.tries > MOST_TRIES:
                raise TooEntangled
            yield from self._place(order, {**placement, tag: node}, in_use | 1 << node)


def each(nodes: int) -> Iterator[int]:
    """The nodes of a set, by position."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest
