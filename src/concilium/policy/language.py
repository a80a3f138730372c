"""The language of constraint graphs (docs/methods.md, section 3.1): its syntax tree and its reader.

`graph NAME { node TAG QUANTIFIER where CONDITION ACTION, ACTION; edge TAG(TAG, TAG) where CONDITION ACTION; }`: a motif
of nodes and edges, conditions on attributes (the query language, with `tag.attribute` for `attribute`, also on both
sides), and what is done where the motif is found. `function NAME { when CONDITION give RESULT; }` defines a function.
What it means is in `matching.py`, `actions.py` and `definitions.py`, and for people in docs/constraint-graphs.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from concilium.errors import PolicyError, nearest
from concilium.policy.definitions import (
    MOST_CHAINED,
    VALUE,
    Case,
    Chain,
    Definition,
    Named,
    check_cases,
    find,
    resolve,
)
from concilium.policy.functions import FUNCTIONS, Call, read_call
from concilium.policy.patterns import LONGEST_VALUE, Pattern, read_pattern
from concilium.records.columns import label
from concilium.records.expression import (
    EXPECTED,
    And,
    AttributeComparison,
    Builder,
    Expression,
    Literal,
    Mistake,
    Name,
    Nested,
    bounds,
    expected,
    make_parser,
    names,
    point_at,
    predicates,
    read,
    terms,
)

if TYPE_CHECKING:
    from lark import Lark, Token

MOST_TAGS = 12
MOST_EDGES = 100


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
class MotifEdge:
    """Two tags whose nodes must be joined; with a tag of its own, the edge between them can be acted on too."""

    tag: str | None
    left: str
    right: str
    condition: Expression | None = None
    place: int = field(default=0, compare=False)
    places: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class Exists:
    """Refuse the transaction if one that fits the tag has the attribute, and every `exists` of the graph holds."""

    tag: str
    attribute: str | None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Eliminate:
    """Take the attribute, or the whole node or edge, out of the transaction."""

    tag: str
    attribute: str | None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Substitute:
    """Change the attribute, or every attribute of the node or edge."""

    tag: str
    attribute: str | None
    transform: Call | Pattern | Definition | Named
    place: int = field(default=0, compare=False)


Action = Exists | Eliminate | Substitute


@dataclass(frozen=True)
class ConstraintGraph:
    """A motif with its conditions and actions, under a name."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[MotifEdge, ...]
    actions: tuple[Action, ...]
    place: int = field(default=0, compare=False)

    @property
    def statements(self) -> tuple[Node | MotifEdge, ...]:
        """Nodes, then edges."""
        return (*self.nodes, *self.edges)

    @property
    def edge_tags(self) -> frozenset[str]:
        return frozenset(edge.tag for edge in self.edges if edge.tag is not None)


@dataclass(frozen=True)
class _Language:
    """All that a text says: constraint graphs, and the functions that it defines."""

    graphs: tuple[ConstraintGraph, ...]
    functions: tuple[Definition, ...] = ()


def read_language(text: str) -> _Language:
    """The constraint graphs and functions of a policy; a PolicyError that points at the place where one is wrong."""
    try:
        language: _Language = read(_parser(), text, _EXPECTED)
        return language
    except Mistake as mistake:
        raise PolicyError(str(point_at(mistake, text))) from None


def check_attributes(graphs: Iterable[ConstraintGraph], attributes: Iterable[str], text: str = "") -> None:
    """Refuse graphs that mention an attribute which the data do not have: a typing error would let it out.

    Data are a table here, whose patients no edge joins: what is said of edges concerns none of them.
    """
    known = frozenset(attributes)
    for graph in graphs:
        conditions = [statement.condition for statement in graph.statements if statement.condition]
        mentions = [(name.tag, name.attribute, name.place) for one in conditions for name in names(one)]
        mentions += [
            (act.tag, act.attribute, act.place) for act in graph.actions if act.attribute is not None
        ]
        mentions += [
            (act.tag, act.transform.patient, act.place)
            for act in graph.actions
            if isinstance(act, Substitute) and isinstance(act.transform, Call) and act.transform.patient
        ]
        for tag, attribute, place in mentions:
            if attribute not in known and tag not in graph.edge_tags:
                hint = nearest(attribute, known)
                problem = f"graph {graph.name} mentions {attribute}, which the data do not have{hint}"
                raise PolicyError(str(point_at(Mistake(problem, place), text)))


def conjuncts(condition: Expression | None) -> tuple[Expression, ...]:
    """The parts of a condition that must all hold, as it is written."""
    if condition is None:
        return ()
    return condition.parts if isinstance(condition, And) else (condition,)


def tags_of(condition: Expression) -> frozenset[str]:
    """The tags that a condition mentions."""
    return frozenset(name.tag for name in names(condition) if name.tag is not None)


