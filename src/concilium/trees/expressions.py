"""A tree as boolean expressions in the style of CQL, one for every place where a patient can come to rest.

For decision support that speaks FHIR: every leaf is a condition over named elements, with its prediction beside it.
Expressions exclude each other, and of those with their resting places for values never seen exactly one is true for
any patient, under CQL's three-valued logic (a comparison with null is neither true nor false).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from concilium.protocol.attributes import find_runs
from concilium.records.columns import Value
from concilium.trees.body import Told, TreeBody, TreeNode


@dataclass(frozen=True)
class LeafExpression:
    """Whom a leaf is for, what it predicts, with what share of how many patients; `leaf` is False where patients rest
    only because the next question has no branch for their value."""

    text: str
    prediction: Value
    probability: float
    patients: int
    leaf: bool

    def __str__(self) -> str:
        return self.text


def to_expressions(body: TreeBody, told: Told | None = None) -> list[LeafExpression]:
    """All expressions, leaves in the order in which the tree is drawn, with what the nodes tell, or with this."""
    shares, calls = told or body.told
    expressions = []
    waiting: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while waiting:
        index, path = waiting.pop()
        node = body.nodes[index]
        if node.attribute is None:
            expressions.append(describe(body, node, shares[index], calls[index], path, leaf=True))
            continue
        edges = body.bins.get(node.attribute)
        below = [
            (group.node, (*path, write_condition(node.attribute, group.values, edges)))
            for group in node.groups
            if not group.rest
        ]
        rest = write_rest(node, edges)
        if rest is not None and node.other is not None:
            below.append((node.other, (*path, rest)))
        elif rest is not None:
            expressions.append(describe(body, node, shares[index], calls[index], (*path, rest), leaf=False))
        waiting += below[::-1]
    return expressions


def describe(
    body: TreeBody, node: TreeNode, shares: Sequence[float], best: int, path: tuple[str, ...], leaf: bool
) -> LeafExpression:
    return LeafExpression(
        text=" and ".join(path) or "true",
        prediction=body.classes[best],
        probability=shares[best],
        patients=sum(node.counts),
        leaf=leaf,
    )


def write_condition(attribute: str, values: Sequence[Value | None], edges: Sequence[float] | None) -> str:
    """The condition of the branches for these values."""
    name = write_name(attribute)
    named = [value for value in values if value is not None]
    parts = [f"{name} is null"] if None in values else []
    if edges is not None:
        parts += [write_range(name, *run, edges) for run in find_runs(map(int, named))]
    elif len(named) == 1:
        parts.append(f"{name} = {write_literal(named[0])}")
    elif named:
        parts.append(f"{name} in {{{', '.join(map(write_literal, named))}}}")
    if len(parts) == 1:
        return parts[0]
    return f"({' or '.join(f'({part})' if ' and ' in part else part for part in parts)})"


def write_range(name: str, first: int, last: int, edges: Sequence[float]) -> str:
    """The bins from first to last."""
    lower = [f"{name} >= {write_literal(float(edges[first - 1]))}"] if first else []
    upper = [f"{name} < {write_literal(float(edges[last]))}"] if last < len(edges) else []
    return " and ".join([*lower, *upper]) or f"{name} is not null"


def write_rest(node: TreeNode, edges: Sequence[float] | None) -> str | None:
    """The condition of all values that no branch names (or that lead where such do); None where there are none."""
    assert node.attribute is not None
    name = write_name(node.attribute)
    elsewhere = [branch.value for branch in node.branches if branch.node != node.other]
    named = [value for value in elsewhere if value is not None]
    missing = None in elsewhere
    if edges is None:
        listed = ", ".join(write_literal(value) for value in named)
        unnamed = f"not ({name} in {{{listed}}})" if named else f"{name} is not null"
    else:
        taken = {int(value) for value in named}
        absent = [bin_ for bin_ in range(len(edges) + 1) if bin_ not in taken]
        unnamed = " or ".join(f"({write_range(name, bin_, bin_, edges)})" for bin_ in absent)
    if missing and not unnamed:
        return None
    if missing:
        return f"({unnamed})" if edges is not None or not named else unnamed
    return f"({name} is null or {unnamed})" if unnamed else f"{name} is null"


def write_name(attribute: str) -> str:
    """An attribute as a quoted identifier."""
    return '"' + escape(attribute).replace('"', '\\"') + '"'


def write_literal(value: Value) -> str:
    """A value as CQL writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + escape(value).replace("'", "\\'") + "'"
    if isinstance(value, int) or float(value).is_integer():
        return str(int(value))
    return format(Decimal(repr(float(value))), "f")  # CQL has no exponents


def escape(text: str) -> str:
    """Backslashes and line ends as CQL writes them inside quotes."""
    named = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(named.get(character, character) for character in text)
