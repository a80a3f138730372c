"""What constraint graphs do to a transaction (docs/methods.md, section 3.3): refuse it, or let a filtered copy out.

Whether a rule applies is always decided on the transaction as it came in, so rules do not depend on their order.
`exists`: where all of a graph's `exists` hold, nothing leaves. `eliminate`: each on its own, every node that fits
the tag loses the attribute. `substitute`: in the order written; a value that cannot be changed as asked is
eliminated, and what one rule eliminates no other brings back. Who is protected: the people in the transaction,
from its recipient, as far as the rules see what identifies them. It is a filter, not a guarantee. What no rule
can see (other parts of a message, nested values) is refused, and an error never repeats the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from concilium.errors import PolicyError
from concilium.policy.functions import Call, Change, Secret
from concilium.policy.language import (
    Action,
    ConstraintGraph,
    Eliminate,
    Exists,
    Node,
    Substitute,
    check_attributes,
    read_graphs,
)
from concilium.policy.matching import (
    Judge,
    Motif,
    TooEntangled,
    Unfit,
    each,
    is_missing,
    judge_of,
    match,
    motif_of,
    scope,
)
from concilium.policy.patterns import Pattern
from concilium.records.columns import Value, label
from concilium.records.expression import TRUE, Expression

Attribute = Any
TransactionNode = Mapping[str, Attribute]

_PLAIN_KINDS = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True)
class Decision:
    """What becomes of a transaction: the filtered graph, or None and the rule that refused it."""

    graph: dict[str, Any] | None
    refused_by: str | None
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Transaction:
    """A graph that was checked: nodes with plain attributes, edges between nodes that are there."""

    nodes: tuple[TransactionNode, ...]
    edges: tuple[tuple[int, int], ...]

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
            _check_node(node, position)
        return cls(nodes, tuple(_read_edges(nodes, graph.get("edges", ()))))

    def neighbours(self) -> list[int]:
        """The neighbours of each node."""
        neighbours = [0] * len(self.nodes)
        for left, right in self.edges:
            neighbours[left] |= 1 << right
            neighbours[right] |= 1 << left
        return neighbours

    def copy(self) -> list[dict[str, Any]]:
        """The nodes, free to be changed."""
        return [
            {name: list(value) if value.__class__ is list else value for name, value in node.items()}
            if list in map(type, node.values())
            else dict(node)
            for node in self.nodes
        ]


def _check_node(node: Any, position: int) -> None:
    if not isinstance(node, Mapping) or not {*map(type, node)} <= {str}:
        raise PolicyError(
            f'node {position} is not an object of attributes, such as {{"id": "a", "sex": "f"}}'
        )
    if {*map(type, node.values())} <= _PLAIN_KINDS:
        return
    for value in node.values():
        items = value if type(value) is list else [value]
        if not {*map(type, items)} <= _PLAIN_KINDS:
            raise PolicyError(
                f"node {position} has an attribute that is neither text, number, true, false nor a list of "
                "those; no rule could see inside it"
            )


def _read_edges(nodes: Sequence[TransactionNode], edges: Any) -> Iterator[tuple[int, int]]:
    if not isinstance(edges, list | tuple):
        raise PolicyError('the edges of a transaction are a list of pairs, such as ["a", "b"]')
    position: dict[tuple[type, Any], int] = {}
    for index, node in enumerate(nodes):
        name = node.get("id")
        if name is None:
            continue
        if type(name) not in (str, int):
            raise PolicyError(f"the id of node {index + 1} is neither text nor a whole number")
        if position.setdefault((type(name), name), index) != index:
            raise PolicyError(f"node {index + 1} has the id of an earlier node; ids must differ")
    for index, edge in enumerate(edges, start=1):
        if not isinstance(edge, list | tuple) or len(edge) != 2:
            raise PolicyError(f'edge {index} is not a pair of ids, such as ["a", "b"]')
        ends = [position.get((type(end), end)) if type(end) in (str, int) else None for end in edge]
        if ends[0] is None or ends[1] is None:
            raise PolicyError(f"edge {index} ends at a node that is not in the transaction")
        yield ends[0], ends[1]


class Deed(NamedTuple):
    """An action and, for a substitution, how it changes the values of a node."""

    action: Action
    change_for: Callable[[TransactionNode], Change] | None


@dataclass(frozen=True)
class GraphStep:
    """Tags that must match together, where to find their conditions, and what then happens to which of them."""

    motif: Motif
    nodes: tuple[Node, ...]
    conditions: tuple[int | None, ...]
    actions: tuple[tuple[int, Deed], ...]


@dataclass(frozen=True)
class Rule:
    """A constraint graph, taken apart into its steps."""

    name: str
    whole: GraphStep
    refusal: GraphStep | None
    changes: tuple[GraphStep, ...]


@dataclass(frozen=True)
class GraphPlan:
    """What is to be done to a transaction: nothing where a rule refuses it, else these deeds to these nodes."""

    refused_by: str | None
    deeds: tuple[tuple[Deed, int], ...]
    rules: tuple[str, ...]


class ConstraintGraphs:
    """The constraint graphs of a policy, ready to filter transactions."""

    def __init__(
        self, graphs: Iterable[ConstraintGraph], text: str = "", secret: bytes | None = None
    ) -> None:
        self.graphs = tuple(graphs)
        self._text = text
        self._secret = None if secret is None else _secret(secret)
        # The same condition in several rules is looked at once.
        self._positions: dict[tuple[Expression | None, tuple[str, ...]], int] = {}
        self._conditions: list[Judge] = []
        self.rules = tuple(map(self._compile, self.graphs))
        substitutions = (act for graph in self.graphs for act in graph.actions if isinstance(act, Substitute))
        self.needs_secret = any(
            isinstance(act.transform, Call) and act.transform.needs_secret for act in substitutions
        )

    def check(self, attributes: Iterable[str]) -> None:
        """Refuse rules about attributes that the data do not have; a PolicyError names the nearest."""
        check_attributes(self.graphs, attributes, self._text)

    def apply(self, graph: Mapping[str, Any]) -> dict[str, Any] | None:
        """A filtered copy of the transaction, or None where it is refused."""
        return self.decide(graph).graph

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

    def plan(self, transaction: Transaction) -> GraphPlan:
        """What the rules ask for, on the transaction as it came in."""
        self.require_secret()
        view = _View(self._conditions, transaction)
        for rule in self.rules:
            if rule.refusal is not None and view.all_exist(rule.name, rule.refusal):
                return GraphPlan(rule.name, (), (rule.name,))
        deeds: list[tuple[Deed, int]] = []
        names: list[str] = []
        for rule in self.rules:
            rule_deeds = [deed for step in rule.changes for deed in view.reach(rule.name, step)]
            if rule_deeds:
                deeds += sorted(rule_deeds, key=lambda pair: pair[0].action.place)
                names.append(rule.name)
        return GraphPlan(None, tuple(deeds), tuple(names))

    def _compile(self, graph: ConstraintGraph) -> Rule:
        refusals = [action for action in graph.actions if isinstance(action, Exists)]
        by_scope: dict[frozenset[str], list[Action]] = {}
        for action in graph.actions:
            if not isinstance(action, Exists):
                by_scope.setdefault(scope(graph, frozenset({action.tag})), []).append(action)
        refusal_tags = scope(graph, frozenset(action.tag for action in refusals))
        return Rule(
            graph.name,
            self._step(graph, frozenset(node.tag for node in graph.nodes), ()),
            self._step(graph, refusal_tags, refusals) if refusals else None,
            tuple(self._step(graph, tags, actions) for tags, actions in by_scope.items()),
        )

    def _step(self, graph: ConstraintGraph, tags: frozenset[str], actions: Sequence[Action]) -> GraphStep:
        motif = motif_of(graph, tags)
        nodes = tuple(node for node in graph.nodes if node.tag in tags)
        deeds = [(motif.tags.index(action.tag), Deed(action, self._change_for(action))) for action in actions]
        return GraphStep(motif, nodes, tuple(map(self._index_condition, nodes)), tuple(deeds))

    def _change_for(self, action: Action) -> Callable[[TransactionNode], Change] | None:
        if not isinstance(action, Substitute):
            return None
        transform = action.transform
        if isinstance(transform, Call) and transform.per_patient:
            return partial(self._change_for_patient, transform)
        change = (
            transform.change(self._secret) if isinstance(transform, Call) else partial(_replace, transform)
        )
        return lambda original: change

    def _change_for_patient(self, transform: Call, original: TransactionNode) -> Change:
        names = transform.patient_attributes
        patient: Any = next((original[name] for name in names if not is_missing(original.get(name))), None)
        return transform.change(self._secret, None if patient is None else label(patient))

    def _index_condition(self, node: Node) -> int | None:
        judge = judge_of(node)
        if judge is None:
            return None
        position = self._positions.setdefault((node.condition, node.quantifier.listed), len(self._conditions))
        if position == len(self._conditions):
            self._conditions.append(judge)
        return position

    def _carry_out(self, deeds: Sequence[tuple[Deed, int]], transaction: Transaction) -> dict[str, Any]:
        copies, removals = transaction.copy(), 0
        for (action, change_for), nodes in deeds:
            if change_for is not None:
                for index in each(nodes):
                    _substitute(copies[index], action.attribute, change_for(transaction.nodes[index]))
        # Last, so that no substitution brings back what another rule takes out.
        for (action, _), nodes in deeds:
            if isinstance(action, Eliminate):
                if action.attribute is None:
                    removals |= nodes
                    continue
                for index in each(nodes):
                    copies[index].pop(action.attribute, None)
        names = [None if removals >> index & 1 else copy.get("id") for index, copy in enumerate(copies)]
        edges = [
            [names[left], names[right]]
            for left, right in transaction.edges
            if names[left] is not None and names[right] is not None
        ]
        return {
            "nodes": [copy for index, copy in enumerate(copies) if not removals >> index & 1],
            "edges": edges,
        }


class _View:
    """A transaction as the rules see it: which nodes fulfil which conditions, each looked at once."""

    def __init__(self, conditions: Sequence[Judge], transaction: Transaction) -> None:
        self._conditions, self._transaction = conditions, transaction
        self._everyone = (1 << len(transaction.nodes)) - 1
        self._fulfil: list[int | None] = [None] * len(conditions)
        self._neighbours: list[int] = []

    def find(self, rule: str, step: GraphStep) -> Sequence[int] | None:
        """The nodes that fit each tag of the step's motif, or None."""
        try:
            candidates = [self._candidates(condition) for condition in step.conditions]
            if step.motif.has_edges and not self._neighbours:
                self._neighbours = self._transaction.neighbours()
            return match(step.motif, candidates, self._neighbours)
        except Unfit as unfit:
            raise PolicyError(
                f"graph {rule} compares {unfit.attribute} with {unfit.kind}, but a node of this transaction "
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
            self._exists(fits[tag], deed.action.attribute) for tag, deed in step.actions
        )

    def _candidates(self, condition: int | None) -> int:
        if condition is None:
            return self._everyone
        nodes = self._fulfil[condition]
        if nodes is None:
            judge, nodes, bit = self._conditions[condition], 0, 1
            for node in self._transaction.nodes:
                if judge(node) == TRUE:
                    nodes |= bit
                bit <<= 1
            self._fulfil[condition] = nodes
        return nodes

    def _exists(self, nodes: int, attribute: str | None) -> bool:
        if attribute is None:
            return nodes > 0
        return any(not is_missing(self._transaction.nodes[index].get(attribute)) for index in each(nodes))


def parse(text: str, secret: bytes | None = None) -> ConstraintGraphs:
    """The constraint graphs in a text; `secret` is the site's own, for `hash` and `shift_dates`."""
    return ConstraintGraphs(read_graphs(text), text, secret)


def _secret(key: bytes) -> Secret:
    try:
        return Secret(key)
    except ValueError as error:
        raise PolicyError(str(error)) from None


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


def _replace(pattern: Pattern, value: Value) -> Value | None:
    text = label(value)
    outcome = pattern.substitute(text)
    return value if outcome == text else outcome
