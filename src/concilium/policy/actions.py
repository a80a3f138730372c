"""What constraint graphs do to a transaction (docs/methods.md, section 3.3): refuse it, or let a filtered copy out.

Whether a rule applies is always decided on the transaction as it came in, so rules do not depend on their order.
`exists`: where all of a graph's `exists` hold, nothing leaves. `eliminate`: each on its own, every node or edge that
fits the tag loses the attribute, or goes. `substitute`: in the order written; a value that cannot be changed as asked
is eliminated, and what one rule eliminates no other brings back. Who is protected: the people in the transaction,
from its recipient, as far as the rules see what identifies them. It is a filter, not a guarantee. What no rule
can see (other parts of a message, nested values) is refused, and an error never repeats the data.

A transaction: a message as a graph of nodes and edges with plain attributes (docs/methods.md, section 3.3).

`{"nodes": [{"id": "a", "sex": "f"}, ...], "edges": [["a", "b"], ["a", "c", {"kind": "treats"}]]}`. What no rule could
see (other parts of a message, values inside values, attributes of an edge from a node to itself) is refused, and an
error never repeats the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from concilium.errors import PolicyError
from concilium.policy.definitions import Definition, step_change
from concilium.policy.functions import Call, Change, Secret
from concilium.policy.judging import Judge, Unfit, is_missing
from concilium.policy.language import (
    Action,
    ConstraintGraph,
    Eliminate,
    Exists,
    MotifEdge,
    Node,
    Substitute,
    check_attributes,
    read_language,
)
from concilium.policy.matching import (
    Links,
    Motif,
    TooEntangled,
    each,
    judge_of,
    match,
    motif_edges,
    motif_of,
    own_condition,
    scope,
)
from concilium.records.columns import label
from concilium.records.expression import TRUE, Expression

TransactionNode = Mapping[str, Any]

# Sets of nodes are integers with a bit for each: more would let one small message take minutes and gigabytes.
MOST_NODES = 20_000
MOST_RELATIONS = 100_000
TOO_MANY = f"a message may have at most {MOST_NODES:,} nodes and {MOST_RELATIONS:,} edges; send it in parts"

_PLAIN_KINDS = frozenset({str, int, float, bool, type(None)})
_NOTHING: TransactionNode = {}


@dataclass(frozen=True)
class Transaction:
    """A graph that was checked: nodes with plain attributes, edges between nodes that are there."""

    nodes: tuple[TransactionNode, ...]
    edges: tuple[tuple[int, int], ...]
    relations: tuple[TransactionNode, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) > MOST_NODES or len(self.edges) > MOST_RELATIONS:
            raise PolicyError(TOO_MANY)

    @classmethod
    def read(cls, graph: Any) -> Transaction:
        """The graph, or a PolicyError that says which part of it is wrong (and not what it holds)."""
        if not isinstance(graph, Mapping) or not isinstance(graph.get("nodes"), list | tuple):
            raise PolicyError(
                'a transaction is {"nodes": [...], "edges": [...]}; this one has no list of nodes'
            )
        if not graph.keys() <= {"nodes", "edges"}:
            raise PolicyError(
                "a transaction has nodes and edges and nothing else: no rule would see the rest"
            )
        nodes = tuple(graph["nodes"])
        for position, node in enumerate(nodes, start=1):
            if not isinstance(node, dict) or not _is_plain(node):
                _check_attributes(node, f"node {position}", '{"id": "a", "sex": "f"}')
        ends: list[tuple[int, int]] = []
        relations: list[TransactionNode] = []
        for pair, relation in _read_edges(nodes, graph.get("edges", ())):
            ends.append(pair)
            relations.append(relation)
        return cls(nodes, tuple(ends), tuple(relations))

    def copy(self) -> list[dict[str, Any]]:
        """The nodes, free to be changed."""
        return [dict(node) if list not in map(type, node.values()) else _copy(node) for node in self.nodes]

    def copy_relations(self) -> list[dict[str, Any]]:
        """What the edges have, free to be changed."""
        return [_copy(relation) if relation else {} for relation in self.relations]


def _copy(node: TransactionNode) -> dict[str, Any]:
    return {name: list(value) if value.__class__ is list else value for name, value in node.items()}


def _is_plain(node: dict[Any, Any]) -> bool:
    return {*map(type, node)} <= {str} and {*map(type, node.values())} <= _PLAIN_KINDS


def _check_attributes(node: Any, who: str, example: str) -> None:
    if not isinstance(node, Mapping) or not {*map(type, node)} <= {str}:
        raise PolicyError(f"{who} is not an object of attributes, such as {example}")
    for value in node.values():
        items = value if type(value) is list else [value]
        if not {*map(type, items)} <= _PLAIN_KINDS:
            raise PolicyError(
                f"{who} has an attribute that is neither text, number, true, false nor a list of those; no rule could "
                "see inside it"
            )


def _find_positions(nodes: Sequence[TransactionNode]) -> dict[tuple[type, Any], int]:
    """The position of each node that has an id, by that; 1 and '1' are two."""
    position: dict[tuple[type, Any], int] = {}
    for index, node in enumerate(nodes):
        name = node.get("id")
        if name is None:
            continue
        if type(name) not in (str, int):
            raise PolicyError(f"the id of node {index + 1} is neither text nor a whole number")
        if position.setdefault((type(name), name), index) != index:
            raise PolicyError(f"node {index + 1} has the id of an earlier node; ids must differ")
    return position


def _read_edges(
    nodes: Sequence[TransactionNode], edges: Any
) -> Iterator[tuple[tuple[int, int], TransactionNode]]:
    if not isinstance(edges, list | tuple):
        raise PolicyError('the edges of a transaction are a list of pairs, such as ["a", "b"]')
    position = _find_positions(nodes)
    for index, edge in enumerate(edges, start=1):
        if not isinstance(edge, list | tuple) or len(edge) not in (2, 3):
            raise PolicyError(
                f'edge {index} is not a pair of ids, such as ["a", "b"], with its attributes after them if it has any'
            )
        ends = [position.get((type(end), end)) if type(end) in (str, int) else None for end in edge[:2]]
        if ends[0] is None or ends[1] is None:
            raise PolicyError(f"edge {index} ends at a node that is not in the transaction")
        relation = edge[2] if len(edge) == 3 else _NOTHING
        if relation is not _NOTHING:
            _check_attributes(relation, f"what edge {index} has", '{"kind": "treats"}')
        if relation and ends[0] == ends[1]:
            raise PolicyError(
                f"edge {index} joins a node to itself and has attributes, which no rule could see"
            )
        yield (ends[0], ends[1]), relation


@dataclass(frozen=True)
class Decision:
    """What becomes of a transaction: what is left of it, in the form it had, or None and the rule that refused it."""

    graph: Any
    refused_by: str | None
    rules: tuple[str, ...]


class Deed(NamedTuple):
    """An action, whether it is done to edges, and for a substitution how it changes what a node or edge has."""

    action: Action
    change_for: Callable[[TransactionNode], Change] | None
    to_edges: bool = False


@dataclass(frozen=True)
class GraphStep:
    """Tags that must match together, where to find what each says of itself (and whether it is an edge), and what then
    happens to which of them."""

    motif: Motif
    statements: tuple[Node | MotifEdge, ...]
    conditions: tuple[tuple[int | None, bool], ...]
    actions: tuple[tuple[int, Deed], ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(one for one in self.statements if isinstance(one, Node))


@dataclass(frozen=True)
class _Rule:
    """A constraint graph, taken apart into its steps."""

    name: str
    whole: GraphStep
    refusal: GraphStep | None
    changes: tuple[GraphStep, ...]


@dataclass(frozen=True)
class _GraphPlan:
    """What is to be done to a transaction: nothing where a rule refuses it, else these deeds, each to a set."""

    refused_by: str | None
    deeds: tuple[tuple[Deed, int], ...]
    rules: tuple[str, ...]


class ConstraintGraphs:
    """The constraint graphs of a policy, ready to filter transactions."""

    def __init__(
        self,
        graphs: Iterable[ConstraintGraph],
        text: str = "",
        secret: bytes | None = None,
        functions: Iterable[Definition] = (),
    ) -> None:
        self.graphs = tuple(graphs)
        self.functions = tuple(functions)
        self._text = text
        self._secret = None if secret is None else _secret(secret)
        # The same condition in several rules is looked at once.
        self._positions: dict[tuple[bool, Expression | None, tuple[str, ...]], int] = {}
        self._conditions: list[Judge] = []
        self.rules = tuple(map(self._compile, self.graphs))
        substitutions = (act for graph in self.graphs for act in graph.actions if isinstance(act, Substitute))
        self.needs_secret = any(
            isinstance(act.transform, Call | Definition) and act.transform.needs_secret
            for act in substitutions
        )

    def check(self, attributes: Iterable[str]) -> None:
        """Refuse rules about attributes that the data do not have; a PolicyError names the nearest."""
        check_attributes(self.graphs, attributes, self._text)

    def apply(self, graph: Mapping[str, Any]) -> dict[str, Any] | None:
        """A filtered copy of the transaction, or None where it is refused."""
        left: dict[str, Any] | None = self.decide(graph).graph
        return left

    def matches(self, graph: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the constraint graphs whose whole motif is found in the transaction."""
        view = _View(self._conditions, Transaction.read(graph))
        return tuple(rule.name for rule in self.rules if view.find(rule.name, rule.whole) is not None)

    def decide(self, graph: Mapping[str, Any]) -> Decision:
        """What becomes of the transaction, and by which rules."""
        self.require_secret()
        transaction = Transaction.read(graph)
        plan = self.plan(transaction)
        outcome = None if plan.refused_by is not None else self._carry_out(plan.deeds, transaction)
        return Decision(outcome, plan.refused_by, plan.rules)

    @property
    def has_secret(self) -> bool:
        return self._secret is not None

    def require_secret(self) -> None:
        """PolicyError where a rule needs the site's secret and there is none."""
        if self.needs_secret and self._secret is None:
            raise PolicyError("this policy uses hash or shift_dates, which need the site's secret")

    def plan(self, transaction: Transaction) -> _GraphPlan:
        """What the rules ask for, on the transaction as it came in."""
        self.require_secret()
        view = _View(self._conditions, transaction)
        for rule in self.rules:
            if rule.refusal is not None and view.all_exist(rule.name, rule.refusal):
                return _GraphPlan(rule.name, (), (rule.name,))
        deeds: list[tuple[Deed, int]] = []
        names: list[str] = []
        for rule in self.rules:
            rule_deeds = [deed for step in rule.changes for deed in view.reach(rule.name, step)]
            if rule_deeds:
                deeds += sorted(rule_deeds, key=lambda pair: pair[0].action.place)
                names.append(rule.name)
        return _GraphPlan(None, tuple(deeds), tuple(names))

    def _compile(self, graph: ConstraintGraph) -> _Rule:
        refusals = [action for action in graph.actions if isinstance(action, Exists)]
        by_scope: dict[frozenset[str], list[Action]] = {}
        for action in graph.actions:
            if not isinstance(action, Exists):
                by_scope.setdefault(scope(graph, frozenset({action.tag})), []).append(action)
        refusal_tags = scope(graph, frozenset(action.tag for action in refusals))
        return _Rule(
            graph.name,
            self._step(graph, frozenset(node.tag for node in graph.nodes), ()),
            self._step(graph, refusal_tags, refusals) if refusals else None,
            tuple(self._step(graph, tags, actions) for tags, actions in by_scope.items()),
        )

    def _step(self, graph: ConstraintGraph, tags: frozenset[str], actions: Sequence[Action]) -> GraphStep:
        motif = motif_of(graph, tags)
        statements: list[Node | MotifEdge] = [node for node in graph.nodes if node.tag in tags]
        statements += [edge for edge in motif_edges(graph) if {edge.left, edge.right} <= tags]
        deeds = [
            (
                motif.tags.index(action.tag),
                Deed(action, self._change_for(action), action.tag in graph.edge_tags),
            )
            for action in actions
        ]
        conditions = tuple((self._index_condition(one), isinstance(one, MotifEdge)) for one in statements)
        return GraphStep(motif, tuple(statements), conditions, tuple(deeds))

    def _change_for(self, action: Action) -> Callable[[TransactionNode], Change] | None:
        if not isinstance(action, Substitute):
            return None
        transform = action.transform
        if isinstance(transform, Call) and transform.per_patient:
            return partial(self._change_for_patient, transform)
        change = step_change(transform, self._secret)
        return lambda original: change

    def _change_for_patient(self, transform: Call, original: TransactionNode) -> Change:
        names = transform.patient_attributes
        patient: Any = next((original[name] for name in names if not is_missing(original.get(name))), None)
        return transform.change(self._secret, None if patient is None else label(patient))

    def _index_condition(self, statement: Node | MotifEdge) -> int | None:
        judge = judge_of(statement)
        if judge is None:
            return None
        listed = statement.quantifier.listed if isinstance(statement, Node) else ()
        key = (isinstance(statement, MotifEdge), own_condition(statement), listed)
        position = self._positions.setdefault(key, len(self._conditions))
        if position == len(self._conditions):
            self._conditions.append(judge)
        return position

    def _carry_out(self, deeds: Sequence[tuple[Deed, int]], transaction: Transaction) -> dict[str, Any]:
        copies, relations = transaction.copy(), transaction.copy_relations()
        for (action, change_for, to_edges), items in deeds:
            if change_for is not None:
                before, after = (
                    (transaction.relations, relations) if to_edges else (transaction.nodes, copies)
                )
                for index in each(items):
                    _substitute(after[index], action.attribute, change_for(before[index]))
        # Last, so that no substitution brings back what another rule takes out.
        removals = _eliminate(deeds, copies, relations)
        names = [
            None if removals[False] >> index & 1 else copy.get("id") for index, copy in enumerate(copies)
        ]
        edges = [
            [names[left], names[right], *([relation] if relation else [])]
            for index, ((left, right), relation) in enumerate(zip(transaction.edges, relations, strict=True))
            if names[left] is not None and names[right] is not None and not removals[True] >> index & 1
        ]
        return {
            "nodes": [copy for index, copy in enumerate(copies) if not removals[False] >> index & 1],
            "edges": edges,
        }


