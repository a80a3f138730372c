"""What constraint graphs do, in words, and what about them may not be what was meant: `concilium policy check`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from concilium.policy.actions import ConstraintGraphs, GraphStep
from concilium.policy.definitions import Chain, Definition, Named
from concilium.policy.functions import Call
from concilium.policy.language import (
    Action,
    ConstraintGraph,
    Eliminate,
    Exists,
    Node,
    Quantifier,
    Substitute,
    conjuncts,
    tags_of,
)
from concilium.policy.matching import match_alone, own_condition
from concilium.policy.patterns import Pattern
from concilium.records.columns import Value
from concilium.records.expression import Range, predicates

MOST_LOOKED_AT = 8


def describe(graph: ConstraintGraph) -> list[str]:
    """A sentence for everything that the graph does."""
    sentences = []
    refusals = [action for action in graph.actions if isinstance(action, Exists)]
    if refusals:
        attributes: dict[str, list[str]] = {}
        for refusal in refusals:
            attributes.setdefault(refusal.tag, []).append(
                refusal.attribute or ("an edge" if refusal.tag in graph.edge_tags else "a node")
            )
        parts = [f"{_join(names)} ({_whose(graph, tag, 'any node')})" for tag, names in attributes.items()]
        sentences.append(f"refuses a message that has {_join(parts)}{_where(graph, [*attributes])}")
    for action in graph.actions:
        whose, where = _whose(graph, action.tag, "every node"), _where(graph, [action.tag])
        if isinstance(action, Eliminate):
            what = whose if action.attribute is None else f"{action.attribute} of {whose}"
            sentences.append(f"takes out {what}{where}")
        elif isinstance(action, Substitute):
            sentences.append(
                f"changes {action.attribute or 'all attributes'} of {whose} by {_step(action.transform)}{where}"
            )
    return sentences


def _where(graph: ConstraintGraph, said: Collection[str | None]) -> str:
    """What else of the graph must be there, in words; `said` are the tags that the sentence is about."""
    about = {end for edge in graph.edges if edge.tag in said for end in (edge.left, edge.right)}
    acted_on = {action.tag for action in graph.actions}
    acted_on |= {end for edge in graph.edges if edge.tag in acted_on for end in (edge.left, edge.right)}
    conditions = [_who(node, "any node") for node in graph.nodes if node.tag not in acted_on | about]
    words = f", in messages with {_join(conditions)}" if conditions else ""
    joined = [
        f"({edge.left}, {edge.right})" + ("" if (own := own_condition(edge)) is None else f" where {own}")
        for edge in graph.edges
        if edge.tag is None or edge.tag not in said
    ]
    words += f", joined as {_join(joined)}" if joined else ""
    compared = [
        str(part)
        for one in graph.statements
        for part in conjuncts(one.condition)
        if not tags_of(part) <= {one.tag}
    ]
    return words + (f", where {_join(compared)}" if compared else "")


def _whose(graph: ConstraintGraph, tag: str, everyone: str) -> str:
    """The nodes that a tag stands for, or the edges, with the nodes that they join."""
    nodes = {node.tag: node for node in graph.nodes}
    if tag in nodes:
        return _who(nodes[tag], everyone)
    edge = next(edge for edge in graph.edges if edge.tag == tag)
    own = own_condition(edge)
    ends = " and ".join(f"{end} ({_who(nodes[end], 'any node')})" for end in (edge.left, edge.right))
    return f"edges{'' if own is None else f' where {own}'} between {ends}"


def find_oddities(graphs: ConstraintGraphs) -> list[str]:
    """What about these rules may not be what their author meant, one sentence each."""
    oddities = [oddity for graph in graphs.graphs for oddity in _look_at(graph)]
    for graph, rule in zip(graphs.graphs, graphs.rules, strict=True):
        steps = [*rule.changes, *([rule.refusal] if rule.refusal is not None else [])]
        idle = [
            deed.action
            for step in steps
            for tag, deed in step.actions
            if tag not in _reached_in_records(step)
        ]
        if idle and len(idle) == len(graph.actions):
            oddities.append(
                f"graph {graph.name} has no effect on records: a record is one node without edges, which this motif "
                "never matches"
            )
        elif idle:
            names = _join([f"{_verb(action)} {_name(action)}" for action in idle])
            oddities.append(
                f"graph {graph.name}: {names} has no effect on records, which are one node without edges"
            )
    used = set(_used(graphs))
    for function in graphs.functions:
        if function.name not in used:
            oddities.append(f"function {function.name} is used nowhere")
    return oddities


def _used(graphs: ConstraintGraphs) -> Iterator[str]:
    """The names of the policy's own functions that a substitution leads to."""
    transforms: list[object] = [
        action.transform
        for graph in graphs.graphs
        for action in graph.actions
        if isinstance(action, Substitute)
    ]
    for transform in transforms:
        if isinstance(transform, Definition):
            yield transform.name
            for case in transform.cases:
                transforms += case.result.steps if isinstance(case.result, Chain) else ()


