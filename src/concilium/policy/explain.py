"""What constraint graphs do, in words, and what about them may not be what was meant: `concilium policy check`."""

from __future__ import annotations

from collections.abc import Iterator

from concilium.policy.actions import ConstraintGraphs, GraphStep
from concilium.policy.functions import Call
from concilium.policy.language import Action, ConstraintGraph, Eliminate, Exists, Node, Quantifier, Substitute
from concilium.policy.matching import match
from concilium.records.columns import Value
from concilium.records.expression import Range, predicates

MOST_LOOKED_AT = 8


def describe(graph: ConstraintGraph) -> list[str]:
    """A sentence for everything that the graph does."""
    nodes = {node.tag: node for node in graph.nodes}
    acted_on = {action.tag for action in graph.actions}
    conditions = [_who(node, "any node") for node in graph.nodes if node.tag not in acted_on]
    where = f", in messages with {_join(conditions)}" if conditions else ""
    if graph.edges:
        where += ", joined as " + _join([f"({left}, {right})" for left, right in graph.edges])
    sentences = []
    refusals = [action for action in graph.actions if isinstance(action, Exists)]
    if refusals:
        attributes: dict[str, list[str]] = {}
        for refusal in refusals:
            attributes.setdefault(refusal.tag, []).append(refusal.attribute or "a node")
        parts = [f"{_join(names)} ({_who(nodes[tag], 'any node')})" for tag, names in attributes.items()]
        sentences.append(f"refuses a message that has {_join(parts)}{where}")
    for action in graph.actions:
        whose = _who(nodes[action.tag])
        if isinstance(action, Eliminate):
            what = whose if action.attribute is None else f"{action.attribute} of {whose}"
            sentences.append(f"takes out {what}{where}")
        elif isinstance(action, Substitute):
            sentences.append(
                f"changes {action.attribute or 'all attributes'} of {whose} by {_how(action)}{where}"
            )
    return sentences


def find_oddities(graphs: ConstraintGraphs) -> list[str]:
    """What about these rules may not be what their author meant, one sentence each."""
    oddities = [oddity for graph in graphs.graphs for oddity in _look_at(graph)]
    for graph, rule in zip(graphs.graphs, graphs.rules, strict=True):
        steps = [*rule.changes, *([rule.refusal] if rule.refusal is not None else [])]
        idle = [
            deed.action for step in steps for tag, deed in step.actions if tag not in reached_in_records(step)
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
    return oddities


def reached_in_records(step: GraphStep) -> set[int]:
    """The tags of a step that a record on its own can stand for, so that the step's actions can reach it."""
    if sum(step.motif.least) > 1:
        return set()
    count = len(step.nodes)
    if count > MOST_LOOKED_AT:
        return set(range(count))
    always = sum(
        1 << tag for tag, node in enumerate(step.nodes) if node.condition is None and not _lists(node)
    )
    tags: set[int] = set()
    for pattern in range(1 << count):
        if pattern & always == always:
            fits = match(step.motif, [pattern >> tag & 1 for tag in range(count)], (0,))
            tags |= {tag for tag, fit in enumerate(fits or ()) if fit}
    return tags


def _look_at(graph: ConstraintGraph) -> Iterator[str]:
    nodes = {node.tag: node for node in graph.nodes}
    if not graph.actions:
        yield f"graph {graph.name} has no action: it does nothing"
    for action in graph.actions:
        quantifier = nodes[action.tag].quantifier
        if quantifier.most is not None and not isinstance(action, Exists):
            yield (
                f"graph {graph.name}: {_verb(action)} {_name(action)} happens {_how_many(quantifier)}, and not at all "
                "where one more node fits; to protect, use +"
            )
    for node in graph.nodes:
        for predicate in predicates(node.condition) if node.condition is not None else ():
            if isinstance(predicate, Range) and _is_above(predicate.low.value, predicate.high.value):
                yield f"graph {graph.name}: {predicate} can never hold; write the smaller value first"


def _is_above(low: Value, high: Value) -> bool:
    if isinstance(low, str) or isinstance(high, str):
        return isinstance(low, str) and isinstance(high, str) and low > high
    return low > high


def _lists(node: Node) -> bool:
    return bool(node.quantifier.listed)


def _who(node: Node, everyone: str = "every node") -> str:
    parts = [everyone if node.condition is None and not _lists(node) else "nodes"]
    if _lists(node):
        parts.append(f"with one of {', '.join(node.quantifier.listed)}")
    if node.condition is not None:
        parts.append(f"where {node.condition}")
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


def _how(action: Substitute) -> str:
    transform = action.transform
    if isinstance(transform, Call):
        return f"{transform.name}({', '.join(f'{a:g}' if isinstance(a, float) else a for a in transform.arguments)})"
    return f"the pattern {transform.regex.pattern}"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