class _View:
    """A transaction as the rules see it: which nodes and edges fulfil which conditions, each looked at once."""

    def __init__(self, conditions: Sequence[Judge], transaction: Transaction) -> None:
        self._conditions, self._transaction = conditions, transaction
        self._fulfil: list[int | None] = [None] * len(conditions)
        self._links = Links(transaction.nodes, transaction.relations, transaction.edges)
        self._all_nodes = (1 << len(transaction.nodes)) - 1
        self._all_edges = (1 << len(transaction.edges)) - 1

    def find(self, rule: str, step: GraphStep) -> Sequence[int] | None:
        """The nodes that fit each tag of the step's motif, or None."""
        try:
            candidates = [self._candidates(condition, edges) for condition, edges in step.conditions]
            return match(step.motif, candidates, self._links)
        except Unfit as unfit:
            raise PolicyError(
                f"graph {rule} compares {unfit.attribute} with {unfit.kind}, but one of this transaction "
                "holds something else there; nothing was let out"
            ) from None
        except TooEntangled:
            raise PolicyError(
                f"graph {rule} could not be looked for in a transaction with so many edges; nothing was let out"
            ) from None

    def reach(self, rule: str, step: GraphStep) -> list[tuple[Deed, int]]:
        """The step's actions with the nodes that they reach; those that reach none are left out."""
        fits = self.find(rule, step)
        return [] if fits is None else [(deed, fits[tag]) for tag, deed in step.actions if fits[tag]]

    def all_exist(self, rule: str, step: GraphStep) -> bool:
        """Whether the motif is found and every `exists` holds for one of the nodes it is about."""
        fits = self.find(rule, step)
        return fits is not None and all(
            self._exists(fits[tag], deed.action.attribute, self._having(deed.to_edges))
            for tag, deed in step.actions
        )

    def _having(self, edges: bool) -> Sequence[TransactionNode]:
        return self._transaction.relations if edges else self._transaction.nodes

    def _candidates(self, condition: int | None, edges: bool) -> int:
        if condition is None:
            return self._all_edges if edges else self._all_nodes
        items = self._fulfil[condition]
        if items is None:
            judge, items, bit = self._conditions[condition], 0, 1
            for attributes in self._having(edges):
                if judge(attributes) == TRUE:
                    items |= bit
                bit <<= 1
            self._fulfil[condition] = items
        return items

    def _exists(self, items: int, attribute: str | None, having: Sequence[TransactionNode]) -> bool:
        if attribute is None:
            return items > 0
        return any(not is_missing(having[index].get(attribute)) for index in each(items))