class _PolicyBuilder(Builder):
    """Adds the rules of `constraint.lark` to those of the conditions."""

    def policy(self, children: list[ConstraintGraph | Definition]) -> _Language:
        functions = resolve(child for child in children if isinstance(child, Definition))
        seen: set[str] = set()
        graphs = []
        for graph in children:
            if isinstance(graph, Definition):
                continue
            if graph.name in seen:
                raise Mistake(f"there are two graphs named {graph.name}; give each its own name", graph.place)
            seen.add(graph.name)
            actions = tuple(_resolve_action(action, functions) for action in graph.actions)
            graphs.append(replace(graph, actions=actions))
        if not graphs:
            raise Mistake(
                "there is no graph here, and functions alone do nothing", next(iter(functions.values())).place
            )
        return _Language(tuple(graphs), tuple(functions.values()))

    def graph(self, children: list[Any]) -> ConstraintGraph:
        name, *statements = children
        nodes = [one for one, _ in statements if isinstance(one, Node)]
        edges = [one for one, _ in statements if isinstance(one, MotifEdge)]
        graph = ConstraintGraph(
            name.attribute,
            tuple(nodes),
            tuple(edges),
            tuple(action for _, actions in statements for action in actions),
            name.place,
        )
        _check_graph(graph)
        return graph

    def node(self, children: list[Any]) -> tuple[Node, tuple[Action, ...]]:
        name, quantifier, condition, actions = children
        nested: Nested | None = condition
        return (
            Node(name.attribute, quantifier or Quantifier(), nested.node if nested else None, name.place),
            actions or (),
        )

    def edge(self, children: list[Any]) -> tuple[MotifEdge, tuple[Action, ...]]:
        name, left, right, condition, actions = children
        nested: Nested | None = condition
        if left.attribute == right.attribute:
            raise Mistake("an edge joins two different nodes; it can never join a tag to itself", right.place)
        tag, place = (None, left.place) if name is None else (name.attribute, name.place)
        asked = nested.node if nested else None
        edge = MotifEdge(tag, left.attribute, right.attribute, asked, place, (left.place, right.place))
        return edge, actions or ()

    def comparison(self, children: list[Any]) -> Nested:
        left, sign, right = children
        if isinstance(left, Name) and isinstance(right, Name) and right.tag is not None:
            sign = {"==": "=", "<>": "!="}.get(str(sign), str(sign))
            return Nested(AttributeComparison(left, sign, right), 1)
        return super().comparison(children)

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

    def transform(self, children: list[Token]) -> Call | Pattern | Named:
        token = children[0]
        text, place = str(token)[1:-1], (token.start_pos or 0) + 1
        if token.type == "FUNCTION":
            name, _, rest = text.strip().partition("(")
            if (name := name.strip()) not in FUNCTIONS:
                return Named(name, bool(rest.strip()[:-1].strip()), place)
            return read_call(text, place)
        end = 0
        while text[end] != "/":
            end += 2 if text[end] == "\\" else 1
        return read_pattern(text[:end], text[end + 1 :], place)

    def function(self, children: list[Any]) -> Definition:
        name, *cases = children
        check_cases(name.attribute, tuple(cases))
        return Definition(name.attribute, tuple(cases), name.place)

    def when(self, children: list[Any]) -> Case:
        token, nested, result = children
        for term in terms(nested.node):
            if isinstance(term, AttributeComparison) or term.name.tag or term.name.attribute != VALUE:
                name = term.left if isinstance(term, AttributeComparison) else term.name
                raise Mistake("a function sees its value and nothing else: write when value < 5", name.place)
            _require_order(bounds(term))
        return _case(nested.node, result, token)

    def otherwise(self, children: list[Any]) -> Case:
        token, result = children
        return _case(None, result, token)

    def constant(self, children: list[Literal]) -> Literal:
        given = children[0]
        if len(label(given.value)) > LONGEST_VALUE:
            raise Mistake(
                f"a function gives at most {LONGEST_VALUE:,} characters; give a shorter text",
                given.place,
            )
        return given

    def unchanged(self, children: list[Token]) -> Chain:
        return Chain()

    def nothing(self, children: list[Token]) -> None:
        return None

    def chain(self, children: list[Any]) -> Chain:
        return Chain(tuple(children))


def _case(condition: Expression | None, result: Literal | Chain | None, token: Token) -> Case:
    place = token.start_pos or 0
    steps = result.steps if isinstance(result, Chain) else ()
    if len(steps) > MOST_CHAINED:
        raise Mistake(f"at most {MOST_CHAINED} steps follow one another in a case", place)
    if any(isinstance(step, Call) and step.per_patient for step in steps):
        raise Mistake("shift_dates depends on whose value it is, which a function does not see", place)
    return Case(condition, result, place)


def _resolve_action(action: Action, functions: dict[str, Definition]) -> Action:
    if isinstance(action, Substitute) and isinstance(action.transform, Named):
        return replace(action, transform=find(action.transform, functions))
    return action


