"""Where new patients come to rest in the tree of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.models.prediction import NO_ENTRIES, Entries, NewPatients
from concilium.protocol.attributes import Attribute, present, recode
from concilium.protocol.splits import STAYS, Branching, route
from concilium.records.columns import label
from concilium.trees.body import TreeBody, TreeNode


def settle(body: TreeBody, patients: NewPatients) -> NDArray[np.intp]:
    """For each patient the node where it comes to rest."""
    nodes = np.zeros(len(patients), dtype=np.intp)
    rows = np.arange(len(patients), dtype=np.int32)
    for node, here in route(rows, _find_tests(body, patients)).items():
        nodes[here] = node
    return nodes


def find_path(body: TreeBody, patient: Mapping[str, Any], dictionary: Entries = NO_ENTRIES) -> list[int]:
    """The nodes that a patient (of plain values) passes, the root first."""
    row = {name: patient.get(name) for name in body.asked}
    tests = _find_tests(body, NewPatients([row], dictionary)) if row else {}
    path = [0]
    while (test := tests.get(path[-1])) is not None:
        child = int(test.child[test.codes[0]])
        if child == STAYS:
            break
        path.append(child)
    return path


def spread(body: TreeBody, patient: Mapping[str, Any], dictionary: Entries = NO_ENTRIES) -> dict[int, float]:
    """The nodes where a patient (of plain values) may come to rest, with weights that add up to 1.

    What was not entered (a name that the patient lacks) is not evidence: there the patient goes every way, in parts as
    large as the share of the model's patients who went it (Quinlan, C4.5: Programs for Machine Learning, 1993, chapter
    3). A value that is said to be missing (None) is one, and goes where such patients went.
    """
    row = {name: patient.get(name) for name in body.asked}
    tests = _find_tests(body, NewPatients([row], dictionary)) if row else {}
    resting: dict[int, float] = {}
    moving = [(0, 1.0)]
    while moving:
        index, weight = moving.pop()
        node, test = body.nodes[index], tests.get(index)
        ways: dict[int, float] = {}
        if node.attribute is not None and node.attribute not in patient:
            sizes = {child: float(sum(body.nodes[child].counts)) for child in node.children}
            everyone = sum(sizes.values())
            ways = {child: size / everyone for child, size in sizes.items() if size} if everyone else {}
        elif test is not None:
            child = int(test.child[test.codes[0]])
            ways = {} if child == STAYS else {child: 1.0}
        if not ways:
            resting[index] = resting.get(index, 0.0) + weight
        moving.extend((child, weight * share) for child, share in ways.items())
    return resting


def mix_shares(body: TreeBody, resting: Mapping[int, float]) -> NDArray[np.float64]:
    """The shares of the classes where a patient is spread over nodes."""
    shares: NDArray[np.float64] = body.shares
    mixed: NDArray[np.float64] = sum(
        (weight * shares[node] for node, weight in resting.items()), np.zeros(len(body.classes))
    )
    return mixed


def _find_tests(body: TreeBody, patients: NewPatients) -> dict[int, Branching]:
    """The tests of a tree, by node, on the columns of these patients."""
    attributes = _list_attributes(body)
    columns = {name: recode(attribute, patients) for name, attribute in attributes.items()}
    tests = {}
    for index, node in enumerate(body.nodes):
        if node.attribute is None:
            continue
        codes, cells = columns[node.attribute]
        tests[index] = Branching(codes, _list_children(node, attributes[node.attribute])[cells])
    return tests


def _list_attributes(body: TreeBody) -> dict[str, Attribute]:
    """The attributes that a tree asks about, with the bins or values that its branches name."""
    values: dict[str, list[Any]] = {}
    for node in body.nodes:
        if node.attribute is not None:
            values.setdefault(node.attribute, []).extend(branch.value for branch in node.branches)
    return {
        name: Attribute(name, tuple(body.bins[name]))
        if name in body.bins
        else Attribute(name, (), present(own))
        for name, own in values.items()
    }


def _list_children(node: TreeNode, attribute: Attribute) -> NDArray[np.int32]:
    """Where each cell of the node's attribute leads, in the order of cells: missing, the values, any other."""
    inner = range(attribute.inner) if attribute.edges else map(label, attribute.values)
    goes = {b.value if attribute.edges or b.value is None else label(b.value): b.node for b in node.branches}
    elsewhere = STAYS if node.other is None else node.other
    children = [goes.get(name, elsewhere) for name in (None, *inner)] + [elsewhere]
    return np.array(children, dtype=np.int32)
