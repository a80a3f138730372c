"""A tree as boolean expressions in the style of CQL, one for every place where a patient can come to rest.

For decision support that speaks FHIR: every leaf is a condition over named elements, with its prediction beside it.
Expressions exclude each other, and of those with their resting places for values never seen exactly one is true for
any patient, under CQL's three-valued logic (a comparison with null is neither true nor false).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from concilium.records.table import Value
from concilium.trees.shares import class_shares, predicted

if TYPE_CHECKING:
    from concilium.trees.body import Node, TreeBody


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


def to_expressions(body: TreeBody) -> list[LeafExpression]:
    """All expressions, leaves in the order in which the tree is drawn."""
    found = []
    waiting: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while waiting:
        index, path = waiting.pop()
        node = body.nodes[index]
        below: list[tuple[int, tuple[str, ...]]] = []
        if node.attribute is None:
            found.append(describe(body, node, path, leaf=True))
        else:
            edges = body.bins.get(node.attribute)
            for branch in node.branches:
                below.append((branch.node, (*path, write_condition(node.attribute, branch.value, edges))))
            rest = write_rest(node, edges)
            if rest is not None and node.other is not None:
                below.append((node.other, (*path, rest)))
            elif rest is not None:
                found.append(describe(body, node, (*path, rest), leaf=False))
        waiting += below[::-1]
    return found


def describe(body: TreeBody, node: Node, path: tuple[str, ...], leaf: bool) -> LeafExpression:
    best = predicted(node.counts)
    return LeafExpression(
        text=" and ".join(path) or "true",
        prediction=body.classes[best],
        probability=class_shares(node.counts)[best],
        patients=sum(node.counts),
        leaf=leaf,
    )


def write_condition(attribute: str, value: Value | None, edges: Sequence[float] | None) -> str:
    """The condition of one branch."""
    name = write_name(attribute)
    if value is None:
        return f"{name} is null"
    if edges is None:
        return f"{name} = {write_literal(value)}"
    bin_ = int(value)
    lower = [f"{name} >= {write_literal(float(edges[bin_ - 1]))}"] if bin_ else []
    upper = [f"{name} < {write_literal(float(edges[bin_]))}"] if bin_ < len(edges) else []
    return " and ".join([*lower, *upper])


def write_rest(node: Node, edges: Sequence[float] | None) -> str | None:
    """The condition of all values that no branch names; None where there are none such."""
    assert node.attribute is not None
    name = write_name(node.attribute)
    missing = any(branch.value is None for branch in node.branches)
    named = [branch.value for branch in node.branches if branch.value is not None]
    if edges is None:
        listed = ", ".join(write_literal(value) for value in named)
        unnamed = f"not ({name} in {{{listed}}})" if named else f"{name} is not null"
    else:
        taken = {int(value) for value in named}
        absent = [bin_ for bin_ in range(len(edges) + 1) if bin_ not in taken]
        ranges = [f"({write_condition(node.attribute, bin_, edges)})" for bin_ in absent]
        unnamed = " or ".join(ranges)
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
