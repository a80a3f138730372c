"""A tree for other systems: as boolean expressions in the style of CQL, and as PMML 4.4.

Expressions are for decision support that speaks FHIR: one for every place where a patient can come to rest, a condition
over named elements with its prediction beside it. Expressions exclude each other, and of those with their resting
places for values never seen exactly one is true for any patient, under CQL's three-valued logic (a comparison with null
is neither true nor false).

PMML is for the engines that score a tree inside hospital systems. Its TreeModel says what ours does: a patient goes to
the first child whose predicate is true and, where none is (a value never seen, or missing without a branch of its own),
rests at the node reached (`noTrueChildStrategy`). Values outside the data dictionary are let through as they are, since
they too must reach that rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from concilium.models.cql import write_condition, write_literal, write_name, write_range
from concilium.models.pmml import begin_document, data_field, output_field, predicate_of, xml_attributes
from concilium.records.columns import Value, label
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
            expressions.append(_describe(body, node, shares[index], calls[index], path, leaf=True))
            continue
        edges = body.bins.get(node.attribute)
        below = [
            (group.node, (*path, write_condition(node.attribute, group.values, edges)))
            for group in node.groups
            if not group.rest
        ]
        rest = _write_rest(node, edges)
        if rest is not None and node.other is not None:
            below.append((node.other, (*path, rest)))
        elif rest is not None:
            expressions.append(_describe(body, node, shares[index], calls[index], (*path, rest), leaf=False))
        waiting += below[::-1]
    return expressions


def _describe(
    body: TreeBody, node: TreeNode, shares: Sequence[float], best: int, path: tuple[str, ...], leaf: bool
) -> LeafExpression:
    return LeafExpression(
        text=" and ".join(path) or "true",
        prediction=body.classes[best],
        probability=shares[best],
        patients=sum(node.counts),
        leaf=leaf,
    )


def _write_rest(node: TreeNode, edges: Sequence[float] | None) -> str | None:
    """The condition of all values that no branch names (or that lead where such do); None where there are none."""
    assert node.attribute is not None
    name = write_name(node.attribute)
    elsewhere = [branch.value for branch in node.branches if branch.node != node.other]
    named = [value for value in elsewhere if value is not None]
    unnamed = _write_unnamed(name, named, edges)
    if None in elsewhere:
        if not unnamed:
            return None
        return f"({unnamed})" if edges is not None or not named else unnamed
    return f"({name} is null or {unnamed})" if unnamed else f"{name} is null"


def _write_unnamed(name: str, named: Sequence[Value], edges: Sequence[float] | None) -> str:
    """The condition of all known values but the named ones; empty where there are no others."""
    if edges is None:
        listed = ", ".join(write_literal(value) for value in named)
        return f"not ({name} in {{{listed}}})" if named else f"{name} is not null"
    taken = {int(value) for value in named}
    absent = [bin_ for bin_ in range(len(edges) + 1) if bin_ not in taken]
    return " or ".join(f"({write_range(name, bin_, bin_, edges)})" for bin_ in absent)


def to_pmml(body: TreeBody, told: Told | None = None) -> str:
    """The document as text, with what the nodes tell, or with this."""
    asked = body.asked
    about = f"Decision tree for {body.target}" + (f", of patients with {body.query}" if body.query else "")
    lines = [
        *begin_document(about),
        f' <DataDictionary numberOfFields="{len(asked) + 1}">',
        *(line for name in asked for line in data_field(name, _values_of(body, name), name in body.bins)),
        *data_field(body.target, body.classes, continuous=False),
        " </DataDictionary>",
        f" <TreeModel{xml_attributes(modelName=body.target, functionName='classification', algorithmName='ID3')}"
        ' missingValueStrategy="none" noTrueChildStrategy="returnLastPrediction" splitCharacteristic="multiSplit">',
        "  <MiningSchema>",
        *(f'   <MiningField{xml_attributes(name=name)} invalidValueTreatment="asIs"/>' for name in asked),
        f'   <MiningField{xml_attributes(name=body.target)} usageType="target"/>',
        "  </MiningSchema>",
        "  <Output>",
        *(output_field(value) for value in body.classes),
        "  </Output>",
        *_nodes(body, *(told or body.told)),
        " </TreeModel>",
        "</PMML>",
    ]
    return "\n".join(lines) + "\n"


def _nodes(body: TreeBody, shares: Sequence[Sequence[float]], calls: Sequence[int]) -> list[str]:
    """All nodes, children inside their parents, without recursion (trees over long-tailed codes can be deep)."""
    lines: list[str] = []
    waiting: list[tuple[str, int, int] | str] = [("<True/>", 0, 2)]
    while waiting:
        here = waiting.pop()
        if isinstance(here, str):
            lines.append(here)
            continue
        predicate, index, depth = here
        node = body.nodes[index]
        indent = " " * depth
        score = label(body.classes[calls[index]])
        lines.append(
            f'{indent}<Node{xml_attributes(id=str(index), score=score)} recordCount="{sum(node.counts)}">'
        )
        lines.append(f"{indent} {predicate}")
        for value, count, share in zip(body.classes, node.counts, shares[index], strict=True):
            lines.append(
                f'{indent} <ScoreDistribution{xml_attributes(value=label(value))} recordCount="{count}"'
                f' probability="{share!r}"/>'
            )
        below: list[tuple[str, int, int]] = []
        if node.attribute is not None:
            edges = body.bins.get(node.attribute)
            # A check for missing values comes first: some engines stop at the first comparison they cannot make.
            for child, values, rest in sorted(node.groups, key=lambda group: None not in group.values):
                if not rest:
                    below.append((predicate_of(node.attribute, values, edges), child, depth + 1))
            if node.other is not None:
                below.append(("<True/>", node.other, depth + 1))
        waiting += [f"{indent}</Node>", *below[::-1]]
    return lines


def _values_of(body: TreeBody, attribute: str) -> list[Value]:
    """The values of an attribute that some branch names, each once."""
    asking = (node for node in body.nodes if node.attribute == attribute)
    named = (branch.value for node in asking for branch in node.branches)
    return list({label(value): value for value in named if value is not None}.values())