def _reached_in_records(step: GraphStep) -> set[int]:
    """The tags of a step that a record on its own can stand for, so that the step's actions can reach it."""
    if sum(step.motif.least) > 1:
        return set()
    count = len(step.nodes)
    if count > MOST_LOOKED_AT:
        return set(range(count))
    always = sum(
        1 << tag for tag, node in enumerate(step.nodes) if own_condition(node) is None and not _lists(node)
    )
    tags: set[int] = set()
    for pattern in range(1 << count):
        if pattern & always == always:
            fits = match_alone(step.motif, [pattern >> tag & 1 for tag in range(count)])
            tags |= {tag for tag, fit in enumerate(fits or ()) if fit}
    return tags


def _look_at(graph: ConstraintGraph) -> Iterator[str]:
    nodes = {node.tag: node for node in graph.nodes}
    if not graph.actions:
        yield f"graph {graph.name} has no action: it does nothing"
    for action in graph.actions:
        quantifier = nodes[action.tag].quantifier if action.tag in nodes else Quantifier()
        if quantifier.most is not None and not isinstance(action, Exists):
            yield (
                f"graph {graph.name}: {_verb(action)} {_name(action)} happens {_how_many(quantifier)}, and not at all "
                "where one more node fits; to protect, use +"
            )
    for statement in graph.statements:
        for predicate in predicates(statement.condition) if statement.condition is not None else ():
            if isinstance(predicate, Range) and _is_above(predicate.low.value, predicate.high.value):
                yield f"graph {graph.name}: {predicate} can never hold; write the smaller value first"


def _is_above(low: Value, high: Value) -> bool:
    if isinstance(low, str) or isinstance(high, str):
        return isinstance(low, str) and isinstance(high, str) and low > high
    return low > high


def _lists(node: Node) -> bool:
    return bool(node.quantifier.listed)


def _who(node: Node, everyone: str) -> str:
    parts = [everyone if own_condition(node) is None and not _lists(node) else "nodes"]
    if _lists(node):
        parts.append(f"with one of {', '.join(node.quantifier.listed)}")
    if (condition := own_condition(node)) is not None:
        parts.append(f"where {condition}")
    if (node.quantifier.least, node.quantifier.most) != (1, None):
        parts.append(_how_many(node.quantifier))
    return " ".join(parts)


def _how_many(quantifier: Quantifier) -> str:
    least, most = quantifier.least, quantifier.most
    if most is None:
        return f"if there are {least} or more"
    if least == most:
        return "if there is none" if most == 0 else f"if there {'is' if most == 1 else 'are'} exactly {most}"
    return f"if there are {least} to {most}"


def _name(action: Action) -> str:
    return action.tag if action.attribute is None else f"{action.tag}.{action.attribute}"


def _verb(action: Action) -> str:
    return type(action).__name__.lower()


def describe_function(function: Definition) -> list[str]:
    """A sentence for every case of a function that the policy defines."""
    sentences = []
    for case in function.cases:
        when = "otherwise" if case.condition is None else f"where {case.condition}"
        match case.result:
            case None:
                what = "takes it out"
            case Chain(steps=()):
                what = "leaves it as it is"
            case Chain(steps=steps):
                what = f"changes it by {', then '.join(map(_step, steps))}"
            case literal:
                what = f"gives {literal}"
        sentences.append(f"{when}: {what}")
    if function.cases[-1].condition is not None:
        sentences.append("otherwise: takes it out")
    return sentences


def _step(transform: Call | Pattern | Definition | Named) -> str:
    if isinstance(transform, Call):
        return f"{transform.name}({', '.join(f'{a:g}' if isinstance(a, float) else a for a in transform.arguments)})"
    if isinstance(transform, Pattern):
        return f"the pattern {transform.regex.pattern}"
    return f"{transform.name}()"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
