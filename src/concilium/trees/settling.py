"""Where new patients come to rest in the tree of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.federation.attributes import Attribute, present, recode
from concilium.federation.prediction import NewPatients
from concilium.records.columns import label
from concilium.trees.body import TreeBody
from concilium.trees.routing import STAYS, Branching, route


def settle(body: TreeBody, patients: NewPatients) -> NDArray[np.intp]:
    """For each patient the node where it comes to rest."""
    nodes = np.zeros(len(patients), dtype=np.intp)
    rows = np.arange(len(patients), dtype=np.int32)
    for node, here in route(rows, find_tests(body, patients)).items():
        nodes[here] = node
    return nodes


def find_path(body: TreeBody, patient: Mapping[str, Any]) -> list[int]:
    """The nodes that a patient (of plain values) passes, the root first."""
    row = {name: patient.get(name) for name in body.asked}
    tests = find_tests(body, NewPatients([row])) if row else {}
    path = [0]
    while (test := tests.get(path[-1])) is not None:
        child = int(test.child[test.codes[0]])
        if child == STAYS:
            break
        path.append(child)
    return path


def find_tests(body: TreeBody, patients: NewPatients) -> dict[int, Branching]:
    """The tests of a tree, by node, on the columns of these patients."""
    values: dict[str, list[Any]] = {}
    for node in body.nodes:
        if node.attribute is not None:
            values.setdefault(node.attribute, []).extend(branch.value for branch in node.branches)
    attributes = {
        name: Attribute(name, tuple(body.bins[name]))
        if name in body.bins
        else Attribute(name, (), present(own))
        for name, own in values.items()
    }
    columns = {name: recode(attribute, patients) for name, attribute in attributes.items()}
    tests = {}
    for index, node in enumerate(body.nodes):
        if node.attribute is None:
            continue
        attribute = attributes[node.attribute]
        inner = range(attribute.inner) if attribute.edges else map(label, attribute.values)
        goes = {
            b.value if attribute.edges or b.value is None else label(b.value): b.node for b in node.branches
        }
        elsewhere = STAYS if node.other is None else node.other
        # In the order of cells: missing, the values, any other.
        children = [goes.get(name, elsewhere) for name in (None, *inner)] + [elsewhere]
        codes, cells = columns[node.attribute]
        tests[index] = Branching(codes, np.array(children, dtype=np.int32)[cells])
    return tests
