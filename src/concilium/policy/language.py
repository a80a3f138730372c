"""The language of constraint graphs (docs/methods.md, section 3.1): its syntax tree and its reader.

`graph NAME { node TAG QUANTIFIER where CONDITION ACTION, ACTION; edge (TAG, TAG); }`: a motif of nodes and edges,
conditions on attributes (the query language, with `tag.attribute` for `attribute`), and what is done where the
motif is found. What it means is in `matching.py` and `actions.py`, and for people in docs/constraint-graphs.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from concilium.errors import PolicyError, nearest
from concilium.policy.functions import Call, read_call
from concilium.policy.patterns import Pattern, read_pattern
from concilium.records.columns import label
from concilium.records.expression import (
    EXPECTED,
    Builder,
    Expression,
    Literal,
    Mistake,
    Name,
    Nested,
    bounds,
    expected,
    make_parser,
    point_at,
    predicates,
    read,
)

if TYPE_CHECKING:
    from lark import Lark, Token

MOST_TAGS = 12


@dataclass(frozen=True)
class Quantifier:
    """How many nodes a tag stands for (`most` is None where there is no limit); `listed`: what each must have."""

    least: int = 1
    most: int | None = None
    listed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """A tag: how many nodes it stands for, and which."""

    tag: str
    quantifier: Quantifier = Quantifier()
    condition: Expression | None = None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Exists:
    """Refuse the transaction if a node of the tag has the attribute, and every other `exists` of the graph holds."""

    tag: str
    attribute: str | None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Eliminate:
    """Take the attribute, or the whole node, out of the transaction."""

    tag: str
    attribute: str | None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Substitute:
    """Change the attribute, or every attribute of the node."""

    tag: str
    attribute: str | None
    transform: Call | Pattern
    place: int = field(default=0, compare=False)


Action = Exists | Eliminate | Substitute


@dataclass(frozen=True)
class ConstraintGraph:
    """A motif with its conditions and actions, under a name."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    actions: tuple[Action, ...]
    place: int = field(default=0, compare=False)


def read_graphs(text: str) -> tuple[ConstraintGraph, ...]:
    """The constraint graphs of a policy; a PolicyError that points at the place where one is wrong."""
    try:
        graphs: tuple[ConstraintGraph, ...] = read(_parser(), text, _EXPECTED)
        return graphs
    except Mistake as mistake:
        raise PolicyError(str(point_at(mistake, text))) from None


def check_attributes(graphs: Iterable[ConstraintGraph], attributes: Iterable[str], text: str = "") -> None:
    """Refuse graphs that mention an attribute which the data do not have: a typing error would let it out."""
    names = frozenset(attributes)
    for graph in graphs:
        mentions = [(name.attribute, name.place) for node in graph.nodes for name in _names(node.condition)]
        mentions += [(act.attribute, act.place) for act in graph.actions if act.attribute is not None]
        mentions += [
            (act.transform.patient, act.place)
            for act in graph.actions
            if isinstance(act, Substitute) and isinstance(act.transform, Call) and act.transform.patient
        ]
        for attribute, place in mentions:
            if attribute not in names:
                hint = nearest(attribute, names)
                problem = f"graph {graph.name} mentions {attribute}, which the data do not have{hint}"
                raise PolicyError(str(point_at(Mistake(problem, place), text)))


def _names(condition: Expression | None) -> list[Name]:
    return [] if condition is None else [predicate.name for predicate in predicates(condition)]


