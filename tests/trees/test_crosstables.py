"""What a site remembers from question to question never changes what it counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium.protocol.attributes import Attribute
from concilium.protocol.splits import STAYS, AskedColumns, Split


@st.composite
def tables(draw):
    """Columns with codes that have no place, or share one, and their attributes."""
    patients = draw(st.integers(1, 25))
    attributes, columns = [], []
    for index in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        place = draw(st.lists(st.integers(STAYS, size - 1), min_size=1, max_size=5))
        codes = draw(st.lists(st.integers(0, len(place) - 1), min_size=patients, max_size=patients))
        attributes.append(Attribute(f"a{index}", of=size, missing=False, other=False))
        columns.append((np.array(codes, dtype=np.uint8), np.array(place, dtype=np.int32)))
    return AskedColumns(attributes, b"", columns), patients


@st.composite
def trees(draw, attributes):
    leaves, splits, born = [0], [], 1
    for _ in range(draw(st.integers(0, 6))):
        if not leaves:
            break
        node = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        attribute = draw(st.integers(0, len(attributes) - 1))
        children = []
        for _ in range(attributes[attribute].size):
            children.append(born if draw(st.booleans()) else STAYS)
            born += children[-1] != STAYS
        splits.append(Split(node, attribute, children))
        leaves += [child for child in children if child != STAYS]
    return splits


def walk(row, tree, columns):
    """One patient down a tree."""
    node, splits = 0, {split.node: split for split in tree}
    while node in splits:
        codes, place = columns[splits[node].attribute]
        position = place[codes[row]]
        child = STAYS if position == STAYS else splits[node].children[position]
        if child == STAYS:
            return node
        node = child
    return node


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_patients_rest_where_they_would_without_a_memory(data):
    found, patients = data.draw(tables())
    grown = [data.draw(trees(found.attributes)) for _ in range(2)]
    cohorts = [np.arange(patients, dtype=np.int32), np.arange(0, patients, 2, dtype=np.int32)]
    for _ in range(data.draw(st.integers(1, 8))):
        tree = data.draw(st.sampled_from(grown))
        tree = tree[: data.draw(st.integers(0, len(tree)))]
        rows = data.draw(st.sampled_from(cohorts))
        expected = {}
        for row in rows:
            expected.setdefault(walk(row, tree, found.columns), []).append(int(row))
        resting = found.route(rows, tree)
        assert {node: here.tolist() for node, here in resting.items() if len(here)} == expected
        most = 1 + max([0, *(max([split.node, *split.children]) for split in tree)])
        nodes = found.find_nodes(
            rows, tree, most
        )  # the other way, of small tables, also goes on from the last tree
        assert {end: rows[nodes == end].tolist() for end in set(nodes.tolist())} == expected


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_counts_by_code_become_counts_by_cell(data):
    found, _ = data.draw(tables())
    for _ in range(3):
        counted = data.draw(st.lists(st.integers(0, len(found.columns) - 1), unique=True))
        width = data.draw(st.integers(1, 3))
        made = [
            np.arange(len(found.folded[index][1]) * width, dtype=np.uint32).reshape(-1, width) + 1
            for index in counted
        ]
        expected = [[0] * width]
        for index, table in zip(counted, made, strict=True):
            cells = [[0] * width for _ in range(found.attributes[index].size)]
            for place, by_key in zip(found.folded[index][1], table.tolist(), strict=True):
                if place != STAYS:
                    cells[place] = [a + b for a, b in zip(cells[place], by_key, strict=True)]
            expected += cells
        tables_of_all = np.concatenate([np.zeros((0, width), dtype=np.uint32), *made])
        assert found.arrange(tables_of_all, counted).tolist() == expected


@given(data=st.data())
def test_folding_a_column_leaves_every_patient_in_place(data):
    found, _ = data.draw(tables())
    for (codes, place), (narrow, cells), asked in zip(
        found.columns, found.folded, found.attributes, strict=True
    ):
        assert place[codes].tolist() == cells[narrow].tolist()
        assert len(cells) <= asked.size + 1