def _check_graph(graph: ConstraintGraph) -> None:
    """A Mistake where tags, conditions or actions of a graph do not fit each other."""
    tags = _collect_tags(graph)
    for edge in graph.edges:
        for end, place in zip((edge.left, edge.right), edge.places, strict=True):
            _require_tag(end, place, {node.tag: node for node in graph.nodes})
    optional = set(_optional(graph))
    for statement in graph.statements:
        _check_condition(statement, tags, optional)
    for action in graph.actions:
        _require_tag(action.tag, action.place, tags)
        target = tags[action.tag]
        ends = (target.tag,) if isinstance(target, Node) else (target.left, target.right)
        absent = next((one for one in graph.nodes if one.tag in ends and one.quantifier.most == 0), None)
        if absent is not None:
            raise Mistake(
                f"{absent.tag} stands for no node at all, so nothing can be done to it", action.place
            )


def _collect_tags(graph: ConstraintGraph) -> dict[str, Node | MotifEdge]:
    if not graph.nodes:
        raise Mistake(f"graph {graph.name} has no node", graph.place)
    if len(graph.nodes) > MOST_TAGS:
        raise Mistake(f"a graph has at most {MOST_TAGS} nodes", graph.nodes[MOST_TAGS].place)
    if len(graph.edges) > MOST_EDGES:
        raise Mistake(f"a graph has at most {MOST_EDGES} edges", graph.edges[MOST_EDGES].place)
    tags: dict[str, Node | MotifEdge] = {}
    for statement in graph.statements:
        if statement.tag in tags:
            what = "nodes" if isinstance(statement, Node) else "nodes or edges"
            raise Mistake(
                f"there are two {what} tagged {statement.tag}; give each its own tag", statement.place
            )
        if statement.tag is not None:
            tags[statement.tag] = statement
    return tags


def _optional(graph: ConstraintGraph) -> Iterator[str]:
    """The tags that may stand for nothing: nodes by their quantifier, and edges that end at one of them."""
    absent = {node.tag for node in graph.nodes if node.quantifier.least == 0}
    yield from absent
    yield from (edge.tag for edge in graph.edges if edge.tag is not None and absent & {edge.left, edge.right})


def _check_condition(
    statement: Node | MotifEdge, tags: dict[str, Node | MotifEdge], optional: set[str]
) -> None:
    own = {statement.tag} if isinstance(statement, Node) else {statement.tag, statement.left, statement.right}
    for part in conjuncts(statement.condition):
        for name in names(part):
            if name.tag is None:
                raise Mistake(
                    f"write {statement.tag or 'TAG'}.{name}: an attribute belongs to a tag", name.place
                )
            _require_tag(name.tag, name.place, tags)
            if name.tag in optional - own:
                raise Mistake(
                    f"{name.tag} may stand for nothing: write this in the condition of {name.tag} instead",
                    name.place,
                )
        mentioned = tags_of(part)
        if statement.tag not in mentioned and (isinstance(statement, Node) or len(mentioned) < 2):
            who = statement.tag or "this edge"
            raise Mistake(
                f"the condition of {who} can only be about {who} itself, or compare it with another tag",
                next(names(part)).place,
            )
        for predicate in predicates(part):
            _require_order(bounds(predicate))


def _require_order(literals: tuple[Literal, ...]) -> None:
    for literal in literals:
        if literal.kind == "truth":
            raise Mistake(f"{literal} has no order; compare it with = or in {{..}}", literal.place)
        if literal.kind != literals[0].kind:
            raise Mistake(f"{literals[0]} and {literal} are not of one kind", literal.place)


def _target(name: Name) -> tuple[str, str | None, int]:
    """The tag and attribute an action is about; a name without a dot is the tag."""
    return (name.attribute, None, name.place) if name.tag is None else (name.tag, name.attribute, name.place)


def _require_tag(tag: str, place: int, tags: Mapping[str, Node | MotifEdge]) -> None:
    if tag not in tags:
        raise Mistake(f"no node of this graph is tagged {tag}{nearest(tag, tags)}", place)


_ACTIONS = "_EXISTS _ELIMINATE _SUBSTITUTE"
_EXPECTED = (
    expected("BARE NUMBER _NOT", "a condition, such as x.age > 20", "BACKQUOTED TEXT TRUTH LPAR"),
    expected("_GRAPH", "'graph' (as in graph NAME { node x; })", "_FUNCTION"),
    expected("_NODE", "'node'"),
    expected("_EDGE", "'edge'"),
    expected("QMARK PLUS", "a quantifier, such as + or {2,5}", "LBRACE LSQB"),
    expected("_WHERE", "'where'"),
    expected(_ACTIONS, "an action (exists, eliminate or substitute)"),
    expected(
        "NUMBER FUNCTION",
        "what to give: a text in quotes, a number, value, nothing or /function()/",
        "TEXT TRUTH _VALUE _NOTHING REPLACEMENT",
    ),
    expected("FUNCTION REPLACEMENT", "/function()/ or /pattern/replacement/"),
    expected("WHEN OTHERWISE", "'when' or 'otherwise'"),
    expected("_GIVE", "'give'"),
    expected("_THEN", "'then'"),
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