class _PolicyBuilder(Builder):
    """Adds the rules of `constraint.lark` to those of the conditions."""

    def policy(self, children: list[ConstraintGraph]) -> tuple[ConstraintGraph, ...]:
        names: set[str] = set()
        for graph in children:
            if graph.name in names:
                raise Mistake(f"there are two graphs named {graph.name}; give each its own name", graph.place)
            names.add(graph.name)
        return tuple(children)

    def graph(self, children: list[Any]) -> ConstraintGraph:
        name, *statements = children
        nodes = [statement[0] for statement in statements if isinstance(statement[0], Node)]
        edges = [statement for statement in statements if not isinstance(statement[0], Node)]
        actions = tuple(
            act for statement in statements if isinstance(statement[0], Node) for act in statement[1]
        )
        tags = self._tags(nodes, name)
        for act in actions:
            _require_tag(act.tag, act.place, tags)
            if tags[act.tag].quantifier.most == 0:
                raise Mistake(f"{act.tag} stands for no node at all, so nothing can be done to it", act.place)
        for pair in edges:
            for end in pair:
                _require_tag(end.attribute, end.place, tags)
            if pair[0] == pair[1]:
                raise Mistake(
                    "an edge joins two different nodes; it can never join a tag to itself", pair[1].place
                )
        pairs = tuple((left.attribute, right.attribute) for left, right in edges)
        return ConstraintGraph(name.attribute, tuple(nodes), pairs, actions, name.place)

    def _tags(self, nodes: list[Node], graph: Name) -> dict[str, Node]:
        tags: dict[str, Node] = {}
        for node in nodes:
            if node.tag in tags:
                raise Mistake(f"there are two nodes tagged {node.tag}; give each its own tag", node.place)
            tags[node.tag] = node
        if not nodes:
            raise Mistake(f"graph {graph.attribute} has no node", graph.place)
        if len(nodes) > MOST_TAGS:
            raise Mistake(f"a graph has at most {MOST_TAGS} nodes", nodes[MOST_TAGS].place)
        for node in nodes:
            for name in _names(node.condition):
                if name.tag is None:
                    raise Mistake(f"write {node.tag}.{name}: an attribute belongs to a tag", name.place)
                _require_tag(name.tag, name.place, tags)
                if name.tag != node.tag:
                    raise Mistake(
                        f"the condition of {node.tag} can only be about {node.tag} itself", name.place
                    )
            for predicate in predicates(node.condition) if node.condition is not None else ():
                _require_order(bounds(predicate))
        return tags

    def node(self, children: list[Any]) -> tuple[Node, tuple[Action, ...]]:
        name, quantifier, condition, actions = children
        nested: Nested | None = condition
        return (
            Node(name.attribute, quantifier or Quantifier(), nested.node if nested else None, name.place),
            actions or (),
        )

    def edge(self, children: list[Name]) -> tuple[Name, Name]:
        return children[-2], children[-1]

    def exactly_one(self, children: list[Token]) -> Quantifier:
        return Quantifier(1, 1)

    def one_or_more(self, children: list[Token]) -> Quantifier:
        return Quantifier(1, None)

    def exactly(self, children: list[Token]) -> Quantifier:
        return Quantifier(int(children[0]), int(children[0]))

    def at_least(self, children: list[Token]) -> Quantifier:
        return Quantifier(int(children[0]), None)

    def from_to(self, children: list[Token]) -> Quantifier:
        least, most = map(int, children)
        if most < least:
            problem = f"{{{least},{most}}} can never hold; write the smaller number first"
            raise Mistake(problem, children[0].start_pos or 0)
        return Quantifier(least, most)

    def one_of(self, children: list[str]) -> Quantifier:
        return Quantifier(1, None, tuple(dict.fromkeys(children)))

    def item(self, children: list[Name | Literal]) -> str:
        child = children[0]
        return child.attribute if isinstance(child, Name) else label(child.value)

    def operand(self, children: list[Name]) -> Name:
        tag, *attribute = children
        if not attribute:
            return tag
        return Name(".".join(part.attribute for part in attribute), tag.attribute, tag.place)

    def actions(self, children: list[Action]) -> tuple[Action, ...]:
        return tuple(children)

    def exists(self, children: list[Name]) -> Action:
        return Exists(*_target(children[0]))

    def eliminate(self, children: list[Name]) -> Action:
        return Eliminate(*_target(children[0]))

    def substitute(self, children: list[Any]) -> Action:
        tag, attribute, place = _target(children[0])
        return Substitute(tag, attribute, children[1], place)

    def transform(self, children: list[Token]) -> Call | Pattern:
        token = children[0]
        text, place = str(token)[1:-1], (token.start_pos or 0) + 1
        if token.type == "FUNCTION":
            return read_call(text, place)
        end = 0
        while text[end] != "/":
            end += 2 if text[end] == "\\" else 1
        return read_pattern(text[:end], text[end + 1 :], place)


def _require_order(literals: tuple[Literal, ...]) -> None:
    for literal in literals:
        if literal.kind == "truth":
            raise Mistake(f"{literal} has no order; compare it with = or in {{..}}", literal.place)
        if literal.kind != literals[0].kind:
            raise Mistake(f"{literals[0]} and {literal} are not of one kind", literal.place)


def _target(name: Name) -> tuple[str, str | None, int]:
    """The tag and attribute an action is about; a name without a dot is the tag."""
    return (name.attribute, None, name.place) if name.tag is None else (name.tag, name.attribute, name.place)


def _require_tag(tag: str, place: int, tags: dict[str, Node]) -> None:
    if tag not in tags:
        raise Mistake(f"no node of this graph is tagged {tag}{nearest(tag, tags)}", place)


_ACTIONS = "_EXISTS _ELIMINATE _SUBSTITUTE"
_EXPECTED = (
    expected("BARE NUMBER _NOT", "a condition, such as x.age > 20", "BACKQUOTED TEXT TRUTH LPAR"),
    expected("_GRAPH", "'graph' (as in graph NAME { node x; })"),
    expected("_NODE", "'node'"),
    expected("_EDGE", "'edge'"),
    expected("QMARK PLUS", "a quantifier, such as + or {2,5}", "LBRACE LSQB"),
    expected("_WHERE", "'where'"),
    expected(_ACTIONS, "an action (exists, eliminate or substitute)"),
    expected("FUNCTION REPLACEMENT", "/function()/ or /pattern/replacement/"),
    expected("_BECOMES", "=~", "DOT"),
    expected("COUNT", "a number"),
    *EXPECTED[1:],
    expected("SEMICOLON", "a semicolon"),
    expected("RSQB", "a closing bracket"),
    expected("LPAR", "an opening parenthesis"),
)


@functools.cache
def _parser() -> Lark:
    grammar = resources.files("concilium.policy").joinpath("constraint.lark").read_text(encoding="utf-8")
    return make_parser(_PolicyBuilder(), "policy", grammar)