def parse(text: str, secret: bytes | None = None) -> ConstraintGraphs:
    """The constraint graphs in a text; `secret` is the site's own, for `hash` and `shift_dates`."""
    language = read_language(text)
    return ConstraintGraphs(language.graphs, text, secret, language.functions)


def _secret(key: bytes) -> Secret:
    try:
        return Secret(key)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def _eliminate(
    deeds: Sequence[tuple[Deed, int]], copies: Sequence[dict[str, Any]], relations: Sequence[dict[str, Any]]
) -> dict[bool, int]:
    """Take attributes out; the nodes (False) and edges (True) that go as a whole, as bits."""
    removals = {False: 0, True: 0}
    for (action, _, to_edges), items in deeds:
        if not isinstance(action, Eliminate):
            continue
        if action.attribute is None:
            removals[to_edges] |= items
            continue
        for index in each(items):
            (relations if to_edges else copies)[index].pop(action.attribute, None)
    return removals


def _substitute(node: dict[str, Any], attribute: str | None, change: Change) -> None:
    """Change the attribute, or all of them; what cannot be changed is taken out."""
    for name in tuple(node) if attribute is None else (attribute,):
        value: Any = node.get(name)
        if is_missing(value):
            continue
        if value.__class__ is list:
            items = [change(item) for item in value if not is_missing(item)]
            outcome: Any = [item for item in items if item is not None]
        else:
            outcome = change(value)
        if is_missing(outcome):
            del node[name]
        else:
            node[name] = outcome
